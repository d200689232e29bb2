//! Which addresses an interface stands for: those that the user listed, and reported ones that the user allows.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crds::external_node::{ExternalNodeStatus, InterfaceStatus, NetworkInterface};
use ipnet::IpNet;

#[cfg(test)]
mod tests;

/// Listed ∪ (reported ∩ `allowedCIDRs`).
pub fn of(interface: &NetworkInterface, status: Option<&ExternalNodeStatus>) -> BTreeSet<IpAddr> {
    let mut ips = listed(interface);
    let allowed = allowed(interface);
    if !allowed.is_empty() {
        let found = status.into_iter().flat_map(|s| found(interface, &s.interfaces));
        let reported = found.flat_map(|s| parse(&s.ips)).filter(|ip| is_usable(*ip));
        ips.extend(reported.filter(|ip| allowed.iter().any(|net| net.contains(ip))));
    }
    ips
}

/// The same in the order and the spelling of the user, the reported ones behind.
pub fn in_order(interface: &NetworkInterface, status: Option<&ExternalNodeStatus>) -> Vec<String> {
    let mut left = of(interface, status);
    let mut take = |text: &&String| text.parse().is_ok_and(|ip: IpAddr| left.remove(&ip));
    let mut out: Vec<_> = interface.ips.iter().filter(&mut take).cloned().collect();
    out.extend(left.iter().map(IpAddr::to_string));
    out
}

/// The addresses that the user wrote down, less those that can't be one machine's.
pub fn listed(interface: &NetworkInterface) -> BTreeSet<IpAddr> {
    parse(&interface.ips).filter(|ip| is_usable(*ip)).collect()
}

/// The networks that reported addresses are taken from.
pub fn allowed(interface: &NetworkInterface) -> BTreeSet<IpNet> {
    interface.allowed_cidrs.iter().filter_map(|text| text.parse::<IpNet>().ok()).map(|net| net.trunc()).collect()
}

/// Those of `all` the host's interfaces that are `interface`: by its name, else by its MAC, else by what the user listed.
///
/// A name may be one that only the user knows, so it decides only where the host has it, too.
pub fn found<'s>(interface: &NetworkInterface, all: &'s [InterfaceStatus]) -> Vec<&'s InterfaceStatus> {
    let listed = listed(interface);
    let by_name = |s: &InterfaceStatus| interface.name().is_some() && s.name.as_deref() == interface.name();
    let by_mac = |s: &InterfaceStatus| {
        let macs = interface.mac.as_ref().zip(s.mac.as_ref());
        macs.is_some_and(|(wanted, mac)| wanted.eq_ignore_ascii_case(mac))
    };
    let by_address = |s: &InterfaceStatus| parse(&s.ips).any(|ip| listed.contains(&ip));
    let ways: [&dyn Fn(&InterfaceStatus) -> bool; 3] = [&by_name, &by_mac, &by_address];
    let found = ways.iter().map(|is_it| all.iter().filter(|s| is_it(s)).collect::<Vec<_>>());
    found.into_iter().find(|found| !found.is_empty()).unwrap_or_default()
}

/// The listed addresses that `interface` doesn't have among `all` the host's interfaces.
pub fn missing(interface: &NetworkInterface, all: &[InterfaceStatus]) -> BTreeSet<IpAddr> {
    let had: BTreeSet<_> = found(interface, all).into_iter().flat_map(|s| parse(&s.ips)).collect();
    listed(interface).difference(&had).copied().collect()
}

/// One machine's address that others may know: not loopback, multicast, unspecified or link-local.
pub fn is_usable(ip: IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(link_local || ip.is_loopback() || ip.is_multicast() || ip.is_unspecified())
}

fn parse(texts: &[String]) -> impl Iterator<Item = IpAddr> + '_ {
    texts.iter().filter_map(|text| text.parse().ok())
}
