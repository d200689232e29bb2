//! The laws of views and frames, over random views and through real bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use super::*;
use crate::names::GroupKey;

fn member() -> impl Strategy<Value = Member> {
    let ip = prop_oneof![
        (0u8..4).prop_map(|n| format!("10.0.0.{n}").parse().unwrap()),
        (0u8..4).prop_map(|n| format!("fd00::{n}").parse().unwrap()),
    ];
    let port =
        (0u16..3).prop_map(|n| MemberPort { name: format!("p{n}").into(), protocol: Protocol::Tcp, port: 80 + n });
    (prop::collection::btree_set(ip, 0..3), prop::collection::btree_set(port, 0..2))
        .prop_map(|(ips, ports)| Member { ips, ports })
}

fn group() -> impl Strategy<Value = Group> {
    let reference = (0u8..6).prop_map(|n| MemberRef {
        kind: "ExternalEntity".into(),
        namespace: "vms".into(),
        name: format!("e{n}").into(),
    });
    prop::collection::btree_map(reference, member().prop_map(Arc::new), 0..6).prop_map(|members| Group { members })
}

fn service() -> impl Strategy<Value = Service> {
    let range = (1u16..5, 0u16..3).prop_map(|(first, more)| PortRange { first, last: first + more });
    let port = prop_oneof![range.clone().prop_map(Port::Range), Just(Port::Named { name: "https".into() })];
    let transport = (prop::option::of(port), prop::option::of(range)).prop_map(|(port, src)| Transport { port, src });
    prop_oneof![
        transport.clone().prop_map(Service::Tcp),
        transport.clone().prop_map(Service::Udp),
        transport.prop_map(Service::Sctp),
        (prop::option::of(0u8..9), prop::option::of(0u8..9))
            .prop_map(|(kind, code)| Service::Icmp(Icmp { kind, code })),
    ]
}

fn group_key(n: u8) -> GroupKey {
    GroupKey::of(&format!("g{n}"))
}

fn peers() -> impl Strategy<Value = Peers> {
    let cidr = (0u8..3, prop::bool::ANY).prop_map(|(n, except)| Cidr {
        cidr: format!("10.{n}.0.0/16").parse().unwrap(),
        except: except.then(|| format!("10.{n}.1.0/24").parse().unwrap()).into_iter().collect(),
    });
    prop_oneof![
        Just(Peers { any: true, ..Peers::default() }),
        (prop::collection::btree_set((0u8..4).prop_map(group_key), 0..3), prop::collection::btree_set(cidr, 0..2))
            .prop_map(|(groups, cidrs)| Peers { groups, cidrs, ..Peers::default() }),
    ]
}

fn rule() -> impl Strategy<Value = Rule> {
    (0u32..3, any::<bool>(), any::<bool>(), peers(), prop::collection::vec(service(), 0..3)).prop_map(
        |(index, ingress, allow, peers, services)| Rule {
            index,
            name: format!("r{index}").into(),
            direction: if ingress { Direction::Ingress } else { Direction::Egress },
            action: if allow { Action::Allow } else { Action::Drop },
            enforcement: Enforcement::Enforce,
            peers,
            services,
            applied_to: [].into(),
            log: allow,
            log_label: allow.then(|| "label".into()),
        },
    )
}

fn policy() -> impl Strategy<Value = Policy> {
    (1i64..4, 1u32..50, prop::collection::vec(rule(), 0..3)).prop_map(|(generation, tenths, rules)| Policy {
        generation,
        kind: "NetworkPolicy".into(),
        namespace: "vms".into(),
        name: "p".into(),
        tier_priority: 250,
        priority: f64::from(tenths) / 10.0,
        applied_to: ["vm1".into()].into(),
        rules: rules.into(),
    })
}

fn node() -> impl Strategy<Value = Node> {
    (0u8..3).prop_map(|n| Node {
        uid: format!("u{n}").into(),
        interfaces: vec![Interface {
            entity: "vm1-3e616".into(),
            name: Some("eth0".to_owned()),
            mac: None,
            ips: [format!("10.0.0.{n}").parse().unwrap()].into(),
            allowed_cidrs: ["fd00::/64".parse().unwrap()].into(),
            ports: [].into(),
        }],
    })
}

/// A view that keeps the promise: the groups of its policies are in it.
fn view() -> impl Strategy<Value = View> {
    let groups = prop::collection::btree_map((0u8..4).prop_map(group_key), group(), 4..5);
    let policies = prop::collection::btree_map("p[0-3]", policy(), 0..4);
    (prop::option::of(node()), groups, policies).prop_map(|(node, groups, policies)| {
        let policies: BTreeMap<_, _> =
            policies.into_iter().map(|(id, p)| (id.as_str().into(), Arc::new(Entry::new(id.into(), p)))).collect();
        let used: Vec<_> = policies.values().flat_map(|p| p.body().groups().collect::<Vec<_>>()).collect();
        let groups = groups.into_iter().filter(|(key, _)| used.contains(key));
        View {
            node: node.map(|n| Arc::new(Entry::new("vms/vm1".parse().unwrap(), n))),
            groups: groups.map(|(key, g)| (key, Arc::new(Entry::new(key, g)))).collect(),
            policies,
        }
    })
}

/// What is wrong on purpose. `None` is the real thing.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// Deletions get lost.
    DeletionsLost,
    /// The first change of an update gets lost.
    FirstChangeLost,
    /// A policy's rules arrive without their last one, under the hash of all.
    RuleLost,
    /// Equal bodies in other allocations count as different.
    PointersOnly,
    /// A resume says everything again.
    ResumeSaysAll,
}

/// What a receiver with `view` makes of `update`, having read it as bytes.
fn over_the_wire(mut view: View, update: &Update, fault: Fault) -> Result<View, TestCaseError> {
    let lost = |(i, change): &(usize, &Change)| match fault {
        Fault::DeletionsLost => matches!(change, Change::Delete(_)),
        Fault::FirstChangeLost => *i == 0,
        _ => false,
    };
    for (_, change) in update.changes.iter().enumerate().filter(|change| !lost(change)) {
        let line = change.line();
        prop_assert_eq!(line.iter().position(|b| *b == b'\n'), Some(line.len() - 1), "one line a frame");
        let Frame::Change(mut change) = Frame::decode(&line).unwrap() else { panic!("a change") };
        if let (Fault::RuleLost, Change::Policy(policy)) = (fault, &change) {
            let mut body = policy.body().clone();
            body.rules = body.rules.split_last().map_or(&[][..], |(_, rest)| rest).into();
            change = Change::Policy(Arc::new(Entry::received(policy.key().clone(), body, policy.hash())));
        }
        if let Err(error) = view.apply(&change) {
            return Err(TestCaseError::fail(error.to_string()));
        }
    }
    view.dangling().map_err(|error| TestCaseError::fail(error.to_string()))?;
    Ok(view)
}

fn fresh(view: &View, fault: Fault) -> Result<View, TestCaseError> {
    over_the_wire(View::default(), &View::default().diff(view), fault)
}

/// The receiver's hashes, which it was told, are those of the bodies that it has.
fn hashes_are_right(view: &View) -> Result<(), TestCaseError> {
    for entry in view.groups.values() {
        prop_assert_eq!(entry.hash(), Entry::new(*entry.key(), entry.body().clone()).hash());
    }
    for entry in view.policies.values() {
        prop_assert_eq!(entry.hash(), Entry::new(entry.key().clone(), entry.body().clone()).hash());
    }
    Ok(())
}

type Law = fn(&[View], Fault) -> Result<(), TestCaseError>;

fn a_difference_applied_gives_the_other_view(views: &[View], fault: Fault) -> Result<(), TestCaseError> {
    let [a, b, ..] = views else { return Ok(()) };
    let received = over_the_wire(fresh(a, Fault::None)?, &a.diff(b), fault)?;
    prop_assert_eq!(&received, b);
    hashes_are_right(&received)
}

fn a_view_differs_from_itself_by_nothing(views: &[View], fault: Fault) -> Result<(), TestCaseError> {
    let a = &views[0];
    prop_assert!(a.diff(a).is_empty());
    let equal = fresh(a, fault)?;
    let update = match fault {
        Fault::PointersOnly => View::default().diff(&equal),
        _ => a.diff(&equal),
    };
    prop_assert!(update.is_empty(), "equal bodies, other allocations");
    Ok(())
}

fn a_resume_by_hashes_ends_where_a_fresh_start_does(views: &[View], fault: Fault) -> Result<(), TestCaseError> {
    let [a, b, ..] = views else { return Ok(()) };
    let mirror = fresh(a, Fault::None)?;
    let update = b.since(&mirror.hashes());
    let resumed = over_the_wire(mirror, &update, fault)?;
    prop_assert_eq!(&resumed, b);
    let again = match fault {
        Fault::ResumeSaysAll => View::default().diff(b),
        _ => b.since(&resumed.hashes()),
    };
    prop_assert!(again.is_empty());
    Ok(())
}

fn one_difference_later_is_worth_many_small_ones(views: &[View], fault: Fault) -> Result<(), TestCaseError> {
    let (mut received, mut sent) = (View::default(), View::default());
    for next in views {
        received = over_the_wire(received, &sent.diff(next), fault)?;
        sent = next.clone();
    }
    prop_assert_eq!(Some(&received), views.last());
    Ok(())
}

/// The law holds for the real thing, and notices each of the faults.
fn holds_and_catches(law: Law, faults: &[Fault]) {
    let run = |fault| {
        let shrink = if fault == Fault::None { 2000 } else { 0 };
        let config = Config { failure_persistence: None, max_shrink_iters: shrink, ..Config::default() };
        TestRunner::new(config)
            .run(&prop::collection::vec(view(), 1..5), |views| law(&views, fault))
            .map_err(|e| e.to_string())
    };
    if let Err(broken) = run(Fault::None) {
        panic!("{broken}");
    }
    for fault in faults {
        assert!(run(*fault).is_err(), "{fault:?} went unnoticed");
    }
}

#[test]
fn applying_a_difference_gives_the_other_view() {
    let faults = [Fault::DeletionsLost, Fault::FirstChangeLost, Fault::RuleLost];
    holds_and_catches(a_difference_applied_gives_the_other_view, &faults);
}

#[test]
fn a_view_and_itself_differ_by_nothing() {
    holds_and_catches(a_view_differs_from_itself_by_nothing, &[Fault::PointersOnly, Fault::RuleLost]);
}

#[test]
fn a_resume_ends_where_a_fresh_start_does() {
    let faults = [Fault::DeletionsLost, Fault::FirstChangeLost, Fault::ResumeSaysAll];
    holds_and_catches(a_resume_by_hashes_ends_where_a_fresh_start_does, &faults);
}

#[test]
fn one_larger_difference_is_worth_many_small_ones() {
    holds_and_catches(one_difference_later_is_worth_many_small_ones, &[Fault::DeletionsLost, Fault::FirstChangeLost]);
}

proptest! {
    #[test]
    fn garbage_is_an_error_and_never_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0usize..200, a in view()) {
        let _ = Frame::decode(&bytes);
        let _ = Report::decode(&bytes);
        for change in View::default().diff(&a).changes {
            let line = change.line();
            let cut = cut.min(line.len().saturating_sub(2));
            prop_assert!(Frame::decode(&line[..cut]).is_err(), "a cut line is no frame");
        }
    }
}

#[test]
fn a_small_change_of_a_large_group_sends_the_member_alone() {
    let reference =
        |n: u32| MemberRef { kind: "ExternalEntity".into(), namespace: "vms".into(), name: format!("e{n}").into() };
    let member = |n: u32| Arc::new(Member { ips: [std::net::Ipv4Addr::from(n).into()].into(), ports: [].into() });
    let key = group_key(0);
    let old = Group { members: (0..1000).map(|n| (reference(n), member(n))).collect() };
    let mut new = old.clone();
    new.members.insert(reference(7), member(1007));
    new.members.remove(&reference(8));
    let view = |g: Group| View { groups: [(key, Arc::new(Entry::new(key, g)))].into(), ..View::default() };
    let (old, new) = (view(old), view(new));

    let update = old.diff(&new);
    let [Change::Members(delta)] = update.changes.as_slice() else { panic!("{update:?}") };
    assert_eq!(delta.added.keys().collect::<Vec<_>>(), [&reference(7)]);
    assert_eq!(delta.removed.iter().collect::<Vec<_>>(), [&reference(8)]);
    let [Change::Members(again)] = &old.diff(&new).changes[..] else { panic!("the same again") };
    assert!(Arc::ptr_eq(delta, again), "made once for all connections");

    let emptied = view(Group::default());
    let update = old.diff(&emptied);
    assert!(matches!(update.changes[..], [Change::Group(_)]), "the whole is shorter than its removals");
}

#[test]
fn the_frames_read_as_the_contract_writes_them() {
    let frames = [
        (
            Frame::Hello(Hello { wire: 1, full: true, heartbeat_seconds: 10 }),
            r#"{"frame":"hello","wire":1,"full":true,"heartbeatSeconds":10}"#,
        ),
        (Frame::Commit(Revision::new("e1", 7)), r#"{"frame":"commit","revision":"e1.7"}"#),
        (Frame::Ping, r#"{"frame":"ping"}"#),
        (
            Frame::Gone { uid: "u1".into(), reason: "deleted".to_owned() },
            r#"{"frame":"gone","uid":"u1","reason":"deleted"}"#,
        ),
        (
            Frame::Change(Change::Delete(ObjectId::Policy("p1".into()))),
            r#"{"frame":"delete","kind":"policy","key":"p1"}"#,
        ),
    ];
    for (frame, text) in frames {
        assert_eq!(std::str::from_utf8(&frame.encode()).unwrap().trim_end(), text);
        let again = Frame::decode(text.as_bytes()).unwrap();
        assert_eq!(again.encode(), frame.encode());
    }
    let update = View::default().diff(&View {
        node: Some(Arc::new(Entry::new("vms/vm1".parse().unwrap(), Node { uid: "u1".into(), interfaces: vec![] }))),
        ..View::default()
    });
    let line = update.changes[0].line();
    let hash = crate::hash::Hash::of(br#"{"uid":"u1","interfaces":[]}"#);
    let text = format!(
        r#"{{"frame":"put","kind":"node","key":"vms/vm1","hash":"{hash}","body":{{"uid":"u1","interfaces":[]}}}}"#
    );
    assert_eq!(std::str::from_utf8(&line).unwrap().trim_end(), text);
}
