//! What one agent is told, and the difference between two such values.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::entry::{Entry, Object, ObjectId};
use super::frame::Frame;
use crate::hash::Hash;
use crate::names::{EntityName, GroupKey, NodeName, PolicyId, Uid};

/// Everything that one agent is told. Never dangles: the groups of each policy are in it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// The node's own object; none before the first `put node`.
    pub node: Option<Arc<Entry<Node>>>,
    /// The addresses that policies name.
    pub groups: BTreeMap<GroupKey, Arc<Entry<Group>>>,
    /// The policies that apply to this node.
    pub policies: BTreeMap<PolicyId, Arc<Entry<Policy>>>,
}

/// The agent's own ExternalNode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// `metadata.uid` of the ExternalNode: an agent detaches only when this one is gone.
    pub uid: Uid,
    /// In the order of the object.
    pub interfaces: Vec<Interface>,
}

/// One interface that the agent is to take over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Interface {
    /// The ExternalEntity that stands for it.
    pub entity: EntityName,
    /// Its name on the host, when the user gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its hardware address, when the user gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// The addresses that the user listed.
    #[serde(default)]
    pub ips: BTreeSet<IpAddr>,
    /// Where addresses that the agent reports are taken from.
    #[serde(default, rename = "allowedCIDRs")]
    pub allowed_cidrs: BTreeSet<IpNet>,
    /// Ports that policies may name.
    #[serde(default)]
    pub ports: BTreeSet<MemberPort>,
}

/// One policy as one node runs it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Policy {
    /// `metadata.generation` of the policy object: what a report says was realised.
    pub generation: i64,
    /// The kind of the policy object, `NetworkPolicy`.
    pub kind: Arc<str>,
    /// Its namespace; empty for a cluster-scoped kind.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// The tier's priority: lower is judged earlier.
    pub tier_priority: i32,
    /// The policy's priority inside its tier: lower is judged earlier. Finite.
    pub priority: f64,
    /// This node's own entities that the policy applies to.
    pub applied_to: BTreeSet<EntityName>,
    /// In the order of the object, ingress before egress.
    pub rules: Arc<[Rule]>,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    /// The place in its list (`spec.ingress` or `spec.egress`), from 0.
    pub index: u32,
    /// The user's name, or the computed one: `<direction>-<index>-<8 hex of content>`.
    pub name: Arc<str>,
    /// Which way.
    pub direction: Direction,
    /// What becomes of a packet that matches.
    pub action: Action,
    /// Whether the action is taken, or only counted and logged.
    #[serde(default)]
    pub enforcement: Enforcement,
    /// The other side.
    pub peers: Peers,
    /// Empty: every IP protocol.
    #[serde(default)]
    pub services: Vec<Service>,
    /// The entities this rule is for when it isn't all of the policy's; empty: all.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub applied_to: BTreeSet<EntityName>,
    /// Whether a match is logged.
    #[serde(default)]
    pub log: bool,
    /// The user's label for the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_label: Option<Arc<str>>,
}

/// Which way a rule looks, seen from the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Direction {
    /// To the node.
    Ingress,
    /// From the node.
    Egress,
}

/// What becomes of a packet that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// It passes.
    Allow,
    /// It is dropped without a word.
    Drop,
}

/// Whether a rule's action is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Enforcement {
    /// It is.
    #[default]
    Enforce,
    /// The verdict is counted and logged; evaluation goes on.
    Audit,
}

/// The other side of a rule: everyone, or the union of the lists. Empty without `any` matches nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Peers {
    /// Every address of both families.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub any: bool,
    /// The members of these groups.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub groups: BTreeSet<GroupKey>,
    /// These networks.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub cidrs: BTreeSet<Cidr>,
    /// The addresses that these names resolve to on the node.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub fqdns: BTreeSet<Arc<str>>,
}

/// A network, less the networks in `except`. Host bits are zero.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cidr {
    /// What is matched.
    pub cidr: IpNet,
    /// What of it isn't.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub except: BTreeSet<IpNet>,
}

/// What of the packet's payload a rule looks at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "protocol")]
pub enum Service {
    /// TCP.
    #[serde(rename = "TCP")]
    Tcp(Transport),
    /// UDP.
    #[serde(rename = "UDP")]
    Udp(Transport),
    /// SCTP.
    #[serde(rename = "SCTP")]
    Sctp(Transport),
    /// ICMP for IPv4 and ICMPv6 for IPv6, the numbers taken literally in each family.
    #[serde(rename = "ICMP")]
    Icmp(Icmp),
}

/// Ports; a missing one matches all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transport {
    /// The destination's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<Port>,
    /// The source's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub src: Option<PortRange>,
}

/// A destination port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Port {
    /// By number.
    Range(PortRange),
    /// By the name that the destination's entity gives it.
    Named {
        /// That name.
        name: Arc<str>,
    },
}

/// `first..=last`, `first <= last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PortRange {
    /// The first port.
    pub first: u16,
    /// The last port.
    pub last: u16,
}

/// ICMP type and code; a missing one matches all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Icmp {
    /// The type.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "type")]
    pub kind: Option<u8>,
    /// The code; only with a type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u8>,
}

/// The members of one selector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// By reference; shared between the versions of a group.
    pub members: BTreeMap<MemberRef, Arc<Member>>,
}

/// Whom a member stands for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MemberRef {
    /// `ExternalEntity`.
    pub kind: Arc<str>,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

/// The addresses and named ports of one member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its addresses, both families.
    #[serde(default)]
    pub ips: BTreeSet<IpAddr>,
    /// Its named ports.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub ports: BTreeSet<MemberPort>,
}

/// A port that policies may name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MemberPort {
    /// The name.
    pub name: Arc<str>,
    /// Whose port.
    pub protocol: Protocol,
    /// The number.
    pub port: u16,
}

/// A protocol with ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// RFC 9293; what Kubernetes means when nothing is said.
    #[default]
    Tcp,
    /// RFC 768.
    Udp,
    /// RFC 9260.
    Sctp,
}

/// One member as it stands in a list.
#[derive(Serialize, Deserialize)]
pub(super) struct Listed<R, M> {
    #[serde(rename = "ref")]
    pub(super) reference: R,
    #[serde(flatten)]
    pub(super) member: M,
}

#[derive(Serialize)]
struct ListedRef<'a> {
    #[serde(rename = "ref")]
    reference: &'a MemberRef,
    ips: &'a BTreeSet<IpAddr>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    ports: &'a BTreeSet<MemberPort>,
}

#[derive(Deserialize)]
struct GroupBody {
    members: Vec<Listed<MemberRef, Member>>,
}

pub(super) fn list_members<S: Serializer>(
    members: &BTreeMap<MemberRef, Arc<Member>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(members.iter().map(|(reference, member)| {
        let Member { ips, ports } = &**member;
        ListedRef { reference, ips, ports }
    }))
}

impl Serialize for Group {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Body<'a> {
            #[serde(serialize_with = "list_members")]
            members: &'a BTreeMap<MemberRef, Arc<Member>>,
        }
        Body { members: &self.members }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Group {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let GroupBody { members } = GroupBody::deserialize(deserializer)?;
        Ok(Self { members: members.into_iter().map(|l| (l.reference, Arc::new(l.member))).collect() })
    }
}

/// What of a group changed since the version that the receiver has.
#[derive(Debug)]
pub struct Delta {
    /// The group.
    pub group: GroupKey,
    /// The hash after the change.
    pub hash: Hash,
    /// New members, and members whose addresses or ports changed.
    pub added: BTreeMap<MemberRef, Arc<Member>>,
    /// Members that are no more.
    pub removed: BTreeSet<MemberRef>,
    line: std::sync::OnceLock<Bytes>,
}

impl Delta {
    pub(super) fn new(
        group: GroupKey,
        hash: Hash,
        added: BTreeMap<MemberRef, Arc<Member>>,
        removed: BTreeSet<MemberRef>,
    ) -> Self {
        Self { group, hash, added, removed, line: std::sync::OnceLock::new() }
    }

    /// The `members` frame, encoded once.
    pub fn line(&self) -> Bytes {
        self.line.get_or_init(|| Frame::encode_members(self)).clone()
    }

    fn between(old: &Entry<Group>, new: &Entry<Group>) -> Self {
        let (from, to) = (&old.body().members, &new.body().members);
        let same = |reference: &MemberRef, member: &Arc<Member>| {
            from.get(reference).is_some_and(|before| Arc::ptr_eq(before, member) || before == member)
        };
        let added = to.iter().filter(|(r, m)| !same(r, m)).map(|(r, m)| (r.clone(), Arc::clone(m))).collect();
        let removed = from.keys().filter(|r| !to.contains_key(*r)).cloned().collect();
        Self::new(*new.key(), new.hash(), added, removed)
    }
}

/// One step of an [`Update`].
#[derive(Clone, Debug)]
pub enum Change {
    /// The node's own object is this.
    Node(Arc<Entry<Node>>),
    /// This group is this.
    Group(Arc<Entry<Group>>),
    /// This policy is this.
    Policy(Arc<Entry<Policy>>),
    /// Some members of a group changed.
    Members(Arc<Delta>),
    /// The object is no more.
    Delete(ObjectId),
}

impl Change {
    /// The frame of this change, with its line end. Encoded once per object version.
    pub fn line(&self) -> Bytes {
        match self {
            Self::Node(entry) => entry.put_line(),
            Self::Group(entry) => entry.put_line(),
            Self::Policy(entry) => entry.put_line(),
            Self::Members(delta) => delta.line(),
            Self::Delete(id) => Frame::encode_delete(id),
        }
    }
}

/// One atomic change to a [`View`]: all of it applies, or none.
#[derive(Clone, Debug, Default)]
pub struct Update {
    /// Groups before the policies that need them; deletions last.
    pub changes: Vec<Change>,
}

impl Update {
    /// Whether there is nothing to say.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

/// Why a change can't be applied to a view.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// Members of a group that the view doesn't have.
    #[error("members of group {0}, which was never put")]
    UnknownGroup(GroupKey),
    /// After the last change a policy names a group that isn't there.
    #[error("policy {policy} names group {group}, which isn't there")]
    Dangling {
        /// The policy.
        policy: PolicyId,
        /// The missing group.
        group: GroupKey,
    },
}

impl Policy {
    /// The groups that its rules name.
    pub fn groups(&self) -> impl Iterator<Item = GroupKey> + '_ {
        self.rules.iter().flat_map(|rule| rule.peers.groups.iter().copied())
    }
}

impl View {
    /// What turns `self` into `next`.
    pub fn diff(&self, next: &Self) -> Update {
        let mut changes = Vec::new();
        for (key, new) in &next.groups {
            match self.groups.get(key) {
                None => changes.push(Change::Group(Arc::clone(new))),
                Some(old) if same(old, new) => {}
                Some(old) => changes.push(group_change(old, new)),
            }
        }
        let policies =
            next.policies.iter().filter(|(key, new)| !self.policies.get(*key).is_some_and(|old| same(old, new)));
        changes.extend(policies.map(|(_, new)| Change::Policy(Arc::clone(new))));
        let node = next.node.iter().filter(|new| !self.node.as_ref().is_some_and(|old| same(old, new)));
        changes.extend(node.map(|new| Change::Node(Arc::clone(new))));

        let ids = self.ids();
        changes.extend(ids.into_iter().filter(|id| !next.contains(id)).map(Change::Delete));
        Update { changes }
    }

    /// What turns a view with these hashes into `self`: the resume of a stream.
    pub fn since(&self, have: &BTreeMap<ObjectId, Hash>) -> Update {
        fn news<T: Object>(entry: &Arc<Entry<T>>, have: &BTreeMap<ObjectId, Hash>) -> Option<Arc<Entry<T>>> {
            (have.get(&entry.id()) != Some(&entry.hash())).then(|| Arc::clone(entry))
        }
        let groups = self.groups.values().filter_map(|e| news(e, have)).map(Change::Group);
        let policies = self.policies.values().filter_map(|e| news(e, have)).map(Change::Policy);
        let node = self.node.iter().filter_map(|e| news(e, have)).map(Change::Node);
        let deleted = have.keys().filter(|id| !self.contains(id)).cloned().map(Change::Delete);
        Update { changes: groups.chain(policies).chain(node).chain(deleted).collect() }
    }

    /// Applies one change. A failed change leaves the view as it was.
    pub fn apply(&mut self, change: &Change) -> Result<(), ApplyError> {
        match change {
            Change::Node(entry) => self.node = Some(Arc::clone(entry)),
            Change::Group(entry) => _ = self.groups.insert(*entry.key(), Arc::clone(entry)),
            Change::Policy(entry) => _ = self.policies.insert(entry.key().clone(), Arc::clone(entry)),
            Change::Members(delta) => self.apply_members(delta)?,
            Change::Delete(ObjectId::Node(key)) => _ = self.node.take_if(|node| node.key() == key),
            Change::Delete(ObjectId::Group(key)) => _ = self.groups.remove(key),
            Change::Delete(ObjectId::Policy(key)) => _ = self.policies.remove(key),
        }
        Ok(())
    }

    fn apply_members(&mut self, delta: &Delta) -> Result<(), ApplyError> {
        let old = self.groups.get(&delta.group).ok_or(ApplyError::UnknownGroup(delta.group))?;
        let mut members = old.body().members.clone();
        members.retain(|reference, _| !delta.removed.contains(reference));
        members.extend(delta.added.iter().map(|(r, m)| (r.clone(), Arc::clone(m))));
        let entry = Entry::received(delta.group, Group { members }, delta.hash);
        self.groups.insert(delta.group, Arc::new(entry));
        Ok(())
    }

    /// An error for the first policy that names a group which isn't there.
    pub fn dangling(&self) -> Result<(), ApplyError> {
        for (policy, entry) in &self.policies {
            if let Some(group) = entry.body().groups().find(|g| !self.groups.contains_key(g)) {
                return Err(ApplyError::Dangling { policy: policy.clone(), group });
            }
        }
        Ok(())
    }

    /// The hash of each object: what an agent says that it has.
    pub fn hashes(&self) -> BTreeMap<ObjectId, Hash> {
        let groups = self.groups.values().map(|e| (e.id(), e.hash()));
        let policies = self.policies.values().map(|e| (e.id(), e.hash()));
        let node = self.node.iter().map(|e| (e.id(), e.hash()));
        groups.chain(policies).chain(node).collect()
    }

    fn ids(&self) -> Vec<ObjectId> {
        let node = self.node.iter().map(|e| e.id());
        let policies = self.policies.values().map(|e| e.id());
        node.chain(policies).chain(self.groups.values().map(|e| e.id())).collect()
    }

    /// Whether there is such an object.
    pub fn contains(&self, id: &ObjectId) -> bool {
        match id {
            ObjectId::Node(key) => self.node.as_ref().is_some_and(|node| node.key() == key),
            ObjectId::Group(key) => self.groups.contains_key(key),
            ObjectId::Policy(key) => self.policies.contains_key(key),
        }
    }

    /// The node that this view is for.
    pub fn name(&self) -> Option<&NodeName> {
        self.node.as_ref().map(|node| node.key())
    }
}

/// Pointers first: what was not touched is the same allocation.
fn same<T: Object>(old: &Arc<Entry<T>>, new: &Arc<Entry<T>>) -> bool {
    Arc::ptr_eq(old, new) || old == new
}

/// The members that changed, or the whole group when that is shorter.
fn group_change(old: &Entry<Group>, new: &Arc<Entry<Group>>) -> Change {
    let delta = new.delta_from(old.hash(), || Delta::between(old, new));
    if delta.line().len() < new.put_line().len() { Change::Members(delta) } else { Change::Group(Arc::clone(new)) }
}
