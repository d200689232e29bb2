//! The laws of `resolve`: groups are what Kubernetes' documentation says, one event at a time equals all at once, order
//! does not matter, nobody hears of what doesn't concern them. Each law is also shown to catch faults put in on purpose.

#![allow(clippy::unwrap_used, clippy::panic, reason = "the helpers of a test fail as tests do")]

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use crds::names::{Key, NodeName};
use crds::wire::{Change, Frame, View};
use crds::world::{Event, Object, World, WorldKind};
use operator::policy::{Live, Resolved, Touched, whole};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use serde_json::{Value, json};

// ---- worlds ---------------------------------------------------------------------------------------------------------

const NAMESPACES: [&str; 2] = ["n0", "n1"];
const NODES: [&str; 3] = ["vm0", "vm1", "vm2"];

/// One thing that happens to one object, or to a watch.
#[derive(Clone, Debug)]
enum Step {
    Put(WorldKind, Value),
    Delete(WorldKind, &'static str, String),
    /// The watch of the kind begins again: the list of what is there.
    Restart(WorldKind),
    /// Every object of the kind is said once more.
    Repeat(WorldKind),
}

fn labels() -> impl Strategy<Value = Value> {
    prop::collection::btree_map("[abc]", "[xy]", 0..3).prop_map(|map| json!(map))
}

fn expression() -> impl Strategy<Value = Value> {
    let values = prop::collection::btree_set("[xy]", 1..3);
    prop_oneof![
        ("[abc]", any::<bool>(), values).prop_map(
            |(key, is_in, values)| json!({"key": key, "operator": if is_in { "In" } else { "NotIn" }, "values": values})
        ),
        ("[abc]", any::<bool>())
            .prop_map(|(key, exists)| json!({"key": key, "operator": if exists { "Exists" } else { "DoesNotExist" }})),
    ]
}

fn selector() -> impl Strategy<Value = Value> {
    let match_labels = prop::collection::btree_map("[abc]", "[xy]", 0..3);
    (match_labels, prop::collection::vec(expression(), 0..2)).prop_map(|(labels, expressions)| {
        let mut selector = json!({});
        if !labels.is_empty() {
            selector["matchLabels"] = json!(labels);
        }
        if !expressions.is_empty() {
            selector["matchExpressions"] = json!(expressions);
        }
        selector
    })
}

fn namespace() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&NAMESPACES[..])
}

fn meta(namespace: &str, name: &str, uid: u32, labels: &Value) -> Value {
    json!({"namespace": namespace, "name": name, "uid": format!("{namespace}-{name}-{uid}"), "labels": labels, "generation": 1,
        "creationTimestamp": format!("2026-01-01T00:00:{:02}Z", uid % 3)})
}

fn step() -> impl Strategy<Value = Step> {
    let namespaces = (namespace(), labels(), prop::bool::weighted(0.1)).prop_map(|(name, labels, going)| {
        let mut meta = json!({"name": name, "uid": name, "labels": labels});
        if going {
            meta["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        Step::Put(WorldKind::Namespace, json!({"metadata": meta}))
    });
    let interface = prop_oneof![
        (0u8..9).prop_map(|n| json!({"name": "eth0", "ips": [format!("10.0.0.{n}"), format!("fd00::{n}")]})),
        (0u8..9).prop_map(
            |n| json!({"name": "eth1", "ips": [format!("10.0.1.{n}")], "ports": [{"name": "web", "port": 80}]})
        ),
        Just(json!({"ips": ["10.0.2.1"]})),
        Just(json!({"name": "eth0", "allowedCIDRs": ["10.0.3.0/24"]})),
        // whose entity has the name that interface eth0 of vm0 gives its own
        Just(json!({"ips": ["10.0.4.1"]})),
    ];
    let node_name = prop::sample::select(&["vm0", "vm1", "vm2", "vm0-3e616"][..]);
    let nodes = (namespace(), node_name, labels(), prop::collection::vec(interface, 1..3), 0u32..4).prop_map(
        |(ns, name, labels, interfaces, uid)| {
            Step::Put(
                WorldKind::ExternalNode,
                json!({
                    "metadata": meta(ns, name, uid, &labels), "spec": {"interfaces": interfaces},
                    "status": {"interfaces": [{"name": "eth0", "ips": [format!("10.0.3.{uid}")]}]},
                }),
            )
        },
    );
    let entity_name = prop::sample::select(&["vm0-3e616", "vm1", "hand", "made"][..]);
    let owner = prop::option::weighted(0.4, (0usize..3, 0u32..4));
    let entities = (namespace(), entity_name, labels(), 0u8..9, owner).prop_map(|(ns, name, labels, ip, owner)| {
        let mut meta = meta(ns, name, 0, &labels);
        if let Some((node, uid)) = owner {
            let name = NODES[node];
            meta["ownerReferences"] = json!([{"apiVersion": "crd.antrea.io/v1alpha1", "kind": "ExternalNode", "name": name, "uid": format!("{ns}-{name}-{uid}")}]);
        }
        Step::Put(WorldKind::ExternalEntity, json!({"metadata": meta, "spec": {"endpoints": [{"ip": format!("10.1.0.{ip}")}]}}))
    });
    let peer = prop_oneof![
        3 => selector().prop_map(|s| json!({"externalEntitySelector": s})),
        2 => (selector(), selector()).prop_map(|(s, ns)| json!({"externalEntitySelector": s, "namespaceSelector": ns})),
        1 => Just(json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}})),
        1 => Just(json!({"podSelector": {}})),
    ];
    let rule = (any::<bool>(), prop::collection::vec(peer, 0..3), any::<bool>());
    let tier = prop::sample::select(&["application", "platform", "mine"][..]);
    let policies = (namespace(), 0u32..3, tier, prop::collection::vec(selector(), 1..3), prop::collection::vec(rule, 0..3), 0u32..3).prop_map(
        |(ns, name, tier, targets, rules, uid)| {
            let targets: Vec<_> = targets.into_iter().map(|s| json!({"externalEntitySelector": s})).collect();
            let side = |ingress: bool, field: &str| -> Vec<Value> {
                let of_side = rules.iter().filter(|(i, ..)| *i == ingress);
                of_side.map(|(_, peers, allow)| json!({"action": if *allow { "Allow" } else { "Drop" }, field: peers})).collect()
            };
            Step::Put(WorldKind::NetworkPolicy, json!({
                "metadata": meta(ns, &format!("p{name}"), uid, &json!({})),
                "spec": {"tier": tier, "priority": 5, "appliedTo": targets, "ingress": side(true, "from"), "egress": side(false, "to")},
            }))
        },
    );
    let tiers = (0i32..9).prop_map(|p| {
        Step::Put(WorldKind::Tier, json!({"metadata": {"name": "mine", "uid": "t"}, "spec": {"priority": p}}))
    });
    let any_kind = || prop::sample::select(&KINDS[..]);
    let name = prop::sample::select(&["vm0", "vm1", "vm2", "vm0-3e616", "hand", "made", "p0", "p1", "p2"][..]);
    prop_oneof![
        2 => namespaces,
        5 => nodes,
        3 => entities,
        5 => policies,
        1 => tiers,
        4 => (any_kind(), namespace(), name).prop_map(|(kind, ns, name)| Step::Delete(kind, ns, name.to_owned())),
        1 => any_kind().prop_map(Step::Restart),
        1 => any_kind().prop_map(Step::Repeat),
    ]
}

const KINDS: [WorldKind; 5] = [
    WorldKind::Namespace,
    WorldKind::ExternalNode,
    WorldKind::ExternalEntity,
    WorldKind::NetworkPolicy,
    WorldKind::Tier,
];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 0..40)
}

/// What an API server would hold, and say.
#[derive(Default)]
struct Server {
    objects: BTreeMap<(WorldKind, Key), Value>,
    version: u64,
}

impl Server {
    fn event(&mut self, step: Step) -> Vec<Event> {
        self.version += 1;
        match step {
            Step::Put(kind, mut object) => {
                object["metadata"]["resourceVersion"] = json!(self.version.to_string());
                let (group, version, _, name) = kind.resource();
                object["apiVersion"] = json!(format!("{group}/{version}"));
                object["kind"] = json!(name);
                let key = Key::of(decode(kind, &object).meta());
                self.objects.insert((kind, key), object.clone());
                vec![Event::Put(decode(kind, &object))]
            }
            Step::Delete(kind, namespace, name) => {
                let key = match kind {
                    WorldKind::Namespace => Key::cluster(namespace),
                    WorldKind::Tier => Key::cluster("mine"),
                    _ => Key::new(namespace, name),
                };
                let Some(mut object) = self.objects.remove(&(kind, key)) else { return vec![] };
                object["metadata"]["resourceVersion"] = json!(self.version.to_string());
                vec![Event::Delete(decode(kind, &object))]
            }
            Step::Restart(kind) => vec![Event::Listed(kind, self.all(kind))],
            Step::Repeat(kind) => self.all(kind).into_iter().map(Event::Put).collect(),
        }
    }

    fn all(&self, kind: WorldKind) -> Vec<Object> {
        self.objects.iter().filter(|((k, _), _)| *k == kind).map(|(_, object)| decode(kind, object)).collect()
    }

    fn world(&self, order: &[WorldKind]) -> World {
        let mut world = World::waiting_for(&KINDS);
        for kind in order {
            world.apply(Event::Listed(*kind, self.all(*kind)));
        }
        world
    }
}

fn decode(kind: WorldKind, object: &Value) -> Object {
    Object::decode(kind, serde_json::from_value(object.clone()).unwrap())
}

fn node_names() -> impl Iterator<Item = NodeName> {
    NAMESPACES
        .into_iter()
        .flat_map(|ns| ["vm0", "vm1", "vm2", "vm0-3e616"].map(|name| NodeName::external(Key::new(ns, name))))
}

// ---- the laws, as functions of a system that may have a fault -------------------------------------------------------

type Law = fn(Vec<Step>, Fault) -> Result<(), TestCaseError>;

/// What is wrong on purpose. `None` is the real thing.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// Events of this kind never reach the incremental form.
    Deaf(WorldKind),
    /// Deletions are forgotten.
    Undead,
    /// One touched node is not told.
    NodeForgotten,
    /// Everybody is told everything.
    Gossip,
    /// A node gets a policy that applies to others.
    PolicyLeaked,
    /// Everything is made anew at every event, equal or not.
    Reallocated,
    /// A view lacks one of its groups.
    GroupLost,
    /// A difference lacks its deletions.
    DeletionsLost,
    /// A missing label fails `NotIn`.
    NotInNeedsTheKey,
    /// The selector of namespaces is not looked at.
    AnyNamespace,
    /// A sign of life that is more: another node.
    NewUid,
    /// A sign of life that is more: another policy.
    NewGeneration,
}

fn feed(live: &mut Live, event: Event, fault: Fault) -> Touched {
    let mut touched = Touched::default();
    let kind = match &event {
        Event::Put(object) | Event::Delete(object) => object.kind(),
        Event::Listed(kind, _) => *kind,
    };
    let lost = match fault {
        Fault::Deaf(deaf) => deaf == kind,
        Fault::Undead => matches!(event, Event::Delete(_)),
        _ => false,
    };
    if !lost {
        live.apply(event, &mut touched);
    }
    if fault == Fault::NodeForgotten {
        let first = touched.nodes.iter().min().cloned();
        if let Some(node) = first {
            touched.nodes.remove(&node);
        }
    }
    touched
}

fn ready() -> Live {
    let mut world = World::waiting_for(&KINDS);
    for kind in KINDS {
        world.apply(Event::Listed(kind, vec![]));
    }
    Live::new(world)
}

fn incremental_equals_whole(steps: Vec<Step>, fault: Fault) -> Result<(), TestCaseError> {
    let (mut server, mut live) = (Server::default(), ready());
    let mut world = live.world().clone();
    for step in steps {
        for event in server.event(step) {
            world.apply(event.clone());
            feed(&mut live, event, fault);
            prop_assert_eq!(live.resolved(), &whole::resolve(&world));
        }
    }
    Ok(())
}

fn order_does_not_matter(steps: Vec<Step>, fault: Fault) -> Result<(), TestCaseError> {
    let (mut server, mut live) = (Server::default(), ready());
    for step in steps {
        for event in server.event(step) {
            feed(&mut live, event, fault);
        }
    }
    let forwards = Live::new(server.world(&KINDS));
    let mut backwards = KINDS;
    backwards.reverse();
    let backwards = Live::new(server.world(&backwards));
    prop_assert_eq!(forwards.resolved(), backwards.resolved());
    prop_assert_eq!(live.resolved(), forwards.resolved(), "what happened on the way leaves no trace");
    Ok(())
}

fn an_untouched_node_has_the_same_view(steps: Vec<Step>, fault: Fault) -> Result<(), TestCaseError> {
    let (mut server, mut live) = (Server::default(), ready());
    for step in steps {
        for event in server.event(step) {
            let before: Vec<_> = node_names().map(|n| (live.view(&n), n)).collect();
            let touched = feed(&mut live, event, fault);
            if fault == Fault::Reallocated {
                live = Live::new(live.world().clone());
            }
            for (view, node) in before.iter().filter(|(_, n)| !touched.nodes.contains(n)) {
                prop_assert_eq!(view, &live.view(node));
                prop_assert!(same_allocations(view, &live.view(node)));
            }
        }
    }
    Ok(())
}

/// Heartbeats, annotations and the server's bookkeeping are no news to anybody.
fn a_sign_of_life_is_no_news(steps: Vec<Step>, fault: Fault) -> Result<(), TestCaseError> {
    let (mut server, mut live) = (Server::default(), ready());
    for step in steps {
        for event in server.event(step) {
            feed(&mut live, event, Fault::None);
        }
    }
    let before: Vec<_> = node_names().map(|n| (live.view(&n), n)).collect();
    let objects: Vec<_> = server.objects.clone().into_iter().collect();
    for ((kind, _), mut object) in objects {
        object["metadata"]["annotations"] = json!({"seen": "now"});
        object["metadata"]["managedFields"] = json!([{"manager": "kubelet", "operation": "Update"}]);
        if kind == WorldKind::ExternalNode {
            object["status"]["lastHeartbeat"] = json!("2026-01-01T00:00:59Z");
        }
        match (fault, kind) {
            (Fault::NewUid, WorldKind::ExternalNode) => object["metadata"]["uid"] = json!("another"),
            (Fault::NewGeneration, WorldKind::NetworkPolicy) => object["metadata"]["generation"] = json!(2),
            _ => {}
        }
        for event in server.event(Step::Put(kind, object)) {
            feed(&mut live, event, Fault::None);
        }
    }
    for (view, node) in &before {
        prop_assert!(view.diff(&live.view(node)).is_empty(), "{} is told something", node);
        prop_assert!(same_allocations(view, &live.view(node)));
    }
    Ok(())
}

fn same_allocations(a: &View, b: &View) -> bool {
    a.groups.iter().all(|(key, entry)| Arc::ptr_eq(entry, &b.groups[key]))
        && a.policies.iter().all(|(key, entry)| Arc::ptr_eq(entry, &b.policies[key]))
}

fn an_agent_ends_up_with_its_view(steps: Vec<Step>, fault: Fault) -> Result<(), TestCaseError> {
    let (mut server, mut live) = (Server::default(), ready());
    let mut mirrors: BTreeMap<NodeName, (View, View)> = node_names().map(|n| (n, Default::default())).collect();
    for (i, step) in steps.into_iter().enumerate() {
        for event in server.event(step) {
            feed(&mut live, event, fault);
        }
        // every third time nobody is told: one larger difference later
        if i % 3 == 2 {
            continue;
        }
        for (node, (mirror, sent)) in &mut mirrors {
            let mut next = live.view(node);
            if fault == Fault::GroupLost {
                next.groups.pop_first();
            }
            let update = sent.diff(&next);
            for change in &update.changes {
                if fault == Fault::DeletionsLost && matches!(change, Change::Delete(_)) {
                    continue;
                }
                let Frame::Change(change) = Frame::decode(&change.line()).unwrap() else { panic!("a change") };
                mirror.apply(&change).unwrap();
            }
            prop_assert_eq!(mirror.dangling(), Ok(()));
            prop_assert_eq!(&*mirror, &live.view(node));
            *sent = next;
        }
    }
    Ok(())
}

fn nobody_hears_of_what_does_not_concern_them(steps: Vec<Step>, fault: Fault) -> Result<(), TestCaseError> {
    let (mut server, mut live) = (Server::default(), ready());
    for step in steps {
        for event in server.event(step) {
            feed(&mut live, event, fault);
        }
    }
    let resolved = live.resolved();
    for node in node_names() {
        let mut view = live.view(&node);
        if fault == Fault::Gossip {
            view.groups.clone_from(&resolved.groups);
        }
        if fault == Fault::PolicyLeaked {
            let others = resolved.nodes.values().flat_map(|n| &n.policies);
            view.policies.extend(others.map(|(id, policy)| (id.clone(), Arc::clone(policy))));
        }
        let named: BTreeSet<_> = view.policies.values().flat_map(|p| p.body().groups().collect::<Vec<_>>()).collect();
        prop_assert_eq!(view.groups.keys().copied().collect::<BTreeSet<_>>(), named, "only groups that its rules name");
        for (id, policy) in &view.policies {
            let (key, _) = resolved.policies.iter().find(|(_, compiled)| compiled.id == *id).unwrap();
            prop_assert_eq!(Some(&policy.body().applied_to), resolved.spans[key].get(&node));
            let own =
                resolved.nodes[&node].body.body().interfaces.iter().map(|i| i.entity.clone()).collect::<HashSet<_>>();
            prop_assert!(policy.body().applied_to.iter().all(|entity| own.contains(entity)), "only its own entities");
        }
    }
    Ok(())
}

/// Labels and selectors as Kubernetes' documentation defines them, from the objects' JSON and nothing of ours.
fn documented(selector: &Value, labels: &Value, fault: Fault) -> bool {
    let by_label = selector["matchLabels"].as_object().into_iter().flatten().all(|(key, value)| labels[key] == *value);
    let by_expression = selector["matchExpressions"].as_array().into_iter().flatten().all(|e| {
        let value = &labels[e["key"].as_str().unwrap()];
        let listed = e["values"].as_array().is_some_and(|values| values.contains(value));
        match e["operator"].as_str().unwrap() {
            "In" => listed,
            "NotIn" if fault == Fault::NotInNeedsTheKey => !value.is_null() && !listed,
            "NotIn" => !listed,
            "Exists" => !value.is_null(),
            "DoesNotExist" => value.is_null(),
            other => panic!("{other}"),
        }
    });
    by_label && by_expression
}

/// Every group of every policy is the obvious filter over the entities, hand-made ones here.
fn a_group_is_what_the_documentation_says(steps: Vec<Step>, fault: Fault) -> Result<(), TestCaseError> {
    let (mut server, mut live) = (Server::default(), ready());
    // nodes make entities of their own: leave them out, so that the objects say all there is
    for step in steps.into_iter().filter(|s| !matches!(s, Step::Put(WorldKind::ExternalNode, _))) {
        for event in server.event(step) {
            feed(&mut live, event, Fault::None);
        }
    }
    let of_kind = |kind| server.objects.iter().filter(move |((k, _), _)| *k == kind);
    for ((_, policy), object) in of_kind(WorldKind::NetworkPolicy) {
        let compiled = &live.resolved().policies[policy];
        let objects: Vec<_> = object["spec"]["ingress"]
            .as_array()
            .unwrap()
            .iter()
            .chain(object["spec"]["egress"].as_array().unwrap())
            .collect();
        // rules with a Pod among their peers are not realised
        let whole = objects.iter().filter(|rule| {
            let peers = rule["from"].as_array().or(rule["to"].as_array()).unwrap();
            !peers.iter().any(|peer| peer.get("podSelector").is_some())
        });
        let whole: Vec<_> = whole.collect();
        prop_assert_eq!(whole.len(), compiled.policy.rules.len());
        for (rule, realised) in whole.into_iter().zip(&*compiled.policy.rules) {
            let peers = rule["from"].as_array().or(rule["to"].as_array()).unwrap();
            let mut expected = BTreeSet::new();
            for peer in peers.iter().filter(|peer| peer.get("externalEntitySelector").is_some()) {
                for ((_, id), entity) in of_kind(WorldKind::ExternalEntity) {
                    let hand_made = entity["metadata"].get("ownerReferences").is_none();
                    let namespace = match peer.get("namespaceSelector") {
                        None => id.namespace == policy.namespace,
                        Some(_) if fault == Fault::AnyNamespace => true,
                        Some(selector) => server
                            .objects
                            .get(&(WorldKind::Namespace, Key::cluster(id.namespace.clone())))
                            .is_some_and(|n| documented(selector, &n["metadata"]["labels"], fault)),
                    };
                    if hand_made
                        && namespace
                        && documented(&peer["externalEntitySelector"], &entity["metadata"]["labels"], fault)
                    {
                        expected.insert(id.to_string());
                    }
                }
            }
            let groups = realised.peers.groups.iter().map(|g| live.resolved().groups[g].body());
            let members = groups.flat_map(|g| g.members.keys().map(|m| format!("{}/{}", m.namespace, m.name)));
            prop_assert_eq!(members.collect::<BTreeSet<_>>(), expected);
        }
    }
    Ok(())
}

// ---- the laws hold, and have teeth ----------------------------------------------------------------------------------

fn cases() -> u32 {
    std::env::var("OUTRIDER_LAW_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(300)
}

fn run(law: Law, fault: Fault) -> Result<(), String> {
    let config = Config {
        cases: cases(),
        failure_persistence: None,
        max_shrink_iters: if fault == Fault::None { 2000 } else { 0 },
        ..Config::default()
    };
    TestRunner::new(config).run(&steps(), |steps| law(steps, fault)).map_err(|e| e.to_string())
}

fn holds_and_catches(law: Law, faults: &[Fault]) {
    if let Err(broken) = run(law, Fault::None) {
        panic!("{broken}");
    }
    for fault in faults {
        assert!(run(law, *fault).is_err(), "{fault:?} went unnoticed");
    }
}

#[test]
fn one_event_at_a_time_equals_all_at_once() {
    let faults = [
        Fault::Undead,
        Fault::Deaf(WorldKind::Namespace),
        Fault::Deaf(WorldKind::Tier),
        Fault::Deaf(WorldKind::ExternalEntity),
    ];
    holds_and_catches(incremental_equals_whole, &faults);
}

#[test]
fn the_order_of_events_restarts_and_repetitions_leave_no_trace() {
    holds_and_catches(order_does_not_matter, &[Fault::Undead, Fault::Deaf(WorldKind::NetworkPolicy)]);
}

#[test]
fn a_node_that_was_not_touched_is_told_nothing() {
    holds_and_catches(an_untouched_node_has_the_same_view, &[Fault::NodeForgotten, Fault::Reallocated]);
    // the other half: what reaches an untouched node would be seen by it
    holds_and_catches(nobody_hears_of_what_does_not_concern_them, &[Fault::Gossip, Fault::PolicyLeaked]);
}

#[test]
fn a_heartbeat_is_told_to_nobody() {
    holds_and_catches(a_sign_of_life_is_no_news, &[Fault::NewUid, Fault::NewGeneration]);
}

#[test]
fn every_agent_ends_up_with_its_view_and_never_dangles() {
    holds_and_catches(an_agent_ends_up_with_its_view, &[Fault::GroupLost, Fault::DeletionsLost]);
}

#[test]
fn groups_are_what_the_documentation_of_labels_says() {
    holds_and_catches(a_group_is_what_the_documentation_says, &[Fault::NotInNeedsTheKey, Fault::AnyNamespace]);
}

#[test]
fn an_empty_world_resolves_to_nothing() {
    assert_eq!(whole::resolve(ready().world()), Resolved::default());
}
