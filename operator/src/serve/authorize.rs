//! Who may act for whom: one pure function that every handler calls.

use std::collections::BTreeSet;
use std::fmt;

use crds::binding::{ExternalNodeBinding, Subject, SubjectKind};
use crds::check;
use crds::external_node::ExternalNode;
use crds::names::{Key, NodeName};
use crds::world::World;

use crate::policy::entity::live;
use crate::policy::selector::Selector;

#[cfg(test)]
mod tests;

/// Somebody whom the API server vouched for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The user name, `system:serviceaccount:<namespace>:<name>` for a ServiceAccount.
    pub user: String,
    /// The groups that the user is in.
    pub groups: BTreeSet<String>,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.user)
    }
}

/// What somebody wants to do for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// Read what the node is told.
    Watch,
    /// Report for the node.
    Report,
}

impl Verb {
    /// The word in logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Watch => "watch",
            Self::Report => "report",
        }
    }
}

/// Whether, and for which node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// For this node.
    Allow(NodeName),
    /// Not, and why.
    Deny(String),
}

/// Whether `identity` may do `verb` for `target`, or for the only node that it may act for when none is named.
///
/// The client's word never widens anything: without a binding of the node's own namespace there is no access.
pub fn authorize(world: &World, identity: &Identity, verb: Verb, target: Option<&NodeName>) -> Decision {
    let bindings = bindings_of(world, identity);
    if let Some(node) = target {
        let object = live(world, node.key()).map(|n| &**n);
        let covered = |(namespace, binding): &(&Key, &ExternalNodeBinding)| {
            namespace.namespace == node.key().namespace && covers(binding, &node.key().name, object)
        };
        if bindings.iter().any(covered) {
            return Decision::Allow(node.clone());
        }
        let verb = verb.as_str();
        return Decision::Deny(format!("no ExternalNodeBinding lets {identity} {verb} for ExternalNode {node}"));
    }
    let nodes: BTreeSet<NodeName> = bindings.iter().flat_map(|(key, binding)| covered(world, key, binding)).collect();
    let mut nodes = nodes.into_iter();
    match (nodes.next(), nodes.next()) {
        (Some(only), None) => Decision::Allow(only),
        (None, _) if bindings.is_empty() => Decision::Deny(format!("no ExternalNodeBinding names {identity}")),
        (None, _) => {
            Decision::Deny(format!("the ExternalNodeBindings of {identity} cover no ExternalNode that exists"))
        }
        (Some(first), Some(second)) => {
            let more = if nodes.next().is_some() { " and others" } else { "" };
            Decision::Deny(format!(
                "{identity} may act for {first}, {second}{more}: say which with ?node=<namespace>/<name>"
            ))
        }
    }
}

/// Whether anybody may act for `node`.
pub fn is_bound(world: &World, key: &Key, node: &ExternalNode) -> bool {
    let of_namespace = world.bindings.range(Key::new(key.namespace.clone(), "")..);
    let mut of_namespace = of_namespace.take_while(|(binding, _)| binding.namespace == key.namespace);
    of_namespace.any(|(_, stored)| {
        let covering = stored.good().filter(|binding| covers(binding, &key.name, Some(node)));
        covering.is_some_and(|binding| has_effect(binding))
    })
}

/// Whether `binding` covers the ExternalNode `name` of its namespace; `node` is the live object, if there is one.
pub fn covers(binding: &ExternalNodeBinding, name: &str, node: Option<&ExternalNode>) -> bool {
    let spec = &binding.spec;
    match &spec.node_selector {
        // one of both is given, or nobody is meant
        Some(_) if !spec.external_nodes.is_empty() => false,
        Some(selector) => node
            .zip(Selector::new(selector))
            .is_some_and(|(node, selector)| selector.matches(&node.metadata.labels.clone().unwrap_or_default())),
        None => spec.external_nodes.iter().any(|covered| covered == "*" || covered == name),
    }
}

/// Whether `identity` is bound to `node` by name or `*`, which holds when the object is gone, too.
pub fn is_named(world: &World, identity: &Identity, node: &NodeName) -> bool {
    let of_namespace = |(key, _): &&(&Key, &ExternalNodeBinding)| key.namespace == node.key().namespace;
    bindings_of(world, identity).iter().filter(of_namespace).any(|(_, binding)| covers(binding, &node.key().name, None))
}

fn bindings_of<'w>(world: &'w World, identity: &Identity) -> Vec<(&'w Key, &'w ExternalNodeBinding)> {
    let bindings = world.bindings.iter().filter_map(|(key, stored)| Some((key, &**stored.good()?)));
    let meant = |binding: &ExternalNodeBinding| binding.spec.subjects.iter().any(|s| is_meant(s, identity));
    bindings.filter(|(_, binding)| meant(binding) && has_effect(binding)).collect()
}

/// Whether `binding` counts: it isn't going, and nothing is wrong with it.
pub fn has_effect(binding: &ExternalNodeBinding) -> bool {
    binding.metadata.deletion_timestamp.is_none() && check::binding(binding).is_empty()
}

fn is_meant(subject: &Subject, identity: &Identity) -> bool {
    match subject.kind {
        SubjectKind::User => subject.name == identity.user,
        SubjectKind::Group => identity.groups.contains(&subject.name),
        SubjectKind::ServiceAccount => subject.namespace.as_ref().is_some_and(|namespace| {
            identity.user.strip_prefix("system:serviceaccount:") == Some(&format!("{namespace}:{}", subject.name))
        }),
    }
}

/// The nodes that a binding covers: by name whether they exist or not, by `*` or label those that do.
fn covered(world: &World, key: &Key, binding: &ExternalNodeBinding) -> Vec<NodeName> {
    let node = |name: &str| NodeName::external(Key::new(key.namespace.clone(), name));
    let named = binding.spec.external_nodes.iter().filter(|name| *name != "*" && covers(binding, name, None));
    let existing = world.external_nodes.range(Key::new(key.namespace.clone(), "")..).map(|(node, _)| node);
    let existing = existing.take_while(|node| node.namespace == key.namespace);
    let existing = existing.filter(|k| live(world, k).is_some_and(|n| covers(binding, &k.name, Some(n))));
    named.map(|name| node(name)).chain(existing.map(|k| node(&k.name))).collect()
}
