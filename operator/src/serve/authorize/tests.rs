#![allow(clippy::needless_pass_by_value, reason = "JSON reads best where it is used")]

use serde_json::{Value, json};

use super::*;
use crate::testing::{Objects, world};

const VM1: &str = "vms/vm1";

fn identity<const N: usize>(user: &str, groups: [&str; N]) -> Identity {
    Identity { user: user.to_owned(), groups: groups.iter().map(|&group| group.to_owned()).collect() }
}

/// The ServiceAccount `agent` of the namespace `vms`.
fn agent() -> Identity {
    identity(
        "system:serviceaccount:vms:agent",
        ["system:serviceaccounts", "system:serviceaccounts:vms", "system:authenticated"],
    )
}

fn account(namespace: &str, name: &str) -> Value {
    json!({"kind": "ServiceAccount", "name": name, "namespace": namespace})
}

fn nodes() -> Objects {
    let nodes = world().node(VM1).label("site", "a").unnamed(["10.0.0.5"]);
    nodes
        .node("vms/vm2")
        .label("site", "b")
        .unnamed(["10.0.0.6"])
        .node("other/vm1")
        .label("site", "a")
        .unnamed(["10.0.0.7"])
}

fn bind(objects: Objects, at: &str, subject: Value, mut covers: Value) -> Objects {
    covers["subjects"] = json!([subject]);
    objects.binding(at, covers)
}

fn ask(objects: Objects, identity: &Identity, target: Option<&str>) -> Decision {
    let target = target.map(|node| node.parse().unwrap());
    authorize(objects.scene().live.world(), identity, Verb::Watch, target.as_ref())
}

fn allowed(objects: Objects, identity: &Identity, target: &str) -> bool {
    let decision = ask(objects, identity, Some(target));
    assert!(matches!(&decision, Decision::Deny(_)) || decision == Decision::Allow(target.parse().unwrap()));
    matches!(decision, Decision::Allow(_))
}

fn only_vm1() -> Value {
    json!({"externalNodes": ["vm1"]})
}

#[test]
fn without_a_binding_there_is_no_access() {
    for target in [Some(VM1), None] {
        assert!(matches!(ask(nodes(), &agent(), target), Decision::Deny(_)));
    }
}

#[test]
fn a_binding_is_for_its_own_namespace_only() {
    let bound = |at| bind(nodes(), at, account("vms", "agent"), json!({"externalNodes": ["*"]}));
    assert!(allowed(bound("vms/b"), &agent(), VM1));
    assert!(!allowed(bound("vms/b"), &agent(), "other/vm1"));
    assert!(allowed(bound("other/b"), &agent(), "other/vm1"), "the account may live elsewhere");
    assert!(!allowed(bound("other/b"), &agent(), VM1));
}

#[test]
fn names_a_star_and_labels_cover_what_they_say() {
    let bound = |covers| bind(nodes(), "vms/b", account("vms", "agent"), covers);
    let cases = [
        (json!({"externalNodes": ["vm1"]}), true, false),
        (json!({"externalNodes": ["vm2", "vm1"]}), true, true),
        (json!({"externalNodes": ["*"]}), true, true),
        (json!({"nodeSelector": {"matchLabels": {"site": "a"}}}), true, false),
        (json!({"nodeSelector": {}}), true, true),
        (
            json!({"nodeSelector": {"matchExpressions": [{"key": "site", "operator": "NotIn", "values": ["a"]}]}}),
            false,
            true,
        ),
    ];
    for (covers, vm1, vm2) in cases {
        let may = |node| allowed(bound(covers.clone()), &agent(), node);
        assert_eq!((may(VM1), may("vms/vm2")), (vm1, vm2), "{covers}");
    }
}

#[test]
fn a_node_that_is_not_there_is_covered_by_name_and_star_but_by_no_label() {
    let bound = |covers| bind(nodes(), "vms/b", account("vms", "agent"), covers);
    assert!(allowed(bound(json!({"externalNodes": ["vm9"]})), &agent(), "vms/vm9"));
    assert!(allowed(bound(json!({"externalNodes": ["*"]})), &agent(), "vms/vm9"));
    assert!(!allowed(bound(json!({"nodeSelector": {}})), &agent(), "vms/vm9"));
    for (covers, named) in [(json!({"externalNodes": ["*"]}), true), (json!({"nodeSelector": {}}), false)] {
        let world = bound(covers).scene();
        assert_eq!(is_named(world.live.world(), &agent(), &VM1.parse().unwrap()), named);
    }
}

#[test]
fn a_node_that_is_going_has_no_labels_that_count() {
    let going = world().node(VM1).label("site", "a").unnamed(["10.0.0.5"]).going();
    let by_label =
        bind(going, "vms/b", account("vms", "agent"), json!({"nodeSelector": {"matchLabels": {"site": "a"}}}));
    assert!(!allowed(by_label, &agent(), VM1));
}

#[test]
fn an_account_is_its_namespace_and_its_name() {
    let may = |subject| allowed(bind(nodes(), "vms/b", subject, only_vm1()), &agent(), VM1);
    assert!(may(account("vms", "agent")));
    for (namespace, name) in
        [("other", "agent"), ("vms", "agent2"), ("vms", "age"), ("vm", "s:agent"), ("vms:agent", "")]
    {
        assert!(!may(account(namespace, name)), "{namespace}, {name}");
    }
    assert!(!may(json!({"kind": "ServiceAccount", "name": "agent"})));
}

#[test]
fn a_user_who_only_looks_like_an_account_is_none() {
    let bound = || bind(nodes(), "vms/b", account("vms", "agent"), only_vm1());
    for user in [
        "agent",
        "vms:agent",
        "serviceaccount:vms:agent",
        "system:serviceaccount:vms:agent:x",
        "x:system:serviceaccount:vms:agent",
        "",
    ] {
        assert!(!allowed(bound(), &identity(user, ["system:serviceaccounts:vms"]), VM1), "{user}");
    }
}

#[test]
fn users_and_groups_are_meant_by_their_own_kind_only() {
    let may = |kind: &str, name: &str, who: &Identity| {
        allowed(bind(nodes(), "vms/b", json!({"kind": kind, "name": name}), only_vm1()), who, VM1)
    };
    let vm1 = identity("vm1", ["vms", "web"]);
    assert!(may("User", "vm1", &vm1) && may("Group", "vms", &vm1));
    assert!(!may("User", "vms", &vm1) && !may("Group", "vm1", &vm1));
    assert!(!may("User", "m1", &vm1) && !may("User", "vm", &vm1) && !may("User", "vm10", &vm1));
    assert!(!may("User", "VM1", &vm1) && !may("User", "*", &vm1) && !may("Group", "*", &vm1));
    // as in RBAC: the account's user name, and the groups that accounts are in
    assert!(may("User", "system:serviceaccount:vms:agent", &agent()));
    assert!(may("Group", "system:serviceaccounts:vms", &agent()));
    assert!(!may("Group", "system:serviceaccount:vms:agent", &agent()));
}

#[test]
fn a_binding_with_a_fault_or_that_is_going_or_can_not_be_read_counts_for_nobody() {
    let user = || json!({"kind": "User", "name": "u"});
    let may = |objects| allowed(objects, &identity("u", []), VM1);
    assert!(may(bind(nodes(), "vms/b", user(), only_vm1())));
    assert!(!may(bind(nodes(), "vms/b", user(), only_vm1()).going()));
    assert!(!may(bind(nodes(), "vms/b", user(), json!({"externalNodes": ["vm1"], "nodeSelector": {}}))));
    assert!(!may(bind(nodes(), "vms/b", user(), json!({}))));
    assert!(!may(bind(nodes(), "vms/b", json!({"kind": "User", "name": "u", "namespace": "vms"}), only_vm1())));
    assert!(!may(bind(nodes(), "vms/b", user(), only_vm1()).with(&["spec", "subjects"], json!("all"))));
}

#[test]
fn without_a_choice_the_only_node_is_meant() {
    let bound = |covers| bind(nodes(), "vms/b", account("vms", "agent"), covers);
    let vm1 = Decision::Allow(VM1.parse().unwrap());
    assert_eq!(ask(bound(only_vm1()), &agent(), None), vm1);
    assert_eq!(ask(bound(json!({"nodeSelector": {"matchLabels": {"site": "a"}}})), &agent(), None), vm1);
    assert_eq!(ask(bind(bound(only_vm1()), "vms/c", account("vms", "agent"), only_vm1()), &agent(), None), vm1);
    let not_there = Decision::Allow("vms/vm9".parse().unwrap());
    assert_eq!(ask(bound(json!({"externalNodes": ["vm9"]})), &agent(), None), not_there);
}

#[test]
fn several_nodes_and_no_choice_is_a_refusal_that_says_what_to_ask() {
    let refused = |objects| match ask(objects, &agent(), None) {
        Decision::Deny(why) => why,
        Decision::Allow(node) => panic!("{node}"),
    };
    let star = refused(bind(nodes(), "vms/b", account("vms", "agent"), json!({"externalNodes": ["*"]})));
    assert!(star.contains("vms/vm1, vms/vm2: say which with ?node="), "{star}");
    let in_two = bind(nodes(), "vms/b", account("vms", "agent"), only_vm1());
    let in_two = refused(bind(in_two, "other/b", account("vms", "agent"), only_vm1()));
    assert!(in_two.contains("other/vm1, vms/vm1: say which"), "{in_two}");
    let nobody = refused(bind(world(), "vms/b", account("vms", "agent"), json!({"externalNodes": ["*"]})));
    assert!(nobody.contains("cover no ExternalNode that exists"), "{nobody}");
    assert!(refused(nodes()).contains("no ExternalNodeBinding names system:serviceaccount:vms:agent"));
}

#[test]
fn a_node_is_bound_when_anybody_may_act_for_it() {
    let bound = |objects: Objects| {
        let live = objects.scene().live;
        let key = VM1.parse().unwrap();
        is_bound(live.world(), &key, super::live(live.world(), &key).unwrap())
    };
    assert!(!bound(nodes()));
    assert!(bound(bind(nodes(), "vms/b", account("x", "y"), only_vm1())));
    assert!(!bound(bind(nodes(), "vms/b", account("x", "y"), json!({"externalNodes": ["vm2"]}))));
    assert!(!bound(bind(nodes(), "other/b", account("x", "y"), json!({"externalNodes": ["*"]}))));
    assert!(!bound(bind(nodes(), "vms/b", account("x", "y"), only_vm1()).going()));
}
