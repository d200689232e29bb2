//! `lifecycle`: a thousand ExternalNodes at once, until all entities, AgentInfos and statuses stand; beside it the same
//! objects and statuses written by a plain client, before and after; then a restart of the operator.
//!
//! ```text
//! plain client -> nothing -> ExternalNodes -> operator writes the rest -> restart -> stop -> plain client
//! ```

use std::collections::{BTreeMap, HashSet};
use std::fmt::Debug;
use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::Context;
use crds::agent_info::AntreaAgentInfo;
use crds::external_entity::ExternalEntity;
use crds::external_node::ExternalNode;
use e2e::audit::{Audit, Mark};
use e2e::outrider::USER;
use e2e::{Cluster, Options, Outrider};
use futures::{StreamExt, TryStreamExt, stream};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use operator::agent_info::naming::{NODE, NODE_UID};
use operator::external_node::naming::entity_name;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::{milliseconds, say};

const NODES: usize = 1_000;
const AT_ONCE: usize = 32;
const BEAT: Duration = Duration::from_secs(10);
/// What takes longer will never be.
const LIMIT: Duration = Duration::from_mins(5);
/// How long a new leader is watched for writes.
const QUIET: Duration = Duration::from_secs(10);

pub(crate) async fn run() -> anyhow::Result<Value> {
    let cluster = Cluster::start_with(Options { wait_limit: LIMIT, ..e2e::outrider::options()? }).await?;
    let before = written_plainly(&cluster, "before").await?;
    clear(&cluster, "before").await?;
    let mut operator = Outrider::start(&cluster, BEAT).await?;
    until(&operator, "/metrics", at_rest).await?;
    let (ours, writes) = written_by_operator(&cluster, "ours").await?;
    let restart = restart(&cluster, &mut operator).await?;
    operator.stop().await?;
    let after = written_plainly(&cluster, "after").await?;

    let plain = (before.all() + after.all()) / 2;
    let ratio = ours.all().as_secs_f64() / plain.as_secs_f64();
    Ok(json!({
        "bench": "lifecycle", "nodes": NODES,
        "ours_ms": milliseconds(ours.all()), "plain_ms": milliseconds(plain), "ratio": (ratio * 1e3).round() / 1e3,
        "restart_ready_ms": milliseconds(restart.ready), "restart_leads_ms": milliseconds(restart.leads),
        "restart_writes": restart.writes,
        "plain_runs_ms": [milliseconds(before.all()), milliseconds(after.all())],
        "entities_ms": milliseconds(ours.entities), "infos_ms": milliseconds(ours.infos),
        "statuses_ms": milliseconds(ours.statuses), "ours_writes": writes,
    }))
}

// ---- fleets ---------------------------------------------------------------------------------------------------------

/// The machines of one namespace.
#[derive(Clone, Copy)]
struct Fleet<'a> {
    client: &'a Client,
    namespace: &'static str,
}

/// When the last object of each kind stood, counted from the first request.
struct Stood {
    entities: Duration,
    infos: Duration,
    statuses: Duration,
}

impl Stood {
    fn all(&self) -> Duration {
        self.entities.max(self.infos).max(self.statuses)
    }
}

impl<'a> Fleet<'a> {
    async fn new(cluster: &'a Cluster, namespace: &'static str) -> anyhow::Result<Self> {
        cluster.apply(&namespace_object(namespace)).await?;
        Ok(Self { client: &cluster.client, namespace })
    }

    fn nodes(&self) -> Api<ExternalNode> {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    fn entities(&self) -> Api<ExternalEntity> {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    fn infos(&self) -> Api<AntreaAgentInfo> {
        Api::all(self.client.clone())
    }

    fn is_about(&self, info: &AntreaAgentInfo) -> bool {
        let node = info.annotations().get(NODE).and_then(|node| node.split_once('/'));
        node.is_some_and(|(namespace, _)| namespace == self.namespace)
    }

    /// Does `work` on each machine, [`AT_ONCE`] at a time, and waits until a watch has shown all that should follow.
    async fn until_it_stands<F>(&self, work: impl Fn(usize) -> F) -> anyhow::Result<Stood>
    where
        F: Future<Output = anyhow::Result<()>>,
    {
        let start = Instant::now();
        let worked = async {
            let mut each = pin!(stream::iter(0..NODES).map(work).buffer_unordered(AT_ONCE));
            while each.try_next().await?.is_some() {}
            say(&format!("{}: the last request is answered after {:.2?}", self.namespace, start.elapsed()));
            Ok(Duration::ZERO)
        };
        let stand = async {
            tokio::try_join!(
                worked,
                until_all(self.entities(), start, |_| true),
                until_all(self.infos(), start, |info| self.is_about(info)),
                until_all(self.nodes(), start, is_accepted),
            )
        };
        let (_, entities, infos, statuses) = timeout(LIMIT, stand).await.context("some objects never stood")??;
        let stood = Stood { entities, infos, statuses };
        say(&format!("{}: everything stands after {:.2?}", self.namespace, stood.all()));
        Ok(stood)
    }
}

/// Watches until so many objects of `api` are as they should be; how long after `start` the last one was.
async fn until_all<K>(api: Api<K>, start: Instant, is_so: impl Fn(&K) -> bool) -> anyhow::Result<Duration>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut objects = pin!(watcher(api, watcher::Config::default()).applied_objects());
    let mut seen = HashSet::new();
    while seen.len() < NODES {
        let object = objects.try_next().await?.context("a watch has ended")?;
        if is_so(&object) {
            seen.insert(object.name_any());
        }
    }
    Ok(start.elapsed())
}

fn is_accepted(node: &ExternalNode) -> bool {
    let conditions = node.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|c| c.type_ == "Accepted" && c.status == "True")
}

// ---- who writes -----------------------------------------------------------------------------------------------------

/// The floor that the API server itself sets: all four writes of each machine by hand, nobody else at work.
async fn written_plainly(cluster: &Cluster, namespace: &'static str) -> anyhow::Result<Stood> {
    let fleet = Fleet::new(cluster, namespace).await?;
    let by_hand = async |i| {
        let mut made = create(&fleet.nodes(), node(namespace, i)).await?;
        let uid = made.uid().context("a stored object has a uid")?;
        create(&fleet.entities(), entity(namespace, i, &uid)).await?;
        create(&fleet.infos(), info(namespace, i, &uid)).await?;
        made.status = Some(serde_json::from_value(status())?);
        fleet.nodes().replace_status(&made.name_any(), &PostParams::default(), &made).await?;
        Ok(())
    };
    fleet.until_it_stands(by_hand).await
}

/// The ExternalNodes by hand, the rest by the operator; with what it wrote, by verb, resource and answer.
async fn written_by_operator(
    cluster: &Cluster,
    namespace: &'static str,
) -> anyhow::Result<(Stood, BTreeMap<String, usize>)> {
    let fleet = Fleet::new(cluster, namespace).await?;
    let mark = cluster.audit_mark()?;
    let stood = fleet.until_it_stands(async |i| create(&fleet.nodes(), node(namespace, i)).await.map(|_| ())).await?;
    let mut writes = BTreeMap::new();
    for event in &*writes_since(cluster, mark)? {
        let of = event.object_ref.clone().unwrap_or_default();
        let resource = [of.resource, of.subresource].join("/");
        let what = format!("{} {} {}", event.verb, resource.trim_end_matches('/'), event.response_status.code);
        *writes.entry(what).or_default() += 1;
    }
    Ok((stood, writes))
}

/// What the operator wrote since `mark`; the Lease, and reviews of tokens, aside.
fn writes_since(cluster: &Cluster, mark: Mark) -> anyhow::Result<Audit> {
    let is_object = |resource: &str| !matches!(resource, "leases" | "tokenreviews");
    let writes = cluster.audit_since(mark)?.by(USER).writes();
    Ok(writes.only(|event| event.object_ref.as_ref().is_none_or(|of| is_object(&of.resource))))
}

async fn create<K>(api: &Api<K>, object: Value) -> anyhow::Result<K>
where
    K: Clone + DeserializeOwned + Debug + Serialize,
{
    let object: K = serde_json::from_value(object)?;
    api.create(&PostParams::default(), &object).await.context("failed to create an object")
}

async fn clear(cluster: &Cluster, namespace: &str) -> anyhow::Result<()> {
    let infos: Api<AntreaAgentInfo> = Api::all(cluster.client.clone());
    infos.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    cluster.delete(&namespace_object(namespace)).await
}

// ---- the restart ----------------------------------------------------------------------------------------------------

/// What a restart took and cost.
struct Restart {
    ready: Duration,
    leads: Duration,
    writes: usize,
}

async fn restart(cluster: &Cluster, operator: &mut Outrider) -> anyhow::Result<Restart> {
    operator.program.term();
    operator.program.wait_exit(LIMIT).await?;
    let mark = cluster.audit_mark()?;
    let start = Instant::now();
    operator.program = cluster.restart(&operator.program).await?;
    until(operator, "/readyz", |_| true).await?;
    let ready = start.elapsed();
    until(operator, "/metrics", leads).await?;
    let leading = start.elapsed();
    say(&format!("restarted: ready after {ready:.2?}, leads after {leading:.2?}; now {QUIET:?} of watching"));
    sleep(QUIET).await;
    Ok(Restart { ready, leads: leading, writes: writes_since(cluster, mark)?.len() })
}

fn leads(metrics: &str) -> bool {
    metrics.lines().any(|line| line == "outrider_leading 1")
}

/// Whether the operator leads and has looked at everything.
fn at_rest(metrics: &str) -> bool {
    leads(metrics) && metrics.lines().any(|line| line == "outrider_work_waiting 0")
}

/// Looks every few milliseconds until `path` answers 200 and what `is_so` wants.
async fn until(operator: &Outrider, path: &str, is_so: impl Fn(&str) -> bool) -> anyhow::Result<()> {
    let looks = async {
        while !matches!(operator.health(path).await, Ok((200, text)) if is_so(&text)) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, looks).await.with_context(|| format!("{path} never said what it should"))
}

// ---- objects --------------------------------------------------------------------------------------------------------

fn namespace_object(name: &str) -> String {
    format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}}}}}")
}

fn labels(i: usize) -> Value {
    json!({"app": format!("a{}", i % 50), "env": "prod"})
}

fn ip(i: usize) -> String {
    format!("10.0.{}.{}", i / 250, i % 250 + 1)
}

fn node(namespace: &str, i: usize) -> Value {
    json!({
        "apiVersion": "crd.antrea.io/v1alpha1", "kind": "ExternalNode",
        "metadata": {"namespace": namespace, "name": format!("vm{i}"), "labels": labels(i)},
        "spec": {"interfaces": [{"name": "eth0", "ips": [ip(i)]}]},
    })
}

/// The entity as the operator writes it.
fn entity(namespace: &str, i: usize, uid: &str) -> Value {
    let node = format!("vm{i}");
    json!({
        "apiVersion": "crd.antrea.io/v1alpha2", "kind": "ExternalEntity",
        "metadata": {
            "namespace": namespace, "name": entity_name(&node, Some("eth0")), "labels": labels(i),
            "ownerReferences": [
                {"apiVersion": "crd.antrea.io/v1alpha1", "kind": "ExternalNode", "name": node, "uid": uid},
            ],
        },
        "spec": {"endpoints": [{"ip": ip(i), "name": "eth0"}], "externalNode": node},
    })
}

/// The AgentInfo as the operator writes it for a machine that was never heard.
fn info(namespace: &str, i: usize, uid: &str) -> Value {
    let node = format!("vm{i}");
    json!({
        "apiVersion": "crd.antrea.io/v1beta1", "kind": "AntreaAgentInfo",
        "metadata": {
            "name": format!("{namespace}--{node}"),
            "annotations": {(NODE): format!("{namespace}/{node}"), (NODE_UID): uid},
        },
        "nodeRef": {
            "apiVersion": "crd.antrea.io/v1alpha1", "kind": "ExternalNode",
            "namespace": namespace, "name": node, "uid": uid,
        },
    })
}

/// A status of the size that the operator writes.
fn status() -> Value {
    let condition = |kind: &str| {
        let status = if kind == "Accepted" { "True" } else { "Unknown" };
        json!({
            "type": kind, "status": status, "reason": "NeverSeen", "message": "no agent has reported yet",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
        })
    };
    let kinds = ["Accepted", "Joined", "InterfaceFound", "Attached", "PoliciesRealized", "Healthy"];
    json!({"observedGeneration": 1, "conditions": kinds.map(condition)})
}
