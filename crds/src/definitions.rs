//! The definitions of our kinds as the API server gets them: what the derives say, made fit for it.
//!
//! ```text
//! derives -> all -> files -> charts/outrider/crds/<plural>.<group>.yaml   (written by `crdgen`)
//! ```

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;
use serde_json::json;

use crate::agent_info::AntreaAgentInfo;
use crate::binding::ExternalNodeBinding;
use crate::external_entity::ExternalEntity;
use crate::external_node::ExternalNode;
use crate::policy::NetworkPolicy;
use crate::tier::Tier;

/// All definitions that Outrider installs, by name.
///
/// Install these and not `ExternalNode::crd()`: a derive can't leave `null` out or say that `spec` may be missing.
pub fn all() -> Vec<CustomResourceDefinition> {
    let mut all = vec![
        AntreaAgentInfo::crd(),
        spec_may_be_missing(ExternalEntity::crd()),
        ExternalNode::crd(),
        ExternalNodeBinding::crd(),
        NetworkPolicy::crd(),
        Tier::crd(),
    ];
    all.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    all.iter_mut().flat_map(schemas).for_each(refine);
    all
}

fn schemas(definition: &mut CustomResourceDefinition) -> impl Iterator<Item = &mut JSONSchemaProps> {
    let schemas = definition.spec.versions.iter_mut().filter_map(|version| version.schema.as_mut());
    schemas.filter_map(|validation| validation.open_api_v3_schema.as_mut())
}

/// An object without `spec` is stored with an empty one, so that readers always find it.
fn spec_may_be_missing(mut definition: CustomResourceDefinition) -> CustomResourceDefinition {
    for schema in schemas(&mut definition) {
        schema.required = None;
        if let Some(spec) = schema.properties.as_mut().and_then(|properties| properties.get_mut("spec")) {
            spec.default = Some(JSON(json!({})));
        }
    }
    definition
}

/// Below `schema`: `null` counts as left out, and formats that the API server doesn't know are left out.
fn refine(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    schema.title = None;
    schema.format.take_if(|format| format.starts_with("uint"));
    let properties = schema.properties.iter_mut().flat_map(|properties| properties.values_mut());
    properties.for_each(refine);
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        refine(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        refine(values);
    }
}

/// The folder of the definitions, from the root of the workspace.
#[cfg(any(test, feature = "crdgen"))]
pub const FOLDER: &str = "charts/outrider/crds";

/// How each file begins: a file that doesn't is not ours to delete.
#[cfg(any(test, feature = "crdgen"))]
pub const HEADER: &str =
    "# Written by crdgen from the types in crds/src. Change those, then run: cargo run -p crds --features crdgen\n";

/// Each definition as a file: its name and its text. The same on every run.
#[cfg(any(test, feature = "crdgen"))]
pub fn files() -> std::collections::BTreeMap<String, String> {
    let file = |definition: CustomResourceDefinition| {
        let name = definition.metadata.name.clone().expect("a derived definition has a name");
        let value = serde_json::to_value(definition).expect("a definition is made of texts, numbers and lists");
        let text = serde_saphyr::to_string(&whole_numbers(value)).expect("YAML has a form for all that JSON has");
        (format!("{name}.yaml"), format!("{HEADER}{text}"))
    };
    all().into_iter().map(file).collect()
}

/// `65535` for `65535.0`, as people write it.
#[cfg(any(test, feature = "crdgen"))]
fn whole_numbers(value: serde_json::Value) -> serde_json::Value {
    use serde_json::{Map, Value};
    match value {
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(k, v)| (k, whole_numbers(v))).collect::<Map<_, _>>())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(whole_numbers).collect()),
        Value::Number(number) => number
            .as_f64()
            .filter(|float| number.is_f64() && float.fract() == 0.0)
            .and_then(|float| format!("{float:.0}").parse::<i64>().ok())
            .map_or(Value::Number(number), Value::from),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn the_chart_has_the_definitions_that_the_types_say() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(FOLDER);
        for (name, text) in files() {
            let stored = fs::read_to_string(folder.join(&name)).unwrap_or_default();
            assert!(stored == text, "{FOLDER}/{name} differs from the types: cargo run -p crds --features crdgen");
        }
        let stored = fs::read_dir(folder).expect("the folder of the definitions").map(|entry| entry.expect("an entry"));
        let unknown: Vec<_> = stored
            .map(|entry| entry.file_name())
            .filter(|name| !files().contains_key(&*name.to_string_lossy()))
            .collect();
        assert!(unknown.is_empty(), "{unknown:?} in {FOLDER} come from no type");
    }

    #[test]
    fn a_file_says_what_its_definition_says() {
        let files = files();
        for definition in all() {
            let name = format!("{}.yaml", definition.metadata.name.as_deref().expect("a name"));
            let read: CustomResourceDefinition = serde_saphyr::from_str(&files[&name]).expect("the file is YAML");
            assert_eq!(read, definition, "{name}");
        }
    }

    #[test]
    fn an_entity_without_spec_reads_as_an_empty_one() {
        let all = all();
        let entity = all.iter().find(|d| d.spec.names.kind == "ExternalEntity").expect("the kind");
        let schema =
            entity.spec.versions[0].schema.as_ref().and_then(|s| s.open_api_v3_schema.as_ref()).expect("a schema");
        assert_eq!(schema.required, None);
        let spec = &schema.properties.as_ref().expect("properties")["spec"];
        assert_eq!(spec.default, Some(JSON(json!({}))));
    }
}
