//! What an object that can't be decoded says of itself: a condition, like any other trouble.

use crds::binding::ExternalNodeBindingStatus;
use crds::check::{self, Violation};
use crds::external_node::ExternalNodeStatus;
use crds::names::Key;
use crds::policy::{NetworkPolicyStatus, Phase};
use crds::world::{Bad, Stored, Watched, World, WorldKind};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::core::DynamicObject;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::change::Change;
use crate::context::{Context, no, start_of};

#[cfg(test)]
mod tests;

/// The longest message, in bytes: it quotes what could not be read.
const LONGEST: usize = 1024;

/// The status write that says of an ExternalNode what can't be read, if it doesn't say so yet. What its other
/// conditions last said stays.
pub fn external_node(ctx: &Context<'_>, bad: &Bad) -> Option<Change> {
    let before: ExternalNodeStatus = status(bad);
    let generation = bad.metadata.generation;
    let mut after = ExternalNodeStatus { observed_generation: generation, ..before.clone() };
    put(&mut after.conditions, invalid(ctx, bad, "Accepted", &before.conditions, generation));
    write(WorldKind::ExternalNode, bad, &before, &after)
}

/// The same for an ExternalNodeBinding, which lets nobody do anything.
pub fn binding(ctx: &Context<'_>, bad: &Bad) -> Option<Change> {
    let before: ExternalNodeBindingStatus = status(bad);
    let generation = bad.metadata.generation;
    let after = ExternalNodeBindingStatus {
        external_nodes: vec![],
        observed_generation: generation,
        conditions: vec![invalid(ctx, bad, "Accepted", &before.conditions, generation)],
    };
    write(WorldKind::Binding, bad, &before, &after)
}

/// The same for a policy, which no node enforces.
pub fn policy(ctx: &Context<'_>, bad: &Bad) -> Option<Change> {
    let before: NetworkPolicyStatus = status(bad);
    let after = NetworkPolicyStatus {
        phase: Some(Phase::Pending),
        observed_generation: bad.metadata.generation,
        current_nodes_realized: Some(0),
        desired_nodes_realized: Some(0),
        unreachable_nodes: None,
        // this kind's published conditions have no generation of their own
        conditions: vec![invalid(ctx, bad, "Realizable", &before.conditions, None)],
    };
    write(WorldKind::NetworkPolicy, bad, &before, &after)
}

/// The conditions of an object that can't be read, as far as they can.
pub fn conditions(bad: &Bad) -> Vec<Condition> {
    serde_json::from_value(bad.status["conditions"].clone()).unwrap_or_default()
}

/// What is wrong with objects of kinds that have no conditions to tell it, as an event and a metric tell it: each by its
/// kind, its metadata and the words.
pub fn untold(world: &World, kind: WorldKind, key: &Key) -> Option<(ObjectMeta, String)> {
    match kind {
        WorldKind::ExternalEntity => trouble(world.external_entities.get(key)?, check::external_entity),
        WorldKind::Tier => trouble(world.tiers.get(key)?, check::tier),
        WorldKind::ExternalNode => unsaid(world.external_nodes.get(key)?),
        WorldKind::NetworkPolicy => unsaid(world.policies.get(key)?),
        WorldKind::Binding => unsaid(world.bindings.get(key)?),
        _ => None,
    }
}

/// How many objects of `kind` can't be read, or have a field that means nothing and no condition to tell it.
pub fn count(world: &World, kind: WorldKind) -> usize {
    match kind {
        WorldKind::ExternalEntity => {
            world.external_entities.values().filter(|e| trouble(e, check::external_entity).is_some()).count()
        }
        WorldKind::Tier => world.tiers.values().filter(|t| trouble(t, check::tier).is_some()).count(),
        kind => world.count(kind).1,
    }
}

fn trouble<K>(stored: &Stored<K>, check: fn(&K) -> Vec<Violation>) -> Option<(ObjectMeta, String)>
where
    K: Watched,
{
    match stored {
        Stored::Bad(bad) => Some((bad.metadata.clone(), message(bad))),
        Stored::Good(object) => {
            let wrong: Vec<_> = check(object).iter().take(8).map(ToString::to_string).collect();
            (!wrong.is_empty()).then(|| (object.meta().clone(), wrong.join("; ")))
        }
    }
}

/// What can't be read and doesn't say so: the API server may refuse even the status that would.
fn unsaid<K: Watched>(stored: &Stored<K>) -> Option<(ObjectMeta, String)> {
    match stored {
        Stored::Bad(bad) if !is_said(bad) => Some((bad.metadata.clone(), message(bad))),
        _ => None,
    }
}

/// Whether the object has a condition that says that it can't be read.
fn is_said(bad: &Bad) -> bool {
    conditions(bad).iter().any(|c| c.status == "False" && c.reason == "Invalid" && c.message == message(bad))
}

fn message(bad: &Bad) -> String {
    start_of(format!("the object can't be read: {}", bad.error), LONGEST)
}

fn invalid(ctx: &Context<'_>, bad: &Bad, kind: &str, before: &[Condition], generation: Option<i64>) -> Condition {
    no("Invalid", message(bad)).condition(kind, before, generation, &ctx.time())
}

fn put(conditions: &mut Vec<Condition>, new: Condition) {
    match conditions.iter_mut().find(|c| c.type_ == new.type_) {
        Some(old) => *old = new,
        None => conditions.push(new),
    }
}

/// The status, or an empty one when it is what can't be read: the write then puts it right.
fn status<S: DeserializeOwned + Default>(bad: &Bad) -> S {
    S::deserialize(&bad.status).unwrap_or_default()
}

fn write<S: Serialize + PartialEq>(kind: WorldKind, bad: &Bad, before: &S, after: &S) -> Option<Change> {
    if before == after || bad.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let status = json!({ "status": after });
    let object = DynamicObject::new("", &kind.api_resource());
    Some(Change::ReplaceStatus(
        kind,
        Box::new(DynamicObject { metadata: bad.metadata.clone(), data: status, ..object }),
    ))
}
