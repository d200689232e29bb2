//! Which addresses an interface stands for: those that the user listed, and reported ones that the user allows.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crds::external_node::{ExternalNodeStatus, InterfaceStatus, NetworkInterface};
use ipnet::IpNet;

/// Listed ∪ (reported ∩ `allowedCIDRs`).
pub fn of(interface: &NetworkInterface, status: Option<&ExternalNodeStatus>) -> BTreeSet<IpAddr> {
    let mut ips = listed(interface);
    let allowed = allowed(interface);
    if !allowed.is_empty() {
        let reported = status.into_iter().flat_map(|s| &s.interfaces).filter(|s| is_about(s, interface));
        let reported = reported.flat_map(|s| parse(&s.ips)).filter(|ip| is_usable(*ip));
        ips.extend(reported.filter(|ip| allowed.iter().any(|net| net.contains(ip))));
    }
    ips
}

/// The addresses that the user wrote down, less those that can't be one machine's.
pub fn listed(interface: &NetworkInterface) -> BTreeSet<IpAddr> {
    parse(&interface.ips).filter(|ip| is_usable(*ip)).collect()
}

/// The networks that reported addresses are taken from.
pub fn allowed(interface: &NetworkInterface) -> BTreeSet<IpNet> {
    interface.allowed_cidrs.iter().filter_map(|text| text.parse::<IpNet>().ok()).map(|net| net.trunc()).collect()
}

/// Whether the status of one interface of the host is about `interface`.
fn is_about(status: &InterfaceStatus, interface: &NetworkInterface) -> bool {
    match (interface.name(), interface.mac.as_deref()) {
        (Some(name), _) => status.name.as_deref() == Some(name),
        (None, Some(mac)) => status.mac.as_ref().is_some_and(|m| m.eq_ignore_ascii_case(mac)),
        (None, None) => parse(&status.ips).any(|ip| listed(interface).contains(&ip)),
    }
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
