//! The only one who writes to the API server, and only on the replica that leads.
//!
//! ```text
//! Work --plan (pure)--> [Change] --execute--> API server --answer--> World
//! ```
//!
//! What the server answers goes into the world at once, so that the next plan sees what the last one did, however late
//! the watch is.

use std::sync::Arc;
use std::time::Duration;

use crds::world::{Event, Object, WorldKind};
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use kube::core::DynamicObject;
use kube::{Client, ResourceExt};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::change::Change;
use crate::context::Context;
use crate::event::Events;
use crate::foreign;
use crate::hub::Hub;
use crate::lease::Leadership;
use crate::metrics::OfWrite;
use crate::queue::Queue;
use crate::work::Work;
use crate::{agent_info, binding, external_node, jitter, policy, tier, unreadable};
use crds::chain::Chain;

#[cfg(test)]
mod tests;

/// Writes at once.
const AT_ONCE: usize = 32;

/// How long the status of a binding may lag: it lists nodes, and nodes come in crowds.
const CROWD: Duration = Duration::from_secs(1);

/// How long a node rests after its AgentInfo or status was written: its agent says when there is something to write,
/// and may say so all the time.
const REST: Duration = Duration::from_secs(1);

/// Why a write failed.
#[derive(Debug, thiserror::Error)]
#[error("failed to {change}")]
pub struct Error {
    change: String,
    source: Box<kube::Error>,
}

impl Error {
    /// Whether the object was not as seen: no trouble, the world just has to catch up.
    fn is_conflict(&self) -> bool {
        matches!(&*self.source, kube::Error::Api(status) if matches!(status.code, 404 | 409))
    }
}

/// Everything a write needs.
#[derive(Clone)]
pub struct Writer {
    /// The state.
    pub hub: Arc<Hub>,
    /// The API server.
    pub client: Client,
    /// Whether this replica may write.
    pub leading: watch::Receiver<Leadership>,
    /// Where events are told.
    pub events: Events,
    /// How often agents report.
    pub beat: Duration,
}

/// What became of a piece of work that was looked at.
#[derive(Debug)]
struct Outcome {
    work: Work,
    result: Result<(), Error>,
    /// Whether anything was written.
    wrote: bool,
    /// When it wants to be looked at again whatever happens, if ever.
    again: Option<Duration>,
}

impl Writer {
    /// Writes while this replica leads, until `shutdown`.
    pub async fn run(mut self, shutdown: CancellationToken) {
        while self.until_leading(&shutdown).await {
            self.hub.metrics.leading.set(1);
            self.lead(&shutdown).await;
            self.hub.metrics.leading.set(0);
        }
    }

    /// Waits until this replica leads; false when it never will. What is marked meanwhile is forgotten: a leader begins
    /// with everything, and a follower must not pile it up.
    async fn until_leading(&mut self, shutdown: &CancellationToken) -> bool {
        let mut marked = self.hub.work();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return false,
                led = self.leading.wait_for(Leadership::is_leading) => return led.is_ok(),
                changed = marked.changed() => {
                    if changed.is_err() {
                        return false;
                    }
                    self.hub.take_work();
                }
            }
        }
    }

    async fn lead(&mut self, shutdown: &CancellationToken) {
        let mut leading = self.leading.clone();
        let mut marked = self.hub.work();
        let settled = Instant::now() + self.beat * 6;
        let mut settling = true;
        let mut queue = Queue::default();
        self.hub.take_work();
        self.hub.all_work().into_iter().for_each(|work| queue.add(work));
        let mut running: JoinSet<Outcome> = JoinSet::new();
        loop {
            while running.len() < AT_ONCE && leading.borrow().is_leading() {
                let Some(work) = queue.pop(Instant::now()) else { break };
                running.spawn(self.clone().perform(work, settling));
            }
            self.hub.metrics.work_waiting.set(i64::try_from(queue.len()).unwrap_or(i64::MAX));
            let due = queue.next_due().unwrap_or(settled + self.beat);
            tokio::select! {
                () = shutdown.cancelled() => break,
                lost = leading.wait_for(|l| !l.is_leading()) => {
                    drop(lost);
                    tracing::warn!("this replica leads no longer and stops writing");
                    break;
                }
                changed = marked.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    marked.mark_unchanged();
                    self.hub.take_work().into_iter().for_each(|work| add(&mut queue, work));
                }
                Some(ended) = running.join_next() => Self::ended(ended, &mut queue),
                // with no place free, what is due has to wait for one
                () = sleep_until(due), if running.len() < AT_ONCE => {}
                () = sleep_until(settled), if settling => {
                    settling = false;
                    self.hub.all_work().into_iter().for_each(|work| queue.add(work));
                }
            }
        }
        // what is under way is cut: the next leader begins with everything
        running.shutdown().await;
    }

    fn ended(ended: Result<Outcome, tokio::task::JoinError>, queue: &mut Queue<Work>) {
        let now = Instant::now();
        let Outcome { work, result, wrote, again } = match ended {
            Ok(outcome) => outcome,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => return,
        };
        let rest = (wrote && matches!(work, Work::Node(_))).then(|| now + REST);
        match result {
            Ok(()) => queue.done(&work, rest),
            Err(error) => {
                let wait = queue.failed(&work, now, jitter::fraction(), rest);
                if error.is_conflict() {
                    tracing::debug!(%work, error = %Chain(&error), "not as seen: looked at again");
                } else {
                    tracing::warn!(%work, ?wait, error = %Chain(&error), "tried again later");
                }
            }
        }
        // also after a failure: silence is judged in time, however long the next try may wait
        if let Some(after) = again {
            queue.add_at(work, now + after);
        }
    }

    async fn perform(self, work: Work, settling: bool) -> Outcome {
        let again = match &work {
            Work::Node(key) => self.hub.age(key),
            _ => None,
        };
        let (changes, foreign) =
            self.hub.with_context(settling, |ctx| (plan(ctx, &work), foreign::owner(ctx.world(), ctx.now.wall)));
        let foreign = foreign.is_some();
        let (left, changes): (Vec<_>, _) = changes.into_iter().partition(|c| foreign && c.kind().is_shared());
        let (wrote, result) = self.execute_all(&work, changes).await;
        self.tell_trouble(&work, foreign).await;
        let again = if left.is_empty() { again } else { Some(foreign::RECHECK) };
        Outcome { work, result, wrote, again }
    }

    /// Performs the changes: whether anything was written, and the first error. A change that fails stops those that
    /// rely on it and no others.
    async fn execute_all(&self, work: &Work, changes: Vec<Change>) -> (bool, Result<(), Error>) {
        let (mut wrote, mut result) = (false, Ok(()));
        for change in changes {
            let written = self.execute(change).await;
            wrote |= written.is_ok();
            result = result.and(written);
            if result.is_err() && work.is_in_order() {
                break;
            }
        }
        (wrote, result)
    }

    /// An event tells what no condition could: the kind has none, or the API server refuses the object with it.
    async fn tell_trouble(&self, work: &Work, foreign: bool) {
        let troubles: Vec<_> = self.hub.with_context(false, |ctx| {
            let world = ctx.world();
            let objects = match work {
                Work::Entity(key) => vec![(WorldKind::ExternalEntity, key.clone())],
                Work::Node(key) => vec![(WorldKind::ExternalNode, key.clone())],
                Work::Policy(key) => vec![(WorldKind::NetworkPolicy, key.clone())],
                Work::Binding(key) => vec![(WorldKind::Binding, key.clone())],
                Work::Tiers => world.tiers.keys().map(|key| (WorldKind::Tier, key.clone())).collect(),
                Work::AgentInfo(_) => vec![],
            };
            let ours = objects.into_iter().filter(|(kind, _)| !(foreign && kind.is_shared()));
            ours.filter_map(|(kind, key)| Some((kind, unreadable::untold(world, kind, &key)?))).collect()
        });
        for (kind, (meta, why)) in troubles {
            self.events.invalid(kind, &meta, why).await;
        }
    }

    async fn execute(&self, change: Change) -> Result<(), Error> {
        if !self.leading.borrow().is_leading() {
            return Ok(());
        }
        let (kind, verb, text) = (change.kind(), change.verb(), change.to_string());
        let before = self.events.before(&self.hub, &change);
        let result = self.send(change).await;
        let outcome = match &result {
            Ok(_) => "ok",
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => "conflict",
            Err(_) => "error",
        };
        let label = OfWrite { kind: kind.to_string(), verb: verb.to_owned(), outcome: outcome.to_owned() };
        self.hub.metrics.writes.get_or_create(&label).inc();
        let event = result.map_err(|source| Error { change: text.clone(), source: Box::new(source) })?;
        tracing::debug!(change = text, "written");
        if let Some(event) = event {
            if let Event::Put(object) = &event {
                self.events.after(before, object).await;
            }
            self.hub.apply([event]);
        }
        Ok(())
    }

    /// Performs the change; what it makes of the world.
    async fn send(&self, change: Change) -> Result<Option<Event>, kube::Error> {
        let api = |kind: WorldKind, namespace: Option<&str>| -> Api<DynamicObject> {
            match namespace {
                Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &kind.api_resource()),
                None => Api::all_with(self.client.clone(), &kind.api_resource()),
            }
        };
        let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        let put = |kind, object| Some(Event::Put(Object::decode(kind, object)));
        Ok(match change {
            Change::Create(kind, object) => {
                put(kind, api(kind, object.metadata.namespace.as_deref()).create(&params, &object).await?)
            }
            Change::Replace(kind, object) => {
                let api = api(kind, object.metadata.namespace.as_deref());
                put(kind, api.replace(&object.name_any(), &params, &object).await?)
            }
            Change::ReplaceStatus(kind, object) => {
                let api = api(kind, object.metadata.namespace.as_deref());
                put(kind, api.replace_status(&object.name_any(), &params, &*object).await?)
            }
            Change::Delete(kind, meta) => {
                let params = DeleteParams {
                    preconditions: Some(Preconditions {
                        uid: meta.uid.clone(),
                        resource_version: meta.resource_version.clone(),
                    }),
                    ..DeleteParams::default()
                };
                let name = meta.name.clone().unwrap_or_default();
                // an object in answer is held by a finalizer: the watch will tell
                let answer = api(kind, meta.namespace.as_deref()).delete(&name, &params).await?;
                answer.right().map(|_| {
                    let object = DynamicObject { types: None, metadata: *meta, data: serde_json::Value::Null };
                    Event::Delete(Object::decode(kind, object))
                })
            }
        })
    }
}

/// Who we are among those who write fields.
pub const MANAGER: &str = "outrider-operator";

fn add(queue: &mut Queue<Work>, work: Work) {
    match work {
        Work::Binding(_) => queue.add_at(work, Instant::now() + CROWD),
        work => queue.add(work),
    }
}

/// What has to be written for `work`.
pub fn plan(ctx: &Context<'_>, work: &Work) -> Vec<Change> {
    match work {
        Work::Entity(key) => external_node::entity::plan(ctx.live, key),
        Work::Node(key) => {
            let info = agent_info::plan::plan(ctx, key);
            info.into_iter().chain(external_node::status::plan(ctx, key)).collect()
        }
        Work::AgentInfo(key) => agent_info::plan::orphan(ctx, key).into_iter().collect(),
        Work::Policy(key) => policy::status::plan(ctx, key).into_iter().collect(),
        Work::Binding(key) => binding::plan(ctx, key).into_iter().collect(),
        Work::Tiers => tier::plan(ctx.world()),
    }
}
