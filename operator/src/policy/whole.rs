//! The definition of `resolve`: every selector asked of every entity. Plain, slow, and what [`super::Live`] must equal.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crds::names::{EntityName, Key, NodeName};
use crds::wire::{Entry, Group};
use crds::world::World;

use super::compile::{Compiled, compile};
use super::entity::{self, Claims, Entity};
use super::resolved::{Resolved, ResolvedNode, Span, applied};
use super::selector::{GroupSelector, Labels, Scope};

/// Everything that follows from `world`.
pub fn resolve(world: &World) -> Resolved {
    let nodes = world.external_nodes.keys().filter_map(|key| Some((key, entity::live(world, key)?)));
    let nodes: BTreeMap<_, _> = nodes.collect();
    let entities = entities(world, &nodes.iter().flat_map(claims_of).collect::<Vec<_>>());

    let policies = world.policies.iter().filter_map(|(key, stored)| Some((key, stored.good()?)));
    let policies: BTreeMap<_, _> =
        policies.map(|(key, policy)| (key.clone(), Arc::new(compile(key, policy, world)))).collect();
    let selectors: BTreeSet<_> = policies.values().flat_map(|p| p.groups.iter().chain(&p.targets)).cloned().collect();
    let groups = selectors.iter().map(|s| (s.key(), Arc::new(Entry::new(s.key(), group(world, &entities, s)))));

    let spans: BTreeMap<_, _> = policies.iter().map(|(key, p)| (key.clone(), span(world, &entities, p))).collect();
    let node = |key: &Key, body| {
        let name = NodeName::external(key.clone());
        let own = policies.iter().filter_map(|(policy, compiled)| {
            let entities = spans[policy].get(&name)?;
            Some((compiled.id.clone(), applied(compiled, entities)))
        });
        let own = own.collect();
        (name.clone(), ResolvedNode { body: Arc::new(Entry::new(name, body)), policies: own })
    };
    Resolved {
        groups: groups.collect(),
        nodes: nodes.iter().map(|(key, n)| node(key, entity::node_body(key, n))).collect(),
        spans,
        policies,
    }
}

fn claims_of<'a>((key, node): (&'a &'a Key, &'a &'a Arc<crds::external_node::ExternalNode>)) -> Vec<(Key, Key)> {
    entity::claimed(key, node).into_iter().map(|id| (id, (*key).clone())).collect()
}

fn entities(world: &World, claimed: &[(Key, Key)]) -> BTreeMap<Key, Entity> {
    let mut claims = Claims::new();
    for (id, node) in claimed {
        claims.entry(id.clone()).or_default().insert(node.clone());
    }
    let ids: BTreeSet<_> = world.external_entities.keys().chain(claims.keys()).collect();
    ids.into_iter().filter_map(|id| Some((id.clone(), entity::entity_at(world, &claims, id)?))).collect()
}

/// Whether `selector` means the entity `id` with `labels`.
pub fn selects(world: &World, selector: &GroupSelector, id: &Key, labels: &Labels) -> bool {
    let scope = match &selector.scope {
        Scope::Namespace(name) => *name == id.namespace,
        // a namespace that is not there has no labels that anything could match, not even "everything"
        Scope::Namespaces(wanted) => {
            let namespace = world.namespaces.get(&Key::cluster(id.namespace.clone()));
            let labels = namespace.map(|n| n.meta().labels.clone().unwrap_or_default());
            labels.is_some_and(|labels| wanted.matches(&labels))
        }
    };
    scope && selector.entities.matches(labels)
}

fn group(world: &World, entities: &BTreeMap<Key, Entity>, selector: &GroupSelector) -> Group {
    let members = entities.iter().filter(|(id, e)| selects(world, selector, id, &e.labels));
    Group { members: members.map(|(id, e)| (entity::member_ref(id), Arc::clone(&e.member))).collect() }
}

fn span(world: &World, entities: &BTreeMap<Key, Entity>, policy: &Compiled) -> Span {
    let mut out = Span::new();
    for (id, entity) in entities {
        let Some(node) = &entity.node else { continue };
        if policy.targets.iter().any(|target| selects(world, target, id, &entity.labels)) {
            out.entry(node.clone()).or_default().insert(EntityName::from(&id.name));
        }
    }
    out
}
