#![allow(clippy::needless_pass_by_value, reason = "JSON reads best where it is used")]

use serde_json::{Value, json};

use super::*;
use crate::testing::{key, world};

fn compiled_in(world: &World, spec: Value) -> Compiled {
    let objects = crate::testing::world().policy("vms/p", spec).json();
    let policy: NetworkPolicy = serde_json::from_value(objects).unwrap();
    compile(&key("vms/p"), &policy, world)
}

fn compiled(spec: Value) -> Compiled {
    compiled_in(&World::waiting_for(&[]), spec)
}

/// A policy for every entity with these rules.
fn with(field: &str, rules: Value) -> Compiled {
    compiled(json!({"priority": 5, "appliedTo": [{"externalEntitySelector": {}}], field: rules}))
}

/// Where and why something isn't realised.
fn problems(compiled: &Compiled) -> Vec<(&str, &str)> {
    compiled.problems.iter().map(|p| (&*p.path, p.why.as_str())).collect()
}

#[test]
fn a_rule_without_peers_or_ports_is_for_everything() {
    let policy = with("ingress", json!([{"action": "Allow"}]));
    let [rule] = &policy.policy.rules[..] else { panic!("one rule") };
    assert!(rule.peers.any && rule.services.is_empty());
    assert_eq!((rule.direction, rule.action, rule.index), (Direction::Ingress, Action::Allow, 0));
    assert_eq!(policy.problems, []);
}

#[test]
fn peers_are_the_union_of_groups_and_networks() {
    let policy = with(
        "egress",
        json!([{"action": "Drop", "to": [
            {"externalEntitySelector": {"matchLabels": {"role": "db"}}},
            {"externalEntitySelector": {"matchLabels": {"role": "db"}}, "namespaceSelector": {}},
            {"ipBlock": {"cidr": "10.0.0.9/8", "except": ["10.1.2.3/16"]}},
        ]}]),
    );
    let peers = &policy.policy.rules[0].peers;
    assert_eq!((peers.any, peers.groups.len()), (false, 2));
    let block = json!([{"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}]);
    assert_eq!(serde_json::to_value(&peers.cidrs).unwrap(), block, "host bits say nothing");
    assert_eq!(policy.group_keys().collect::<BTreeSet<_>>(), peers.groups);
}

#[test]
fn ports_and_protocols_are_services() {
    let policy = with(
        "ingress",
        json!([{"action": "Drop", "ports": [
        {"port": 80}, {"protocol": "UDP", "port": 5000, "endPort": 5010}, {"protocol": "SCTP"},
        {"port": "web", "sourcePort": 1024, "sourceEndPort": 65535},
    ], "protocols": [{"icmp": {"icmpType": 8, "icmpCode": 0}}, {"icmp": {}}]}]),
    );
    let services = json!([
        {"protocol": "TCP", "port": {"first": 80, "last": 80}},
        {"protocol": "UDP", "port": {"first": 5000, "last": 5010}},
        {"protocol": "SCTP"},
        {"protocol": "TCP", "port": {"name": "web"}, "src": {"first": 1024, "last": 65535}},
        {"protocol": "ICMP", "type": 8, "code": 0},
        {"protocol": "ICMP"},
    ]);
    assert_eq!(serde_json::to_value(&policy.policy.rules[0].services).unwrap(), services);
}

#[test]
fn a_rule_keeps_its_place_when_others_fall_out() {
    let rules =
        json!([{"action": "Pass"}, {"action": "Allow", "name": "mine", "enableLogging": true, "logLabel": "l"}]);
    let policy = with("egress", rules);
    let [rule] = &policy.policy.rules[..] else { panic!("one rule") };
    assert_eq!((rule.index, &*rule.name, rule.log, rule.log_label.as_deref()), (1, "mine", true, Some("l")));
}

#[test]
fn a_rule_without_a_name_gets_one_that_follows_its_content() {
    let name = |rules: Value, index: usize| with("ingress", rules).policy.rules[index].name.to_string();
    let one = name(json!([{"action": "Drop"}]), 0);
    assert!(one.starts_with("ingress-0-") && one.len() == "ingress-0-".len() + 8, "{one}");
    assert_eq!(one, name(json!([{"action": "Drop", "name": ""}, {"action": "Allow"}]), 0));
    assert_ne!(one, name(json!([{"action": "Allow"}]), 0));
}

#[test]
fn what_is_not_supported_is_named_by_its_field() {
    let cases = [
        ("ingress", json!({"action": "Reject"}), "action"),
        ("ingress", json!({"action": "Pass"}), "action"),
        ("ingress", json!({"action": "Drop", "enforcement": "Audit"}), "enforcement"),
        ("ingress", json!({"action": "Allow", "l7Protocols": [{"http": {}}]}), "l7Protocols"),
        ("egress", json!({"action": "Drop", "toServices": [{"name": "a"}]}), "toServices"),
        ("egress", json!({"action": "Drop", "protocols": [{"igmp": {}}]}), "protocols[0].igmp"),
        ("egress", json!({"action": "Drop", "to": [{"fqdn": "a.example.com"}]}), "to[0].fqdn"),
        ("egress", json!({"action": "Drop", "to": [{"nodeSelector": {}}]}), "to[0].nodeSelector"),
        ("egress", json!({"action": "Drop", "to": [{"podSelector": {}}]}), "to[0].podSelector"),
        (
            "egress",
            json!({"action": "Drop", "to": [{"podSelector": {}, "namespaceSelector": {}}]}),
            "to[0].podSelector",
        ),
        ("egress", json!({"action": "Drop", "to": [{"namespaceSelector": {}}]}), "to[0].namespaceSelector"),
        ("ingress", json!({"action": "Drop", "from": [{"group": "g9"}]}), "from[0].group"),
        (
            "ingress",
            json!({"action": "Drop", "from": [{"externalEntitySelector": {}, "scope": "ClusterSet"}]}),
            "from[0].scope",
        ),
    ];
    for (side, rule, field) in cases {
        let policy = with(side, json!([rule]));
        let path = format!("spec.{side}[0].{field}");
        assert_eq!(problems(&policy), [(&*path, "RuleNotSupported")], "{rule}");
        assert_eq!(policy.policy.rules.len(), 0, "not even half of it: {rule}");
        assert_eq!(policy.targets.len(), 1, "the policy still applies");
    }
}

#[test]
fn one_peer_that_is_not_supported_takes_its_whole_rule_out() {
    let policy = with(
        "ingress",
        json!([
            {"action": "Allow", "from": [{"externalEntitySelector": {"matchLabels": {"a": "b"}}}, {"podSelector": {}}]},
            {"action": "Drop"},
        ]),
    );
    assert_eq!(problems(&policy), [("spec.ingress[0].from[1].podSelector", "RuleNotSupported")]);
    assert_eq!(policy.policy.rules.iter().map(|r| r.index).collect::<Vec<_>>(), [1]);
    assert!(policy.groups.is_empty(), "nobody is told of a group that no rule uses");
}

#[test]
fn the_enforcement_of_the_policy_counts_where_a_rule_says_nothing() {
    let spec = json!({"priority": 5, "enforcement": "Audit", "appliedTo": [{"externalEntitySelector": {}}],
        "ingress": [{"action": "Drop"}, {"action": "Drop", "enforcement": "Enforce"}]});
    let policy = compiled(spec);
    assert_eq!(problems(&policy), [("spec.ingress[0].enforcement", "RuleNotSupported")]);
    assert_eq!(policy.policy.rules.len(), 1);
}

#[test]
fn a_rule_that_means_nothing_is_left_out_whole() {
    let cases = [
        (json!({"action": "Drop", "ports": [{"port": 80}, {"port": 70000}]}), "ports[1].port"),
        (json!({"action": "Drop", "ports": [{"port": 90, "endPort": 80}]}), "ports[0].endPort"),
        (json!({"action": "Drop", "ports": [{"endPort": 80}]}), "ports[0].endPort"),
        (json!({"action": "Drop", "ports": [{"sourceEndPort": 80}]}), "ports[0].sourceEndPort"),
        (json!({"action": "Drop", "ports": [{"port": "web", "endPort": 80}]}), "ports[0].endPort"),
        (json!({"action": "Drop", "protocols": [{"icmp": {"icmpType": 300}}]}), "protocols[0].icmp.icmpType"),
        (json!({"action": "Drop", "protocols": [{}]}), "protocols[0]"),
        (json!({"action": "Drop", "from": [{}]}), "from[0]"),
        (json!({"action": "Drop", "from": [{"ipBlock": {"cidr": "x"}}]}), "from[0].ipBlock.cidr"),
        (
            json!({"action": "Drop", "from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["x"]}}]}),
            "from[0].ipBlock.except[0]",
        ),
        (
            json!({"action": "Drop", "from": [{"externalEntitySelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}]}),
            "from[0].externalEntitySelector.matchExpressions[0].values",
        ),
    ];
    for (rule, field) in cases {
        let policy = with("ingress", json!([{"action": "Allow"}, rule]));
        let path = format!("spec.ingress[1].{field}");
        assert_eq!(problems(&policy), [(&*path, "Invalid")], "{rule}");
        assert_eq!(policy.policy.rules.len(), 1, "{rule}");
    }
}

#[test]
fn rule_ten_is_not_rule_one() {
    let mut rules = vec![json!({"action": "Drop"}); 11];
    rules[10] = json!({"action": "Drop", "from": [{}]});
    let policy = with("ingress", json!(rules));
    assert_eq!(problems(&policy), [("spec.ingress[10].from[0]", "Invalid")]);
    assert_eq!(policy.policy.rules.len(), 10);
}

#[test]
fn ten_thousand_wrong_rules_are_each_told_once() {
    // a look at each fault for each rule would take minutes
    let rule = json!({"action": "Drop", "ports": [{"port": 9, "endPort": 1}]});
    let policy = with("egress", Value::Array(vec![rule; 10_000]));
    assert_eq!((policy.policy.rules.len(), policy.problems.len()), (0, 10_000));
    assert_eq!(policy.problems[9_999].path, "spec.egress[9999].ports[0].endPort");
}

#[test]
fn a_policy_that_is_wrong_as_a_whole_applies_to_nobody() {
    let bad = [
        (json!({"priority": 0, "appliedTo": [{"externalEntitySelector": {}}]}), "spec.priority"),
        (json!({"priority": 5}), "spec.appliedTo"),
        (json!({"priority": 5, "appliedTo": [{}, {"externalEntitySelector": {}}]}), "spec.appliedTo[0]"),
    ];
    for (spec, path) in bad {
        let policy = compiled(spec.clone());
        assert_eq!(problems(&policy), [(path, "Invalid")], "{spec}");
        assert!(policy.targets.is_empty(), "{spec}");
    }
}

#[test]
fn an_applied_to_that_is_not_supported_is_named_and_the_others_apply() {
    let spec =
        json!({"priority": 5, "appliedTo": [{"podSelector": {}}, {"group": "g"}, {"externalEntitySelector": {}}]});
    let policy = compiled(spec);
    let wanted =
        [("spec.appliedTo[0].podSelector", "RuleNotSupported"), ("spec.appliedTo[1].group", "RuleNotSupported")];
    assert_eq!(problems(&policy), wanted);
    assert_eq!(policy.targets.len(), 1);
}

#[test]
fn an_applied_to_of_one_rule_is_not_supported_yet() {
    let spec = json!({"priority": 5, "ingress": [{"action": "Drop", "appliedTo": [{"externalEntitySelector": {}}]}]});
    assert_eq!(problems(&compiled(spec)), [("spec.ingress[0].appliedTo", "RuleNotSupported")]);
}

#[test]
fn the_built_in_tiers_are_what_they_are_and_others_must_be_there() {
    let spec = |tier: &str| json!({"tier": tier, "priority": 5, "appliedTo": [{"externalEntitySelector": {}}]});
    let tiers = world().tier("t9", 9).tier("emergency", 77).scene();
    let tiers = tiers.live.world();
    let priority = |tier: &str| compiled_in(tiers, spec(tier)).policy.tier_priority;
    assert_eq!([priority(""), priority("application"), priority("baseline")], [250, 250, 253]);
    assert_eq!([priority("emergency"), priority("Emergency"), priority("t9")], [50, 50, 9]);
    let unknown = compiled_in(tiers, spec("t8"));
    assert_eq!(problems(&unknown), [("spec.tier", "UnknownTier")]);
    assert!(unknown.targets.is_empty());
}

#[test]
fn the_key_on_the_wire_is_the_objects_uid() {
    let policy = with("ingress", json!([]));
    assert_eq!(policy.id.as_str(), "uid of vms/p");
    assert_eq!((&*policy.policy.namespace, &*policy.policy.name, policy.policy.generation), ("vms", "p", 1));
}
