//! The laws of a mirror, over random views, through real bytes that are cut anywhere.

use std::sync::Arc;

use crds::names::GroupKey;
use crds::wire::{Action, Direction, Enforcement, Group, Interface, Member, MemberRef, Node, Peers, Policy, Rule};
use proptest::prelude::*;
use proptest::sample::Index;

use super::lines::Lines;
use super::*;

fn group_key(n: u8) -> GroupKey {
    GroupKey::of(&format!("g{n}"))
}

fn group() -> impl Strategy<Value = Group> {
    let reference = (0u8..6).prop_map(|n| MemberRef {
        kind: "ExternalEntity".into(),
        namespace: "vms".into(),
        name: format!("e{n}").into(),
    });
    let member = prop::collection::btree_set((0u8..4).prop_map(|n| format!("10.0.0.{n}").parse().unwrap()), 0..3)
        .prop_map(|ips| Arc::new(Member { ips, ports: [].into() }));
    prop::collection::btree_map(reference, member, 0..6).prop_map(|members| Group { members })
}

fn rule() -> impl Strategy<Value = Rule> {
    (0u32..3, any::<bool>(), prop::collection::btree_set((0u8..4).prop_map(group_key), 0..3)).prop_map(
        |(index, ingress, groups)| Rule {
            index,
            name: format!("r{index}").into(),
            direction: if ingress { Direction::Ingress } else { Direction::Egress },
            action: Action::Allow,
            enforcement: Enforcement::Enforce,
            peers: Peers { groups, ..Peers::default() },
            services: vec![],
            applied_to: [].into(),
            log: false,
            log_label: None,
        },
    )
}

fn policy() -> impl Strategy<Value = Policy> {
    (1i64..4, prop::collection::vec(rule(), 0..3)).prop_map(|(generation, rules)| Policy {
        generation,
        kind: "NetworkPolicy".into(),
        namespace: "vms".into(),
        name: "p".into(),
        tier_priority: 250,
        priority: 5.0,
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
            allowed_cidrs: [].into(),
            ports: [].into(),
        }],
    })
}

/// A view that keeps the promise: the groups of its policies are in it.
fn view() -> impl Strategy<Value = View> {
    let groups = prop::collection::btree_map((0u8..4).prop_map(group_key), group(), 4..5);
    let policies = prop::collection::btree_map("p[0-3]", policy(), 0..4);
    (prop::option::weighted(0.9, node()), groups, policies).prop_map(|(node, groups, policies)| {
        let policies = policies.into_iter().map(|(id, policy)| Entry::new(id.into(), policy));
        let policies: Vec<_> = policies.map(Arc::new).collect();
        let used: Vec<_> = policies.iter().flat_map(|policy| policy.body().groups()).collect();
        let groups = groups.into_iter().filter(|(key, _)| used.contains(key));
        View {
            node: node.map(|node| Arc::new(Entry::new("vms/vm1".parse().unwrap(), node))),
            groups: groups.map(|(key, group)| (key, Arc::new(Entry::new(key, group)))).collect(),
            policies: policies.into_iter().map(|policy| (policy.key().clone(), policy)).collect(),
        }
    })
}

/// What an operator sends to an agent that says `resume`, or asks for everything, while the world goes through `views`.
fn stream(resume: Option<Resume>, views: &[View]) -> Vec<Vec<u8>> {
    let full = resume.is_none();
    let have = resume.unwrap_or_default().have;
    let hello = Frame::Hello(Hello { wire: WIRE, full, heartbeat_seconds: 10 });
    let mut lines = vec![hello.encode().to_vec()];
    for (n, next) in views.iter().enumerate() {
        let update = if n == 0 { next.since(&have) } else { views[n - 1].diff(next) };
        lines.extend(update.changes.iter().map(|change| change.line().to_vec()));
        lines.push(Frame::Commit(Revision::new("e", n as u64)).encode().to_vec());
        lines.push(Frame::Ping.encode().to_vec());
    }
    lines
}

/// What `mirror` asks with.
fn asks(mirror: &Mirror) -> Option<Resume> {
    (!mirror.wants_everything()).then(|| mirror.resume())
}

/// Feeds bytes; what the mirror says to them.
fn feed(mirror: &mut Mirror, bytes: &[u8]) -> Vec<Told> {
    let mut lines = Lines::default();
    lines.push(bytes);
    let frames = std::iter::from_fn(|| lines.next()).map(|line| Frame::decode(&line).unwrap());
    frames.filter_map(|frame| mirror.frame(frame).unwrap()).collect()
}

proptest! {
    #[test]
    fn however_streams_are_cut_the_mirror_goes_from_commit_to_commit_and_ends_where_the_operator_is(
        sessions in prop::collection::vec((prop::collection::vec(view(), 1..4), any::<Index>()), 1..5),
        last in view(),
    ) {
        let mut mirror = Mirror::default();
        let mut expected = View::default();
        for (views, cut) in sessions {
            let bytes = stream(asks(&mirror), &views).concat();
            let told = feed(&mut mirror, &bytes[..cut.index(bytes.len() + 1)]);
            let commits = told.iter().filter(|told| matches!(told, Told::Commit(_))).count();
            if let Some(committed) = commits.checked_sub(1) {
                expected = views[committed].clone();
            }
            prop_assert_eq!(mirror.view(), &expected);
            mirror.cut();
            prop_assert_eq!(mirror.view(), &expected);
            prop_assert_eq!(mirror.resume().have, expected.hashes());
        }
        let bytes = stream(asks(&mirror), std::slice::from_ref(&last)).concat();
        feed(&mut mirror, &bytes);
        prop_assert_eq!(mirror.view(), &last);
        prop_assert!(mirror.complete());
    }

    #[test]
    fn frames_that_are_lost_repeated_or_swapped_never_leave_a_view_that_dangles(
        views in prop::collection::vec(view(), 1..4),
        faults in prop::collection::vec((0u8..3, any::<Index>(), any::<Index>()), 0..4),
        healed in view(),
    ) {
        let mut mirror = Mirror::default();
        let mut lines = stream(None, &views);
        for (fault, one, other) in faults {
            let (one, other) = (one.index(lines.len()), other.index(lines.len()));
            match fault {
                0 if lines.len() > 1 => _ = lines.remove(one),
                1 => lines.insert(other, lines[one].clone()),
                _ => lines.swap(one, other),
            }
        }
        for line in lines {
            let before = mirror.view().clone();
            let told = mirror.frame(Frame::decode(&line).unwrap());
            if !matches!(told, Ok(Some(Told::Commit(_)))) {
                prop_assert_eq!(mirror.view(), &before, "only a commit changes the view");
            }
            prop_assert!(mirror.view().dangling().is_ok());
        }
        mirror.cut();
        let bytes = stream(None, std::slice::from_ref(&healed)).concat();
        feed(&mut mirror, &bytes);
        prop_assert_eq!(mirror.view(), &healed, "everything heals it");
    }
}
