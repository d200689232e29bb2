//! The law of what the operator writes for ExternalNodes: whatever users do, and in whatever order it is seen, repeating
//! plan and apply ends, with exactly the entities and AgentInfos that are due, foreign objects untouched, and no live
//! node without an entity on the way. The law is also shown to catch faults put in on purpose.

use std::collections::BTreeMap;

use crds::world::Event;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use super::*;
use crate::agent_info::naming::{NODE as ABOUT, NODE_UID as ABOUT_UID, candidates};
use crate::testing::{Refused, owner as owner_of, report};
use crate::work::Work;

const INFO: WorldKind = WorldKind::AgentInfo;

const NAMESPACES: [&str; 2] = ["n0", "n1"];
/// The third's entity may be called like one of the first's, the fourth like the first's AgentInfo.
const NODES: [&str; 4] = ["vm0", "vm1", "vm0-3e616", "n0--vm0"];
const ENTITIES: [&str; 4] = ["vm0-3e616", "vm0", "vm1", "hand"];
const INFOS: [&str; 4] = ["vm0", "vm1", "n0--vm0", "n1--vm0"];

/// What happens. Numbers choose among what there is.
#[derive(Clone, Debug)]
enum Step {
    /// A user applies a node: new, or other than it was.
    Apply {
        at: Key,
        interfaces: Vec<Interface>,
        label: u8,
    },
    /// Deleted and made again before anybody looks.
    ReCreate(usize),
    Delete(usize),
    DeleteOrphaning(usize),
    /// Begins to be deleted, or ends being held.
    Hold(usize),
    EditEntity(usize, Edit),
    DeleteEntity(usize),
    /// Somebody else's entity comes, or goes.
    Foreign(Key, bool),
    EditInfo(usize, Edit),
    DeleteInfo(usize),
    ForeignInfo(&'static str, bool),
    KubeNode(&'static str, bool),
    EndNamespace(&'static str),
    Namespace(&'static str),
    /// An agent reports this address on eth0.
    Report(usize, u8),
    Wait(u8),
    /// A watch says the next few things.
    Deliver(usize, usize),
    /// A few pieces of work are done.
    Work(Vec<usize>),
    CollectGarbage,
    /// Another replica leads.
    Restart,
    Settle,
}

#[derive(Clone, Debug)]
enum Interface {
    Unnamed(u8),
    Eth0(u8),
    Eth1(u8),
    /// Only what the agent reports.
    Reported,
}

#[derive(Clone, Copy, Debug)]
enum Edit {
    Spec,
    Labels,
    Owner,
    NoOwner,
    Unreadable,
    Finalizer,
    NoFinalizer,
}

fn interfaces() -> impl Strategy<Value = Vec<Interface>> {
    let one = (0u8..3).prop_flat_map(|n| {
        prop::sample::select(vec![Interface::Unnamed(n), Interface::Eth0(n), Interface::Eth1(n), Interface::Reported])
    });
    prop_oneof![
        5 => one.prop_map(|one| vec![one]),
        1 => Just(vec![Interface::Eth0(0), Interface::Eth1(1)]),
        1 => Just(vec![]),
    ]
}

fn edit() -> impl Strategy<Value = Edit> {
    use Edit::{Finalizer, Labels, NoFinalizer, NoOwner, Owner, Spec, Unreadable};
    prop::sample::select(vec![Spec, Labels, Owner, NoOwner, Unreadable, Finalizer, NoFinalizer])
}

fn step() -> impl Strategy<Value = Step> {
    let namespace = || prop::sample::select(&NAMESPACES[..]);
    let some = any::<usize>;
    let at = |names: &'static [&str]| {
        (namespace(), prop::sample::select(names)).prop_map(|(namespace, name)| Key::new(namespace, name))
    };
    let info = || prop::sample::select(&INFOS[..]);
    prop_oneof![
        9 => (at(&NODES), interfaces(), 0u8..2).prop_map(|(at, interfaces, label)| Step::Apply { at, interfaces, label }),
        2 => some().prop_map(Step::ReCreate),
        2 => some().prop_map(Step::Delete),
        1 => some().prop_map(Step::DeleteOrphaning),
        1 => some().prop_map(Step::Hold),
        2 => (some(), edit()).prop_map(|(n, edit)| Step::EditEntity(n, edit)),
        2 => some().prop_map(Step::DeleteEntity),
        2 => (at(&ENTITIES), any::<bool>()).prop_map(|(at, comes)| Step::Foreign(at, comes)),
        2 => (some(), edit()).prop_map(|(n, edit)| Step::EditInfo(n, edit)),
        1 => some().prop_map(Step::DeleteInfo),
        1 => (info(), any::<bool>()).prop_map(|(name, comes)| Step::ForeignInfo(name, comes)),
        1 => (info(), any::<bool>()).prop_map(|(name, comes)| Step::KubeNode(name, comes)),
        1 => namespace().prop_map(Step::EndNamespace),
        1 => namespace().prop_map(Step::Namespace),
        3 => (some(), 0u8..3).prop_map(|(n, ip)| Step::Report(n, ip)),
        1 => (0u8..70).prop_map(Step::Wait),
        9 => (some(), 1usize..5).prop_map(|(kind, n)| Step::Deliver(kind, n)),
        9 => prop::collection::vec(some(), 1..6).prop_map(Step::Work),
        2 => Just(Step::CollectGarbage),
        1 => Just(Step::Restart),
        2 => Just(Step::Settle),
    ]
}

/// What is wrong on purpose. `None` is the real thing.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// What goes goes first.
    DeletesFirst,
    /// Nothing is ever deleted.
    DeletesLost,
    /// What is written is not compared with what was seen.
    Blind,
    /// What happens to entities is not noticed.
    DeafToEntities,
    /// What happens to AgentInfos is not noticed.
    DeafToInfos,
}

struct Play {
    scene: Scene,
    fault: Fault,
    born: u32,
    /// The name of the AgentInfo of each node by uid, as long as nobody else laid hands on any.
    given: BTreeMap<String, String>,
}

impl Play {
    fn new(fault: Fault) -> Self {
        let everything = json!({"priority": 5, "appliedTo": [{"externalEntitySelector": {}}]});
        let scene = NAMESPACES
            .into_iter()
            .fold(world(), |objects, namespace| objects.policy(&format!("{namespace}/p"), everything.clone()));
        Self { scene: scene.bound("n0").scene(), fault, born: 0, given: BTreeMap::new() }
    }

    fn pick(&self, kind: WorldKind, n: usize) -> Option<Key> {
        let all: Vec<_> = self.scene.api.all(kind).map(|(key, _)| key.clone()).collect();
        (!all.is_empty()).then(|| all[n % all.len()].clone())
    }

    fn apply(&mut self, at: &Key, interfaces: &[Interface], label: u8, new: bool) {
        let text = at.to_string();
        let meta = self.scene.api.get(NODE, &text).map(|node| node["metadata"].clone()).filter(|_| !new);
        let mut objects = world().node(&text).label("a", &label.to_string());
        if let Some(meta) = meta {
            objects = objects.uid(meta["uid"].as_str().unwrap());
            if !meta["finalizers"].is_null() {
                objects = objects.with(&["metadata", "finalizers"], meta["finalizers"].clone());
            }
        } else {
            self.born += 1;
            // some are of one age
            objects = objects.uid(&format!("{text}#{}", self.born)).created(i64::from(self.born / 2));
        }
        let objects = interfaces.iter().fold(objects, |objects, interface| match interface {
            Interface::Unnamed(n) => objects.unnamed([&*format!("10.0.0.1{n}")]),
            Interface::Eth0(n) => objects.interface("eth0", [&*format!("10.0.1.1{n}")]),
            Interface::Eth1(n) => objects.interface("eth1", [&*format!("10.0.2.1{n}")]),
            Interface::Reported => objects.interface("eth0", []).allowed(["10.0.3.0/24"]),
        });
        self.scene.api.put(objects);
    }

    #[allow(clippy::too_many_lines, reason = "one arm for each thing that can happen")]
    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Apply { at, interfaces, label } => self.apply(&at, &interfaces, label, false),
            Step::ReCreate(n) => {
                if let Some(at) = self.pick(NODE, n) {
                    self.apply(&at, &[Interface::Eth0(0)], 0, true);
                }
            }
            Step::Delete(n) => _ = self.pick(NODE, n).and_then(|at| self.scene.api.delete(NODE, &at)),
            Step::DeleteOrphaning(n) => self.pick(NODE, n).iter().for_each(|at| self.scene.api.orphan(at)),
            Step::Hold(n) => {
                if let Some(at) = self.pick(NODE, n) {
                    let text = at.to_string();
                    let held = !self.scene.api.get(NODE, &text).unwrap()["metadata"]["finalizers"].is_null();
                    self.scene.api.edit(NODE, &at, |node| hold(node, !held));
                    self.scene.api.delete(NODE, &at);
                }
            }
            Step::EditEntity(n, edit) => {
                if let Some(at) = self.pick(ENTITY, n) {
                    self.scene.api.edit(ENTITY, &at, |entity| edit_entity(entity, edit));
                }
            }
            Step::DeleteEntity(n) => _ = self.pick(ENTITY, n).and_then(|at| self.scene.api.delete(ENTITY, &at)),
            Step::Foreign(at, true) => {
                let foreign = world().entity(&at.to_string()).endpoint("192.0.2.1", "x");
                self.scene.api.put(foreign);
            }
            Step::Foreign(at, false) => {
                if self.scene.api.get(ENTITY, &at.to_string()).is_some_and(|entity| owner_of(entity).is_none()) {
                    self.scene.api.delete(ENTITY, &at);
                }
            }
            Step::EditInfo(n, edit) => {
                self.given.clear();
                if let Some(at) = self.pick(INFO, n) {
                    self.scene.api.edit(INFO, &at, |info| edit_info(info, edit));
                }
            }
            Step::DeleteInfo(n) => {
                self.given.clear();
                _ = self.pick(INFO, n).and_then(|at| self.scene.api.delete(INFO, &at));
            }
            Step::ForeignInfo(name, true) => {
                self.given.clear();
                self.scene.api.put(world().info(name));
            }
            Step::ForeignInfo(name, false) => {
                if self.scene.api.get(INFO, name).is_some_and(|info| about(info).is_none()) {
                    self.scene.api.delete(INFO, &Key::cluster(name));
                }
            }
            Step::KubeNode(name, true) => self.scene.api.put(world().kube_node(name)),
            Step::KubeNode(name, false) => _ = self.scene.api.delete(WorldKind::Node, &Key::cluster(name)),
            Step::EndNamespace(name) => self.scene.api.end_namespace(name),
            Step::Namespace(name) => {
                self.born += 1;
                let namespace = world().namespace(name).uid(&format!("{name}#{}", self.born));
                self.scene.api.put(namespace);
            }
            Step::Report(n, ip) => {
                if let Some(at) = self.pick(NODE, n) {
                    let text = at.to_string();
                    let uid = self.scene.api.get(NODE, &text).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
                    let ip = format!("10.0.3.1{ip}");
                    self.scene.hear(report(&text).uid(&uid).sees("eth0", [&*ip]).attached("eth0"));
                }
            }
            Step::Wait(seconds) => {
                self.scene.wait(u64::from(seconds));
                // whose silence is judged anew
                let timed = |work: &Work| matches!(work, Work::Node(_) | Work::Policy(_));
                let work = self.scene.all_work().into_iter().filter(timed);
                self.scene.work.extend(work);
            }
            Step::Deliver(kind, n) => {
                let kinds: Vec<_> = self.scene.api.events.keys().copied().collect();
                if !kinds.is_empty() {
                    let kind = kinds[kind % kinds.len()];
                    for _ in 0..n {
                        let next = self.scene.api.events.get_mut(&kind).and_then(std::collections::VecDeque::pop_front);
                        if let Some(event) = next {
                            self.see(event);
                        }
                    }
                }
            }
            Step::Work(which) => {
                for n in which {
                    let len = self.scene.work.len();
                    if let Some(work) = self.scene.work.iter().nth(n % len.max(1)).cloned() {
                        self.scene.work.remove(&work);
                        self.perform(&work)?;
                    }
                }
            }
            Step::CollectGarbage => _ = self.scene.api.collect_garbage(),
            Step::Restart => {
                self.scene.restart();
            }
            Step::Settle => self.settle()?,
        }
        self.nobody_goes_without_policy()
    }

    fn see(&mut self, event: Event) {
        let (Event::Put(object) | Event::Delete(object)) = &event else { unreachable!("single") };
        let lost = match self.fault {
            Fault::DeafToEntities => object.kind() == ENTITY,
            Fault::DeafToInfos => object.kind() == INFO,
            _ => false,
        };
        let work = self.scene.work.clone();
        self.scene.see(event);
        if lost {
            self.scene.work = work;
        }
    }

    fn perform(&mut self, work: &Work) -> Result<(), TestCaseError> {
        let mut changes = self.scene.plan(work);
        match self.fault {
            Fault::DeletesFirst => changes.reverse(),
            Fault::DeletesLost => changes.retain(|change| !matches!(change, Change::Delete(..))),
            _ => {}
        }
        for change in changes {
            let before = self.owned();
            let change = if self.fault == Fault::Blind { self.scene.api.as_if_seen(change) } else { change };
            if let Err(Refused) = self.scene.execute(&change) {
                self.scene.work.insert(work.clone());
                if work.is_in_order() {
                    return Ok(());
                }
                continue;
            }
            let after = self.owned();
            for (node, _) in before.iter().filter(|(_, n)| **n > 0) {
                // one that lost every name that it wanted to others is not in it
                prop_assert!(after.get(node) != Some(&0), "{}: {} is left without an entity", change, node);
            }
        }
        Ok(())
    }

    /// How many entities each live node has that should have some, as far as the operator has seen.
    fn owned(&self) -> BTreeMap<Key, usize> {
        let world = self.scene.live.world();
        let stored = |node: &Key| {
            let entities = world.external_entities.iter().filter(|(id, _)| id.namespace == node.namespace);
            let owners = entities.flat_map(|(_, stored)| stored.meta().owner_references.iter().flatten());
            owners.filter(|owner| owner.name == *node.name).count()
        };
        self.holders().map(|node| (node.clone(), stored(node))).collect()
    }

    /// The live nodes that hold the name of at least one entity.
    fn holders(&self) -> impl Iterator<Item = &Key> {
        let (world, claims) = (self.scene.live.world(), self.scene.live.claims());
        world.external_nodes.keys().filter(move |key| {
            let wanted = live(world, key).map(|node| claimed(key, node)).unwrap_or_default();
            wanted.iter().any(|id| holder(world, claims, id) == Holder::Node((*key).clone()))
        })
    }

    fn nobody_goes_without_policy(&self) -> Result<(), TestCaseError> {
        let spans = &self.scene.live.resolved().spans;
        for node in self.holders() {
            let Some(span) = spans.get(&Key::new(node.namespace.clone(), "p")) else { continue };
            prop_assert!(span.keys().any(|name| name.key() == node), "{} is without policy", node);
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<(), TestCaseError> {
        for round in 0.. {
            prop_assert!(round < 50, "never content: {:?}", self.scene.work);
            let events = std::mem::take(&mut self.scene.api.events);
            events.into_values().flatten().for_each(|event| self.see(event));
            let work = std::mem::take(&mut self.scene.work);
            if work.is_empty() && !self.scene.api.collect_garbage() {
                break;
            }
            for work in work {
                self.perform(&work)?;
            }
        }
        prop_assert_eq!(self.scene.unfinished(), [""; 0]);
        self.entities_are_those_that_are_due()?;
        self.infos_are_those_that_are_due()
    }

    fn live_nodes(&self) -> Vec<(&Key, &Value)> {
        let going = |object: &Value| !object["metadata"]["deletionTimestamp"].is_null();
        let namespace = |key: &Key| self.scene.api.get(WorldKind::Namespace, &key.namespace);
        let nodes = self.scene.api.all(NODE);
        nodes.filter(|(key, node)| !going(node) && !namespace(key).is_some_and(going)).collect()
    }

    fn entities_are_those_that_are_due(&self) -> Result<(), TestCaseError> {
        let mut due: BTreeMap<Key, Vec<(String, &Key, Value, &Value)>> = BTreeMap::new();
        for (key, node) in self.live_nodes() {
            for (name, endpoints) in due_for(key, node) {
                let age = node["metadata"]["creationTimestamp"].as_str().unwrap().to_owned();
                due.entry(Key::new(key.namespace.clone(), name)).or_default().push((age, key, endpoints, node));
            }
        }
        let stored: BTreeMap<_, _> = self.scene.api.all(ENTITY).collect();
        for (id, mut claimants) in due.clone() {
            claimants.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
            let (_, key, endpoints, node) = &claimants[0];
            let Some(entity) = stored.get(&id) else { return Err(TestCaseError::fail(format!("{id} is missing"))) };
            let Some(owner) = owner_of(entity) else { continue };
            if !entity["metadata"]["deletionTimestamp"].is_null() {
                continue;
            }
            prop_assert_eq!((&owner["name"], &owner["uid"]), (&json!(&*key.name), &node["metadata"]["uid"]));
            prop_assert_eq!(&entity["metadata"]["labels"], &node["metadata"]["labels"]);
            prop_assert_eq!(&entity["spec"], &json!({"endpoints": endpoints, "externalNode": &*key.name}));
        }
        let others = stored.iter().filter(|(id, entity)| !due.contains_key(*id) && owner_of(entity).is_some());
        for (id, entity) in others.filter(|(_, entity)| entity["metadata"]["deletionTimestamp"].is_null()) {
            let name = owner_of(entity).unwrap()["name"].as_str().unwrap();
            let node = self.scene.api.get(NODE, &format!("{}/{name}", id.namespace));
            let going = node.is_some_and(|node| {
                let meta = &node["metadata"];
                meta["uid"] == owner_of(entity).unwrap()["uid"] && !meta["deletionTimestamp"].is_null()
            });
            // an old one stays for as long as a finalizer holds the name of the one that should come first
            let held_up = due.iter().any(|(wanted, claimants)| {
                let holder = claimants.iter().min_by_key(|(age, key, ..)| (age, *key)).map(|(_, key, ..)| key);
                let there = stored.get(wanted).is_some_and(|e| !e["metadata"]["deletionTimestamp"].is_null());
                there && holder.is_some_and(|key| *key.name == *name && key.namespace == id.namespace)
            });
            prop_assert!(going || held_up, "{} is nobody's", id);
        }
        Ok(())
    }

    fn infos_are_those_that_are_due(&mut self) -> Result<(), TestCaseError> {
        let live: BTreeMap<_, _> = self.live_nodes().into_iter().map(|(key, node)| (key.to_string(), node)).collect();
        let mut named = BTreeMap::new();
        for (name, info) in self.scene.api.all(INFO) {
            let Some((node, uid)) = about(info) else { continue };
            if !info["metadata"]["deletionTimestamp"].is_null() {
                continue;
            }
            prop_assert!(live.get(&node).is_some_and(|n| n["metadata"]["uid"] == uid), "{} is about nobody", name);
            prop_assert!(
                candidates(&node.parse().unwrap()).iter().any(|c| **c == *name.name),
                "{} is no name of {}",
                name,
                node
            );
            prop_assert_eq!(named.insert(uid, name.to_string()), None, "two about {}", node);
        }
        for (node, object) in &live {
            let uid = object["metadata"]["uid"].as_str().unwrap();
            let key: Key = node.parse().unwrap();
            let namesake =
                |name: &str| *name == *key.name && live.keys().any(|n| n != node && n.ends_with(&format!("/{name}")));
            let blocked = candidates(&key).iter().all(|name| {
                let by_other = |info: &Value| about(info).is_none_or(|(other, _)| other != *node);
                let of_kube_node = self.scene.api.get(WorldKind::Node, name).is_some();
                of_kube_node || namesake(name) || self.scene.api.get(INFO, name).is_some_and(by_other)
            });
            // one that is going keeps its name till it is gone
            let awaited = candidates(&key).iter().any(|name| {
                let info = self.scene.api.get(INFO, name);
                info.is_some_and(|i| {
                    !i["metadata"]["deletionTimestamp"].is_null() && about(i).is_some_and(|a| a.0 == *node)
                })
            });
            prop_assert!(named.contains_key(uid) || blocked || awaited, "{} has no AgentInfo", node);
        }
        for (uid, name) in &named {
            prop_assert!(self.given.get(uid).is_none_or(|given| given == name), "{} was renamed to {}", uid, name);
        }
        self.given = named;
        Ok(())
    }
}

/// Names and endpoints of the entities that a node is due, read from its JSON.
fn due_for(key: &Key, node: &Value) -> BTreeMap<String, Value> {
    let reported = node["status"]["interfaces"].as_array().cloned().unwrap_or_default();
    let interfaces = node["spec"]["interfaces"].as_array().cloned().unwrap_or_default();
    let mut due = BTreeMap::new();
    for interface in interfaces {
        let suffix = match interface["name"].as_str() {
            Some("eth0") => "-3e616",
            Some("eth1") => "-2cbd4",
            _ => "",
        };
        let mut ips = interface["ips"].as_array().cloned().unwrap_or_default();
        if !interface["allowedCIDRs"].is_null() {
            ips.extend(reported.iter().flat_map(|i| i["ips"].as_array().cloned().unwrap_or_default()));
        }
        let endpoint = |ip: &Value| match interface["name"].as_str() {
            Some(name) => json!({"ip": ip, "name": name}),
            None => json!({"ip": ip}),
        };
        if !ips.is_empty() {
            due.insert(format!("{}{suffix}", key.name), ips.iter().map(endpoint).collect());
        }
    }
    due
}

/// The node that an AgentInfo is about, and its uid.
fn about(info: &Value) -> Option<(String, String)> {
    let text = |name: &str| info["metadata"]["annotations"][name].as_str().map(ToOwned::to_owned);
    Some((text(ABOUT)?, text(ABOUT_UID)?))
}

fn hold(object: &mut Value, held: bool) {
    if held {
        object["metadata"]["finalizers"] = json!(["example.com/held"]);
    } else {
        object["metadata"].as_object_mut().unwrap().remove("finalizers");
    }
}

fn edit_entity(entity: &mut Value, edit: Edit) {
    // what is foreign is not edited to look like ours
    let ours = owner_of(entity).is_some();
    match edit {
        Edit::Spec => entity["spec"] = json!({"endpoints": [{"ip": "192.0.2.9"}]}),
        Edit::Labels => entity["metadata"]["labels"] = json!({"x": "y"}),
        Edit::Owner if ours => entity["metadata"]["ownerReferences"][0]["uid"] = json!("nobody"),
        Edit::NoOwner if ours => _ = entity["metadata"].as_object_mut().unwrap().remove("ownerReferences"),
        Edit::Unreadable if ours => entity["spec"] = json!({"endpoints": "none"}),
        Edit::Owner | Edit::NoOwner | Edit::Unreadable => {}
        Edit::Finalizer => hold(entity, true),
        Edit::NoFinalizer => hold(entity, false),
    }
}

fn edit_info(info: &mut Value, edit: Edit) {
    let ours = about(info).is_some();
    match edit {
        Edit::Spec => info["version"] = json!("v0"),
        Edit::Labels => info["metadata"]["labels"] = json!({"x": "y"}),
        Edit::Owner if ours => info["metadata"]["annotations"][ABOUT_UID] = json!("nobody"),
        Edit::NoOwner if ours => _ = info["metadata"].as_object_mut().unwrap().remove("annotations"),
        Edit::Unreadable if ours => info["version"] = json!(7),
        Edit::Owner | Edit::NoOwner | Edit::Unreadable => {}
        Edit::Finalizer => hold(info, true),
        Edit::NoFinalizer => hold(info, false),
    }
}

fn it_ends_with_what_is_due(steps: Vec<Step>, fault: Fault) -> Result<(), TestCaseError> {
    let mut play = Play::new(fault);
    for step in steps {
        play.step(step)?;
    }
    play.settle()?;
    let reports = std::mem::replace(&mut play.scene.reports, crate::reports::Reports::new(crate::testing::BEAT));
    play.scene.restart();
    play.scene.reports = reports;
    prop_assert_eq!(play.scene.unfinished(), [""; 0], "after a restart");
    Ok(())
}

fn run(fault: Fault) -> Result<(), String> {
    let cases = std::env::var("OUTRIDER_LAW_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(300);
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: if fault == Fault::None { 2000 } else { 0 },
        ..Config::default()
    };
    let steps = prop::collection::vec(step(), 0..60);
    TestRunner::new(config).run(&steps, |steps| it_ends_with_what_is_due(steps, fault)).map_err(|e| e.to_string())
}

#[test]
fn repeating_plan_and_apply_ends_with_exactly_what_is_due() {
    if let Err(broken) = run(Fault::None) {
        panic!("{broken}");
    }
}

#[test]
fn the_law_has_teeth() {
    let faults = [Fault::DeletesFirst, Fault::DeletesLost, Fault::Blind, Fault::DeafToEntities, Fault::DeafToInfos];
    for fault in faults {
        assert!(run(fault).is_err(), "{fault:?} went unnoticed");
    }
}
