//! What has to be written so that each live ExternalNode has its AgentInfo, and nobody else one of ours.

use std::collections::{BTreeMap, BTreeSet};

use crds::agent_info::{
    AgentCondition, AgentConditionType, AgentInfo, AgentRole, AntreaAgentInfo, ConditionStatus, OvsInfo, PolicyCounts,
};
use crds::external_node::ExternalNode;
use crds::names::{Key, Uid};
use crds::wire::{Facts, Role};
use crds::world::{Stored, World, WorldKind, uid};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use super::naming::{NODE, NODE_UID, candidates, node_of};
use crate::change::{Change, object};
use crate::context::{Context, REFRESH, whole_seconds};
use crate::policy::NodeIndex;
use crate::policy::entity::{age, live};
use crate::reports::{Latest, Liveness};

#[cfg(test)]
mod tests;

/// Above so many agents what only tells the time is written more rarely, so that the API server is not kept busy by it.
const MANY: usize = 1000;

/// The writes that the AgentInfo of the ExternalNode `key` needs, and the end of those that a namesake left behind.
pub fn plan(ctx: &Context<'_>, key: &Key) -> Vec<Change> {
    let left: BTreeSet<_> = candidates(key).into_iter().map(Key::cluster).collect();
    put(ctx, key).into_iter().chain(left.iter().filter_map(|name| orphan(ctx, name))).collect()
}

fn put(ctx: &Context<'_>, key: &Key) -> Option<Change> {
    let node = live(ctx.world(), key)?;
    let name = name(ctx.world(), ctx.live.index(), key, node)?;
    let stored = ctx.world().agent_infos.get(&Key::cluster(name.as_str()));
    let heard = ctx.heard(key, &node.metadata);
    let before = stored.and_then(Stored::good).map(|info| &info.spec);
    let content = content(ctx, key, node, before, heard);
    let Some(stored) = stored else {
        let info = AntreaAgentInfo { metadata: metadata(&ObjectMeta::default(), &name, key, node), spec: content };
        return Some(Change::Create(WorldKind::AgentInfo, object(WorldKind::AgentInfo, &info)));
    };
    let meta = metadata(stored.meta(), &name, key, node);
    let right =
        meta.annotations == stored.meta().annotations && before.is_some_and(|old| !worth_writing(ctx, old, &content));
    if right || meta.deletion_timestamp.is_some() {
        return None;
    }
    let info = AntreaAgentInfo { metadata: meta, spec: content };
    Some(Change::Replace(WorldKind::AgentInfo, object(WorldKind::AgentInfo, &info)))
}

/// The deletion of the AgentInfo `key`, if it is ours and its ExternalNode is no more, or has another.
pub fn orphan(ctx: &Context<'_>, key: &Key) -> Option<Change> {
    let meta = ctx.world().agent_infos.get(key)?.meta();
    let (node_key, _) = node_of(meta)?;
    // a node that can't be read is not gone; one that was re-created may go on with what its namesake had
    let unreadable = matches!(ctx.world().external_nodes.get(&node_key), Some(Stored::Bad(_)));
    let node = live(ctx.world(), &node_key);
    let name = node.and_then(|node| name(ctx.world(), ctx.live.index(), &node_key, node));
    let stays = unreadable || name.is_some_and(|name| *name == *key.name);
    let going = meta.deletion_timestamp.is_some();
    (!stays && !going).then(|| Change::Delete(WorldKind::AgentInfo, Box::new(meta.clone())))
}

/// The name that the AgentInfo of `node` has, or gets: the one it has had, else the first that is free.
fn name(world: &World, index: &NodeIndex, key: &Key, node: &ExternalNode) -> Option<String> {
    let about =
        |name: &String| world.agent_infos.get(&Key::cluster(name.as_str())).map(|stored| node_of(stored.meta()));
    let names = candidates(key);
    let own: Uid = uid(&node.metadata);
    let mine = |name: &&String| matches!(about(name), Some(Some((_, uid))) if uid == own);
    if let Some(name) = names.iter().find(mine) {
        return Some(name.clone());
    }
    let bare_is_taken = index.named(&key.name).any(|other| other != *key && age(world, &other) < age(world, key));
    // a name is free when nobody has it, or only the namesake that this ExternalNode replaced
    let free = |name: &&String| match about(name) {
        // a Node's AgentInfo has the Node's name
        _ if world.nodes.contains_key(&Key::cluster(name.as_str())) => false,
        None => true,
        Some(Some((node, _))) => node == *key,
        Some(None) => false,
    };
    names.iter().enumerate().filter(|(i, _)| *i > 0 || !bare_is_taken).map(|(_, name)| name).find(free).cloned()
}

fn metadata(before: &ObjectMeta, name: &str, key: &Key, node: &ExternalNode) -> ObjectMeta {
    let mut annotations = before.annotations.clone().unwrap_or_default();
    annotations.insert(NODE.to_owned(), key.to_string());
    annotations.insert(NODE_UID.to_owned(), uid(&node.metadata).to_string());
    ObjectMeta { name: Some(name.to_owned()), annotations: Some(annotations), ..before.clone() }
}

fn content(
    ctx: &Context<'_>,
    key: &Key,
    node: &ExternalNode,
    before: Option<&AgentInfo>,
    heard: Option<(&Latest, Liveness)>,
) -> AgentInfo {
    let node_ref = ObjectReference {
        api_version: Some("crd.antrea.io/v1alpha1".to_owned()),
        kind: Some("ExternalNode".to_owned()),
        namespace: Some(key.namespace.to_string()),
        name: Some(key.name.to_string()),
        uid: Some(uid(&node.metadata).to_string()),
        ..ObjectReference::default()
    };
    let same_node = before.filter(|b| b.node_ref.as_ref().is_some_and(|r| r.uid == node_ref.uid));
    let (facts, conditions) = match (heard, same_node) {
        (Some((latest, liveness)), _) => (Some(&latest.full.facts), conditions(latest, liveness)),
        // agents may not have found this leader yet
        (None, Some(before)) if ctx.settling => return AgentInfo { node_ref: Some(node_ref), ..before.clone() },
        (None, Some(before)) => {
            return AgentInfo {
                node_ref: Some(node_ref),
                agent_conditions: before.agent_conditions.iter().cloned().map(gone).collect(),
                ..before.clone()
            };
        }
        (None, None) => (None, vec![]),
    };
    let text = |text: &String| Some(text.clone()).filter(|t| !t.is_empty());
    let count = |n: i64| i32::try_from(n).unwrap_or(i32::MAX);
    let ovs = |facts: &Facts| OvsInfo {
        version: text(&facts.ovs_version),
        bridge_name: text(&facts.bridge),
        flow_table: facts.flow_table.iter().map(|(table, n)| (table.clone(), count(*n))).collect(),
    };
    AgentInfo {
        version: facts.and_then(|f| text(&f.version)),
        role: facts.and_then(|f| f.role).map(role),
        node_ref: Some(node_ref),
        ovs_info: facts.map(ovs).filter(|ovs| *ovs != OvsInfo::default()),
        network_policy_controller_info: facts.map(|f| PolicyCounts {
            network_policy_num: Some(f.network_policies),
            address_group_num: Some(f.address_groups),
            applied_to_group_num: None,
        }),
        agent_conditions: conditions,
        ..AgentInfo::default()
    }
}

fn role(role: Role) -> AgentRole {
    match role {
        Role::Node => AgentRole::Node,
        Role::VM => AgentRole::Vm,
        Role::BM => AgentRole::Bm,
    }
}

fn gone(condition: AgentCondition) -> AgentCondition {
    AgentCondition {
        status: ConditionStatus::Unknown,
        reason: Some("Gone".to_owned()),
        message: Some("the agent is not heard any more".to_owned()),
        ..condition
    }
}

fn conditions(latest: &Latest, liveness: Liveness) -> Vec<AgentCondition> {
    use AgentConditionType::{AgentHealthy, ControllerConnectionUp, OpenflowConnectionUp, OvsdbConnectionUp};
    let facts = &latest.full.facts;
    let known = [
        (AgentHealthy, Some(true)),
        (ControllerConnectionUp, Some(true)),
        (OvsdbConnectionUp, facts.ovsdb_connected),
        (OpenflowConnectionUp, facts.openflow_connected),
    ];
    let known = known.into_iter().filter_map(|(kind, holds)| Some((kind, holds?)));
    let condition = |(kind, holds)| {
        let condition = AgentCondition {
            kind,
            status: if holds { ConditionStatus::True } else { ConditionStatus::False },
            last_heartbeat_time: whole_seconds(latest.heard_at),
            reason: Some(if holds { "Heartbeat" } else { "Disconnected" }.to_owned()),
            message: None,
        };
        match liveness {
            Liveness::Late if kind == AgentHealthy => AgentCondition {
                status: ConditionStatus::False,
                reason: Some("Late".to_owned()),
                message: Some("three heartbeats or more are missing".to_owned()),
                ..condition
            },
            Liveness::Live | Liveness::Late => condition,
            Liveness::Gone => gone(condition),
        }
    };
    known.map(condition).collect()
}

/// Versions, roles and conditions are written at once; counts and times ride on the next write, one a [`REFRESH`].
fn worth_writing(ctx: &Context<'_>, before: &AgentInfo, after: &AgentInfo) -> bool {
    let essence = |info: &AgentInfo| AgentInfo {
        network_policy_controller_info: None,
        ovs_info: info.ovs_info.clone().map(|ovs| OvsInfo { flow_table: BTreeMap::new(), ..ovs }),
        agent_conditions: info.agent_conditions.iter().cloned().map(timeless).collect(),
        ..info.clone()
    };
    let heard = |info: &AgentInfo| info.agent_conditions.iter().map(|c| c.last_heartbeat_time.0.as_second()).max();
    let often = if ctx.world().external_nodes.len() > MANY { REFRESH * 5 } else { REFRESH };
    let due =
        heard(after).is_some_and(|now| heard(before).is_none_or(|then| now - then >= often.as_secs().cast_signed()));
    essence(before) != essence(after) || due
}

fn timeless(condition: AgentCondition) -> AgentCondition {
    AgentCondition { last_heartbeat_time: Time(jiff::Timestamp::UNIX_EPOCH), ..condition }
}
