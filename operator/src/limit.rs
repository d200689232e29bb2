//! How much one identity may ask for: a token bucket for each verb, and a cap on streams that are open at once.
//!
//! One machine that goes wild, or one stolen token, slows down nobody else.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use governor::clock::{Clock, DefaultClock, Reference};
use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};

/// Below this many identities nothing is ever forgotten.
const FEW: usize = 1024;

/// How often quiet identities are looked for when there is no room for another.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// What is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Opening a watch.
    Watch,
    /// Sending a report.
    Report,
}

/// At most `burst` at once, and `per_second` in the long run.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// How many at once.
    pub burst: NonZeroU32,
    /// How many per second in the long run.
    pub per_second: NonZeroU32,
}

/// All limits.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// For [`Verb::Watch`].
    pub watch: Rate,
    /// For [`Verb::Report`].
    pub report: Rate,
    /// Streams of one identity open at once.
    pub streams: usize,
    /// Identities remembered at once. Beyond it new ones are turned away until old ones are quiet.
    pub identities: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { watch: rate(10, 1), report: rate(20, 5), streams: 16, identities: 100_000 }
    }
}

const fn rate(burst: u32, per_second: u32) -> Rate {
    // Both are above zero wherever this is called, which the compiler checks for constants.
    const fn some(number: u32) -> NonZeroU32 {
        match NonZeroU32::new(number) {
            Some(number) => number,
            None => NonZeroU32::MIN,
        }
    }
    Rate { burst: some(burst), per_second: some(per_second) }
}

/// Too much; come back after this long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many requests; again in {} s", self.seconds())]
pub struct RetryAfter(pub Duration);

impl RetryAfter {
    /// For the header of that name: whole seconds, at least one.
    pub fn seconds(&self) -> u64 {
        (self.0.as_secs() + u64::from(self.0.subsec_nanos() > 0)).max(1)
    }
}

/// Why a stream isn't opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoStream {
    /// The identity has as many open as it may.
    #[error("{open} streams of this identity are open, which is all it may have")]
    TooMany {
        /// How many.
        open: usize,
    },
    /// There is no room for another identity.
    #[error("too many identities have streams open")]
    NoRoom,
}

type Bucket<C> = RateLimiter<NotKeyed, InMemoryState, C, NoOpMiddleware<<C as Clock>::Instant>>;

/// The limits, and what each identity has used up.
#[derive(Debug)]
pub struct Limits<C: Clock = DefaultClock> {
    settings: Settings,
    clock: C,
    /// Longer than any bucket takes to fill: who was quiet for so long is as good as new.
    forget_after: Duration,
    used: Mutex<Used<C>>,
}

#[derive(Debug)]
struct Used<C: Clock> {
    by_identity: HashMap<Box<str>, Entry<C>>,
    /// Sweeping whenever the number has doubled costs nothing on average.
    sweep_at: usize,
    /// With no room left, a flood must not make us sweep for each of its identities.
    swept: C::Instant,
}

#[derive(Debug)]
struct Entry<C: Clock> {
    watch: Bucket<C>,
    report: Bucket<C>,
    streams: Arc<AtomicUsize>,
    last: C::Instant,
}

/// A stream that counts as open until this is dropped.
#[derive(Debug)]
#[must_use = "the stream counts as closed once this is dropped"]
pub struct OpenStream(Arc<AtomicUsize>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Limits {
    /// Nobody has used anything.
    pub fn new(settings: Settings) -> Self {
        Self::with_clock(settings, DefaultClock::default())
    }
}

impl<C: Clock + Clone> Limits<C> {
    /// As [`Limits::new`], by another clock.
    pub fn with_clock(settings: Settings, clock: C) -> Self {
        let fill = |rate: Rate| Duration::from_secs(1) * rate.burst.get().div_ceil(rate.per_second.get());
        Self {
            forget_after: fill(settings.watch).max(fill(settings.report)) + Duration::from_secs(1),
            used: Mutex::new(Used { by_identity: HashMap::new(), sweep_at: FEW, swept: clock.now() }),
            clock,
            settings,
        }
    }

    /// Takes one token of `identity` for `verb`, or says when there will be one.
    pub fn check(&self, identity: &str, verb: Verb) -> Result<(), RetryAfter> {
        self.with(identity, |entry| {
            let bucket = match verb {
                Verb::Watch => &entry.watch,
                Verb::Report => &entry.report,
            };
            bucket.check().map_err(|wait| RetryAfter(wait.wait_time_from(self.clock.now())))
        })
        .unwrap_or(Err(RetryAfter(self.forget_after)))
    }

    /// Counts one more open stream of `identity`, if it may have it.
    pub fn open_stream(&self, identity: &str) -> Result<OpenStream, NoStream> {
        self.with(identity, |entry| {
            // Only ever raised under the lock.
            let open = entry.streams.load(Ordering::Relaxed);
            if open >= self.settings.streams {
                return Err(NoStream::TooMany { open });
            }
            entry.streams.fetch_add(1, Ordering::Relaxed);
            Ok(OpenStream(entry.streams.clone()))
        })
        .unwrap_or(Err(NoStream::NoRoom))
    }

    /// How many identities are remembered.
    pub fn remembered(&self) -> usize {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).by_identity.len()
    }

    /// Runs `then` on the entry of `identity`. None if there is no room for another one.
    fn with<T>(&self, identity: &str, then: impl FnOnce(&Entry<C>) -> T) -> Option<T> {
        let now = self.clock.now();
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = used.by_identity.get_mut(identity) {
            entry.last = now;
            return Some(then(entry));
        }
        let full = used.by_identity.len() >= self.settings.identities;
        let sweep = if full { since(now, used.swept) >= SWEEP_EVERY } else { used.by_identity.len() >= used.sweep_at };
        if sweep {
            used.by_identity.retain(|_, entry| {
                entry.streams.load(Ordering::Relaxed) > 0 || since(now, entry.last) < self.forget_after
            });
            used.swept = now;
            used.sweep_at = (used.by_identity.len() * 2).max(FEW);
            // What a flood has taken is given back.
            let room = used.sweep_at;
            used.by_identity.shrink_to(room);
        }
        if used.by_identity.len() >= self.settings.identities {
            return None;
        }
        let bucket = |rate: Rate| {
            let quota = Quota::per_second(rate.per_second).allow_burst(rate.burst);
            RateLimiter::direct_with_clock(quota, self.clock.clone())
        };
        let entry = Entry {
            watch: bucket(self.settings.watch),
            report: bucket(self.settings.report),
            streams: Arc::default(),
            last: now,
        };
        Some(then(used.by_identity.entry(identity.into()).or_insert(entry)))
    }
}

fn since<T: Reference>(now: T, earlier: T) -> Duration {
    now.duration_since(earlier).into()
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;

    use super::*;

    fn limits(change: impl FnOnce(&mut Settings)) -> (Limits<FakeRelativeClock>, FakeRelativeClock) {
        let clock = FakeRelativeClock::default();
        let mut settings = Settings::default();
        change(&mut settings);
        (Limits::with_clock(settings, clock.clone()), clock)
    }

    fn allowed(limits: &Limits<FakeRelativeClock>, identity: &str, verb: Verb) -> usize {
        (0..1000).take_while(|_| limits.check(identity, verb).is_ok()).count()
    }

    #[test]
    fn a_burst_is_allowed_and_then_the_long_run() {
        for (verb, burst, per_second) in [(Verb::Watch, 10, 1), (Verb::Report, 20, 5)] {
            let (limits, clock) = limits(|_| ());
            assert_eq!(allowed(&limits, "vm1", verb), burst);
            for _ in 0..3 {
                clock.advance(Duration::from_secs(1));
                assert_eq!(allowed(&limits, "vm1", verb), per_second);
            }
        }
    }

    #[test]
    fn one_identity_uses_up_nothing_of_another_and_one_verb_nothing_of_another() {
        let (limits, _) = limits(|_| ());
        allowed(&limits, "vm1", Verb::Watch);
        assert_eq!(allowed(&limits, "vm2", Verb::Watch), 10);
        assert_eq!(allowed(&limits, "vm1", Verb::Report), 20);
    }

    #[test]
    fn who_waits_as_told_is_let_in() {
        let (limits, clock) = limits(|_| ());
        allowed(&limits, "vm1", Verb::Watch);
        let wait = limits.check("vm1", Verb::Watch).unwrap_err();
        assert_eq!((wait.0, wait.seconds()), (Duration::from_secs(1), 1));
        clock.advance(wait.0);
        assert_eq!(limits.check("vm1", Verb::Watch), Ok(()));
        assert_eq!(RetryAfter(Duration::from_millis(1001)).seconds(), 2);
        assert_eq!(RetryAfter(Duration::ZERO).seconds(), 1);
    }

    #[test]
    fn a_stream_counts_until_it_is_dropped() {
        let (limits, _) = limits(|_| ());
        let mut streams: Vec<_> = (0..16).map(|_| limits.open_stream("vm1").unwrap()).collect();
        assert_eq!(limits.open_stream("vm1").unwrap_err(), NoStream::TooMany { open: 16 });
        assert!(limits.open_stream("vm2").is_ok());
        streams.pop();
        assert!(limits.open_stream("vm1").is_ok());
    }

    #[test]
    fn quiet_identities_are_forgotten_and_are_as_good_as_new() {
        let (limits, clock) = limits(|_| ());
        for n in 0..FEW {
            limits.check(&format!("vm{n}"), Verb::Watch).unwrap();
        }
        clock.advance(Duration::from_secs(12));
        limits.check("another", Verb::Watch).unwrap();
        assert_eq!(limits.remembered(), 1);
        assert_eq!(allowed(&limits, "vm0", Verb::Watch), 10);
    }

    #[test]
    fn an_open_stream_is_not_forgotten() {
        let (limits, clock) = limits(|settings| settings.streams = 1);
        let stream = limits.open_stream("vm1").unwrap();
        clock.advance(Duration::from_hours(1));
        for n in 0..FEW {
            limits.check(&format!("other{n}"), Verb::Watch).unwrap();
        }
        assert!(limits.open_stream("vm1").is_err());
        drop(stream);
        assert!(limits.open_stream("vm1").is_ok());
    }

    #[test]
    fn a_flood_of_identities_takes_bounded_memory_and_old_ones_are_still_served() {
        let (limits, clock) = limits(|settings| settings.identities = 100);
        limits.check("vm1", Verb::Report).unwrap();
        let refused = (0..1000).filter(|n| limits.check(&format!("flood{n}"), Verb::Report).is_err()).count();
        assert_eq!((limits.remembered(), refused), (100, 901));
        assert!(limits.check("vm1", Verb::Report).is_ok());
        clock.advance(Duration::from_secs(12));
        assert!(limits.check("new", Verb::Report).is_ok(), "the flood is over");
    }
}
