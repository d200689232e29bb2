//! What agents last said, and how long ago: latest wins, silence ages.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crds::names::{NodeName, PolicyId, Uid};
use crds::wire::{Full, PolicyOutcome, Report, ReportAnswer, Want};
use jiff::Timestamp;

use crate::context::REFRESH;

/// How an agent's silence is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Liveness {
    /// Heard in time.
    Live,
    /// Three heartbeats missed.
    Late,
    /// Six heartbeats missed.
    Gone,
}

/// One moment on both clocks: the steady one judges, the other one is written down.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// For differences.
    pub steady: Instant,
    /// For people.
    pub wall: Timestamp,
}

impl Now {
    /// This moment.
    pub fn read() -> Self {
        Self { steady: Instant::now(), wall: Timestamp::now() }
    }
}

/// The latest of one node.
#[derive(Clone, Debug)]
pub struct Latest {
    /// The last full report.
    pub full: Arc<Full>,
    /// When the node was last heard of, on the steady clock.
    pub heard: Instant,
    /// The same for people.
    pub heard_at: Timestamp,
    judged: Liveness,
    /// When what only tells the time was last due.
    refreshed: Instant,
}

impl Latest {
    fn is_due(&self, now: Now) -> bool {
        now.steady.saturating_duration_since(self.refreshed) >= REFRESH
    }
}

/// What a report did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    /// What the agent is answered.
    pub answer: ReportAnswer,
    /// Whether anything but the time changed, or the time was due to be written.
    pub changed: bool,
    /// The policies whose outcome changed.
    pub policies: BTreeSet<PolicyId>,
}

/// The latest of every node.
#[derive(Debug)]
pub struct Reports {
    nodes: HashMap<NodeName, Latest>,
    beat: Duration,
}

impl Reports {
    /// Nobody heard yet; agents report every `beat`.
    pub fn new(beat: Duration) -> Self {
        Self { nodes: HashMap::new(), beat }
    }

    /// Takes in a report that was authorised and is within its bounds ([`Report::bounded`]).
    pub fn accept(&mut self, report: Report, now: Now) -> Accepted {
        let (head, full) = match report {
            Report::Full(full) => (full.head.clone(), Some(full)),
            Report::Heartbeat(head) => (head, None),
        };
        let known = self.nodes.get_mut(&head.node).filter(|latest| latest.full.head.uid == head.uid);
        match (known, full) {
            (Some(latest), None) if latest.full.head.digest == head.digest => {
                (latest.heard, latest.heard_at) = (now.steady, now.wall);
                let woke = latest.judged != Liveness::Live;
                latest.judged = Liveness::Live;
                let due = latest.is_due(now);
                if woke || due {
                    latest.refreshed = now.steady;
                }
                let policies = if woke { every_policy(&latest.full) } else { BTreeSet::new() };
                Accepted { changed: woke || due, policies, ..Accepted::default() }
            }
            (_, None) => Accepted { answer: ReportAnswer { want: Some(Want::Full) }, ..Accepted::default() },
            (known, Some(full)) => {
                let due = known.as_ref().is_some_and(|latest| latest.is_due(now));
                let refreshed = known.as_ref().map(|latest| latest.refreshed);
                let before = known.map(|latest| (Arc::clone(&latest.full), latest.judged));
                let full: Arc<Full> = Arc::from(full);
                let accepted = compare(before.as_ref(), &full);
                let accepted = Accepted { changed: accepted.changed || due, ..accepted };
                let latest = Latest {
                    full: Arc::clone(&full),
                    heard: now.steady,
                    heard_at: now.wall,
                    judged: Liveness::Live,
                    // a full report without news doesn't put off what is due
                    refreshed: refreshed.filter(|_| !accepted.changed).unwrap_or(now.steady),
                };
                self.nodes.insert(head.node, latest);
                accepted
            }
        }
    }

    /// The latest of the node `name` while it is the ExternalNode `uid`.
    pub fn of(&self, name: &NodeName, uid: &Uid) -> Option<&Latest> {
        self.nodes.get(name).filter(|latest| latest.full.head.uid == *uid)
    }

    /// How `latest` is judged at `now`.
    pub fn liveness(&self, latest: &Latest, now: Now) -> Liveness {
        match now.steady.saturating_duration_since(latest.heard) {
            silence if silence > self.beat * 6 => Liveness::Gone,
            silence if silence > self.beat * 3 => Liveness::Late,
            _ => Liveness::Live,
        }
    }

    /// How long until the judgement of `latest` can change by itself; none once it is Gone.
    pub fn next_judgement(&self, latest: &Latest, now: Now) -> Option<Duration> {
        let silence = now.steady.saturating_duration_since(latest.heard);
        let limits = [self.beat * 3, self.beat * 6].into_iter();
        limits.filter_map(|limit| limit.checked_sub(silence)).min().map(|left| left + Duration::from_millis(1))
    }

    /// Nodes whose judgement changed since the last call, and the policies that they had reported on.
    pub fn aged(&mut self, name: &NodeName, now: Now) -> Option<BTreeSet<PolicyId>> {
        let judged = self.liveness(self.nodes.get(name)?, now);
        let latest = self.nodes.get_mut(name)?;
        let changed = std::mem::replace(&mut latest.judged, judged) != judged;
        changed.then(|| every_policy(&latest.full))
    }

    /// Forgets a node that is no more.
    pub fn forget(&mut self, name: &NodeName) {
        self.nodes.remove(name);
    }
}

fn compare(before: Option<&(Arc<Full>, Liveness)>, full: &Full) -> Accepted {
    let Some((old, Liveness::Live)) = before else {
        return Accepted { changed: true, policies: every_policy(full), ..Accepted::default() };
    };
    let outcomes = |full: &Full| -> HashMap<PolicyId, (i64, PolicyOutcome)> {
        full.policies.iter().map(|p| (p.id.clone(), (p.generation, p.outcome.clone()))).collect()
    };
    let (was, is) = (outcomes(old), outcomes(full));
    let ids = was.keys().chain(is.keys());
    // a policy counts where its interface is attached, so a changed attachment concerns them all
    let policies: BTreeSet<PolicyId> = if old.attach == full.attach {
        ids.filter(|id| was.get(*id) != is.get(*id)).cloned().collect()
    } else {
        ids.cloned().collect()
    };
    let changed = !policies.is_empty()
        || old.attach != full.attach
        || old.interfaces != full.interfaces
        || old.facts != full.facts;
    Accepted { changed, policies, ..Accepted::default() }
}

fn every_policy(full: &Full) -> BTreeSet<PolicyId> {
    full.policies.iter().map(|p| p.id.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crds::wire::{Facts, Heartbeat, PolicyReport};

    const BEAT: Duration = Duration::from_secs(10);

    fn head(digest: &str) -> Heartbeat {
        Heartbeat { node: "vms/vm1".parse().unwrap(), uid: "u1".into(), revision: None, digest: digest.to_owned() }
    }

    fn full(digest: &str, outcome: PolicyOutcome) -> Report {
        let policies = vec![PolicyReport { id: "p1".into(), generation: 1, outcome }];
        Report::Full(Box::new(Full {
            head: head(digest),
            policies,
            interfaces: vec![],
            attach: vec![],
            facts: Facts::default(),
        }))
    }

    fn after(start: Now, seconds: u64) -> Now {
        Now { steady: start.steady + Duration::from_secs(seconds), wall: start.wall }
    }

    #[test]
    fn a_heartbeat_with_an_unknown_digest_is_asked_for_everything() {
        let (mut reports, now) = (Reports::new(BEAT), Now::read());
        assert_eq!(reports.accept(Report::Heartbeat(head("d1")), now).answer.want, Some(Want::Full));
        assert!(reports.accept(full("d1", PolicyOutcome::Realized(true)), now).changed);
        assert_eq!(reports.accept(Report::Heartbeat(head("d1")), now), Accepted::default());
        assert_eq!(reports.accept(Report::Heartbeat(head("d2")), now).answer.want, Some(Want::Full));
    }

    #[test]
    fn only_a_changed_outcome_concerns_its_policy() {
        let (mut reports, now) = (Reports::new(BEAT), Now::read());
        reports.accept(full("d1", PolicyOutcome::Realized(true)), now);
        assert_eq!(reports.accept(full("d2", PolicyOutcome::Realized(true)), now), Accepted::default());
        let failed = reports.accept(full("d3", PolicyOutcome::Error("no".to_owned())), now);
        assert_eq!(failed.policies, BTreeSet::from(["p1".into()]));
    }

    #[test]
    fn silence_is_late_after_three_heartbeats_and_gone_after_six() {
        let (mut reports, start) = (Reports::new(BEAT), Now::read());
        reports.accept(full("d1", PolicyOutcome::Realized(true)), start);
        let node = "vms/vm1".parse().unwrap();
        let latest = reports.of(&node, &"u1".into()).unwrap().clone();
        for (seconds, judged) in
            [(30, Liveness::Live), (31, Liveness::Late), (60, Liveness::Late), (61, Liveness::Gone)]
        {
            assert_eq!(reports.liveness(&latest, after(start, seconds)), judged, "{seconds} s");
        }
        assert_eq!(reports.aged(&node, after(start, 29)), None);
        assert!(reports.aged(&node, after(start, 31)).is_some());
        assert_eq!(reports.aged(&node, after(start, 32)), None, "said once");
        assert!(reports.accept(Report::Heartbeat(head("d1")), after(start, 33)).changed, "it woke");
    }

    #[test]
    fn the_time_is_due_each_minute_whatever_kind_of_report_comes() {
        for all_full in [false, true] {
            let (mut reports, start) = (Reports::new(BEAT), Now::read());
            reports.accept(full("d1", PolicyOutcome::Realized(true)), start);
            let told =
                || if all_full { full("d1", PolicyOutcome::Realized(true)) } else { Report::Heartbeat(head("d1")) };
            let due: Vec<_> = (1..=125).filter(|s| reports.accept(told(), after(start, *s)).changed).collect();
            assert_eq!(due, [60, 120], "all full: {all_full}");
        }
    }

    #[test]
    fn what_was_written_for_another_reason_puts_off_what_is_due() {
        let (mut reports, start) = (Reports::new(BEAT), Now::read());
        reports.accept(full("d1", PolicyOutcome::Realized(true)), start);
        let node = "vms/vm1".parse().unwrap();
        assert!(reports.aged(&node, after(start, 35)).is_some());
        assert!(reports.accept(Report::Heartbeat(head("d1")), after(start, 40)).changed, "it woke");
        assert!(!reports.accept(Report::Heartbeat(head("d1")), after(start, 65)).changed);
        assert!(reports.accept(full("d2", PolicyOutcome::Realized(false)), after(start, 70)).changed, "an outcome");
        assert!(!reports.accept(Report::Heartbeat(head("d2")), after(start, 125)).changed);
        assert!(reports.accept(Report::Heartbeat(head("d2")), after(start, 130)).changed);
    }

    #[test]
    fn a_changed_attachment_concerns_all_policies() {
        use crds::wire::{Attach, AttachStage};
        let (mut reports, now) = (Reports::new(BEAT), Now::read());
        let attached = |stage| {
            let Report::Full(mut full) = full("d", PolicyOutcome::Realized(true)) else { unreachable!("it is full") };
            full.attach = vec![Attach { interface: "eth0".to_owned(), stage, message: String::new() }];
            Report::Full(full)
        };
        reports.accept(attached(AttachStage::Attaching), now);
        assert_eq!(reports.accept(attached(AttachStage::Attached), now).policies, BTreeSet::from(["p1".into()]));
        assert_eq!(reports.accept(attached(AttachStage::Attached), now), Accepted::default());
    }

    #[test]
    fn a_node_that_is_forgotten_is_asked_for_everything() {
        let (mut reports, now) = (Reports::new(BEAT), Now::read());
        reports.accept(full("d1", PolicyOutcome::Realized(true)), now);
        reports.forget(&"vms/vm1".parse().unwrap());
        assert_eq!(reports.accept(Report::Heartbeat(head("d1")), now).answer.want, Some(Want::Full));
    }

    #[test]
    fn a_node_is_judged_again_when_it_could_be_judged_otherwise() {
        let (mut reports, start) = (Reports::new(BEAT), Now::read());
        reports.accept(full("d1", PolicyOutcome::Realized(true)), start);
        let latest = reports.of(&"vms/vm1".parse().unwrap(), &"u1".into()).unwrap().clone();
        let mut waited = Duration::ZERO;
        let mut judged = Vec::new();
        while let Some(next) = reports.next_judgement(&latest, Now { steady: start.steady + waited, wall: start.wall })
        {
            waited += next;
            judged.push(reports.liveness(&latest, Now { steady: start.steady + waited, wall: start.wall }));
        }
        assert_eq!(judged, [Liveness::Late, Liveness::Gone]);
    }

    #[test]
    fn a_namesake_with_another_uid_is_another_node() {
        let (mut reports, now) = (Reports::new(BEAT), Now::read());
        reports.accept(full("d1", PolicyOutcome::Realized(true)), now);
        assert!(reports.of(&"vms/vm1".parse().unwrap(), &"u2".into()).is_none());
    }
}
