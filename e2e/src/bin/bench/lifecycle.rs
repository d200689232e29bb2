//! `lifecycle`: a thousand ExternalNodes at once, until all entities, AgentInfos and statuses stand; beside it the same
//! number of writes by a plain client; then a restart of the operator.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use crds::agent_info::AntreaAgentInfo;
use crds::external_entity::ExternalEntity;
use crds::external_node::ExternalNode;
use e2e::outrider::USER;
use e2e::{Cluster, Outrider};
use futures::{StreamExt, TryStreamExt, stream};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{milliseconds, say};

const NODES: usize = 1_000;
const AT_ONCE: usize = 32;
const BEAT: Duration = Duration::from_secs(10);
const NAMESPACES: &str = "{apiVersion: v1, kind: Namespace, metadata: {name: plain}}\n---\n{apiVersion: v1, kind: Namespace, metadata: {name: ours}}";

pub(crate) async fn run() -> anyhow::Result<Value> {
    let cluster = Cluster::start_with(e2e::outrider::options()?).await?;
    cluster.apply(NAMESPACES).await?;

    // the plain client first: no operator sees its objects
    let start = Instant::now();
    plain(&cluster.client).await?;
    let plain_ms = milliseconds(start.elapsed());
    say(&format!("the plain client wrote {} objects in {plain_ms} ms", NODES * 3));
    cluster.kubectl(&["delete", "externalnodes,externalentities", "--all", "-n", "plain", "--wait=false"]).await?;
    cluster.kubectl(&["delete", "antreaagentinfos", "--all", "--wait=false"]).await?;
    cluster
        .until("the plain client's objects are gone", async || {
            count::<ExternalEntity>(&cluster.client, "plain").await.map(|n| n == 0)
        })
        .await?;

    let operator = Outrider::start(&cluster, BEAT).await?;
    let start = Instant::now();
    each(NODES, |i| {
        let api: Api<ExternalNode> = Api::namespaced(cluster.client.clone(), "ours");
        async move { create(&api, node("ours", i)).await.map(|_| ()) }
    })
    .await?;
    say(&format!("all ExternalNodes are created after {} ms", milliseconds(start.elapsed())));
    let stands = async || {
        let entities = count::<ExternalEntity>(&cluster.client, "ours").await?;
        let infos: Api<AntreaAgentInfo> = Api::all(cluster.client.clone());
        let infos = infos.list_metadata(&ListParams::default()).await?.items.len();
        if entities < NODES || infos < NODES {
            return Ok::<bool, anyhow::Error>(false);
        }
        let nodes: Api<ExternalNode> = Api::namespaced(cluster.client.clone(), "ours");
        let all = nodes.list(&ListParams::default()).await?;
        Ok(all.items.iter().filter(|n| n.status.as_ref().is_some_and(|s| !s.conditions.is_empty())).count() == NODES)
    };
    cluster.until_within(Duration::from_mins(3), "all entities, AgentInfos and statuses stand", stands).await?;
    let ours_ms = milliseconds(start.elapsed());
    say(&format!("everything stands after {ours_ms} ms"));

    operator.program.term();
    operator.program.wait_exit(Duration::from_secs(20)).await?;
    let mark = cluster.audit_mark()?;
    let start = Instant::now();
    let program = cluster.restart(&operator.program).await?;
    operator.until_ready(&cluster).await?;
    let restart_ready_ms = milliseconds(start.elapsed());
    let leads = async || {
        operator
            .health("/metrics")
            .await
            .map(|(_, text)| text.contains("outrider_leading 1") && text.contains("outrider_work_waiting 0"))
    };
    cluster.until("the restarted operator leads and has looked at everything", leads).await?;
    let writes = cluster
        .audit_since(mark)?
        .by(USER)
        .writes()
        .only(|e| e.object_ref.as_ref().is_none_or(|o| !matches!(o.resource.as_str(), "leases" | "tokenreviews")));
    let restart_writes = writes.len();
    program.term();
    program.wait_exit(Duration::from_secs(20)).await?;
    ensure!(plain_ms > 0.0, "nothing was written");
    Ok(json!({
        "bench": "lifecycle", "nodes": NODES, "ours_ms": ours_ms, "plain_ms": plain_ms,
        "ratio": (ours_ms / plain_ms * 1000.0).round() / 1000.0,
        "restart_ready_ms": restart_ready_ms, "restart_writes": restart_writes,
    }))
}

fn node(namespace: &str, i: usize) -> Value {
    json!({
        "apiVersion": "crd.antrea.io/v1alpha1", "kind": "ExternalNode",
        "metadata": {"namespace": namespace, "name": format!("vm{i}"), "labels": {"app": format!("a{}", i % 50)}},
        "spec": {"interfaces": [{"name": "eth0", "ips": [format!("10.0.{}.{}", i / 250, i % 250 + 1)]}]},
    })
}

async fn create<K>(api: &Api<K>, object: Value) -> anyhow::Result<K>
where
    K: Clone + DeserializeOwned + std::fmt::Debug + serde::Serialize,
{
    let object: K = serde_json::from_value(object)?;
    api.create(&PostParams::default(), &object).await.context("failed to create an object")
}

async fn each<F: Future<Output = anyhow::Result<()>>>(count: usize, work: impl Fn(usize) -> F) -> anyhow::Result<()> {
    stream::iter(0..count).map(work).buffer_unordered(AT_ONCE).try_collect::<Vec<_>>().await.map(|_| ())
}

async fn count<K>(client: &Client, namespace: &str) -> anyhow::Result<usize>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    Ok(api.list_metadata(&ListParams::default()).await?.items.len())
}

/// The same objects and statuses by hand: the floor that the API server itself sets.
async fn plain(client: &Client) -> anyhow::Result<()> {
    let nodes: Api<ExternalNode> = Api::namespaced(client.clone(), "plain");
    let entities: Api<ExternalEntity> = Api::namespaced(client.clone(), "plain");
    let infos: Api<AntreaAgentInfo> = Api::all(client.clone());
    each(NODES, |i| {
        let (nodes, entities, infos) = (nodes.clone(), entities.clone(), infos.clone());
        async move {
            let mut made = create(&nodes, node("plain", i)).await?;
            let uid = made.metadata.uid.clone();
            create(&entities, json!({
                "apiVersion": "crd.antrea.io/v1alpha2", "kind": "ExternalEntity",
                "metadata": {
                    "namespace": "plain", "name": format!("vm{i}-3e616"), "labels": {"app": format!("a{}", i % 50)},
                    "ownerReferences": [{"apiVersion": "crd.antrea.io/v1alpha1", "kind": "ExternalNode", "name": format!("vm{i}"), "uid": uid}],
                },
                "spec": {"endpoints": [{"ip": format!("10.0.{}.{}", i / 250, i % 250 + 1), "name": "eth0"}], "externalNode": format!("vm{i}")},
            })).await?;
            create(&infos, json!({
                "apiVersion": "crd.antrea.io/v1beta1", "kind": "AntreaAgentInfo",
                "metadata": {"name": format!("plain--vm{i}"), "annotations": {"example.com/external-node": format!("plain/vm{i}")}},
                "nodeRef": {"kind": "ExternalNode", "name": format!("vm{i}"), "namespace": "plain"},
            })).await?;
            let condition = |kind: &str| json!({"type": kind, "status": "Unknown", "reason": "NeverSeen", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
            let kinds = ["Accepted", "Joined", "InterfaceFound", "Attached", "PoliciesRealized", "Healthy"];
            made.status = Some(serde_json::from_value(json!({"conditions": kinds.map(condition)}))?);
            nodes.replace_status(&format!("vm{i}"), &PostParams::default(), &made).await?;
            Ok(())
        }
    })
    .await
}
