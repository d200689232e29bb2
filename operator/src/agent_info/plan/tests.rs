use serde_json::{Value, json};

use super::*;
use crate::testing::{Objects, Scene, report, said, world};
use crate::work::Work;

const INFO: WorldKind = WorldKind::AgentInfo;
const NODE: WorldKind = WorldKind::ExternalNode;

fn vm1() -> Objects {
    world().node("vms/vm1").interface("eth0", ["10.0.0.5"])
}

fn names(mut scene: Scene) -> Vec<String> {
    scene.settle();
    assert_eq!(scene.unfinished(), [""; 0]);
    scene.api.names(INFO)
}

/// The ExternalNode that an AgentInfo says it is about, and its uid.
fn about(scene: &Scene, name: &str) -> (String, String) {
    let annotations = &scene.api.get(INFO, name).unwrap()["metadata"]["annotations"];
    let text = |name: &str| annotations[name].as_str().unwrap_or_default().to_owned();
    (text(NODE_ANNOTATION), text(NODE_UID))
}

const NODE_ANNOTATION: &str = super::NODE;

fn condition(scene: &Scene, kind: &str) -> Value {
    let conditions = scene.api.get(INFO, "vm1").unwrap()["agentConditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|c| c["type"] == kind).unwrap_or_default()
}

fn of_infos(written: Vec<String>) -> Vec<String> {
    written.into_iter().filter(|change| change.contains("AgentInfo")).collect()
}

fn heard() -> Scene {
    let mut scene = vm1().bound("vms").scene();
    scene.hear(report("vms/vm1").sees("eth0", ["10.0.0.5"]).attached("eth0").facts(|facts| {
        facts.role = Some(Role::BM);
        facts.ovs_version = "3.4.1".to_owned();
        facts.bridge = "br-outrider".to_owned();
        facts.flow_table = [("Classifier".to_owned(), 7)].into();
        facts.network_policies = 2;
        facts.address_groups = 3;
        facts.ovsdb_connected = Some(true);
        facts.openflow_connected = Some(false);
    }));
    scene.settle();
    scene
}

fn look_again(scene: &mut Scene) -> Vec<String> {
    scene.work = scene.all_work();
    of_infos(scene.settle())
}

#[test]
fn a_node_has_an_info_of_its_name_before_its_agent_speaks() {
    let mut scene = vm1().scene();
    scene.settle();
    let info = scene.api.get(INFO, "vm1").unwrap();
    let node = json!({
        "apiVersion": "crd.antrea.io/v1alpha1", "kind": "ExternalNode", "namespace": "vms", "name": "vm1",
        "uid": "uid of vms/vm1",
    });
    assert_eq!(info["nodeRef"], node);
    assert_eq!(info.get("agentConditions"), None);
    assert_eq!(about(&scene, "vm1"), ("vms/vm1".to_owned(), "uid of vms/vm1".to_owned()));
}

#[test]
fn it_shows_what_the_agent_says() {
    let scene = heard();
    let info = scene.api.get(INFO, "vm1").unwrap();
    assert_eq!((&info["version"], &info["role"]), (&json!("v1"), &json!("BM")));
    let ovs = json!({"version": "3.4.1", "bridgeName": "br-outrider", "flowTable": {"Classifier": 7}});
    assert_eq!(info["ovsInfo"], ovs);
    assert_eq!(info["networkPolicyControllerInfo"], json!({"networkPolicyNum": 2, "addressGroupNum": 3}));
    assert_eq!(info.get("spec"), None, "its fields stand at the top");
    for (kind, status) in [
        ("AgentHealthy", "True"),
        ("ControllerConnectionUp", "True"),
        ("OVSDBConnectionUp", "True"),
        ("OpenflowConnectionUp", "False"),
    ] {
        assert_eq!(condition(&scene, kind)["status"], status, "{kind}");
        assert_eq!(condition(&scene, kind)["lastHeartbeatTime"], "2026-01-02T03:04:05Z");
    }
}

#[test]
fn counts_and_times_are_no_reason_to_write() {
    let mut scene = heard();
    scene.wait(59);
    scene.hear(report("vms/vm1").sees("eth0", ["10.0.0.5"]).attached("eth0").facts(|facts| {
        facts.role = Some(Role::BM);
        facts.ovs_version = "3.4.1".to_owned();
        facts.bridge = "br-outrider".to_owned();
        facts.flow_table = [("Classifier".to_owned(), 8)].into();
        facts.network_policies = 9;
        facts.ovsdb_connected = Some(true);
        facts.openflow_connected = Some(false);
    }));
    assert_eq!(of_infos(scene.settle()), [""; 0]);
    scene.wait(1);
    scene.hear(report("vms/vm1").sees("eth0", ["10.0.0.5"]).attached("eth0"));
    assert_eq!(of_infos(scene.settle()), ["update AntreaAgentInfo vm1"]);
}

#[test]
fn silence_is_late_and_then_unknown() {
    let mut scene = heard();
    scene.wait(31);
    assert_eq!(look_again(&mut scene), ["update AntreaAgentInfo vm1"]);
    assert_eq!(condition(&scene, "AgentHealthy")["status"], "False");
    assert_eq!(condition(&scene, "ControllerConnectionUp")["status"], "True");
    scene.wait(30);
    assert_eq!(look_again(&mut scene), ["update AntreaAgentInfo vm1"]);
    assert_eq!(condition(&scene, "AgentHealthy")["status"], "Unknown");
    assert_eq!(condition(&scene, "OVSDBConnectionUp")["status"], "Unknown");
    assert_eq!(condition(&scene, "AgentHealthy")["lastHeartbeatTime"], "2026-01-02T03:04:05Z", "the last there was");
    scene.wait(1000);
    assert_eq!(look_again(&mut scene), [""; 0], "said once");
}

#[test]
fn a_new_leader_keeps_what_it_finds_until_agents_could_find_it() {
    let mut scene = heard();
    for heard_long_ago in [true, false] {
        scene.wait(100);
        scene.settling = true;
        if !heard_long_ago {
            scene.restart();
        }
        assert_eq!(look_again(&mut scene), [""; 0]);
        assert_eq!(condition(&scene, "AgentHealthy")["status"], "True");
    }
    scene.settling = false;
    assert_eq!(look_again(&mut scene), ["update AntreaAgentInfo vm1"]);
    assert_eq!(condition(&scene, "AgentHealthy")["status"], "Unknown");
    assert_eq!(scene.api.get(INFO, "vm1").unwrap()["version"], "v1");
}

#[test]
fn among_many_agents_the_time_is_written_more_rarely() {
    let many = (0..MANY).fold(vm1().bound("vms"), |all, n| all.node(&format!("vms/x{n}")));
    let mut scene = many.scene();
    scene.hear(report("vms/vm1").attached("eth0"));
    scene.work = [Work::Node(Key::new("vms", "vm1"))].into();
    scene.settle();
    for (seconds, written) in [(299, 0), (1, 1)] {
        scene.wait(seconds);
        scene.hear(report("vms/vm1").attached("eth0"));
        scene.work.clear();
        let changes = plan(&scene.ctx(), &Key::new("vms", "vm1"));
        assert_eq!(changes.len(), written, "{seconds} s");
    }
}

#[test]
fn two_nodes_of_one_name_have_two_infos_and_the_older_has_the_bare_name() {
    let both = |a: i64, b: i64| {
        let a = world().node("a/vm1").created(a).unnamed(["10.0.0.5"]);
        a.node("b/vm1").created(b).unnamed(["10.0.0.6"])
    };
    assert_eq!(names(both(1, 2).scene()), ["b--vm1", "vm1"]);
    assert_eq!(names(both(2, 1).scene()), ["a--vm1", "vm1"]);
    assert_eq!(names(both(1, 1).scene()), ["b--vm1", "vm1"], "of one age, by name");
}

#[test]
fn a_name_once_given_stays_when_the_older_goes() {
    let a = world().node("a/vm1").created(1).unnamed(["10.0.0.5"]);
    let mut scene = a.node("b/vm1").created(2).unnamed(["10.0.0.6"]).scene();
    scene.settle();
    scene.delete(NODE, "a/vm1");
    assert_eq!(of_infos(scene.settle()), ["delete AntreaAgentInfo vm1"]);
    assert_eq!(names(scene), ["b--vm1"]);
}

#[test]
fn an_older_namesake_that_comes_late_takes_no_name_away() {
    let mut scene = world().node("b/vm1").created(2).unnamed(["10.0.0.6"]).scene();
    scene.settle();
    scene.put(world().node("a/vm1").created(1).unnamed(["10.0.0.5"]));
    scene.settle();
    assert_eq!(about(&scene, "vm1").0, "b/vm1");
    assert_eq!(about(&scene, "a--vm1").0, "a/vm1");
}

#[test]
fn a_kubernetes_node_keeps_its_name() {
    assert_eq!(names(vm1().kube_node("vm1").scene()), ["vms--vm1"]);
    let mut scene = vm1().scene();
    scene.settle();
    scene.put(world().kube_node("vm1"));
    assert_eq!(names(scene), ["vm1"], "one that was given stays");
}

#[test]
fn a_foreign_info_is_not_touched_and_its_name_is_taken() {
    let mut scene = vm1().info("vm1").info("vms--vm1").scene();
    scene.settle();
    let short = candidates(&Key::new("vms", "vm1"))[2].clone();
    assert_eq!(scene.api.names(INFO), ["vm1", "vms--vm1", &*short]);
    assert_eq!(about(&scene, "vm1"), (String::new(), String::new()));
    scene.delete(INFO, "vm1");
    assert_eq!(of_infos(scene.settle()), [""; 0], "a name once given stays");
}

#[test]
fn an_info_without_its_node_is_deleted_though_nobody_saw_the_deletion() {
    let scene = world().info("vm9").about("vms/vm9").info("worker-1").scene();
    assert_eq!(names(scene), ["worker-1"]);
}

#[test]
fn an_info_goes_with_its_node() {
    let mut scene = vm1().scene();
    scene.settle();
    scene.delete(NODE, "vms/vm1");
    assert_eq!(said(&plan(&scene.ctx(), &Key::new("vms", "vm1"))), ["delete AntreaAgentInfo vm1"]);
    scene.settle();
    assert_eq!(scene.api.names(INFO), [""; 0]);
}

#[test]
fn an_info_goes_when_its_node_or_the_namespace_begins_to_go() {
    let going = |objects: Objects| names(objects.info("vm1").about("vms/vm1").scene());
    assert_eq!(going(vm1().going()), [""; 0]);
    assert_eq!(going(vm1().namespace("vms").going()), [""; 0]);
}

#[test]
fn an_info_deleted_by_hand_is_back() {
    let mut scene = vm1().scene();
    scene.settle();
    scene.delete(INFO, "vm1");
    assert_eq!(of_infos(scene.settle()), ["create AntreaAgentInfo vm1"]);
}

#[test]
fn a_re_created_node_goes_on_with_the_info_and_none_of_what_it_said() {
    let mut scene = heard();
    scene.put(vm1().uid("second"));
    assert_eq!(of_infos(scene.settle()), ["update AntreaAgentInfo vm1"]);
    assert_eq!(about(&scene, "vm1").1, "second");
    assert_eq!(scene.api.get(INFO, "vm1").unwrap().get("version"), None);
    assert_eq!(condition(&scene, "AgentHealthy"), Value::Null);
}

#[test]
fn a_re_created_node_that_is_now_the_younger_leaves_nothing_behind() {
    let a = world().node("a/vm1").created(1).unnamed(["10.0.0.5"]);
    let mut scene = a.node("b/vm1").created(2).unnamed(["10.0.0.6"]).scene();
    scene.settle();
    scene.put(world().node("a/vm1").uid("second").created(3).unnamed(["10.0.0.5"]));
    assert_eq!(of_infos(scene.settle()), ["create AntreaAgentInfo a--vm1", "delete AntreaAgentInfo vm1"]);
    assert_eq!(names(scene), ["a--vm1", "b--vm1"]);
}

#[test]
fn annotations_of_ours_are_put_back_and_other_metadata_stays() {
    let mut scene = vm1().scene();
    scene.settle();
    scene.api.edit(INFO, &Key::cluster("vm1"), |info| {
        info["metadata"]["annotations"] = json!({"who": "me", "outrider.io/external-node": "vms/vm2",
            "outrider.io/external-node-uid": "uid of vms/vm1"});
        info["metadata"]["labels"] = json!({"team": "x"});
        info["metadata"]["finalizers"] = json!(["foreign.example.com/a"]);
    });
    scene.settle();
    assert_eq!(about(&scene, "vm1").0, "vms/vm1");
    let meta = &scene.api.get(INFO, "vm1").unwrap()["metadata"];
    assert_eq!((&meta["annotations"]["who"], &meta["labels"]["team"]), (&json!("me"), &json!("x")));
    assert_eq!(meta["finalizers"], json!(["foreign.example.com/a"]));
}

#[test]
fn a_node_that_can_not_be_read_is_not_gone() {
    let mut scene = vm1().scene();
    scene.settle();
    scene.api.edit(NODE, &Key::new("vms", "vm1"), |node| node["spec"]["interfaces"] = json!("none"));
    assert_eq!(of_infos(scene.settle()), [""; 0]);
    assert_eq!(scene.unfinished(), [""; 0]);
}

#[test]
fn an_info_that_can_not_be_read_is_written_anew() {
    let mut scene = vm1().scene();
    scene.settle();
    scene.api.edit(INFO, &Key::cluster("vm1"), |info| info["version"] = json!(7));
    assert_eq!(of_infos(scene.settle()), ["update AntreaAgentInfo vm1"]);
}

#[test]
fn a_second_info_about_the_same_node_is_deleted() {
    let mut scene = vm1().scene();
    scene.settle();
    scene.put(world().info("copy").about("vms/vm1"));
    assert_eq!(of_infos(scene.settle()), ["delete AntreaAgentInfo copy"]);
}
