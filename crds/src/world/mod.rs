//! Every watched object as last seen: a value that events change and everything else reads.
//!
//! ```text
//! watch (I/O) --Event--> World --> resolve, plan, authorize, review (pure)
//! ```
//!
//! Until each kind was listed once, [`World::ready`] is false and nothing may be concluded from what is missing.
//! An object that can't be decoded is kept as [`Stored::Bad`]: it is that object's trouble and nobody else's.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::DynamicObject;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::agent_info::AntreaAgentInfo;
use crate::binding::ExternalNodeBinding;
use crate::controller_info::AntreaControllerInfo;
use crate::external_entity::ExternalEntity;
use crate::external_node::ExternalNode;
use crate::names::{Key, Uid};
use crate::policy::NetworkPolicy;
use crate::tier::Tier;

#[cfg(feature = "watch")]
pub mod watch;

#[cfg(test)]
mod tests;

/// An object of which only the metadata matters here.
#[derive(Clone, Debug, PartialEq)]
pub struct Bare {
    /// Its metadata, without managed fields.
    pub metadata: ObjectMeta,
}

/// A kind that a [`World`] can hold.
pub trait Watched: Sized + Clone + PartialEq + fmt::Debug {
    /// The typed object, or why it can't be read.
    fn decode(object: DynamicObject) -> Result<Self, Box<Bad>>;

    /// Its metadata.
    fn meta(&self) -> &ObjectMeta;
}

impl Watched for Bare {
    fn decode(object: DynamicObject) -> Result<Self, Box<Bad>> {
        Ok(Self { metadata: object.metadata })
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
}

/// An object that can't be read, by what is known of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Bad {
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// Its `status`, as it stands: what is wrong may be there or elsewhere.
    pub status: Value,
    /// What is wrong, with the path of the field.
    pub error: String,
}

/// One object as last seen.
#[derive(Clone, Debug, PartialEq)]
pub enum Stored<K> {
    /// As it should be.
    Good(Arc<K>),
    /// Not readable.
    Bad(Arc<Bad>),
}

impl<K: Watched> Stored<K> {
    /// `object` read as a `K`.
    pub fn decode(mut object: DynamicObject) -> Self {
        // the larger half of many objects, and nobody here reads it
        object.metadata.managed_fields = None;
        match K::decode(object) {
            Ok(good) => Self::Good(Arc::new(good)),
            Err(bad) => Self::Bad(Arc::from(bad)),
        }
    }

    /// Its metadata, readable or not.
    pub fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Good(object) => object.meta(),
            Self::Bad(bad) => &bad.metadata,
        }
    }

    /// The object, when it is readable.
    pub fn good(&self) -> Option<&Arc<K>> {
        match self {
            Self::Good(object) => Some(object),
            Self::Bad(_) => None,
        }
    }
}

/// All objects of one kind.
pub type Table<K> = BTreeMap<Key, Stored<K>>;

fn decode_as<K: DeserializeOwned>(object: DynamicObject) -> Result<K, Box<Bad>> {
    let metadata = object.metadata.clone();
    let bad = |status, error: String| Box::new(Bad { metadata, status, error });
    let mut value = match serde_json::to_value(object) {
        Ok(value) => value,
        Err(error) => return Err(bad(Value::Null, error.to_string())),
    };
    K::deserialize(&value).map_err(|_| {
        // once more for the path of the field
        let error = serde_path_to_error::deserialize::<_, K>(&value).err().map(|e| e.to_string()).unwrap_or_default();
        bad(value["status"].take(), error)
    })
}

macro_rules! typed {
    ($($kind:ty),*) => {$(
        impl Watched for $kind {
            fn decode(object: DynamicObject) -> Result<Self, Box<Bad>> {
                decode_as(object)
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }
        }
    )*};
}

typed!(ExternalNode, ExternalEntity, NetworkPolicy, Tier, ExternalNodeBinding, AntreaAgentInfo, AntreaControllerInfo);

macro_rules! world {
    ($($(#[$doc:meta])* $field:ident: $kind:ident($type:ty) = $group:literal / $version:literal / $plural:literal / $object:literal;)*) => {
        /// The kinds that a [`World`] holds.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum WorldKind {
            $($(#[$doc])* $kind,)*
        }

        impl WorldKind {
            /// Every kind.
            pub const ALL: &'static [Self] = &[$(Self::$kind),*];

            /// API group, version, plural and kind.
            pub fn resource(self) -> (&'static str, &'static str, &'static str, &'static str) {
                match self {
                    $(Self::$kind => ($group, $version, $plural, $object),)*
                }
            }
        }

        /// An object of any of the kinds.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Object {
            $($(#[$doc])* $kind(Stored<$type>),)*
        }

        impl Object {
            /// `object` read as one of `kind`.
            pub fn decode(kind: WorldKind, object: DynamicObject) -> Self {
                match kind {
                    $(WorldKind::$kind => Self::$kind(Stored::decode(object)),)*
                }
            }

            /// Its kind.
            pub fn kind(&self) -> WorldKind {
                match self {
                    $(Self::$kind(_) => WorldKind::$kind,)*
                }
            }

            /// Its metadata.
            pub fn meta(&self) -> &ObjectMeta {
                match self {
                    $(Self::$kind(stored) => stored.meta(),)*
                }
            }
        }

        /// Every watched object, as last seen.
        #[derive(Clone, Debug, PartialEq)]
        pub struct World {
            $($(#[$doc])* pub $field: Table<$type>,)*
            missing: BTreeSet<WorldKind>,
        }

        impl World {
            /// An empty world that is ready once each of `kinds` was listed.
            pub fn waiting_for(kinds: &[WorldKind]) -> Self {
                Self { $($field: Table::new(),)* missing: kinds.iter().copied().collect() }
            }

            /// Takes in one event and names the objects that are other than they were.
            pub fn apply(&mut self, event: Event) -> Vec<Touch> {
                match event {
                    $(Event::Put(Object::$kind(stored)) => put(WorldKind::$kind, &mut self.$field, stored).into_iter().collect(),)*
                    Event::Delete(object) => self.delete(object.kind(), object.meta()).into_iter().collect(),
                    Event::Listed(kind, objects) => self.list(kind, objects),
                }
            }

            fn delete(&mut self, kind: WorldKind, meta: &ObjectMeta) -> Option<Touch> {
                match kind {
                    $(WorldKind::$kind => delete(kind, &mut self.$field, meta),)*
                }
            }

            fn keys(&self, kind: WorldKind) -> BTreeSet<Key> {
                match kind {
                    $(WorldKind::$kind => self.$field.keys().cloned().collect(),)*
                }
            }

            fn remove(&mut self, kind: WorldKind, key: &Key) {
                match kind {
                    $(WorldKind::$kind => _ = self.$field.remove(key),)*
                }
            }

            /// How many objects of `kind` there are, and how many of them can't be read.
            pub fn count(&self, kind: WorldKind) -> (usize, usize) {
                match kind {
                    $(WorldKind::$kind => (
                        self.$field.len(),
                        self.$field.values().filter(|stored| stored.good().is_none()).count(),
                    ),)*
                }
            }
        }
    };
}

world! {
    /// Namespaces: their labels, and whether they are going.
    namespaces: Namespace(Bare) = "" / "v1" / "namespaces" / "Namespace";
    /// Kubernetes Nodes: their names.
    nodes: Node(Bare) = "" / "v1" / "nodes" / "Node";
    /// Our own CustomResourceDefinitions: whether they stand.
    definitions: Definition(Bare) = "apiextensions.k8s.io" / "v1" / "customresourcedefinitions" / "CustomResourceDefinition";
    /// Validating webhooks: whether another product's are in the cluster.
    validating_webhooks: ValidatingWebhook(Bare) = "admissionregistration.k8s.io" / "v1" / "validatingwebhookconfigurations" / "ValidatingWebhookConfiguration";
    /// ExternalNodes.
    external_nodes: ExternalNode(ExternalNode) = "crd.antrea.io" / "v1alpha1" / "externalnodes" / "ExternalNode";
    /// ExternalEntities, ours and others'.
    external_entities: ExternalEntity(ExternalEntity) = "crd.antrea.io" / "v1alpha2" / "externalentities" / "ExternalEntity";
    /// Policies.
    policies: NetworkPolicy(NetworkPolicy) = "crd.antrea.io" / "v1beta1" / "networkpolicies" / "NetworkPolicy";
    /// Tiers.
    tiers: Tier(Tier) = "crd.antrea.io" / "v1beta1" / "tiers" / "Tier";
    /// Who may act for which ExternalNode.
    bindings: Binding(ExternalNodeBinding) = "outrider.io" / "v1alpha1" / "externalnodebindings" / "ExternalNodeBinding";
    /// Health objects of agents.
    agent_infos: AgentInfo(AntreaAgentInfo) = "crd.antrea.io" / "v1beta1" / "antreaagentinfos" / "AntreaAgentInfo";
    /// The health object of another product's controller.
    controller_infos: ControllerInfo(AntreaControllerInfo) = "crd.antrea.io" / "v1beta1" / "antreacontrollerinfos" / "AntreaControllerInfo";
}

impl WorldKind {
    /// Whether the kind is one that another product knows too, and whose controller may own it.
    pub fn is_shared(self) -> bool {
        self.resource().0 == "crd.antrea.io"
    }
}

impl fmt::Display for WorldKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.resource().3)
    }
}

/// What a watch says.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The object is this.
    Put(Object),
    /// The object, as last seen by the server, is no more.
    Delete(Object),
    /// These are all objects of the kind.
    Listed(WorldKind, Vec<Object>),
}

/// An object that changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Touch {
    /// Its kind.
    pub kind: WorldKind,
    /// Its key.
    pub key: Key,
}

impl World {
    /// Whether each awaited kind was listed once. Never false again.
    pub fn ready(&self) -> bool {
        self.missing.is_empty()
    }

    /// The kinds that were not listed yet.
    pub fn missing(&self) -> impl Iterator<Item = WorldKind> + '_ {
        self.missing.iter().copied()
    }

    fn list(&mut self, kind: WorldKind, objects: Vec<Object>) -> Vec<Touch> {
        let mut gone = self.keys(kind);
        let mut touched = Vec::new();
        for object in objects {
            gone.remove(&Key::of(object.meta()));
            touched.extend(self.apply(Event::Put(object)));
        }
        for key in gone {
            self.remove(kind, &key);
            touched.push(Touch { kind, key });
        }
        self.missing.remove(&kind);
        touched
    }
}

fn put<K: Watched>(kind: WorldKind, table: &mut Table<K>, new: Stored<K>) -> Option<Touch> {
    let key = Key::of(new.meta());
    if let Some(old) = table.get(&key) {
        // what a write of ours answered may overtake, or be overtaken by, the watch
        if version(old.meta()) > version(new.meta()) || *old == new {
            return None;
        }
    }
    table.insert(key.clone(), new);
    Some(Touch { kind, key })
}

fn delete<K: Watched>(kind: WorldKind, table: &mut Table<K>, meta: &ObjectMeta) -> Option<Touch> {
    let key = Key::of(meta);
    // a late word about a namesake that was replaced
    let other = |old: &Stored<K>| old.meta().uid != meta.uid && version(old.meta()) > version(meta);
    if table.get(&key).is_none_or(other) {
        return None;
    }
    table.remove(&key);
    Some(Touch { kind, key })
}

/// `resourceVersion` as a number, which Kubernetes compares since 1.35 and etcd always made so; 0 when it is none.
fn version(meta: &ObjectMeta) -> u64 {
    meta.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or_default()
}

/// The uid in `meta`; empty for an object that was never stored.
pub fn uid(meta: &ObjectMeta) -> Uid {
    meta.uid.as_deref().unwrap_or_default().into()
}
