use serde_json::{Value, json};

use super::*;
use crate::testing::{Objects, Scene, Told, report, world};

const POLICY: WorldKind = WorldKind::NetworkPolicy;

fn for_all() -> Value {
    json!({"priority": 5, "appliedTo": [{"externalEntitySelector": {}}]})
}

fn two_nodes() -> Objects {
    world().node("vms/vm1").interface("eth0", ["10.0.0.5"]).node("vms/vm2").interface("eth0", ["10.0.0.6"])
}

fn scene(objects: Objects) -> Scene {
    objects.policy("vms/p", for_all()).scene()
}

fn attached(node: &str) -> Told {
    report(node).attached("eth0")
}

fn say(scene: &mut Scene, all: impl IntoIterator<Item = Told>) {
    all.into_iter().for_each(|told| scene.hear(told));
    scene.settle();
}

/// Phase, and the numbers of current, desired and unreachable nodes.
fn phase(scene: &Scene) -> (String, i64, i64, i64) {
    let status = &scene.api.get(POLICY, "vms/p").unwrap()["status"];
    let number = |field: &str| status[field].as_i64().unwrap_or_default();
    let phase = status["phase"].as_str().unwrap_or_default().to_owned();
    (phase, number("currentNodesRealized"), number("desiredNodesRealized"), number("unreachableNodes"))
}

fn is(phase: &str, current: i64, desired: i64, unreachable: i64) -> (String, i64, i64, i64) {
    (phase.to_owned(), current, desired, unreachable)
}

fn realizable(scene: &Scene) -> String {
    scene.says(POLICY, "vms/p", "Realizable")
}

fn message(scene: &Scene, kind: &str) -> String {
    scene.condition(POLICY, "vms/p", kind).unwrap().2
}

#[test]
fn a_policy_for_nobody_is_pending() {
    let mut scene = scene(world().node("other/vm1").interface("eth0", ["10.0.0.5"]));
    scene.settle();
    assert_eq!(phase(&scene), is("Pending", 0, 0, 0));
    assert_eq!(realizable(&scene), "False/NoMatchingNodes");
}

#[test]
fn a_hand_made_entity_is_no_node() {
    let mut scene = scene(world().entity("vms/hand").endpoint("10.0.0.5", "x"));
    scene.settle();
    assert_eq!(realizable(&scene), "False/NoMatchingNodes");
}

#[test]
fn a_policy_for_nodes_of_which_none_is_heard_is_pending() {
    let mut scene = scene(two_nodes());
    scene.settle();
    assert_eq!(phase(&scene), is("Pending", 0, 0, 2));
    assert_eq!(realizable(&scene), "False/NoReachableNodes");
}

#[test]
fn nodes_are_counted_as_they_come() {
    let mut scene = scene(two_nodes());
    say(&mut scene, [attached("vms/vm1")]);
    assert_eq!(phase(&scene), is("Realizing", 0, 1, 1));
    say(&mut scene, [attached("vms/vm1").realized("vms/p", 1)]);
    assert_eq!(phase(&scene), is("Realized", 1, 1, 1), "a node that is off holds nothing back");
    say(&mut scene, [attached("vms/vm2")]);
    assert_eq!(phase(&scene), is("Realizing", 1, 2, 0));
    say(&mut scene, [attached("vms/vm2").realized("vms/p", 1)]);
    assert_eq!(phase(&scene), is("Realized", 2, 2, 0));
    assert_eq!(realizable(&scene), "True/Realizable");
    assert_eq!(scene.unfinished(), [""; 0]);
}

#[test]
fn a_node_that_is_late_is_reachable_and_one_that_is_gone_is_not() {
    let mut scene = scene(two_nodes());
    say(&mut scene, ["vms/vm1", "vms/vm2"].map(|node| attached(node).realized("vms/p", 1)));
    scene.wait(31);
    say(&mut scene, [attached("vms/vm2").realized("vms/p", 1)]);
    assert_eq!(phase(&scene), is("Realized", 2, 2, 0));
    scene.wait(30);
    say(&mut scene, [attached("vms/vm2").realized("vms/p", 1)]);
    assert_eq!(phase(&scene), is("Realized", 1, 1, 1));
}

#[test]
fn another_generation_is_not_realized_yet() {
    let mut scene = scene(two_nodes());
    say(&mut scene, ["vms/vm1", "vms/vm2"].map(|node| attached(node).realized("vms/p", 1)));
    let mut stricter = for_all();
    stricter["ingress"] = json!([{"action": "Drop"}]);
    scene.put(world().policy("vms/p", stricter));
    scene.settle();
    assert_eq!(phase(&scene), is("Realizing", 0, 2, 0));
    assert_eq!(scene.api.get(POLICY, "vms/p").unwrap()["status"]["observedGeneration"], 2);
    say(&mut scene, ["vms/vm1", "vms/vm2"].map(|node| attached(node).realized("vms/p", 2)));
    assert_eq!(phase(&scene), is("Realized", 2, 2, 0));
}

#[test]
fn a_failure_of_this_generation_fails_the_policy_and_names_node_and_reason() {
    let mut scene = scene(two_nodes());
    say(&mut scene, [attached("vms/vm1").realized("vms/p", 1), attached("vms/vm2").failed("vms/p", 1, "table full")]);
    assert_eq!(phase(&scene), is("Failed", 1, 2, 0));
    assert_eq!(scene.says(POLICY, "vms/p", "RealizationFailure"), "True/NetworkPolicyRealizationFailedOnNode");
    assert_eq!(message(&scene, "RealizationFailure"), "Failed Nodes count 1: \"vms/vm2\":\"table full\"");
    say(&mut scene, [attached("vms/vm2").failed("vms/p", 0, "long ago")]);
    assert_eq!(phase(&scene), is("Realizing", 1, 2, 0), "an older generation's failure is history");
    assert_eq!(scene.says(POLICY, "vms/p", "RealizationFailure"), "none");
}

#[test]
fn a_failure_of_a_node_that_is_gone_is_no_failure() {
    let mut scene = scene(two_nodes());
    say(&mut scene, [attached("vms/vm2").failed("vms/p", 1, "table full")]);
    scene.wait(61);
    say(&mut scene, [attached("vms/vm1").realized("vms/p", 1)]);
    assert_eq!(phase(&scene), is("Realized", 1, 1, 1));
}

#[test]
fn a_long_list_of_failures_is_cut_between_characters() {
    for padding in 0..4 {
        let text =
            failures(&[("vms/vm1".parse().unwrap(), format!("{}{}", "x".repeat(padding), "\u{20ac}".repeat(200)))]);
        assert!(text.ends_with("...") && text.len() <= LONGEST + 3, "{text}");
    }
}

#[test]
fn flows_without_an_attached_interface_do_not_count() {
    for told in [report("vms/vm1"), report("vms/vm1").stage("eth0", AttachStage::RolledBack, "")] {
        let mut scene = scene(world().node("vms/vm1").interface("eth0", ["10.0.0.5"]));
        say(&mut scene, [told.realized("vms/p", 1)]);
        assert_eq!(phase(&scene), is("Realizing", 0, 1, 0));
    }
}

#[test]
fn only_the_interfaces_that_a_policy_is_for_must_be_attached() {
    // vm1 has a second interface; whether the policy is for it is up to the selector
    let node = world().node("vms/vm1").interface("eth0", ["10.0.0.5"]).interface("eth1", ["10.1.0.5"]);
    let conflict = node.clone().entity("vms/vm1-2cbd4").endpoint("192.0.2.1", "x");
    let told = || report("vms/vm1").attached("eth0").stage("eth1", AttachStage::Refused, "a bond").realized("vms/p", 1);
    let mut both = scene(node);
    say(&mut both, [told()]);
    assert_eq!(phase(&both), is("Realizing", 0, 1, 0));
    let mut only_eth0 = scene(conflict);
    say(&mut only_eth0, [told()]);
    assert_eq!(phase(&only_eth0), is("Realized", 1, 1, 0));
}

#[test]
fn an_interface_without_a_name_is_attached_under_whatever_name_it_has() {
    let mut scene = scene(world().node("vms/vm1").unnamed(["10.0.0.5"]));
    say(&mut scene, [report("vms/vm1").attached("52:54:00:00:00:01").realized("vms/p", 1)]);
    assert_eq!(phase(&scene), is("Realized", 1, 1, 0));
}

#[test]
fn a_policy_in_an_unknown_tier_waits_for_it() {
    let mut spec = for_all();
    spec["tier"] = json!("t9");
    let mut scene = two_nodes().policy("vms/p", spec).scene();
    say(&mut scene, [attached("vms/vm1"), attached("vms/vm2")]);
    assert_eq!(phase(&scene), is("Pending", 0, 0, 0));
    assert_eq!(realizable(&scene), "False/UnknownTier");
    assert!(message(&scene, "Realizable").starts_with("spec.tier: there is no Tier \"t9\""));
    scene.put(world().tier("t9", 9));
    scene.settle();
    assert_eq!(phase(&scene), is("Realizing", 0, 2, 0));
    assert_eq!(realizable(&scene), "True/Realizable");
}

#[test]
fn a_rule_that_can_not_be_realised_is_named_and_the_rest_counts() {
    let mut spec = for_all();
    spec["egress"] = json!([{"action": "Drop"}, {"action": "Allow", "to": [{"fqdn": "a.example.com"}]}]);
    let mut scene = two_nodes().policy("vms/p", spec).scene();
    say(&mut scene, ["vms/vm1", "vms/vm2"].map(|node| attached(node).realized("vms/p", 1)));
    assert_eq!(phase(&scene), is("Realized", 2, 2, 0));
    assert_eq!(realizable(&scene), "False/RuleNotSupported");
    assert!(message(&scene, "Realizable").starts_with("spec.egress[1].to[0].fqdn: an FQDN is not supported"));
}

#[test]
fn a_rule_that_means_nothing_is_named_and_the_rest_counts() {
    let mut spec = for_all();
    spec["ingress"] = json!([{"action": "Drop", "from": [{"ipBlock": {"cidr": "10.0.0.0/33"}}]}]);
    let mut scene = two_nodes().policy("vms/p", spec).scene();
    say(&mut scene, ["vms/vm1", "vms/vm2"].map(|node| attached(node).realized("vms/p", 1)));
    assert_eq!(phase(&scene), is("Realized", 2, 2, 0));
    assert_eq!(realizable(&scene), "False/Invalid");
    assert!(message(&scene, "Realizable").starts_with("spec.ingress[0].from[0].ipBlock.cidr: "));
}

#[test]
fn a_policy_that_is_wrong_as_a_whole_is_pending() {
    let mut spec = for_all();
    spec["priority"] = json!(0);
    let mut scene = two_nodes().policy("vms/p", spec).scene();
    say(&mut scene, [attached("vms/vm1"), attached("vms/vm2")]);
    assert_eq!(phase(&scene), is("Pending", 0, 0, 0));
    assert_eq!(realizable(&scene), "False/Invalid");
}

#[test]
fn a_new_leader_says_nothing_worse_until_agents_could_find_it() {
    let mut scene = scene(two_nodes());
    say(&mut scene, ["vms/vm1", "vms/vm2"].map(|node| attached(node).realized("vms/p", 1)));
    for restarted in [false, true] {
        scene.wait(100);
        scene.settling = true;
        if restarted {
            scene.restart();
        }
        scene.work = scene.all_work();
        say(&mut scene, [attached("vms/vm1").realized("vms/p", 1)]);
        assert_eq!(phase(&scene), is("Realized", 2, 2, 0), "restarted: {restarted}");
    }
    scene.settling = false;
    scene.work = scene.all_work();
    scene.settle();
    assert_eq!(phase(&scene), is("Realized", 1, 1, 1));
}

#[test]
fn a_new_leader_says_what_gets_better_at_once() {
    let mut scene = scene(two_nodes());
    scene.settle();
    scene.restart();
    scene.settling = true;
    say(&mut scene, [attached("vms/vm1")]);
    assert_eq!(phase(&scene), is("Realizing", 0, 1, 1));
}

#[test]
fn other_writers_conditions_do_not_make_it_write_for_ever() {
    let other = json!({"phase": "Thinking", "conditions": [{"type": "Realizable", "status": "True", "reason": "x",
        "message": "", "lastTransitionTime": "2026-01-01T00:00:00.5Z"}]});
    let mut scene = two_nodes().policy("vms/p", for_all()).status(other).scene();
    scene.settle();
    assert_eq!(scene.unfinished(), [""; 0]);
}

#[test]
fn a_policy_that_is_going_is_told_nothing_more() {
    let mut scene = two_nodes().policy("vms/p", for_all()).going().scene();
    assert!(scene.settle().iter().all(|change| !change.contains("NetworkPolicy")));
}
