//! The lines of a stream: newline-delimited JSON, one frame a line.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::entry::{Entry, Kind, Object, ObjectId};
use super::view::{Change, Delta, Listed, Member, MemberRef, list_members};
use crate::hash::Hash;
use crate::names::{GroupKey, Uid};

/// A point in what one server process published: `<epoch>.<n>`. Opaque; never compared across epochs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(Arc<str>);

impl Revision {
    /// Change `n` of the process `epoch`.
    pub fn new(epoch: &str, n: u64) -> Self {
        Self(format!("{epoch}.{n}").into())
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The first frame of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hello {
    /// The wire version spoken.
    pub wire: u32,
    /// Whether the mirror is replaced at the first commit; else what follows is a difference to what the agent has.
    pub full: bool,
    /// How often the agent reports at least; a `ping` comes twice as often when nothing else does. Seconds.
    pub heartbeat_seconds: u32,
}

/// What an agent sends to continue from what it has: the body of `POST /v1/watch`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// The ExternalNode that the agent believes it is. Grants nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<Uid>,
    /// The server's hash of each object that the agent has.
    #[serde(default)]
    pub have: BTreeMap<ObjectId, Hash>,
}

/// One line of a stream.
#[derive(Clone, Debug)]
pub enum Frame {
    /// The stream begins.
    Hello(Hello),
    /// One change; applies at the next commit.
    Change(Change),
    /// All changes since the last commit apply at once.
    Commit(Revision),
    /// The stream lives.
    Ping,
    /// The ExternalNode with this uid was deleted. Nothing else makes an agent detach.
    Gone {
        /// Of the deleted ExternalNode.
        uid: Uid,
        /// For the log of the machine.
        reason: String,
    },
}

/// Why a line is no frame.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// Not JSON, or not the JSON of a frame.
    #[error("a line of the stream is no frame")]
    Json(#[from] serde_json::Error),
    /// A frame without one of its fields.
    #[error("a {frame} frame without {field}")]
    Missing {
        /// The frame.
        frame: &'static str,
        /// The field.
        field: &'static str,
    },
    /// A key that doesn't fit its kind.
    #[error("a frame with a wrong key: {0}")]
    Key(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Word {
    Hello,
    Put,
    Members,
    Delete,
    Commit,
    Ping,
    Gone,
}

/// Every field that any frame has. Unknown ones are ignored, so that a newer server can say more.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    frame: Word,
    wire: Option<u32>,
    full: Option<bool>,
    heartbeat_seconds: Option<u32>,
    kind: Option<Kind>,
    key: Option<String>,
    hash: Option<Hash>,
    #[serde(borrow)]
    body: Option<&'a RawValue>,
    group: Option<GroupKey>,
    added: Option<Vec<Listed<MemberRef, Member>>>,
    removed: Option<BTreeSet<MemberRef>>,
    revision: Option<Revision>,
    uid: Option<Uid>,
    reason: Option<String>,
}

impl Frame {
    /// The frame of one line, with or without its line end.
    pub fn decode(line: &[u8]) -> Result<Self, FrameError> {
        let Line {
            frame,
            wire,
            full,
            heartbeat_seconds,
            kind,
            key,
            hash,
            body,
            group,
            added,
            removed,
            revision,
            uid,
            reason,
        } = serde_json::from_slice(line)?;
        Ok(match frame {
            Word::Hello => Self::Hello(Hello {
                wire: need(wire, "hello", "wire")?,
                full: need(full, "hello", "full")?,
                heartbeat_seconds: need(heartbeat_seconds, "hello", "heartbeatSeconds")?,
            }),
            Word::Put => {
                let id = object_id(need(kind, "put", "kind")?, &need(key, "put", "key")?)?;
                let (hash, body) = (need(hash, "put", "hash")?, need(body, "put", "body")?);
                Self::Change(match id {
                    ObjectId::Node(key) => Change::Node(received(key, hash, body)?),
                    ObjectId::Group(key) => Change::Group(received(key, hash, body)?),
                    ObjectId::Policy(key) => Change::Policy(received(key, hash, body)?),
                })
            }
            Word::Members => {
                let added = need(added, "members", "added")?.into_iter().map(|l| (l.reference, Arc::new(l.member)));
                Self::Change(Change::Members(Arc::new(Delta::new(
                    need(group, "members", "group")?,
                    need(hash, "members", "hash")?,
                    added.collect(),
                    need(removed, "members", "removed")?,
                ))))
            }
            Word::Delete => {
                Self::Change(Change::Delete(object_id(need(kind, "delete", "kind")?, &need(key, "delete", "key")?)?))
            }
            Word::Commit => Self::Commit(need(revision, "commit", "revision")?),
            Word::Ping => Self::Ping,
            Word::Gone => Self::Gone { uid: need(uid, "gone", "uid")?, reason: reason.unwrap_or_default() },
        })
    }

    /// The line of this frame, with its line end.
    pub fn encode(&self) -> Bytes {
        #[derive(Serialize)]
        #[serde(tag = "frame", rename_all = "lowercase")]
        enum Out<'a> {
            Hello(&'a Hello),
            Commit { revision: &'a Revision },
            Ping,
            Gone { uid: &'a Uid, reason: &'a str },
        }
        match self {
            Self::Change(change) => change.line(),
            Self::Hello(hello) => line(&Out::Hello(hello)),
            Self::Commit(revision) => line(&Out::Commit { revision }),
            Self::Ping => line(&Out::Ping),
            Self::Gone { uid, reason } => line(&Out::Gone { uid, reason }),
        }
    }

    pub(super) fn encode_delete(id: &ObjectId) -> Bytes {
        #[derive(Serialize)]
        struct Delete {
            frame: &'static str,
            kind: Kind,
            key: String,
        }
        line(&Delete { frame: "delete", kind: id.kind(), key: id.key() })
    }

    pub(super) fn encode_members(delta: &Delta) -> Bytes {
        #[derive(Serialize)]
        struct Members<'a> {
            frame: &'static str,
            group: GroupKey,
            hash: Hash,
            #[serde(serialize_with = "list_members")]
            added: &'a BTreeMap<MemberRef, Arc<Member>>,
            removed: &'a BTreeSet<MemberRef>,
        }
        let Delta { group, hash, added, removed, .. } = delta;
        line(&Members { frame: "members", group: *group, hash: *hash, added, removed })
    }
}

fn need<T>(field: Option<T>, frame: &'static str, name: &'static str) -> Result<T, FrameError> {
    field.ok_or(FrameError::Missing { frame, field: name })
}

fn object_id(kind: Kind, key: &str) -> Result<ObjectId, FrameError> {
    ObjectId::new(kind, key).map_err(FrameError::Key)
}

fn received<T: Object>(key: T::Key, hash: Hash, body: &RawValue) -> Result<Arc<Entry<T>>, FrameError> {
    Ok(Arc::new(Entry::received(key, serde_json::from_str::<T>(body.get())?, hash)))
}

fn line<T: Serialize>(frame: &T) -> Bytes {
    let mut line = serde_json::to_vec(frame).expect("frames are maps with text keys");
    line.push(b'\n');
    line.into()
}

impl FromStr for Revision {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.into()))
    }
}
