//! The peer of `resolve`: everything computed anew after each change, with a label index, equal groups kept.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crds::names::Key;
use operator::policy::entity::Entity;
use operator::policy::selector::{Anchor, GroupSelector};
use operator::policy::whole::selects;
use operator::policy::{Live, Resolved};

/// The members of one group, by the plain way.
pub(crate) type Groups = BTreeMap<Arc<GroupSelector>, Arc<BTreeSet<Key>>>;

/// Every group of every policy, computed from all entities; an equal one keeps its allocation.
pub(crate) fn resolve(live: &Live, entities: &BTreeMap<Key, Entity>, before: &Groups) -> Groups {
    let mut labelled: HashMap<(&str, &str), Vec<(&Key, &Entity)>> = HashMap::new();
    for (id, entity) in entities {
        for (key, value) in &*entity.labels {
            labelled.entry((key, value)).or_default().push((id, entity));
        }
    }
    let Resolved { policies, .. } = live.resolved();
    let selectors: BTreeSet<_> = policies.values().flat_map(|p| p.groups.iter().chain(&p.targets)).cloned().collect();
    let group = |selector: &Arc<GroupSelector>| {
        let means = |(id, entity): &(&Key, &Entity)| selects(live.world(), selector, id, &entity.labels);
        let members: BTreeSet<Key> = match selector.entities.anchor() {
            Anchor::Pairs(key, values) => {
                let lists = values.iter().filter_map(|value| labelled.get(&(&*key, &**value)));
                lists.flatten().copied().filter(means).map(|(id, _)| id.clone()).collect()
            }
            Anchor::Key(_) | Anchor::Nothing => entities.iter().filter(means).map(|(id, _)| id.clone()).collect(),
        };
        match before.get(selector) {
            Some(old) if **old == members => Arc::clone(old),
            _ => Arc::new(members),
        }
    };
    selectors.into_iter().map(|selector| (Arc::clone(&selector), group(&selector))).collect()
}
