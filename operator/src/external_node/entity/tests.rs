use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::testing::{Scene, dynamic, said, world};

mod law;

const ENTITY: WorldKind = WorldKind::ExternalEntity;
const NODE: WorldKind = WorldKind::ExternalNode;

fn vm1() -> crate::testing::Objects {
    world().node("vms/vm1").label("role", "db").interface("eth0", ["10.0.0.5", "2001:DB8::5"])
}

fn written(scene: &mut Scene) -> Vec<String> {
    scene.settle().into_iter().filter(|change| change.contains("ExternalEntity")).collect()
}

#[test]
fn an_interface_becomes_an_entity_of_the_shape_that_users_know() {
    let wanted = json!({
        "apiVersion": "crd.antrea.io/v1alpha2", "kind": "ExternalEntity",
        "metadata": {
            "namespace": "vms", "name": "vm1-3e616", "labels": {"role": "db"},
            "ownerReferences": [
                {"apiVersion": "crd.antrea.io/v1alpha1", "kind": "ExternalNode", "name": "vm1", "uid": "uid of vms/vm1"},
            ],
        },
        "spec": {
            "endpoints": [{"ip": "10.0.0.5", "name": "eth0"}, {"ip": "2001:DB8::5", "name": "eth0"}],
            "externalNode": "vm1",
        },
    });
    assert_eq!(vm1().scene().entity("vms/vm1-3e616"), [Change::Create(ENTITY, dynamic(wanted))]);
}

#[test]
fn an_interface_without_a_name_gives_its_entity_the_nodes_name() {
    let scene = world().node("vms/vm1").unnamed(["10.0.0.5"]).scene();
    let [Change::Create(_, entity)] = &scene.entity("vms/vm1")[..] else { panic!("one entity") };
    assert_eq!(entity.data["spec"], json!({"endpoints": [{"ip": "10.0.0.5"}], "externalNode": "vm1"}));
}

#[test]
fn named_ports_go_with_the_interface() {
    let scene = vm1().port("web", "UDP", 8080).scene();
    let [Change::Create(_, entity)] = &scene.entity("vms/vm1-3e616")[..] else { panic!("one entity") };
    assert_eq!(entity.data["spec"]["ports"], json!([{"protocol": "UDP", "port": 8080, "name": "web"}]));
}

#[test]
fn each_interface_has_an_entity_of_its_own() {
    let mut scene = vm1().interface("eth1", ["10.1.0.5"]).scene();
    assert_eq!(written(&mut scene), ["create ExternalEntity vms/vm1-2cbd4", "create ExternalEntity vms/vm1-3e616"]);
    assert_eq!(scene.unfinished(), [""; 0]);
}

#[test]
fn nothing_is_written_twice_whatever_the_order_of_addresses() {
    let mut scene = vm1().scene();
    scene.settle();
    scene.restart();
    assert_eq!(scene.unfinished(), [""; 0], "another replica reads the same JSON");
    scene.put(world().node("vms/vm1").label("role", "db").interface("eth0", ["2001:DB8::5", "10.0.0.5"]));
    assert_eq!(written(&mut scene), ["update ExternalEntity vms/vm1-3e616"], "the order is the user's");
}

#[test]
fn a_renamed_interface_has_its_new_entity_before_the_old_one_goes() {
    let mut scene = vm1().scene();
    scene.settle();
    scene.put(world().node("vms/vm1").label("role", "db").interface("ens192", ["10.0.0.5"]));
    let both = ["create ExternalEntity vms/vm1-e8be5", "delete ExternalEntity vms/vm1-3e616"];
    assert_eq!(said(&scene.entity("vms/vm1-3e616")), both);
    assert_eq!(said(&scene.entity("vms/vm1-e8be5")), both[..1]);
    assert_eq!(written(&mut scene), both);
}

#[test]
fn a_node_that_loses_its_entity_to_another_has_its_new_one_first() {
    // older and named like its own entity's neighbour: holds the name until it is renamed
    let mut scene = world()
        .node("vms/vm1")
        .created(0)
        .interface("eth0", ["10.0.0.5"])
        .node("vms/vm1-3e616")
        .created(9)
        .unnamed(["10.0.0.6"])
        .scene();
    assert_eq!(written(&mut scene), ["create ExternalEntity vms/vm1-3e616"]);
    assert_eq!(scene.says(NODE, "vms/vm1-3e616", "Accepted"), "False/NameConflict");
    scene.put(world().node("vms/vm1").interface("ens192", ["10.0.0.5"]));
    let planned = said(&scene.entity("vms/vm1-3e616"));
    assert_eq!(planned, ["create ExternalEntity vms/vm1-e8be5", "update ExternalEntity vms/vm1-3e616"]);
    scene.settle();
    assert_eq!(scene.says(NODE, "vms/vm1-3e616", "Accepted"), "True/Accepted");
}

#[test]
fn the_younger_gets_the_name_when_the_older_goes() {
    let both = world().node("vms/vm1").created(0).interface("eth0", ["10.0.0.5"]);
    let mut scene = both.node("vms/vm1-3e616").created(9).unnamed(["10.0.0.6"]).scene();
    scene.settle();
    scene.delete(NODE, "vms/vm1");
    scene.settle();
    let entity = scene.api.get(ENTITY, "vms/vm1-3e616").unwrap();
    assert_eq!(entity["metadata"]["ownerReferences"][0]["uid"], "uid of vms/vm1-3e616");
    assert_eq!(entity["spec"]["endpoints"], json!([{"ip": "10.0.0.6"}]));
}

#[test]
fn a_hand_edit_is_put_back_and_what_is_not_ours_stays() {
    let mut scene = vm1().scene();
    scene.settle();
    let id = Key::new("vms", "vm1-3e616");
    let edit = |entity: &mut Value| {
        entity["spec"]["endpoints"] = json!([]);
        entity["metadata"]["labels"] = json!({"role": "web", "mine": "too"});
        entity["metadata"]["annotations"] = json!({"who": "me"});
        entity["metadata"]["finalizers"] = json!(["foreign.example.com/a"]);
    };
    scene.api.edit(ENTITY, &id, edit);
    assert_eq!(written(&mut scene), ["update ExternalEntity vms/vm1-3e616"]);
    let entity = scene.api.get(ENTITY, "vms/vm1-3e616").unwrap();
    assert_eq!(entity["spec"]["endpoints"][0]["ip"], "10.0.0.5");
    assert_eq!(entity["metadata"]["labels"], json!({"role": "db"}));
    assert_eq!(entity["metadata"]["annotations"], json!({"who": "me"}));
    assert_eq!(entity["metadata"]["finalizers"], json!(["foreign.example.com/a"]));
}

#[test]
fn a_deleted_entity_is_back() {
    let mut scene = vm1().scene();
    scene.settle();
    scene.delete(ENTITY, "vms/vm1-3e616");
    assert_eq!(written(&mut scene), ["create ExternalEntity vms/vm1-3e616"]);
}

#[test]
fn one_that_is_going_is_awaited_and_made_again() {
    let mut scene = vm1().scene();
    scene.settle();
    let id = Key::new("vms", "vm1-3e616");
    scene.api.edit(ENTITY, &id, |e| e["metadata"]["finalizers"] = json!(["foreign.example.com/a"]));
    scene.delete(ENTITY, "vms/vm1-3e616");
    assert_eq!(written(&mut scene), [""; 0]);
    scene.put(vm1().label("role", "web"));
    assert_eq!(written(&mut scene), [""; 0]);
    scene.api.edit(ENTITY, &id, |e| e["metadata"]["finalizers"] = json!([]));
    assert_eq!(written(&mut scene), ["create ExternalEntity vms/vm1-3e616"]);
}

#[test]
fn an_old_entity_stays_until_the_name_of_the_next_is_free() {
    let named = |interface| world().node("vms/vm1").interface(interface, ["10.0.0.5"]);
    let mut scene = named("ens192").scene();
    scene.settle();
    let held = Key::new("vms", "vm1-e8be5");
    scene.api.edit(ENTITY, &held, |e| e["metadata"]["finalizers"] = json!(["foreign.example.com/a"]));
    scene.put(named("eth0"));
    assert_eq!(written(&mut scene), ["create ExternalEntity vms/vm1-3e616", "delete ExternalEntity vms/vm1-e8be5"]);
    scene.put(named("ens192"));
    assert_eq!(written(&mut scene), [""; 0]);
    scene.api.edit(ENTITY, &held, |e| e["metadata"]["finalizers"] = json!([]));
    assert_eq!(written(&mut scene), ["create ExternalEntity vms/vm1-e8be5", "delete ExternalEntity vms/vm1-3e616"]);
}

#[test]
fn an_entity_that_cannot_be_read_is_written_anew() {
    let mut scene = vm1().scene();
    scene.settle();
    scene.api.edit(ENTITY, &Key::new("vms", "vm1-3e616"), |e| e["spec"]["endpoints"] = json!("none"));
    assert_eq!(written(&mut scene), ["update ExternalEntity vms/vm1-3e616"]);
    assert_eq!(scene.unfinished(), [""; 0]);
}

#[test]
fn a_re_created_node_takes_its_entity_over() {
    let mut scene = vm1().scene();
    scene.settle();
    scene.put(vm1().uid("second"));
    assert_eq!(said(&scene.entity("vms/vm1-3e616")), ["update ExternalEntity vms/vm1-3e616"]);
    scene.settle();
    let entity = scene.api.get(ENTITY, "vms/vm1-3e616").unwrap();
    assert_eq!(entity["metadata"]["ownerReferences"][0]["uid"], "second");
}

#[test]
fn a_foreign_entity_is_never_written() {
    let mut scene = vm1().entity("vms/vm1-3e616").endpoint("192.0.2.1", "x").scene();
    assert_eq!(written(&mut scene), [""; 0]);
    assert_eq!(scene.says(NODE, "vms/vm1", "Accepted"), "False/ForeignEntity");
    scene.delete(ENTITY, "vms/vm1-3e616");
    assert_eq!(written(&mut scene), ["create ExternalEntity vms/vm1-3e616"]);
    assert_eq!(scene.says(NODE, "vms/vm1", "Accepted"), "True/Accepted");
}

#[test]
fn what_belongs_to_no_node_any_more_is_deleted() {
    let owned = |at: &str| world().entity(at).owned_by_uid("vm1", "of the namesake before");
    assert_eq!(said(&owned("vms/vm1-3e616").scene().entity("vms/vm1-3e616")), ["delete ExternalEntity vms/vm1-3e616"]);
    let by_name_only = world().node("vms/vm1").unnamed(["10.0.0.5"]).entity("vms/x").owned_by_uid("vm1", "another");
    assert_eq!(said(&by_name_only.scene().entity("vms/x")).last().unwrap(), "delete ExternalEntity vms/x");
}

#[test]
fn what_is_left_of_a_node_that_is_going_is_the_garbage_collectors() {
    let mut scene = vm1().finalizer("foregroundDeletion").scene();
    scene.settle();
    scene.delete(NODE, "vms/vm1");
    assert_eq!(scene.entity("vms/vm1-3e616"), []);
}

#[test]
fn an_orphaned_entity_stays_and_is_nobodys() {
    let mut scene = vm1().scene();
    scene.settle();
    scene.api.orphan(&Key::new("vms", "vm1"));
    assert_eq!(written(&mut scene), [""; 0]);
    assert_eq!(scene.api.names(ENTITY), ["vms/vm1-3e616"]);
}

#[test]
fn nothing_in_a_namespace_that_is_going_is_made() {
    let scene = vm1().namespace("vms").going().scene();
    assert_eq!(scene.entity("vms/vm1-3e616"), []);
}

#[test]
fn an_interface_with_nothing_in_it_is_that_nodes_trouble() {
    let empty = world().node("vms/bad").interface("", []).node("vms/vm2").interface("eth0", ["10.0.0.6"]);
    let mut scene = empty.scene();
    assert_eq!(written(&mut scene), ["create ExternalEntity vms/vm2-3e616"]);
    assert_eq!(scene.says(NODE, "vms/bad", "Accepted"), "False/Invalid");
}

#[test]
fn an_interface_with_only_a_name_has_an_entity_once_an_allowed_address_is_reported() {
    let mut scene = world().node("vms/vm1").interface("eth0", []).allowed(["10.0.0.0/24"]).bound("vms").scene();
    assert_eq!(written(&mut scene), [""; 0]);
    scene.hear(crate::testing::report("vms/vm1").sees("eth0", ["10.9.9.9", "10.0.0.7"]).attached("eth0"));
    assert_eq!(written(&mut scene), ["create ExternalEntity vms/vm1-3e616"]);
    let entity = scene.api.get(ENTITY, "vms/vm1-3e616").unwrap();
    assert_eq!(entity["spec"]["endpoints"], json!([{"ip": "10.0.0.7", "name": "eth0"}]));
}

#[test]
fn names_of_any_length_stay_apart() {
    let long = |last: &str| format!("vms/{}{last}", "x".repeat(247));
    let nodes = [long(".a.b1"), long(".a.b2"), "vms/vm1.prod.example.com".to_owned(), "vms/x".to_owned()];
    let all = nodes
        .iter()
        .zip(5u8..)
        .fold(world(), |objects, (node, n)| objects.node(node).interface("a-name-of-15-ch", [&*format!("10.0.0.{n}")]));
    let mut scene = all.scene();
    scene.settle();
    assert_eq!(scene.api.names(ENTITY).len(), nodes.len());
}
