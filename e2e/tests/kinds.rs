//! The kinds themselves: what the API server keeps of them, and what happens when they go or are somebody else's.

use std::fs;
use std::path::Path;
use std::time::Duration;

use agent::mirror::Told;
use anyhow::{Context, ensure};
use crds::world::WorldKind;
use e2e::{Cluster, Machine, Outrider};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::discovery;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

const FULL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crds/tests/data/full");
/// Objects of three machines; db1 is one of them.
const DEMO: &str = include_str!("../../docs/examples/three-machines.yaml");

#[tokio::test]
async fn objects_that_use_every_field_come_back_whole() -> anyhow::Result<()> {
    let cluster = Cluster::shared().await?;
    let mut files: Vec<_> =
        fs::read_dir(Path::new(FULL))?.map(|f| Ok(f?.path())).collect::<Result<_, std::io::Error>>()?;
    files.sort();
    let mut objects = 0;
    for file in files {
        let text = fs::read_to_string(&file)?;
        let documents: Vec<Value> =
            serde_saphyr::from_multiple(&text).with_context(|| format!("{}", file.display()))?;
        for document in documents {
            let wanted: DynamicObject = serde_json::from_value(document)?;
            let name = format!("{} {}", file.display(), wanted.name_any());
            let kept = keep(&cluster, &wanted).await.with_context(|| name.clone())?;
            for (field, value) in wanted.data.as_object().into_iter().flatten() {
                ensure!(
                    same(&kept.data[field], value),
                    "{name}: {field} came back as {}, not {value}",
                    kept.data[field]
                );
            }
            objects += 1;
        }
    }
    ensure!(objects >= 6, "only {objects} objects");
    Ok(())
}

/// An operator in its cluster, and a machine that it tells something.
async fn an_operator_and_db1(cluster: &Cluster) -> anyhow::Result<(Outrider, Machine)> {
    let operator = Outrider::start(cluster, Duration::from_secs(2)).await?;
    cluster.apply(DEMO).await?;
    let token = cluster.token("vms", "db1", Some("outrider"), Duration::from_hours(1)).await?;
    let mut db1 = operator.machine("vms/db1", &token)?;
    cluster.until("db1 is admitted", async || db1.connect().await.map(|()| true)).await?;
    Ok((operator, db1))
}

/// Specs and what the API server's refusal has in it; none when it takes them.
const SPECS: &[(WorldKind, &str, Option<&str>)] = &[
    (WorldKind::ExternalNode, "{interfaces: [{ips: [10.0.0.5, '2001:db8::5']}]}", None),
    (WorldKind::ExternalNode, "{interfaces: [{name: eth0, ips: [10.0.0.5]}, {name: eth1, ips: [10.0.1.5]}]}", None),
    (WorldKind::ExternalNode, "{interfaces: [{mac: '02:00:00:00:00:01', allowedCIDRs: [10.0.0.0/16]}]}", None),
    (WorldKind::ExternalNode, "{interfaces: [{}]}", Some("interfaces[0]")),
    (WorldKind::ExternalNode, "{interfaces: []}", Some("interfaces")),
    (WorldKind::ExternalNode, "{interfaces: [{ips: []}]}", Some("ips")),
    (WorldKind::ExternalNode, "{interfaces: [{ips: [10.0.0.300]}]}", Some("ips[0]")),
    (WorldKind::ExternalNode, "{interfaces: [{ips: [127.0.0.1]}]}", Some("ips[0]")),
    (WorldKind::ExternalNode, "{interfaces: [{ips: ['fe80::1']}]}", Some("ips[0]")),
    (WorldKind::ExternalNode, "{interfaces: [{name: a, allowedCIDRs: [10.0.0.0/33]}]}", Some("allowedCIDRs[0]")),
    (WorldKind::ExternalNode, "{interfaces: [{ips: [10.0.0.5]}, {name: b, ips: [10.0.0.6]}]}", Some("needs a name")),
    (WorldKind::ExternalNode, "{interfaces: [{name: b, ips: [10.0.0.5]}, {name: b, ips: [10.0.0.6]}]}", Some("unique")),
    (WorldKind::NetworkPolicy, "{priority: 5, RULES: [{action: Drop, ports: [{protocol: TCP, port: http}]}]}", None),
    (WorldKind::NetworkPolicy, "{priority: 5, RULES: [{action: Drop, ports: [{port: 0}, {port: 65535}]}]}", None),
    (WorldKind::NetworkPolicy, "{priority: 5, RULES: [{action: Drop, ports: [{port: 65536}]}]}", Some("ports[0].port")),
    (WorldKind::NetworkPolicy, "{priority: 5, RULES: [{action: Drop, ports: [{port: -1}]}]}", Some("ports[0].port")),
    (
        WorldKind::NetworkPolicy,
        "{priority: 5, RULES: [{action: Drop, ports: [{port: 4294967318}]}]}",
        Some("ports[0].port"),
    ),
    (
        WorldKind::NetworkPolicy,
        "{priority: 5, RULES: [{action: Drop, ports: [{port: 1, endPort: 65536}]}]}",
        Some("endPort"),
    ),
    (
        WorldKind::NetworkPolicy,
        "{priority: 5, RULES: [{action: Drop, PEERS: [{ipBlock: {cidr: 10.0.0.0/33}}]}]}",
        Some("cidr"),
    ),
    (WorldKind::NetworkPolicy, "{priority: 5, RULES: [{action: Drop, PEERS: [{ipBlock: {cidr: 'fd00::/8'}}]}]}", None),
    (WorldKind::NetworkPolicy, "{priority: 5, RULES: [{action: Shrug}]}", Some("action")),
    (WorldKind::NetworkPolicy, "{priority: five, RULES: [{action: Drop}]}", Some("priority")),
    (WorldKind::NetworkPolicy, "{RULES: [{action: Drop}]}", Some("priority")),
    (
        WorldKind::NetworkPolicy,
        "{priority: 5, ingress: [{action: Drop, from: [{}]}], appliedTo: [{}]}",
        Some("appliedTo[0]"),
    ),
    (
        WorldKind::NetworkPolicy,
        "{priority: 5, appliedTo: [{externalEntitySelector: {}}], egress: [{action: Drop, l7Protocols: [{http: {}}]}]}",
        Some("l7Protocols"),
    ),
    (
        WorldKind::NetworkPolicy,
        "{priority: 5, appliedTo: [{externalEntitySelector: {}}], egress: [{action: Drop, to: [{ipBlock: {cidr: 10.0.0.0/8}}], toServices: [{name: a, namespace: b}]}]}",
        Some("toServices"),
    ),
    (WorldKind::NetworkPolicy, "{priority: 5}", Some("appliedTo")),
    (WorldKind::ExternalNode, "{interfaces: [{name: a-name-of-16-byte}]}", Some("15 bytes")),
    (WorldKind::ExternalNode, "{interfaces: [{name: a, allowedCIDRs: ['fe80::/10']}]}", Some("allowedCIDRs[0]")),
    (WorldKind::ExternalEntity, "{endpoints: [{ip: 10.0.0.300}]}", Some("ip")),
    (WorldKind::ExternalEntity, "{endpoints: [{ip: 10.0.0.3}], ports: [{port: ssh}]}", None),
    (WorldKind::Binding, "{subjects: [{kind: User, name: u}], externalNodes: ['*']}", None),
    (WorldKind::Binding, "{subjects: [{kind: User, name: u}], nodeSelector: {}}", None),
    (WorldKind::Binding, "{subjects: [{kind: User, name: u}]}", Some("exactly one")),
    (
        WorldKind::Binding,
        "{subjects: [{kind: User, name: u}], externalNodes: [a], nodeSelector: {}}",
        Some("exactly one"),
    ),
    (WorldKind::Binding, "{subjects: [{kind: ServiceAccount, name: u}], externalNodes: [a]}", Some("namespace")),
    (WorldKind::Binding, "{subjects: [], externalNodes: [a]}", Some("subjects")),
];

#[tokio::test]
async fn the_definitions_refuse_what_can_mean_nothing_and_name_the_field() -> anyhow::Result<()> {
    let cluster = Cluster::shared().await?;
    let params = PostParams { dry_run: true, ..PostParams::default() };
    for (kind, spec, wanted) in SPECS {
        let api: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), "default", &kind.api_resource());
        for (rules, peers) in [("ingress", "from"), ("egress", "to")] {
            let spec = spec.replace("RULES", &format!("appliedTo: [{{externalEntitySelector: {{}}}}], {rules}"));
            let spec = spec.replace("PEERS", peers);
            let mut object = DynamicObject::new("a", &kind.api_resource());
            object.data = json!({"spec": serde_saphyr::from_str::<Value>(&spec)?});
            let refusal = api.create(&params, &object).await.err().map(|error| error.to_string());
            match (wanted, refusal) {
                (None, None) => {}
                (Some(field), Some(refusal)) if refusal.contains(field) => {}
                (wanted, refusal) => anyhow::bail!("{kind} {spec}: wanted {wanted:?}, got {refusal:?}"),
            }
        }
    }
    Ok(())
}

/// Equal but for defaults that were added and for a number's spelling.
fn same(kept: &Value, wanted: &Value) -> bool {
    match (kept, wanted) {
        (Value::Object(kept), Value::Object(wanted)) => {
            wanted.iter().all(|(key, value)| kept.get(key).is_some_and(|kept| same(kept, value)))
        }
        (Value::Array(kept), Value::Array(wanted)) => {
            kept.len() == wanted.len() && kept.iter().zip(wanted).all(|(kept, wanted)| same(kept, wanted))
        }
        (Value::Number(kept), Value::Number(wanted)) => kept.as_f64() == wanted.as_f64(),
        _ => kept == wanted,
    }
}

async fn keep(cluster: &Cluster, object: &DynamicObject) -> anyhow::Result<DynamicObject> {
    let types = object.types.clone().context("no kind")?;
    let gvk = kube::core::GroupVersionKind::try_from(&types)?;
    let (resource, capabilities) = discovery::pinned_kind(&cluster.client, &gvk).await?;
    let has_status = capabilities.subresources.iter().any(|(subresource, _)| subresource.plural == "status");
    let namespace = object.namespace();
    if let Some(namespace) = &namespace {
        cluster.apply(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {namespace}}}}}")).await?;
    }
    let api: Api<DynamicObject> = match &namespace {
        Some(namespace) => Api::namespaced_with(cluster.client.clone(), namespace, &resource),
        None => Api::all_with(cluster.client.clone(), &resource),
    };
    let created = api.create(&PostParams::default(), object).await?;
    if object.data.get("status").is_some() && has_status {
        let mut full = object.clone();
        full.metadata = created.metadata;
        api.replace_status(&object.name_any(), &PostParams::default(), &full).await?;
    }
    Ok(api.get(&object.name_any()).await?)
}

#[tokio::test]
async fn nobody_is_told_that_they_are_gone_when_the_kind_itself_goes() -> anyhow::Result<()> {
    let cluster = Cluster::start_with(e2e::outrider::options()?).await?;
    let (operator, mut db1) = an_operator_and_db1(&cluster).await?;

    cluster.kubectl(&["delete", "crd", "externalnodes.crd.antrea.io"]).await?;
    let warned = async || operator.program.log().contains("the kind ExternalNode is going, gone or not served");
    // the stream is read all the while: what comes are pings, or changes of the view, and never the last word
    let told = async {
        loop {
            match db1.told().await {
                Ok(Told::Gone { reason, .. }) => return Err(anyhow::anyhow!("told that it is gone: {reason}")),
                Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
    };
    tokio::select! {
        ended = told => return ended,
        warned = cluster.until("the operator says that the kind is gone", warned) => { warned?; }
    }
    // and once more for a machine that comes back just now
    let token = cluster.token("vms", "db1", Some("outrider"), Duration::from_hours(1)).await?;
    let mut late = operator.machine("vms/db1", &token)?;
    let refusal = format!("{:#}", late.connect().await.err().context("it was let in")?);
    ensure!(!refusal.contains("gone:"), "a machine that came back was told that it is gone: {refusal}");
    operator.stop().await
}

#[tokio::test]
async fn a_version_that_is_no_longer_served_releases_nobody() -> anyhow::Result<()> {
    let cluster = Cluster::start_with(e2e::outrider::options()?).await?;
    let (operator, mut db1) = an_operator_and_db1(&cluster).await?;

    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let kind = "externalnodes.crd.antrea.io";
    let mut other = serde_json::to_value(definitions.get(kind).await?)?["spec"]["versions"][0].take();
    (other["name"], other["storage"]) = (json!("v1beta1"), json!(false));
    let serve = async |ours: bool| {
        let patch = serde_json::from_value(json!([
            {"op": "replace", "path": "/spec/versions/0/served", "value": ours},
            {"op": if ours { "remove" } else { "add" }, "path": "/spec/versions/1", "value": other},
        ]))?;
        definitions.patch(kind, &PatchParams::default(), &Patch::<()>::Json(patch)).await.map(|_| ())?;
        anyhow::Ok(())
    };
    serve(false).await?;
    let noticed = async || operator.program.log().contains("installed, but not served in this version");
    cluster.until("the operator has noticed", noticed).await?;
    serve(true).await?;
    let another = r"
{apiVersion: crd.antrea.io/v1beta1, kind: NetworkPolicy, metadata: {name: later, namespace: vms},
 spec: {priority: 9, appliedTo: [{externalEntitySelector: {matchLabels: {role: db}}}], ingress: [{action: Drop}]}}";
    cluster.apply(another).await?;
    while db1.policies() != ["db-from-web", "later"] {
        db1.until_commit().await.context("the stream from before goes on")?;
    }
    let entities: Api<DynamicObject> =
        Api::namespaced_with(cluster.client.clone(), "vms", &WorldKind::ExternalEntity.api_resource());
    let all = async || anyhow::Ok(entities.list(&ListParams::default()).await?.items.len() == 3);
    cluster.until("each machine has its entity", all).await?;
    let deletions = cluster.audit()?.by(e2e::outrider::USER).verb("delete");
    ensure!(deletions.is_empty(), "{} objects were deleted", deletions.len());
    operator.stop().await
}

/// What no definition of ours lets in, as it may come from an older one.
const UNREADABLE: &str = r"
{apiVersion: v1, kind: Namespace, metadata: {name: old}}
---
{apiVersion: crd.antrea.io/v1alpha1, kind: ExternalNode, metadata: {name: vm9, namespace: old}, spec: {interfaces: [{name: eth0, ips: [10.0.0.9], ports: none}]}}
---
{apiVersion: crd.antrea.io/v1beta1, kind: NetworkPolicy, metadata: {name: POLICY, namespace: old}, spec: {appliedTo: none}}
---
{apiVersion: outrider.io/v1alpha1, kind: ExternalNodeBinding, metadata: {name: all, namespace: old}, spec: {subjects: none}}
";

#[tokio::test]
async fn an_object_that_cannot_be_read_says_so_and_no_other_is_affected() -> anyhow::Result<()> {
    let cluster = Cluster::start_with(e2e::outrider::options()?).await?;
    // stored while the schema let it through, as an older definition would
    let kinds = ["externalnodes.crd.antrea.io", "networkpolicies.crd.antrea.io", "externalnodebindings.outrider.io"];
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let mut strict = Vec::new();
    for kind in kinds {
        let schema = serde_json::to_value(definitions.get(kind).await?)?["spec"]["versions"][0]["schema"].take();
        strict.push((kind, schema["openAPIV3Schema"]["properties"]["spec"].clone()));
        put_schema(&definitions, kind, &json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}))
            .await?;
    }
    // with the longest name, after which an event is named, too
    let unreadable = UNREADABLE.replace("POLICY", &"p".repeat(253));
    cluster.until("nonsense can be stored", async || cluster.apply(&unreadable).await.map(|_| true)).await?;
    for (kind, schema) in strict {
        put_schema(&definitions, kind, &schema).await?;
    }
    let refused = async || cluster.apply(&UNREADABLE.replace("POLICY", "more")).await.is_err();
    cluster.until("nonsense is refused again", refused).await?;

    let (operator, _db1) = an_operator_and_db1(&cluster).await?;
    let conditions = [
        (WorldKind::ExternalNode, "vm9", "Accepted", "spec.interfaces[0].ports: invalid type: string \"none\""),
        (WorldKind::Binding, "all", "Accepted", "spec.subjects: invalid type: string \"none\""),
    ];
    for (kind, name, condition, message) in conditions {
        let api: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), "old", &kind.api_resource());
        let is_said = |object: Option<&DynamicObject>| {
            let conditions = object.and_then(|object| object.data["status"]["conditions"].as_array());
            conditions.into_iter().flatten().any(|c| {
                let said = c["message"].as_str().unwrap_or_default();
                c["type"] == condition && c["status"] == "False" && c["reason"] == "Invalid" && said.contains(message)
            })
        };
        cluster.until_object(&api, name, &format!("{kind} old/{name} says what is wrong"), is_said).await?;
    }
    // the kind has no conditions, and a text for a port is legal
    let entity = "{apiVersion: crd.antrea.io/v1alpha2, kind: ExternalEntity, metadata: {name: e, namespace: old}, \
                  spec: {endpoints: [{ip: 10.0.0.7}], ports: [{port: ssh, name: login}]}}";
    cluster.apply(entity).await?;
    // and of the policy the server refuses any write, its status included: events have to do
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), "old");
    let told = async || {
        let events = events.list(&ListParams::default().fields("reason=Invalid")).await?;
        let is_told = |(kind, what): &(&str, &str)| {
            events.items.iter().any(|event| {
                let regarding = event.regarding.as_ref().and_then(|object| object.kind.as_deref());
                regarding == Some(*kind) && event.note.as_deref().is_some_and(|note| note.contains(what))
            })
        };
        let wanted = [
            ("NetworkPolicy", "spec.appliedTo: invalid type: string \"none\""),
            ("ExternalEntity", "spec.ports[0].port: \"ssh\": must be a number"),
        ];
        Ok::<_, kube::Error>(wanted.iter().all(is_told))
    };
    cluster.until("events tell what is wrong with the policy and the entity", told).await?;
    let counted = async || {
        let (_, metrics) = operator.health("/metrics").await?;
        let kinds = ["ExternalEntity", "ExternalNode", "NetworkPolicy", "ExternalNodeBinding"];
        let lines = kinds.map(|kind| format!("outrider_invalid_objects{{kind=\"{kind}\"}} 1\n"));
        Ok::<_, anyhow::Error>(lines.iter().all(|line| metrics.contains(line)))
    };
    cluster.until("the metric counts one of each", counted).await?;
    operator.stop().await
}

async fn put_schema(definitions: &Api<CustomResourceDefinition>, kind: &str, spec: &Value) -> anyhow::Result<()> {
    let at = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    let patch = serde_json::from_value(json!([{"op": "replace", "path": at, "value": spec}]))?;
    definitions.patch(kind, &PatchParams::default(), &Patch::<()>::Json(patch)).await?;
    Ok(())
}

#[tokio::test]
async fn kinds_that_another_controller_owns_are_not_written() -> anyhow::Result<()> {
    let cluster = Cluster::start_with(e2e::outrider::options()?).await?;
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "crdvalidator.antrea.io"}, "webhooks": [],
    });
    cluster.apply(&webhook.to_string()).await?;
    let (operator, _db1) = an_operator_and_db1(&cluster).await?;
    let leads = async || {
        let (_, metrics) = operator.health("/metrics").await?;
        let said = ["outrider_leading 1", r#"outrider_foreign_owner{kind="ExternalEntity"} 1"#];
        Ok::<_, anyhow::Error>(said.iter().all(|line| metrics.contains(line)))
    };
    cluster.until("the operator leads and says who owns the kinds", leads).await?;
    ensure!(operator.health("/readyz").await?.0 == 200, "it stays ready");
    let entities: Api<DynamicObject> = Api::all_with(cluster.client.clone(), &WorldKind::ExternalEntity.api_resource());
    ensure!(entities.list(&ListParams::default()).await?.items.is_empty(), "an entity was written");
    let writes = cluster.audit()?.by(e2e::outrider::USER).writes();
    let shared = writes.only(|e| e.object_ref.as_ref().is_some_and(|o| o.api_group == "crd.antrea.io"));
    ensure!(shared.is_empty(), "{} writes of shared kinds", shared.len());

    // when the other one is gone, the work is done
    cluster.kubectl(&["delete", "validatingwebhookconfiguration", "crdvalidator.antrea.io"]).await?;
    let written = async || Ok::<_, kube::Error>(entities.list(&ListParams::default()).await?.items.len() == 3);
    cluster.until_within(Duration::from_mins(1), "the entities are written", written).await?;
    operator.stop().await
}
