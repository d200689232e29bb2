//! `ExternalNode`: a machine outside the cluster, and what became of it.

#![allow(unreachable_pub, reason = "KubeSchema repeats each public struct inside a function")]
#![allow(
    clippy::duplicated_attributes,
    reason = "each printcolumn has a type of its own, which the lint takes for one"
)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::schema;
pub use crate::wire::Protocol;

/// What a machine outside the cluster looks like: its interfaces, and who may be it.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "crd.antrea.io",
    version = "v1alpha1",
    kind = "ExternalNode",
    plural = "externalnodes",
    singular = "externalnode",
    shortname = "en",
    namespaced,
    status = "ExternalNodeStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A machine outside the cluster whose interfaces policies are enforced on.",
    printcolumn(
        name = "Attached",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Attached')].status",
        description = "Whether the agent holds the interfaces."
    ),
    printcolumn(
        name = "IPs",
        type_ = "string",
        json_path = ".status.interfaces[*].ips",
        description = "The addresses on the first interface."
    ),
    printcolumn(
        name = "Healthy",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Healthy')].status",
        description = "Whether the agent's heartbeats arrive."
    ),
    printcolumn(
        name = "Version",
        type_ = "string",
        json_path = ".status.agentVersion",
        description = "The agent's version.",
        priority = 1
    ),
    printcolumn(
        name = "Last Heartbeat",
        type_ = "date",
        json_path = ".status.lastHeartbeat",
        description = "When the agent was last heard of; written at most each 60 s."
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ExternalNodeSpec {
    /// The interfaces that policies are enforced on. Each becomes one ExternalEntity with the labels of this object.
    #[schemars(length(min = 1, max = 64))]
    #[x_kube(
        validation = Rule::new("self.size() <= 1 || self.all(i, has(i.name) && i.name != '')")
            .message("with more than one interface each needs a name, which its ExternalEntity is named after"),
        validation = Rule::new(
            "self.all(i, !has(i.name) || i.name == '' || self.exists_one(j, has(j.name) && j.name == i.name))"
        )
        .message("two interfaces have the same name; names must be unique within the ExternalNode")
    )]
    pub interfaces: Vec<NetworkInterface>,
    /// How the machine proves to be this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<NodeIdentity>,
}

/// One interface: found on the machine by name, MAC or addresses.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.ips) || (has(self.name) && self.name != '') || has(self.mac)")
        .message("give ips, name or mac: an interface without any can't be found on the machine"),
    validation = Rule::new("has(self.ips) || has(self.mac) || !has(self.name) || self.name.size() <= 15")
        .message("no interface of Linux has a name longer than 15 bytes; add ips or mac to find it by these")
)]
pub struct NetworkInterface {
    /// The interface's name on the machine. Also names the ExternalEntity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub name: Option<String>,
    /// The interface's hardware address, as 52:54:00:12:34:56.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 17), regex(pattern = "^([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}$"))]
    pub mac: Option<String>,
    /// The machine's addresses on this interface; without them, those that the agent reports inside allowedCIDRs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::host_ips")]
    pub ips: Vec<String>,
    /// The networks whose addresses the agent may report for this interface. Without any, only ips count.
    #[serde(default, skip_serializing_if = "Vec::is_empty", rename = "allowedCIDRs")]
    #[schemars(schema_with = "schema::host_cidrs")]
    pub allowed_cidrs: Vec<String>,
    /// Ports that policies may call by name; copied to the ExternalEntity.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into(), "protocol".into()]))]
    pub ports: Vec<NamedPort>,
}

/// A port with a name.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NamedPort {
    /// What policies call it.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Whose port it is.
    #[serde(default)]
    #[schemars(schema_with = "schema::protocol")]
    pub protocol: Protocol,
    /// The number.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
}

/// How a machine proves to be a node.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodeIdentity {
    /// How long after its certificate ran out a machine may still renew it, as 72h or 1h30m. Nothing: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^(0|([0-9]{1,9}(ms|s|m|h))+)$"))]
    pub rejoin_grace: Option<String>,
}

/// What became of a machine.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ExternalNodeStatus {
    /// The interfaces as the agent found them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<InterfaceStatus>,
    /// The agent's version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    /// When the agent was last heard of; written at most each 60 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub last_heartbeat: Option<Time>,
    /// The generation of the object that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Accepted, Joined, InterfaceFound, Attached, PoliciesRealized and Healthy, each with its reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "schema::readable")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// One interface as the agent found it.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceStatus {
    /// Its name on the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its hardware address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Its MTU in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// All its addresses, those that policies don't take for the node's too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<String>,
    /// How the agent holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

impl NetworkInterface {
    /// The name; an empty one counts as none.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref().filter(|name| !name.is_empty())
    }
}
