//! Admission reviews: what is wrong with an object, told to its author before it is stored.
//!
//! ```text
//! AdmissionReview --review (pure)--> allowed | every violation with its field path
//! ```
//!
//! The checks are `crds::check`, which the operator reports by as well: the two can't disagree. The server that carries
//! these reviews, and the rules that need to know who asks or what else there is, come with the chart.

use crds::binding::ExternalNodeBinding;
use crds::check::{self, Violation};
use crds::external_node::ExternalNode;
use crds::policy::NetworkPolicy;
use crds::tier::Tier;
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, Operation};
use serde::de::DeserializeOwned;

/// What an admission review is answered.
///
/// Deletions and kinds that we have no checks for pass. So does an object that is being deleted: its author, or the
/// garbage collector, must be able to take finalizers off whatever it has become.
pub fn review(request: &AdmissionRequest<DynamicObject>) -> AdmissionResponse {
    let response = AdmissionResponse::from(request);
    let (Operation::Create | Operation::Update, Some(object)) = (&request.operation, &request.object) else {
        return response;
    };
    if object.metadata.deletion_timestamp.is_some() {
        return response;
    }
    let violations = match (request.kind.group.as_str(), request.kind.kind.as_str()) {
        ("crd.antrea.io", "ExternalNode") => judge::<ExternalNode>(object, check::external_node),
        ("crd.antrea.io", "NetworkPolicy") => judge::<NetworkPolicy>(object, check::policy),
        ("crd.antrea.io", "Tier") => judge::<Tier>(object, check::tier),
        ("outrider.io", "ExternalNodeBinding") => judge::<ExternalNodeBinding>(object, check::binding),
        _ => return response,
    };
    match violations.as_slice() {
        [] => response,
        violations => response.deny(violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")),
    }
}

fn judge<K: DeserializeOwned>(object: &DynamicObject, check: impl Fn(&K) -> Vec<Violation>) -> Vec<Violation> {
    match serde_json::to_value(object).and_then(serde_json::from_value::<K>) {
        Ok(typed) => check(&typed),
        Err(error) => vec![Violation { path: "spec".to_owned(), value: String::new(), reason: error.to_string() }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn answer(operation: &str, kind: &str, object: &Value) -> AdmissionResponse {
        let group = if kind == "ExternalNodeBinding" { "outrider.io" } else { "crd.antrea.io" };
        let request = json!({
            "uid": "u1", "operation": operation, "userInfo": {},
            "kind": {"group": group, "version": "v1", "kind": kind},
            "resource": {"group": group, "version": "v1", "resource": "any"},
            "name": "x", "object": object, "oldObject": object,
        });
        review(&serde_json::from_value(request).unwrap())
    }

    fn node(ip: &str) -> Value {
        json!({"apiVersion": "crd.antrea.io/v1alpha1", "kind": "ExternalNode", "metadata": {"name": "x", "namespace": "vms"},
            "spec": {"interfaces": [{"name": "eth0", "ips": [ip]}]}})
    }

    #[test]
    fn a_good_object_is_let_through() {
        assert!(answer("CREATE", "ExternalNode", &node("10.0.0.5")).allowed);
    }

    #[test]
    fn a_bad_one_is_refused_with_the_field_the_value_and_the_reason() {
        let refusal = answer("UPDATE", "ExternalNode", &node("127.0.0.1"));
        assert!(!refusal.allowed);
        assert!(
            refusal.result.message.starts_with(r#"spec.interfaces[0].ips[0]: "127.0.0.1": "#),
            "{}",
            refusal.result.message
        );
    }

    #[test]
    fn every_violation_is_named_not_the_first_alone() {
        let mut bad = node("127.0.0.1");
        bad["spec"]["interfaces"][0]["ips"] = json!(["127.0.0.1", "::"]);
        let message = answer("CREATE", "ExternalNode", &bad).result.message;
        assert!(message.contains("ips[0]") && message.contains("ips[1]"), "{message}");
    }

    #[test]
    fn an_object_that_can_not_be_read_is_refused() {
        let mut bad = node("10.0.0.5");
        bad["spec"]["interfaces"] = json!("all");
        assert!(!answer("CREATE", "ExternalNode", &bad).allowed);
    }

    #[test]
    fn deletions_going_objects_and_strangers_pass() {
        assert!(answer("DELETE", "ExternalNode", &node("127.0.0.1")).allowed);
        let mut going = node("127.0.0.1");
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert!(answer("UPDATE", "ExternalNode", &going).allowed);
        assert!(answer("CREATE", "ExternalEntity", &json!({"metadata": {"name": "x"}})).allowed);
    }
}
