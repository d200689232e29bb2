//! What plans return: effects as data, each on one object, each refused by the server when the object is not as seen.

use std::fmt;

use crds::names::Key;
use crds::world::WorldKind;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{DynamicObject, TypeMeta};
use serde::Serialize;

#[cfg(test)]
mod tests;

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Makes the object. One that is there already is a conflict.
    Create(WorldKind, Box<DynamicObject>),
    /// Puts the object in the place of the version that it names.
    Replace(WorldKind, Box<DynamicObject>),
    /// Puts the status of the object in the place of the version that it names.
    ReplaceStatus(WorldKind, Box<DynamicObject>),
    /// Deletes the object, this one and no namesake, this version and no later.
    Delete(WorldKind, Box<ObjectMeta>),
}

impl Change {
    /// The kind that is written.
    pub fn kind(&self) -> WorldKind {
        match self {
            Self::Create(kind, _) | Self::Replace(kind, _) | Self::ReplaceStatus(kind, _) | Self::Delete(kind, _) => {
                *kind
            }
        }
    }

    /// The object that is written.
    pub fn key(&self) -> Key {
        match self {
            Self::Create(_, object) | Self::Replace(_, object) | Self::ReplaceStatus(_, object) => {
                Key::of(&object.metadata)
            }
            Self::Delete(_, meta) => Key::of(meta),
        }
    }

    /// The verb, for logs and metrics.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Create(..) => "create",
            Self::Replace(..) => "update",
            Self::ReplaceStatus(..) => "update_status",
            Self::Delete(..) => "delete",
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.verb(), self.kind(), self.key())
    }
}

/// `typed` as the API server takes it.
pub fn object<K: Serialize>(kind: WorldKind, typed: &K) -> Box<DynamicObject> {
    let (group, version, _, name) = kind.resource();
    let mut value = serde_json::to_value(typed).expect("kinds are maps with text keys");
    let type_meta = TypeMeta { api_version: format!("{group}/{version}"), kind: name.to_owned() };
    let metadata = value.get_mut("metadata").map(serde_json::Value::take).unwrap_or_default();
    let metadata = serde_json::from_value(metadata).unwrap_or_default();
    if let Some(map) = value.as_object_mut() {
        for field in ["metadata", "apiVersion", "kind"] {
            map.remove(field);
        }
    }
    Box::new(DynamicObject { types: Some(type_meta), metadata, data: value })
}
