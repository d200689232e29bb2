//! What is wrong with an `ExternalNode`.

use std::time::Duration;

use kube::ResourceExt;

use super::{Found, Violation, not_a_host, parse_cidr, parse_ip, unique};
use crate::external_node::{ExternalNode, ExternalNodeSpec, NamedPort, NetworkInterface, NodeIdentity};
use crate::hash::sha1_prefix;

/// An object's name is at most this long.
const LONGEST_NAME: usize = 253;
/// An interface's name on Linux is at most this long.
const LONGEST_INTERFACE: usize = 15;
/// What an interface adds to the name of its entity: a dash and five digits.
const SUFFIX: usize = 6;

/// All that is wrong with `node`.
pub fn external_node(node: &ExternalNode) -> Vec<Violation> {
    let mut found = Found::default();
    let ExternalNodeSpec { interfaces, identity } = &node.spec;
    if interfaces.is_empty() {
        found.whole("spec.interfaces", "give at least one interface; policies are enforced on interfaces");
    }
    for (index, interface) in interfaces.iter().enumerate() {
        one_interface(&mut found, &format!("spec.interfaces[{index}]"), interface, interfaces.len() == 1);
    }
    together(&mut found, interfaces);
    entity_names(&mut found, &node.name_any(), interfaces);
    if let Some(NodeIdentity { rejoin_grace: Some(text) }) = identity
        && grace(text).is_none()
    {
        found.add(
            "spec.identity.rejoinGrace",
            text,
            "must be a duration of hours, minutes and seconds, as 72h or 1h30m",
        );
    }
    found.0
}

fn one_interface(found: &mut Found, path: &str, interface: &NetworkInterface, alone: bool) {
    let NetworkInterface { name: _, mac, ips, allowed_cidrs, ports } = interface;
    match interface.name() {
        None if ips.is_empty() && mac.is_none() => {
            found.whole(path, "can't be found on the machine; give ips, name or mac");
        }
        None if !alone => {
            let reason =
                "is missing; with more than one interface each needs a name, which its ExternalEntity is named after";
            found.whole(format!("{path}.name"), reason);
        }
        Some(name) if ips.is_empty() && mac.is_none() && name.len() > LONGEST_INTERFACE => {
            let reason = "no interface of Linux has a name longer than 15 bytes; add ips or mac to find it by these";
            found.add(format!("{path}.name"), name, reason);
        }
        _ => {}
    }
    if let Some(mac) = mac {
        hardware_address(found, &format!("{path}.mac"), mac);
    }
    for (index, ip) in ips.iter().enumerate() {
        let wrong = parse_ip(ip).map_or_else(Some, not_a_host);
        if let Some(reason) = wrong {
            found.add(format!("{path}.ips[{index}]"), ip, reason);
        }
    }
    for (index, cidr) in allowed_cidrs.iter().enumerate() {
        let wrong = parse_cidr(cidr).map_or_else(Some, |net| match net.addr() {
            // 0.0.0.0/1 starts like that, and is a range of hosts
            ip if ip.is_unspecified() => None,
            ip => not_a_host(ip),
        });
        if let Some(reason) = wrong {
            found.add(format!("{path}.allowedCIDRs[{index}]"), cidr, reason);
        }
    }
    for (index, NamedPort { name, port, protocol: _ }) in ports.iter().enumerate() {
        found.number(&format!("{path}.ports[{index}].port"), Some(*port), 1..=65535);
        if !is_port_name(name) {
            let reason =
                "must be the name of a port: up to 63 lower-case letters, digits or '-', alphanumeric at both ends";
            found.add(format!("{path}.ports[{index}].name"), name, reason);
        }
    }
    let key = |(index, port): (usize, &NamedPort)| {
        (format!("{path}.ports[{index}]"), port.name.clone(), (port.name.clone(), port.protocol))
    };
    unique(found, ports.iter().enumerate().map(key), "name and protocol");
}

fn hardware_address(found: &mut Found, path: &str, mac: &str) {
    match parse_mac(mac) {
        None => found.add(path, mac, "must be six pairs of hexadecimal digits with colons, as 52:54:00:12:34:56"),
        Some([first, ..]) if first & 1 == 1 => {
            found.add(path, mac, "is a group address, which no interface has; give the interface's own");
        }
        Some(_) => {}
    }
}

fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let pairs: Vec<&str> = text.split(':').collect();
    let pairs: [&str; 6] = pairs.try_into().ok()?;
    let mut mac = [0; 6];
    for (byte, pair) in mac.iter_mut().zip(pairs) {
        let plain = pair.len() == 2 && pair.bytes().all(|b| b.is_ascii_hexdigit());
        *byte = u8::from_str_radix(pair, 16).ok().filter(|_| plain)?;
    }
    Some(mac)
}

fn is_port_name(name: &str) -> bool {
    !name.contains('.') && name.len() <= 63 && crate::names::is_dns_subdomain(name)
}

/// What is wrong between the interfaces of one node.
fn together(found: &mut Found, interfaces: &[NetworkInterface]) {
    let all = || interfaces.iter().enumerate();
    let named = all().filter_map(|(index, interface)| {
        let name = interface.name()?.to_owned();
        Some((format!("spec.interfaces[{index}].name"), name.clone(), name))
    });
    unique(found, named, "name");
    let macs = all().filter_map(|(index, interface)| {
        let text = interface.mac.clone()?;
        Some((format!("spec.interfaces[{index}].mac"), text.clone(), parse_mac(&text)?))
    });
    unique(found, macs, "hardware address");
    let addresses = all().flat_map(|(index, interface)| {
        let mut own: Vec<_> =
            interface.ips.iter().enumerate().filter_map(|(i, ip)| Some((parse_ip(ip).ok()?, i, ip))).collect();
        // twice on one interface says nothing wrong
        own.sort_unstable();
        own.dedup_by_key(|(ip, ..)| *ip);
        own.into_iter().map(move |(ip, i, text)| (format!("spec.interfaces[{index}].ips[{i}]"), text.clone(), ip))
    });
    unique(found, addresses, "address, so the agent couldn't tell which interface is meant");
}

/// The names that the entities would get: short enough, and different.
fn entity_names(found: &mut Found, node: &str, interfaces: &[NetworkInterface]) {
    let named = || interfaces.iter().enumerate().filter_map(|(index, interface)| Some((index, interface.name()?)));
    if node.len() > LONGEST_NAME - SUFFIX && named().next().is_some() {
        let reason = "is too long: with a named interface the ExternalEntity's name is 6 longer, and 253 is the most; \
                      use a name of at most 247 characters";
        found.add("metadata.name", node, reason);
    }
    let mut distinct: Vec<&str> = named().map(|(_, name)| name).collect();
    distinct.sort_unstable();
    distinct.dedup();
    let first = |name: &str| named().find(|(_, other)| *other == name).map_or(0, |(index, _)| index);
    let keys = distinct
        .into_iter()
        .map(|name| (format!("spec.interfaces[{}].name", first(name)), name.to_owned(), sha1_prefix(name, 5)));
    unique(found, keys, "name of its ExternalEntity by chance (a short hash); rename one of the interfaces");
}

/// A duration of whole numbers with the units ms, s, m and h, as `72h` or `1h30m`; `0` is none.
pub fn grace(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok().filter(|_| digits <= 9)?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let one = match &rest[..unit] {
            "ms" => Duration::from_millis(number),
            "s" => Duration::from_secs(number),
            "m" => Duration::from_secs(number * 60),
            "h" => Duration::from_secs(number * 3600),
            _ => return None,
        };
        total += one;
        rest = &rest[unit..];
    }
    (!text.is_empty()).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{paths, said};
    use super::*;

    fn node(spec: &str) -> ExternalNode {
        let spec = serde_saphyr::from_str(spec).expect("the test's own YAML");
        ExternalNode::new("vm1", spec)
    }

    fn wrong(spec: &str) -> Vec<Violation> {
        external_node(&node(spec))
    }

    #[test]
    fn what_finds_an_interface_is_enough() {
        let good = [
            "interfaces: [{ips: [10.0.0.5, '2001:db8::5']}]",
            "interfaces: [{name: eth0}]",
            "interfaces: [{mac: '52:54:00:12:34:56'}]",
            "interfaces: [{name: eth0, allowedCIDRs: [10.0.0.0/16, 0.0.0.0/0, '::/0']}]",
            "interfaces: [{name: the uplink of the third rack, ips: [10.0.0.5, 10.0.0.5]}]",
            "interfaces: [{name: eth0, ips: [10.0.0.5]}, {name: eth1, ips: [10.1.0.5]}]",
            "interfaces: [{ips: [10.0.0.5], ports: [{name: dns, port: 53}, {name: dns, protocol: UDP, port: 53}]}]",
            "{interfaces: [{name: eth0}], identity: {rejoinGrace: 72h}}",
        ];
        for spec in good {
            assert_eq!(said(&wrong(spec)), Vec::<String>::new(), "{spec}");
        }
    }

    #[test]
    fn each_fault_is_named_by_its_field() {
        let bad = [
            ("interfaces: []", "spec.interfaces"),
            ("interfaces: [{}]", "spec.interfaces[0]"),
            ("interfaces: [{name: ''}]", "spec.interfaces[0]"),
            ("interfaces: [{allowedCIDRs: [10.0.0.0/16]}]", "spec.interfaces[0]"),
            ("interfaces: [{name: a-name-of-16-char}]", "spec.interfaces[0].name"),
            ("interfaces: [{name: eth0}, {ips: [10.0.0.5]}]", "spec.interfaces[1].name"),
            ("interfaces: [{name: eth0}, {name: eth0}]", "spec.interfaces[1].name"),
            ("interfaces: [{ips: [vm1]}]", "spec.interfaces[0].ips[0]"),
            ("interfaces: [{ips: [10.0.0.5, 169.254.0.5]}]", "spec.interfaces[0].ips[1]"),
            ("interfaces: [{name: a, ips: [10.0.0.5]}, {name: b, ips: [10.0.0.5]}]", "spec.interfaces[1].ips[0]"),
            ("interfaces: [{name: a, allowedCIDRs: [10.0.0.0]}]", "spec.interfaces[0].allowedCIDRs[0]"),
            ("interfaces: [{name: a, allowedCIDRs: ['fe80::/10']}]", "spec.interfaces[0].allowedCIDRs[0]"),
            ("interfaces: [{mac: 5254.0012.3456}]", "spec.interfaces[0].mac"),
            ("interfaces: [{mac: '01:00:5e:00:00:01'}]", "spec.interfaces[0].mac"),
            ("interfaces: [{name: a, ports: [{name: http, port: 0}]}]", "spec.interfaces[0].ports[0].port"),
            ("interfaces: [{name: a, ports: [{name: Http, port: 80}]}]", "spec.interfaces[0].ports[0].name"),
            ("interfaces: [{name: a, ports: [{name: x, port: 1}, {name: x, port: 2}]}]", "spec.interfaces[0].ports[1]"),
            ("{interfaces: [{name: a}], identity: {rejoinGrace: 3 days}}", "spec.identity.rejoinGrace"),
        ];
        for (spec, path) in bad {
            assert_eq!(paths(&wrong(spec)), [path], "{spec}");
        }
    }

    #[test]
    fn all_faults_are_told_at_once() {
        let violations = wrong("interfaces: [{ips: ['127.0.0.1', '::']}, {name: eth1, mac: x}]");
        let wanted = [
            "spec.interfaces[0].name: is missing; with more than one interface each needs a name, which its ExternalEntity \
             is named after",
            "spec.interfaces[0].ips[0]: \"127.0.0.1\": is a loopback address, which every machine has; give one that the \
             network knows",
            "spec.interfaces[0].ips[1]: \"::\": is the unspecified address; give an address of the machine",
            "spec.interfaces[1].mac: \"x\": must be six pairs of hexadecimal digits with colons, as 52:54:00:12:34:56",
        ];
        assert_eq!(said(&violations), wanted);
    }

    #[test]
    fn the_same_address_in_other_letters_is_the_same_address() {
        let violations = wrong("interfaces: [{name: a, ips: ['2001:db8::5']}, {name: b, ips: ['2001:DB8:0::5']}]");
        assert_eq!(paths(&violations), ["spec.interfaces[1].ips[0]"]);
        let violations =
            wrong("interfaces: [{name: a, mac: '52:54:00:AB:00:01'}, {name: b, mac: '52:54:00:ab:00:01'}]");
        assert_eq!(paths(&violations), ["spec.interfaces[1].mac"]);
    }

    #[test]
    fn a_name_leaves_room_for_what_its_entities_add() {
        let mut node = node("interfaces: [{name: eth0}]");
        node.metadata.name = Some("a".repeat(247));
        assert_eq!(external_node(&node), []);
        node.metadata.name = Some("a".repeat(248));
        assert_eq!(paths(&external_node(&node)), ["metadata.name"]);
        node.spec.interfaces[0] = NetworkInterface { ips: vec!["10.0.0.5".into()], ..NetworkInterface::default() };
        assert_eq!(external_node(&node), [], "the entity of an unnamed interface has the node's own name");
    }

    #[test]
    fn two_interfaces_whose_entities_would_have_one_name_are_refused() {
        let mut seen = std::collections::BTreeMap::new();
        let (one, other) = (0..)
            .map(|n| format!("eth{n}"))
            .find_map(|name| seen.insert(sha1_prefix(&name, 5), name.clone()).map(|earlier| (earlier, name)))
            .expect("20 bits repeat");
        let violations = wrong(&format!("interfaces: [{{name: {one}}}, {{name: {other}}}]"));
        assert_eq!(violations.len(), 1);
        assert!(violations[0].reason.contains("rename one"), "{}", violations[0]);
    }

    #[test]
    fn a_duration_is_a_sum_of_whole_units() {
        let seconds = |text| grace(text).map(|duration| duration.as_secs());
        assert_eq!(seconds("72h"), Some(259_200));
        assert_eq!(seconds("1h30m5s"), Some(5405));
        assert_eq!(seconds("0"), Some(0));
        assert_eq!(grace("250ms"), Some(Duration::from_millis(250)));
        for bad in ["", "72", "h", "1.5h", "-1h", "1d", "1 h", "9999999999h"] {
            assert_eq!(grace(bad), None, "{bad}");
        }
    }
}
