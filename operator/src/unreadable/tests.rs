use crds::names::Key;
use serde_json::{Value, json};

use super::*;
use crate::testing::{Scene, world};

const KINDS: [(WorldKind, &str, &str); 3] = [
    (WorldKind::ExternalNode, "vms/vm1", "Accepted"),
    (WorldKind::NetworkPolicy, "vms/p", "Realizable"),
    (WorldKind::Binding, "vms/agent", "Accepted"),
];

fn scene() -> Scene {
    let applied_to = json!([{"externalEntitySelector": {}}]);
    let policy = json!({"priority": 5.0, "appliedTo": applied_to, "ingress": [{"action": "Drop"}]});
    world().node("vms/vm1").interface("eth0", ["10.0.0.5"]).policy("vms/p", policy).bound("vms").scene()
}

/// Somebody stores nonsense in a field of an object.
fn spoil(scene: &mut Scene, kind: WorldKind, at: &str, edit: impl FnOnce(&mut Value)) {
    scene.api.edit(kind, &at.parse::<Key>().unwrap(), edit);
    scene.settle();
}

#[test]
fn an_unreadable_object_says_so_with_the_path_and_recovers() {
    for (kind, at, condition) in KINDS {
        let mut scene = scene();
        scene.settle();
        let good = scene.says(kind, at, condition);
        let before = scene.api.get(kind, at).unwrap()["spec"].clone();
        let field = if kind == WorldKind::ExternalNode { "interfaces" } else { "subjects" };
        let field = if kind == WorldKind::NetworkPolicy { "appliedTo" } else { field };
        spoil(&mut scene, kind, at, |o| o["spec"][field] = json!("none"));
        let (status, reason, message) = scene.condition(kind, at, condition).unwrap();
        assert_eq!((&*status, &*reason), ("False", "Invalid"), "{kind}");
        assert!(message.contains(&format!("spec.{field}: invalid type: string \"none\"")), "{kind}: {message}");
        assert_eq!(scene.unfinished(), [""; 0]);
        spoil(&mut scene, kind, at, |o| o["spec"] = before);
        assert_eq!(scene.says(kind, at, condition), good, "{kind}");
        assert_eq!(scene.unfinished(), [""; 0]);
    }
}

#[test]
fn an_unreadable_status_is_written_anew() {
    for (kind, at, condition) in KINDS {
        let mut scene = scene();
        scene.settle();
        let good = scene.says(kind, at, condition);
        spoil(&mut scene, kind, at, |o| o["status"] = json!({"conditions": 5, "externalNodes": {}}));
        assert_eq!(scene.says(kind, at, condition), good, "{kind}");
        assert_eq!(scene.unfinished(), [""; 0]);
    }
}

#[test]
fn what_the_machine_last_said_stays_on_its_unreadable_node() {
    let mut scene = scene();
    scene.settle();
    let before = scene.says(WorldKind::ExternalNode, "vms/vm1", "Healthy");
    assert_ne!(before, "none");
    spoil(&mut scene, WorldKind::ExternalNode, "vms/vm1", |o| o["spec"]["interfaces"] = json!(1));
    assert_eq!(scene.says(WorldKind::ExternalNode, "vms/vm1", "Healthy"), before);
}

#[test]
fn a_long_text_in_the_wrong_place_is_told_by_its_start_and_once() {
    let mut scene = scene();
    scene.settle();
    let long = json!("x".repeat(100_000));
    spoil(&mut scene, WorldKind::NetworkPolicy, "vms/p", |o| o["spec"]["appliedTo"] = long);
    let (.., message) = scene.condition(WorldKind::NetworkPolicy, "vms/p", "Realizable").unwrap();
    assert!(message.len() <= 1024 && message.ends_with("xx…"), "{} bytes", message.len());
    assert_eq!(scene.unfinished(), [""; 0]);
    let untold = untold(scene.live.world(), WorldKind::NetworkPolicy, &Key::new("vms", "p"));
    assert_eq!(untold, None, "its condition says it");
}
