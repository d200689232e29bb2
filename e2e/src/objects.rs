//! Objects given as YAML, of any kind the API server serves.

use std::time::Duration;

use anyhow::Context;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::{ApiResource, Scope, pinned_kind};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use crate::until::until;

/// Applies the objects of a text in its order, and waits for what must be there before the next one.
pub(crate) async fn apply(client: &Client, yaml: &str, limit: Duration) -> anyhow::Result<Vec<DynamicObject>> {
    let mut applied = Vec::new();
    for document in documents(yaml)? {
        let api = api(client, &document).await?;
        let params = PatchParams::apply("e2e").force();
        let object = api.patch(&document.name_any(), &params, &Patch::Apply(&document)).await;
        let object = object.with_context(|| format!("failed to apply {}", title(&document)))?;
        if object.types.as_ref().is_some_and(|types| types.kind == "CustomResourceDefinition") {
            served(client, object.clone().try_parse()?, limit).await?;
        }
        applied.push(object);
    }
    Ok(applied)
}

/// Waits until every version of a definition can be listed: `Established` alone comes a moment too early.
async fn served(client: &Client, definition: CustomResourceDefinition, limit: Duration) -> anyhow::Result<()> {
    let spec = &definition.spec;
    for version in spec.versions.iter().filter(|version| version.served) {
        let kind = GroupVersionKind::gvk(&spec.group, &version.name, &spec.names.kind);
        let resource = ApiResource::from_gvk_with_plural(&kind, &spec.names.plural);
        let objects: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let what = format!("{} {} are served", resource.api_version, spec.names.plural);
        let look = async || {
            objects.list(&ListParams::default().limit(1)).await?;
            pinned_kind(client, &kind).await.map(|_| true)
        };
        until(&what, limit, || None, look).await?;
    }
    Ok(())
}

pub(crate) fn documents(yaml: &str) -> anyhow::Result<Vec<DynamicObject>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).context("this is not YAML")?;
    let objects = documents.into_iter().map(serde_json::from_value);
    objects.collect::<Result<_, _>>().context("a document is not a Kubernetes object")
}

pub(crate) async fn api(client: &Client, object: &DynamicObject) -> anyhow::Result<Api<DynamicObject>> {
    let types = object.types.as_ref().with_context(|| format!("{} has no kind", object.name_any()))?;
    let kind = GroupVersionKind::try_from(types)?;
    let (resource, capabilities) =
        pinned_kind(client, &kind).await.with_context(|| format!("failed to find the kind of {}", title(object)))?;
    Ok(match capabilities.scope {
        Scope::Cluster => Api::all_with(client.clone(), &resource),
        Scope::Namespaced => {
            Api::namespaced_with(client.clone(), object.namespace().as_deref().unwrap_or("default"), &resource)
        }
    })
}

pub(crate) fn title(object: &DynamicObject) -> String {
    let kind = object.types.as_ref().map_or("?", |types| &types.kind);
    let namespace = object.namespace().map(|namespace| namespace + "/").unwrap_or_default();
    format!("{kind} {namespace}{}", object.name_any())
}

/// An object as people read it, without the bookkeeping of field managers.
pub(crate) fn yaml_of<K: serde::Serialize>(object: &K) -> String {
    let readable = || -> anyhow::Result<String> {
        let mut value = serde_json::to_value(object)?;
        if let Some(Value::Object(metadata)) = value.get_mut("metadata") {
            metadata.remove("managedFields");
        }
        Ok(serde_saphyr::to_string(&value)?)
    };
    readable().unwrap_or_else(|error| format!("(cannot be shown: {error:#})"))
}
