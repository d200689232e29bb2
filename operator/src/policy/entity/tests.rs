use serde_json::json;

use super::*;
use crate::policy::Live;
use crate::testing::{Objects, key, world};

fn live_world(objects: Objects) -> Live {
    objects.scene().live
}

fn at(live: &Live, id: &str) -> Option<Entity> {
    entity_at(live.world(), live.claims(), &key(id))
}

fn ips(entity: &Entity) -> Vec<String> {
    entity.member.ips.iter().map(ToString::to_string).collect()
}

#[test]
fn an_entity_of_a_node_is_what_the_node_says() {
    let node = world().node("vms/vm1").label("role", "db").interface("eth0", ["10.0.0.5"]).port("web", "TCP", 80);
    // whatever the copy in the API server says
    let edited = node.entity("vms/vm1-3e616").owned_by("vms/vm1").endpoint("192.0.2.1", "x").label("role", "web");
    let live = live_world(edited);
    let entity = at(&live, "vms/vm1-3e616").unwrap();
    assert_eq!(ips(&entity), ["10.0.0.5"]);
    assert_eq!(*entity.labels, [("role".to_owned(), "db".to_owned())].into());
    assert_eq!(entity.node, Some("vms/vm1".parse().unwrap()));
    let port = MemberPort { name: "web".into(), protocol: crds::external_entity::Protocol::Tcp, port: 80 };
    assert_eq!(entity.member.ports, [port].into());
}

#[test]
fn a_hand_made_entity_is_a_peer_and_no_target_whatever_node_it_names() {
    let hand = world().node("vms/vm1").unnamed(["10.0.0.5"]).entity("vms/hand").endpoint("10.0.0.9", "x");
    let live = live_world(hand.with(&["spec", "externalNode"], json!("vm1")));
    let entity = at(&live, "vms/hand").unwrap();
    assert_eq!((ips(&entity), entity.node), (vec!["10.0.0.9".to_owned()], None));
}

#[test]
fn ports_of_hand_made_entities_count_when_they_are_numbers_with_a_name() {
    let ports =
        json!([{"name": "web", "port": 80}, {"name": "ssh", "port": "ssh"}, {"port": 81}, {"name": "no", "port": 0}]);
    let live = live_world(world().entity("vms/hand").with(&["spec", "ports"], ports));
    let names: Vec<_> = at(&live, "vms/hand").unwrap().member.ports.iter().map(|p| p.name.to_string()).collect();
    assert_eq!(names, ["web"]);
}

#[test]
fn an_entity_that_names_an_owner_who_is_not_there_is_nobodys() {
    let stale = world().node("vms/vm1").unnamed(["10.0.0.5"]).entity("vms/x").owned_by_uid("vm1", "another");
    assert_eq!(at(&live_world(stale), "vms/x"), None);
}

#[test]
fn the_oldest_of_those_who_want_a_name_holds_it() {
    let want = |a: i64, b: i64| {
        let a = world().node("vms/vm1").created(a).interface("eth0", ["10.0.0.5"]);
        live_world(a.node("vms/vm1-3e616").created(b).unnamed(["10.0.0.6"]))
    };
    let holder_of = |live: &Live| holder(live.world(), live.claims(), &key("vms/vm1-3e616"));
    assert_eq!(holder_of(&want(1, 2)), Holder::Node(key("vms/vm1")));
    assert_eq!(holder_of(&want(2, 1)), Holder::Node(key("vms/vm1-3e616")));
    assert_eq!(holder_of(&want(1, 1)), Holder::Node(key("vms/vm1")));
}

#[test]
fn only_an_owner_of_our_kind_and_group_counts() {
    let owner_of = |api_version: &str, kind: &str| {
        let reference = json!([{"apiVersion": api_version, "kind": kind, "name": "a", "uid": "u"}]);
        owner(&serde_json::from_value(json!({"ownerReferences": reference})).unwrap())
    };
    assert_eq!(owner_of("crd.antrea.io/v1alpha1", "ExternalNode"), Some("u".into()));
    assert_eq!(owner_of("example.com/v1", "ExternalNode"), None);
    assert_eq!(owner_of("crd.antrea.io.example.com/v1", "ExternalNode"), None);
    assert_eq!(owner_of("apps/v1", "Deployment"), None);
}

#[test]
fn a_node_that_is_going_or_whose_namespace_is_or_that_can_not_be_read_is_not_live() {
    let node = || world().node("vms/vm1").unnamed(["10.0.0.5"]);
    let is_live = |objects: Objects| live(live_world(objects).world(), &key("vms/vm1")).is_some();
    assert!(is_live(node()) && is_live(node().namespace("vms")));
    assert!(!is_live(node().going()) && !is_live(node().namespace("vms").going()));
    assert!(!is_live(node().with(&["spec", "interfaces"], json!("none"))));
}

#[test]
fn a_node_claims_a_name_for_each_interface_that_has_an_address() {
    let node = world().node("vms/vm1").interface("eth0", ["10.0.0.5"]).interface("eth1", []).allowed(["10.1.0.0/16"]);
    let claims = |objects: Objects| {
        let live = live_world(objects);
        live.claims().keys().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(claims(node.clone()), ["vms/vm1-3e616"]);
    assert_eq!(claims(node.clone().found("eth1", "", ["192.0.2.1"])), ["vms/vm1-3e616"]);
    assert_eq!(claims(node.found("eth1", "", ["10.1.0.1"])), ["vms/vm1-2cbd4", "vms/vm1-3e616"]);
}

#[test]
fn a_node_is_told_of_all_its_interfaces_and_only_of_what_the_user_said() {
    let node = world().node("vms/vm1").interface("eth0", ["10.0.0.5"]).mac("").interface("eth1", []);
    let live = live_world(node.allowed(["10.1.2.3/16"]).found("eth1", "", ["10.1.0.1"]));
    let body = node_body(&key("vms/vm1"), super::live(live.world(), &key("vms/vm1")).unwrap());
    let wanted = json!({"uid": "uid of vms/vm1", "interfaces": [
        {"entity": "vm1-3e616", "name": "eth0", "ips": ["10.0.0.5"], "allowedCIDRs": [], "ports": []},
        {"entity": "vm1-2cbd4", "name": "eth1", "ips": [], "allowedCIDRs": ["10.1.0.0/16"], "ports": []},
    ]});
    assert_eq!(serde_json::to_value(body).unwrap(), wanted);
}
