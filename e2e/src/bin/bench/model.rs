//! The peer of `resolve`: after each change everything is computed anew, with a label index, and what is equal is kept.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crds::names::{EntityName, Key};
use crds::wire::Member;
use crds::world::World;
use operator::policy::compile::Compiled;
use operator::policy::entity::Entity;
use operator::policy::resolved::Span;
use operator::policy::selector::{Anchor, GroupSelector};
use operator::policy::whole::selects;

/// What is looked at.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    pub(crate) world: &'a World,
    pub(crate) policies: &'a BTreeMap<Key, Arc<Compiled>>,
    pub(crate) entities: &'a BTreeMap<Key, Entity>,
}

/// What follows from it.
#[derive(Default)]
pub(crate) struct Plain {
    pub(crate) groups: BTreeMap<Arc<GroupSelector>, Arc<Group>>,
    pub(crate) spans: BTreeMap<Key, Arc<Span>>,
}

/// Who is selected, and where they are.
#[derive(Default, PartialEq)]
pub(crate) struct Group {
    pub(crate) members: BTreeMap<Key, Arc<Member>>,
    pub(crate) nodes: Span,
}

type ByLabel<'a> = HashMap<(&'a str, &'a str), Vec<(&'a Key, &'a Entity)>>;

/// Everything from the whole of `input`.
pub(crate) fn resolve(input: Input<'_>, before: &Plain) -> Plain {
    let mut labelled = ByLabel::new();
    for (id, entity) in input.entities {
        for (key, value) in &*entity.labels {
            labelled.entry((key, value)).or_default().push((id, entity));
        }
    }
    let mut out = Plain::default();
    for (key, policy) in input.policies {
        for selector in policy.groups.iter().chain(&policy.targets) {
            if !out.groups.contains_key(selector) {
                let group = reuse(before.groups.get(selector), select(input, &labelled, selector));
                out.groups.insert(Arc::clone(selector), group);
            }
        }
        let mut span = Span::new();
        for (node, entities) in policy.targets.iter().flat_map(|target| &out.groups[target].nodes) {
            span.entry(node.clone()).or_default().extend(entities.iter().cloned());
        }
        out.spans.insert(key.clone(), reuse(before.spans.get(key), span));
    }
    out
}

fn select(input: Input<'_>, labelled: &ByLabel<'_>, selector: &GroupSelector) -> Group {
    let mut group = Group::default();
    let mut consider = |(id, entity): (&Key, &Entity)| {
        if selects(input.world, selector, id, &entity.labels) {
            group.members.insert(id.clone(), Arc::clone(&entity.member));
            if let Some(node) = &entity.node {
                let own: &mut BTreeSet<EntityName> = group.nodes.entry(node.clone()).or_default();
                own.insert(EntityName::from(&id.name));
            }
        }
    };
    match selector.entities.anchor() {
        Anchor::Pairs(key, values) => {
            let lists = values.iter().filter_map(|value| labelled.get(&(&*key, &**value)));
            lists.flatten().copied().for_each(consider);
        }
        Anchor::Key(_) | Anchor::Nothing => input.entities.iter().for_each(&mut consider),
    }
    group
}

/// Keeps the old allocation when nothing changed, so that a diff can compare pointers first.
fn reuse<T: PartialEq>(old: Option<&Arc<T>>, new: T) -> Arc<T> {
    match old {
        Some(old) if **old == new => Arc::clone(old),
        _ => Arc::new(new),
    }
}
