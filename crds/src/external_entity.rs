//! `ExternalEntity`: something outside the cluster that policies select by label.

#![allow(unreachable_pub, reason = "KubeSchema repeats each public struct inside a function")]

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::schema;
pub use crate::wire::Protocol;

/// Where something outside the cluster is, and who enforces policies on it.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "crd.antrea.io",
    version = "v1alpha2",
    kind = "ExternalEntity",
    plural = "externalentities",
    singular = "externalentity",
    shortname = "ee",
    namespaced,
    derive = "PartialEq",
    derive = "Default",
    doc = "Something outside the cluster that policies select by label: one interface of an ExternalNode, or made by hand."
)]
#[serde(rename_all = "camelCase")]
pub struct ExternalEntitySpec {
    /// Its addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<Endpoint>,
    /// Ports that policies may call by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<EntityPort>,
    /// The name of the ExternalNode whose agent enforces. Written by the operator; without effect when written by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_node: Option<String>,
}

/// One address.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// The address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::ip")]
    pub ip: Option<String>,
    /// The interface that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A port of the entity.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct EntityPort {
    /// Whose port it is; TCP when nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::protocol")]
    pub protocol: Option<Protocol>,
    /// The number. A text is stored, but names no port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::int_or_string")]
    pub port: Option<IntOrString>,
    /// What policies call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl EntityPort {
    /// The number, when it is one that a packet can carry.
    pub fn number(&self) -> Option<u16> {
        match self.port.as_ref()? {
            IntOrString::Int(number) => u16::try_from(*number).ok().filter(|number| *number != 0),
            IntOrString::String(_) => None,
        }
    }
}
