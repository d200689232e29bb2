//! What the status of an ExternalNodeBinding should say: whom it covers now.

use crds::binding::{ExternalNodeBinding, ExternalNodeBindingStatus};
use crds::check;
use crds::names::Key;
use crds::world::{Stored, WorldKind};

use crate::change::{Change, object};
use crate::context::{Context, no, yes};
use crate::policy::entity::live;
use crate::serve::authorize;
use crate::unreadable;

#[cfg(test)]
mod tests;

/// The status write that the binding `key` needs, if any.
pub fn plan(ctx: &Context<'_>, key: &Key) -> Option<Change> {
    let binding = match ctx.world().bindings.get(key)? {
        Stored::Good(binding) => binding,
        Stored::Bad(bad) => return unreadable::binding(ctx, bad),
    };
    if binding.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let before = binding.status.clone().unwrap_or_default();
    let violations = check::binding(binding);
    let say = if violations.is_empty() {
        yes("Accepted", "")
    } else {
        no("Invalid", violations.iter().take(8).map(ToString::to_string).collect::<Vec<_>>().join("; "))
    };
    let nodes = ctx.world().external_nodes.range(Key::new(key.namespace.clone(), "")..).map(|(node, _)| node);
    let nodes = nodes.take_while(|node| node.namespace == key.namespace);
    let counts = authorize::has_effect(binding);
    let covered = nodes.filter(|node| {
        counts && live(ctx.world(), node).is_some_and(|n| authorize::covers(binding, &node.name, Some(n)))
    });
    let after = ExternalNodeBindingStatus {
        external_nodes: covered.map(|node| node.name.to_string()).collect(),
        observed_generation: binding.metadata.generation,
        conditions: vec![say.condition("Accepted", &before.conditions, binding.metadata.generation, &ctx.time())],
    };
    if before == after {
        return None;
    }
    let binding = ExternalNodeBinding { status: Some(after), ..(**binding).clone() };
    Some(Change::ReplaceStatus(WorldKind::Binding, object(WorldKind::Binding, &binding)))
}
