//! Randomness for waits, so that many who failed together don't come back together.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// A number in `0.0..1.0`. Not for secrets.
pub fn fraction() -> f64 {
    // Every RandomState is keyed anew from the system's randomness.
    let bits = u32::try_from(RandomState::new().hash_one(0_u8) >> 32).unwrap_or_default();
    f64::from(bits) / (f64::from(u32::MAX) + 1.0)
}

/// Between half of `wait` and all of it.
pub fn of(wait: Duration) -> Duration {
    wait.mul_f64(0.5 + fraction() / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_at_least_half_and_at_most_all_of_what_was_asked() {
        let waits: Vec<_> = (0..100).map(|_| of(Duration::from_secs(2))).collect();
        assert!(waits.iter().all(|wait| (Duration::from_secs(1)..=Duration::from_secs(2)).contains(wait)));
        assert!(waits.iter().any(|wait| *wait != waits[0]), "they differ");
    }
}
