//! The operator on a real API server: entities, AgentInfos, views, statuses.

use std::sync::LazyLock;
use std::time::Duration;

use agent::mirror::Told;
use anyhow::{Context, anyhow, ensure};
use crds::agent_info::AntreaAgentInfo;
use crds::external_entity::ExternalEntity;
use crds::external_node::ExternalNode;
use crds::policy::{NetworkPolicy, Phase};
use crds::tier::Tier;
use crds::world::{Event, Object, World, WorldKind};
use e2e::{Cluster, Machine, Outrider};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::sync::{Mutex, MutexGuard};

const BEAT: Duration = Duration::from_secs(2);

/// Tests of this file run one after another: each has the cluster and an operator for itself, and finds nothing that a
/// test before it left when it failed.
async fn begin() -> anyhow::Result<(MutexGuard<'static, ()>, Cluster)> {
    static TURN: LazyLock<Mutex<()>> = LazyLock::new(Mutex::default);
    let (turn, cluster) = (TURN.lock().await, Cluster::shared().await?);
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    for left in &namespaces.list(&ListParams::default().labels("team")).await? {
        cluster.delete(&namespace(&left.name_any())).await?;
    }
    let infos: Api<AntreaAgentInfo> = Api::all(cluster.client.clone());
    infos.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    Ok((turn, cluster))
}

fn namespace(name: &str) -> String {
    format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}, labels: {{team: {name}}}}}}}\n---\n")
}

fn node(namespace: &str, name: &str, role: &str, ip: &str) -> String {
    format!(
        "{{apiVersion: crd.antrea.io/v1alpha1, kind: ExternalNode, metadata: {{name: {name}, namespace: {namespace}, \
         labels: {{role: {role}}}}}, spec: {{interfaces: [{{name: eth0, ips: [{ip}]}}]}}}}\n---\n"
    )
}

/// Lets only web machines reach db machines' port 5432.
fn policy(namespace: &str, name: &str) -> String {
    format!(
        "
apiVersion: crd.antrea.io/v1beta1
kind: NetworkPolicy
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  priority: 5
  appliedTo: [{{externalEntitySelector: {{matchLabels: {{role: db}}}}}}]
  ingress:
    - action: Allow
      from: [{{externalEntitySelector: {{matchLabels: {{role: web}}}}}}]
      ports: [{{protocol: TCP, port: 5432}}]
    - action: Drop
---
"
    )
}

fn account(namespace: &str, name: &str, nodes: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: ServiceAccount, metadata: {{name: {name}, namespace: {namespace}}}}}\n---\n\
         {{apiVersion: outrider.io/v1alpha1, kind: ExternalNodeBinding, metadata: {{name: {name}, namespace: {namespace}}}, \
         spec: {{subjects: [{{kind: ServiceAccount, name: {name}, namespace: {namespace}}}], externalNodes: [{nodes}]}}}}\n---\n"
    )
}

async fn machine(cluster: &Cluster, operator: &Outrider, namespace: &str, name: &str) -> anyhow::Result<Machine> {
    let token = cluster.token(namespace, name, Some("outrider"), Duration::from_hours(1)).await?;
    operator.machine(&format!("{namespace}/{name}"), &token)
}

fn entities(cluster: &Cluster, namespace: &str) -> Api<ExternalEntity> {
    Api::namespaced(cluster.client.clone(), namespace)
}

async fn names(api: &Api<ExternalEntity>) -> anyhow::Result<Vec<String>> {
    Ok(api.list(&ListParams::default()).await?.iter().map(ResourceExt::name_any).collect())
}

/// What the operator's inputs are now, read by a plain list.
async fn world(cluster: &Cluster) -> anyhow::Result<World> {
    let mut world = World::waiting_for(WorldKind::ALL);
    for kind in WorldKind::ALL {
        let api: Api<DynamicObject> = Api::all_with(cluster.client.clone(), &kind.api_resource());
        let objects = match api.list(&ListParams::default()).await {
            Ok(list) => list.items.into_iter().map(|object| Object::decode(*kind, object)).collect(),
            Err(kube::Error::Api(status)) if status.code == 404 => vec![],
            Err(error) => return Err(error.into()),
        };
        world.apply(Event::Listed(*kind, objects));
    }
    Ok(world)
}

#[tokio::test]
async fn an_entity_is_named_as_published_and_repaired_when_edited_or_deleted() -> anyhow::Result<()> {
    let (_turn, cluster) = begin().await?;
    let operator = Outrider::start(&cluster, BEAT).await?;
    let ns = "repair";
    cluster.apply(&(namespace(ns) + &node(ns, "vm1", "db", "10.0.0.5"))).await?;
    let api = entities(&cluster, ns);
    let right = |entity: Option<&ExternalEntity>| {
        entity.is_some_and(|e| {
            let endpoint = e.spec.endpoints.first().and_then(|e| e.ip.as_deref());
            endpoint == Some("10.0.0.5") && e.labels().get("role").is_some_and(|r| r == "db") && e.labels().len() == 1
        })
    };
    let entity = cluster.until_object(&api, "vm1-3e616", "the entity of vm1", right).await?.context("an entity")?;
    let owner = entity.owner_references().first().context("an owner")?;
    assert_eq!(
        (owner.api_version.as_str(), owner.kind.as_str(), owner.name.as_str()),
        ("crd.antrea.io/v1alpha1", "ExternalNode", "vm1")
    );
    assert_eq!((owner.controller, owner.block_owner_deletion), (None, None));
    let nodes: Api<ExternalNode> = Api::namespaced(cluster.client.clone(), ns);
    assert_eq!(Some(&owner.uid), nodes.get("vm1").await?.uid().as_ref());
    assert_eq!(entity.spec.external_node.as_deref(), Some("vm1"));

    let edit =
        json!({"metadata": {"labels": {"role": "web", "more": "yes"}}, "spec": {"endpoints": [{"ip": "10.9.9.9"}]}});
    api.patch("vm1-3e616", &PatchParams::default(), &Patch::Merge(edit)).await?;
    cluster.until_object(&api, "vm1-3e616", "the edited entity is repaired", right).await?;

    let uid = entity.uid();
    api.delete("vm1-3e616", &DeleteParams::default()).await?;
    let again = |entity: Option<&ExternalEntity>| right(entity) && entity.is_some_and(|e| e.uid() != uid);
    cluster.until_object(&api, "vm1-3e616", "the deleted entity is made again", again).await?;

    // one that somebody made by hand has the name: it is never taken over
    let by_hand = format!(
        "{{apiVersion: crd.antrea.io/v1alpha2, kind: ExternalEntity, metadata: {{name: vm2-3e616, namespace: {ns}}}, \
         spec: {{endpoints: [{{ip: 10.9.9.8}}]}}}}\n---\n"
    );
    cluster.apply(&(by_hand + &node(ns, "vm2", "db", "10.0.0.6"))).await?;
    let foreign = |node: Option<&ExternalNode>| {
        let conditions = node.and_then(|n| n.status.as_ref()).map(|status| &status.conditions);
        conditions.into_iter().flatten().any(|c| c.type_ == "Accepted" && c.reason == "ForeignEntity")
    };
    cluster.until_object(&nodes, "vm2", "the node says whose the name is", foreign).await?;
    let entity = api.get("vm2-3e616").await?;
    assert_eq!((entity.spec.endpoints[0].ip.as_deref(), entity.owner_references().len()), (Some("10.9.9.8"), 0));

    cluster.delete(&namespace(ns)).await?;
    assert_eq!(names(&api).await?, [""; 0], "nothing is left in the deleted namespace");
    operator.stop().await
}

#[tokio::test]
async fn a_machine_is_told_its_policies_and_a_renamed_interface_never_empties_them() -> anyhow::Result<()> {
    let (_turn, cluster) = begin().await?;
    let mut operator = Outrider::start(&cluster, BEAT).await?;
    let ns = "told";
    let objects = namespace(ns)
        + &node(ns, "vm1", "db", "10.0.0.5")
        + &node(ns, "vm2", "web", "fd00::6")
        + &account(ns, "vm1", "vm1")
        + &account(ns, "vm2", "vm2")
        + &policy(ns, "db");
    cluster.apply(&objects).await?;
    let mut vm1 = machine(&cluster, &operator, ns, "vm1").await?;
    cluster.until("vm1 is admitted", async || vm1.connect().await.map(|()| true)).await?;
    while vm1.policies().is_empty() || vm1.mirror.view().groups.values().all(|g| g.body().members.is_empty()) {
        vm1.until_commit().await?;
    }
    assert_eq!(vm1.policies(), ["db"]);
    let expected = operator::policy::whole::resolve(&world(&cluster).await?);
    assert_eq!(
        vm1.mirror.view(),
        &expected.view(&"told/vm1".parse()?),
        "what it was told is what follows from the objects"
    );

    // renamed: the applied-to set changes in one commit and is never empty
    let rename = json!({"spec": {"interfaces": [{"name": "eth1", "ips": ["10.0.0.5"]}]}});
    let nodes: Api<ExternalNode> = Api::namespaced(cluster.client.clone(), ns);
    nodes.patch("vm1", &PatchParams::default(), &Patch::Merge(rename)).await?;
    loop {
        vm1.until_commit().await?;
        let applied: Vec<_> =
            vm1.mirror.view().policies.values().flat_map(|p| p.body().applied_to.iter().cloned()).collect();
        ensure!(!applied.is_empty(), "the applied-to set was empty");
        if applied[0].as_str() != "vm1-3e616" {
            break;
        }
    }
    let api = entities(&cluster, ns);
    cluster
        .until("only the new entity is left", async || {
            Ok::<_, anyhow::Error>(!names(&api).await?.contains(&"vm1-3e616".to_owned()))
        })
        .await?;

    // a label moves vm2 into the policy's span and out of it
    let mut vm2 = machine(&cluster, &operator, ns, "vm2").await?;
    vm2.connect().await?;
    assert_eq!(vm2.policies(), [""; 0]);
    let label = |role: &str| json!({"metadata": {"labels": {"role": role}}});
    nodes.patch("vm2", &PatchParams::default(), &Patch::Merge(label("db"))).await?;
    vm2.until_commit().await?;
    assert_eq!(vm2.policies(), ["db"]);
    nodes.patch("vm2", &PatchParams::default(), &Patch::Merge(label("web"))).await?;
    vm2.until_commit().await?;
    assert_eq!(vm2.policies(), [""; 0]);

    // killed and restarted: the stream goes on from what the machine has
    vm1.disconnect();
    operator.kill_and_restart(&cluster).await?;
    vm1.connect().await?;
    assert!(vm1.mirror.complete());

    // status: reported as realised by the only node of the span
    let policies: Api<NetworkPolicy> = Api::namespaced(cluster.client.clone(), ns);
    vm1.report().await?;
    let realized = |p: Option<&NetworkPolicy>| p.and_then(|p| p.status.as_ref()?.phase) == Some(Phase::Realized);
    cluster.until_object(&policies, "db", "the policy is realised", realized).await?;
    let healthy = |n: Option<&ExternalNode>| {
        let conditions = n.and_then(|n| n.status.as_ref()).map(|s| s.conditions.clone()).unwrap_or_default();
        ["Accepted", "Joined", "InterfaceFound", "Attached", "PoliciesRealized", "Healthy"]
            .iter()
            .all(|kind| conditions.iter().any(|c| c.type_ == *kind && c.status == "True"))
    };
    cluster.until_object(&nodes, "vm1", "vm1 is well", healthy).await?;

    // deleted: told so, and only then
    nodes.delete("vm1", &DeleteParams::default()).await?;
    loop {
        if let Told::Gone { reason, .. } = vm1.told().await? {
            assert_eq!(reason, "ExternalNode told/vm1 was deleted");
            break;
        }
    }
    cluster.delete(&namespace(ns)).await?;
    operator.stop().await
}

#[tokio::test]
async fn agent_infos_of_one_name_stay_apart_and_go_with_their_nodes() -> anyhow::Result<()> {
    let (_turn, cluster) = begin().await?;
    let operator = Outrider::start(&cluster, BEAT).await?;
    cluster.apply(&(namespace("aai-a") + &node("aai-a", "twin", "db", "10.0.1.1"))).await?;
    let infos: Api<AntreaAgentInfo> = Api::all(cluster.client.clone());
    cluster.until_object(&infos, "twin", "the first twin's AgentInfo", |i| i.is_some()).await?;
    cluster.apply(&(namespace("aai-b") + &node("aai-b", "twin", "db", "10.0.1.2"))).await?;
    let second = cluster.until_object(&infos, "aai-b--twin", "the second twin's AgentInfo", |i| i.is_some()).await?;
    let second = second.context("the second")?;
    assert_eq!(second.annotations().get("outrider.io/external-node").map(String::as_str), Some("aai-b/twin"));

    infos.delete("twin", &DeleteParams::default()).await?;
    cluster.until_object(&infos, "twin", "a deleted AgentInfo is made again", |i| i.is_some()).await?;

    cluster.delete(&namespace("aai-a")).await?;
    cluster.until_object(&infos, "twin", "the AgentInfo goes with its node", |i| i.is_none()).await?;
    assert!(infos.get_opt("aai-b--twin").await?.is_some(), "the other one stays, under its name");
    cluster.delete(&namespace("aai-b")).await?;
    cluster.until_object(&infos, "aai-b--twin", "the other goes with its own", |i| i.is_none()).await?;
    let tiers: Api<Tier> = Api::all(cluster.client.clone());
    assert_eq!(tiers.list(&ListParams::default()).await?.items.len(), 6, "the built-in tiers are there");
    operator.stop().await
}

#[tokio::test]
async fn nobody_reads_what_is_not_theirs() -> anyhow::Result<()> {
    let (_turn, cluster) = begin().await?;
    let operator = Outrider::start(&cluster, BEAT).await?;
    let ns = "mine";
    let objects = namespace(ns)
        + &node(ns, "vm1", "db", "10.0.2.1")
        + &node(ns, "vm2", "web", "10.0.2.2")
        + &account(ns, "vm1", "vm1")
        + &format!("{{apiVersion: v1, kind: ServiceAccount, metadata: {{name: nobody, namespace: {ns}}}}}\n---\n")
        + &policy(ns, "db");
    cluster.apply(&objects).await?;
    let token = |account: &'static str, audience: Option<&'static str>| {
        cluster.token(ns, account, audience, Duration::from_mins(10))
    };
    let right = token("vm1", Some("outrider")).await?;
    let mut vm1 = operator.machine("mine/vm1", &right)?;
    cluster.until("vm1 is admitted", async || vm1.connect().await.map(|()| true)).await?;

    let refused = async |machine: &str, token: &str| -> anyhow::Result<String> {
        let mut machine = operator.machine(machine, token)?;
        let error = machine.connect().await.err().context("it was let in")?;
        Ok(format!("{error:#}"))
    };
    let other = refused("mine/vm2", &right).await?;
    assert!(other.contains("403") && other.contains("no ExternalNodeBinding lets"), "{other}");
    let unbound = refused("mine/vm1", &token("nobody", Some("outrider")).await?).await?;
    assert!(unbound.contains("403"), "{unbound}");
    let audience = refused("mine/vm1", &token("vm1", None).await?).await?;
    assert!(audience.contains("401"), "{audience}");
    let garbage = refused("mine/vm1", "e30.e30.c2ln").await?;
    assert!(garbage.contains("401"), "{garbage}");
    let expired = resigned(&cluster, &right, |claims| claims["exp"] = json!(1_767_225_600))?;
    let expired = refused("mine/vm1", &expired).await?;
    assert!(expired.contains("401"), "{expired}");
    let again = resigned(&cluster, &right, |_| ())?;
    operator.machine("mine/vm1", &again)?.connect().await.context("the same claims, signed again, are good")?;

    let curl = async |headers: &[&str]| -> anyhow::Result<String> {
        let url = format!("https://{}/v1/watch?node=mine/vm1", operator.address());
        let mut curl = tokio::process::Command::new("curl");
        curl.args(["-sN", "--max-time", "5", "--noproxy", "*", "--cacert"]).arg(operator.ca()).arg(url);
        for header in headers {
            curl.args(["-H", header]);
        }
        Ok(String::from_utf8(curl.output().await?.stdout)?)
    };
    let none = curl(&[]).await?;
    assert!(none.contains(r#""code":401"#) && none.contains("a bearer token is needed"), "{none}");
    let bearer = format!("Authorization: Bearer {right}");
    let version = curl(&[&bearer, "Outrider-Wire: 2"]).await?;
    assert!(version.contains(r#""code":505"#) && version.contains("wire version 1 only"), "{version}");
    let stream = curl(&[&bearer, "Outrider-Wire: 1"]).await?;
    let begins = r#"{"frame":"hello","wire":1,"full":true"#;
    assert!(stream.starts_with(begins) && stream.contains(r#""frame":"commit""#), "{stream}");
    // and a report for another's machine
    let told = "{\"node\":\"mine/vm2\",\"uid\":\"u\",\"digest\":\"d\"}";
    let report = tokio::process::Command::new("curl")
        .args(["-s", "--max-time", "5", "--noproxy", "*", "--cacert"])
        .arg(operator.ca())
        .args(["-H", &bearer, "-d", told, &format!("https://{}/v1/report", operator.address())])
        .output()
        .await?;
    let report = String::from_utf8(report.stdout)?;
    assert!(report.contains(r#""code":403"#) && report.contains("lets"), "{report}");

    // the log names who, and why
    let log = operator.program.log();
    let refusals: Vec<_> = log.lines().filter(|line| line.contains("refused: ")).collect();
    for expected in [
        ["identity=system:serviceaccount:mine:vm1", "watch for ExternalNode mine/vm2"],
        ["identity=system:serviceaccount:mine:vm1", "report for ExternalNode mine/vm2"],
        ["identity=system:serviceaccount:mine:nobody", "no ExternalNodeBinding"],
        ["identity=\"system:serviceaccount:mine:vm1\"", "audience"],
        ["identity=\"system:serviceaccount:mine:vm1\"", "expired"],
        ["identity=\"somebody who doesn't say who\"", "the token is not accepted"],
        ["call=\"watch\"", "no bearer token"],
    ] {
        let said = refusals.iter().any(|line| expected.iter().all(|part| line.contains(part)));
        ensure!(said, "no refusal of the log says {expected:?}: {refusals:#?}");
    }

    // the stream ends when the binding goes
    cluster.kubectl(&["delete", "enb", "vm1", "-n", ns]).await?;
    let ended = async {
        loop {
            if let Err(error) = vm1.told().await {
                return error;
            }
        }
    };
    let error =
        tokio::time::timeout(Duration::from_secs(10), ended).await.map_err(|_| anyhow!("the stream goes on"))?;
    ensure!(!format!("{error:#}").contains("gone"), "an unbound machine is not told that it is gone");
    cluster.delete(&namespace(ns)).await?;
    operator.stop().await
}

#[tokio::test]
async fn a_canary_outside_the_span_is_never_told() -> anyhow::Result<()> {
    let (_turn, cluster) = begin().await?;
    let operator = Outrider::start(&cluster, BEAT).await?;
    let ns = "span";
    let objects = namespace(ns)
        + &node(ns, "vm1", "db", "10.0.2.1")
        + &node(ns, "vm2", "web", "10.0.2.2")
        + &node(ns, "canary", "canary", "10.99.99.99")
        + &account(ns, "vm1", "vm1")
        + &policy(ns, "db");
    cluster.apply(&objects).await?;
    let mut vm1 = machine(&cluster, &operator, ns, "vm1").await?;
    cluster.until("vm1 is admitted", async || vm1.connect().await.map(|()| true)).await?;
    let nodes: Api<ExternalNode> = Api::namespaced(cluster.client.clone(), ns);
    let canary = nodes.get("canary").await?.uid().context("a uid")?;
    let patch = async |name: &str, patch: serde_json::Value| {
        nodes.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map(|_| ())
    };
    let address = |ip: &str| json!({"spec": {"interfaces": [{"name": "eth0", "ips": [ip]}]}});
    let mut heard_of = async |ip: &str| loop {
        vm1.until_commit().await?;
        if format!("{:?}", vm1.mirror.view()).contains(ip) {
            return anyhow::Ok(vm1.heard.concat());
        }
    };
    patch("canary", json!({"metadata": {"labels": {"secret": "cage"}}})).await?;
    patch("canary", address("10.99.99.98")).await?;
    patch("vm2", address("10.0.2.3")).await?;
    heard_of("10.0.2.3").await?;
    nodes.delete("canary", &DeleteParams::default()).await?;
    cluster.until_object(&nodes, "canary", "the canary is gone", |n| n.is_none()).await?;
    patch("vm2", address("10.0.2.4")).await?;
    let heard = heard_of("10.0.2.4").await?;
    for secret in ["canary", "cage", "10.99.99", &canary] {
        ensure!(!heard.contains(secret), "vm1 was told {secret}");
    }
    cluster.delete(&namespace(ns)).await?;
    operator.stop().await
}

#[tokio::test]
async fn a_machine_that_comes_back_is_told_only_what_it_does_not_have() -> anyhow::Result<()> {
    let (_turn, cluster) = begin().await?;
    let mut operator = Outrider::start(&cluster, BEAT).await?;
    let ns = "back";
    let peer = |i: u32| {
        format!(
            "{{apiVersion: crd.antrea.io/v1alpha2, kind: ExternalEntity, metadata: {{name: web{i}, namespace: {ns}, \
             labels: {{role: web}}}}, spec: {{endpoints: [{{ip: 10.7.{}.{}}}]}}}}\n---\n",
            i / 250,
            i % 250
        )
    };
    let many = (0..300).map(peer).collect::<Vec<_>>().concat();
    let objects =
        namespace(ns) + &node(ns, "vm1", "db", "10.0.0.5") + &account(ns, "vm1", "vm1") + &policy(ns, "db") + &many;
    cluster.apply(&objects).await?;
    let mut vm1 = machine(&cluster, &operator, ns, "vm1").await?;
    cluster.until("vm1 is admitted", async || vm1.connect().await.map(|()| true)).await?;
    let members = |vm1: &Machine| vm1.mirror.view().groups.values().map(|g| g.body().members.len()).sum::<usize>();
    while members(&vm1) < 300 {
        vm1.until_commit().await?;
    }
    let mut fresh = machine(&cluster, &operator, ns, "vm1").await?;
    fresh.connect().await?;
    let full = fresh.bytes();

    vm1.disconnect();
    operator.kill_and_restart(&cluster).await?;
    vm1.connect().await?;
    assert_eq!(vm1.mirror.view(), fresh.mirror.view());
    let resumed = vm1.bytes();
    assert!(resumed * 20 <= full, "the resume took {resumed} bytes, a full view {full}");

    // a change meanwhile
    fresh.connect().await?;
    vm1.disconnect();
    entities(&cluster, ns).delete("web7", &DeleteParams::default()).await?;
    fresh.until_commit().await?;
    vm1.connect().await?;
    assert_eq!(members(&vm1), 299);
    cluster.delete(&namespace(ns)).await?;
    operator.stop().await
}

#[tokio::test]
async fn a_re_created_node_keeps_its_entity_through_the_garbage_collector() -> anyhow::Result<()> {
    let (_turn, cluster) = begin().await?;
    let mut operator = Outrider::start(&cluster, BEAT).await?;
    let ns = "again";
    let object = node(ns, "vm1", "db", "10.0.0.5");
    cluster.apply(&(namespace(ns) + &object)).await?;
    let api = entities(&cluster, ns);
    let nodes: Api<ExternalNode> = Api::namespaced(cluster.client.clone(), ns);
    let owned_by = |uid: Option<String>| {
        move |e: Option<&ExternalEntity>| e.and_then(|e| e.owner_references().first().map(|o| o.uid.clone())) == uid
    };
    let first = nodes.get("vm1").await?.uid();
    cluster.until_object(&api, "vm1-3e616", "the first entity", owned_by(first)).await?;

    // while the operator looks on, and while it is down
    for down in [false, true] {
        if down {
            operator.program.term();
            operator.program.wait_exit(Duration::from_secs(20)).await?;
        }
        let before = nodes.get("vm1").await?.uid();
        nodes.delete("vm1", &DeleteParams::background()).await?;
        cluster.until_object(&nodes, "vm1", "the node is gone", |n| n.is_none()).await?;
        cluster.apply(&object).await?;
        if down {
            operator.program = cluster.restart(&operator.program).await?;
        }
        let uid = nodes.get("vm1").await?.uid();
        ensure!(uid != before, "a new node has a new uid");
        cluster.until_object(&api, "vm1-3e616", "the new node's entity", owned_by(uid)).await?;
    }

    // a deletion that no operator sees: what was the node's goes with the next one
    let infos: Api<AntreaAgentInfo> = Api::all(cluster.client.clone());
    cluster.until_object(&infos, "vm1", "the AgentInfo", |i| i.is_some()).await?;
    operator.program.term();
    operator.program.wait_exit(Duration::from_secs(20)).await?;
    nodes.delete("vm1", &DeleteParams::background()).await?;
    cluster.until_object(&nodes, "vm1", "the node is gone", |n| n.is_none()).await?;
    operator.program = cluster.restart(&operator.program).await?;
    cluster.until_object(&infos, "vm1", "its AgentInfo is gone", |i| i.is_none()).await?;
    cluster.until_object(&api, "vm1-3e616", "its entity is gone", |e| e.is_none()).await?;
    cluster.delete(&namespace(ns)).await?;
    operator.stop().await
}

#[tokio::test]
async fn a_namespace_that_comes_back_with_other_labels_counts_with_these() -> anyhow::Result<()> {
    let (_turn, cluster) = begin().await?;
    let operator = Outrider::start(&cluster, BEAT).await?;
    let ns = "labels";
    let across = policy(ns, "db").replace(
        "from: [{externalEntitySelector: {matchLabels: {role: web}}}]",
        "from: [{externalEntitySelector: {}, namespaceSelector: {matchLabels: {let: in}}}]",
    );
    cluster.apply(&(namespace(ns) + &node(ns, "vm1", "db", "10.0.0.5") + &account(ns, "vm1", "vm1") + &across)).await?;
    let other = |label: &str| {
        format!(
            "{{apiVersion: v1, kind: Namespace, metadata: {{name: other, labels: {{team: other, let: {label}}}}}}}\n---\n\
             {{apiVersion: crd.antrea.io/v1alpha2, kind: ExternalEntity, metadata: {{name: peer, namespace: other}}, \
             spec: {{endpoints: [{{ip: 10.8.0.1}}]}}}}\n---\n"
        )
    };
    let mut vm1 = machine(&cluster, &operator, ns, "vm1").await?;
    cluster.until("vm1 is admitted", async || vm1.connect().await.map(|()| true)).await?;
    let peers = |vm1: &Machine| vm1.mirror.view().groups.values().map(|g| g.body().members.len()).sum::<usize>();
    for _ in 0..2 {
        cluster.apply(&other("in")).await?;
        while peers(&vm1) != 1 {
            vm1.until_commit().await?;
        }
        cluster
            .apply("{apiVersion: v1, kind: Namespace, metadata: {name: other, labels: {team: other, let: out}}}")
            .await?;
        while peers(&vm1) != 0 {
            vm1.until_commit().await?;
        }
        cluster.delete("{apiVersion: v1, kind: Namespace, metadata: {name: other}}").await?;
    }
    cluster.delete(&namespace(ns)).await?;
    operator.stop().await
}

#[tokio::test]
async fn three_machines_cost_three_statuses_and_three_agent_infos_a_minute_and_nothing_else() -> anyhow::Result<()> {
    let (_turn, cluster) = begin().await?;
    let beat = Duration::from_secs(10);
    let operator = Outrider::start(&cluster, beat).await?;
    let ns = "quiet";
    let names = ["vm1", "vm2", "vm3"];
    let objects: String =
        names.iter().map(|n| node(ns, n, "db", &format!("10.0.9.{}", &n[2..])) + &account(ns, n, n)).collect();
    cluster.apply(&(namespace(ns) + &objects + &policy(ns, "db"))).await?;
    let mut machines = Vec::new();
    for name in names {
        let mut machine = machine(&cluster, &operator, ns, name).await?;
        cluster.until("the machine is admitted", async || machine.connect().await.map(|()| true)).await?;
        while machine.policies().is_empty() {
            machine.until_commit().await?;
        }
        machine.report().await?;
        machines.push(machine);
    }
    let nodes: Api<ExternalNode> = Api::namespaced(cluster.client.clone(), ns);
    let policies: Api<NetworkPolicy> = Api::namespaced(cluster.client.clone(), ns);
    for name in names {
        let realized = |n: Option<&ExternalNode>| n.is_some_and(|n| condition(n, "PoliciesRealized") == Some("True"));
        cluster.until_object(&nodes, name, "the machine is well", realized).await?;
    }
    let realized = |p: Option<&NetworkPolicy>| p.and_then(|p| p.status.as_ref()?.current_nodes_realized) == Some(3);
    cluster.until_object(&policies, "db", "the policy is realised", realized).await?;

    // the last words about how it came to be so: bindings and events
    let second = Duration::from_secs(1);
    loop {
        let mark = cluster.audit_mark()?;
        tokio::time::sleep(3 * second).await;
        if writes_since(&cluster, mark)?.is_empty() {
            break;
        }
    }

    // a leader that has just begun looks once more at everything after six heartbeats: that writes nothing, either
    let mark = cluster.audit_mark()?;
    let start = tokio::time::Instant::now();
    let mut every = tokio::time::interval(beat);
    while start.elapsed() < Duration::from_mins(1) + beat {
        every.tick().await;
        for machine in &machines {
            machine.heartbeat().await?;
        }
    }
    // each token is asked about once a minute, not at each call
    let reviews = cluster.audit_since(mark)?.by(e2e::outrider::USER).on("tokenreviews").len();
    ensure!((3..=9).contains(&reviews), "{reviews} reviews of three tokens");
    for machine in &mut machines {
        machine.heard.clear();
        while machine.heard.len() < 10 {
            machine.told().await?;
        }
        ensure!(machine.heard.iter().all(|frame| frame == "Ping"), "heartbeats were told as {:?}", machine.heard);
    }
    let written = writes_since(&cluster, mark)?;
    let mut expected: Vec<_> = names.iter().map(|n| format!("update antreaagentinfos/ {n}")).collect();
    expected.extend(names.iter().map(|n| format!("update externalnodes/status {n}")));
    assert_eq!(written, expected);
    cluster.delete(&namespace(ns)).await?;
    operator.stop().await
}

/// What the operator wrote since `mark`, sorted; the Lease and the reviews of tokens aside.
fn writes_since(cluster: &Cluster, mark: e2e::audit::Mark) -> anyhow::Result<Vec<String>> {
    let writes = cluster.audit_since(mark)?.by(e2e::outrider::USER).writes();
    let objects = writes.iter().filter_map(|e| Some((&e.verb, e.object_ref.as_ref()?)));
    let objects = objects.filter(|(_, o)| !matches!(o.resource.as_str(), "leases" | "tokenreviews"));
    let mut written: Vec<_> =
        objects.map(|(verb, o)| format!("{verb} {}/{} {}", o.resource, o.subresource, o.name)).collect();
    written.sort();
    Ok(written)
}

/// `token` with other claims, signed with the cluster's own key for tokens.
fn resigned(cluster: &Cluster, token: &str, change: impl FnOnce(&mut serde_json::Value)) -> anyhow::Result<String> {
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use rustls::pki_types::PrivatePkcs8KeyDer;
    use rustls::pki_types::pem::PemObject;

    let parts = token.split_once('.').and_then(|(head, rest)| Some((head, rest.split_once('.')?.0)));
    let (head, payload) = parts.context("not a JWT")?;
    let mut claims = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload)?)?;
    change(&mut claims);
    let signed = format!("{head}.{}", URL_SAFE_NO_PAD.encode(claims.to_string()));
    let key = PrivatePkcs8KeyDer::from_pem_file(cluster.dir().join("pki/sa.key"))?;
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.secret_pkcs8_der())?;
    let signature = key.sign(&aws_lc_rs::rand::SystemRandom::new(), signed.as_bytes())?;
    Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
}

fn condition<'a>(node: &'a ExternalNode, kind: &str) -> Option<&'a str> {
    node.status.as_ref()?.conditions.iter().find(|c| c.type_ == kind).map(|c| c.status.as_str())
}
