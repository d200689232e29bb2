use std::collections::BTreeMap;
use std::sync::Arc;

use crds::names::GroupKey;
use crds::wire::{Entry, Group, Member, Node, Policy, Revision, View};
use serde_json::{Value, json};

use super::{json, text};

fn web() -> GroupKey {
    GroupKey::of("web")
}

fn revision() -> Revision {
    Revision::new("e", 7)
}

fn rule(index: u32, direction: &str, action: &str, peers: &Value) -> Value {
    json!({"index": index, "name": "", "direction": direction, "action": action, "peers": peers})
}

fn with(mut rule: Value, fields: &Value) -> Value {
    let Value::Object(fields) = fields.clone() else { panic!("fields") };
    rule.as_object_mut().unwrap().extend(fields);
    rule
}

fn policy(name: &str, tier: i32, priority: f64, rules: &[Value]) -> (String, Value) {
    let body = json!({"generation": 3, "kind": "NetworkPolicy", "namespace": "vms", "name": name, "tierPriority": tier,
        "priority": priority, "appliedTo": ["vm1-3e616"], "rules": rules});
    (format!("uid-{name}"), body)
}

fn group(members: &[(&str, &[&str])]) -> Group {
    let members = members.iter().map(|(name, ips)| {
        let reference = json!({"kind": "ExternalEntity", "namespace": "vms", "name": name});
        let member = Member { ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(), ports: [].into() };
        (serde_json::from_value(reference).unwrap(), Arc::new(member))
    });
    Group { members: members.collect() }
}

/// `vms/vm1` with these policies and the group `web`.
fn view(policies: &[(String, Value)]) -> View {
    let node: Node = serde_json::from_value(json!({"uid": "u1", "interfaces": [
        {"entity": "vm1-3e616", "name": "eth0", "mac": "02:00:00:00:00:01", "ips": ["192.0.2.10", "2001:db8::10"],
         "allowedCIDRs": ["198.51.100.0/24"], "ports": [{"name": "https", "protocol": "TCP", "port": 443}]},
        {"entity": "vm1-cb188", "mac": "02:00:00:00:00:02"}
    ]}))
    .unwrap();
    let group = group(&[("vm2-3e616", &["10.0.0.2", "fd00::2"]), ("vm3-3e616", &[])]);
    let policies = policies.iter().map(|(id, body)| {
        let body: Policy = serde_json::from_value(body.clone()).unwrap();
        (id.into(), Arc::new(Entry::new(id.into(), body)))
    });
    View {
        node: Some(Arc::new(Entry::new("vms/vm1".parse().unwrap(), node))),
        groups: [(web(), Arc::new(Entry::new(web(), group)))].into(),
        policies: policies.collect(),
    }
}

/// The lines of the rules, in the order in which they are printed.
fn rules(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.strip_prefix("    ").filter(|line| line.contains("gress "))).collect()
}

#[test]
fn a_view_reads_as_a_page() {
    let rules = [
        with(
            rule(0, "Ingress", "Allow", &json!({"groups": [web()]})),
            &json!({"name": "from-web", "services": [{"protocol": "TCP", "port": {"first": 443, "last": 443}}]}),
        ),
        rule(1, "Ingress", "Drop", &json!({"any": true})),
    ];
    let expected = format!(
        "\
node vms/vm1 (uid u1)
  interface eth0  (02:00:00:00:00:01)  192.0.2.10, 2001:db8::10  allowed 198.51.100.0/24  ports https=TCP/443  entity vm1-3e616
  interface 02:00:00:00:00:02  entity vm1-cb188
revision e.7

policies, and before each rule its place among all rules of its direction
  NetworkPolicy vms/web  tier 250, priority 5, generation 3, on vm1-3e616
    ingress 1: allow TCP 443 from group {web} (2 members)  \"from-web\"
    ingress 2: drop everything from anyone

groups
  group {web} (2 members)
    ExternalEntity vms/vm2-3e616  10.0.0.2, fd00::2
    ExternalEntity vms/vm3-3e616  no address
",
        web = web()
    );
    assert_eq!(text::view(&view(&[policy("web", 250, 5.0, &rules)]), Some(&revision())), expected);
}

#[test]
fn an_empty_view_says_so() {
    assert_eq!(text::view(&View::default(), None), "no node\n\nno policies\n\nno groups\n");
}

#[test]
fn rules_are_numbered_in_the_order_in_which_they_are_judged() {
    let any = json!({"any": true});
    let (first, second) = (rule(0, "Ingress", "Allow", &any), rule(1, "Ingress", "Drop", &any));
    let policies = [
        policy("b", 250, 5.0, &[first.clone(), second.clone()]),
        policy("a", 250, 5.0, &[first.clone(), second, rule(0, "Egress", "Drop", &any)]),
        policy("baseline", 253, 1.0, std::slice::from_ref(&first)),
        policy("late", 250, 5.5, std::slice::from_ref(&first)),
        policy("emergency", 50, 9.0, std::slice::from_ref(&first)),
    ];
    let text = text::view(&view(&policies), None);
    let names: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("  NetworkPolicy vms/")).collect();
    let names: Vec<_> = names.iter().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(names, ["emergency", "a", "b", "late", "baseline"]);
    // The first rules of two policies of one priority stand before the second rule of either.
    let places: Vec<_> = rules(&text).into_iter().map(|line| line.split(':').next().unwrap()).collect();
    let expected =
        ["ingress 1", "ingress 2", "ingress 4", "egress 1", "ingress 3", "ingress 5", "ingress 6", "ingress 7"];
    assert_eq!(places, expected);
}

#[test]
fn every_part_of_a_rule_is_told() {
    let many = [
        with(
            rule(
                0,
                "Egress",
                "Drop",
                &json!({"groups": [GroupKey::of("none")], "fqdns": ["*.example.com"],
                "cidrs": [{"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16", "10.2.0.0/16"]}, {"cidr": "fd00::/8"}]}),
            ),
            &json!({"services": [
                {"protocol": "TCP", "port": {"first": 8000, "last": 8010}, "src": {"first": 1024, "last": 65535}},
                {"protocol": "UDP", "port": {"name": "dns"}}, {"protocol": "SCTP"},
                {"protocol": "ICMP", "type": 8, "code": 0}, {"protocol": "ICMP"}
            ]}),
        ),
        with(
            rule(1, "Egress", "Allow", &json!({})),
            &json!({"enforcement": "Audit", "appliedTo": ["vm1-cb188"], "log": true, "logLabel": "out"}),
        ),
        with(rule(2, "Egress", "Allow", &json!({"any": true})), &json!({"log": true})),
    ];
    let text = text::view(&view(&[policy("p", 250, 5.0, &many)]), None);
    let expected = [
        format!(
            "egress 1: drop TCP 8000-8010 (source port 1024-65535), UDP dns, SCTP, ICMP type 8 code 0, ICMP to group \
             {} (0 members), 10.0.0.0/8 except (10.1.0.0/16, 10.2.0.0/16), fd00::/8, *.example.com",
            GroupKey::of("none")
        ),
        "egress 2: allow everything to nobody  only on vm1-cb188  audited: counted and logged, not enforced  logged as \
         \"out\""
            .to_owned(),
        "egress 3: allow everything to anyone  logged".to_owned(),
    ];
    assert_eq!(rules(&text), expected);
}

#[test]
fn no_name_can_paint_the_terminal() {
    let evil = with(
        rule(0, "Ingress", "Allow", &json!({"any": true, "fqdns": []})),
        &json!({"name": "a\u{1b}[2Jb\nforged", "logLabel": "\u{7}"}),
    );
    let text = text::view(&view(&[policy("p\u{1b}]0;x\u{7}", 250, 5.0, &[evil])]), None);
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    assert!(!text.lines().any(|line| line.starts_with("forged")), "{text}");
}

#[test]
fn changes_read_as_a_difference() {
    let any = json!({"any": true});
    let before = view(&[
        policy("kept", 250, 1.0, &[rule(0, "Ingress", "Allow", &any)]),
        policy("changed", 250, 2.0, &[rule(0, "Ingress", "Allow", &any)]),
        policy("deleted", 250, 3.0, &[]),
    ]);
    let mut after = view(&[
        policy("kept", 250, 1.0, &[rule(0, "Ingress", "Allow", &any)]),
        policy("changed", 250, 2.0, &[rule(0, "Ingress", "Drop", &any)]),
        policy("new", 250, 3.0, &[]),
    ]);
    let members = group(&[("vm2-3e616", &["10.0.0.9"]), ("vm4-3e616", &["10.0.0.4"])]);
    let other = GroupKey::of("other");
    after.groups = [(web(), members), (other, Group::default())]
        .map(|(key, group)| (key, Arc::new(Entry::new(key, group))))
        .into();
    let expected = "\
revision e.7
  ~ NetworkPolicy vms/changed  tier 250, priority 2, generation 3, on vm1-3e616
    ingress 2: drop everything from anyone
  + NetworkPolicy vms/new  tier 250, priority 3, generation 3, on vm1-3e616
  - NetworkPolicy vms/deleted
"
    .to_owned();
    let groups = BTreeMap::from([
        (
            web(),
            format!(
                "  ~ group {} (2 members)
    ~ ExternalEntity vms/vm2-3e616  10.0.0.9
    + ExternalEntity vms/vm4-3e616  10.0.0.4
    - ExternalEntity vms/vm3-3e616  no address
",
                web()
            ),
        ),
        (other, format!("  + group {other} (0 members)\n")),
    ]);
    let expected = expected + &groups.into_values().collect::<String>();
    assert_eq!(text::changes(&before, &after, &revision()), expected);
    assert_eq!(text::changes(&after, &after, &revision()), "");
}

#[test]
fn a_node_that_changes_or_leaves_is_told() {
    let before = view(&[]);
    let mut after = before.clone();
    after.node = None;
    assert_eq!(text::changes(&before, &after, &revision()), "revision e.7\n  - node vms/vm1\n");
    let node = Node { uid: "u2".into(), interfaces: vec![] };
    after.node = Some(Arc::new(Entry::new("vms/vm1".parse().unwrap(), node)));
    assert_eq!(text::changes(&before, &after, &revision()), "revision e.7\n  ~ node vms/vm1 (uid u2)\n");
    let (empty, some) = (View::default(), View { groups: [].into(), ..after });
    assert_eq!(text::changes(&empty, &some, &revision()), "revision e.7\n  + node vms/vm1 (uid u2)\n");
}

#[test]
fn programs_get_the_words_of_the_wire() {
    let policies = [
        policy("b", 250, 5.0, &[rule(0, "Ingress", "Allow", &json!({"any": true}))]),
        policy("a", 250, 5.0, &[rule(0, "Ingress", "Drop", &json!({"any": true}))]),
    ];
    let view = view(&policies);
    let text = json::view(&view, Some(&revision()));
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(text.lines().count(), 1);
    assert_eq!(value["revision"], "e.7");
    assert_eq!(value["node"]["interfaces"][0]["ips"], json!(["192.0.2.10", "2001:db8::10"]));
    assert_eq!(value["policies"][0]["key"], "uid-a");
    assert_eq!((&value["policies"][0]["places"], &value["policies"][1]["places"]), (&json!([1]), &json!([2])));
    assert_eq!(value["groups"][0]["members"][0]["ref"]["name"], "vm2-3e616");
    let hash = view.policies["uid-a"].hash().to_string();
    assert_eq!(value["policies"][0]["hash"], hash, "of the body as it came");

    let changes: Value = serde_json::from_str(&json::changes(&View::default(), &view, &revision())).unwrap();
    let frames: Vec<_> = changes["changes"].as_array().unwrap().iter().map(|change| &change["kind"]).collect();
    assert_eq!(frames, ["group", "policy", "policy", "node"]);
    assert_eq!(json::changes(&view, &view, &revision()), "");
    assert_eq!(json::gone(&"u1".into(), "deleted"), "{\"gone\":{\"uid\":\"u1\",\"reason\":\"deleted\"}}\n");
}
