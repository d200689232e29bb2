//! What every plan looks at: a value, so that a plan is a function of it.

use std::time::Duration;

use crds::names::{Key, NodeName};
use crds::world::{World, uid};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::core::ObjectMeta;

use crate::policy::Live;
use crate::reports::{Latest, Liveness, Now, Reports};

#[cfg(test)]
mod tests;

/// What every plan looks at.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The objects and what follows from them.
    pub live: &'a Live,
    /// What agents said.
    pub reports: &'a Reports,
    /// When.
    pub now: Now,
    /// Whether agents have not had the time yet to report to this leader: until then no status gets worse.
    pub settling: bool,
}

/// How often what only tells the time is written.
pub const REFRESH: Duration = Duration::from_mins(1);

impl<'a> Context<'a> {
    /// The objects.
    pub fn world(&self) -> &'a World {
        self.live.world()
    }

    /// What the agent of the ExternalNode said, and how its silence is judged.
    ///
    /// Silence towards a new leader is no news: the agent may have talked to another replica meanwhile.
    pub fn heard(&self, key: &Key, meta: &ObjectMeta) -> Option<(&'a Latest, Liveness)> {
        let latest = self.reports.of(&NodeName::external(key.clone()), &uid(meta))?;
        let judged = self.reports.liveness(latest, self.now);
        (judged == Liveness::Live || !self.settling).then_some((latest, judged))
    }

    /// Now, for people: whole seconds, as Kubernetes writes them.
    pub fn time(&self) -> Time {
        whole_seconds(self.now.wall)
    }
}

/// `at` as Kubernetes writes times.
pub fn whole_seconds(at: jiff::Timestamp) -> Time {
    Time(jiff::Timestamp::from_second(at.as_second()).unwrap_or(at))
}

/// A condition's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Say {
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    /// Why, in one word.
    pub reason: String,
    /// Why, in a sentence.
    pub message: String,
}

/// It holds.
pub fn yes(reason: &str, message: impl Into<String>) -> Say {
    Say { status: "True", reason: reason.to_owned(), message: message.into() }
}

/// It doesn't.
pub fn no(reason: &str, message: impl Into<String>) -> Say {
    Say { status: "False", reason: reason.to_owned(), message: message.into() }
}

/// Nobody knows.
pub fn unknown(reason: &str, message: impl Into<String>) -> Say {
    Say { status: "Unknown", reason: reason.to_owned(), message: message.into() }
}

/// The longest message of a condition, in bytes. It may quote what an object says, and that may be very long.
const LONGEST: usize = 4096;

impl Say {
    /// The condition `kind` with these words, of which a very long message keeps its start. Its transition time is `before`'s when the status is the same.
    pub fn condition(self, kind: &str, before: &[Condition], generation: Option<i64>, now: &Time) -> Condition {
        let same = before.iter().find(|c| c.type_ == kind && c.status == self.status);
        Condition {
            type_: kind.to_owned(),
            status: self.status.to_owned(),
            reason: self.reason,
            message: start_of(self.message, LONGEST),
            last_transition_time: same.map_or_else(|| now.clone(), |c| c.last_transition_time.clone()),
            observed_generation: generation,
        }
    }
}

/// `text`, or what of it fits in `most` bytes with a "…" after it.
pub fn start_of(mut text: String, most: usize) -> String {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most.saturating_sub("…".len())));
        text.push('…');
    }
    text
}
