use crds::agent_info::{AgentInfo, AntreaAgentInfo};
use serde_json::json;

use super::*;
use crate::testing::{dynamic, world};

#[test]
fn a_change_says_what_it_does_to_which_object() {
    let node = || dynamic(world().node("vms/vm1").json());
    let changes = [
        (Change::Create(WorldKind::ExternalNode, node()), "create ExternalNode vms/vm1"),
        (Change::Replace(WorldKind::ExternalNode, node()), "update ExternalNode vms/vm1"),
        (Change::ReplaceStatus(WorldKind::ExternalNode, node()), "update_status ExternalNode vms/vm1"),
        (Change::Delete(WorldKind::ExternalNode, Box::new(node().metadata)), "delete ExternalNode vms/vm1"),
    ];
    for (change, text) in changes {
        assert_eq!(change.to_string(), text);
        assert_eq!((change.kind(), change.key()), (WorldKind::ExternalNode, Key::new("vms", "vm1")));
    }
}

#[test]
fn an_object_is_what_the_api_server_takes() {
    let json = world().node("vms/vm1").interface("eth0", ["10.0.0.5"]).finalizer("foreign.example.com/a").json();
    let node: crds::external_node::ExternalNode = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(serde_json::to_value(object(WorldKind::ExternalNode, &node)).unwrap(), json);
}

#[test]
fn a_kind_without_spec_keeps_its_fields_at_the_top() {
    let info = AgentInfo { version: Some("v1".to_owned()), ..AgentInfo::default() };
    let metadata = ObjectMeta { name: Some("vm1".to_owned()), ..ObjectMeta::default() };
    let wanted = json!({
        "apiVersion": "crd.antrea.io/v1beta1", "kind": "AntreaAgentInfo", "metadata": {"name": "vm1"}, "version": "v1",
    });
    let object = object(WorldKind::AgentInfo, &AntreaAgentInfo { metadata, spec: info });
    assert_eq!(serde_json::to_value(object).unwrap(), wanted);
}
