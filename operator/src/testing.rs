//! For tests: worlds that read aloud, an API server small enough to trust, and the two played together.
//!
//! ```text
//! world().node("vms/vm1").interface("eth0", ["10.0.0.5"]) --scene()--> Scene { Api <--plan, apply--> Live }
//! ```

#![allow(clippy::needless_pass_by_value, reason = "JSON reads best where it is used")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use crds::names::Key;
use crds::wire::{Attach, AttachStage, Facts, Full, Heartbeat, InterfaceReport, PolicyOutcome, PolicyReport, Report};
use crds::world::{Event, Object, World, WorldKind};
use kube::core::DynamicObject;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

use crate::agent_info::{self, naming};
use crate::change::Change;
use crate::context::Context;
use crate::hub::Hub;
use crate::metrics::Metrics;
use crate::policy::{Live, Touched};
use crate::reports::{Now, Reports};
use crate::work::Work;
use crate::{binding, external_node, policy, tier};

/// How often agents report.
pub(crate) const BEAT: Duration = Duration::from_secs(10);

/// When objects are created that say nothing else, in seconds; `created` counts from here.
const DAY_ONE: i64 = 1_767_225_600;

/// When scenes begin. Not on a whole second: what is written must not depend on that.
const BEGIN: &str = "2026-01-02T03:04:05.678901Z";

pub(crate) fn key(text: &str) -> Key {
    text.parse().unwrap_or_else(|_| Key::cluster(text))
}

/// The uid that an object has unless it says something else.
pub(crate) fn uid_of(key: &str) -> String {
    format!("uid of {key}")
}

fn time(seconds: i64) -> String {
    jiff::Timestamp::from_second(DAY_ONE + seconds).unwrap().to_string()
}

// ---- objects --------------------------------------------------------------------------------------------------------

/// Objects as users apply them. What isn't the begin of an object changes the last one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Objects(Vec<(WorldKind, Value)>);

/// Nothing yet.
pub(crate) fn world() -> Objects {
    Objects::default()
}

impl Objects {
    pub(crate) fn object(mut self, kind: WorldKind, at: &str, rest: Value) -> Self {
        let (group, version, _, name) = kind.resource();
        let Key { namespace, name: own } = key(at);
        let mut object = rest;
        object["apiVersion"] = json!(if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") });
        object["kind"] = json!(name);
        object["metadata"] = json!({"name": &*own, "uid": uid_of(at), "generation": 1, "creationTimestamp": time(0)});
        if !namespace.is_empty() {
            object["metadata"]["namespace"] = json!(&*namespace);
        }
        self.0.push((kind, object));
        self
    }

    pub(crate) fn node(self, at: &str) -> Self {
        self.object(WorldKind::ExternalNode, at, json!({"spec": {"interfaces": []}}))
    }

    pub(crate) fn entity(self, at: &str) -> Self {
        self.object(WorldKind::ExternalEntity, at, json!({"spec": {}}))
    }

    pub(crate) fn policy(self, at: &str, spec: Value) -> Self {
        self.object(WorldKind::NetworkPolicy, at, json!({"spec": spec}))
    }

    pub(crate) fn tier(self, name: &str, priority: i32) -> Self {
        self.object(WorldKind::Tier, name, json!({"spec": {"priority": priority}}))
    }

    pub(crate) fn binding(self, at: &str, spec: Value) -> Self {
        self.object(WorldKind::Binding, at, json!({"spec": spec}))
    }

    /// A binding of the ServiceAccount `agent` of the same namespace to all nodes.
    pub(crate) fn bound(self, namespace: &str) -> Self {
        let subject = json!({"kind": "ServiceAccount", "name": "agent", "namespace": namespace});
        self.binding(&format!("{namespace}/agent"), json!({"subjects": [subject], "externalNodes": ["*"]}))
    }

    pub(crate) fn info(self, name: &str) -> Self {
        self.object(WorldKind::AgentInfo, name, json!({}))
    }

    pub(crate) fn kube_node(self, name: &str) -> Self {
        self.object(WorldKind::Node, name, json!({}))
    }

    pub(crate) fn namespace(self, name: &str) -> Self {
        self.object(WorldKind::Namespace, name, json!({}))
    }

    fn last(&mut self) -> &mut Value {
        &mut self.0.last_mut().unwrap().1
    }

    pub(crate) fn with(mut self, pointer: &[&str], value: Value) -> Self {
        let mut at = self.last();
        for field in pointer {
            at = &mut at[*field];
        }
        *at = value;
        self
    }

    fn push(mut self, pointer: &[&str], value: Value) -> Self {
        let mut at = self.last();
        for field in pointer {
            at = &mut at[*field];
        }
        match at.as_array_mut() {
            Some(list) => list.push(value),
            None => *at = json!([value]),
        }
        self
    }

    pub(crate) fn label(self, name: &str, value: &str) -> Self {
        self.with(&["metadata", "labels", name], json!(value))
    }

    pub(crate) fn annotation(self, name: &str, value: &str) -> Self {
        self.with(&["metadata", "annotations", name], json!(value))
    }

    pub(crate) fn finalizer(self, name: &str) -> Self {
        self.push(&["metadata", "finalizers"], json!(name))
    }

    pub(crate) fn uid(self, uid: &str) -> Self {
        self.with(&["metadata", "uid"], json!(uid))
    }

    pub(crate) fn created(self, seconds: i64) -> Self {
        self.with(&["metadata", "creationTimestamp"], json!(time(seconds)))
    }

    pub(crate) fn generation(self, generation: i64) -> Self {
        self.with(&["metadata", "generation"], json!(generation))
    }

    /// Being deleted, and held by something.
    pub(crate) fn going(self) -> Self {
        self.with(&["metadata", "deletionTimestamp"], json!(time(1))).finalizer("example.com/held")
    }

    pub(crate) fn status(self, status: Value) -> Self {
        self.with(&["status"], status)
    }

    pub(crate) fn interface<const N: usize>(self, name: &str, ips: [&str; N]) -> Self {
        let ips = (N > 0).then(|| json!(ips.to_vec()));
        let mut interface = json!({"name": name});
        if let Some(ips) = ips {
            interface["ips"] = ips;
        }
        self.push(&["spec", "interfaces"], interface)
    }

    pub(crate) fn unnamed<const N: usize>(self, ips: [&str; N]) -> Self {
        self.push(&["spec", "interfaces"], json!({"ips": ips.to_vec()}))
    }

    fn last_interface(mut self, field: &str, value: Value) -> Self {
        let interfaces = self.last()["spec"]["interfaces"].as_array_mut().unwrap();
        interfaces.last_mut().unwrap()[field] = value;
        self
    }

    pub(crate) fn allowed<const N: usize>(self, cidrs: [&str; N]) -> Self {
        self.last_interface("allowedCIDRs", json!(cidrs.to_vec()))
    }

    pub(crate) fn mac(self, mac: &str) -> Self {
        self.last_interface("mac", json!(mac))
    }

    pub(crate) fn port(self, name: &str, protocol: &str, port: u16) -> Self {
        self.last_interface("ports", json!([{"name": name, "protocol": protocol, "port": port}]))
    }

    /// What the status of the node says about one interface of the host.
    pub(crate) fn found<const N: usize>(self, name: &str, mac: &str, ips: [&str; N]) -> Self {
        self.push(&["status", "interfaces"], json!({"name": name, "mac": mac, "ips": ips.to_vec()}))
    }

    pub(crate) fn endpoint(self, ip: &str, interface: &str) -> Self {
        self.push(&["spec", "endpoints"], json!({"ip": ip, "name": interface}))
    }

    pub(crate) fn owned_by(self, node: &str) -> Self {
        let uid = uid_of(node);
        self.owned_by_uid(&key(node).name, &uid)
    }

    pub(crate) fn owned_by_uid(self, name: &str, uid: &str) -> Self {
        let owner = json!({"apiVersion": "crd.antrea.io/v1alpha1", "kind": "ExternalNode", "name": name, "uid": uid});
        self.with(&["metadata", "ownerReferences"], json!([owner]))
    }

    pub(crate) fn about(self, node: &str) -> Self {
        let uid = uid_of(node);
        self.about_uid(node, &uid)
    }

    pub(crate) fn about_uid(self, node: &str, uid: &str) -> Self {
        self.annotation(naming::NODE, node).annotation(naming::NODE_UID, uid)
    }

    /// The objects in an API server, and an operator that has seen them.
    pub(crate) fn scene(self) -> Scene {
        let mut api = Api::default();
        self.0.into_iter().for_each(|(kind, object)| _ = api.store(kind, object));
        Scene::of(api)
    }

    /// The state of an operator that has seen the objects, and whose agents report every `beat`.
    pub(crate) fn hub(self, beat: Duration) -> Hub {
        let hub = Hub::new(World::waiting_for(&[]), beat, Metrics::new(&mut Registry::default()));
        let mut api = Api::default();
        hub.apply(self.0.into_iter().map(|(kind, object)| api.store(kind, object)));
        hub
    }

    /// The last object alone, as JSON.
    /// Each as a watch says that it is there.
    pub(crate) fn put(self) -> Vec<Event> {
        self.decoded().map(Event::Put).collect()
    }

    /// Each as a watch says that it is deleted.
    pub(crate) fn deleted(self) -> Vec<Event> {
        self.decoded().map(Event::Delete).collect()
    }

    fn decoded(self) -> impl Iterator<Item = Object> {
        self.0.into_iter().map(|(kind, value)| Object::decode(kind, *dynamic(value)))
    }

    pub(crate) fn json(mut self) -> Value {
        self.0.pop().unwrap().1
    }
}

/// `value` as the API server takes it.
pub(crate) fn dynamic(value: Value) -> Box<DynamicObject> {
    Box::new(serde_json::from_value(value).unwrap())
}

/// What a list of changes does, in words.
pub(crate) fn said(changes: &[Change]) -> Vec<String> {
    changes.iter().map(ToString::to_string).collect()
}

// ---- the API server -------------------------------------------------------------------------------------------------

/// Keeps objects as the API server does: assigns uid and version, refuses what was not as seen, minds finalizers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Api {
    objects: BTreeMap<(WorldKind, Key), Value>,
    version: u64,
    /// What watches have still to say, each kind in order.
    pub(crate) events: BTreeMap<WorldKind, VecDeque<Event>>,
}

/// The object is not as the writer has seen it.
#[derive(Debug, PartialEq)]
pub(crate) struct Refused;

const WITH_STATUS: [WorldKind; 3] = [WorldKind::ExternalNode, WorldKind::NetworkPolicy, WorldKind::Binding];

impl Api {
    pub(crate) fn get(&self, kind: WorldKind, at: &str) -> Option<&Value> {
        self.objects.get(&(kind, key(at)))
    }

    pub(crate) fn all(&self, kind: WorldKind) -> impl Iterator<Item = (&Key, &Value)> {
        self.objects.iter().filter(move |((k, _), _)| *k == kind).map(|((_, key), object)| (key, object))
    }

    pub(crate) fn names(&self, kind: WorldKind) -> Vec<String> {
        self.all(kind).map(|(key, _)| key.to_string()).collect()
    }

    /// `object` stands now, whatever stood there.
    fn store(&mut self, kind: WorldKind, mut object: Value) -> Event {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let event = Event::Put(decode(kind, &object));
        self.objects.insert((kind, key_of(&object)), object);
        self.events.entry(kind).or_default().push_back(event.clone());
        event
    }

    fn remove(&mut self, kind: WorldKind, key: &Key) -> Option<Event> {
        let mut object = self.objects.remove(&(kind, key.clone()))?;
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let event = Event::Delete(decode(kind, &object));
        self.events.entry(kind).or_default().push_back(event.clone());
        Some(event)
    }

    /// What a user applies: another uid is another object, a status is nothing that users write.
    pub(crate) fn put(&mut self, objects: Objects) {
        for (kind, mut object) in objects.0 {
            let at = key_of(&object);
            let before = self.objects.get(&(kind, at.clone())).cloned();
            let same = before.filter(|before| before["metadata"]["uid"] == object["metadata"]["uid"]);
            match same {
                Some(before) => carry_over(kind, &before, &mut object),
                None => _ = self.remove(kind, &at),
            }
            self.store(kind, object);
        }
    }

    /// What a user edits.
    pub(crate) fn edit(&mut self, kind: WorldKind, at: &Key, edit: impl FnOnce(&mut Value)) {
        if let Some(mut object) = self.objects.get(&(kind, at.clone())).cloned() {
            edit(&mut object);
            self.store_or_end(kind, object);
        }
    }

    /// An object that is going and is held by nothing is gone.
    fn store_or_end(&mut self, kind: WorldKind, object: Value) -> Event {
        let event = self.store(kind, object);
        self.end(kind, &event_key(&event)).unwrap_or(event)
    }

    fn end(&mut self, kind: WorldKind, at: &Key) -> Option<Event> {
        let meta = &self.objects.get(&(kind, at.clone()))?["metadata"];
        let held = meta["finalizers"].as_array().is_some_and(|f| !f.is_empty());
        if meta["deletionTimestamp"].is_null() || held { None } else { self.remove(kind, at) }
    }

    /// Begins to delete; `None` when a finalizer holds the object.
    pub(crate) fn delete(&mut self, kind: WorldKind, at: &Key) -> Option<Event> {
        let mut object = self.objects.get(&(kind, at.clone()))?.clone();
        let held = object["metadata"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
        if !held {
            return self.remove(kind, at);
        }
        if object["metadata"]["deletionTimestamp"].is_null() {
            object["metadata"]["deletionTimestamp"] = json!(time(0));
            self.store(kind, object);
        }
        None
    }

    /// `kubectl delete --cascade=orphan` of an ExternalNode.
    pub(crate) fn orphan(&mut self, at: &Key) {
        let Some(node) = self.objects.get(&(WorldKind::ExternalNode, at.clone())) else { return };
        let uid = node["metadata"]["uid"].clone();
        let owned = self.all(WorldKind::ExternalEntity).filter(|(_, e)| owner(e).is_some_and(|o| o["uid"] == uid));
        let owned: Vec<_> = owned.map(|(key, _)| key.clone()).collect();
        for entity in owned {
            self.edit(WorldKind::ExternalEntity, &entity, |e| e["metadata"]["ownerReferences"] = json!([]));
        }
        self.delete(WorldKind::ExternalNode, at);
    }

    /// Everything in a namespace, and then the namespace.
    pub(crate) fn end_namespace(&mut self, name: &str) {
        self.edit(WorldKind::Namespace, &Key::cluster(name), |n| n["metadata"]["deletionTimestamp"] = json!(time(0)));
        let inside: Vec<_> = self.objects.keys().filter(|(_, key)| &*key.namespace == name).cloned().collect();
        for (kind, key) in inside {
            self.remove(kind, &key);
        }
    }

    /// Deletes what names owners of which none is there. Says whether there was anything.
    pub(crate) fn collect_garbage(&mut self) -> bool {
        let lost = |(key, entity): &(&Key, &Value)| {
            let owner = owner(entity)?;
            let node =
                self.objects.get(&(WorldKind::ExternalNode, Key::new(key.namespace.clone(), owner["name"].as_str()?)));
            let there = node.is_some_and(|node| node["metadata"]["uid"] == owner["uid"]);
            let going = !entity["metadata"]["deletionTimestamp"].is_null();
            (!there && !going).then(|| (*key).clone())
        };
        let lost: Vec<_> = self.all(WorldKind::ExternalEntity).filter_map(|pair| lost(&pair)).collect();
        for key in &lost {
            self.delete(WorldKind::ExternalEntity, key);
        }
        !lost.is_empty()
    }

    /// `change` to whatever stands there now.
    pub(crate) fn as_if_seen(&self, change: Change) -> Change {
        let Some(stored) = self.objects.get(&(change.kind(), change.key())) else { return change };
        let stored = dynamic(stored.clone()).metadata;
        match change {
            Change::Create(kind, mut object) | Change::Replace(kind, mut object) => {
                object.metadata = stored;
                Change::Replace(kind, object)
            }
            Change::ReplaceStatus(kind, mut object) => {
                object.metadata = stored;
                Change::ReplaceStatus(kind, object)
            }
            Change::Delete(kind, _) => Change::Delete(kind, Box::new(stored)),
        }
    }

    /// Does what the operator asks for. A write to what isn't the operator's, or that changes nothing, is a fault.
    pub(crate) fn execute(&mut self, change: &Change) -> Result<Option<Event>, Refused> {
        let (kind, at) = (change.kind(), change.key());
        let stored = self.objects.get(&(kind, at.clone())).cloned();
        if let Change::Create(_, object) = change {
            if stored.is_some() {
                return Err(Refused);
            }
            let mut object = through_json(object);
            let meta = &mut object["metadata"];
            meta["uid"] = json!(format!("made {}", self.version));
            meta["generation"] = json!(1);
            meta["creationTimestamp"] = json!(time(i64::try_from(self.version).unwrap()));
            return Ok(Some(self.store(kind, object)));
        }
        let Some(stored) = stored else { return Err(Refused) };
        let seen = match change {
            Change::Create(..) => unreachable!("done above"),
            Change::Delete(_, meta) => serde_json::to_value(meta).unwrap(),
            Change::Replace(_, object) | Change::ReplaceStatus(_, object) => through_json(object)["metadata"].clone(),
        };
        let same = |field: &str| !seen[field].is_null() && seen[field] == stored["metadata"][field];
        if !same("uid") || !same("resourceVersion") {
            return Err(Refused);
        }
        assert!(is_ours(kind, &stored), "{change}: it is not the operator's");
        let mut object = match change {
            Change::Create(..) => unreachable!("done above"),
            Change::Delete(..) => return Ok(self.delete(kind, &at)),
            Change::ReplaceStatus(_, object) => {
                let mut after = stored.clone();
                after["status"] = through_json(object)["status"].clone();
                after
            }
            Change::Replace(_, object) => {
                let mut after = through_json(object);
                if WITH_STATUS.contains(&kind) {
                    keep(&mut after, &stored, "status");
                }
                after
            }
        };
        for field in ["creationTimestamp", "deletionTimestamp", "generation"] {
            keep(&mut object["metadata"], &stored["metadata"], field);
        }
        assert_ne!(object, stored, "{change}: it changes nothing");
        Ok(Some(self.store_or_end(kind, object)))
    }
}

/// What of an object no user writes.
fn carry_over(kind: WorldKind, before: &Value, object: &mut Value) {
    let generation = before["metadata"]["generation"].as_i64().unwrap_or(1);
    let changed = before["spec"] != object["spec"];
    object["metadata"]["generation"] = json!(generation + i64::from(changed));
    for field in ["creationTimestamp", "deletionTimestamp"] {
        keep(&mut object["metadata"], &before["metadata"], field);
    }
    if WITH_STATUS.contains(&kind) {
        keep(object, before, "status");
    }
}

fn keep(object: &mut Value, before: &Value, field: &str) {
    match before.get(field) {
        Some(value) => object[field] = value.clone(),
        None => _ = object.as_object_mut().unwrap().remove(field),
    }
}

fn is_ours(kind: WorldKind, stored: &Value) -> bool {
    match kind {
        WorldKind::ExternalEntity => owner(stored).is_some(),
        WorldKind::AgentInfo => !stored["metadata"]["annotations"][naming::NODE].is_null(),
        _ => true,
    }
}

/// The ExternalNode that an entity names as its owner.
pub(crate) fn owner(entity: &Value) -> Option<&Value> {
    let owners = entity["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    owners.into_iter().find(|o| o["kind"] == "ExternalNode")
}

fn through_json(object: &DynamicObject) -> Value {
    serde_json::from_str(&serde_json::to_string(object).unwrap()).unwrap()
}

fn decode(kind: WorldKind, object: &Value) -> Object {
    Object::decode(kind, *dynamic(object.clone()))
}

fn key_of(object: &Value) -> Key {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    Key::new(text("namespace"), text("name"))
}

fn event_key(event: &Event) -> Key {
    match event {
        Event::Put(object) | Event::Delete(object) => Key::of(object.meta()),
        Event::Listed(..) => unreachable!("the server says single objects"),
    }
}

// ---- reports --------------------------------------------------------------------------------------------------------

/// What an agent says.
#[derive(Clone, Debug)]
pub(crate) struct Told(Full);

/// The agent of `node` says nothing but that it is there.
pub(crate) fn report(node: &str) -> Told {
    let head = Heartbeat {
        node: node.parse().unwrap(),
        uid: uid_of(node).as_str().into(),
        revision: None,
        digest: "digest".to_owned(),
    };
    let facts = Facts { version: "v1".to_owned(), ..Facts::default() };
    Told(Full { head, policies: vec![], interfaces: vec![], attach: vec![], facts })
}

impl Told {
    /// As it is sent.
    pub(crate) fn report(self) -> Report {
        Report::Full(Box::new(self.0))
    }

    pub(crate) fn uid(mut self, uid: &str) -> Self {
        self.0.head.uid = uid.into();
        self
    }

    /// An interface of the host.
    pub(crate) fn sees<const N: usize>(mut self, name: &str, ips: [&str; N]) -> Self {
        self.0.interfaces.push(InterfaceReport {
            name: name.to_owned(),
            mac: "52:54:00:00:00:01".to_owned(),
            mtu: 1500,
            ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
            state: "Attached".to_owned(),
        });
        self
    }

    pub(crate) fn attached(self, interface: &str) -> Self {
        self.stage(interface, AttachStage::Attached, "")
    }

    pub(crate) fn stage(mut self, interface: &str, stage: AttachStage, message: &str) -> Self {
        self.0.attach.push(Attach { interface: interface.to_owned(), stage, message: message.to_owned() });
        self
    }

    pub(crate) fn outcome(mut self, policy: &str, generation: i64, outcome: PolicyOutcome) -> Self {
        self.0.policies.push(PolicyReport { id: uid_of(policy).as_str().into(), generation, outcome });
        self
    }

    pub(crate) fn realized(self, policy: &str, generation: i64) -> Self {
        self.outcome(policy, generation, PolicyOutcome::Realized(true))
    }

    pub(crate) fn failed(self, policy: &str, generation: i64, why: &str) -> Self {
        self.outcome(policy, generation, PolicyOutcome::Error(why.to_owned()))
    }

    pub(crate) fn facts(mut self, change: impl FnOnce(&mut Facts)) -> Self {
        change(&mut self.0.facts);
        self
    }
}

// ---- both together --------------------------------------------------------------------------------------------------

/// An API server and an operator, with a clock that stands still.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) api: Api,
    pub(crate) live: Live,
    pub(crate) reports: Reports,
    pub(crate) settling: bool,
    pub(crate) work: BTreeSet<Work>,
    start: Now,
    waited: Duration,
}

impl Scene {
    fn of(api: Api) -> Self {
        let mut scene = Self {
            api,
            live: Live::new(World::waiting_for(&[])),
            reports: Reports::new(BEAT),
            settling: false,
            work: BTreeSet::new(),
            start: Now { steady: Instant::now(), wall: BEGIN.parse().unwrap() },
            waited: Duration::ZERO,
        };
        scene.restart();
        scene
    }

    /// Another replica leads: it lists everything and looks at everything, and has heard nobody.
    pub(crate) fn restart(&mut self) {
        let mut world = World::waiting_for(WorldKind::ALL);
        for kind in WorldKind::ALL {
            let objects = self.api.all(*kind).map(|(_, object)| decode(*kind, object)).collect();
            world.apply(Event::Listed(*kind, objects));
        }
        self.api.events.clear();
        self.live = Live::new(world);
        self.reports = Reports::new(BEAT);
        self.work = self.all_work();
    }

    /// What a leader begins with.
    pub(crate) fn all_work(&self) -> BTreeSet<Work> {
        let world = self.live.world();
        let entities = world.external_entities.keys().chain(self.live.claims().keys()).cloned().map(Work::Entity);
        let nodes = world.external_nodes.keys().cloned().map(Work::Node);
        let infos = world.agent_infos.keys().cloned().map(Work::AgentInfo);
        let policies = world.policies.keys().cloned().map(Work::Policy);
        let bindings = world.bindings.keys().cloned().map(Work::Binding);
        entities.chain(nodes).chain(infos).chain(policies).chain(bindings).chain([Work::Tiers]).collect()
    }

    pub(crate) fn ctx(&self) -> Context<'_> {
        Context { live: &self.live, reports: &self.reports, now: self.now(), settling: self.settling }
    }

    pub(crate) fn now(&self) -> Now {
        let wall = self.start.wall.checked_add(self.waited).unwrap();
        Now { steady: self.start.steady + self.waited, wall }
    }

    pub(crate) fn wait(&mut self, seconds: u64) {
        self.waited += Duration::from_secs(seconds);
    }

    pub(crate) fn hear(&mut self, told: Told) {
        let now = self.now();
        self.work.insert(Work::Node(told.0.head.node.key().clone()));
        self.reports.accept(told.report(), now);
        self.work.extend(self.live.world().policies.keys().cloned().map(Work::Policy));
    }

    /// A user applies objects, and the operator sees it.
    pub(crate) fn put(&mut self, objects: Objects) {
        self.api.put(objects);
        self.deliver_all();
    }

    /// A user deletes an object, and the operator sees it.
    pub(crate) fn delete(&mut self, kind: WorldKind, at: &str) {
        self.api.delete(kind, &key(at));
        self.deliver_all();
    }

    pub(crate) fn see(&mut self, event: Event) {
        let mut touched = Touched::default();
        self.live.apply(event, &mut touched);
        self.work.extend(touched.work);
        // an agent that is told something else reports what became of it
        self.work.extend(touched.nodes.iter().map(|node| Work::Node(node.key().clone())));
    }

    pub(crate) fn deliver_all(&mut self) {
        let events = std::mem::take(&mut self.api.events);
        events.into_values().flatten().for_each(|event| self.see(event));
    }

    /// What `work` would write.
    pub(crate) fn plan(&self, work: &Work) -> Vec<Change> {
        let ctx = self.ctx();
        match work {
            Work::Entity(key) => external_node::entity::plan(&self.live, key),
            Work::Node(key) => {
                let info = agent_info::plan::plan(&ctx, key);
                info.into_iter().chain(external_node::status::plan(&ctx, key)).collect()
            }
            Work::AgentInfo(key) => agent_info::plan::orphan(&ctx, key).into_iter().collect(),
            Work::Policy(key) => policy::status::plan(&ctx, key).into_iter().collect(),
            Work::Binding(key) => binding::plan(&ctx, key).into_iter().collect(),
            Work::Tiers => tier::plan(self.live.world()),
        }
    }

    /// What is to be written for an entity name.
    pub(crate) fn entity(&self, at: &str) -> Vec<Change> {
        self.plan(&Work::Entity(key(at)))
    }

    /// Writes one change; its answer is in the world at once, as the writer does it.
    pub(crate) fn execute(&mut self, change: &Change) -> Result<(), Refused> {
        if let Some(event) = self.api.execute(change)? {
            self.see(event);
        }
        Ok(())
    }

    /// Does all work until there is none, with all events seen and garbage collected. What was written.
    pub(crate) fn settle(&mut self) -> Vec<String> {
        let mut written = Vec::new();
        for _ in 0..100 {
            self.deliver_all();
            let work = std::mem::take(&mut self.work);
            if work.is_empty() && !self.api.collect_garbage() {
                return written;
            }
            for work in work {
                for change in self.plan(&work) {
                    if let Err(Refused) = self.execute(&change) {
                        self.work.insert(work.clone());
                        if work.is_in_order() {
                            break;
                        }
                        continue;
                    }
                    written.push(change.to_string());
                }
            }
        }
        panic!("never content; at last: {:?}", &written[written.len().saturating_sub(8)..]);
    }

    /// Everything that would be written if everything were looked at.
    pub(crate) fn unfinished(&self) -> Vec<String> {
        self.all_work().iter().flat_map(|work| said(&self.plan(work))).collect()
    }

    /// The condition `kind` of an object: status, reason, message.
    pub(crate) fn condition(&self, of: WorldKind, at: &str, kind: &str) -> Option<(String, String, String)> {
        let conditions = self.api.get(of, at)?["status"]["conditions"].as_array()?;
        let condition = conditions.iter().find(|c| c["type"] == kind)?;
        let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
        Some((text("status"), text("reason"), text("message")))
    }

    /// Status and reason of a condition, as `True/Found`.
    pub(crate) fn says(&self, of: WorldKind, at: &str, kind: &str) -> String {
        let condition = self.condition(of, at, kind);
        condition.map_or_else(|| "none".to_owned(), |(status, reason, _)| format!("{status}/{reason}"))
    }
}
