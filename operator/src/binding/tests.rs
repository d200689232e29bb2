use serde_json::{Value, json};

use super::*;
use crate::testing::{Objects, Scene, world};

fn nodes() -> Objects {
    let node = |objects: Objects, at: &str, site: &str| objects.node(at).label("site", site).unnamed(["10.0.0.5"]);
    node(node(node(world(), "vms/vm1", "a"), "vms/vm2", "b"), "other/vm3", "a")
}

fn bound(spec: &Value) -> Scene {
    let subject = json!([{"kind": "User", "name": "u"}]);
    let mut spec = spec.clone();
    spec["subjects"] = subject;
    let mut scene = nodes().binding("vms/b", spec).scene();
    scene.settle();
    scene
}

fn covered(scene: &Scene) -> Value {
    scene.api.get(WorldKind::Binding, "vms/b").unwrap()["status"]["externalNodes"].clone()
}

fn accepted(scene: &Scene) -> String {
    scene.says(WorldKind::Binding, "vms/b", "Accepted")
}

#[test]
fn a_binding_lists_whom_it_covers_of_its_own_namespace() {
    let cases = [
        (json!({"externalNodes": ["*"]}), json!(["vm1", "vm2"])),
        (json!({"externalNodes": ["vm2", "vm3", "vm9"]}), json!(["vm2"])),
        (json!({"nodeSelector": {"matchLabels": {"site": "a"}}}), json!(["vm1"])),
        (json!({"nodeSelector": {}}), json!(["vm1", "vm2"])),
        (json!({"nodeSelector": {"matchLabels": {"site": "z"}}}), Value::Null),
    ];
    for (spec, wanted) in cases {
        let scene = bound(&spec);
        assert_eq!((accepted(&scene), covered(&scene)), ("True/Accepted".to_owned(), wanted), "{spec}");
        assert_eq!(scene.unfinished(), [""; 0]);
    }
}

#[test]
fn it_follows_the_nodes() {
    let mut scene = bound(&json!({"nodeSelector": {"matchLabels": {"site": "a"}}}));
    scene.put(world().node("vms/vm2").label("site", "a").unnamed(["10.0.0.5"]));
    scene.settle();
    assert_eq!(covered(&scene), json!(["vm1", "vm2"]));
    scene.delete(WorldKind::ExternalNode, "vms/vm1");
    scene.settle();
    assert_eq!(covered(&scene), json!(["vm2"]));
}

#[test]
fn a_binding_with_a_fault_covers_nobody_and_says_why() {
    for spec in
        [json!({"externalNodes": ["vm1", "vm*"]}), json!({"externalNodes": ["vm1"], "nodeSelector": {}}), json!({})]
    {
        let scene = bound(&spec);
        assert_eq!((accepted(&scene), covered(&scene)), ("False/Invalid".to_owned(), Value::Null), "{spec}");
        assert!(!scene.condition(WorldKind::Binding, "vms/b", "Accepted").unwrap().2.is_empty());
    }
}
