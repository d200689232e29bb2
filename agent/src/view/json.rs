//! A view and its changes for programs: one JSON value a line, in the words of the wire.

use crds::hash::Hash;
use crds::names::{NodeName, Uid};
use crds::wire::{Entry, Group, Node, Object, Policy, Revision, View};
use serde::Serialize;
use serde_json::value::RawValue;

use super::text::{Places, in_order};

#[derive(Serialize)]
struct Whole<'a> {
    node: Option<Named<'a>>,
    revision: Option<&'a Revision>,
    policies: Vec<Keyed<'a, Policy>>,
    groups: Vec<Keyed<'a, Group>>,
}

#[derive(Serialize)]
struct Named<'a> {
    name: &'a NodeName,
    hash: Hash,
    #[serde(flatten)]
    body: &'a Node,
}

#[derive(Serialize)]
struct Keyed<'a, T: Object> {
    key: String,
    hash: Hash,
    #[serde(flatten)]
    body: &'a T,
    /// Of each rule among all rules of its direction, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    places: Option<Vec<usize>>,
}

/// The whole view: policies in the order in which they are judged, bodies as they came.
pub fn view(view: &View, revision: Option<&Revision>) -> String {
    let places = Places::of(view);
    let policies = in_order(view).into_iter().map(|policy| {
        let places = (0..policy.body().rules.len()).map(|rule| places.of_rule(policy.key(), rule)).collect();
        keyed(policy, Some(places))
    });
    line(&Whole {
        node: view.node.as_deref().map(|node| Named { name: node.key(), hash: node.hash(), body: node.body() }),
        revision,
        policies: policies.collect(),
        groups: view.groups.values().map(|group| keyed(group, None)).collect(),
    })
}

/// What turns `before` into `after`, as frames; nothing when nothing does.
pub fn changes(before: &View, after: &View, revision: &Revision) -> String {
    #[derive(Serialize)]
    struct Changes<'a> {
        revision: &'a Revision,
        changes: Vec<Box<RawValue>>,
    }
    let update = before.diff(after);
    if update.is_empty() {
        return String::new();
    }
    let frame = |line: &[u8]| serde_json::from_slice(line).expect("a frame is JSON");
    line(&Changes { revision, changes: update.changes.iter().map(|change| frame(&change.line())).collect() })
}

/// The ExternalNode is no more.
pub fn gone(uid: &Uid, reason: &str) -> String {
    line(&serde_json::json!({"gone": {"uid": uid, "reason": reason}}))
}

fn keyed<T: Object>(entry: &Entry<T>, places: Option<Vec<usize>>) -> Keyed<'_, T> {
    Keyed { key: entry.id().key(), hash: entry.hash(), body: entry.body(), places }
}

fn line<T: Serialize>(value: &T) -> String {
    let text = serde_json::to_string(value).expect("maps with text keys");
    format!("{text}\n")
}
