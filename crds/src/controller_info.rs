//! `AntreaControllerInfo`, read only: a live one means that somebody else owns the kinds we share.

#![allow(unreachable_pub, reason = "KubeSchema repeats each public struct inside a function")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::agent_info::ConditionStatus;
use crate::schema;

/// What we read of a foreign controller. These fields stand at the top of the object; there is no `spec` in it.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "crd.antrea.io",
    version = "v1beta1",
    kind = "AntreaControllerInfo",
    plural = "antreacontrollerinfos",
    singular = "antreacontrollerinfo",
    shortname = "aci",
    no_spec,
    derive = "PartialEq",
    derive = "Default"
)]
#[serde(rename_all = "camelCase")]
pub struct ControllerInfo {
    /// The controller's version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Whether the controller is well.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "schema::readable")]
    pub controller_conditions: Vec<ControllerCondition>,
}

/// One thing that is well with a controller, or not.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ControllerCondition {
    /// What; `ControllerHealthy` is the only one known.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether.
    pub status: ConditionStatus,
    /// When the controller last said so.
    #[schemars(schema_with = "schema::time")]
    pub last_heartbeat_time: Time,
}

impl AntreaControllerInfo {
    /// When the controller last gave a sign of life.
    pub fn last_heartbeat(&self) -> Option<&Time> {
        self.spec.controller_conditions.iter().map(|condition| &condition.last_heartbeat_time).max()
    }
}
