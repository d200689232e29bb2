//! Indexes that answer "which?" without asking everybody: entities by label, selectors by the label they need, nodes by
//! bare name and address.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use crds::names::Key;

use super::selector::{Anchor, GroupSelector, Labels, Scope};

/// Entities by label.
#[derive(Debug, Default)]
pub(super) struct LabelIndex {
    by_key: HashMap<Arc<str>, HashMap<Arc<str>, BTreeSet<Key>>>,
}

impl LabelIndex {
    /// The entity `id` carries `new` and no longer `old`.
    pub(super) fn change(&mut self, id: &Key, old: Option<&Labels>, new: Option<&Labels>) {
        for (key, value) in old.into_iter().flatten().filter(|(k, v)| new.and_then(|n| n.get(*k)) != Some(v)) {
            let Some(values) = self.by_key.get_mut(key.as_str()) else { continue };
            if let Some(ids) = values.get_mut(value.as_str()) {
                ids.remove(id);
                if ids.is_empty() {
                    values.remove(value.as_str());
                }
            }
            if values.is_empty() {
                self.by_key.remove(key.as_str());
            }
        }
        for (key, value) in new.into_iter().flatten() {
            let values = self.by_key.entry(key.as_str().into()).or_default();
            values.entry(value.as_str().into()).or_default().insert(id.clone());
        }
    }

    /// The entities that `anchor` leaves; none when it leaves them all.
    pub(super) fn carriers<'a>(&'a self, anchor: &'a Anchor) -> Option<Box<dyn Iterator<Item = &'a Key> + 'a>> {
        let values = |key: &Arc<str>| self.by_key.get(key);
        match anchor {
            Anchor::Pairs(key, wanted) => {
                let values = values(key);
                Some(Box::new(wanted.iter().filter_map(move |v| values?.get(v)).flatten()))
            }
            Anchor::Key(key) => Some(Box::new(values(key).into_iter().flat_map(HashMap::values).flatten())),
            Anchor::Nothing => None,
        }
    }
}

/// Selectors by the label that whatever they select must carry, then by the namespace they look in.
#[derive(Debug, Default)]
pub(super) struct SelectorIndex {
    by_pair: HashMap<(Arc<str>, Arc<str>), Places>,
    by_key: HashMap<Arc<str>, Places>,
    others: Places,
}

/// Selectors of one namespace under its name, the others under none.
type Places = HashMap<Option<Arc<str>>, HashSet<Arc<GroupSelector>>>;

impl SelectorIndex {
    /// From now on `selector` is asked.
    pub(super) fn add(&mut self, selector: &Arc<GroupSelector>) {
        let place = place(selector);
        self.at(&selector.entities.anchor(), |places| {
            places.entry(place.clone()).or_default().insert(Arc::clone(selector));
        });
    }

    /// `selector` isn't asked any more.
    pub(super) fn remove(&mut self, selector: &Arc<GroupSelector>) {
        let place = place(selector);
        self.at(&selector.entities.anchor(), |places| {
            if let Some(selectors) = places.get_mut(&place) {
                selectors.remove(selector);
                if selectors.is_empty() {
                    places.remove(&place);
                }
            }
        });
        self.by_pair.retain(|_, places| !places.is_empty());
        self.by_key.retain(|_, places| !places.is_empty());
    }

    fn at(&mut self, anchor: &Anchor, mut change: impl FnMut(&mut Places)) {
        match anchor {
            Anchor::Pairs(key, values) => {
                for value in values {
                    change(self.by_pair.entry((key.clone(), value.clone())).or_default());
                }
            }
            Anchor::Key(key) => change(self.by_key.entry(key.clone()).or_default()),
            Anchor::Nothing => change(&mut self.others),
        }
    }

    /// The selectors that may select an entity of `namespace` with any of these labels.
    pub(super) fn candidates<'a>(
        &self,
        namespace: &Arc<str>,
        labels: impl Iterator<Item = &'a Labels>,
    ) -> HashSet<Arc<GroupSelector>> {
        let mut out = HashSet::new();
        let mut take = |places: &Places| {
            let here = [Some(namespace.clone()), None];
            out.extend(here.iter().filter_map(|place| places.get(place)).flatten().cloned());
        };
        take(&self.others);
        for (key, value) in labels.flatten() {
            let pair = (key.as_str().into(), value.as_str().into());
            self.by_pair.get(&pair).into_iter().for_each(&mut take);
            self.by_key.get(key.as_str()).into_iter().for_each(&mut take);
        }
        out
    }

    /// The selectors that look at the labels of namespaces.
    pub(super) fn over_namespaces(&self) -> HashSet<Arc<GroupSelector>> {
        let places = self.by_pair.values().chain(self.by_key.values()).chain([&self.others]);
        places.filter_map(|places| places.get(&None)).flatten().cloned().collect()
    }
}

fn place(selector: &GroupSelector) -> Option<Arc<str>> {
    match &selector.scope {
        Scope::Namespace(name) => Some(name.clone()),
        Scope::Namespaces(_) => None,
    }
}

/// The live ExternalNodes by what only one should have.
#[derive(Debug, Default)]
pub struct NodeIndex {
    by_name: HashMap<Arc<str>, BTreeSet<Key>>,
    by_address: HashMap<IpAddr, BTreeSet<Key>>,
    addresses: HashMap<Key, BTreeSet<IpAddr>>,
}

impl NodeIndex {
    /// `node` is there (or not) with these addresses. Names the other nodes that share, or shared, something with it.
    pub(super) fn put(&mut self, node: &Key, live: bool, addresses: BTreeSet<IpAddr>) -> BTreeSet<Key> {
        let mut others = BTreeSet::new();
        let names = self.by_name.entry(node.name.clone()).or_default();
        let changed = if live { names.insert(node.clone()) } else { names.remove(node) };
        if changed {
            others.extend(names.iter().cloned());
        }
        if names.is_empty() {
            self.by_name.remove(&node.name);
        }
        let before = self.addresses.remove(node).unwrap_or_default();
        for ip in before.difference(&addresses) {
            if let Some(nodes) = self.by_address.get_mut(ip) {
                nodes.remove(node);
                others.extend(nodes.iter().cloned());
                if nodes.is_empty() {
                    self.by_address.remove(ip);
                }
            }
        }
        for ip in addresses.difference(&before) {
            let nodes = self.by_address.entry(*ip).or_default();
            others.extend(nodes.iter().cloned());
            nodes.insert(node.clone());
        }
        if !addresses.is_empty() {
            self.addresses.insert(node.clone(), addresses);
        }
        others.remove(node);
        others
    }

    /// The ExternalNodes with this bare name, in whatever namespace.
    pub fn named(&self, name: &str) -> impl Iterator<Item = Key> + '_ {
        self.by_name.get(name).into_iter().flatten().cloned()
    }

    /// The other ExternalNodes that list one of `node`'s addresses, with that address.
    pub fn sharers(&self, node: &Key) -> Vec<(IpAddr, Key)> {
        let own = self.addresses.get(node).into_iter().flatten();
        let pairs = own.flat_map(|ip| self.by_address.get(ip).into_iter().flatten().map(|other| (*ip, other.clone())));
        pairs.filter(|(_, other)| other != node).collect()
    }
}
