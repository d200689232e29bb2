//! `resolve`: one label of one machine changes among 10,000 machines, 20,000 entities and 1,000 policies.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::ensure;
use crds::names::{Key, NodeName};
use crds::wire::View;
use crds::world::{Event, Object, World, WorldKind};
use operator::policy::entity::{Entity, entity_at};
use operator::policy::{Live, Touched};
use serde_json::{Value, json};

use crate::model::{self, Plain};
use crate::{quantile, say};

const NODES: u32 = 10_000;
const POLICIES: u32 = 1_000;
const APPS: u32 = 500;
const NAMESPACES: u32 = 10;
const CHANGES: u32 = 200;
/// Changes after which the peer takes its turn, too: later ones, since it leaves the processor's caches to itself.
const PEER_CHANGES: u32 = 10;

pub(crate) fn run() -> anyhow::Result<Value> {
    let world = world();
    let (mut full, mut live) = from_nothing(&world, 3);
    say(&format!("everything from nothing: {} ms", quantile(&mut full, 0.5)));
    // what the connections hold: groups that change are copied
    let names: Vec<NodeName> = live.resolved().nodes.keys().cloned().collect();
    let mut sent: Vec<View> = names.iter().map(|name| live.view(name)).collect();

    let (mut one_change, mut diffs, mut peers) = (vec![], vec![], vec![]);
    let mut changed_views = vec![];
    for round in 0..CHANGES {
        let (took, touched) = change(&mut live, round);
        one_change.push(took);

        let start = Instant::now();
        let views: Vec<View> = names.iter().map(|name| live.view(name)).collect();
        let differs: Vec<bool> = sent.iter().zip(&views).map(|(old, new)| !old.diff(new).is_empty()).collect();
        diffs.push(start.elapsed());
        let mut changed = names.iter().zip(&differs).filter(|(_, differs)| **differs).map(|(name, _)| name);
        changed_views.push(changed.clone().count());
        ensure!(changed.all(|name| touched.nodes.contains(name)), "a view changed that nobody was told of");
        sent = views;
    }
    say(&format!("slowest changes: {}", slowest(&one_change, 5)));
    changed_views.sort_unstable();
    ensure!(changed_views[0] >= 100, "a change reached {} views only", changed_views[0]);
    let mut plain = peer(&live, &Plain::default(), &mut vec![]);
    for round in CHANGES..CHANGES + PEER_CHANGES {
        change(&mut live, round);
        plain = peer(&live, &plain, &mut peers);
    }
    agree(&live, &plain)?;
    Ok(json!({
        "bench": "resolve", "nodes": NODES, "entities": live.claims().len(), "policies": POLICIES,
        "full_ms": quantile(&mut full, 0.5),
        "one_change_ms": quantile(&mut one_change, 0.5), "one_change_p99": quantile(&mut one_change, 0.99),
        "diff_ms": quantile(&mut diffs, 0.5), "model_ms": quantile(&mut peers, 0.5),
        "changed_views": changed_views[changed_views.len() / 2], "changes": CHANGES,
        "largest_group": live.resolved().groups.values().map(|group| group.body().members.len()).max(),
    }))
}

/// One label of one machine changes: how long the world and everything that follows take.
fn change(live: &mut Live, round: u32) -> (Duration, Touched) {
    let event = Event::Put(node(round * 37 % NODES, round % 2 + 1, u64::from(NODES + round) * 10));
    let mut touched = Touched::default();
    let start = Instant::now();
    live.apply(event, &mut touched);
    (start.elapsed(), touched)
}

/// The rounds that took longest, so that an outlier can be told from the machine's noise: another run has others.
fn slowest(times: &[Duration], count: usize) -> String {
    let mut rounds: Vec<_> = times.iter().enumerate().collect();
    rounds.sort_by_key(|(_, time)| std::cmp::Reverse(**time));
    let texts = rounds.into_iter().take(count).map(|(round, time)| format!("{time:.1?} in round {round}"));
    texts.collect::<Vec<_>>().join(", ")
}

/// How long it takes to resolve all of `world`, each time, and the last outcome. Copies are made off the clock.
fn from_nothing(world: &World, times: usize) -> (Vec<Duration>, Live) {
    let once = || {
        let copy = world.clone();
        let start = Instant::now();
        let live = Live::new(copy);
        (start.elapsed(), live)
    };
    let (first, mut live) = once();
    let mut took = vec![first];
    for _ in 1..times {
        let (time, again) = once();
        took.push(time);
        live = again;
    }
    (took, live)
}

/// The peer's turn over what `live` holds now. Its entities are given to it.
fn peer(live: &Live, before: &Plain, took: &mut Vec<Duration>) -> Plain {
    let (world, claims) = (live.world(), live.claims());
    let entities: BTreeMap<Key, Entity> =
        claims.keys().filter_map(|id| Some((id.clone(), entity_at(world, claims, id)?))).collect();
    let input = model::Input { world, policies: &live.resolved().policies, entities: &entities };
    let start = Instant::now();
    let after = model::resolve(input, before);
    took.push(start.elapsed());
    after
}

/// Both ways lead to the same groups and the same spans.
fn agree(live: &Live, plain: &Plain) -> anyhow::Result<()> {
    let resolved = live.resolved();
    ensure!(resolved.groups.len() == plain.groups.len(), "not the same groups");
    for (selector, group) in &plain.groups {
        let ours = &resolved.groups[&selector.key()].body().members;
        let same = ours.iter().zip(&group.members).all(|((ours, a), (theirs, b))| ours.name == theirs.name && a == b);
        ensure!(same && ours.len() == group.members.len(), "{selector}: not the same members");
    }
    for (policy, span) in &plain.spans {
        ensure!(resolved.spans[policy] == **span, "{policy}: not the same span");
    }
    Ok(())
}

fn world() -> World {
    let kinds = [WorldKind::Namespace, WorldKind::ExternalNode, WorldKind::NetworkPolicy];
    let mut world = World::waiting_for(&kinds);
    let namespaces = (0..NAMESPACES).map(|i| {
        let (name, zone) = (format!("n{i}"), format!("z{}", i % 2));
        decode(WorldKind::Namespace, json!({"metadata": {"name": name, "uid": name, "labels": {"zone": zone}}}))
    });
    world.apply(Event::Listed(WorldKind::Namespace, namespaces.collect()));
    world.apply(Event::Listed(WorldKind::ExternalNode, (0..NODES).map(|i| node(i, 0, u64::from(i) + 1)).collect()));
    world.apply(Event::Listed(WorldKind::NetworkPolicy, (0..POLICIES).map(policy).collect()));
    world
}

/// Machine `i` with two interfaces. `shift` moves it to another tier of three: two groups of thousands change.
fn node(i: u32, shift: u32, version: u64) -> Object {
    let ip = |net: u8| {
        let [_, a, b, c] = i.to_be_bytes();
        format!("{net}.{a}.{b}.{c}")
    };
    decode(
        WorldKind::ExternalNode,
        json!({
            "metadata": {
                "namespace": format!("n{}", i % NAMESPACES), "name": format!("vm{i}"), "uid": format!("u{i}"),
                "resourceVersion": version.to_string(),
                "labels": {
                    "app": format!("a{}", i % APPS), "tier": format!("t{}", (i + shift) % 3),
                    "env": if i.is_multiple_of(7) { "test" } else { "prod" },
                },
            },
            "spec": {"interfaces": [
                {"name": "eth0", "ips": [ip(10)]},
                {"name": "eth1", "ips": [ip(11), format!("fd00::{i:x}")]},
            ]},
        }),
    )
}

/// A policy of its namespace: peers are one application, one tier everywhere in a zone, and what is not for tests.
fn policy(i: u32) -> Object {
    let app = |n: u32| json!({"matchLabels": {"app": format!("a{}", n % APPS)}});
    let zone = |n: u32| json!({"matchLabels": {"zone": format!("z{}", n % 2)}});
    let tier = json!({"matchExpressions": [{"key": "tier", "operator": "In", "values": [format!("t{}", i % 3)]}]});
    let mut prod = app(i + 7);
    prod["matchExpressions"] = json!([{"key": "env", "operator": "NotIn", "values": ["test"]}]);
    decode(
        WorldKind::NetworkPolicy,
        json!({
            "metadata": {
                "namespace": format!("n{}", i % NAMESPACES), "name": format!("p{i}"), "uid": format!("p{i}"),
                "generation": 1, "resourceVersion": "1",
            },
            "spec": {
                "tier": "application", "priority": 5, "appliedTo": [{"externalEntitySelector": app(i)}],
                "ingress": [{
                    "action": "Allow", "ports": [{"protocol": "TCP", "port": 5432}],
                    "from": [
                        {"externalEntitySelector": app(i + 1)},
                        {"externalEntitySelector": tier, "namespaceSelector": zone(i)},
                    ],
                }, {"action": "Drop"}],
                "egress": [{
                    "action": "Allow",
                    "to": [
                        {"externalEntitySelector": prod, "namespaceSelector": zone(1)},
                        {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
                    ],
                }],
            },
        }),
    )
}

fn decode(kind: WorldKind, object: Value) -> Object {
    let (group, version, _, name) = kind.resource();
    let mut object = object;
    object["apiVersion"] = json!(format!("{group}/{version}"));
    object["kind"] = json!(name);
    Object::decode(kind, serde_json::from_value(object).expect("the object was written here"))
}
