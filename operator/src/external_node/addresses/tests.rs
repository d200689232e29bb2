use serde_json::json;

use super::*;

fn interface(value: serde_json::Value) -> NetworkInterface {
    serde_json::from_value(value).unwrap()
}

/// A status of interfaces by name, MAC and addresses.
fn status<const N: usize>(all: [(&str, &str, &[&str]); N]) -> ExternalNodeStatus {
    let all = all.map(|(name, mac, ips)| json!({"name": name, "mac": mac, "ips": ips}));
    serde_json::from_value(json!({"interfaces": all.to_vec()})).unwrap()
}

fn texts(ips: &BTreeSet<IpAddr>) -> Vec<String> {
    ips.iter().map(ToString::to_string).collect()
}

#[test]
fn listed_addresses_count_whatever_is_reported() {
    let eth0 = interface(json!({"name": "eth0", "ips": ["10.0.0.5", "2001:db8::5"]}));
    let reported = status([("eth0", "", &["10.0.0.9"])]);
    for status in [None, Some(&reported)] {
        assert_eq!(texts(&of(&eth0, status)), ["10.0.0.5", "2001:db8::5"]);
    }
}

#[test]
fn reported_addresses_count_inside_what_is_allowed() {
    let eth0 = interface(json!({"name": "eth0", "ips": ["192.0.2.1"], "allowedCIDRs": ["10.0.0.9/24", "fe80::/10"]}));
    let reported = status([("eth0", "", &["10.0.0.5", "10.0.1.5", "fe80::1"]), ("eth1", "", &["10.0.0.6"])]);
    assert_eq!(texts(&of(&eth0, Some(&reported))), ["10.0.0.5", "192.0.2.1"]);
}

#[test]
fn what_can_not_be_one_machines_address_is_nobodys() {
    let many = json!(["127.0.0.1", "169.254.1.1", "224.0.0.1", "0.0.0.0", "::", "::1", "fe80::1", "ff02::1", "x"]);
    assert_eq!(of(&interface(json!({"ips": many})), None), BTreeSet::new());
}

#[test]
fn the_users_order_and_spelling_stay_and_reported_ones_follow() {
    let eth0 =
        json!({"name": "eth0", "ips": ["2001:DB8::5", "10.0.0.5", "2001:db8::5"], "allowedCIDRs": ["10.0.0.0/8"]});
    let reported = status([("eth0", "", &["10.0.0.7", "10.0.0.5", "10.0.0.6"])]);
    assert_eq!(in_order(&interface(eth0), Some(&reported)), ["2001:DB8::5", "10.0.0.5", "10.0.0.6", "10.0.0.7"]);
}

#[test]
fn an_interface_is_found_by_name_else_by_mac_else_by_address() {
    let host = status([("eth0", "52:54:00:00:00:0a", &["10.0.0.5"]), ("eth1", "52:54:00:00:00:0b", &["10.0.0.6"])]);
    let find = |value| {
        let found = found(&interface(value), &host.interfaces).into_iter();
        found.filter_map(|s| s.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(find(json!({"name": "eth0", "ips": ["10.0.0.6"]})), ["eth0"]);
    assert_eq!(find(json!({"mac": "52:54:00:00:00:0B"})), ["eth1"]);
    assert_eq!(find(json!({"name": "the uplink", "ips": ["10.0.0.6"]})), ["eth1"]);
    assert_eq!(find(json!({"name": "wan", "mac": "52:54:00:00:00:0a"})), ["eth0"]);
    assert_eq!(find(json!({"name": "wan"})), [""; 0]);
}

#[test]
fn a_listed_address_that_the_machine_does_not_have_is_missing() {
    let eth0 = interface(json!({"name": "eth0", "ips": ["10.0.0.5", "10.0.0.6"]}));
    let host = status([("eth0", "", &["10.0.0.5"]), ("eth1", "", &["10.0.0.6"])]);
    assert_eq!(texts(&missing(&eth0, &host.interfaces)), ["10.0.0.6"]);
}
