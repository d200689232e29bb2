//! What the operator told this machine, as it was told.
//!
//! ```text
//! bytes --Stream--> Frame --Mirror::frame--> pending --commit--> View
//!                              |                |
//!                              +--error, cut----+--> dropped; the last good view stays
//! ```
//!
//! The promise: the view only ever changes from one committed state to the next, however a stream ends.

use crds::names::{GroupKey, NodeName, PolicyId, Uid};
use crds::wire::{ApplyError, Change, Entry, Frame, Hello, Node, Resume, Revision, View, WIRE};

mod backoff;
mod lines;
mod stream;

#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;

pub use backoff::Backoff;
pub use stream::{Loss, News, Stream, StreamError, first_commit, follow, follow_on};

/// The view as received, and what is pending since the last commit.
///
/// A mirror believes the frames that it is given: they must come from a [`Stream`], whose other end has proved that it
/// is the operator.
#[derive(Clone, Debug, Default)]
pub struct Mirror {
    /// The only node that may be put; any when none was asked for, until one was.
    asked: Option<NodeName>,
    view: View,
    revision: Option<Revision>,
    complete: bool,
    /// Outlives the node's own object: a deletion may take the object first and say `gone` then.
    uid: Option<Uid>,
    gone: bool,
    /// What we have can't be built on: the last stream contradicted it.
    doubt: bool,
    phase: Phase,
}

/// Where the stream that feeds the mirror is.
#[derive(Clone, Debug, Default)]
enum Phase {
    /// No `hello` yet, or an error since.
    #[default]
    Closed,
    /// Changes may come. `full`: the next commit replaces the view.
    Open { full: bool, pending: Option<View> },
}

/// What a frame means to those who act on the mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// A stream began.
    Hello,
    /// The view is now what the operator has at this revision.
    Commit(Revision),
    /// The operator lives and has nothing new.
    Ping,
    /// The ExternalNode that this machine is was deleted. The view stays as it was.
    Gone {
        /// Its uid, which the mirror knew.
        uid: Uid,
        /// In the operator's words.
        reason: String,
    },
}

/// Why a frame can't be believed. What was pending is dropped, and the rest of the stream is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MirrorError {
    /// The stream didn't begin with `hello`, or goes on after an error.
    #[error("a {frame} frame before hello")]
    NoHello {
        /// Which came instead.
        frame: &'static str,
    },
    /// The stream speaks another version of the wire.
    #[error("the operator speaks version {theirs} of the wire, this agent {WIRE}")]
    Wire {
        /// The stream's.
        theirs: u32,
    },
    /// Everything was asked for, and the stream brings a difference.
    #[error("the operator sends a difference where everything was asked for")]
    NotFull,
    /// The stream is for somebody else.
    #[error("the operator sends node {got}, this machine is {expected}")]
    AnotherNode {
        /// Who this machine is.
        expected: NodeName,
        /// Who the stream is for.
        got: NodeName,
    },
    /// Members of a group that was never put.
    #[error("the operator sends members of group {0}, which was never put")]
    UnknownGroup(GroupKey),
    /// A commit that leaves a policy without one of its groups.
    #[error("the operator commits policy {policy} without its group {group}")]
    Dangling {
        /// The policy.
        policy: PolicyId,
        /// The missing group.
        group: GroupKey,
    },
    /// Another ExternalNode is gone, not the one that this machine is.
    #[error("the operator says that ExternalNode {gone} is gone, this machine is {}", known.as_ref().map_or("none yet", Uid::as_str))]
    NotMine {
        /// Which is gone.
        gone: Uid,
        /// Which this machine is.
        known: Option<Uid>,
    },
}

impl Mirror {
    /// An empty mirror for the node `asked`; for the only one that the identity may act for when none is named.
    pub fn new(asked: Option<NodeName>) -> Self {
        Self { asked, ..Self::default() }
    }

    /// A mirror that continues from a view kept by an earlier run.
    pub fn kept(asked: Option<NodeName>, view: View, revision: Option<Revision>) -> Self {
        let uid = view.node.as_ref().map(|node| node.body().uid.clone());
        Self { view, revision, complete: true, uid, ..Self::new(asked) }
    }

    /// The last good view. Empty until [`complete`](Self::complete).
    pub fn view(&self) -> &View {
        &self.view
    }

    /// The revision of the last commit.
    pub fn revision(&self) -> Option<&Revision> {
        self.revision.as_ref()
    }

    /// Whether a whole view was ever committed: nothing may be made of the view before.
    pub fn complete(&self) -> bool {
        self.complete
    }

    /// The ExternalNode that this machine was last told to be. Outlives its object in the view.
    pub fn uid(&self) -> Option<&Uid> {
        self.uid.as_ref()
    }

    /// Whether the ExternalNode is gone and no other took its place since.
    pub fn gone(&self) -> bool {
        self.gone
    }

    /// The node to ask for: the configured one, or else the one that was told.
    pub fn node(&self) -> Option<&NodeName> {
        self.asked.as_ref().or_else(|| self.view.name().filter(|_| !self.gone))
    }

    /// What an agent says that it has.
    pub fn resume(&self) -> Resume {
        Resume { uid: self.uid.clone(), have: self.view.hashes() }
    }

    /// Whether the next stream must bring everything: there is nothing to continue from, or nothing to be trusted.
    pub fn wants_everything(&self) -> bool {
        self.doubt || self.view == View::default()
    }

    /// The stream ended: what it didn't commit never was.
    pub fn cut(&mut self) {
        self.phase = Phase::Closed;
    }

    /// Takes the next frame of a stream. `None`: it waits for its commit.
    pub fn frame(&mut self, frame: Frame) -> Result<Option<Told>, MirrorError> {
        let told = self.believe(frame);
        if told.is_err() {
            self.cut();
        }
        told
    }

    fn believe(&mut self, frame: Frame) -> Result<Option<Told>, MirrorError> {
        if matches!(self.phase, Phase::Closed) && !matches!(frame, Frame::Hello(_)) {
            return Err(MirrorError::NoHello { frame: word(&frame) });
        }
        match frame {
            Frame::Hello(hello) => self.hello(&hello).map(Some),
            Frame::Change(change) => self.change(&change).map(|()| None),
            Frame::Commit(revision) => self.commit(revision).map(Some),
            Frame::Ping => Ok(Some(Told::Ping)),
            Frame::Gone { uid, reason } => self.is_gone(uid, reason).map(Some),
        }
    }

    fn hello(&mut self, hello: &Hello) -> Result<Told, MirrorError> {
        let Hello { wire, full, heartbeat_seconds: _ } = *hello;
        if wire != WIRE {
            return Err(MirrorError::Wire { theirs: wire });
        }
        if self.doubt && !full {
            return Err(MirrorError::NotFull);
        }
        self.phase = Phase::Open { full, pending: None };
        Ok(Told::Hello)
    }

    fn change(&mut self, change: &Change) -> Result<(), MirrorError> {
        if let Change::Node(entry) = change {
            self.is_ours(entry)?;
        }
        let Phase::Open { full, pending } = &mut self.phase else {
            return Err(MirrorError::NoHello { frame: "put" });
        };
        let start = || if *full { View::default() } else { self.view.clone() };
        let applied = pending.get_or_insert_with(start).apply(change);
        applied.map_err(|error| self.contradicted(error))
    }

    fn is_ours(&self, entry: &Entry<Node>) -> Result<(), MirrorError> {
        match self.node() {
            Some(expected) if expected != entry.key() => {
                Err(MirrorError::AnotherNode { expected: expected.clone(), got: entry.key().clone() })
            }
            _ => Ok(()),
        }
    }

    fn commit(&mut self, revision: Revision) -> Result<Told, MirrorError> {
        let Phase::Open { full, pending } = &mut self.phase else {
            return Err(MirrorError::NoHello { frame: "commit" });
        };
        let next = match pending.take() {
            None if *full => Some(View::default()),
            pending => pending,
        };
        *full = false;
        if let Some(next) = next {
            next.dangling().map_err(|error| self.contradicted(error))?;
            self.view = next;
        }
        if let Some(node) = &self.view.node {
            // Also under a new uid: the ExternalNode was made anew, and the machine stays attached.
            self.uid = Some(node.body().uid.clone());
            self.gone = false;
        }
        self.revision = Some(revision.clone());
        (self.complete, self.doubt) = (true, false);
        Ok(Told::Commit(revision))
    }

    fn is_gone(&mut self, uid: Uid, reason: String) -> Result<Told, MirrorError> {
        if self.uid.as_ref() != Some(&uid) {
            return Err(MirrorError::NotMine { gone: uid, known: self.uid.clone() });
        }
        self.gone = true;
        Ok(Told::Gone { uid, reason })
    }

    /// The stream doesn't fit what we have, so what we have is not what the operator thinks.
    fn contradicted(&mut self, error: ApplyError) -> MirrorError {
        self.doubt = true;
        match error {
            ApplyError::UnknownGroup(group) => MirrorError::UnknownGroup(group),
            ApplyError::Dangling { policy, group } => MirrorError::Dangling { policy, group },
        }
    }
}

fn word(frame: &Frame) -> &'static str {
    match frame {
        Frame::Hello(_) => "hello",
        Frame::Change(Change::Members(_)) => "members",
        Frame::Change(Change::Delete(_)) => "delete",
        Frame::Change(_) => "put",
        Frame::Commit(_) => "commit",
        Frame::Ping => "ping",
        Frame::Gone { .. } => "gone",
    }
}
