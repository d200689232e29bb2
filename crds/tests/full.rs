//! The objects in `data/full` use every field of their kind: they are legal, survive Rust, and leave no property out.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs;
use std::path::PathBuf;

use crds::agent_info::AntreaAgentInfo;
use crds::binding::ExternalNodeBinding;
use crds::check::{self, Violation};
use crds::external_entity::ExternalEntity;
use crds::external_node::ExternalNode;
use crds::policy::NetworkPolicy;
use crds::tier::Tier;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

fn documents<T: DeserializeOwned>(kind: &str) -> Vec<T> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/full");
    let text = fs::read_to_string(folder.join(format!("{}.yaml", kind.to_lowercase()))).expect("the file of the kind");
    serde_saphyr::from_multiple(&text).expect("the file is YAML of the kind")
}

/// What Rust makes of each object says what its YAML says.
fn survives<T: DeserializeOwned + Serialize + Debug>(kind: &str, check: fn(&T) -> Vec<Violation>) {
    for (object, text) in documents::<T>(kind).iter().zip(documents::<Value>(kind)) {
        assert_eq!(serde_json::to_value(object).expect("an object is JSON"), text, "{kind}");
        assert_eq!(check(object), [], "{kind}");
    }
}

#[test]
fn the_full_objects_are_legal_and_survive_rust() {
    let nothing = |_: &_| Vec::new();
    survives::<AntreaAgentInfo>("AntreaAgentInfo", nothing);
    survives::<ExternalEntity>("ExternalEntity", |_| Vec::new());
    survives::<ExternalNode>("ExternalNode", check::external_node);
    survives::<ExternalNodeBinding>("ExternalNodeBinding", check::binding);
    survives::<NetworkPolicy>("NetworkPolicy", check::policy);
    survives::<Tier>("Tier", check::tier);
}

#[test]
fn the_full_objects_leave_no_property_out() {
    for definition in crds::definitions::all() {
        let definition = serde_json::to_value(definition).expect("a definition is JSON");
        let kind = definition["spec"]["names"]["kind"].as_str().expect("a kind");
        let mut known = BTreeSet::new();
        properties(&definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"], "", &mut known);
        let mut used = BTreeSet::new();
        for object in documents::<Value>(kind) {
            fields(&object, "", &mut used);
        }
        let left_out: Vec<_> = known.difference(&used).collect();
        assert!(left_out.is_empty(), "{kind}: {left_out:?} are in no object of data/full");
        println!("{kind}: all {} properties are used", known.len());
    }
}

/// The paths of all properties below `schema`.
fn properties(schema: &Value, path: &str, into: &mut BTreeSet<String>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        properties(property, &path, into);
        into.insert(path);
    }
    if schema["items"].is_object() {
        properties(&schema["items"], path, into);
    }
}

/// The paths of all fields of `value`; the elements of a list share theirs.
fn fields(value: &Value, path: &str, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                let path = format!("{path}.{name}");
                fields(member, &path, into);
                into.insert(path);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| fields(item, path, into)),
        _ => {}
    }
}
