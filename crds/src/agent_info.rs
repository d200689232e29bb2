//! `AntreaAgentInfo`: the health of one agent, in the shape that existing dashboards and alerts read.

#![allow(clippy::struct_field_names, reason = "the names that the published kind has")]
#![allow(unreachable_pub, reason = "KubeSchema repeats each public struct inside a function")]
#![allow(
    clippy::duplicated_attributes,
    reason = "each printcolumn has a type of its own, which the lint takes for one"
)]

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema;

/// The health of one agent. These fields stand at the top of the object; there is no `spec` in it.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "crd.antrea.io",
    version = "v1beta1",
    kind = "AntreaAgentInfo",
    plural = "antreaagentinfos",
    singular = "antreaagentinfo",
    shortname = "aai",
    no_spec,
    derive = "PartialEq",
    derive = "Default",
    doc = "The health of one agent.",
    printcolumn(
        name = "Healthy",
        type_ = "string",
        json_path = ".agentConditions[?(@.type=='AgentHealthy')].status",
        description = "Whether the agent's heartbeats arrive."
    ),
    printcolumn(
        name = "Last Heartbeat",
        type_ = "date",
        json_path = ".agentConditions[?(@.type=='AgentHealthy')].lastHeartbeatTime",
        description = "When the agent was last heard of."
    ),
    printcolumn(
        name = "Version",
        type_ = "string",
        json_path = ".version",
        description = "The agent's version.",
        priority = 1
    ),
    printcolumn(
        name = "Node",
        type_ = "string",
        json_path = ".nodeRef.name",
        description = "The Node or ExternalNode.",
        priority = 1
    ),
    printcolumn(
        name = "Num Pods",
        type_ = "integer",
        json_path = ".localPodNum",
        description = "The Pods that the agent serves.",
        priority = 2
    ),
    printcolumn(
        name = "Subnets",
        type_ = "string",
        json_path = ".nodeSubnets",
        description = "The Pod networks of the Node.",
        priority = 2
    )
)]
#[serde(rename_all = "camelCase")]
pub struct AgentInfo {
    /// The agent's version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// What the agent runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<AgentRole>,
    /// The agent's Pod; none on an external node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::object_reference")]
    pub pod_ref: Option<ObjectReference>,
    /// The Node or ExternalNode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::object_reference")]
    pub node_ref: Option<ObjectReference>,
    /// The Pod networks of the Node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_subnets: Vec<String>,
    /// The Open vSwitch that the agent uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ovs_info: Option<OvsInfo>,
    /// How much policy the agent holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_policy_controller_info: Option<PolicyCounts>,
    /// The Pods that the agent serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_pod_num: Option<i32>,
    /// Whether the agent and its connections are well.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "schema::readable")]
    pub agent_conditions: Vec<AgentCondition>,
    /// The port of the agent's local API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub api_port: Option<i32>,
    /// The CA of the agent's local API, PEM in base64.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "apiCABundle")]
    #[schemars(extend("format" = "byte"))]
    pub api_ca_bundle: Option<String>,
    /// The ports set aside for NodePortLocal, as 61000-62000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_port_local_port_range: Option<String>,
    /// The Node's transport network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_info: Option<NetworkInfo>,
}

/// What an agent runs on.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[schemars(inline)]
pub enum AgentRole {
    /// A Node of the cluster.
    Node,
    /// A virtual machine outside it.
    #[serde(rename = "VM")]
    Vm,
    /// A machine outside it.
    #[serde(rename = "BM")]
    Bm,
}

/// The Open vSwitch of an agent.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct OvsInfo {
    /// Its version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The bridge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge_name: Option<String>,
    /// Flows per table.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub flow_table: BTreeMap<String, i32>,
}

/// How much policy is held.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PolicyCounts {
    /// Policies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_policy_num: Option<i32>,
    /// Groups of peers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_group_num: Option<i32>,
    /// Groups of targets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied_to_group_num: Option<i32>,
}

/// One thing that is well, or not.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AgentCondition {
    /// What.
    #[serde(rename = "type")]
    pub kind: AgentConditionType,
    /// Whether.
    pub status: ConditionStatus,
    /// When it was last known.
    #[schemars(schema_with = "schema::time")]
    pub last_heartbeat_time: Time,
    /// Why, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// What an agent's condition is about.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[schemars(inline)]
pub enum AgentConditionType {
    /// The agent's heartbeats arrive.
    AgentHealthy,
    /// The agent has its stream from the operator.
    ControllerConnectionUp,
    /// The agent has its connection to OVSDB.
    #[serde(rename = "OVSDBConnectionUp")]
    OvsdbConnectionUp,
    /// The agent has its connection to the bridge.
    OpenflowConnectionUp,
}

/// Whether something holds.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[schemars(inline)]
pub enum ConditionStatus {
    /// It does.
    True,
    /// It doesn't.
    False,
    /// Nobody knows.
    Unknown,
}

/// The transport network of a Node.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NetworkInfo {
    /// The interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport_interface: Option<String>,
    /// Its MTU in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "transportInterfaceMTU")]
    #[schemars(range(min = 0))]
    pub transport_interface_mtu: Option<i32>,
    /// The MTU of Pods in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "podMTU")]
    #[schemars(range(min = 0))]
    pub pod_mtu: Option<i32>,
    /// Its addresses, with prefix length.
    #[serde(default, skip_serializing_if = "Vec::is_empty", rename = "transportInterfaceIPs")]
    #[schemars(length(max = 2))]
    pub transport_interface_ips: Vec<String>,
}
