//! What is wrong with a `Tier`: alone, beside the others, and as a change.

use kube::ResourceExt;

use super::{Found, Violation};
use crate::tier::{BUILT_IN, MOST, Tier, built_in};

/// All that is wrong with `tier` alone.
pub fn tier(tier: &Tier) -> Vec<Violation> {
    let mut found = Found::default();
    let (name, priority) = (tier.name_any(), tier.spec.priority);
    found.number("spec.priority", Some(priority), 0..=255);
    if let Some(own) = built_in(&name) {
        if own.priority != priority {
            let reason =
                format!("tier {name} is built in with priority {}; give a new tier another name", own.priority);
            found.add("spec.priority", priority, reason);
        }
    } else if let Some(other) = BUILT_IN.iter().find(|other| other.priority == priority) {
        let reason = format!("is the priority of the built-in tier {}; choose one that is free", other.name);
        found.add("spec.priority", priority, reason);
    }
    found.0
}

/// All that is wrong with a new `tier` beside the `others` that exist.
pub fn tier_among<'a>(tier: &Tier, others: impl IntoIterator<Item = &'a Tier>) -> Vec<Violation> {
    let mut found = Found::default();
    let name = tier.name_any();
    let others: Vec<&Tier> = others.into_iter().filter(|other| other.name_any() != name).collect();
    if let Some(other) = others.iter().find(|other| other.spec.priority == tier.spec.priority) {
        let reason = format!("is the priority of tier {}; choose one that is free", other.name_any());
        found.add("spec.priority", tier.spec.priority, reason);
    }
    if others.len() >= MOST && built_in(&name).is_none() {
        found.add("metadata.name", name, format!("there are {MOST} tiers already; delete one first"));
    }
    found.0
}

/// All that is wrong with changing `old` to `new`.
pub fn tier_change(old: &Tier, new: &Tier) -> Vec<Violation> {
    let mut found = Found::default();
    if old.spec.priority != new.spec.priority {
        let reason = format!(
            "was {} and can't be changed, because all policies of the tier would move at once; \
             create a new tier and move them one by one",
            old.spec.priority
        );
        found.add("spec.priority", new.spec.priority, reason);
    }
    found.0
}

#[cfg(test)]
mod tests {
    use super::super::tests::said;
    use super::*;
    use crate::tier::TierSpec;

    fn at(name: &str, priority: i32) -> Tier {
        Tier::new(name, TierSpec { priority, description: None })
    }

    #[test]
    fn a_tier_of_its_own_rank_is_taken() {
        assert_eq!(tier(&at("ours", 120)), []);
        assert_eq!(tier_among(&at("ours", 120), &[at("ours", 120), at("theirs", 121)]), []);
        assert_eq!(tier_change(&at("ours", 120), &at("ours", 120)), []);
        for own in BUILT_IN {
            assert_eq!(tier(&at(own.name, own.priority)), []);
        }
    }

    #[test]
    fn a_tier_can_t_take_what_is_built_in() {
        let wanted =
            ["spec.priority: \"120\": tier platform is built in with priority 200; give a new tier another name"];
        assert_eq!(said(&tier(&at("platform", 120))), wanted);
        let wanted = ["spec.priority: \"200\": is the priority of the built-in tier platform; choose one that is free"];
        assert_eq!(said(&tier(&at("ours", 200))), wanted);
        assert_eq!(said(&tier(&at("ours", 256))), ["spec.priority: \"256\": must be a number from 0 to 255"]);
    }

    #[test]
    fn a_rank_is_taken_once_and_kept() {
        let wanted = ["spec.priority: \"120\": is the priority of tier theirs; choose one that is free"];
        assert_eq!(said(&tier_among(&at("ours", 120), &[at("theirs", 120)])), wanted);
        assert_eq!(tier_change(&at("ours", 120), &at("ours", 121)).len(), 1);
    }

    #[test]
    fn there_are_at_most_twenty_tiers() {
        let full: Vec<Tier> = (0..20).map(|n| at(&format!("t{n}"), n)).collect();
        assert_eq!(
            said(&tier_among(&at("ours", 120), &full)),
            ["metadata.name: \"ours\": there are 20 tiers already; delete one first"]
        );
        assert_eq!(tier_among(&at("baseline", 253), &full), [], "what is built in always fits");
    }
}
