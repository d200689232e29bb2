use super::*;
use crate::wire::{Attach, AttachStage, Facts, Heartbeat, InterfaceReport, PolicyReport};

fn full() -> Full {
    Full {
        head: Heartbeat {
            node: "vms/vm1".parse().unwrap(),
            uid: "u1".into(),
            revision: None,
            digest: "digest".to_owned(),
        },
        policies: vec![],
        interfaces: vec![],
        attach: vec![],
        facts: Facts::default(),
    }
}

fn interface(v4: u32, v6: u32) -> InterfaceReport {
    let v4 = (0..v4).map(|n| IpAddr::V4(n.into()));
    let v6 = (0..v6).map(|n| IpAddr::V6(u128::from(n).into()));
    let name = "eth0".to_owned();
    InterfaceReport { name, mac: String::new(), mtu: 1500, ips: v4.chain(v6).collect(), state: String::new() }
}

fn error(why: &str) -> PolicyReport {
    PolicyReport { id: "p1".into(), generation: 1, outcome: PolicyOutcome::Error(why.to_owned()) }
}

/// What becomes of a version.
fn version(text: &str) -> String {
    let facts = Facts { version: text.to_owned(), ..Facts::default() };
    Full { facts, ..full() }.bounded().facts.version
}

#[test]
fn a_report_within_its_bounds_is_taken_in_as_it_is() {
    let stage = AttachStage::Refused;
    let attach = Attach { interface: "eth0".to_owned(), stage, message: "x".repeat(TEXT) };
    let flow_table = [("Classifier".to_owned(), 7)].into();
    let facts = Facts { version: "é".repeat(NAME / 2), flow_table, ..Facts::default() };
    let policies = vec![error(&"x".repeat(TEXT))];
    let report = Full { policies, interfaces: vec![interface(512, 512); 2], attach: vec![attach], facts, ..full() };
    assert_eq!(report.clone().bounded(), report);
}

#[test]
fn a_long_text_is_cut_between_characters_and_says_so() {
    assert_eq!(version(&"x".repeat(NAME + 1)), "x".repeat(NAME - 3) + "…");
    let cut = version(&"𝄞".repeat(NAME));
    assert_eq!(cut, "𝄞".repeat(63) + "…", "as many as fit");
    assert_eq!(version(&cut), cut, "once is enough");
}

#[test]
fn a_text_is_one_line_and_paints_nothing() {
    assert_eq!(version("v1\n\u{1b}[31m\u{9b}2"), "v1  [31m 2");
}

#[test]
fn every_text_of_a_report_has_a_bound() {
    let long = || "x".repeat(1_000_000);
    let attach = Attach { interface: long(), stage: AttachStage::Refused, message: long() };
    let facts = Facts {
        version: long(),
        ovs_version: long(),
        bridge: long(),
        flow_table: [(long(), 1)].into(),
        ..Facts::default()
    };
    let interface = InterfaceReport { name: long(), mac: long(), state: long(), ..interface(0, 0) };
    let revision = Some(serde_json::from_value(long().into()).unwrap());
    let report = Full {
        head: Heartbeat { digest: long(), revision, ..full().head },
        policies: vec![PolicyReport { id: long().into(), ..error(&long()) }],
        interfaces: vec![interface],
        attach: vec![attach],
        facts,
    };
    let kept = serde_json::to_vec(&report.bounded()).unwrap().len();
    assert!(kept < 7 * NAME + MAC + 4 * TEXT + 1000, "{kept}");
}

#[test]
fn a_long_list_ends_after_the_first_that_fit() {
    let attach = |n: usize| Attach { interface: n.to_string(), stage: AttachStage::Attached, message: String::new() };
    let policies = (0..=POLICIES).map(|n| PolicyReport { id: n.to_string().into(), ..error("") });
    let flow_table = (0..1000).map(|n| (format!("{n:04}"), 1)).collect();
    let report = Full {
        policies: policies.collect(),
        interfaces: vec![interface(1, 0); LIST + 1],
        attach: (0..1000).map(attach).collect(),
        facts: Facts { flow_table, ..Facts::default() },
        ..full()
    };
    let bounded = report.bounded();
    assert_eq!(bounded.policies.last().unwrap().id, (POLICIES - 1).to_string().into());
    assert_eq!(bounded.interfaces.len(), LIST);
    assert_eq!(bounded.attach.last().unwrap().interface, "255");
    assert_eq!(bounded.facts.flow_table.last_key_value().unwrap().0, "0255");
}

/// How many addresses of each family every interface keeps.
fn kept<const N: usize>(interfaces: [(u32, u32); N]) -> [(usize, usize); N] {
    let interfaces = interfaces.map(|(v4, v6)| interface(v4, v6)).to_vec();
    let bounded = Full { interfaces, ..full() }.bounded().interfaces;
    let v4 = |i: &InterfaceReport| i.ips.iter().filter(|ip| ip.is_ipv4()).count();
    let both: Vec<_> = bounded.iter().map(|i| (v4(i), i.ips.len() - v4(i))).collect();
    both.try_into().unwrap()
}

#[test]
fn no_family_crowds_out_the_other() {
    assert_eq!(kept([(2000, 0)]), [(1024, 0)]);
    assert_eq!(kept([(0, 2000)]), [(0, 1024)]);
    assert_eq!(kept([(2000, 3)]), [(1021, 3)]);
    assert_eq!(kept([(3, 2000)]), [(3, 1021)]);
    assert_eq!(kept([(2000, 2000)]), [(512, 512)]);
}

#[test]
fn an_interface_keeps_its_few_addresses_however_many_others_have() {
    assert_eq!(kept([(5000, 0), (5000, 0), (5000, 0), (1, 1)]), [(512, 0), (512, 0), (512, 0), (1, 1)]);
}

#[test]
fn a_digest_that_was_cut_is_one_that_no_heartbeat_repeats() {
    let digest = "x".repeat(NAME + 1);
    let head = Heartbeat { digest, ..full().head };
    let Report::Heartbeat(heartbeat) = Report::Heartbeat(head.clone()).bounded() else { unreachable!("it is one") };
    assert_ne!(Full { head, ..full() }.bounded().head.digest, heartbeat.digest);
}
