//! Views to send.

use std::sync::Arc;

use crds::names::GroupKey;
use crds::wire::{
    Action, Direction, Enforcement, Entry, Group, Interface, Member, MemberRef, Node, Peers, Policy, Port, PortRange,
    Rule, Service, Transport, View,
};

pub fn web() -> GroupKey {
    GroupKey::of("web")
}

/// `vms/vm1` with a policy that lets `members` members of a group in.
pub fn view(members: u32) -> View {
    let rule = Rule {
        index: 0,
        name: "from-web".into(),
        direction: Direction::Ingress,
        action: Action::Allow,
        enforcement: Enforcement::Enforce,
        peers: Peers { groups: [web()].into(), ..Peers::default() },
        services: vec![Service::Tcp(Transport {
            port: Some(Port::Range(PortRange { first: 443, last: 443 })),
            src: None,
        })],
        applied_to: [].into(),
        log: false,
        log_label: None,
    };
    let policy = Policy {
        generation: 1,
        kind: "NetworkPolicy".into(),
        namespace: "vms".into(),
        name: "web".into(),
        tier_priority: 250,
        priority: 5.0,
        applied_to: ["vm1-3e616".into()].into(),
        rules: [rule].into(),
    };
    let interface = Interface {
        entity: "vm1-3e616".into(),
        name: Some("eth0".to_owned()),
        mac: None,
        ips: ["192.0.2.10".parse().unwrap()].into(),
        allowed_cidrs: [].into(),
        ports: [].into(),
    };
    let node = Node { uid: "u1".into(), interfaces: vec![interface] };
    View {
        node: Some(Arc::new(Entry::new("vms/vm1".parse().unwrap(), node))),
        groups: [(web(), Arc::new(Entry::new(web(), group(members))))].into(),
        policies: [("p1".into(), Arc::new(Entry::new("p1".into(), policy)))].into(),
    }
}

fn group(members: u32) -> Group {
    let member = |n: u32| {
        let name = format!("vm{}", n + 100);
        let reference = MemberRef { kind: "ExternalEntity".into(), namespace: "vms".into(), name: name.into() };
        let ip = std::net::Ipv4Addr::from(0x0a00_0000 + n + 1).into();
        (reference, Arc::new(Member { ips: [ip].into(), ports: [].into() }))
    };
    Group { members: (0..members).map(member).collect() }
}
