//! How long to wait before the operator is tried again.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use super::Told;

/// Waits that double from 0.2 s to 30 s, each drawn at random up to its bound: machines that lost the operator together
/// don't come back together.
#[derive(Clone, Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The shortest wait.
    pub const FIRST: Duration = Duration::from_millis(200);
    /// The longest wait that isn't asked for.
    pub const LAST: Duration = Duration::from_secs(30);
    /// The longest wait that an operator may ask for.
    pub const ASKED: Duration = Duration::from_mins(10);

    /// The next wait, at the point `chance` (`0.0..1.0`) of what may be drawn; at least what the operator `asked` for.
    pub fn next(&mut self, chance: f64, asked: Option<Duration>) -> Duration {
        let bound = Self::FIRST.saturating_mul(2_u32.saturating_pow(self.failures + 1)).min(Self::LAST);
        self.failures = (self.failures + 1).min(31);
        let drawn = bound.saturating_sub(Self::FIRST).mul_f64(chance.clamp(0.0, 1.0));
        // What was asked for is asked of everybody: the draw spreads it.
        asked.map_or(Self::FIRST, |asked| asked.clamp(Self::FIRST, Self::ASKED)) + drawn
    }

    /// A commit proves that all is well: the next wait is short again. A `hello` or a ping proves little.
    pub fn hear(&mut self, told: &Told) {
        if matches!(told, Told::Commit(_)) {
            self.failures = 0;
        }
    }
}

/// A number in `0.0..1.0`. Not for secrets.
pub(super) fn chance() -> f64 {
    // Every RandomState is keyed anew from the system's randomness.
    let bits = u32::try_from(RandomState::new().hash_one(0_u8) >> 32).unwrap_or_default();
    f64::from(bits) / (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests {
    use crds::wire::Revision;

    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn the_longest_waits_double_up_to_half_a_minute() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..9).map(|_| backoff.next(1.0, None)).collect();
        let doubled = [400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000];
        assert_eq!(waits, doubled.map(MS));
    }

    #[test]
    fn only_a_commit_makes_the_waits_short_again() {
        let mut backoff = Backoff { failures: 4 };
        for told in [Told::Hello, Told::Ping, Told::Gone { uid: "u1".into(), reason: String::new() }] {
            backoff.hear(&told);
        }
        assert_eq!(backoff.next(1.0, None), MS(6_400));
        backoff.hear(&Told::Commit(Revision::new("e", 1)));
        assert_eq!(backoff.next(1.0, None), MS(400));
    }

    #[test]
    fn the_shortest_wait_stays_short_however_often_it_failed() {
        let mut backoff = Backoff::default();
        assert!((0..200).all(|_| backoff.next(0.0, None) == Backoff::FIRST));
    }

    #[test]
    fn an_operator_can_ask_for_more_and_not_for_ever() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.next(0.5, Some(Duration::from_secs(7))), MS(7_100));
        assert_eq!(backoff.next(0.0, Some(Duration::MAX)), Backoff::ASKED);
        assert_eq!(backoff.next(0.0, Some(Duration::ZERO)), Backoff::FIRST, "nobody comes back at once");
    }

    #[test]
    fn chances_differ() {
        let chances: Vec<_> = (0..100).map(|_| chance()).collect();
        assert!(chances.iter().all(|chance| (0.0..1.0).contains(chance)));
        assert!(chances.iter().any(|chance| (chance - chances[0]).abs() > 0.1));
    }
}
