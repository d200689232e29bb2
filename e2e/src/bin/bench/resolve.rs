//! `resolve`: one label of one machine changes among 10,000 machines, 20,000 entities and 1,000 policies.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::ensure;
use crds::names::NodeName;
use crds::wire::View;
use crds::world::{Event, Object, World, WorldKind};
use operator::policy::entity::entity_at;
use operator::policy::{Live, Touched};
use serde_json::{Value, json};

use crate::{milliseconds, model, quantile, say};

const NODES: u32 = 10_000;
const POLICIES: u32 = 1_000;
const APPS: u32 = 500;
const CHANGES: u32 = 200;
const NAMESPACES: u32 = 10;

pub(crate) fn run() -> anyhow::Result<Value> {
    let world = world();
    let mut full = timed(3, || Live::new(world.clone()));
    let full_ms = quantile(&mut full, 0.5);
    say(&format!("everything from nothing: {full_ms} ms"));

    let mut live = Live::new(world);
    let names: Vec<NodeName> = live.resolved().nodes.keys().cloned().collect();
    let entities = live.world().external_nodes.len() * 2;
    let mut sent: BTreeMap<NodeName, View> = names.iter().map(|name| (name.clone(), live.view(name))).collect();

    let (mut times, mut changed_views, mut fewest) = (Vec::new(), 0, usize::MAX);
    for round in 0..CHANGES {
        let event = Event::Put(node(round * 37 % NODES, round % 2 + 1, u64::from(NODES + round) * 10));
        let mut touched = Touched::default();
        let start = Instant::now();
        live.apply(event, &mut touched);
        times.push(start.elapsed());
        let changed = touched.nodes.iter().filter(|name| {
            let view = live.view(name);
            let changed = !sent[*name].diff(&view).is_empty();
            sent.insert((*name).clone(), view);
            changed
        });
        let changed = changed.count();
        fewest = fewest.min(changed);
        changed_views += changed;
    }
    ensure!(fewest >= 100, "a change reached {fewest} views only");
    say(&format!("one change: median {} ms", quantile(&mut times, 0.5)));

    let start = Instant::now();
    let differing = names.iter().filter(|name| !sent[*name].diff(&live.view(name)).is_empty()).count();
    let diff_ms = milliseconds(start.elapsed());
    ensure!(differing == 0, "{differing} views differ from what was sent");

    let (claims, world) = (live.claims(), live.world());
    let plain: BTreeMap<_, _> =
        claims.keys().filter_map(|id| Some((id.clone(), entity_at(world, claims, id)?))).collect();
    let groups = model::resolve(&live, &plain, &model::Groups::new());
    let mut model = timed(5, || model::resolve(&live, &plain, &groups));
    for (selector, members) in &groups {
        let ours = live.resolved().groups[&selector.key()].body().members.len();
        ensure!(ours == members.len(), "{selector}: {ours} members, {} by the plain way", members.len());
    }
    Ok(json!({
        "bench": "resolve", "nodes": NODES, "entities": entities, "policies": POLICIES,
        "full_ms": full_ms,
        "one_change_ms": quantile(&mut times, 0.5), "one_change_p99": quantile(&mut times, 0.99),
        "diff_ms": diff_ms, "model_ms": quantile(&mut model, 0.5),
        "changed_views": changed_views / CHANGES as usize,
    }))
}

/// How long `work` took, each time. What it makes is dropped off the clock.
fn timed<T>(times: usize, work: impl Fn() -> T) -> Vec<Duration> {
    let once = |_| {
        let start = Instant::now();
        let made = work();
        let took = start.elapsed();
        drop(made);
        took
    };
    (0..times).map(once).collect()
}

fn world() -> World {
    let kinds = [WorldKind::Namespace, WorldKind::ExternalNode, WorldKind::NetworkPolicy];
    let mut world = World::waiting_for(&kinds);
    let namespaces = (0..NAMESPACES).map(|i| {
        decode(WorldKind::Namespace, json!({"metadata": {"name": format!("n{i}"), "uid": format!("n{i}"), "labels": {"zone": format!("z{}", i % 2)}}}))
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
                "labels": {"app": format!("a{}", i % APPS), "tier": format!("t{}", (i + shift) % 3), "env": if i.is_multiple_of(10) { "test" } else { "prod" }},
            },
            "spec": {"interfaces": [{"name": "eth0", "ips": [ip(10)]}, {"name": "eth1", "ips": [ip(11), format!("fd00::{i:x}")]}]},
        }),
    )
}

fn policy(i: u32) -> Object {
    let app = |n: u32| json!({"matchLabels": {"app": format!("a{}", n % APPS)}});
    let tier = json!({"matchExpressions": [{"key": "tier", "operator": "In", "values": [format!("t{}", i % 3)]}]});
    let prod = json!({"matchLabels": {"app": format!("a{}", (i + 7) % APPS)}, "matchExpressions": [{"key": "env", "operator": "NotIn", "values": ["test"]}]});
    let zone = json!({"matchLabels": {"zone": "z1"}});
    let everywhere = json!({"matchLabels": {"zone": format!("z{}", i % 2)}});
    decode(
        WorldKind::NetworkPolicy,
        json!({
            "metadata": {"namespace": format!("n{}", i % NAMESPACES), "name": format!("p{i}"), "uid": format!("p{i}"), "generation": 1, "resourceVersion": "1"},
            "spec": {
                "tier": "application", "priority": 5, "appliedTo": [{"externalEntitySelector": app(i)}],
                "ingress": [{
                    "action": "Allow", "ports": [{"protocol": "TCP", "port": 5432}],
                    "from": [{"externalEntitySelector": app(i + 1)}, {"externalEntitySelector": tier, "namespaceSelector": everywhere}],
                }, {"action": "Drop"}],
                "egress": [{"action": "Allow", "to": [{"externalEntitySelector": prod, "namespaceSelector": zone}, {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]}],
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
