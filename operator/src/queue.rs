//! Work by key: each key waits once, runs once at a time, and comes again later when asked to.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

/// Keys that wait, keys that run or rest after it, keys whose time has not come.
#[derive(Debug)]
pub struct Queue<K> {
    waiting: VecDeque<K>,
    waits: HashSet<K>,
    runs: HashSet<K>,
    again: HashSet<K>,
    resting: BTreeSet<(Instant, K)>,
    later: BTreeSet<(Instant, K)>,
    due: HashMap<K, Instant>,
    failures: HashMap<K, u32>,
}

impl<K: Clone + Ord + Hash> Default for Queue<K> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            waits: HashSet::new(),
            runs: HashSet::new(),
            again: HashSet::new(),
            resting: BTreeSet::new(),
            later: BTreeSet::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
        }
    }
}

/// The shortest wait after a failure; doubled by each further one up to [`LONGEST`].
const FIRST: Duration = Duration::from_millis(100);

/// The longest wait after a failure.
const LONGEST: Duration = Duration::from_secs(30);

impl<K: Clone + Ord + Hash> Queue<K> {
    /// `key` is to be looked at now, or once more when it runs.
    pub fn add(&mut self, key: K) {
        if self.runs.contains(&key) {
            self.again.insert(key);
            return;
        }
        self.forget_due(&key);
        if self.waits.insert(key.clone()) {
            self.waiting.push_back(key);
        }
    }

    /// `key` is to be looked at at `at`, unless something earlier asks for it.
    pub fn add_at(&mut self, key: K, at: Instant) {
        if self.waits.contains(&key) || self.due.get(&key).is_some_and(|due| *due <= at) {
            return;
        }
        self.forget_due(&key);
        self.due.insert(key.clone(), at);
        self.later.insert((at, key));
    }

    fn forget_due(&mut self, key: &K) {
        if let Some(at) = self.due.remove(key) {
            self.later.remove(&(at, key.clone()));
        }
    }

    /// When the next key is due, or has rested, that is not yet.
    pub fn next_due(&self) -> Option<Instant> {
        let firsts = [self.later.first(), self.resting.first()];
        firsts.into_iter().flatten().map(|(at, _)| *at).min()
    }

    /// The next key to run, if one is due at `now`. It counts as running until [`Queue::done`] or [`Queue::failed`].
    pub fn pop(&mut self, now: Instant) -> Option<K> {
        while let Some(key) = pop_due(&mut self.resting, now) {
            self.ended(&key);
        }
        while let Some(key) = pop_due(&mut self.later, now) {
            self.due.remove(&key);
            self.add(key);
        }
        let key = self.waiting.pop_front()?;
        self.waits.remove(&key);
        self.runs.insert(key.clone());
        Some(key)
    }

    /// `key` ran and is content. It rests until `rest`: whoever asks for it before then gets it after.
    pub fn done(&mut self, key: &K, rest: Option<Instant>) {
        self.failures.remove(key);
        self.rest(key, rest);
    }

    /// `key` ran in vain: it comes again after a wait, which is returned, and not before `rest`. `jitter` spreads it,
    /// from 0 to 1.
    pub fn failed(&mut self, key: &K, now: Instant, jitter: f64, rest: Option<Instant>) -> Duration {
        let failures = self.failures.entry(key.clone()).or_default();
        *failures += 1;
        let whole = FIRST.saturating_mul(2u32.saturating_pow((*failures - 1).min(16))).min(LONGEST);
        let wait = whole / 2 + (whole / 2).mul_f64(jitter.clamp(0.0, 1.0));
        self.rest(key, rest);
        self.add_at(key.clone(), now + wait);
        wait
    }

    /// A key that rests counts as running.
    fn rest(&mut self, key: &K, until: Option<Instant>) {
        match until {
            Some(until) => _ = self.resting.insert((until, key.clone())),
            None => self.ended(key),
        }
    }

    fn ended(&mut self, key: &K) {
        self.runs.remove(key);
        if self.again.remove(key) {
            self.add(key.clone());
        }
    }

    /// How many wait to run now.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none waits to run now.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

fn pop_due<K: Ord>(keys: &mut BTreeSet<(Instant, K)>, now: Instant) -> Option<K> {
    keys.first().filter(|(at, _)| *at <= now)?;
    keys.pop_first().map(|(_, key)| key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_waits_once_and_runs_once_at_a_time() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add("a");
        queue.add("a");
        assert_eq!((queue.pop(now), queue.pop(now)), (Some("a"), None));
        queue.add("a");
        assert_eq!(queue.pop(now), None, "it runs");
        queue.done(&"a", None);
        assert_eq!(queue.pop(now), Some("a"), "what came meanwhile is not lost");
    }

    #[test]
    fn a_key_comes_at_its_time_or_earlier_when_asked() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let later = |s| now + Duration::from_secs(s);
        queue.add_at("a", later(9));
        queue.add_at("a", later(5));
        queue.add_at("a", later(7));
        assert_eq!(queue.next_due(), Some(later(5)));
        assert_eq!(queue.pop(later(4)), None);
        queue.add("a");
        assert_eq!(queue.pop(now), Some("a"));
        assert_eq!(queue.next_due(), None, "looked at is looked at");
    }

    #[test]
    fn a_key_that_rests_comes_once_after_it_however_often_it_is_asked_for() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let later = |s| now + Duration::from_secs(s);
        for fails in [false, true] {
            queue.add("a");
            assert_eq!(queue.pop(now), Some("a"), "the first after quiet comes at once");
            if fails {
                queue.failed(&"a", now, 1.0, Some(later(5)));
            } else {
                queue.done(&"a", Some(later(5)));
                queue.add("a");
                queue.add_at("a", later(1));
            }
            assert_eq!(queue.pop(later(4)), None);
            assert_eq!(queue.next_due(), Some(later(5)));
            assert_eq!(queue.pop(later(5)), Some("a"));
            queue.done(&"a", Some(later(9)));
            assert_eq!(queue.pop(later(9)), None, "nobody asked");
            assert_eq!(queue.next_due(), None, "it is forgotten");
        }
    }

    #[test]
    fn failures_wait_longer_each_time_and_a_success_forgets_them() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let fail = |queue: &mut Queue<_>, now| {
            queue.add("a");
            queue.pop(now).unwrap();
            queue.failed(&"a", now, 1.0, None)
        };
        let waits: Vec<_> = (0..12).map(|_| fail(&mut queue, now)).collect();
        assert_eq!(waits[..3], [100, 200, 400].map(Duration::from_millis));
        assert_eq!(*waits.last().unwrap(), LONGEST);
        queue.add("a");
        queue.pop(now);
        queue.done(&"a", None);
        assert_eq!(fail(&mut queue, now), Duration::from_millis(100));
    }
}
