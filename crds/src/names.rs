//! Names as types, so that a node can't be passed where an entity is meant.
//!
//! All are shared text: cloning one counts a reference and copies nothing.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use uuid::Uuid;

/// Why a text is no name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {wanted}")]
pub struct NotAName {
    text: String,
    wanted: &'static str,
}

macro_rules! shared_text {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The text itself.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl<T: AsRef<str>> From<T> for $name {
            fn from(text: T) -> Self {
                Self(text.as_ref().into())
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

shared_text! {
    /// `metadata.uid` of an object: what tells a re-created object from its namesake.
    Uid
}

shared_text! {
    /// The key of a policy on the wire: the uid of the policy object.
    PolicyId
}

shared_text! {
    /// The name of an `ExternalEntity` inside the namespace of its node.
    EntityName
}

/// An object of some kind: `<namespace>/<name>` in text, or `<name>` when its kind is cluster-scoped.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The namespace; empty for a cluster-scoped kind.
    pub namespace: Arc<str>,
    /// The name; never empty.
    pub name: Arc<str>,
}

impl Key {
    /// `namespace/name`.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// `name` of a cluster-scoped kind.
    pub fn cluster(name: impl Into<Arc<str>>) -> Self {
        Self::new("", name)
    }

    /// The key of the object that `meta` belongs to.
    pub fn of(meta: &ObjectMeta) -> Self {
        Self::new(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.namespace {
            "" => f.write_str(&self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Key {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        let wrong = || NotAName { text: text.to_owned(), wanted: "<namespace>/<name>" };
        let (namespace, name) = text.split_once('/').ok_or_else(wrong)?;
        if is_dns_subdomain(namespace) && is_dns_subdomain(name) {
            Ok(Self::new(namespace, name))
        } else {
            Err(wrong())
        }
    }
}

/// RFC 1123 subdomain as Kubernetes takes it for object names: at most 253 of `[a-z0-9.-]`, alphanumeric at both ends.
pub fn is_dns_subdomain(text: &str) -> bool {
    let label = |label: &str| {
        let bytes = label.as_bytes();
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        bytes.first().is_some_and(|b| plain(*b))
            && bytes.last().is_some_and(|b| plain(*b))
            && bytes.iter().all(|b| plain(*b) || *b == b'-')
    };
    text.len() <= 253 && text.split('.').all(label)
}

/// The node key on the wire: external node `<namespace>/<name>`.
///
/// (The `<name>` of a Kubernetes Node joins when Nodes get agents.)
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(Key);

impl NodeName {
    /// The external node `namespace/name`.
    pub fn external(key: Key) -> Self {
        Self(key)
    }

    /// The `ExternalNode` object that this node is.
    pub fn key(&self) -> &Key {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for NodeName {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        text.parse().map(Self)
    }
}

/// The key of a group on the wire: a UUIDv5 of its normalised selector, so equal selectors share one group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GroupKey(Uuid);

impl GroupKey {
    /// Our own UUIDv5 namespace: other products' group names are never equal to ours.
    const SPACE: Uuid = Uuid::from_u128(0x0e4d_35f6_1c55_5f0e_9b1a_6f75_7472_6401);

    /// The key of the group that `normalised` selects.
    pub fn of(normalised: &str) -> Self {
        Self(Uuid::new_v5(&Self::SPACE, normalised.as_bytes()))
    }
}

impl fmt::Display for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for GroupKey {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        Uuid::parse_str(text).map(Self).map_err(|_| NotAName { text: text.to_owned(), wanted: "a UUID" })
    }
}

macro_rules! serde_as_text {
    ($($name:ty),*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(de::Error::custom)
            }
        }
    )*};
}

serde_as_text!(Key, NodeName);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_name_has_a_namespace_and_a_name() {
        let node: NodeName = "vms/vm1.prod.example.com".parse().unwrap();
        assert_eq!(node.to_string(), "vms/vm1.prod.example.com");
        for wrong in ["vm1", "/vm1", "vms/", "vms/VM1", "vms/a/b", "vms/-a", "a b/c", "vms/a..b"] {
            assert!(wrong.parse::<NodeName>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn equal_selectors_have_one_group_key() {
        assert_eq!(GroupKey::of("x"), GroupKey::of("x"));
        assert_ne!(GroupKey::of("x"), GroupKey::of("y"));
        let key = GroupKey::of("x");
        assert_eq!(key.to_string().parse(), Ok(key));
    }
}
