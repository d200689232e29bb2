//! What follows from a world: the groups, and what each node is told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crds::names::{EntityName, GroupKey, Key, NodeName, PolicyId};
use crds::wire::{Entry, Group, Node, Policy, View};

use super::compile::Compiled;

/// Everything that follows from one world.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resolved {
    /// The members of every selector that some policy uses.
    pub groups: BTreeMap<GroupKey, Arc<Entry<Group>>>,
    /// Every live ExternalNode.
    pub nodes: BTreeMap<NodeName, ResolvedNode>,
    /// Every readable policy, by its object's name.
    pub policies: BTreeMap<Key, Arc<Compiled>>,
    /// On which nodes, and on which of their entities, each of those policies applies.
    pub spans: BTreeMap<Key, Span>,
}

/// The nodes of one policy, each with its own entities that the policy applies to.
pub type Span = BTreeMap<NodeName, BTreeSet<EntityName>>;

/// One node's share.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedNode {
    /// Its own object.
    pub body: Arc<Entry<Node>>,
    /// The policies that apply to it.
    pub policies: BTreeMap<PolicyId, Arc<Entry<Policy>>>,
}

impl ResolvedNode {
    /// Everything the node is told, with the groups that its policies name.
    pub fn view(&self, groups: impl Fn(&GroupKey) -> Option<Arc<Entry<Group>>>) -> View {
        let keys = self.policies.values().flat_map(|entry| entry.body().groups());
        let keys: BTreeSet<GroupKey> = keys.collect();
        View {
            node: Some(Arc::clone(&self.body)),
            groups: keys.into_iter().filter_map(|key| Some((key, groups(&key)?))).collect(),
            policies: self.policies.clone(),
        }
    }
}

impl Resolved {
    /// What `node` is told; nothing for a node that isn't there.
    pub fn view(&self, node: &NodeName) -> View {
        self.nodes.get(node).map_or_else(View::default, |n| n.view(|key| self.groups.get(key).cloned()))
    }
}

/// The policy as a node with these entities of its own is told it.
pub fn applied(compiled: &Compiled, entities: &BTreeSet<EntityName>) -> Arc<Entry<Policy>> {
    let policy = Policy { applied_to: entities.clone(), ..compiled.policy.clone() };
    Arc::new(Entry::new(compiled.id.clone(), policy))
}
