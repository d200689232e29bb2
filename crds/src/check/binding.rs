//! What is wrong with an `ExternalNodeBinding`.

use super::{Found, Violation, selector};
use crate::binding::{ExternalNodeBinding, ExternalNodeBindingSpec, Subject, SubjectKind};
use crate::names::is_dns_subdomain;

/// All that is wrong with `binding`.
pub fn binding(binding: &ExternalNodeBinding) -> Vec<Violation> {
    let mut found = Found::default();
    let ExternalNodeBindingSpec { subjects, external_nodes, node_selector } = &binding.spec;
    if subjects.is_empty() {
        found.whole("spec.subjects", "give at least one ServiceAccount, User or Group; without any nobody is bound");
    }
    for (index, subject) in subjects.iter().enumerate() {
        one_subject(&mut found, &format!("spec.subjects[{index}]"), subject);
    }
    match (external_nodes.as_slice(), node_selector) {
        ([], None) => {
            found.whole("spec", "covers no node; give externalNodes (names, or \"*\" for all) or nodeSelector");
        }
        ([], Some(nodes)) => selector(&mut found, "spec.nodeSelector", Some(nodes)),
        (_, None) => {}
        (names, Some(_)) => found.add(
            "spec.externalNodes",
            names.join(","),
            "stands beside nodeSelector; give only one of them, and use two bindings if both are meant",
        ),
    }
    for (index, name) in external_nodes.iter().enumerate().filter(|(_, name)| *name != "*" && !is_dns_subdomain(name)) {
        let reason = "must be the name of an ExternalNode of this namespace, or \"*\" for all of them; \
                      patterns and other namespaces aren't possible here";
        found.add(format!("spec.externalNodes[{index}]"), name, reason);
    }
    found.0
}

fn one_subject(found: &mut Found, path: &str, subject: &Subject) {
    let Subject { kind, name, namespace } = subject;
    if name.is_empty() {
        found.whole(format!("{path}.name"), "is missing; give the name as the API server knows it");
    }
    match (kind, namespace.as_deref().unwrap_or_default()) {
        (SubjectKind::ServiceAccount, "") => {
            found.whole(format!("{path}.namespace"), "is missing; say which namespace the ServiceAccount is in");
        }
        (SubjectKind::ServiceAccount, namespace) => {
            if !is_dns_subdomain(namespace) || namespace.contains('.') || namespace.len() > 63 {
                found.add(format!("{path}.namespace"), namespace, "must be the name of a namespace");
            }
            if !name.is_empty() && !is_dns_subdomain(name) {
                let reason = "must be the bare name of a ServiceAccount, without system:serviceaccount: and namespace";
                found.add(format!("{path}.name"), name, reason);
            }
        }
        (SubjectKind::User | SubjectKind::Group, "") => {}
        (SubjectKind::User | SubjectKind::Group, namespace) => {
            found.add(format!("{path}.namespace"), namespace, "users and groups have none; leave it out");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::paths;
    use super::*;

    fn wrong(spec: &str) -> Vec<Violation> {
        let spec = serde_saphyr::from_str(spec).expect("the test's own YAML");
        binding(&ExternalNodeBinding::new("b", spec))
    }

    #[test]
    fn a_binding_of_someone_to_nodes_of_its_namespace_is_taken() {
        let good = [
            "{subjects: [{kind: ServiceAccount, name: vm1, namespace: vm-ns}], externalNodes: [vm1, vm2.example]}",
            "{subjects: [{kind: User, name: 'CN=agent of vm1'}, {kind: Group, name: 'org:vms'}], externalNodes: ['*']}",
            "{subjects: [{kind: User, name: a}], nodeSelector: {matchLabels: {site: a}}}",
            "{subjects: [{kind: User, name: a}], nodeSelector: {}}",
        ];
        for spec in good {
            assert_eq!(wrong(spec), [], "{spec}");
        }
    }

    #[test]
    fn each_fault_is_named_by_its_field() {
        let bad = [
            ("{subjects: [], externalNodes: [vm1]}", "spec.subjects"),
            ("{subjects: [{kind: User, name: a}]}", "spec"),
            ("{subjects: [{kind: User, name: a}], externalNodes: [vm1], nodeSelector: {}}", "spec.externalNodes"),
            ("{subjects: [{kind: User, name: a}], externalNodes: [vm*]}", "spec.externalNodes[0]"),
            ("{subjects: [{kind: User, name: a}], externalNodes: [ns/vm1]}", "spec.externalNodes[0]"),
            ("{subjects: [{kind: User, name: ''}], externalNodes: [vm1]}", "spec.subjects[0].name"),
            ("{subjects: [{kind: User, name: a, namespace: b}], externalNodes: [vm1]}", "spec.subjects[0].namespace"),
            ("{subjects: [{kind: ServiceAccount, name: a}], externalNodes: [vm1]}", "spec.subjects[0].namespace"),
            (
                "{subjects: [{kind: ServiceAccount, name: 'x:y', namespace: b}], externalNodes: [vm1]}",
                "spec.subjects[0].name",
            ),
            (
                "{subjects: [{kind: User, name: a}], nodeSelector: {matchLabels: {-: a}}}",
                "spec.nodeSelector.matchLabels[\"-\"]",
            ),
        ];
        for (spec, path) in bad {
            assert_eq!(paths(&wrong(spec)), [path], "{spec}");
        }
    }
}
