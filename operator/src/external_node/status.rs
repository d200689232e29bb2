//! What the status of an ExternalNode should say.

use crds::check;
use crds::external_node::{ExternalNode, ExternalNodeStatus, InterfaceStatus, NetworkInterface};
use crds::names::{Key, NodeName};
use crds::wire::{AttachStage, Full, PolicyOutcome};
use crds::world::{Stored, WorldKind};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::addresses;
use super::naming::entity_name;
use crate::change::{Change, object};
use crate::context::{Context, REFRESH, Say, no, unknown, whole_seconds, yes};
use crate::policy::entity::{Holder, holder, live};
use crate::reports::{Latest, Liveness};
use crate::serve::authorize;
use crate::unreadable;

#[cfg(test)]
mod tests;

/// The status write that `key` needs, if any.
pub fn plan(ctx: &Context<'_>, key: &Key) -> Option<Change> {
    if let Some(Stored::Bad(bad)) = ctx.world().external_nodes.get(key) {
        return unreadable::external_node(ctx, bad);
    }
    let node = live(ctx.world(), key)?;
    let before = node.status.clone().unwrap_or_default();
    let after = status(ctx, key, node, &before);
    if !worth_writing(&before, &after) {
        return None;
    }
    let node = ExternalNode { status: Some(after), ..(**node).clone() };
    Some(Change::ReplaceStatus(WorldKind::ExternalNode, object(WorldKind::ExternalNode, &node)))
}

/// A new time alone is written once in [`REFRESH`].
fn worth_writing(before: &ExternalNodeStatus, after: &ExternalNodeStatus) -> bool {
    let timeless = |status: &ExternalNodeStatus| ExternalNodeStatus { last_heartbeat: None, ..status.clone() };
    if timeless(before) != timeless(after) {
        return true;
    }
    match (&before.last_heartbeat, &after.last_heartbeat) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(Time(old)), Some(Time(new))) => new.as_second() - old.as_second() >= REFRESH.as_secs().cast_signed(),
    }
}

fn status(ctx: &Context<'_>, key: &Key, node: &ExternalNode, before: &ExternalNodeStatus) -> ExternalNodeStatus {
    let heard = ctx.heard(key, &node.metadata);
    let full = heard.map(|(latest, _)| &*latest.full);
    let generation = node.metadata.generation;
    let mut after = ExternalNodeStatus {
        interfaces: full.map_or_else(|| before.interfaces.clone(), interfaces),
        agent_version: full
            .map_or_else(|| before.agent_version.clone(), |f| Some(f.facts.version.clone()).filter(|v| !v.is_empty())),
        last_heartbeat: heard
            .map_or_else(|| before.last_heartbeat.clone(), |(latest, _)| Some(whole_seconds(latest.heard_at))),
        observed_generation: generation,
        conditions: vec![],
    };
    let says = [
        ("Accepted", Some(accepted(ctx, key, node))),
        ("Joined", Some(joined(ctx, key, node, before, heard.is_some()))),
        ("InterfaceFound", about_host(ctx, before, heard, |full| interface_found(node, full, &after))),
        ("Attached", about_host(ctx, before, heard, attached)),
        ("PoliciesRealized", about_host(ctx, before, heard, |full| policies_realized(ctx, key, full))),
        ("Healthy", healthy(ctx, before, heard)),
    ];
    let now = ctx.time();
    let condition = |(kind, say): (&str, Option<Say>)| match say {
        Some(say) => Some(say.condition(kind, &before.conditions, generation, &now)),
        None => before.conditions.iter().find(|c| c.type_ == kind).cloned(),
    };
    after.conditions = says.into_iter().filter_map(condition).collect();
    after
}

fn interfaces(full: &Full) -> Vec<InterfaceStatus> {
    let text = |text: &String| Some(text.clone()).filter(|t| !t.is_empty());
    let mut out: Vec<_> = full
        .interfaces
        .iter()
        .map(|i| InterfaceStatus {
            name: text(&i.name),
            mac: text(&i.mac),
            mtu: Some(i.mtu).filter(|mtu| *mtu > 0),
            ips: i.ips.iter().map(ToString::to_string).collect(),
            mode: text(&i.state),
        })
        .collect();
    out.sort_by(|a, b| a.name.cmp(&b.name));
    out
}

fn accepted(ctx: &Context<'_>, key: &Key, node: &ExternalNode) -> Say {
    let violations = check::external_node(node);
    if !violations.is_empty() {
        return no("Invalid", list(violations.iter().map(ToString::to_string)));
    }
    for interface in node.spec.interfaces.iter().filter(|i| !addresses::of(i, node.status.as_ref()).is_empty()) {
        let id = Key::new(key.namespace.clone(), entity_name(&key.name, interface.name()));
        match holder(ctx.world(), ctx.live.claims(), &id) {
            Holder::Node(holder) if holder == *key => {}
            Holder::Nobody => {}
            Holder::Node(other) => {
                return no(
                    "NameConflict",
                    format!(
                        "the ExternalEntity {id} belongs to the older ExternalNode {other}; give the interface another name"
                    ),
                );
            }
            Holder::Foreign => {
                return no(
                    "ForeignEntity",
                    format!(
                        "an ExternalEntity {id} that no ExternalNode owns is there already; delete it, or give the interface another name"
                    ),
                );
            }
        }
    }
    let sharers = ctx.live.index().sharers(key);
    if sharers.is_empty() {
        return yes("Accepted", "");
    }
    let shared = sharers.iter().map(|(ip, other)| format!("{ip} is listed by {other} too"));
    no(
        "DuplicateAddress",
        format!("{}; peers are told it of both; remove it from the machine that does not have it", list(shared)),
    )
}

fn list(texts: impl Iterator<Item = String>) -> String {
    texts.take(8).collect::<Vec<_>>().join("; ")
}

fn joined(ctx: &Context<'_>, key: &Key, node: &ExternalNode, before: &ExternalNodeStatus, heard: bool) -> Say {
    let bound = authorize::is_bound(ctx.world(), key, node);
    match (heard || before.last_heartbeat.is_some(), bound) {
        (_, false) => no(
            "NotBound",
            "no ExternalNodeBinding of the namespace covers this ExternalNode, so no agent may act for it",
        ),
        (true, true) => yes("Connected", ""),
        (false, true) => no(
            "NeverSeen",
            format!(
                "no agent has reported yet; does one run there, with NODE_NAME {key} and a token of a bound identity?"
            ),
        ),
    }
}

/// A condition that only the agent can know. `None`: leave what is there.
fn about_host(
    ctx: &Context<'_>,
    before: &ExternalNodeStatus,
    heard: Option<(&Latest, Liveness)>,
    judge: impl FnOnce(&Full) -> Say,
) -> Option<Say> {
    match heard {
        Some((_, Liveness::Gone)) => Some(unknown("Gone", "the agent is not heard any more")),
        Some((latest, _)) => Some(judge(&latest.full)),
        None => unheard(ctx, before),
    }
}

fn unheard(ctx: &Context<'_>, before: &ExternalNodeStatus) -> Option<Say> {
    match &before.last_heartbeat {
        None => Some(unknown("NeverSeen", "no agent has reported yet")),
        // agents may not have found this leader yet
        Some(_) if ctx.settling => None,
        Some(_) => Some(unknown("Gone", "the agent is not heard any more")),
    }
}

/// `after` is the status with what this report says about the host's interfaces.
fn interface_found(node: &ExternalNode, full: &Full, after: &ExternalNodeStatus) -> Say {
    for attach in &full.attach {
        let reason = match attach.stage {
            AttachStage::NoMatch => "NoMatch",
            AttachStage::Ambiguous => "Ambiguous",
            AttachStage::AddressNotAllowed => "AddressNotAllowed",
            _ => continue,
        };
        return no(reason, format!("{}: {}", attach.interface, attach.message));
    }
    if full.attach.is_empty() {
        return unknown("NoMatch", "the agent has not said yet which interfaces it found");
    }
    let without = |i: &&NetworkInterface| addresses::of(i, Some(after)).is_empty();
    match node.spec.interfaces.iter().find(without) {
        Some(i) if !i.allowed_cidrs.is_empty() => no(
            "AddressNotAllowed",
            format!(
                "{}: no reported address is inside allowedCIDRs, so there is no ExternalEntity for it yet",
                i.name().unwrap_or("the interface")
            ),
        ),
        Some(i) => no(
            "AddressNotAllowed",
            format!(
                "{}: neither ips nor allowedCIDRs are given, so there is no ExternalEntity for it; add one of them",
                i.name().unwrap_or("the interface")
            ),
        ),
        None => yes("Found", list(node.spec.interfaces.iter().filter_map(|i| not_there(i, after)))),
    }
}

/// The listed addresses that are not on an interface, which other ones have identified.
fn not_there(interface: &NetworkInterface, after: &ExternalNodeStatus) -> Option<String> {
    let missing = addresses::missing(interface, &after.interfaces);
    let ips: Vec<_> = missing.iter().take(8).map(ToString::to_string).collect();
    let more = if missing.len() > ips.len() { ", …" } else { "" };
    let name = interface.name().unwrap_or("the interface");
    (!ips.is_empty()).then(|| format!("{name}: listed, but not on the machine: {}{more}", ips.join(", ")))
}

fn attached(full: &Full) -> Say {
    for attach in &full.attach {
        let reason = match attach.stage {
            AttachStage::Attached => continue,
            AttachStage::Attaching => "Attaching",
            AttachStage::RolledBack => "RolledBack",
            AttachStage::UplinkMissing => "UplinkMissing",
            AttachStage::Disabled => "Disabled",
            AttachStage::Refused | AttachStage::NoMatch | AttachStage::Ambiguous | AttachStage::AddressNotAllowed => {
                "Refused"
            }
        };
        return no(reason, format!("{}: {}", attach.interface, attach.message));
    }
    if full.attach.is_empty() {
        return no("Attaching", "the agent has not said yet how far it is");
    }
    yes("Attached", "")
}

fn policies_realized(ctx: &Context<'_>, key: &Key, full: &Full) -> Say {
    let resolved = ctx.live.resolved();
    let Some(node) = resolved.nodes.get(&NodeName::external(key.clone())) else { return unknown("Realizing", "") };
    let mut missing = 0;
    let mut failed = Vec::new();
    for (id, policy) in &node.policies {
        let generation = policy.body().generation;
        match full.policies.iter().find(|p| p.id == *id && p.generation == generation).map(|p| &p.outcome) {
            Some(PolicyOutcome::Realized(true)) => {}
            Some(PolicyOutcome::Error(why)) => {
                failed.push(format!("{}/{}: {why}", policy.body().namespace, policy.body().name));
            }
            Some(PolicyOutcome::Realized(false)) | None => missing += 1,
        }
    }
    match (failed.is_empty(), missing) {
        (false, _) => no("Failed", list(failed.into_iter())),
        (true, 0) => yes("Realized", ""),
        (true, _) => no("Realizing", format!("{missing} of {} policies are not in force yet", node.policies.len())),
    }
}

fn healthy(ctx: &Context<'_>, before: &ExternalNodeStatus, heard: Option<(&Latest, Liveness)>) -> Option<Say> {
    match heard {
        Some((_, Liveness::Live)) => Some(yes("Heartbeat", "")),
        Some((_, Liveness::Late)) => Some(no("Late", "three heartbeats or more are missing")),
        Some((_, Liveness::Gone)) => Some(unknown("Gone", "six heartbeats or more are missing")),
        None => unheard(ctx, before),
    }
}
