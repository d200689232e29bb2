//! `NetworkPolicy` of `crd.antrea.io`: ordered rules with actions, for what its `appliedTo` selects.
//!
//! A rule is one Rust type for both directions; the schema of each direction has only the fields that mean something there.

#![allow(unreachable_pub, reason = "KubeSchema repeats each public struct inside a function")]
#![allow(
    clippy::duplicated_attributes,
    reason = "each printcolumn has a type of its own, which the lint takes for one"
)]

use std::fmt;
use std::ops::Deref;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema;
pub use crate::wire::{Direction, Enforcement, Protocol};

/// Ordered rules, and what they are for.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "crd.antrea.io",
    version = "v1beta1",
    kind = "NetworkPolicy",
    plural = "networkpolicies",
    singular = "networkpolicy",
    shortname = "annp",
    shortname = "anp",
    namespaced,
    status = "NetworkPolicyStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "Ordered rules with actions for what appliedTo selects in the policy's namespace.",
    printcolumn(
        name = "Tier",
        type_ = "string",
        json_path = ".spec.tier",
        description = "The tier that the policy is in."
    ),
    printcolumn(
        name = "Priority",
        type_ = "number",
        json_path = ".spec.priority",
        description = "The order within the tier; the lower, the earlier."
    ),
    printcolumn(
        name = "Desired Nodes",
        type_ = "number",
        json_path = ".status.desiredNodesRealized",
        description = "The reachable nodes that should enforce the policy."
    ),
    printcolumn(
        name = "Current Nodes",
        type_ = "number",
        json_path = ".status.currentNodesRealized",
        description = "The nodes that do."
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(
        "(has(self.appliedTo) && self.appliedTo.size() > 0) \
         || (has(self.ingress) && self.ingress.size() > 0) || (has(self.egress) && self.egress.size() > 0)"
    )
    .message("the policy is for nothing: give appliedTo on the policy, or on each of its rules"),
    validation = Rule::new(
        "!has(self.ingress) || self.ingress.all(r, (has(r.appliedTo) && r.appliedTo.size() > 0) \
         != (has(self.appliedTo) && self.appliedTo.size() > 0))"
    )
    .message("give appliedTo either on the policy or on each of its rules, not on both and not on some of them"),
    validation = Rule::new(
        "!has(self.egress) || self.egress.all(r, (has(r.appliedTo) && r.appliedTo.size() > 0) \
         != (has(self.appliedTo) && self.appliedTo.size() > 0))"
    )
    .message("give appliedTo either on the policy or on each of its rules, not on both and not on some of them"),
    validation = Rule::new("self.tier != 'baseline' || !has(self.ingress) || self.ingress.all(r, r.action != 'Pass')")
        .message("the baseline tier is looked at last, so Pass has nowhere to pass to; use Allow, Drop or Reject"),
    validation = Rule::new("self.tier != 'baseline' || !has(self.egress) || self.egress.all(r, r.action != 'Pass')")
        .message("the baseline tier is looked at last, so Pass has nowhere to pass to; use Allow, Drop or Reject")
)]
pub struct NetworkPolicySpec {
    /// The tier that the policy is in.
    #[serde(default = "default_tier")]
    pub tier: String,
    /// The order within the tier; the lower, the earlier.
    #[schemars(range(min = 1.0, max = 10000.0))]
    pub priority: f64,
    /// What all rules are for. Either this or the appliedTo of every rule is given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub applied_to: Vec<AppliedTo>,
    /// Rules for what comes in, looked at in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::ingress_rules")]
    pub ingress: Vec<Rule>,
    /// Rules for what goes out, looked at in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::egress_rules")]
    pub egress: Vec<Rule>,
    /// Whether the rules act (Enforce, the default) or only count and log what they would do (Audit). A rule's own
    /// enforcement comes first, so that a policy under trial can be put into force rule by rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::enforcement")]
    pub enforcement: Option<Enforcement>,
}

fn default_tier() -> String {
    crate::tier::DEFAULT.to_owned()
}

/// What policies are for: a selector of Pods, a selector of external entities, or a group.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1, "maxProperties" = 1))]
pub struct AppliedTo {
    /// Pods of the policy's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::selector")]
    pub pod_selector: Option<LabelSelector>,
    /// External entities of the policy's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::selector")]
    pub external_entity_selector: Option<LabelSelector>,
    /// The name of a Group of the policy's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// One rule: what it matches, and what becomes of it.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.l7Protocols) || self.l7Protocols.size() == 0 || self.action == 'Allow'")
        .message("l7Protocols say what is let through, so the action must be Allow")
)]
pub struct Rule {
    /// A name, unique within the policy. None is stored when none is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What becomes of what the rule matches.
    pub action: Action,
    /// Whether the rule acts (Enforce) or only counts and logs what it would do (Audit). Without it the policy's counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::enforcement")]
    pub enforcement: Option<Enforcement>,
    /// What this rule is for. Either this on every rule or the policy's is given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub applied_to: Vec<AppliedTo>,
    /// Where it comes from; everywhere when nothing is said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from: Vec<Peer>,
    /// Where it goes to; everywhere when nothing is said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<Peer>,
    /// The Services that it goes to, instead of to, ports and protocols.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to_services: Vec<ServiceReference>,
    /// Ports, any of which matches; with protocols, any of both. All traffic when neither is given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PolicyPort>,
    /// Protocols without ports, any of which matches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub protocols: Vec<NetworkProtocol>,
    /// What the connection must say above its transport. Accepted for the sake of shared policies; not enforced here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub l7_protocols: Vec<L7Protocol>,
    /// Whether new connections that the rule decides are logged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_logging: Option<bool>,
    /// A text that goes with each log line of this rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^(([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9])?$"))]
    pub log_label: Option<String>,
}

/// What becomes of what a rule matches.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[schemars(inline)]
pub enum Action {
    /// It passes.
    Allow,
    /// It is dropped without a word. (The default of Rust code that builds rules; an object without action is refused.)
    #[default]
    Drop,
    /// It is answered with a reset or an ICMP error.
    Reject,
    /// No further rule of this kind decides, except those of the baseline tier.
    Pass,
}

/// The other side of a rule: pods or entities by label, a network, a group, a name, or nodes.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct Peer {
    /// Pods: of the policy's namespace, or of those that namespaceSelector selects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::selector")]
    pub pod_selector: Option<LabelSelector>,
    /// Namespaces for podSelector or externalEntitySelector; alone, all Pods of these namespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::selector")]
    pub namespace_selector: Option<LabelSelector>,
    /// External entities: of the policy's namespace, or of those that namespaceSelector selects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::selector")]
    pub external_entity_selector: Option<LabelSelector>,
    /// A network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_block: Option<IpBlock>,
    /// Nodes of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::selector")]
    pub node_selector: Option<LabelSelector>,
    /// The name of a Group of the policy's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// A name of the DNS, or a pattern with asterisks, as *.example.com.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fqdn: Option<String>,
    /// How far selectors reach: this cluster (the default), or all clusters of a set, which is not supported here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Cluster", "ClusterSet"]))]
    pub scope: Option<String>,
}

/// A network, less parts of it.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct IpBlock {
    /// What is matched, as 10.0.0.0/16 or 2001:db8::/64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::cidr")]
    pub cidr: Option<String>,
    /// What of it isn't. Each must lie inside cidr.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::cidrs")]
    pub except: Vec<String>,
}

/// A Service that a rule goes to.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ServiceReference {
    /// Its name.
    pub name: String,
    /// Its namespace; the policy's when nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Cluster or ClusterSet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
}

/// A port or a range of ports; with source ports, both must match.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PolicyPort {
    /// Whose port it is; TCP when nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::protocol")]
    pub protocol: Option<Protocol>,
    /// The destination port, by number or by the name that the destination gives it; all when nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::int_or_string")]
    pub port: Option<IntOrString>,
    /// The last destination port of a range that starts with port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65535))]
    pub end_port: Option<i32>,
    /// The source port; all when nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65535))]
    pub source_port: Option<i32>,
    /// The last source port of a range that starts with sourcePort.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65535))]
    pub source_end_port: Option<i32>,
}

/// A protocol without ports.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("oneOf" = [{"required": ["icmp"]}, {"required": ["igmp"]}]))]
pub struct NetworkProtocol {
    /// ICMP for IPv4 and ICMPv6 for IPv6, the numbers taken literally in each family.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub icmp: Option<Icmp>,
    /// IGMP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub igmp: Option<Igmp>,
}

/// ICMP messages; a missing number matches all.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Icmp {
    /// The type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 255))]
    pub icmp_type: Option<i32>,
    /// The code; only with a type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 255))]
    pub icmp_code: Option<i32>,
}

/// IGMP messages.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Igmp {
    /// The type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub igmp_type: Option<i32>,
    /// The multicast group; all when nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::ip")]
    pub group_address: Option<String>,
}

/// What a connection must say above its transport.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("oneOf" = [{"required": ["http"]}, {"required": ["tls"]}]))]
pub struct L7Protocol {
    /// HTTP requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<Http>,
    /// TLS handshakes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
}

/// HTTP requests; a missing field matches all.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Http {
    /// The host that is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["GET", "POST", "PUT", "HEAD", "DELETE", "TRACE", "OPTIONS", "CONNECT", "PATCH"]))]
    pub method: Option<String>,
    /// The path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// TLS handshakes.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Tls {
    /// The server name that is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sni: Option<String>,
}

/// What became of a policy.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NetworkPolicyStatus {
    /// Pending, Realizing, Realized or Failed.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "schema::readable_or_none")]
    #[schemars(with = "String")]
    pub phase: Option<Phase>,
    /// The generation of the object that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The nodes that enforce this generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_nodes_realized: Option<i32>,
    /// The reachable nodes that should.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_nodes_realized: Option<i32>,
    /// The nodes that should, but can't be reached. They don't hold the phase back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreachable_nodes: Option<i32>,
    /// Realizable and RealizationFailure, each with its reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "schema::readable")]
    #[schemars(schema_with = "schema::plain_conditions")]
    pub conditions: Vec<Condition>,
}

/// How far a policy is.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// No node can enforce it yet.
    Pending,
    /// Some reachable nodes don't enforce it yet.
    Realizing,
    /// All reachable nodes enforce it.
    Realized,
    /// A reachable node couldn't.
    Failed,
}

/// A rule with its place in the policy. Reads as the [`Rule`] it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RuleRef<'a> {
    /// Which list it stands in.
    pub direction: Direction,
    /// Its place in that list, from 0.
    pub index: usize,
    /// The rule itself.
    pub rule: &'a Rule,
    /// What counts for it: its own enforcement, or the policy's, or `Enforce`.
    pub enforcement: Enforcement,
}

impl<'a> RuleRef<'a> {
    /// The other side: `from` of an ingress rule, `to` of an egress rule.
    pub fn peers(&self) -> &'a [Peer] {
        match self.direction {
            Direction::Ingress => &self.rule.from,
            Direction::Egress => &self.rule.to,
        }
    }

    /// The path of the other side, as `spec.egress[2].to`.
    pub fn peers_path(&self) -> String {
        let field = match self.direction {
            Direction::Ingress => "from",
            Direction::Egress => "to",
        };
        format!("{}.{field}", self.path())
    }

    /// Where it stands, as `spec.ingress[0]`.
    pub fn path(&self) -> String {
        let list = match self.direction {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        };
        format!("spec.{list}[{}]", self.index)
    }
}

impl Deref for RuleRef<'_> {
    type Target = Rule;

    fn deref(&self) -> &Rule {
        self.rule
    }
}

impl NetworkPolicySpec {
    /// The tier that counts: an empty name means the default one.
    pub fn tier(&self) -> &str {
        if self.tier.is_empty() { crate::tier::DEFAULT } else { &self.tier }
    }

    /// All rules with their places: ingress first, each list in its order.
    pub fn rules(&self) -> impl Iterator<Item = RuleRef<'_>> {
        let place = |direction: Direction| move |(index, rule): (usize, _)| self.place(direction, index, rule);
        let ingress = self.ingress.iter().enumerate().map(place(Direction::Ingress));
        ingress.chain(self.egress.iter().enumerate().map(place(Direction::Egress)))
    }

    fn place<'a>(&self, direction: Direction, index: usize, rule: &'a Rule) -> RuleRef<'a> {
        let enforcement = rule.enforcement.or(self.enforcement).unwrap_or_default();
        RuleRef { direction, index, rule, enforcement }
    }
}

impl PolicyPort {
    /// The protocol that counts.
    pub fn protocol(&self) -> Protocol {
        self.protocol.unwrap_or_default()
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(yaml: &str) -> NetworkPolicy {
        let head = "apiVersion: crd.antrea.io/v1beta1\nkind: NetworkPolicy\nmetadata: {name: p}\n";
        serde_saphyr::from_str(&format!("{head}{yaml}")).expect("the test's own YAML")
    }

    #[test]
    fn a_rule_knows_its_place_and_its_other_side() {
        let policy = policy(
            "spec: {priority: 5, ingress: [{action: Allow}, {action: Drop, from: [{group: a}]}], egress: [{action: Pass, to: [{group: b}]}]}",
        );
        let places: Vec<_> = policy.spec.rules().map(|rule| (rule.path(), rule.action, rule.peers().len())).collect();
        let wanted = [
            ("spec.ingress[0]", Action::Allow, 0),
            ("spec.ingress[1]", Action::Drop, 1),
            ("spec.egress[0]", Action::Pass, 1),
        ];
        assert_eq!(places, wanted.map(|(path, action, peers)| (path.to_owned(), action, peers)));
    }

    #[test]
    fn a_rule_s_own_enforcement_comes_before_the_policy_s() {
        let rules =
            "ingress: [{action: Drop}, {action: Drop, enforcement: Enforce}, {action: Drop, enforcement: Audit}]";
        let counts = |spec: &str| policy(spec).spec.rules().map(|rule| rule.enforcement).collect::<Vec<_>>();
        let plain = counts(&format!("spec: {{priority: 5, {rules}}}"));
        assert_eq!(plain, [Enforcement::Enforce, Enforcement::Enforce, Enforcement::Audit]);
        let trial = counts(&format!("spec: {{priority: 5, enforcement: Audit, {rules}}}"));
        assert_eq!(trial, [Enforcement::Audit, Enforcement::Enforce, Enforcement::Audit]);
    }

    #[test]
    fn a_policy_without_tier_is_in_the_default_one() {
        assert_eq!(policy("spec: {priority: 5}").spec.tier(), "application");
        assert_eq!(policy("spec: {priority: 5, tier: ''}").spec.tier(), "application");
    }

    #[test]
    fn what_others_left_in_a_policy_does_not_hide_it() {
        let odd = "spec: {priority: 5, isNew: true}\n\
                   status: {phase: Thinking, conditions: [{type: A, status: 'True'}, {type: B, status: 'True', lastTransitionTime: '2026-01-02T03:04:05Z'}]}";
        let status = policy(odd).status.expect("a status");
        assert_eq!(status.phase, None);
        assert_eq!(status.conditions.iter().map(|c| c.type_.as_str()).collect::<Vec<_>>(), ["B"]);
    }
}
