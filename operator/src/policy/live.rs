//! `resolve`, one event at a time: only what an event touches is computed again, everything else keeps its allocation.
//!
//! ```text
//! Event -> World -> entities that changed -> selectors whose answer changed -> groups -> policies that use them -> nodes
//! ```
//!
//! The law: after any sequence of events the result equals [`super::whole::resolve`] of the same world, and a node that
//! was not touched has the same view, pointers included.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crds::names::{EntityName, GroupKey, Key, NodeName};
use crds::wire::{Entry, Group, View};
use crds::world::{Event, Stored, Touch, World, WorldKind};

use super::compile::{Compiled, compile, tier_name};
use super::entity::{self, Claims, Entity};
use super::index::{LabelIndex, NodeIndex, SelectorIndex};
use super::resolved::{Resolved, ResolvedNode, Span, applied};
use super::selector::GroupSelector;
use super::whole::selects;
use crate::agent_info::naming;
use crate::external_node::addresses;
use crate::work::Work;

/// A world and what follows from it, kept in step.
#[derive(Debug)]
pub struct Live {
    world: World,
    resolved: Resolved,
    claims: Claims,
    /// The same by ExternalNode.
    claimed: HashMap<Key, BTreeSet<Key>>,
    entities: BTreeMap<Key, Entity>,
    labels: LabelIndex,
    anchors: SelectorIndex,
    selected: HashMap<Arc<GroupSelector>, Selected>,
    /// Selectors whose group changed by the event that is being taken in.
    moved: HashSet<Arc<GroupSelector>>,
    index: NodeIndex,
    /// The ExternalNode that each AgentInfo says it is about.
    info_of: HashMap<Arc<str>, Key>,
    loaded: bool,
}

/// Who uses a selector, and whom it places where.
#[derive(Debug)]
struct Selected {
    /// The key of its group.
    key: GroupKey,
    /// The members' nodes, each with its entities that are members.
    nodes: HashMap<NodeName, BTreeSet<EntityName>>,
    /// The policies with a rule that names the group.
    peers_of: BTreeSet<Key>,
    /// The policies that apply to the members.
    targets_of: BTreeSet<Key>,
}

/// Who has to look again after some events.
#[derive(Debug, Default)]
pub struct Touched {
    /// Nodes whose view may differ; the others' is the same.
    pub nodes: HashSet<NodeName>,
    /// Nodes for which others may act than before.
    pub judged: HashSet<NodeName>,
    /// Objects that may have to be written.
    pub work: BTreeSet<Work>,
    /// Whether that may be so of any node.
    pub bindings: bool,
}

impl Live {
    /// Nothing yet; resolves from the moment that `world` is ready.
    pub fn new(world: World) -> Self {
        let mut live = Self {
            world,
            resolved: Resolved::default(),
            claims: Claims::new(),
            claimed: HashMap::new(),
            entities: BTreeMap::new(),
            labels: LabelIndex::default(),
            anchors: SelectorIndex::default(),
            selected: HashMap::new(),
            moved: HashSet::new(),
            index: NodeIndex::default(),
            info_of: HashMap::new(),
            loaded: false,
        };
        live.load_when_ready(&mut Touched::default());
        live.moved.clear();
        live
    }

    /// The objects.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// What follows from them. Empty until the world is ready.
    pub fn resolved(&self) -> &Resolved {
        &self.resolved
    }

    /// The live ExternalNodes by bare name and by address.
    pub fn index(&self) -> &NodeIndex {
        &self.index
    }

    /// Which ExternalNodes want which entity names.
    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    /// What `node` is told.
    pub fn view(&self, node: &NodeName) -> View {
        self.resolved.view(node)
    }

    /// Takes in one event; adds to `touched` what has to be looked at again.
    pub fn apply(&mut self, event: Event, touched: &mut Touched) {
        let objects = self.world.apply(event);
        if self.loaded {
            for touch in &objects {
                self.touch(touch, touched);
            }
        }
        self.load_when_ready(touched);
        self.tell_of_moved(touched);
    }

    /// The nodes whose rules name a group that changed. Each policy is asked once, however many members moved.
    fn tell_of_moved(&mut self, touched: &mut Touched) {
        let moved = std::mem::take(&mut self.moved);
        let selected = moved.iter().filter_map(|selector| self.selected.get(selector));
        let policies: HashSet<&Key> = selected.flat_map(|selected| &selected.peers_of).collect();
        let spans = policies.into_iter().filter_map(|policy| self.resolved.spans.get(policy));
        for node in spans.flat_map(Span::keys) {
            if !touched.nodes.contains(node) {
                touched.nodes.insert(node.clone());
            }
        }
    }

    /// Everything once, when the last kind was listed: entities before policies, so that each group is filled once.
    fn load_when_ready(&mut self, touched: &mut Touched) {
        if self.loaded || !self.world.ready() {
            return;
        }
        self.loaded = true;
        let keys = |kind, keys: Vec<Key>| keys.into_iter().map(move |key| Touch { kind, key });
        let nodes = keys(WorldKind::ExternalNode, self.world.external_nodes.keys().cloned().collect());
        let entities = keys(WorldKind::ExternalEntity, self.world.external_entities.keys().cloned().collect());
        let policies = keys(WorldKind::NetworkPolicy, self.world.policies.keys().cloned().collect());
        let infos = keys(WorldKind::AgentInfo, self.world.agent_infos.keys().cloned().collect());
        let bindings = keys(WorldKind::Binding, self.world.bindings.keys().cloned().collect());
        for touch in nodes.chain(entities).chain(policies).chain(infos).chain(bindings) {
            self.touch(&touch, touched);
        }
        touched.work.insert(Work::Tiers);
    }

    fn touch(&mut self, Touch { kind, key }: &Touch, touched: &mut Touched) {
        match kind {
            WorldKind::ExternalNode => self.node(key, touched),
            WorldKind::ExternalEntity => self.entity(key, touched),
            WorldKind::NetworkPolicy => self.policy(key, touched),
            WorldKind::Namespace => self.namespace(&key.name, touched),
            WorldKind::Tier => self.tier(&key.name, touched),
            WorldKind::Binding => self.binding(key, touched),
            WorldKind::AgentInfo => self.agent_info(key, touched),
            WorldKind::Node => touched.work.extend(self.index.named(&key.name).map(Work::Node)),
            WorldKind::Definition | WorldKind::ValidatingWebhook | WorldKind::ControllerInfo => {}
        }
    }

    fn node(&mut self, key: &Key, touched: &mut Touched) {
        let name = NodeName::external(key.clone());
        let (body, wanted) = match entity::live(&self.world, key) {
            Some(node) => (Some(entity::node_body(key, node)), entity::claimed(key, node)),
            None => (None, BTreeSet::new()),
        };
        if let Some(body) = &body {
            self.put_node(&name, body, touched);
        }
        let live = entity::live(&self.world, key);
        let interfaces = live.iter().flat_map(|node| node.spec.interfaces.iter().map(|i| (i, node.status.as_ref())));
        let addresses = interfaces.flat_map(|(interface, status)| addresses::of(interface, status)).collect();
        touched.work.extend(self.index.put(key, body.is_some(), addresses).into_iter().map(Work::Node));
        touched.work.insert(Work::Node(key.clone()));
        // its labels say who may act for it
        touched.judged.insert(name.clone());
        touched.work.extend(self.bindings_of(&key.namespace));
        let before = self.claimed.remove(key).unwrap_or_default();
        for id in before.difference(&wanted) {
            if let Some(claimants) = self.claims.get_mut(id) {
                claimants.remove(key);
                if claimants.is_empty() {
                    self.claims.remove(id);
                }
            }
        }
        for id in &wanted {
            self.claims.entry(id.clone()).or_default().insert(key.clone());
        }
        let ids: Vec<_> = before.union(&wanted).cloned().collect();
        if !wanted.is_empty() {
            self.claimed.insert(key.clone(), wanted);
        }
        for id in ids {
            self.entity(&id, touched);
        }
        if body.is_none() && self.resolved.nodes.remove(&name).is_some() {
            touched.nodes.insert(name);
        }
    }

    fn put_node(&mut self, name: &NodeName, body: &crds::wire::Node, touched: &mut Touched) {
        match self.resolved.nodes.get_mut(name) {
            Some(node) if node.body.body() == body => return,
            Some(node) => node.body = Arc::new(Entry::new(name.clone(), body.clone())),
            None => {
                let body = Arc::new(Entry::new(name.clone(), body.clone()));
                self.resolved.nodes.insert(name.clone(), ResolvedNode { body, policies: BTreeMap::new() });
            }
        }
        touched.nodes.insert(name.clone());
    }

    /// Looks again at what stands at the entity name `id`.
    fn entity(&mut self, id: &Key, touched: &mut Touched) {
        touched.work.insert(Work::Entity(id.clone()));
        // another holder is another condition on those that want the name
        touched.work.extend(self.claims.get(id).into_iter().flatten().cloned().map(Work::Node));
        let new = entity::entity_at(&self.world, &self.claims, id);
        let old = match &new {
            Some(entity) => self.entities.insert(id.clone(), entity.clone()),
            None => self.entities.remove(id),
        };
        if old == new {
            return;
        }
        self.labels.change(id, old.as_ref().map(|e| &*e.labels), new.as_ref().map(|e| &*e.labels));
        let labels = old.iter().chain(&new).map(|e| &*e.labels);
        for selector in self.anchors.candidates(&id.namespace, labels) {
            self.member(&selector, id, old.as_ref(), new.as_ref(), touched);
        }
    }

    /// Puts one entity into, takes it out of, or replaces it in the group of `selector`.
    fn member(
        &mut self,
        selector: &Arc<GroupSelector>,
        id: &Key,
        old: Option<&Entity>,
        new: Option<&Entity>,
        touched: &mut Touched,
    ) {
        let selected = self.selected.get_mut(selector).expect("an indexed selector is in use");
        let group = self.resolved.groups.get_mut(&selected.key).expect("a selector in use has a group");
        let reference = entity::member_ref(id);
        let was = group.body().members.get(&reference).cloned();
        let now = new.filter(|e| selects(&self.world, selector, id, &e.labels));
        if was.as_ref() != now.map(|e| &e.member) {
            Entry::edit(group, |group: &mut Group| match now {
                Some(entity) => _ = group.members.insert(reference, Arc::clone(&entity.member)),
                None => _ = group.members.remove(&reference),
            });
            self.moved.insert(Arc::clone(selector));
        }
        let before = old.filter(|_| was.is_some()).and_then(|e| e.node.clone());
        let after = now.and_then(|e| e.node.clone());
        if before == after {
            return;
        }
        let name = EntityName::from(&id.name);
        if let Some(node) = &before {
            selected.leave(node, &name);
        }
        if let Some(node) = &after {
            selected.nodes.entry(node.clone()).or_default().insert(name);
        }
        let policies: Vec<_> = selected.targets_of.iter().cloned().collect();
        for policy in policies {
            for node in before.iter().chain(&after) {
                self.place(&policy, node, touched);
            }
        }
    }

    /// Looks again at which of `node`'s entities `policy` applies to.
    fn place(&mut self, policy: &Key, node: &NodeName, touched: &mut Touched) {
        let compiled = Arc::clone(&self.resolved.policies[policy]);
        let targets = compiled.targets.iter().filter_map(|t| self.selected[t].nodes.get(node));
        let entities: BTreeSet<EntityName> = targets.flatten().cloned().collect();
        let span = self.resolved.spans.entry(policy.clone()).or_default();
        let before = match entities.is_empty() {
            true => span.remove(node),
            false => span.insert(node.clone(), entities.clone()),
        };
        if before.as_ref() == Some(&entities) {
            return;
        }
        touched.nodes.insert(node.clone());
        touched.work.insert(Work::Policy(policy.clone()));
        if let Some(state) = self.resolved.nodes.get_mut(node) {
            match entities.is_empty() {
                true => _ = state.policies.remove(&compiled.id),
                false => _ = state.policies.insert(compiled.id.clone(), applied(&compiled, &entities)),
            }
        }
    }

    fn policy(&mut self, key: &Key, touched: &mut Touched) {
        let stored = self.world.policies.get(key);
        if matches!(stored, Some(Stored::Bad(_))) {
            touched.work.insert(Work::Policy(key.clone()));
        }
        let new = stored.and_then(Stored::good).map(|policy| Arc::new(compile(key, policy, &self.world)));
        let old = self.resolved.policies.get(key).cloned();
        if old == new {
            return;
        }
        touched.work.insert(Work::Policy(key.clone()));
        if let Some(old) = &old {
            self.withdraw(key, old, touched);
        }
        let kept = new.as_ref().map(|p| p.targets.iter().chain(&p.groups).cloned().collect::<HashSet<_>>());
        if let Some(new) = new {
            self.introduce(key, new, touched);
        }
        for selector in old.iter().flat_map(|p| p.targets.iter().chain(&p.groups)) {
            if !kept.as_ref().is_some_and(|kept| kept.contains(selector)) {
                self.drop_if_unused(selector);
            }
        }
    }

    fn withdraw(&mut self, key: &Key, old: &Compiled, touched: &mut Touched) {
        for node in self.resolved.spans.remove(key).unwrap_or_default().into_keys() {
            if let Some(state) = self.resolved.nodes.get_mut(&node) {
                state.policies.remove(&old.id);
            }
            touched.nodes.insert(node);
        }
        self.resolved.policies.remove(key);
        for selector in &old.groups {
            self.selected.get_mut(selector).expect("used").peers_of.remove(key);
        }
        for selector in &old.targets {
            self.selected.get_mut(selector).expect("used").targets_of.remove(key);
        }
    }

    fn introduce(&mut self, key: &Key, new: Arc<Compiled>, touched: &mut Touched) {
        for selector in &new.groups {
            self.select(selector).peers_of.insert(key.clone());
        }
        let mut nodes = BTreeSet::new();
        for selector in &new.targets {
            let selected = self.select(selector);
            selected.targets_of.insert(key.clone());
            nodes.extend(selected.nodes.keys().cloned());
        }
        self.resolved.policies.insert(key.clone(), new);
        self.resolved.spans.insert(key.clone(), Span::new());
        for node in nodes {
            self.place(key, &node, touched);
        }
    }

    /// The state of `selector`, filled when it is new.
    fn select(&mut self, selector: &Arc<GroupSelector>) -> &mut Selected {
        if !self.selected.contains_key(selector) {
            let key = selector.key();
            let mut selected = Selected::new(key);
            let mut group = Group::default();
            let mut consider = |id: &Key| {
                let entity = &self.entities[id];
                if selects(&self.world, selector, id, &entity.labels) {
                    group.members.insert(entity::member_ref(id), Arc::clone(&entity.member));
                    if let Some(node) = &entity.node {
                        selected.nodes.entry(node.clone()).or_default().insert(EntityName::from(&id.name));
                    }
                }
            };
            match self.labels.carriers(&selector.entities.anchor()) {
                Some(carriers) => carriers.for_each(&mut consider),
                None => self.entities.keys().for_each(&mut consider),
            }
            self.resolved.groups.insert(key, Arc::new(Entry::new(key, group)));
            self.anchors.add(selector);
            self.selected.insert(Arc::clone(selector), selected);
        }
        self.selected.get_mut(selector).expect("just made, or there before")
    }

    fn drop_if_unused(&mut self, selector: &Arc<GroupSelector>) {
        let unused = |s: &Selected| s.peers_of.is_empty() && s.targets_of.is_empty();
        if self.selected.get(selector).is_some_and(unused) {
            if let Some(selected) = self.selected.remove(selector) {
                self.resolved.groups.remove(&selected.key);
            }
            self.anchors.remove(selector);
        }
    }

    fn namespace(&mut self, name: &Arc<str>, touched: &mut Touched) {
        let in_it = |key: &&Key| key.namespace == *name;
        let start = Key::new(name.clone(), "");
        let nodes: Vec<_> =
            self.world.external_nodes.range(&start..).map(|(k, _)| k).take_while(in_it).cloned().collect();
        for node in nodes {
            self.node(&node, touched);
        }
        let ids: Vec<_> = self.entities.range(&start..).map(|(k, _)| k).take_while(in_it).cloned().collect();
        for selector in self.anchors.over_namespaces() {
            for id in &ids {
                let entity = self.entities.get(id).cloned();
                self.member(&selector, id, entity.as_ref(), entity.as_ref(), touched);
            }
        }
    }

    fn binding(&self, key: &Key, touched: &mut Touched) {
        touched.bindings = true;
        touched.work.insert(Work::Binding(key.clone()));
        touched.work.extend(in_namespace(&self.world.external_nodes, &key.namespace).cloned().map(Work::Node));
    }

    fn bindings_of(&self, namespace: &Arc<str>) -> impl Iterator<Item = Work> + '_ {
        in_namespace(&self.world.bindings, namespace).cloned().map(Work::Binding)
    }

    /// The node that an AgentInfo was, or is, about looks again, and so does the AgentInfo: it may be nobody's.
    fn agent_info(&mut self, key: &Key, touched: &mut Touched) {
        let node = self.world.agent_infos.get(key).and_then(|stored| naming::node_of(stored.meta()));
        let before = match &node {
            Some((node, _)) => self.info_of.insert(key.name.clone(), node.clone()),
            None => self.info_of.remove(&key.name),
        };
        touched.work.extend(before.into_iter().chain(node.map(|(node, _)| node)).map(Work::Node));
        touched.work.insert(Work::AgentInfo(key.clone()));
        touched.work.extend(self.index.named(&key.name).map(Work::Node));
    }

    fn tier(&mut self, name: &str, touched: &mut Touched) {
        touched.work.insert(Work::Tiers);
        let stored = self.world.policies.iter().filter_map(|(key, stored)| Some((key, stored.good()?)));
        let of_tier = stored.filter(|(_, policy)| tier_name(policy).eq_ignore_ascii_case(name));
        let policies: Vec<_> = of_tier.map(|(key, _)| key.clone()).collect();
        for policy in policies {
            self.policy(&policy, touched);
        }
    }
}

/// The keys of `table` that are in `namespace`.
fn in_namespace<'a, V>(
    table: &'a BTreeMap<Key, V>,
    namespace: &Arc<str>,
) -> impl Iterator<Item = &'a Key> + use<'a, V> {
    let namespace = namespace.clone();
    let keys = table.range(Key::new(namespace.clone(), "")..).map(|(key, _)| key);
    keys.take_while(move |key| key.namespace == namespace)
}

impl Selected {
    fn new(key: GroupKey) -> Self {
        Self { key, nodes: HashMap::new(), peers_of: BTreeSet::new(), targets_of: BTreeSet::new() }
    }

    fn leave(&mut self, node: &NodeName, entity: &EntityName) {
        if let Some(entities) = self.nodes.get_mut(node) {
            entities.remove(entity);
            if entities.is_empty() {
                self.nodes.remove(node);
            }
        }
    }
}
