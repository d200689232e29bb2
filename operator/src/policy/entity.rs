//! Who can be selected: the entities of ExternalNodes, computed from the nodes themselves, and hand-made entities.
//!
//! An owned `ExternalEntity` is a copy of what its ExternalNode says. Policies look at the original: an edited or
//! deleted copy changes nothing that is enforced, and a rename never leaves a moment without an entity.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crds::external_entity::ExternalEntity;
use crds::external_node::{ExternalNode, NamedPort, NetworkInterface};
use crds::names::{EntityName, Key, NodeName, Uid};
use crds::wire::{Interface, Member, MemberPort, MemberRef, Node};
use crds::world::{Stored, World, uid};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::selector::Labels;
use crate::external_node::addresses;
use crate::external_node::naming::entity_name;

#[cfg(test)]
mod tests;

/// Something that policies can select.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entity {
    /// What selectors look at.
    pub labels: Arc<Labels>,
    /// What peers are told.
    pub member: Arc<Member>,
    /// The node that enforces policies on it; none for a hand-made entity.
    pub node: Option<NodeName>,
}

/// Which live ExternalNodes want an entity of which name.
pub type Claims = BTreeMap<Key, BTreeSet<Key>>;

/// What stands at one entity name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Nobody.
    Nobody,
    /// A hand-made entity, whoever else wants the name.
    Foreign,
    /// This ExternalNode: the oldest of those that want the name.
    Node(Key),
}

/// The ExternalNode at `key`, unless it, or its namespace, is being deleted.
pub fn live<'w>(world: &'w World, key: &Key) -> Option<&'w Arc<ExternalNode>> {
    let stored = world.external_nodes.get(key)?;
    let namespace = world.namespaces.get(&Key::cluster(key.namespace.clone()));
    let going = |meta: &ObjectMeta| meta.deletion_timestamp.is_some();
    if going(stored.meta()) || namespace.is_some_and(|n| going(n.meta())) {
        return None;
    }
    stored.good()
}

/// The names that `node` wants for its entities: one per interface that has an address.
pub fn claimed(key: &Key, node: &ExternalNode) -> BTreeSet<Key> {
    let interfaces = node.spec.interfaces.iter().filter(|i| !addresses::of(i, node.status.as_ref()).is_empty());
    interfaces.map(|i| Key::new(key.namespace.clone(), entity_name(&key.name, i.name()))).collect()
}

/// Who holds the entity name `id`, given who claims it.
pub fn holder(world: &World, claims: &Claims, id: &Key) -> Holder {
    let stored = world.external_entities.get(id);
    let claimants = claims.get(id).into_iter().flatten();
    if stored.is_some_and(|entity| owner(entity.meta()).is_none()) {
        return Holder::Foreign;
    }
    claimants.min_by_key(|key| age(world, key)).map_or(Holder::Nobody, |key| Holder::Node(key.clone()))
}

/// What decides between ExternalNodes that want one name: the oldest, and among equals the first by name.
pub fn age(world: &World, key: &Key) -> (Option<jiff::Timestamp>, Key) {
    let meta = world.external_nodes.get(key).map(Stored::meta);
    (meta.and_then(|meta| meta.creation_timestamp.as_ref().map(|time| time.0)), key.clone())
}

/// The uid of the ExternalNode that an entity names as its owner, alive or not.
pub fn owner(meta: &ObjectMeta) -> Option<Uid> {
    let owners = meta.owner_references.iter().flatten();
    let nodes = owners.filter(|o| o.kind == "ExternalNode" && o.api_version.starts_with("crd.antrea.io/"));
    nodes.map(|o| o.uid.as_str().into()).next()
}

/// What policies see at the entity name `id`.
pub fn entity_at(world: &World, claims: &Claims, id: &Key) -> Option<Entity> {
    match holder(world, claims, id) {
        Holder::Node(key) => of_node(&key, live(world, &key)?, id),
        Holder::Foreign => world.external_entities.get(id)?.good().map(|e| hand_made(e)),
        // what is stored, if anything, names an owner that doesn't want it: it is about to be deleted
        Holder::Nobody => None,
    }
}

fn of_node(key: &Key, node: &ExternalNode, id: &Key) -> Option<Entity> {
    let named = |i: &&NetworkInterface| *entity_name(&key.name, i.name()) == *id.name;
    let interface = node.spec.interfaces.iter().find(named)?;
    let member = Member {
        ips: addresses::of(interface, node.status.as_ref()),
        ports: interface.ports.iter().filter_map(named_port).collect(),
    };
    Some(Entity {
        labels: Arc::new(node.metadata.labels.clone().unwrap_or_default()),
        member: Arc::new(member),
        node: Some(NodeName::external(key.clone())),
    })
}

fn hand_made(entity: &ExternalEntity) -> Entity {
    let ips = entity.spec.endpoints.iter().filter_map(|e| e.ip.as_deref()?.parse::<IpAddr>().ok());
    let ports = entity.spec.ports.iter().filter_map(|port| {
        let name = port.name.as_deref().filter(|name| !name.is_empty())?;
        Some(MemberPort { name: name.into(), protocol: port.protocol.unwrap_or_default(), port: port.number()? })
    });
    Entity {
        labels: Arc::new(entity.metadata.labels.clone().unwrap_or_default()),
        member: Arc::new(Member { ips: ips.collect(), ports: ports.collect() }),
        node: None,
    }
}

fn named_port(port: &NamedPort) -> Option<MemberPort> {
    let number = u16::try_from(port.port).ok().filter(|n| *n > 0)?;
    Some(MemberPort { name: port.name.as_str().into(), protocol: port.protocol, port: number })
}

/// What the node itself is told: its uid and its interfaces, with or without an address so far.
pub fn node_body(key: &Key, node: &ExternalNode) -> Node {
    let interface = |i: &NetworkInterface| Interface {
        entity: EntityName::from(entity_name(&key.name, i.name())),
        name: i.name().map(ToOwned::to_owned),
        mac: i.mac.clone().filter(|mac| !mac.is_empty()),
        ips: addresses::listed(i),
        allowed_cidrs: addresses::allowed(i),
        ports: i.ports.iter().filter_map(named_port).collect(),
    };
    Node { uid: uid(&node.metadata), interfaces: node.spec.interfaces.iter().map(interface).collect() }
}

/// How a group names the entity `id`.
pub fn member_ref(id: &Key) -> MemberRef {
    thread_local! {
        static KIND: Arc<str> = "ExternalEntity".into();
    }
    MemberRef { kind: KIND.with(Arc::clone), namespace: id.namespace.clone(), name: id.name.clone() }
}
