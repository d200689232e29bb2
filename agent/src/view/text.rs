//! A view and its changes for people. Pure.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use crds::names::{GroupKey, PolicyId};
use crds::wire::{
    Action, Cidr, Direction, Enforcement, Entry, Group, Icmp, Interface, Member, MemberPort, MemberRef, Node, Peers,
    Policy, Port, PortRange, Protocol, Revision, Rule, Service, Transport, View,
};

use crds::chain::one_line;

/// Where each rule stands among all rules of its direction, from 1.
#[derive(Debug)]
pub(super) struct Places(BTreeMap<(PolicyId, usize), usize>);

impl Places {
    pub(super) fn of(view: &View) -> Self {
        let of = |direction| {
            let mut rules: Vec<_> = view.policies.values().flat_map(|policy| rules(policy, direction)).collect();
            rules.sort_by(|(a, i), (b, j)| {
                let index = |policy: &Entry<Policy>, at: usize| policy.body().rules[at].index;
                precedence(a, b).then(index(a, *i).cmp(&index(b, *j))).then(names(a, b)).then(i.cmp(j))
            });
            rules.into_iter().zip(1..).map(|((policy, at), place)| ((policy.key().clone(), at), place))
        };
        Self(of(Direction::Ingress).chain(of(Direction::Egress)).collect())
    }

    pub(super) fn of_rule(&self, policy: &PolicyId, at: usize) -> usize {
        self.0.get(&(policy.clone(), at)).copied().unwrap_or_default()
    }
}

fn rules(policy: &Entry<Policy>, direction: Direction) -> impl Iterator<Item = (&Entry<Policy>, usize)> {
    let rules = policy.body().rules.iter().enumerate();
    rules.filter(move |(_, rule)| rule.direction == direction).map(move |(at, _)| (policy, at))
}

/// The policies in the order of their first rules.
pub(super) fn in_order(view: &View) -> Vec<&Entry<Policy>> {
    let mut policies: Vec<_> = view.policies.values().map(|policy| &**policy).collect();
    policies.sort_by(|a, b| precedence(a, b).then(names(a, b)));
    policies
}

fn precedence(a: &Entry<Policy>, b: &Entry<Policy>) -> Ordering {
    let (a, b) = (a.body(), b.body());
    a.tier_priority.cmp(&b.tier_priority).then(a.priority.total_cmp(&b.priority))
}

/// What decides between policies of one priority.
fn names(a: &Entry<Policy>, b: &Entry<Policy>) -> Ordering {
    let name = |policy: &'_ Policy| (policy.kind.clone(), policy.namespace.clone(), policy.name.clone());
    name(a.body()).cmp(&name(b.body())).then(a.key().cmp(b.key()))
}

/// Everything that this machine is told.
pub fn view(view: &View, revision: Option<&Revision>) -> String {
    let mut lines = Lines::default();
    match &view.node {
        Some(entry) => node(&mut lines, 0, "", entry),
        None => lines.add(0, "no node"),
    }
    if let Some(revision) = revision {
        lines.add(0, format!("revision {revision}"));
    }

    lines.add(0, "");
    if view.policies.is_empty() {
        lines.add(0, "no policies");
    } else {
        lines.add(0, "policies, and before each rule its place among all rules of its direction");
    }
    let places = Places::of(view);
    for entry in in_order(view) {
        policy(&mut lines, "", entry, view, &places);
    }

    lines.add(0, "");
    lines.add(0, if view.groups.is_empty() { "no groups" } else { "groups" });
    for entry in view.groups.values() {
        group(&mut lines, "", entry);
    }
    lines.text
}

/// What turns `before` into `after`: `+` is new, `-` is no more, `~` is changed. Nothing when nothing does.
pub fn changes(before: &View, after: &View, revision: &Revision) -> String {
    let mut lines = Lines::default();
    match (&before.node, &after.node) {
        (None, Some(new)) => node(&mut lines, 1, "+ ", new),
        (Some(old), Some(new)) if old != new => node(&mut lines, 1, "~ ", new),
        (Some(old), None) => lines.add(1, format!("- node {}", old.key())),
        _ => {}
    }
    let places = Places::of(after);
    for entry in in_order(after) {
        match before.policies.get(entry.key()) {
            None => policy(&mut lines, "+ ", entry, after, &places),
            Some(old) if **old != *entry => policy(&mut lines, "~ ", entry, after, &places),
            Some(_) => {}
        }
    }
    for entry in in_order(before).into_iter().filter(|entry| !after.policies.contains_key(entry.key())) {
        lines.add(1, format!("- {}", title(entry.body())));
    }
    for (key, entry) in &after.groups {
        match before.groups.get(key) {
            None => group(&mut lines, "+ ", entry),
            Some(old) if old != entry => members(&mut lines, old, entry),
            Some(_) => {}
        }
    }
    for key in before.groups.keys().filter(|key| !after.groups.contains_key(*key)) {
        lines.add(1, format!("- group {key}"));
    }
    if lines.text.is_empty() { String::new() } else { format!("revision {revision}\n{}", lines.text) }
}

/// Indented lines, without a control character that somebody put into a name.
#[derive(Default)]
struct Lines {
    text: String,
}

impl Lines {
    fn add(&mut self, depth: usize, line: impl AsRef<str>) {
        let line = format!("{:indent$}{}", "", one_line(line.as_ref()), indent = depth * 2);
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }
}

fn node(lines: &mut Lines, depth: usize, mark: &str, entry: &Entry<Node>) {
    let Node { uid, interfaces } = entry.body();
    lines.add(depth, format!("{mark}node {} (uid {uid})", entry.key()));
    for Interface { entity, name, mac, ips, allowed_cidrs, ports } in interfaces {
        let parts = [
            Some(format!("interface {}", name.as_deref().or(mac.as_deref()).unwrap_or("with the addresses"))),
            mac.as_ref().filter(|_| name.is_some()).map(|mac| format!("({mac})")),
            some(list(ips)),
            some(list(allowed_cidrs)).map(|cidrs| format!("allowed {cidrs}")),
            some(list(ports.iter().map(port_name))).map(|ports| format!("ports {ports}")),
            Some(format!("entity {entity}")),
        ];
        lines.add(depth + 1, parts.into_iter().flatten().collect::<Vec<_>>().join("  "));
    }
}

fn title(policy: &Policy) -> String {
    let Policy { kind, namespace, name, .. } = policy;
    if namespace.is_empty() { format!("{kind} {name}") } else { format!("{kind} {namespace}/{name}") }
}

fn policy(lines: &mut Lines, mark: &str, entry: &Entry<Policy>, view: &View, places: &Places) {
    let policy = entry.body();
    let Policy { generation, tier_priority, priority, applied_to, rules, .. } = policy;
    lines.add(
        1,
        format!(
            "{mark}{}  tier {tier_priority}, priority {priority}, generation {generation}, on {}",
            title(policy),
            some(list(applied_to)).unwrap_or_else(|| "nothing".to_owned())
        ),
    );
    for (at, rule) in rules.iter().enumerate() {
        let direction = match rule.direction {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        };
        lines.add(2, format!("{direction} {}: {}", places.of_rule(entry.key(), at), sentence(rule, view)));
    }
}

/// `allow TCP 443 from 10.0.0.0/8, "web"`.
fn sentence(rule: &Rule, view: &View) -> String {
    let Rule { index: _, name, direction, action, enforcement, peers, services, applied_to, log, log_label } = rule;
    let action = match action {
        Action::Allow => "allow",
        Action::Drop => "drop",
    };
    let services = if services.is_empty() { "everything".to_owned() } else { list(services.iter().map(service)) };
    let way = match direction {
        Direction::Ingress => "from",
        Direction::Egress => "to",
    };
    let rest = [
        some(name.to_string()).map(|name| format!("{name:?}")),
        some(list(applied_to)).map(|entities| format!("only on {entities}")),
        (*enforcement == Enforcement::Audit).then(|| "audited: counted and logged, not enforced".to_owned()),
        match log_label {
            Some(label) => Some(format!("logged as {label:?}")),
            None => log.then(|| "logged".to_owned()),
        },
    ];
    let sentence = format!("{action} {services} {way} {}", peer_list(peers, view));
    std::iter::once(sentence).chain(rest.into_iter().flatten()).collect::<Vec<_>>().join("  ")
}

fn peer_list(Peers { any, groups, cidrs, fqdns }: &Peers, view: &View) -> String {
    if *any {
        return "anyone".to_owned();
    }
    let groups = groups.iter().map(|key| group_name(*key, view));
    let cidrs = cidrs.iter().map(|Cidr { cidr, except }| match some(list(except)) {
        Some(except) => format!("{cidr} except ({except})"),
        None => cidr.to_string(),
    });
    let all = groups.chain(cidrs).chain(fqdns.iter().map(ToString::to_string));
    some(list(all)).unwrap_or_else(|| "nobody".to_owned())
}

fn group_name(key: GroupKey, view: &View) -> String {
    let members = view.groups.get(&key).map_or(0, |group| group.body().members.len());
    format!("group {key} ({})", counted(members))
}

fn counted(members: usize) -> String {
    if members == 1 { "1 member".to_owned() } else { format!("{members} members") }
}

fn service(service: &Service) -> String {
    let transport = |protocol: &str, Transport { port, src }: &Transport| {
        let port = port.as_ref().map(|port| match port {
            Port::Range(range) => format!(" {}", range_text(*range)),
            Port::Named { name } => format!(" {name}"),
        });
        let src = src.map(|range| format!(" (source port {})", range_text(range)));
        format!("{protocol}{}{}", port.unwrap_or_default(), src.unwrap_or_default())
    };
    match service {
        Service::Tcp(ports) => transport("TCP", ports),
        Service::Udp(ports) => transport("UDP", ports),
        Service::Sctp(ports) => transport("SCTP", ports),
        Service::Icmp(Icmp { kind, code }) => {
            let kind = kind.map(|kind| format!(" type {kind}"));
            let code = code.map(|code| format!(" code {code}"));
            format!("ICMP{}{}", kind.unwrap_or_default(), code.unwrap_or_default())
        }
    }
}

fn range_text(PortRange { first, last }: PortRange) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

fn port_name(MemberPort { name, protocol, port }: &MemberPort) -> String {
    let protocol = match protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
        Protocol::Sctp => "SCTP",
    };
    format!("{name}={protocol}/{port}")
}

fn group(lines: &mut Lines, mark: &str, entry: &Entry<Group>) {
    let all = &entry.body().members;
    lines.add(1, format!("{mark}group {} ({})", entry.key(), counted(all.len())));
    for (reference, member) in all {
        lines.add(2, member_line("", reference, member));
    }
}

fn members(lines: &mut Lines, old: &Entry<Group>, new: &Entry<Group>) {
    let (old, all) = (&old.body().members, &new.body().members);
    lines.add(1, format!("~ group {} ({})", new.key(), counted(all.len())));
    for (reference, member) in all {
        match old.get(reference) {
            None => lines.add(2, member_line("+ ", reference, member)),
            Some(before) if before != member => lines.add(2, member_line("~ ", reference, member)),
            Some(_) => {}
        }
    }
    for (reference, member) in old.iter().filter(|(reference, _)| !all.contains_key(*reference)) {
        lines.add(2, member_line("- ", reference, member));
    }
}

fn member_line(mark: &str, reference: &MemberRef, member: &Arc<Member>) -> String {
    let MemberRef { kind, namespace, name } = reference;
    let Member { ips, ports } = &**member;
    let addresses = some(list(ips)).unwrap_or_else(|| "no address".to_owned());
    let ports = some(list(ports.iter().map(port_name))).map(|ports| format!("  ports {ports}"));
    format!("{mark}{kind} {namespace}/{name}  {addresses}{}", ports.unwrap_or_default())
}

fn list<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

fn some(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}
