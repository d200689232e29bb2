//! `ExternalNodeBinding`: who may act for which external nodes.

#![allow(unreachable_pub, reason = "KubeSchema repeats each public struct inside a function")]
#![allow(
    clippy::duplicated_attributes,
    reason = "each printcolumn has a type of its own, which the lint takes for one"
)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema;

/// Who may act for which external nodes of the binding's own namespace.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "outrider.io",
    version = "v1alpha1",
    kind = "ExternalNodeBinding",
    plural = "externalnodebindings",
    singular = "externalnodebinding",
    shortname = "enb",
    namespaced,
    status = "ExternalNodeBindingStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "Says who may act for which ExternalNodes of its own namespace. Without a binding nobody may.",
    printcolumn(
        name = "Accepted",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Accepted')].status",
        description = "Whether the binding has effect."
    ),
    printcolumn(
        name = "External Nodes",
        type_ = "string",
        json_path = ".status.externalNodes",
        description = "The nodes it covers now."
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.externalNodes) != has(self.nodeSelector)")
        .message("give exactly one of externalNodes and nodeSelector")
)]
pub struct ExternalNodeBindingSpec {
    /// Who may act.
    #[schemars(length(min = 1, max = 256))]
    pub subjects: Vec<Subject>,
    /// The names of the ExternalNodes; "*" stands for all of the namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 4096), inner(length(min = 1, max = 253)))]
    #[schemars(inner(regex(pattern = r"^(\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)$")))]
    pub external_nodes: Vec<String>,
    /// The ExternalNodes by label; an empty selector selects all of the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::selector")]
    pub node_selector: Option<LabelSelector>,
}

/// Someone whom the API server can name.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(self.kind == 'ServiceAccount') == has(self.namespace)")
        .message("a ServiceAccount needs a namespace; a User or Group has none")
)]
pub struct Subject {
    /// What the name is of.
    pub kind: SubjectKind,
    /// The name, as the API server knows it.
    #[schemars(length(min = 1, max = 1024))]
    pub name: String,
    /// The namespace of a ServiceAccount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,
}

/// What the name of a subject is of.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[schemars(inline)]
pub enum SubjectKind {
    /// A ServiceAccount, of any namespace.
    ServiceAccount,
    /// A user by name.
    User,
    /// All users of a group.
    Group,
}

/// What became of a binding.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ExternalNodeBindingStatus {
    /// The names of the ExternalNodes that the binding covers now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub external_nodes: Vec<String>,
    /// The generation of the object that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Accepted, with its reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "schema::readable")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}
