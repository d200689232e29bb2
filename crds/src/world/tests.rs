use kube::core::DynamicObject;
use serde_json::json;

use super::*;

fn object(kind: WorldKind, name: &str, uid: &str, version: u64, spec: &serde_json::Value) -> Object {
    let (group, api, _, kind_name) = kind.resource();
    let object = json!({
        "apiVersion": format!("{group}/{api}"), "kind": kind_name,
        "metadata": {"namespace": "vms", "name": name, "uid": uid, "resourceVersion": version.to_string()},
        "spec": spec,
    });
    Object::decode(kind, serde_json::from_value::<DynamicObject>(object).unwrap())
}

fn node(name: &str, uid: &str, version: u64) -> Object {
    object(WorldKind::ExternalNode, name, uid, version, &json!({"interfaces": [{"name": "eth0", "ips": ["10.0.0.5"]}]}))
}

#[test]
fn a_world_is_ready_once_each_kind_was_listed() {
    let mut world = World::waiting_for(&[WorldKind::ExternalNode, WorldKind::Tier]);
    assert!(!world.ready());
    world.apply(Event::Listed(WorldKind::Tier, vec![]));
    world.apply(Event::Put(node("vm1", "u1", 1)));
    assert_eq!(world.missing().collect::<Vec<_>>(), [WorldKind::ExternalNode]);
    world.apply(Event::Listed(WorldKind::ExternalNode, vec![]));
    assert!(world.ready());
    assert_eq!(world.count(WorldKind::ExternalNode), (0, 0), "a list says what there is, whatever came before");
}

#[test]
fn a_list_names_only_what_changed() {
    let mut world = World::waiting_for(&[]);
    world.apply(Event::Listed(WorldKind::ExternalNode, vec![node("vm1", "u1", 1), node("vm2", "u2", 2)]));
    let touched = world.apply(Event::Listed(WorldKind::ExternalNode, vec![node("vm1", "u1", 1), node("vm3", "u3", 3)]));
    let names: Vec<_> = touched.iter().map(|t| t.key.to_string()).collect();
    assert_eq!(names, ["vms/vm3", "vms/vm2"]);
}

#[test]
fn an_older_word_never_overtakes_a_newer_one() {
    let mut world = World::waiting_for(&[]);
    world.apply(Event::Put(node("vm1", "u2", 9)));
    assert_eq!(world.apply(Event::Put(node("vm1", "u1", 5))), [], "a late answer about the namesake before");
    assert_eq!(world.apply(Event::Delete(node("vm1", "u1", 8))), []);
    assert_eq!(world.apply(Event::Delete(node("vm1", "u2", 9))).len(), 1);
}

#[test]
fn one_unreadable_object_is_its_own_trouble() {
    let mut world = World::waiting_for(&[]);
    let entity = |name, port| {
        let spec =
            json!({"endpoints": [{"ip": "10.0.0.9"}], "ports": [{"protocol": "TCP", "port": port, "name": "web"}]});
        object(WorldKind::ExternalEntity, name, name, 1, &spec)
    };
    let poisoned = object(WorldKind::ExternalEntity, "bad", "u", 1, &json!({"endpoints": "none"}));
    world.apply(Event::Listed(WorldKind::ExternalEntity, vec![poisoned, entity("ok", json!(80))]));
    assert_eq!(world.count(WorldKind::ExternalEntity), (2, 1));
    assert!(matches!(&world.external_entities[&Key::new("vms", "bad")], Stored::Bad(bad) if !bad.error.is_empty()));
}
