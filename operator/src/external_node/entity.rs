//! What should stand at each entity name, and what has to be written for it.

use std::collections::BTreeSet;

use crds::external_entity::{Endpoint, EntityPort, ExternalEntity, ExternalEntitySpec};
use crds::external_node::{ExternalNode, NetworkInterface};
use crds::names::{Key, Uid};
use crds::world::{Stored, World, WorldKind, uid};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::addresses;
use super::naming::{SHARED_START, entity_name};
use crate::change::{Change, object};
use crate::policy::Live;
use crate::policy::entity::{Holder, claimed, holder, live, owner};

#[cfg(test)]
mod tests;

/// What makes the entity name `id` right.
///
/// A new entity comes before an old one of the same node goes, so the node is never without. A foreign entity is never
/// written. What belongs to a node that is being deleted is left to the garbage collector, who knows whether it was
/// asked to orphan it.
pub fn plan(all: &Live, id: &Key) -> Vec<Change> {
    let world = all.world();
    match holder(world, all.claims(), id) {
        Holder::Foreign => vec![],
        Holder::Node(node) => {
            let mut steps = Steps { all, seen: BTreeSet::from([node.clone()]), changes: vec![] };
            steps.take(&node, id);
            if steps.changes.is_empty() {
                // now that this one stands, what had to wait for it can go
                steps.changes = leftovers(all, &node).iter().flat_map(|old| remove(all, old)).collect();
            }
            steps.changes
        }
        Holder::Nobody => remove(all, id),
    }
}

/// The entities that name `node` as their owner and that nobody wants.
fn leftovers(all: &Live, node: &Key) -> Vec<Key> {
    let world = all.world();
    // all names of a node's entities begin as the node's own
    let start: &str = &node.name[..node.name.len().min(SHARED_START)];
    let named = world.external_entities.range(Key::new(node.namespace.clone(), start)..).map(|(id, _)| id);
    let named = named.take_while(|id| id.namespace == node.namespace && id.name.starts_with(start));
    let unwanted = named.filter(|id| holder(world, all.claims(), id) == Holder::Nobody);
    unwanted.filter(|id| named_owner(world, id).is_some_and(|(owner, _)| owner == *node)).cloned().collect()
}

/// Whether an entity that `node` wants can't be made yet: one of that name is going and a finalizer holds it.
fn is_held_up(all: &Live, node: &Key) -> bool {
    let world = all.world();
    let wanted = live(world, node).map(|n| claimed(node, n)).unwrap_or_default();
    let mut own = wanted.iter().filter(|id| holder(world, all.claims(), id) == Holder::Node(node.clone()));
    own.any(|id| world.external_entities.get(id).is_some_and(|stored| stored.meta().deletion_timestamp.is_some()))
}

/// Changes in an order that leaves no node without an entity.
struct Steps<'a> {
    all: &'a Live,
    /// Nodes that were served, so that two who swap names don't wait for each other.
    seen: BTreeSet<Key>,
    changes: Vec<Change>,
}

impl Steps<'_> {
    /// `node` gets its entity `id`, after whoever has that name now has got what it wants elsewhere.
    fn take(&mut self, node: &Key, id: &Key) {
        let Some(put) = put(self.all.world(), node, id) else { return };
        if let Some((loser, _)) = named_owner(self.all.world(), id) {
            self.serve(&loser);
        }
        self.changes.push(put);
    }

    /// `node` gets all that it should have and hasn't.
    fn serve(&mut self, node: &Key) {
        if !self.seen.insert(node.clone()) {
            return;
        }
        let world = self.all.world();
        for id in live(world, node).map(|n| claimed(node, n)).unwrap_or_default() {
            if holder(world, self.all.claims(), &id) == Holder::Node(node.clone()) {
                self.take(node, &id);
            }
        }
    }
}

/// The ExternalNode that what is stored at `id` names as its owner, alive or not, with the uid that it names.
fn named_owner(world: &World, id: &Key) -> Option<(Key, Uid)> {
    let meta = world.external_entities.get(id)?.meta();
    let owner = owner(meta)?;
    let reference = meta.owner_references.iter().flatten().find(|o| o.uid == owner.as_str())?;
    Some((Key::new(id.namespace.clone(), reference.name.as_str()), owner))
}

fn put(world: &World, node: &Key, id: &Key) -> Option<Change> {
    let (wanted, stored) = (wanted(live(world, node)?, node, id)?, world.external_entities.get(id));
    let Some(stored) = stored else {
        return Some(Change::Create(WorldKind::ExternalEntity, object(WorldKind::ExternalEntity, &wanted)));
    };
    let meta = stored.meta();
    let right = stored.good().is_some_and(|entity| entity.spec == wanted.spec)
        && meta.labels.clone().unwrap_or_default() == wanted.metadata.labels.clone().unwrap_or_default()
        && meta.owner_references == wanted.metadata.owner_references;
    // one that is going can't be mended; it is made again when it is gone
    if right || meta.deletion_timestamp.is_some() {
        return None;
    }
    let metadata = ObjectMeta {
        labels: wanted.metadata.labels.clone(),
        owner_references: wanted.metadata.owner_references.clone(),
        ..meta.clone()
    };
    let entity = ExternalEntity { metadata, ..wanted };
    Some(Change::Replace(WorldKind::ExternalEntity, object(WorldKind::ExternalEntity, &entity)))
}

fn remove(all: &Live, id: &Key) -> Vec<Change> {
    let world = all.world();
    let Some(meta) = world.external_entities.get(id).map(Stored::meta) else { return vec![] };
    let Some((node, owner)) = named_owner(world, id).filter(|_| meta.deletion_timestamp.is_none()) else {
        return vec![];
    };
    let is_there = world.external_nodes.get(&node).is_some_and(|stored| uid(stored.meta()) == owner);
    if is_there && live(world, &node).is_none() {
        return vec![];
    }
    // a namesake of an owner that is gone goes on where it left off
    let mut steps = Steps { all, seen: BTreeSet::new(), changes: vec![] };
    steps.serve(&node);
    if is_held_up(all, &node) {
        return steps.changes;
    }
    steps.changes.push(Change::Delete(WorldKind::ExternalEntity, Box::new(meta.clone())));
    steps.changes
}

/// The entity `id` of `node`, as the published kind has always been written.
fn wanted(node: &ExternalNode, key: &Key, id: &Key) -> Option<ExternalEntity> {
    let named = |i: &&NetworkInterface| *entity_name(&key.name, i.name()) == *id.name;
    let interface = node.spec.interfaces.iter().find(named)?;
    let endpoint = |ip: String| Endpoint { ip: Some(ip), name: interface.name().map(ToOwned::to_owned) };
    let ports = interface.ports.iter().map(|port| EntityPort {
        protocol: Some(port.protocol),
        port: Some(IntOrString::Int(port.port)),
        name: Some(port.name.clone()),
    });
    Some(ExternalEntity {
        metadata: ObjectMeta {
            namespace: Some(id.namespace.to_string()),
            name: Some(id.name.to_string()),
            labels: node.metadata.labels.clone(),
            owner_references: Some(vec![OwnerReference {
                api_version: "crd.antrea.io/v1alpha1".to_owned(),
                kind: "ExternalNode".to_owned(),
                name: key.name.to_string(),
                uid: uid(&node.metadata).to_string(),
                controller: None,
                block_owner_deletion: None,
            }]),
            ..ObjectMeta::default()
        },
        spec: ExternalEntitySpec {
            endpoints: addresses::in_order(interface, node.status.as_ref()).into_iter().map(endpoint).collect(),
            ports: ports.collect(),
            external_node: Some(key.name.to_string()),
        },
    })
}
