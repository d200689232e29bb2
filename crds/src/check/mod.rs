//! What is wrong with an object, in words for its author. The webhook refuses by these, the operator reports by them.
//!
//! ```text
//! object -> external_node | policy | binding | tier -> [Violation]   all of them, in the order of the fields
//! ```
//!
//! The schemas say most of this too, for the case that no webhook runs. They can't say what needs a second look over
//! unbounded lists (ranges of ports, names of rules, what exactly a peer is): the API server refuses rules that cost that much.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use crate::names::is_dns_subdomain;

mod binding;
mod external_entity;
mod external_node;
mod policy;
mod tier;

pub use binding::binding;
pub use external_entity::external_entity;
pub use external_node::{external_node, grace};
pub use policy::policy;
pub use tier::{tier, tier_among, tier_change};

/// One thing that is wrong with an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The field, as `spec.interfaces[0].ips[1]`.
    pub path: String,
    /// What stands there; empty when the fault is that something is missing, or when it is too much to repeat.
    pub value: String,
    /// Why that is wrong, and what to write instead.
    pub reason: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, value, reason } = self;
        if value.is_empty() { write!(f, "{path}: {reason}") } else { write!(f, "{path}: {value:?}: {reason}") }
    }
}

impl std::error::Error for Violation {}

/// The violations found so far.
#[derive(Debug, Default)]
struct Found(Vec<Violation>);

impl Found {
    fn add(&mut self, path: impl Into<String>, value: impl fmt::Display, reason: impl Into<String>) {
        self.0.push(Violation { path: path.into(), value: value.to_string(), reason: reason.into() });
    }

    /// Something is missing at `path`, or is wrong as a whole.
    fn whole(&mut self, path: impl Into<String>, reason: impl Into<String>) {
        self.add(path, "", reason);
    }

    /// The number, if there is one, must be in `range`.
    fn number(&mut self, path: &str, value: Option<i32>, range: RangeInclusive<i32>) {
        if let Some(value) = value.filter(|value| !range.contains(value)) {
            self.add(path, value, format!("must be a number from {} to {}", range.start(), range.end()));
        }
    }
}

/// Requires of `texts` that no two have the same key, and names the earlier one.
fn unique<K: Ord>(found: &mut Found, keys: impl Iterator<Item = (String, String, K)>, what: &str) {
    let mut first = BTreeMap::new();
    for (path, value, key) in keys {
        if let Some(earlier) = first.get(&key) {
            found.add(path, value, format!("{earlier} has the same {what}; each must be unique here"));
        } else {
            first.insert(key, path);
        }
    }
}

/// The address, or why it is none.
fn parse_ip(text: &str) -> Result<IpAddr, &'static str> {
    let ip: IpAddr = text.parse().map_err(
        |_| "must be an IPv4 or IPv6 address, without prefix length, zone or leading zeros, as 10.0.0.5 or 2001:db8::5",
    )?;
    match ip {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            Err("is an IPv4 address in the clothes of IPv6; write it as IPv4")
        }
        ip => Ok(ip),
    }
}

/// The network, host bits and all, or why it is none.
fn parse_cidr(text: &str) -> Result<IpNet, &'static str> {
    let net: IpNet = text
        .parse()
        .map_err(|_| "must be a network: an address, a slash and a prefix length, as 10.0.0.0/16 or 2001:db8::/64")?;
    parse_ip(&net.addr().to_string())?;
    Ok(net)
}

/// Why `ip` can't be the address of one machine.
fn not_a_host(ip: IpAddr) -> Option<&'static str> {
    if ip.is_unspecified() {
        Some("is the unspecified address; give an address of the machine")
    } else if ip.is_loopback() {
        Some("is a loopback address, which every machine has; give one that the network knows")
    } else if is_link_local(ip) {
        Some("is link-local, so it means another machine on each link; give one that is routed")
    } else if ip.is_multicast() {
        Some("is a multicast address, which names many machines; give an address of this one")
    } else if ip == IpAddr::from([255, 255, 255, 255]) {
        Some("is the broadcast address; give an address of the machine")
    } else {
        None
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// What is wrong with the label selector at `path`, if there is one.
fn selector(found: &mut Found, path: &str, selector: Option<&LabelSelector>) {
    let Some(selector) = selector else { return };
    for (key, value) in selector.match_labels.iter().flatten() {
        let path = format!("{path}.matchLabels[{key:?}]");
        label_key(found, &path, key);
        label_value(found, &path, value);
    }
    for (index, expression) in selector.match_expressions.iter().flatten().enumerate() {
        requirement(found, &format!("{path}.matchExpressions[{index}]"), expression);
    }
}

fn requirement(found: &mut Found, path: &str, requirement: &LabelSelectorRequirement) {
    let LabelSelectorRequirement { key, operator, values } = requirement;
    let values = values.as_deref().unwrap_or_default();
    label_key(found, &format!("{path}.key"), key);
    for (index, value) in values.iter().enumerate() {
        label_value(found, &format!("{path}.values[{index}]"), value);
    }
    match operator.as_str() {
        "In" | "NotIn" if values.is_empty() => {
            found.whole(format!("{path}.values"), format!("{operator} compares with values; give at least one"));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => found.add(
            format!("{path}.values"),
            values.join(","),
            format!("{operator} looks at the key alone; leave values out, or use In or NotIn"),
        ),
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        _ => found.add(format!("{path}.operator"), operator, "must be In, NotIn, Exists or DoesNotExist"),
    }
}

fn label_key(found: &mut Found, path: &str, key: &str) {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    if name.is_empty() || !is_label_text(name) || !prefix.is_none_or(is_dns_subdomain) {
        let reason = "must be the key of a label: up to 63 letters, digits, '-', '_' or '.', alphanumeric at both ends, \
                      perhaps behind a DNS name and '/', as app or example.com/app";
        found.add(path, key, reason);
    }
}

fn label_value(found: &mut Found, path: &str, value: &str) {
    if !is_label_text(value) {
        let reason =
            "must be the value of a label: up to 63 letters, digits, '-', '_' or '.', alphanumeric at both ends";
        found.add(path, value, reason);
    }
}

/// Empty, or up to 63 of `[A-Za-z0-9-_.]` with an alphanumeric at both ends.
fn is_label_text(text: &str) -> bool {
    let bytes = text.as_bytes();
    let end = |b: Option<&u8>| b.is_none_or(u8::is_ascii_alphanumeric);
    let inner = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    bytes.len() <= 63 && end(bytes.first()) && end(bytes.last()) && bytes.iter().all(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The violations as the user reads them.
    pub(super) fn said(violations: &[Violation]) -> Vec<String> {
        violations.iter().map(ToString::to_string).collect()
    }

    /// The paths of the violations.
    pub(super) fn paths(violations: &[Violation]) -> Vec<&str> {
        violations.iter().map(|violation| violation.path.as_str()).collect()
    }

    fn selector_of(yaml: &str) -> Vec<Violation> {
        let mut found = Found::default();
        selector(&mut found, "s", Some(&serde_saphyr::from_str(yaml).expect("the test's own YAML")));
        found.0
    }

    #[test]
    fn a_violation_names_the_field_the_value_and_the_way_out() {
        let violation = Violation { path: "spec.a[0]".into(), value: "x".into(), reason: "must be y".into() };
        assert_eq!(violation.to_string(), r#"spec.a[0]: "x": must be y"#);
        let missing = Violation { value: String::new(), ..violation };
        assert_eq!(missing.to_string(), "spec.a[0]: must be y");
    }

    #[test]
    fn a_selector_that_kubernetes_takes_is_taken() {
        let good = "matchLabels: {app: db, example.com/tier: '', a_b.c: A_b.c}\n\
                    matchExpressions: [{key: x, operator: In, values: [a]}, {key: y, operator: Exists}]";
        assert_eq!(selector_of(good), []);
        assert_eq!(selector_of("{}"), []);
    }

    #[test]
    fn a_selector_is_refused_for_each_fault_of_its_own() {
        let bad = "matchLabels: {-app: db, app: '-'}\n\
                   matchExpressions: [{key: x, operator: In}, {key: y, operator: Exists, values: [a]}, {key: A/x, operator: Is}]";
        let wanted = [
            r#"s.matchLabels["-app"]"#,
            r#"s.matchLabels["app"]"#,
            "s.matchExpressions[0].values",
            "s.matchExpressions[1].values",
            "s.matchExpressions[2].key",
            "s.matchExpressions[2].operator",
        ];
        assert_eq!(paths(&selector_of(bad)), wanted);
    }

    #[test]
    fn an_address_is_one_way_to_write_one_machine() {
        assert!(parse_ip("10.0.0.5").is_ok() && parse_ip("2001:db8::5").is_ok());
        for bad in ["10.0.0.5/24", "fe80::1%eth0", "010.0.0.5", "::ffff:10.0.0.5", "vm1", ""] {
            assert!(parse_ip(bad).is_err(), "{bad}");
        }
        assert!(parse_cidr("10.0.0.5/24").is_ok(), "host bits say nothing, and are ignored");
        for bad in ["10.0.0.0", "10.0.0.0/33", "::ffff:10.0.0.0/104"] {
            assert!(parse_cidr(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_address_that_means_every_machine_or_many_is_no_host() {
        for bad in
            ["0.0.0.0", "::", "127.0.0.1", "::1", "169.254.1.1", "fe80::1", "224.0.0.1", "ff02::1", "255.255.255.255"]
        {
            assert!(not_a_host(bad.parse().expect("an address")).is_some(), "{bad}");
        }
        for good in ["10.0.0.5", "192.0.2.1", "2001:db8::5", "fd00::1"] {
            assert_eq!(not_a_host(good.parse().expect("an address")), None, "{good}");
        }
    }
}
