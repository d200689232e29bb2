//! Where events become views: one writer, any number of readers, no queue to a connection.
//!
//! ```text
//! watches --Event--> resolver --Live--> per node: watch channel of its latest view --> connections
//!                        \--Work--> writer (on the leader)
//! ```
//!
//! A connection that lags finds the latest view when it looks again, and gets one larger difference.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use crds::names::{Key, NodeName};
use crds::wire::{Report, ReportAnswer, Revision, View};
use crds::world::{Event, World};
use tokio::sync::{mpsc, watch};

use crate::context::Context;
use crate::metrics::Metrics;
use crate::policy::{Live, Touched};
use crate::reports::{Now, Reports};
use crate::work::Work;

#[cfg(test)]
mod tests;

/// Between two resolves at least: a burst becomes one.
const PAUSE: Duration = Duration::from_millis(2);

/// Events taken in by one resolve at most, so that readers get their turn.
const BATCH: usize = 1024;

/// What one node is told, as of a revision.
#[derive(Clone, Debug)]
pub struct Told {
    /// The view. Without a node: the ExternalNode isn't there.
    pub view: View,
    /// The revision.
    pub revision: Revision,
}

/// The state that everything in the process shares.
#[derive(Debug)]
pub struct Hub {
    live: RwLock<Live>,
    reports: Mutex<Reports>,
    views: Mutex<HashMap<NodeName, watch::Sender<Arc<Told>>>>,
    epoch: String,
    published: Mutex<u64>,
    work: watch::Sender<BTreeSet<Work>>,
    bindings: watch::Sender<u64>,
    /// The metrics that all parts add to.
    pub metrics: Metrics,
}

impl Hub {
    /// Around a world that may still wait for its first lists. Agents report every `beat`.
    pub fn new(world: World, beat: Duration, metrics: Metrics) -> Self {
        Self {
            live: RwLock::new(Live::new(world)),
            reports: Mutex::new(Reports::new(beat)),
            views: Mutex::default(),
            epoch: uuid::Uuid::new_v4().simple().to_string()[..8].to_owned(),
            published: Mutex::new(0),
            work: watch::Sender::default(),
            bindings: watch::Sender::default(),
            metrics,
        }
    }

    /// The objects and what follows from them. Don't hold it across an await.
    pub fn live(&self) -> RwLockReadGuard<'_, Live> {
        self.live.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn reports(&self) -> MutexGuard<'_, Reports> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks `look` something about everything that plans look at.
    pub fn with_context<T>(&self, settling: bool, look: impl FnOnce(&Context<'_>) -> T) -> T {
        let (live, reports) = (self.live(), self.reports());
        look(&Context { live: &live, reports: &reports, now: Now::read(), settling })
    }

    /// Takes events in, publishes the views that changed, and marks the work that follows.
    pub fn apply(&self, events: impl IntoIterator<Item = Event>) {
        let mut touched = Touched::default();
        {
            let start = Instant::now();
            let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
            for event in events {
                live.apply(event, &mut touched);
            }
            self.publish(&live, &touched);
            self.metrics.resolve_seconds.observe(start.elapsed().as_secs_f64());
        }
        if touched.bindings {
            self.bindings.send_modify(|n| *n += 1);
        }
        self.mark(touched.work);
    }

    fn publish(&self, live: &Live, touched: &Touched) {
        let mut views = self.views.lock().unwrap_or_else(PoisonError::into_inner);
        views.retain(|_, sender| sender.receiver_count() > 0);
        let mut revision = None;
        // few nodes of a large fleet are connected here, or few of the connected ones are touched: go by the fewer
        // who may be judged otherwise is told the same view again, and looks
        let Touched { nodes, judged, .. } = touched;
        let told: Vec<_> = match nodes.len() + judged.len() < views.len() {
            true => nodes.union(judged).filter_map(|name| views.get_key_value(name)).collect(),
            false => views.iter().filter(|(name, _)| nodes.contains(*name) || judged.contains(*name)).collect(),
        };
        for (name, sender) in told {
            let revision = revision.get_or_insert_with(|| self.next_revision()).clone();
            sender.send_replace(Arc::new(Told { view: live.view(name), revision }));
        }
    }

    fn next_revision(&self) -> Revision {
        let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        *published += 1;
        Revision::new(&self.epoch, *published)
    }

    /// What `node` is told, now and from now on.
    pub fn subscribe(&self, node: &NodeName) -> watch::Receiver<Arc<Told>> {
        // under the lock of the objects, so that nothing is published between the look and the subscription
        let live = self.live();
        let mut views = self.views.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || watch::Sender::new(Arc::new(Told { view: live.view(node), revision: self.next_revision() }));
        views.entry(node.clone()).or_insert_with(make).subscribe()
    }

    /// Changes whenever somebody may act for other nodes than before.
    pub fn bindings(&self) -> watch::Receiver<u64> {
        self.bindings.subscribe()
    }

    /// Takes in an authorised report, as much as is kept of one, and marks the work that follows.
    pub fn report(&self, report: Report) -> ReportAnswer {
        let report = report.bounded();
        let node = report.head().node.clone();
        let live = self.live();
        let accepted = self.reports().accept(report, Now::read());
        let mut work = BTreeSet::new();
        if accepted.changed {
            work.insert(Work::Node(node.key().clone()));
        }
        work.extend(policies(&live, &node, &accepted.policies));
        drop(live);
        self.mark(work);
        accepted.answer
    }

    /// Judges the silence of `node` anew; a changed judgement is work for its policies.
    pub fn age(&self, node: &Key) -> Option<Duration> {
        let name = NodeName::external(node.clone());
        let live = self.live();
        let mut reports = self.reports();
        if crate::policy::entity::live(live.world(), node).is_none() {
            reports.forget(&name);
            return None;
        }
        let aged = reports.aged(&name, Now::read());
        let uid = live.resolved().nodes.get(&name).map(|n| n.body.body().uid.clone())?;
        let next = reports.of(&name, &uid).and_then(|latest| reports.next_judgement(latest, Now::read()));
        drop(reports);
        let work: BTreeSet<_> = aged.iter().flat_map(|ids| policies(&live, &name, ids)).collect();
        drop(live);
        self.mark(work);
        next
    }

    /// Everything that may have to be written: for a leader that begins.
    pub fn all_work(&self) -> BTreeSet<Work> {
        let live = self.live();
        let world = live.world();
        let entities = world.external_entities.keys().chain(live.claims().keys()).cloned().map(Work::Entity);
        let nodes = world.external_nodes.keys().cloned().map(Work::Node);
        let infos = world.agent_infos.keys().cloned().map(Work::AgentInfo);
        let policies = world.policies.keys().cloned().map(Work::Policy);
        let bindings = world.bindings.keys().cloned().map(Work::Binding);
        entities.chain(nodes).chain(infos).chain(policies).chain(bindings).chain([Work::Tiers]).collect()
    }

    fn mark(&self, work: BTreeSet<Work>) {
        if !work.is_empty() {
            self.work.send_modify(|marked| marked.extend(work));
        }
    }

    /// Marked work. Taking it is the writer's; a follower's is forgotten, since a leader begins with everything.
    pub fn work(&self) -> watch::Receiver<BTreeSet<Work>> {
        self.work.subscribe()
    }

    /// The marked work, which is no longer marked.
    pub fn take_work(&self) -> BTreeSet<Work> {
        let mut taken = BTreeSet::new();
        self.work.send_if_modified(|marked| {
            taken = std::mem::take(marked);
            false
        });
        taken
    }
}

/// The policies of `node` among `ids`, and all of its view: a node that wakes or falls silent counts for them all.
fn policies(live: &Live, node: &NodeName, ids: &BTreeSet<crds::names::PolicyId>) -> Vec<Work> {
    if ids.is_empty() {
        return vec![];
    }
    let Some(state) = live.resolved().nodes.get(node) else { return vec![] };
    let entries = state.policies.values().map(|entry| entry.body());
    entries.map(|policy| Work::Policy(Key::new(policy.namespace.clone(), policy.name.clone()))).collect()
}

/// Resolves whatever the watches say: the first event after quiet at once, then at most once per
/// max(`PAUSE`, what the last one took).
pub async fn resolve(hub: Arc<Hub>, mut events: mpsc::Receiver<Event>) {
    while let Some(first) = events.recv().await {
        let start = Instant::now();
        let mut batch = vec![first];
        while batch.len() < BATCH {
            let Ok(event) = events.try_recv() else { break };
            batch.push(event);
        }
        hub.apply(batch);
        let took = start.elapsed();
        // a resolve that took longer than the pause leaves as much time to others as it took itself
        let pause = PAUSE.checked_sub(took).unwrap_or(took);
        tokio::time::sleep(pause).await;
    }
}
