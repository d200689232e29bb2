//! Keeps the built-in Tiers as they are published.

use crds::names::Key;
use crds::tier::{BUILT_IN, BuiltIn, Tier, TierSpec};
use crds::world::{Stored, World, WorldKind};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::change::{Change, object};

#[cfg(test)]
mod tests;

/// What makes the built-in Tiers right: missing ones are made, changed priorities are put back.
pub fn plan(world: &World) -> Vec<Change> {
    BUILT_IN.iter().filter_map(|tier| put(world.tiers.get(&Key::cluster(tier.name)), tier)).collect()
}

fn put(stored: Option<&Stored<Tier>>, tier: &BuiltIn) -> Option<Change> {
    let spec = |before: Option<&TierSpec>| TierSpec {
        priority: tier.priority,
        // a description is the user's to change
        description: before.and_then(|spec| spec.description.clone()).or_else(|| Some(tier.description.to_owned())),
    };
    let Some(stored) = stored else {
        let metadata = ObjectMeta { name: Some(tier.name.to_owned()), ..ObjectMeta::default() };
        return Some(Change::Create(WorldKind::Tier, object(WorldKind::Tier, &Tier { metadata, spec: spec(None) })));
    };
    let before = stored.good().map(|tier| &tier.spec);
    if before.is_some_and(|spec| spec.priority == tier.priority) || stored.meta().deletion_timestamp.is_some() {
        return None;
    }
    let fixed = Tier { metadata: stored.meta().clone(), spec: spec(before) };
    Some(Change::Replace(WorldKind::Tier, object(WorldKind::Tier, &fixed)))
}
