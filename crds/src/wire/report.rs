//! What an agent says about itself: full on change, a heartbeat in between.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::frame::Revision;
use crate::names::{NodeName, PolicyId, Uid};

/// The body of `POST /v1/report`: latest wins.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Report {
    /// Everything, sent on change and when asked.
    Full(Box<Full>),
    /// Nothing changed since the report with this digest.
    Heartbeat(Heartbeat),
}

/// An agent's sign of life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Heartbeat {
    /// Who speaks; checked against the identity.
    pub node: NodeName,
    /// The ExternalNode that the agent believes it is.
    pub uid: Uid,
    /// The revision that is enforced; none before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<Revision>,
    /// Of the last full report, chosen by the agent. Opaque.
    pub digest: String,
}

/// Everything an agent has to say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Full {
    /// Node, uid, revision and the digest that later heartbeats repeat.
    #[serde(flatten)]
    pub head: Heartbeat,
    /// One entry per policy of the view, by id.
    pub policies: Vec<PolicyReport>,
    /// The interfaces that the agent sees and their addresses.
    pub interfaces: Vec<InterfaceReport>,
    /// How far each takeover is.
    #[serde(default)]
    pub attach: Vec<Attach>,
    /// What AgentInfo shows.
    #[serde(default)]
    pub facts: Facts,
}

/// What became of one policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyReport {
    /// The policy's key on the wire.
    pub id: PolicyId,
    /// The generation that this is about.
    pub generation: i64,
    /// Realised, or why not.
    #[serde(flatten)]
    pub outcome: PolicyOutcome,
}

/// Whether a policy is enforced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PolicyOutcome {
    /// `realized: true`: its flows are in. `realized: false`: not yet.
    Realized(bool),
    /// The agent can't, and why; the last good rules stay.
    Error(String),
}

/// One interface of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceReport {
    /// Its name on the host.
    pub name: String,
    /// Its hardware address.
    #[serde(default)]
    pub mac: String,
    /// Its MTU in bytes.
    #[serde(default)]
    pub mtu: u32,
    /// Every address on it, both families.
    #[serde(default)]
    pub ips: BTreeSet<IpAddr>,
    /// How packets reach policy there.
    #[serde(default)]
    pub state: String,
}

/// How far the takeover of one interface is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attach {
    /// The interface's name in the ExternalNode, or its MAC when it has none.
    pub interface: String,
    /// The stage.
    pub stage: AttachStage,
    /// Candidates and why they were passed over, the cause of a refusal.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// The stages of a takeover, and why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttachStage {
    /// In place.
    Attached,
    /// Under way.
    Attaching,
    /// Not begun: something stands against it.
    Refused,
    /// Undone: the operator could not be reached afterwards.
    RolledBack,
    /// The NIC of an attached interface is gone.
    UplinkMissing,
    /// Switched off in the agent's configuration.
    Disabled,
    /// No interface of the host fits.
    NoMatch,
    /// More than one fits.
    Ambiguous,
    /// The address found is outside `allowedCIDRs`.
    AddressNotAllowed,
}

/// What `AntreaAgentInfo` shows of an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Facts {
    /// Of the agent.
    pub version: String,
    /// What kind of machine it runs on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Of Open vSwitch.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ovs_version: String,
    /// The bridge.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub bridge: String,
    /// Flows by table name.
    pub flow_table: BTreeMap<String, i64>,
    /// Policies in force.
    pub network_policies: i32,
    /// Groups in use.
    pub address_groups: i32,
    /// Whether the agent talks to OVSDB; none when it doesn't need to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ovsdb_connected: Option<bool>,
    /// Whether the agent talks OpenFlow; none when it doesn't need to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub openflow_connected: Option<bool>,
}

/// What kind of machine an agent runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// A Kubernetes Node.
    Node,
    /// A virtual machine outside the cluster.
    VM,
    /// A bare-metal machine outside the cluster.
    BM,
}

/// The server's answer to a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportAnswer {
    /// What the server would like to have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub want: Option<Want>,
}

/// What a server asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Want {
    /// A full report: the digest isn't one that it knows.
    Full,
}

/// Why bytes are no report.
#[derive(Debug, thiserror::Error)]
#[error("the body is no report")]
pub struct ReportError(#[from] serde_json::Error);

impl Report {
    /// The report in `body`: full when it lists policies.
    pub fn decode(body: &[u8]) -> Result<Self, ReportError> {
        #[derive(Deserialize)]
        struct Shape {
            policies: Option<serde::de::IgnoredAny>,
        }
        let Shape { policies } = serde_json::from_slice(body)?;
        Ok(match policies {
            Some(_) => Self::Full(serde_json::from_slice(body)?),
            None => Self::Heartbeat(serde_json::from_slice(body)?),
        })
    }

    /// Who speaks, and about which state.
    pub fn head(&self) -> &Heartbeat {
        match self {
            Self::Full(full) => &full.head,
            Self::Heartbeat(head) => head,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_that_lists_policies_is_full() {
        let text = r#"{"node":"vms/vm1","uid":"u1","revision":"e.7","digest":"d1",
            "policies":[{"id":"p1","generation":3,"realized":true},{"id":"p2","generation":1,"error":"no such set"}],
            "interfaces":[{"name":"eth0","mac":"02:00:00:00:00:01","mtu":1500,"ips":["10.0.0.5","fd00::5"],"state":"attached"}]}"#;
        let Report::Full(full) = Report::decode(text.as_bytes()).unwrap() else { panic!("a full report") };
        assert_eq!(full.policies[0].outcome, PolicyOutcome::Realized(true));
        assert_eq!(full.policies[1].outcome, PolicyOutcome::Error("no such set".to_owned()));
        let again = serde_json::to_vec(&Report::Full(full.clone())).unwrap();
        assert_eq!(Report::decode(&again).unwrap(), Report::Full(full));
    }

    #[test]
    fn a_report_without_policies_is_a_heartbeat() {
        let text = br#"{"node":"vms/vm1","uid":"u1","revision":"e.7","digest":"d1"}"#;
        assert!(matches!(Report::decode(text).unwrap(), Report::Heartbeat(head) if head.digest == "d1"));
        assert!(Report::decode(br#"{"node":"vm1","uid":"u1","digest":"d"}"#).is_err(), "a node without a namespace");
    }
}
