use std::net::{Ipv4Addr, Ipv6Addr};

use crds::wire::{Attach, AttachStage, Facts, Full, Heartbeat, InterfaceReport, PolicyOutcome, PolicyReport};
use crds::world::WorldKind;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use super::*;
use crate::change::Change;
use crate::testing::{BEAT, Objects, uid_of, world};
use crate::writer;

/// In bytes: a third of what etcd takes at most.
const KEPT: usize = 512 << 10;

const POLICIES: usize = 20;

/// A machine that should have many addresses, and policies on it.
fn vm1() -> Objects {
    let ips: Vec<_> = (0..1024).map(|n| format!("2001:db8:1111:2222:3333:4444:5555:{:04x}", 0x1000 + n)).collect();
    let interfaces: Vec<_> = (0..8).map(|n| json!({"name": format!("eth{n}"), "ips": ips})).collect();
    let node = world().object(WorldKind::ExternalNode, "vms/vm1", json!({"spec": {"interfaces": interfaces}}));
    let spec = json!({"priority": 5, "appliedTo": [{"externalEntitySelector": {"matchLabels": {"role": "db"}}}],
        "ingress": [{"action": "Allow"}]});
    let node = node.label("role", "db").bound("vms");
    (0..POLICIES).fold(node, |objects, n| objects.policy(&format!("vms/p{n}"), spec.clone()))
}

/// A text of one character, which JSON may need two or six bytes for.
fn text() -> impl Strategy<Value = String> {
    let length = prop_oneof![Just(0), Just(1), 250..260usize, 1020..1030usize, Just(2000)];
    let character = prop::sample::select(vec!["a", "\"", "\\", "\n", "\u{1}", "\u{9b}", "é", "𝄞"]);
    (character, length).prop_map(|(character, length)| character.repeat(length))
}

fn interface() -> impl Strategy<Value = InterfaceReport> {
    let many = || prop_oneof![Just(0u32), Just(1), Just(100), Just(300)];
    (text(), text(), text(), many(), many()).prop_map(|(name, mac, state, v4, v6)| {
        let v4 = (0..v4).map(|n| Ipv4Addr::from(u32::MAX - n).into());
        let v6 = (0..v6).map(|n| Ipv6Addr::from(u128::MAX - u128::from(n)).into());
        InterfaceReport { name, mac, mtu: u32::MAX, ips: v4.chain(v6).collect(), state }
    })
}

fn attach() -> impl Strategy<Value = Attach> {
    let stage = prop::sample::select(vec![AttachStage::Attached, AttachStage::Refused, AttachStage::NoMatch]);
    (text(), text(), stage).prop_map(|(interface, message, stage)| Attach { interface, stage, message })
}

fn facts() -> impl Strategy<Value = Facts> {
    let table = (text(), 0..1000usize).prop_map(|(text, n)| (format!("{n}{text}"), i64::MAX));
    (text(), text(), text(), list(table)).prop_map(|(version, ovs_version, bridge, flow_table)| Facts {
        version,
        ovs_version,
        bridge,
        flow_table: flow_table.into_iter().collect(),
        ovsdb_connected: Some(true),
        openflow_connected: Some(true),
        ..Facts::default()
    })
}

/// Few that differ, or one many times.
fn list<S: Strategy>(of: S) -> impl Strategy<Value = Vec<S::Value>>
where
    S::Value: Clone,
{
    (vec(of, 0..4), prop_oneof![Just(1), Just(300usize)]).prop_map(|(few, times)| {
        let len = few.len() * times;
        few.into_iter().cycle().take(len).collect()
    })
}

fn head(digest: String, revision: Option<Revision>) -> Heartbeat {
    Heartbeat { node: "vms/vm1".parse().unwrap(), uid: uid_of("vms/vm1").into(), revision, digest }
}

fn failed(n: usize, why: String) -> PolicyReport {
    let id = uid_of(&format!("vms/p{n}")).into();
    PolicyReport { id, generation: 1, outcome: PolicyOutcome::Error(why) }
}

fn full() -> impl Strategy<Value = Full> {
    let revision = text().prop_map(|text| serde_json::from_value(text.into()).unwrap());
    let head = (text(), revision).prop_map(|(digest, revision)| head(digest, revision));
    let policies = vec(text(), POLICIES).prop_map(|errors| {
        let failed = errors.into_iter().enumerate().map(|(n, why)| failed(n, why));
        failed.collect::<Vec<_>>()
    });
    (head, policies, list(interface()), list(attach()), facts())
        .prop_map(|(head, policies, interfaces, attach, facts)| Full { head, policies, interfaces, attach, facts })
}

/// What the report has written.
fn written(hub: &Hub, full: Full) -> Vec<Change> {
    hub.take_work();
    hub.report(Report::Full(Box::new(full)));
    let work = hub.take_work();
    hub.with_context(false, |ctx| work.iter().flat_map(|work| writer::plan(ctx, work)).collect())
}

/// How much of the written object is the operator's, in bytes of JSON.
fn weight(change: &Change) -> usize {
    let (Change::Create(_, object) | Change::Replace(_, object) | Change::ReplaceStatus(_, object)) = change else {
        return 0;
    };
    let ours: &Value = object.data.get("status").unwrap_or(&object.data);
    ours.to_string().len()
}

#[test]
fn whatever_a_report_says_what_is_written_of_it_is_small() {
    let hub = vm1().hub(BEAT);
    let config = Config { cases: 64, max_shrink_iters: 64, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&full(), |full| {
        for change in written(&hub, full) {
            prop_assert!(weight(&change) < KEPT, "{}: {} bytes", change, weight(&change));
        }
        Ok(())
    });
    // not the report, which is large
    outcome.map_err(|error| error.to_string().chars().take(200).collect::<String>()).unwrap();
}

#[test]
fn the_largest_report_is_written_small() {
    let quotes = || "\"".repeat(2048);
    let interface = |n: u32| InterfaceReport {
        name: quotes(),
        mac: quotes(),
        mtu: u32::MAX,
        ips: (0..2000).map(|m| Ipv6Addr::from(u128::MAX - u128::from(n * 2000 + m)).into()).collect(),
        state: quotes(),
    };
    let full = Full {
        head: head("digest".to_owned(), None),
        policies: (0..POLICIES).map(|n| failed(n, quotes())).collect(),
        interfaces: (0..300).map(interface).collect(),
        attach: vec![Attach { interface: quotes(), stage: AttachStage::Refused, message: quotes() }; 300],
        facts: Facts { version: quotes(), bridge: quotes(), ..Facts::default() },
    };
    let written = written(&vm1().hub(BEAT), full);
    let status = written.iter().find(|change| matches!(change, Change::ReplaceStatus(WorldKind::ExternalNode, _)));
    let weight = weight(status.unwrap());
    assert!((KEPT / 2..KEPT).contains(&weight), "{weight} bytes");
    assert_eq!(written.len(), 2 + POLICIES, "that, an AgentInfo, and the statuses of the policies");
}
