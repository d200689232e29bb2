//! What is wrong with a `NetworkPolicy`.
//!
//! What can be said but not enforced (IGMP, layer 7, other clusters) is no fault here: the policy's condition names such a rule.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{Found, Violation, is_label_text, parse_cidr, parse_ip, selector, unique};
use crate::policy::{
    Action, AppliedTo, Direction, IpBlock, NetworkPolicy, NetworkPolicySpec, NetworkProtocol, Peer, PolicyPort,
    RuleRef, ServiceReference,
};
use crate::tier::BASELINE;

/// All that is wrong with `policy`.
pub fn policy(policy: &NetworkPolicy) -> Vec<Violation> {
    let mut found = Found::default();
    let spec = &policy.spec;
    if !(1.0..=10_000.0).contains(&spec.priority) {
        found.add("spec.priority", spec.priority, "must be a number from 1 to 10000");
    }
    targets(&mut found, spec);
    spec.rules().for_each(|rule| one_rule(&mut found, spec, rule));
    let named = spec.rules().filter_map(|rule| {
        let name = rule.rule.name.clone().filter(|name| !name.is_empty())?;
        Some((format!("{}.name", rule.path()), name.clone(), name))
    });
    unique(&mut found, named, "name");
    found.0
}

/// Either the policy says what it is for, or each of its rules does.
fn targets(found: &mut Found, spec: &NetworkPolicySpec) {
    let with = spec.rules().filter(|rule| !rule.applied_to.is_empty()).count();
    let without = spec.rules().count() - with;
    match (spec.applied_to.is_empty(), with, without) {
        (true, 0, _) => {
            found.whole("spec.appliedTo", "is missing, so the policy is for nothing; give it here or on each rule");
        }
        (true, _, 1..) => {
            for rule in spec.rules().filter(|rule| rule.applied_to.is_empty()) {
                let reason = "is missing, but other rules have it; give it on each rule, or only in spec.appliedTo";
                found.whole(format!("{}.appliedTo", rule.path()), reason);
            }
        }
        (false, 1.., _) => {
            for rule in spec.rules().filter(|rule| !rule.applied_to.is_empty()) {
                let reason = "stands beside spec.appliedTo; give it in one of the two places only";
                found.whole(format!("{}.appliedTo", rule.path()), reason);
            }
        }
        _ => {}
    }
    applied_to(found, "spec.appliedTo", &spec.applied_to);
}

fn applied_to(found: &mut Found, path: &str, items: &[AppliedTo]) {
    for (index, item) in items.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let AppliedTo { pod_selector, external_entity_selector, group } = item;
        let given = [
            ("podSelector", pod_selector.is_some()),
            ("externalEntitySelector", external_entity_selector.is_some()),
            ("group", group.is_some()),
        ];
        match chosen(&given).as_slice() {
            [] => found.whole(&path, "selects nothing; give podSelector, externalEntitySelector or group"),
            [_] => {}
            many => {
                found.add(&path, many.join(","), "stand together, but each selects on its own; give one item to each");
            }
        }
        for (field, labels) in [("podSelector", pod_selector), ("externalEntitySelector", external_entity_selector)] {
            selector(found, &format!("{path}.{field}"), labels.as_ref());
        }
        group_name(found, &path, group.as_deref());
    }
}

fn chosen<'a>(given: &[(&'a str, bool)]) -> Vec<&'a str> {
    given.iter().filter(|(_, given)| *given).map(|(field, _)| *field).collect()
}

fn group_name(found: &mut Found, path: &str, group: Option<&str>) {
    if group == Some("") {
        found.whole(format!("{path}.group"), "is empty; give the name of a Group of this namespace");
    }
}

fn one_rule(found: &mut Found, spec: &NetworkPolicySpec, rule: RuleRef<'_>) {
    let path = rule.path();
    if rule.action == Action::Pass && spec.tier() == BASELINE {
        let reason = "the baseline tier is looked at last, so there is nowhere to pass to; use Allow, Drop or Reject";
        found.add(format!("{path}.action"), Action::Pass, reason);
    }
    if let Some(label) = rule.log_label.as_deref().filter(|label| !is_label_text(label)) {
        let reason = "must be up to 63 letters, digits, '-', '_' or '.', alphanumeric at both ends";
        found.add(format!("{path}.logLabel"), label, reason);
    }
    applied_to(found, &format!("{path}.appliedTo"), &rule.applied_to);
    wrong_side(found, rule);
    for (index, peer) in rule.peers().iter().enumerate() {
        one_peer(found, &format!("{}[{index}]", rule.peers_path()), peer, rule.direction);
    }
    for (index, port) in rule.ports.iter().enumerate() {
        one_port(found, &format!("{path}.ports[{index}]"), port);
    }
    for (index, protocol) in rule.protocols.iter().enumerate() {
        one_protocol(found, &format!("{path}.protocols[{index}]"), protocol, rule.direction);
    }
    services(found, rule);
    layer_seven(found, rule);
}

fn wrong_side(found: &mut Found, rule: RuleRef<'_>) {
    let path = rule.path();
    match rule.direction {
        Direction::Ingress if !rule.to.is_empty() => {
            found.whole(
                format!("{path}.to"),
                "an ingress rule is for what comes in; use from, or move the rule to egress",
            );
        }
        Direction::Ingress if !rule.to_services.is_empty() => {
            found.whole(format!("{path}.toServices"), "an ingress rule goes to no Service; move the rule to egress");
        }
        Direction::Egress if !rule.from.is_empty() => {
            found.whole(
                format!("{path}.from"),
                "an egress rule is for what goes out; use to, or move the rule to ingress",
            );
        }
        _ => {}
    }
}

fn one_peer(found: &mut Found, path: &str, peer: &Peer, direction: Direction) {
    let Peer {
        pod_selector,
        namespace_selector,
        external_entity_selector,
        ip_block,
        node_selector,
        group,
        fqdn,
        scope,
    } = peer;
    let given = [
        ("podSelector", pod_selector.is_some()),
        ("externalEntitySelector", external_entity_selector.is_some()),
        ("ipBlock", ip_block.is_some()),
        ("nodeSelector", node_selector.is_some()),
        ("group", group.is_some()),
        ("fqdn", fqdn.is_some()),
    ];
    match (chosen(&given).as_slice(), namespace_selector) {
        ([], None) => {
            let kinds = match direction {
                Direction::Ingress => {
                    "podSelector, externalEntitySelector, namespaceSelector, ipBlock, nodeSelector or group"
                }
                Direction::Egress => {
                    "podSelector, externalEntitySelector, namespaceSelector, ipBlock, nodeSelector, group or fqdn"
                }
            };
            found.whole(path, format!("says nothing; give {kinds}, or leave the whole list out to mean everywhere"));
        }
        ([_], None) | ([] | ["podSelector" | "externalEntitySelector"], Some(_)) => {}
        ([field], Some(_)) => {
            let reason =
                format!("stands beside {field}, which knows no namespaces; use it with a selector of Pods or entities");
            found.whole(format!("{path}.namespaceSelector"), reason);
        }
        (many, _) => {
            let reason =
                "stand together, but each is a peer of its own; give one item to each, any of which then matches";
            found.add(path, many.join(","), reason);
        }
    }
    let selectors = [
        ("podSelector", pod_selector),
        ("namespaceSelector", namespace_selector),
        ("externalEntitySelector", external_entity_selector),
        ("nodeSelector", node_selector),
    ];
    for (field, labels) in selectors {
        selector(found, &format!("{path}.{field}"), labels.as_ref());
    }
    if let Some(block) = ip_block {
        one_block(found, &format!("{path}.ipBlock"), block);
    }
    group_name(found, path, group.as_deref());
    if let Some(name) = fqdn {
        one_fqdn(found, &format!("{path}.fqdn"), name, direction);
    }
    if let Some(scope) = scope {
        match (direction, scope.as_str()) {
            (Direction::Egress, _) => {
                found.add(format!("{path}.scope"), scope, "is for peers of ingress rules; leave it out");
            }
            (_, "Cluster" | "ClusterSet") => {}
            _ => found.add(format!("{path}.scope"), scope, "must be Cluster or ClusterSet"),
        }
    }
}

fn one_block(found: &mut Found, path: &str, block: &IpBlock) {
    let IpBlock { cidr, except } = block;
    let Some(cidr) = cidr else {
        found.whole(format!("{path}.cidr"), "is missing; say which network is meant, as 10.0.0.0/16");
        return;
    };
    let outer = parse_cidr(cidr);
    if let Err(reason) = outer {
        found.add(format!("{path}.cidr"), cidr, reason);
    }
    for (index, text) in except.iter().enumerate() {
        let path = format!("{path}.except[{index}]");
        match (outer, parse_cidr(text)) {
            (_, Err(reason)) => found.add(path, text, reason),
            (Ok(outer), Ok(inner)) if !outer.trunc().contains(&inner.trunc()) => {
                found.add(path, text, format!("lies outside of {cidr}; only parts of it can be left out"));
            }
            (Ok(outer), Ok(inner)) if outer.trunc() == inner.trunc() => {
                found.add(
                    path,
                    text,
                    format!("is all of {cidr}, so nothing is left; take the whole ipBlock out instead"),
                );
            }
            _ => {}
        }
    }
}

fn one_fqdn(found: &mut Found, path: &str, name: &str, direction: Direction) {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'*');
    if direction == Direction::Ingress {
        found.add(path, name, "is for peers of egress rules: who comes in has an address, but no name");
    } else if name.is_empty() || !name.bytes().all(plain) {
        found.add(
            path,
            name,
            "must be a name of the DNS: letters, digits, '-', '.' and '*' for any text, as *.example.com",
        );
    }
}

fn one_port(found: &mut Found, path: &str, port: &PolicyPort) {
    let PolicyPort { protocol: _, port, end_port, source_port, source_end_port } = port;
    let first = match port {
        None => None,
        Some(IntOrString::Int(number)) => Some(*number),
        Some(IntOrString::String(name)) => {
            if name.is_empty() || name.parse::<u32>().is_ok() {
                let reason = "is a text, so it means a port of that name; for a number leave the quotes out";
                found.add(format!("{path}.port"), format!("{name:?}"), reason);
            } else if let Some(end) = end_port {
                found.add(
                    format!("{path}.endPort"),
                    end,
                    format!("a range can't start at a name ({name}); give port as a number"),
                );
            }
            None
        }
    };
    let missing = port.is_none();
    range(found, path, ("port", first), ("endPort", *end_port), missing);
    range(found, path, ("sourcePort", *source_port), ("sourceEndPort", *source_end_port), source_port.is_none());
}

fn range(found: &mut Found, path: &str, first: (&str, Option<i32>), last: (&str, Option<i32>), missing: bool) {
    for (field, number) in [first, last] {
        found.number(&format!("{path}.{field}"), number, 0..=65535);
    }
    match (first, last) {
        ((start, _), (field, Some(last))) if missing => {
            found.add(format!("{path}.{field}"), last, format!("ends a range that doesn't start; give {start} too"));
        }
        ((start, Some(first)), (field, Some(last))) if last < first => {
            found.add(
                format!("{path}.{field}"),
                last,
                format!("is below {start}, {first}; a range goes from low to high"),
            );
        }
        _ => {}
    }
}

fn one_protocol(found: &mut Found, path: &str, protocol: &NetworkProtocol, direction: Direction) {
    let NetworkProtocol { icmp, igmp } = protocol;
    if icmp.is_some() == igmp.is_some() {
        found.whole(path, "must have exactly one of icmp and igmp; give one item to each");
    }
    if let Some(icmp) = icmp {
        for (field, number) in [("icmpType", icmp.icmp_type), ("icmpCode", icmp.icmp_code)] {
            found.number(&format!("{path}.icmp.{field}"), number, 0..=255);
        }
        if let (None, Some(code)) = (icmp.icmp_type, icmp.icmp_code) {
            found.add(
                format!("{path}.icmp.icmpCode"),
                code,
                "a code means something only within a type; give icmpType too",
            );
        }
    }
    let Some(igmp) = igmp else { return };
    let (known, names): (&[i32], _) = match direction {
        Direction::Ingress => (&[17], "17 (query)"),
        Direction::Egress => (&[18, 22, 34], "18, 22 or 34 (reports)"),
    };
    if let Some(number) = igmp.igmp_type.filter(|number| !known.contains(number)) {
        found.add(format!("{path}.igmp.igmpType"), number, format!("must be {names} in this direction"));
    }
    if let Some(address) = &igmp.group_address
        && let Err(reason) = parse_ip(address)
    {
        found.add(format!("{path}.igmp.groupAddress"), address, reason);
    }
}

fn services(found: &mut Found, rule: RuleRef<'_>) {
    if rule.direction == Direction::Ingress || rule.to_services.is_empty() {
        return;
    }
    let path = format!("{}.toServices", rule.path());
    let others =
        [("to", !rule.to.is_empty()), ("ports", !rule.ports.is_empty()), ("protocols", !rule.protocols.is_empty())];
    let others = chosen(&others);
    if !others.is_empty() {
        let reason =
            format!("the Services say peers and ports already; move {} to a rule of their own", others.join(" and "));
        found.whole(&path, reason);
    }
    for (index, ServiceReference { name, .. }) in rule.to_services.iter().enumerate().filter(|(_, s)| s.name.is_empty())
    {
        found.add(format!("{path}[{index}].name"), name, "is missing; give the name of a Service");
    }
}

fn layer_seven(found: &mut Found, rule: RuleRef<'_>) {
    let path = format!("{}.l7Protocols", rule.path());
    if !rule.l7_protocols.is_empty() && rule.action != Action::Allow {
        found.add(&path, rule.action, "l7Protocols say what is let through, so the action must be Allow");
    }
    for (index, one) in rule.l7_protocols.iter().enumerate() {
        if one.http.is_some() == one.tls.is_some() {
            found.whole(format!("{path}[{index}]"), "must have exactly one of http and tls; give one item to each");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{paths, said};
    use super::*;

    fn wrong(spec: &str) -> Vec<Violation> {
        let spec = serde_saphyr::from_str(spec).expect("the test's own YAML");
        policy(&NetworkPolicy::new("p", spec))
    }

    /// A policy for one entity with this ingress or egress rule.
    fn with(direction: &str, rule: &str) -> Vec<Violation> {
        wrong(&format!("{{priority: 5, appliedTo: [{{externalEntitySelector: {{}}}}], {direction}: [{rule}]}}"))
    }

    #[test]
    fn a_policy_that_means_something_is_taken() {
        let good = [
            "{priority: 1, appliedTo: [{group: g}]}",
            "{priority: 10000, tier: baseline, appliedTo: [{podSelector: {}}, {externalEntitySelector: {}}]}",
            "{priority: 1.5, ingress: [{action: Drop, appliedTo: [{externalEntitySelector: {}}]}]}",
            "{priority: 5, tier: ours, enforcement: Audit, appliedTo: [{group: g}], egress: [{action: Pass, name: a}]}",
        ];
        for spec in good {
            assert_eq!(said(&wrong(spec)), Vec::<String>::new(), "{spec}");
        }
    }

    #[test]
    fn a_rule_that_means_something_is_taken() {
        let good = [
            ("ingress", "{action: Allow, from: [{podSelector: {}, namespaceSelector: {}}, {namespaceSelector: {}}]}"),
            ("ingress", "{action: Allow, from: [{externalEntitySelector: {}, namespaceSelector: {}, scope: Cluster}]}"),
            ("ingress", "{action: Drop, from: [{ipBlock: {cidr: 10.0.0.1/8, except: [10.1.0.0/16, 10.2.0.1/32]}}]}"),
            (
                "ingress",
                "{action: Allow, ports: [{port: 80}, {port: http}, {port: 1, endPort: 65535}, {protocol: UDP}, {}]}",
            ),
            ("ingress", "{action: Allow, ports: [{sourcePort: 0, sourceEndPort: 65535}, {port: 53, sourcePort: 53}]}"),
            (
                "ingress",
                "{action: Reject, protocols: [{icmp: {}}, {icmp: {icmpType: 8, icmpCode: 0}}, {igmp: {igmpType: 17}}]}",
            ),
            ("egress", "{action: Allow, to: [{fqdn: '*.example.com'}, {nodeSelector: {}}, {group: g}]}"),
            ("egress", "{action: Allow, toServices: [{name: db, namespace: x}]}"),
            ("egress", "{action: Allow, l7Protocols: [{http: {method: GET}}, {tls: {sni: a.example}}]}"),
            ("egress", "{action: Drop, enforcement: Audit, enableLogging: true, logLabel: to-the-db}"),
        ];
        for (direction, rule) in good {
            assert_eq!(said(&with(direction, rule)), Vec::<String>::new(), "{direction}: {rule}");
        }
    }

    #[test]
    fn what_a_policy_is_for_is_said_in_one_place() {
        let bad: [(&str, &[&str]); 6] = [
            ("{priority: 5}", &["spec.appliedTo"]),
            ("{priority: 5, ingress: [{action: Drop}]}", &["spec.appliedTo"]),
            (
                "{priority: 5, ingress: [{action: Drop, appliedTo: [{group: g}]}], egress: [{action: Drop}]}",
                &["spec.egress[0].appliedTo"],
            ),
            (
                "{priority: 5, appliedTo: [{group: g}], ingress: [{action: Drop, appliedTo: [{group: g}]}]}",
                &["spec.ingress[0].appliedTo"],
            ),
            ("{priority: 5, appliedTo: [{}, {group: ''}]}", &["spec.appliedTo[0]", "spec.appliedTo[1].group"]),
            (
                "{priority: 5, appliedTo: [{podSelector: {}, externalEntitySelector: {matchLabels: {a: '-'}}}]}",
                &["spec.appliedTo[0]", "spec.appliedTo[0].externalEntitySelector.matchLabels[\"a\"]"],
            ),
        ];
        for (spec, wanted) in bad {
            assert_eq!(paths(&wrong(spec)), wanted, "{spec}");
        }
    }

    #[test]
    fn each_fault_of_a_rule_is_named_by_its_field() {
        let bad = [
            ("ingress", "{action: Drop, logLabel: a b}", "logLabel"),
            ("ingress", "{action: Drop, to: [{group: g}]}", "to"),
            ("egress", "{action: Drop, from: [{group: g}]}", "from"),
            ("ingress", "{action: Drop, toServices: [{name: a}]}", "toServices"),
            ("ingress", "{action: Drop, from: [{}]}", "from[0]"),
            ("ingress", "{action: Drop, from: [{scope: Cluster}]}", "from[0]"),
            ("ingress", "{action: Drop, from: [{podSelector: {}, externalEntitySelector: {}}]}", "from[0]"),
            ("ingress", "{action: Drop, from: [{ipBlock: {cidr: 10.0.0.0/8}, group: g}]}", "from[0]"),
            ("ingress", "{action: Drop, from: [{group: g, namespaceSelector: {}}]}", "from[0].namespaceSelector"),
            ("ingress", "{action: Drop, from: [{ipBlock: {}}]}", "from[0].ipBlock.cidr"),
            ("ingress", "{action: Drop, from: [{ipBlock: {cidr: 10.0.0.0}}]}", "from[0].ipBlock.cidr"),
            (
                "ingress",
                "{action: Drop, from: [{ipBlock: {cidr: 10.0.0.0/8, except: [x]}}]}",
                "from[0].ipBlock.except[0]",
            ),
            (
                "ingress",
                "{action: Drop, from: [{ipBlock: {cidr: 10.0.0.0/8, except: ['::/0']}}]}",
                "from[0].ipBlock.except[0]",
            ),
            (
                "ingress",
                "{action: Drop, from: [{ipBlock: {cidr: 10.0.0.0/8, except: [0.0.0.0/0]}}]}",
                "from[0].ipBlock.except[0]",
            ),
            (
                "ingress",
                "{action: Drop, from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.1.1/8]}}]}",
                "from[0].ipBlock.except[0]",
            ),
            ("ingress", "{action: Drop, from: [{fqdn: a.example}]}", "from[0].fqdn"),
            ("egress", "{action: Drop, to: [{fqdn: 'a_b.example'}]}", "to[0].fqdn"),
            ("egress", "{action: Drop, to: [{podSelector: {}, scope: Cluster}]}", "to[0].scope"),
            ("ingress", "{action: Drop, ports: [{port: 90, endPort: 80}]}", "ports[0].endPort"),
            ("ingress", "{action: Drop, ports: [{endPort: 80}]}", "ports[0].endPort"),
            ("ingress", "{action: Drop, ports: [{port: http, endPort: 80}]}", "ports[0].endPort"),
            ("ingress", "{action: Drop, ports: [{port: '80'}]}", "ports[0].port"),
            ("ingress", "{action: Drop, ports: [{port: 65536}]}", "ports[0].port"),
            ("ingress", "{action: Drop, ports: [{sourcePort: 9, sourceEndPort: 8}]}", "ports[0].sourceEndPort"),
            ("ingress", "{action: Drop, ports: [{sourceEndPort: 8}]}", "ports[0].sourceEndPort"),
            ("ingress", "{action: Drop, protocols: [{}]}", "protocols[0]"),
            ("ingress", "{action: Drop, protocols: [{icmp: {icmpType: 256}}]}", "protocols[0].icmp.icmpType"),
            ("ingress", "{action: Drop, protocols: [{icmp: {icmpCode: 1}}]}", "protocols[0].icmp.icmpCode"),
            ("ingress", "{action: Drop, protocols: [{igmp: {igmpType: 18}}]}", "protocols[0].igmp.igmpType"),
            ("egress", "{action: Drop, protocols: [{igmp: {groupAddress: x}}]}", "protocols[0].igmp.groupAddress"),
            ("egress", "{action: Drop, toServices: [{name: a}], ports: [{port: 80}]}", "toServices"),
            ("egress", "{action: Drop, toServices: [{name: ''}]}", "toServices[0].name"),
            ("egress", "{action: Drop, l7Protocols: [{http: {}}]}", "l7Protocols"),
            ("egress", "{action: Allow, l7Protocols: [{}]}", "l7Protocols[0]"),
        ];
        for (direction, rule, field) in bad {
            let wanted = format!("spec.{direction}[0].{field}");
            assert_eq!(paths(&with(direction, rule)), [wanted.as_str()], "{direction}: {rule}");
        }
    }

    #[test]
    fn a_rule_may_not_pass_from_the_last_tier_nor_share_a_name() {
        let spec = "{priority: 0, tier: baseline, appliedTo: [{group: g}], ingress: [{action: Pass, name: a}], \
                    egress: [{action: Drop, name: a}]}";
        let wanted = [
            "spec.priority: \"0\": must be a number from 1 to 10000",
            "spec.ingress[0].action: \"Pass\": the baseline tier is looked at last, so there is nowhere to pass to; use Allow, \
             Drop or Reject",
            "spec.egress[0].name: \"a\": spec.ingress[0].name has the same name; each must be unique here",
        ];
        assert_eq!(said(&wrong(spec)), wanted);
    }
}
