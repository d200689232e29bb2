//! One policy object read into what nodes are told, with the reasons for what isn't.
//!
//! A rule that can't be realised is left out whole and reported with its path; nothing is ever realised by half.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use crds::check;
use crds::hash::sha256_prefix;
use crds::names::{GroupKey, Key, PolicyId};
use crds::policy::{self as kind, NetworkPolicy, RuleRef};
use crds::tier::{self, built_in};
use crds::wire::{
    Action, Cidr, Direction, Enforcement, Icmp, Peers, Policy, Port, PortRange, Protocol, Rule, Service, Transport,
};
use crds::world::{World, uid};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::selector::{GroupSelector, Scope, Selector};

#[cfg(test)]
mod tests;

/// A policy as far as it can be realised.
#[derive(Clone, Debug, PartialEq)]
pub struct Compiled {
    /// Its key on the wire.
    pub id: PolicyId,
    /// What each node is told, but for `appliedTo`, which is the node's own.
    pub policy: Policy,
    /// Whose entities it applies to.
    pub targets: BTreeSet<Arc<GroupSelector>>,
    /// The groups that its rules name.
    pub groups: BTreeSet<Arc<GroupSelector>>,
    /// What isn't realised, in the order of the object.
    pub problems: Vec<Problem>,
}

/// Something in a policy that isn't realised.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The field.
    pub path: String,
    /// Why in one word.
    pub why: Why,
    /// Why in a sentence.
    pub message: String,
}

/// Why something isn't realised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// The object can't mean anything.
    Invalid,
    /// It names a Tier that isn't there.
    UnknownTier,
    /// Hosts can't do it, or this version doesn't.
    RuleNotSupported,
}

impl Why {
    /// The reason of the condition.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "Invalid",
            Self::UnknownTier => "UnknownTier",
            Self::RuleNotSupported => "RuleNotSupported",
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// `policy` as far as it can be realised in `world`, of which only the Tiers are looked at.
pub fn compile(key: &Key, policy: &NetworkPolicy, world: &World) -> Compiled {
    let mut problems = Vec::new();
    let violations = check::policy(policy);
    let targets = targets(key, policy, &mut problems);
    let rules: Vec<(RuleRef<'_>, String)> = policy.spec.rules().map(|rule| (rule, rule.path())).collect();
    let mut broken: HashMap<&str, Vec<Problem>> = rules.iter().map(|(_, path)| (&**path, vec![])).collect();
    let mut whole = Vec::new();
    for violation in &violations {
        match rule_of(&violation.path).and_then(|rule| broken.get_mut(rule)) {
            Some(broken) => broken.push(invalid(violation)),
            None => whole.push(invalid(violation)),
        }
    }
    whole.extend(unknown_tier(policy, world));
    let mut groups = BTreeSet::new();
    let mut realised = Vec::new();
    for (rule, path) in &rules {
        let broken = broken.remove(&**path).unwrap_or_default();
        if broken.is_empty() {
            match compile_rule(key, *rule, path) {
                Ok((rule, used)) => {
                    realised.push(rule);
                    groups.extend(used);
                }
                Err(unsupported) => problems.extend(unsupported),
            }
        }
        problems.extend(broken);
    }

    // a policy that is wrong as a whole applies to nobody
    let targets = if whole.is_empty() { targets } else { BTreeSet::new() };
    problems.splice(0..0, whole);
    Compiled {
        id: PolicyId::from(uid(&policy.metadata).as_str()),
        policy: Policy {
            generation: policy.metadata.generation.unwrap_or_default(),
            kind: "NetworkPolicy".into(),
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            tier_priority: tier_priority(policy, world).unwrap_or_default(),
            priority: policy.spec.priority,
            applied_to: BTreeSet::new(),
            rules: realised.into(),
        },
        targets,
        groups,
        problems,
    }
}

/// The path of the rule that the field at `path` is in: `spec.ingress[3]` of `spec.ingress[3].ports[0]`.
fn rule_of(path: &str) -> Option<&str> {
    path.split_once(']').map(|(rule, _)| &path[..=rule.len()])
}

fn invalid(violation: &check::Violation) -> Problem {
    Problem {
        path: violation.path.clone(),
        why: Why::Invalid,
        message: format!("{:?} {}", violation.value, violation.reason),
    }
}

fn unsupported(path: impl Into<String>, what: &str) -> Problem {
    let message = format!(
        "{what} is not supported on external nodes by this version; remove it, or put it in a policy of its own"
    );
    Problem { path: path.into(), why: Why::RuleNotSupported, message }
}

/// The name of the tier that `policy` is in.
pub fn tier_name(policy: &NetworkPolicy) -> &str {
    match policy.spec.tier.as_str() {
        "" => tier::DEFAULT,
        name => name,
    }
}

/// The priority of the policy's tier. The built-in ones are what they are, whether their objects stand or not.
fn tier_priority(policy: &NetworkPolicy, world: &World) -> Option<i32> {
    let name = tier_name(policy).to_ascii_lowercase();
    built_in(&name)
        .map(|tier| tier.priority)
        .or_else(|| Some(world.tiers.get(&Key::cluster(name.as_str()))?.good()?.spec.priority))
}

fn unknown_tier(policy: &NetworkPolicy, world: &World) -> Option<Problem> {
    tier_priority(policy, world).is_none().then(|| Problem {
        path: "spec.tier".to_owned(),
        why: Why::UnknownTier,
        message: format!("there is no Tier {:?}; create it first, or name one that exists", tier_name(policy)),
    })
}

fn targets(key: &Key, policy: &NetworkPolicy, problems: &mut Vec<Problem>) -> BTreeSet<Arc<GroupSelector>> {
    let mut out = BTreeSet::new();
    for (i, target) in policy.spec.applied_to.iter().enumerate() {
        let path = format!("spec.appliedTo[{i}]");
        if target.pod_selector.is_some() {
            problems.push(unsupported(format!("{path}.podSelector"), "applying a policy to Pods"));
        } else if target.group.is_some() {
            problems.push(unsupported(format!("{path}.group"), "a group"));
        } else if let Some(entities) = target.external_entity_selector.as_ref().and_then(Selector::new) {
            out.insert(Arc::new(GroupSelector { scope: Scope::Namespace(key.namespace.clone()), entities }));
        }
    }
    out
}

type Used = BTreeSet<Arc<GroupSelector>>;

fn compile_rule(key: &Key, rule: RuleRef<'_>, path: &str) -> Result<(Rule, Used), Vec<Problem>> {
    let mut problems = Vec::new();
    let action = match rule.action {
        kind::Action::Allow => Some(Action::Allow),
        kind::Action::Drop => Some(Action::Drop),
        kind::Action::Reject | kind::Action::Pass => {
            problems.push(unsupported(format!("{path}.action"), &format!("the action {:?}", rule.action)));
            None
        }
    };
    let fields = [
        (rule.enforcement == Enforcement::Audit, "enforcement", "Audit"),
        (!rule.l7_protocols.is_empty(), "l7Protocols", "a layer 7 protocol"),
        (!rule.to_services.is_empty(), "toServices", "a Service as a destination"),
        (!rule.applied_to.is_empty(), "appliedTo", "an appliedTo of one rule"),
    ];
    let named = fields.into_iter().filter(|(present, ..)| *present);
    problems.extend(named.map(|(_, field, what)| unsupported(format!("{path}.{field}"), what)));
    let mut used = Used::new();
    let peers = peers(key, rule, &mut used, &mut problems);
    let services = services(rule, path, &mut problems);
    let Some(action) = action.filter(|_| problems.is_empty()) else { return Err(problems) };
    let direction = rule.direction;
    let index = u32::try_from(rule.index).unwrap_or(u32::MAX);
    let mut out = Rule {
        index,
        name: "".into(),
        direction,
        action,
        enforcement: Enforcement::Enforce,
        peers,
        services,
        applied_to: BTreeSet::new(),
        log: rule.enable_logging.unwrap_or_default(),
        log_label: rule.log_label.as_deref().map(Into::into),
    };
    let name = rule.name.as_deref().filter(|name| !name.is_empty());
    out.name = name.map_or_else(|| computed_name(&out), Into::into);
    Ok((out, used))
}

/// `<direction>-<index>-<8 hex of content>`: stable as long as the rule is.
fn computed_name(rule: &Rule) -> Arc<str> {
    let direction = match rule.direction {
        Direction::Ingress => "ingress",
        Direction::Egress => "egress",
    };
    let content = serde_json::to_string(rule).expect("a rule is a map with text keys");
    format!("{direction}-{}-{}", rule.index, sha256_prefix(&content, 8)).into()
}

fn peers(key: &Key, rule: RuleRef<'_>, used: &mut Used, problems: &mut Vec<Problem>) -> Peers {
    if rule.peers().is_empty() {
        return Peers { any: true, ..Peers::default() };
    }
    let side = rule.peers_path();
    let mut out = Peers::default();
    for (i, peer) in rule.peers().iter().enumerate() {
        let path = format!("{side}[{i}]");
        let fields = [
            (peer.pod_selector.is_some(), "podSelector", "a Pod as a peer"),
            (peer.group.is_some(), "group", "a group"),
            (peer.fqdn.is_some(), "fqdn", "an FQDN"),
            (peer.node_selector.is_some(), "nodeSelector", "a Node as a peer"),
            (peer.scope.as_deref() == Some("ClusterSet"), "scope", "the scope ClusterSet"),
            (
                peer.namespace_selector.is_some()
                    && peer.external_entity_selector.is_none()
                    && peer.pod_selector.is_none(),
                "namespaceSelector",
                "a namespaceSelector alone, which means Pods,",
            ),
        ];
        let named: Vec<_> = fields.into_iter().filter(|(present, ..)| *present).collect();
        problems.extend(named.iter().map(|(_, field, what)| unsupported(format!("{path}.{field}"), what)));
        if let Some(block) = &peer.ip_block {
            out.cidrs.extend(cidr(block));
        } else if let Some(selector) = group_selector(key, peer) {
            out.groups.insert(selector.key());
            used.insert(Arc::new(selector));
        }
    }
    out
}

fn group_selector(key: &Key, peer: &kind::Peer) -> Option<GroupSelector> {
    let entities = Selector::new(peer.external_entity_selector.as_ref()?)?;
    let scope = match &peer.namespace_selector {
        None => Scope::Namespace(key.namespace.clone()),
        Some(selector) => Scope::Namespaces(Selector::new(selector)?),
    };
    Some(GroupSelector { scope, entities })
}

fn cidr(block: &kind::IpBlock) -> Option<Cidr> {
    let net = |text: &str| text.parse::<ipnet::IpNet>().ok().map(|net| net.trunc());
    let except = block.except.iter().filter_map(|text| net(text)).collect();
    Some(Cidr { cidr: net(block.cidr.as_deref()?)?, except })
}

fn services(rule: RuleRef<'_>, path: &str, problems: &mut Vec<Problem>) -> Vec<Service> {
    let mut out: Vec<_> = rule.ports.iter().filter_map(port).collect();
    for (i, protocol) in rule.protocols.iter().enumerate() {
        if protocol.igmp.is_some() {
            problems.push(unsupported(format!("{path}.protocols[{i}].igmp"), "IGMP"));
        } else if let Some(icmp) = &protocol.icmp {
            let number = |n: Option<i32>| n.and_then(|n| u8::try_from(n).ok());
            out.push(Service::Icmp(Icmp { kind: number(icmp.icmp_type), code: number(icmp.icmp_code) }));
        }
    }
    out
}

fn port(port: &kind::PolicyPort) -> Option<Service> {
    let number = |n: i32| u16::try_from(n).ok();
    let range =
        |first: i32, end: Option<i32>| Some(PortRange { first: number(first)?, last: number(end.unwrap_or(first))? });
    let destination = match &port.port {
        None => None,
        Some(IntOrString::Int(first)) => Some(Port::Range(range(*first, port.end_port)?)),
        Some(IntOrString::String(name)) => Some(Port::Named { name: name.as_str().into() }),
    };
    let source = match port.source_port {
        None => None,
        Some(first) => Some(range(first, port.source_end_port)?),
    };
    let transport = Transport { port: destination, src: source };
    Some(match port.protocol() {
        Protocol::Tcp => Service::Tcp(transport),
        Protocol::Udp => Service::Udp(transport),
        Protocol::Sctp => Service::Sctp(transport),
    })
}

impl Compiled {
    /// The keys of its groups.
    pub fn group_keys(&self) -> impl Iterator<Item = GroupKey> + '_ {
        self.groups.iter().map(|selector| selector.key())
    }
}
