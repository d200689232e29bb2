//! Kubernetes events: what a person at `kubectl describe` wants to hear about an object, on change and never in a loop.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crds::names::Key;
use crds::world::{Object, Stored, World, WorldKind};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event as K8sEvent;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime, ObjectMeta};
use kube::Client;
use kube::api::{Api, PostParams};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};

use crate::change::Change;
use crate::hub::Hub;
use crate::unreadable;
use crds::chain::Chain;

/// How many troubles are remembered as told.
const REMEMBERED: usize = 10_000;

/// The longest name of an object after which the recorder can name an event: it adds a point and 16 digits.
const LONGEST: usize = 253 - 17;

/// Tells events.
#[derive(Clone)]
pub struct Events {
    client: Client,
    reporter: Reporter,
    recorder: Recorder,
    told: Arc<Mutex<HashSet<(WorldKind, String, String)>>>,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

impl Events {
    /// Tells through `client`, as the replica `instance`.
    pub fn new(client: Client, instance: String) -> Self {
        let reporter = Reporter { controller: "outrider-operator".into(), instance: Some(instance) };
        let recorder = Recorder::new(client.clone(), reporter.clone());
        Self { client, reporter, recorder, told: Arc::default() }
    }

    /// The conditions of the object that `change` is about to write, for [`Events::after`].
    pub fn before(&self, hub: &Hub, change: &Change) -> Vec<Condition> {
        match change {
            Change::ReplaceStatus(kind, object) => conditions_in(hub.live().world(), *kind, &Key::of(&object.metadata)),
            _ => vec![],
        }
    }

    /// Tells what changed between the conditions `before` and those of `object`.
    pub async fn after(&self, before: Vec<Condition>, object: &Object) {
        for (type_, reason, note) in news(&before, &conditions(object)) {
            self.tell(object.kind(), object.meta(), type_, reason, note).await;
        }
    }

    /// Tells once what is wrong with an object.
    pub async fn invalid(&self, kind: WorldKind, meta: &ObjectMeta, why: String) {
        let id = (kind, meta.uid.clone().unwrap_or_default(), why.clone());
        {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            if told.len() >= REMEMBERED {
                told.clear();
            }
            if !told.insert(id) {
                return;
            }
        }
        self.tell(kind, meta, EventType::Warning, "Invalid".to_owned(), why).await;
    }

    /// Tells that we leave the shared kinds to somebody else, on a namespace.
    pub async fn foreign(&self, namespace: &str, why: &str) {
        let meta = ObjectMeta {
            name: Some(namespace.to_owned()),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        };
        self.tell(WorldKind::Namespace, &meta, EventType::Warning, "ForeignOwner".to_owned(), why.to_owned()).await;
    }

    async fn tell(&self, kind: WorldKind, meta: &ObjectMeta, type_: EventType, reason: String, mut note: String) {
        let (group, version, _, name) = kind.resource();
        let reference = ObjectReference {
            api_version: Some(if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }),
            kind: Some(name.to_owned()),
            name: meta.name.clone(),
            namespace: meta.namespace.clone(),
            uid: meta.uid.clone(),
            ..ObjectReference::default()
        };
        // events.k8s.io takes notes of less than 1 KiB
        note.truncate(note.floor_char_boundary(1000));
        let event = Event { type_, reason, note: Some(note), action: "Reconcile".to_owned(), secondary: None };
        let published = if reference.name.as_ref().is_some_and(|name| name.len() > LONGEST) {
            let events = Api::namespaced(self.client.clone(), reference.namespace.as_deref().unwrap_or("default"));
            let event = with_a_name_of_its_own(&self.reporter, event, reference);
            events.create(&PostParams::default(), &event).await.map(|_| ())
        } else {
            self.recorder.publish(&event, &reference).await
        };
        if let Err(error) = published {
            tracing::debug!(object = %Key::of(meta), error = %Chain(&error), "an event could not be told");
        }
    }
}

/// An event as the recorder makes it, about an object whose name leaves no room for the time after it.
fn with_a_name_of_its_own(reporter: &Reporter, event: Event, regarding: ObjectReference) -> K8sEvent {
    let now = jiff::Timestamp::now();
    let start: String = regarding.name.iter().flat_map(|name| name.chars()).take(LONGEST).collect();
    // what a name may not have before a point
    let name = format!("{}.{:x}", start.trim_end_matches(['.', '-']), now.as_nanosecond());
    let controller = reporter.controller.clone();
    K8sEvent {
        metadata: ObjectMeta { name: Some(name), namespace: regarding.namespace.clone(), ..ObjectMeta::default() },
        action: Some(event.action),
        event_time: Some(MicroTime(now)),
        note: event.note,
        reason: Some(event.reason),
        reporting_instance: Some(reporter.instance.clone().unwrap_or_else(|| controller.clone())),
        reporting_controller: Some(controller),
        type_: Some(match event.type_ {
            EventType::Normal => "Normal".to_owned(),
            EventType::Warning => "Warning".to_owned(),
        }),
        regarding: Some(regarding),
        ..K8sEvent::default()
    }
}

fn conditions_in(world: &World, kind: WorldKind, key: &Key) -> Vec<Condition> {
    match kind {
        WorldKind::ExternalNode => world.external_nodes.get(key).cloned().map(Object::ExternalNode),
        WorldKind::NetworkPolicy => world.policies.get(key).cloned().map(Object::NetworkPolicy),
        WorldKind::Binding => world.bindings.get(key).cloned().map(Object::Binding),
        _ => None,
    }
    .map_or_else(Vec::new, |object| conditions(&object))
}

fn conditions(object: &Object) -> Vec<Condition> {
    let status = match object {
        Object::ExternalNode(Stored::Good(node)) => node.status.as_ref().map(|s| &s.conditions),
        Object::NetworkPolicy(Stored::Good(policy)) => policy.status.as_ref().map(|s| &s.conditions),
        Object::Binding(Stored::Good(binding)) => binding.status.as_ref().map(|s| &s.conditions),
        Object::ExternalNode(Stored::Bad(bad))
        | Object::NetworkPolicy(Stored::Bad(bad))
        | Object::Binding(Stored::Bad(bad)) => return unreadable::conditions(bad),
        _ => None,
    };
    status.cloned().unwrap_or_default()
}

/// Reasons that say only that nothing has happened yet.
const QUIET: [&str; 5] = ["NeverSeen", "NotBound", "NoMatchingNodes", "NoReachableNodes", "Realizing"];

/// What is new in `after`: type, reason and note. The first status of an object tells only what is wrong with it.
fn news(before: &[Condition], after: &[Condition]) -> Vec<(EventType, String, String)> {
    let changed = after.iter().filter(|now| {
        let then = before.iter().find(|then| then.type_ == now.type_);
        then.is_none_or(|then| (&then.status, &then.reason) != (&now.status, &now.reason))
    });
    let trouble = |c: &Condition| if c.type_ == "RealizationFailure" { c.status == "True" } else { c.status != "True" };
    let told = changed.filter(|c| !QUIET.contains(&c.reason.as_str()) && (trouble(c) || !before.is_empty()));
    told.map(|c| {
        let type_ = if trouble(c) { EventType::Warning } else { EventType::Normal };
        let note = match c.message.as_str() {
            "" => format!("{} is {}", c.type_, c.status),
            message => format!("{} is {}: {message}", c.type_, c.status),
        };
        (type_, c.reason.clone(), note)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    fn condition(kind: &str, status: &str, reason: &str) -> Condition {
        let time = Time(jiff::Timestamp::UNIX_EPOCH);
        Condition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: String::new(),
            last_transition_time: time,
            observed_generation: None,
        }
    }

    fn reasons(before: &[Condition], after: &[Condition]) -> Vec<String> {
        news(before, after).into_iter().map(|(_, reason, _)| reason).collect()
    }

    #[test]
    fn an_event_about_the_longest_name_has_a_name_that_is_one() {
        let reporter = Reporter { controller: "outrider-operator".to_owned(), instance: Some("a".to_owned()) };
        for name in ["a".repeat(253), format!("{}.{}", "a".repeat(235), "b".repeat(17))] {
            let event = Event {
                type_: EventType::Warning,
                reason: "Invalid".to_owned(),
                note: None,
                action: "Reconcile".to_owned(),
                secondary: None,
            };
            let about = ObjectReference { name: Some(name.clone()), ..ObjectReference::default() };
            let event = with_a_name_of_its_own(&reporter, event, about);
            assert!(crds::names::is_dns_subdomain(event.metadata.name.as_ref().unwrap()), "{:?}", event.metadata.name);
            assert_eq!(event.regarding.unwrap().name, Some(name));
        }
    }

    #[test]
    fn a_first_status_tells_only_what_is_wrong() {
        let after = [condition("Accepted", "True", "Accepted"), condition("Joined", "False", "NeverSeen")];
        assert_eq!(reasons(&[], &after), [""; 0]);
        assert_eq!(reasons(&[], &[condition("Accepted", "False", "Invalid")]), ["Invalid"]);
    }

    #[test]
    fn later_every_change_is_told_once() {
        let live = [condition("Healthy", "True", "Heartbeat")];
        let gone = [condition("Healthy", "Unknown", "Gone")];
        assert_eq!(reasons(&live, &gone), ["Gone"]);
        assert_eq!(reasons(&gone, &live), ["Heartbeat"]);
        assert_eq!(reasons(&live, &live), [""; 0]);
    }
}
