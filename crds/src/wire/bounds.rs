//! How much of a report is taken in: what it says is kept, and written into objects that the API server keeps.
//!
//! What is longer is cut and not refused: an agent of a later release may have more to say.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::report::{Full, PolicyOutcome, Report};
use crate::chain::one_line;
use crate::names::PolicyId;

#[cfg(test)]
mod tests;

/// Bytes of a name, a version, a state, an opaque text.
const NAME: usize = 256;

/// Bytes of a hardware address.
const MAC: usize = 64;

/// Bytes of a message or an error, and of the interface of an [`Attach`](super::Attach): that is found by its name in
/// the ExternalNode, which may have 256 characters.
const TEXT: usize = 1024;

/// Interfaces, takeovers, flow tables.
const LIST: usize = 256;

/// Addresses on one interface: as many as an ExternalNode can list.
const IPS: usize = 1024;

/// Addresses on all interfaces together.
const ALL_IPS: usize = 2048;

/// Policies.
const POLICIES: usize = 100_000;

/// What a text that was cut ends with.
const MORE: &str = "…";

impl Report {
    /// What is taken in of the report. A heartbeat stays as it is: it is looked at and not kept.
    #[must_use]
    pub fn bounded(self) -> Self {
        match self {
            Self::Full(full) => Self::Full(Box::new(full.bounded())),
            Self::Heartbeat(head) => Self::Heartbeat(head),
        }
    }
}

impl Full {
    /// The report with every text and list within its bounds: a long text ends with "…", a long list after the first
    /// that fit, and a control character is a space.
    ///
    /// No heartbeat repeats a digest that was changed by this, so its agent is asked for everything each time.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        // the server's own are short
        self.head.revision = self.head.revision.filter(|revision| revision.to_string().len() <= NAME);
        cut(&mut self.head.digest, NAME);
        cut_list(&mut self.policies, POLICIES);
        for policy in &mut self.policies {
            if !fits(policy.id.as_str(), NAME) {
                let mut id = policy.id.to_string();
                cut(&mut id, NAME);
                policy.id = PolicyId::from(id);
            }
            if let PolicyOutcome::Error(why) = &mut policy.outcome {
                cut(why, TEXT);
            }
        }
        cut_list(&mut self.interfaces, LIST);
        // the longest lists give way, so that one interface keeps its few addresses however many another has
        let mut most = IPS;
        while self.interfaces.iter().map(|i| i.ips.len().min(most)).sum::<usize>() > ALL_IPS {
            most /= 2;
        }
        for interface in &mut self.interfaces {
            cut(&mut interface.name, NAME);
            cut(&mut interface.mac, MAC);
            cut(&mut interface.state, NAME);
            cut_ips(&mut interface.ips, most);
        }
        cut_list(&mut self.attach, LIST);
        for attach in &mut self.attach {
            cut(&mut attach.interface, TEXT);
            cut(&mut attach.message, TEXT);
        }
        let facts = &mut self.facts;
        for text in [&mut facts.version, &mut facts.ovs_version, &mut facts.bridge] {
            cut(text, NAME);
        }
        for (mut table, flows) in std::mem::take(&mut facts.flow_table).into_iter().take(LIST) {
            cut(&mut table, NAME);
            facts.flow_table.insert(table, flows);
        }
        self
    }
}

fn fits(text: &str, most: usize) -> bool {
    text.len() <= most && !text.contains(char::is_control)
}

fn cut_list<T>(list: &mut Vec<T>, most: usize) {
    list.truncate(most);
    // the memory goes, too: a report stays until the next
    list.shrink_to_fit();
}

fn cut(text: &mut String, most: usize) {
    if text.len() > most {
        *text = format!("{}{MORE}", &text[..text.floor_char_boundary(most - MORE.len())]);
    }
    if !fits(text, most) {
        *text = one_line(text);
    }
}

/// The first `most` addresses, of which each family may have half.
fn cut_ips(ips: &mut BTreeSet<IpAddr>, most: usize) {
    if ips.len() <= most {
        return;
    }
    // IPv4 comes first in order, and would leave nothing to the other
    let v4 = ips.iter().filter(|ip| ip.is_ipv4()).count();
    let kept = v4.min(most - (ips.len() - v4).min(most / 2));
    let v6 = ips.iter().skip(v4);
    *ips = ips.iter().take(kept).chain(v6.take(most - kept)).copied().collect();
}
