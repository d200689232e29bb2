//! What the status of a policy should say: how many nodes enforce it, and why others don't.

use std::collections::BTreeSet;

use crds::names::{EntityName, Key, NodeName};
use crds::policy::{NetworkPolicy, NetworkPolicyStatus, Phase};
use crds::wire::{Attach, AttachStage, Full, PolicyOutcome};
use crds::world::{Stored, WorldKind};

use super::compile::{Compiled, Problem, Why};
use super::resolved::Span;
use crate::change::{Change, object};
use crate::context::{Context, Say, no, yes};
use crate::reports::Liveness;
use crate::unreadable;

#[cfg(test)]
mod tests;

/// How long the list of failed nodes may be, in bytes.
const LONGEST: usize = 256;

/// The status write that the policy `key` needs, if any.
pub fn plan(ctx: &Context<'_>, key: &Key) -> Option<Change> {
    let policy = match ctx.world().policies.get(key)? {
        Stored::Good(policy) => policy,
        Stored::Bad(bad) => return unreadable::policy(ctx, bad),
    };
    if policy.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let compiled = ctx.live.resolved().policies.get(key)?;
    let empty = Span::new();
    let span = ctx.live.resolved().spans.get(key).unwrap_or(&empty);
    let before = policy.status.clone().unwrap_or_default();
    let count = count(ctx, compiled, span);
    // a new leader waits for those who have not found it yet before it says that something got worse
    let same = before.observed_generation == policy.metadata.generation && before.phase.is_some();
    if ctx.settling && count.unheard > 0 && same && before.phase != Some(Phase::Pending) {
        return None;
    }
    let after = status(ctx, policy, compiled, span, &count, &before);
    if before == after {
        return None;
    }
    let policy = NetworkPolicy { status: Some(after), ..(**policy).clone() };
    Some(Change::ReplaceStatus(WorldKind::NetworkPolicy, object(WorldKind::NetworkPolicy, &policy)))
}

/// The nodes of a policy by what became of it there.
#[derive(Debug, Default)]
struct Count {
    reachable: usize,
    unreachable: usize,
    /// Of the unreachable ones, those that this process never heard.
    unheard: usize,
    realized: usize,
    failed: Vec<(NodeName, String)>,
}

fn count(ctx: &Context<'_>, compiled: &Compiled, span: &Span) -> Count {
    let mut out = Count::default();
    for (node, entities) in span {
        let meta = ctx.world().external_nodes.get(node.key()).map(Stored::meta);
        match meta.and_then(|meta| ctx.heard(node.key(), meta)) {
            None => {
                out.unheard += 1;
                out.unreachable += 1;
            }
            Some((_, Liveness::Gone)) => out.unreachable += 1,
            Some((latest, _)) => {
                out.reachable += 1;
                match outcome(compiled, &latest.full) {
                    Some(PolicyOutcome::Realized(true)) if is_attached(ctx, node, entities, &latest.full) => {
                        out.realized += 1;
                    }
                    Some(PolicyOutcome::Error(why)) => out.failed.push((node.clone(), why.clone())),
                    Some(PolicyOutcome::Realized(_)) | None => {}
                }
            }
        }
    }
    out
}

fn outcome<'a>(compiled: &Compiled, full: &'a Full) -> Option<&'a PolicyOutcome> {
    let of_it = |p: &&crds::wire::PolicyReport| p.id == compiled.id && p.generation == compiled.policy.generation;
    full.policies.iter().find(of_it).map(|p| &p.outcome)
}

/// Whether each of the node's interfaces that the policy applies to is attached.
fn is_attached(ctx: &Context<'_>, node: &NodeName, entities: &BTreeSet<EntityName>, full: &Full) -> bool {
    let Some(resolved) = ctx.live.resolved().nodes.get(node) else { return false };
    let mut concerned = resolved.body.body().interfaces.iter().filter(|i| entities.contains(&i.entity));
    concerned.all(|interface| {
        // one without a name is the only one
        let of_it = |a: &&Attach| interface.name.as_ref().is_none_or(|name| a.interface == *name);
        let mut stages = full.attach.iter().filter(of_it).peekable();
        stages.peek().is_some() && stages.all(|a| a.stage == AttachStage::Attached)
    })
}

fn status(
    ctx: &Context<'_>,
    policy: &NetworkPolicy,
    compiled: &Compiled,
    span: &Span,
    count: &Count,
    before: &NetworkPolicyStatus,
) -> NetworkPolicyStatus {
    let now = ctx.time();
    // this kind's published conditions have no generation of their own
    let condition = |kind: &str, say: Say| say.condition(kind, &before.conditions, None, &now);
    let mut conditions = vec![condition("Realizable", realizable(compiled, span, count))];
    if !count.failed.is_empty() {
        conditions.push(condition(
            "RealizationFailure",
            yes("NetworkPolicyRealizationFailedOnNode", failures(&count.failed)),
        ));
    }
    let number = |n: usize| Some(i32::try_from(n).unwrap_or(i32::MAX));
    NetworkPolicyStatus {
        phase: Some(phase(compiled, count)),
        observed_generation: policy.metadata.generation,
        current_nodes_realized: number(count.realized),
        desired_nodes_realized: number(count.reachable),
        unreachable_nodes: number(count.unreachable).filter(|n| *n > 0),
        conditions,
    }
}

fn phase(compiled: &Compiled, count: &Count) -> Phase {
    match count {
        _ if whole(compiled).is_some() => Phase::Pending,
        Count { reachable: 0, .. } => Phase::Pending,
        Count { failed, .. } if !failed.is_empty() => Phase::Failed,
        Count { realized, reachable, .. } if realized == reachable => Phase::Realized,
        _ => Phase::Realizing,
    }
}

/// What is wrong with the policy as a whole, if anything is.
fn whole(compiled: &Compiled) -> Option<&Problem> {
    compiled.problems.iter().find(|p| compiled.targets.is_empty() && p.why != Why::RuleNotSupported)
}

fn realizable(compiled: &Compiled, span: &Span, count: &Count) -> Say {
    if let Some(first) = compiled.problems.first() {
        let all: Vec<_> = compiled.problems.iter().take(8).map(ToString::to_string).collect();
        return no(first.why.as_str(), all.join("; "));
    }
    match (span.is_empty(), count.reachable) {
        (true, _) => no(
            "NoMatchingNodes",
            format!(
                "appliedTo selects no ExternalEntity of a live ExternalNode; compare with the labels that kubectl get ee -n {} --show-labels shows",
                compiled.policy.namespace
            ),
        ),
        (false, 0) => {
            let names: Vec<_> = span.keys().take(8).map(ToString::to_string).collect();
            let more = if span.len() > names.len() { ", …" } else { "" };
            no(
                "NoReachableNodes",
                format!("none of the selected nodes ({}) is heard: {}{more}", span.len(), names.join(", ")),
            )
        }
        (false, _) => yes("Realizable", ""),
    }
}

fn failures(failed: &[(NodeName, String)]) -> String {
    let nodes: Vec<_> = failed.iter().map(|(node, why)| format!("{:?}:{why:?}", node.to_string())).collect();
    let mut text = format!("Failed Nodes count {}: {}", failed.len(), nodes.join(", "));
    if text.len() > LONGEST {
        text.truncate(text.floor_char_boundary(LONGEST));
        text.push_str("...");
    }
    text
}
