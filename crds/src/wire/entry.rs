//! One object of a view, with its text and hash made once and shared by every connection.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::view::{Delta, Group, Node, Policy};
use crate::hash::Hash;
use crate::names::{GroupKey, NodeName, PolicyId};

/// The kinds of object that a view is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The agent's own ExternalNode.
    Node,
    /// The addresses that one selector selects.
    Group,
    /// A policy that applies to this node.
    Policy,
}

impl Kind {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Group => "group",
            Self::Policy => "policy",
        }
    }
}

/// An object of a view by kind and key: `<kind>/<key>` in text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectId {
    /// The node's own object.
    Node(NodeName),
    /// A group.
    Group(GroupKey),
    /// A policy.
    Policy(PolicyId),
}

impl ObjectId {
    /// The kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Node(_) => Kind::Node,
            Self::Group(_) => Kind::Group,
            Self::Policy(_) => Kind::Policy,
        }
    }

    /// The key alone.
    pub fn key(&self) -> String {
        match self {
            Self::Node(key) => key.to_string(),
            Self::Group(key) => key.to_string(),
            Self::Policy(key) => key.to_string(),
        }
    }

    /// The object `key` of `kind`; the reason when the key has the wrong shape.
    pub fn new(kind: Kind, key: &str) -> Result<Self, String> {
        match kind {
            Kind::Node => key.parse().map(Self::Node).map_err(|e: crate::names::NotAName| e.to_string()),
            Kind::Group => key.parse().map(Self::Group).map_err(|e: crate::names::NotAName| e.to_string()),
            Kind::Policy if key.is_empty() => Err("a policy's key is its uid".to_owned()),
            Kind::Policy => Ok(Self::Policy(key.into())),
        }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind().as_str(), self.key())
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ObjectId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || format!("{text:?} is not node/…, group/… or policy/…");
        let (kind, key) = text.split_once('/').ok_or_else(unknown)?;
        let kind = match kind {
            "node" => Kind::Node,
            "group" => Kind::Group,
            "policy" => Kind::Policy,
            _ => return Err(unknown()),
        };
        Self::new(kind, key)
    }
}

impl Serialize for ObjectId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ObjectId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// A body that a `put` can carry.
pub trait Object: Serialize + DeserializeOwned + Clone + PartialEq + fmt::Debug {
    /// What its key is.
    type Key: Clone + Ord + fmt::Debug;

    /// Where `key` stands among all objects.
    fn id(key: &Self::Key) -> ObjectId;
}

impl Object for Node {
    type Key = NodeName;

    fn id(key: &NodeName) -> ObjectId {
        ObjectId::Node(key.clone())
    }
}

impl Object for Policy {
    type Key = PolicyId;

    fn id(key: &PolicyId) -> ObjectId {
        ObjectId::Policy(key.clone())
    }
}

impl Object for Group {
    type Key = GroupKey;

    fn id(key: &GroupKey) -> ObjectId {
        ObjectId::Group(*key)
    }
}

/// A body under its key, with its hash and its `put` line: each made when first asked for, then shared.
///
/// The body never changes; a changed object is a new entry. Equal means equal key and body.
pub struct Entry<T: Object> {
    key: T::Key,
    body: T,
    hash: OnceLock<Hash>,
    line: OnceLock<Bytes>,
    /// The last difference made towards this entry, for the other connections that come from the same version.
    delta: Mutex<Option<(Hash, Arc<Delta>)>>,
}

impl<T: Object> Entry<T> {
    /// `body` under `key`; nothing is encoded yet.
    pub fn new(key: T::Key, body: T) -> Self {
        Self { key, body, hash: OnceLock::new(), line: OnceLock::new(), delta: Mutex::new(None) }
    }

    /// An entry as the operator sent it: the hash is kept, never computed.
    pub fn received(key: T::Key, body: T, hash: Hash) -> Self {
        let entry = Self::new(key, body);
        // a fresh lock is empty
        let _ = entry.hash.set(hash);
        entry
    }

    /// The key.
    pub fn key(&self) -> &T::Key {
        &self.key
    }

    /// The body.
    pub fn body(&self) -> &T {
        &self.body
    }

    /// The kind and key.
    pub fn id(&self) -> ObjectId {
        T::id(&self.key)
    }

    /// The hash of the body as sent.
    pub fn hash(&self) -> Hash {
        *self.hash.get_or_init(|| Hash::of(&encode(&self.body)))
    }

    /// The `put` frame of this entry, with its line end.
    pub fn put_line(&self) -> Bytes {
        self.line.get_or_init(|| self.make_line()).clone()
    }

    fn make_line(&self) -> Bytes {
        let body = encode(&self.body);
        let hash = *self.hash.get_or_init(|| Hash::of(&body));
        let id = self.id();
        let key = serde_json::Value::String(id.key());
        let mut line =
            format!(r#"{{"frame":"put","kind":"{}","key":{key},"hash":"{hash}","body":"#, id.kind().as_str())
                .into_bytes();
        line.reserve_exact(body.len() + 2);
        line.extend_from_slice(&body);
        line.extend_from_slice(b"}\n");
        line.into()
    }

    /// Changes the body: in place when nobody else holds the entry, else in a copy that takes its place.
    pub fn edit(this: &mut Arc<Self>, change: impl FnOnce(&mut T))
    where
        T: Default,
    {
        let mut body = match Arc::get_mut(this) {
            Some(own) => std::mem::take(&mut own.body),
            None => this.body.clone(),
        };
        change(&mut body);
        *this = Arc::new(Self::new(this.key.clone(), body));
    }

    /// The difference from the version with hash `from`, made by `make` unless the last caller came from there too.
    pub(super) fn delta_from(&self, from: Hash, make: impl FnOnce() -> Delta) -> Arc<Delta> {
        let mut last = self.delta.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((hash, delta)) if *hash == from => Arc::clone(delta),
            _ => {
                let delta = Arc::new(make());
                *last = Some((from, Arc::clone(&delta)));
                delta
            }
        }
    }
}

/// JSON as hashed and sent: one text per value, since maps and sets are sorted and addresses print as RFC 5952 says.
fn encode<T: Serialize>(body: &T) -> Vec<u8> {
    serde_json::to_vec(body).expect("bodies are maps with text keys, lists, text and finite numbers")
}

impl<T: Object> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key && self.body == other.body
    }
}

impl<T: Object> fmt::Debug for Entry<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple(T::id(&self.key).kind().as_str()).field(&self.key).field(&self.body).finish()
    }
}

impl<T: Object> Clone for Entry<T> {
    fn clone(&self) -> Self {
        let Self { key, body, hash, line, delta: _ } = self;
        Self { key: key.clone(), body: body.clone(), hash: hash.clone(), line: line.clone(), delta: Mutex::new(None) }
    }
}
