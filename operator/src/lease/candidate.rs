//! The decisions of one candidate: what it knows in, what to ask the API next out. No clock, no I/O.
//!
//! ```text
//!            Woke, not leading                     another's, still valid
//!  Wait ------------------------> Get --- Got ------------------------------> Wait
//!   |                              ^       | free, expired or our own
//!   | Woke, leading                |       v
//!   +--------------------------->  | <-- Create, Replace --- Wrote ---> leading, Wait
//!                                  Conflict
//! ```
//!
//! Why two never lead at once: the holder counts its renew deadline from the moment it *sent* its last successful
//! write; everybody else counts the longer lease duration from the moment they *saw* that write, which is later.
//! No clock of another machine takes part, only the rates at which clocks run, and those would have to differ by
//! half with the default settings.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::time::Instant;

use super::{Leadership, Settings};

/// What a decision may know about now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// For every comparison.
    pub now: Instant,
    /// Only written into the record, for people; never compared with what another machine wrote.
    pub wall: Timestamp,
    /// In `0.0..1.0`.
    pub jitter: f64,
}

/// What came back from the last [`Action`].
#[derive(Debug)]
pub(crate) enum Event {
    /// The wait is over, or the renew deadline passed while something else was going on.
    Woke,
    /// The record, or none.
    Got(Option<Lease>),
    /// Our write succeeded; the record as stored.
    Wrote(Lease),
    /// Somebody else wrote in between.
    Conflict,
    /// Refused, broken, or no answer in time: a write may or may not have happened.
    Failed,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    Get,
    Create(Lease),
    Replace(Lease),
    Wait(Duration),
}

/// A record and when its spec was first seen to be what it is.
#[derive(Debug)]
struct Seen {
    lease: Lease,
    at: Instant,
}

#[derive(Debug)]
struct Term {
    since: Instant,
    /// When the last successful write was sent.
    renewed: Instant,
}

/// One candidate's whole memory.
#[derive(Debug)]
pub(crate) struct Candidate {
    settings: Settings,
    seen: Option<Seen>,
    term: Option<Term>,
    /// When the write that is under way was sent.
    sent: Option<Instant>,
    /// The record may have changed since it was seen: ask before writing.
    doubt: bool,
    conflicts: u32,
    failures: u32,
}

impl Candidate {
    pub(crate) fn new(settings: Settings) -> Self {
        Self { settings, seen: None, term: None, sent: None, doubt: true, conflicts: 0, failures: 0 }
    }

    /// The next thing to do, given what the last one brought.
    pub(crate) fn step(&mut self, event: Event, at: &Moment) -> Action {
        self.end_term_at_deadline(at.now);
        let sent = self.sent.take();
        match event {
            Event::Woke => {
                // A write that was abandoned may still arrive.
                self.doubt |= sent.is_some();
                if self.term.is_some() && !self.doubt { self.claim(at) } else { Action::Get }
            }
            Event::Got(lease) => {
                self.failures = 0;
                self.doubt = false;
                self.see(lease, at.now);
                if self.may_claim(at.now) {
                    return self.claim(at);
                }
                self.term = None;
                self.retry(at)
            }
            Event::Wrote(lease) => {
                self.failures = 0;
                self.conflicts = 0;
                let sent = sent.unwrap_or(at.now);
                self.see(Some(lease), sent);
                if self.is_holder() {
                    self.term.get_or_insert(Term { since: at.now, renewed: sent }).renewed = sent;
                    self.end_term_at_deadline(at.now);
                }
                Action::Wait(self.settings.retry_period)
            }
            Event::Conflict => {
                self.doubt = true;
                self.conflicts += 1;
                if self.conflicts == 1 { Action::Get } else { self.retry(at) }
            }
            Event::Failed => {
                self.doubt = true;
                self.failures = self.failures.saturating_add(1);
                self.retry(at)
            }
        }
    }

    /// Whether this candidate leads, as far as can be known at `now`.
    pub(crate) fn leadership(&self, now: Instant) -> Leadership {
        match &self.term {
            Some(term) if now < self.deadline(term) => {
                Leadership::Leading { since: term.since, until: self.deadline(term) }
            }
            // Ourselves as the recorded holder of a term that ran out is nobody.
            _ => Leadership::Following { holder: self.holder().filter(|_| !self.is_holder()).map(str::to_owned) },
        }
    }

    /// When leading ends unless a renewal succeeds.
    pub(crate) fn leads_until(&self) -> Option<Instant> {
        self.term.as_ref().map(|term| self.deadline(term))
    }

    /// Stops leading. True when the record may name us, so that it should be released.
    pub(crate) fn resign(&mut self) -> bool {
        self.term = None;
        self.is_holder() || self.sent.is_some()
    }

    /// `lease` with nobody holding it, if it is ours to release.
    pub(crate) fn released(&self, lease: &Lease, wall: Timestamp) -> Option<Lease> {
        let spec = lease.spec.as_ref().filter(|spec| holder(spec) == Some(&self.settings.identity))?;
        let spec = LeaseSpec {
            holder_identity: None,
            // The shortest that the API allows, for readers that look only at times.
            lease_duration_seconds: Some(1),
            renew_time: Some(after(wall, spec.renew_time.as_ref())),
            ..spec.clone()
        };
        Some(Lease { spec: Some(spec), ..lease.clone() })
    }

    fn end_term_at_deadline(&mut self, now: Instant) {
        if self.leads_until().is_some_and(|until| now >= until) {
            self.term = None;
        }
    }

    fn deadline(&self, term: &Term) -> Instant {
        term.renewed + self.settings.renew_deadline
    }

    /// Only a changed spec counts as a sign of life: anybody may annotate the object.
    fn see(&mut self, lease: Option<Lease>, now: Instant) {
        let unchanged = match (&self.seen, &lease) {
            (Some(seen), Some(lease)) if seen.lease.spec == lease.spec => Some(seen.at),
            _ => None,
        };
        self.seen = lease.map(|lease| Seen { lease, at: unchanged.unwrap_or(now) });
    }

    fn spec(&self) -> Option<&LeaseSpec> {
        self.seen.as_ref()?.lease.spec.as_ref()
    }

    fn holder(&self) -> Option<&str> {
        self.spec().and_then(holder)
    }

    fn is_holder(&self) -> bool {
        self.holder() == Some(&self.settings.identity)
    }

    fn may_claim(&self, now: Instant) -> bool {
        let Some(seen) = &self.seen else { return true };
        if self.holder().is_none() || self.is_holder() {
            return true;
        }
        // The holder's own duration, since it is the holder's promise.
        let duration = self.spec().and_then(|spec| spec.lease_duration_seconds);
        let duration = duration.and_then(|seconds| u64::try_from(seconds).ok()).filter(|seconds| *seconds > 0);
        now >= seen.at + duration.map_or(self.settings.lease_duration, Duration::from_secs)
    }

    fn claim(&mut self, at: &Moment) -> Action {
        self.sent = Some(at.now);
        let was = self.spec().cloned().unwrap_or_default();
        let renew_time = after(at.wall, was.renew_time.as_ref().filter(|_| self.is_holder()));
        let (acquire_time, transitions) = if self.is_holder() {
            (was.acquire_time, was.lease_transitions)
        } else {
            // The first holder of a new record is no transition.
            let transitions = self.seen.as_ref().map_or(0, |_| was.lease_transitions.unwrap_or(0).saturating_add(1));
            (Some(renew_time.clone()), Some(transitions))
        };
        let spec = LeaseSpec {
            holder_identity: Some(self.settings.identity.clone()),
            lease_duration_seconds: Some(i32::try_from(self.settings.lease_duration.as_secs()).unwrap_or(i32::MAX)),
            acquire_time,
            renew_time: Some(renew_time),
            lease_transitions: transitions,
            ..was
        };
        if let Some(seen) = &self.seen {
            return Action::Replace(Lease { spec: Some(spec), ..seen.lease.clone() });
        }
        let mut lease = Lease { spec: Some(spec), ..Lease::default() };
        lease.metadata.namespace = Some(self.settings.namespace.clone());
        lease.metadata.name = Some(self.settings.name.clone());
        Action::Create(lease)
    }

    /// A leader tries often, since its deadline is near; a follower leaves a struggling API in peace.
    fn retry(&mut self, at: &Moment) -> Action {
        self.conflicts = 0;
        let period = self.settings.retry_period;
        if self.term.is_some() {
            return Action::Wait(period.mul_f64(0.5 + at.jitter / 2.0));
        }
        let longest = self.settings.lease_duration.max(period);
        let backoff = period.saturating_mul(1 << self.failures.saturating_sub(1).min(10)).min(longest);
        Action::Wait(backoff.mul_f64(1.0 + at.jitter))
    }
}

fn holder(spec: &LeaseSpec) -> Option<&str> {
    spec.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

/// `wall`, or just after our own `last` where the clock stood still or went back: a renewal that changes nothing isn't
/// stored, and nobody would see it.
fn after(wall: Timestamp, last: Option<&MicroTime>) -> MicroTime {
    let wall = Timestamp::from_microsecond(wall.as_microsecond()).unwrap_or(wall);
    let next = last.and_then(|last| last.0.checked_add(SignedDuration::from_micros(1)).ok());
    MicroTime(next.map_or(wall, |next| next.max(wall)))
}
