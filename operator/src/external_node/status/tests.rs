use serde_json::json;

use super::*;
use crate::testing::{Objects, Scene, report, world};

const NODE: WorldKind = WorldKind::ExternalNode;

fn vm1() -> Objects {
    world().node("vms/vm1").interface("eth0", ["10.0.0.5"]).bound("vms")
}

fn healthy() -> crate::testing::Told {
    report("vms/vm1").sees("eth0", ["10.0.0.5"]).attached("eth0")
}

/// A machine that was heard, and whose status says so.
fn heard() -> Scene {
    let mut scene = vm1().scene();
    scene.hear(healthy());
    scene.settle();
    scene
}

fn says(scene: &Scene, kind: &str) -> String {
    scene.says(NODE, "vms/vm1", kind)
}

fn message(scene: &Scene, kind: &str) -> String {
    scene.condition(NODE, "vms/vm1", kind).unwrap().2
}

fn all(scene: &Scene) -> Vec<String> {
    let kinds = ["Accepted", "Joined", "InterfaceFound", "Attached", "PoliciesRealized", "Healthy"];
    kinds.iter().map(|kind| says(scene, kind)).collect()
}

const WELL: [&str; 6] =
    ["True/Accepted", "True/Connected", "True/Found", "True/Attached", "True/Realized", "True/Heartbeat"];

fn look_again(scene: &mut Scene) {
    scene.work = scene.all_work();
    scene.settle();
}

#[test]
fn a_machine_that_never_spoke_is_accepted_and_never_seen() {
    let mut scene = vm1().scene();
    scene.settle();
    let unknown = "Unknown/NeverSeen";
    assert_eq!(all(&scene), ["True/Accepted", "False/NeverSeen", unknown, unknown, unknown, unknown]);
    assert!(message(&scene, "Joined").contains("NODE_NAME"), "what to look at");
}

#[test]
fn a_machine_that_is_well_says_so_in_every_condition() {
    let scene = heard();
    assert_eq!(all(&scene), WELL);
    let status = &scene.api.get(NODE, "vms/vm1").unwrap()["status"];
    assert_eq!(status["lastHeartbeat"], "2026-01-02T03:04:05Z");
    assert_eq!(status["agentVersion"], "v1");
    let eth0 =
        json!({"name": "eth0", "mac": "52:54:00:00:00:01", "mtu": 1500, "ips": ["10.0.0.5"], "mode": "Attached"});
    assert_eq!(status["interfaces"], json!([eth0]));
    assert_eq!(status["observedGeneration"], 1);
}

#[test]
fn nothing_is_written_twice() {
    let mut scene = heard();
    assert_eq!(scene.unfinished(), [""; 0]);
    scene.wait(7);
    scene.hear(healthy());
    assert_eq!(scene.settle(), [""; 0], "a heartbeat is no change");
    let reports = std::mem::replace(&mut scene.reports, crate::reports::Reports::new(crate::testing::BEAT));
    scene.restart();
    scene.reports = reports;
    assert_eq!(scene.unfinished(), [""; 0], "what was read from JSON is what was written");
}

#[test]
fn the_time_alone_is_written_once_a_minute() {
    let mut scene = heard();
    let mut written = Vec::new();
    for second in 1..=121 {
        scene.wait(1);
        scene.hear(healthy());
        written.extend(scene.settle().into_iter().map(|change| format!("{second}: {change}")));
    }
    let twice = [60, 120]
        .map(|s| [format!("{s}: update AntreaAgentInfo vm1"), format!("{s}: update_status ExternalNode vms/vm1")]);
    assert_eq!(written, twice.concat());
}

#[test]
fn silence_is_late_and_then_gone_and_joined_stays() {
    let mut scene = heard();
    scene.wait(31);
    look_again(&mut scene);
    assert_eq!(all(&scene)[..5], WELL[..5]);
    assert_eq!(says(&scene, "Healthy"), "False/Late");
    scene.wait(30);
    look_again(&mut scene);
    let gone = "Unknown/Gone";
    assert_eq!(all(&scene), ["True/Accepted", "True/Connected", gone, gone, gone, gone]);
    let status = &scene.api.get(NODE, "vms/vm1").unwrap()["status"];
    assert_eq!(status["interfaces"][0]["ips"], json!(["10.0.0.5"]), "what was last known");
    assert_eq!(status["lastHeartbeat"], "2026-01-02T03:04:05Z");
    scene.hear(healthy());
    scene.settle();
    assert_eq!(all(&scene), WELL);
}

#[test]
fn a_condition_keeps_the_time_of_its_last_transition() {
    let mut scene = heard();
    let since = |scene: &Scene, kind: &str| {
        let conditions = scene.api.get(NODE, "vms/vm1").unwrap()["status"]["conditions"].as_array().unwrap().clone();
        conditions.iter().find(|c| c["type"] == kind).unwrap()["lastTransitionTime"].clone()
    };
    scene.wait(31);
    look_again(&mut scene);
    assert_eq!(since(&scene, "Healthy"), "2026-01-02T03:04:36Z");
    assert_eq!(since(&scene, "Attached"), "2026-01-02T03:04:05Z");
}

#[test]
fn a_new_leader_says_nothing_worse_until_agents_could_find_it() {
    let mut scene = heard();
    scene.wait(5);
    scene.restart();
    scene.settling = true;
    scene.settle();
    assert_eq!(all(&scene), WELL);
    scene.settling = false;
    look_again(&mut scene);
    assert_eq!(says(&scene, "Healthy"), "Unknown/Gone");
    assert_eq!(says(&scene, "Joined"), "True/Connected");
}

#[test]
fn what_a_new_leader_heard_long_ago_is_no_silence_of_the_agent() {
    // as a follower it heard the agent once, which then went on with another replica
    let mut scene = heard();
    scene.wait(100);
    scene.settling = true;
    look_again(&mut scene);
    assert_eq!(all(&scene), WELL);
    scene.settling = false;
    look_again(&mut scene);
    assert_eq!(says(&scene, "Healthy"), "Unknown/Gone");
}

#[test]
fn a_re_created_node_starts_anew_and_its_namesakes_agent_does_not_count() {
    let mut scene = heard();
    scene.put(world().node("vms/vm1").uid("second").interface("eth0", ["10.0.0.5"]));
    scene.hear(healthy());
    scene.settle();
    assert_eq!(says(&scene, "Joined"), "False/NeverSeen");
    scene.hear(healthy().uid("second"));
    scene.settle();
    assert_eq!(all(&scene), WELL);
}

#[test]
fn without_a_binding_nobody_can_join() {
    let mut scene = heard();
    scene.delete(WorldKind::Binding, "vms/agent");
    scene.settle();
    assert_eq!(says(&scene, "Joined"), "False/NotBound");
    scene.put(world().bound("other"));
    scene.settle();
    assert_eq!(says(&scene, "Joined"), "False/NotBound", "a binding is for its own namespace");
}

#[test]
fn why_an_interface_was_not_found_is_the_agents_word() {
    let reasons = [
        (AttachStage::NoMatch, "NoMatch"),
        (AttachStage::Ambiguous, "Ambiguous"),
        (AttachStage::AddressNotAllowed, "AddressNotAllowed"),
    ];
    for (stage, reason) in reasons {
        let mut scene = heard();
        scene.hear(report("vms/vm1").sees("eth0", ["10.0.0.5"]).stage("eth0", stage, "lo is loopback"));
        scene.settle();
        assert_eq!(says(&scene, "InterfaceFound"), format!("False/{reason}"));
        assert_eq!(message(&scene, "InterfaceFound"), "eth0: lo is loopback");
        assert_eq!(says(&scene, "Attached"), "False/Refused");
    }
}

#[test]
fn each_stage_of_a_takeover_has_its_reason() {
    let reasons = [
        (AttachStage::Attaching, "Attaching"),
        (AttachStage::Refused, "Refused"),
        (AttachStage::RolledBack, "RolledBack"),
        (AttachStage::UplinkMissing, "UplinkMissing"),
        (AttachStage::Disabled, "Disabled"),
    ];
    for (stage, reason) in reasons {
        let mut scene = heard();
        scene.hear(report("vms/vm1").sees("eth0", ["10.0.0.5"]).attached("eth1").stage("eth0", stage, "why"));
        scene.settle();
        assert_eq!(says(&scene, "Attached"), format!("False/{reason}"));
        assert_eq!(message(&scene, "Attached"), "eth0: why");
        assert_eq!(says(&scene, "InterfaceFound"), "True/Found");
    }
}

#[test]
fn an_agent_that_said_nothing_about_interfaces_has_found_none_yet() {
    let mut scene = vm1().scene();
    scene.hear(report("vms/vm1"));
    scene.settle();
    assert_eq!(says(&scene, "InterfaceFound"), "Unknown/NoMatch");
    assert_eq!(says(&scene, "Attached"), "False/Attaching");
}

#[test]
fn a_listed_address_that_is_not_on_the_machine_is_named() {
    let mut scene = world().node("vms/vm1").interface("eth0", ["10.0.0.5", "10.0.0.6"]).bound("vms").scene();
    scene.hear(healthy());
    scene.settle();
    assert_eq!(says(&scene, "InterfaceFound"), "True/Found");
    assert_eq!(message(&scene, "InterfaceFound"), "eth0: listed, but not on the machine: 10.0.0.6");
}

#[test]
fn an_interface_with_only_a_name_waits_for_an_allowed_address() {
    let mut scene = world().node("vms/vm1").interface("eth0", []).allowed(["10.0.1.0/24"]).bound("vms").scene();
    scene.hear(healthy());
    scene.settle();
    assert_eq!(says(&scene, "InterfaceFound"), "False/AddressNotAllowed");
    scene.hear(report("vms/vm1").sees("eth0", ["10.0.1.5"]).attached("eth0"));
    let written = scene.settle();
    assert_eq!(says(&scene, "InterfaceFound"), "True/Found");
    let statuses = written.iter().filter(|change| change.starts_with("update_status ExternalNode")).count();
    assert_eq!(statuses, 1, "the address and what follows from it are one write: {written:?}");
}

#[test]
fn an_interface_with_neither_addresses_nor_networks_is_told_what_to_add() {
    let mut scene = world().node("vms/vm1").interface("eth0", []).bound("vms").scene();
    scene.hear(healthy());
    scene.settle();
    assert_eq!(says(&scene, "InterfaceFound"), "False/AddressNotAllowed");
    assert!(message(&scene, "InterfaceFound").contains("neither ips nor allowedCIDRs"));
}

#[test]
fn one_address_in_two_nodes_is_said_on_both_and_no_longer_when_one_goes() {
    let mut scene = vm1().node("other/vm2").interface("eth0", ["10.0.0.5"]).scene();
    scene.settle();
    assert_eq!(says(&scene, "Accepted"), "False/DuplicateAddress");
    assert_eq!(scene.says(NODE, "other/vm2", "Accepted"), "False/DuplicateAddress");
    assert!(message(&scene, "Accepted").starts_with("10.0.0.5 is listed by other/vm2 too"));
    scene.delete(NODE, "other/vm2");
    scene.settle();
    assert_eq!(says(&scene, "Accepted"), "True/Accepted");
}

#[test]
fn a_reported_address_that_another_node_lists_is_said_on_both() {
    let dynamic = world().node("vms/vm1").interface("eth0", []).allowed(["10.0.0.0/24"]).bound("vms");
    let mut scene = dynamic.node("other/vm2").interface("eth0", ["10.0.0.5"]).scene();
    scene.hear(healthy());
    scene.settle();
    assert_eq!(says(&scene, "Accepted"), "False/DuplicateAddress");
    assert_eq!(scene.says(NODE, "other/vm2", "Accepted"), "False/DuplicateAddress");
}

#[test]
fn what_is_wrong_with_the_object_is_said_first() {
    let mut scene = vm1().node("vms/vm2").interface("eth0", ["10.0.0.5", "127.0.0.1"]).scene();
    scene.settle();
    let (_, reason, message) = scene.condition(NODE, "vms/vm2", "Accepted").unwrap();
    assert_eq!(reason, "Invalid");
    assert!(message.starts_with("spec.interfaces[0].ips[1]: \"127.0.0.1\""), "{message}");
}

#[test]
fn policies_count_once_this_generation_is_in_force() {
    let policy = json!({"priority": 5, "appliedTo": [{"externalEntitySelector": {}}]});
    let mut scene = vm1().policy("vms/p", policy.clone()).generation(2).policy("vms/q", policy).scene();
    let steps = [
        (healthy(), "False/Realizing", "2 of 2 policies are not in force yet"),
        (
            healthy().realized("vms/p", 1).realized("vms/q", 1),
            "False/Realizing",
            "1 of 2 policies are not in force yet",
        ),
        (healthy().failed("vms/p", 2, "no such table").realized("vms/q", 1), "False/Failed", "vms/p: no such table"),
        (healthy().realized("vms/p", 2).realized("vms/q", 1), "True/Realized", ""),
    ];
    for (told, wanted, why) in steps {
        scene.hear(told);
        scene.settle();
        assert_eq!(
            (says(&scene, "PoliciesRealized"), message(&scene, "PoliciesRealized")),
            (wanted.to_owned(), why.to_owned())
        );
    }
}

#[test]
fn a_node_that_is_going_is_told_nothing_more() {
    let mut scene = vm1().node("vms/vm3").interface("eth0", ["10.0.0.7"]).going().scene();
    assert!(scene.settle().iter().all(|change| !change.contains("vm3")));
}

#[test]
fn finalizers_and_spec_go_through_a_write_of_the_status() {
    let mut scene = world().node("vms/vm1").finalizer("foreign.example.com/a").interface("eth0", ["10.0.0.5"]).scene();
    scene.settle();
    let node = scene.api.get(NODE, "vms/vm1").unwrap();
    assert_eq!(node["metadata"]["finalizers"], json!(["foreign.example.com/a"]));
    assert_eq!(node["spec"]["interfaces"], json!([{"name": "eth0", "ips": ["10.0.0.5"]}]));
}
