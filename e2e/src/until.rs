//! Waits until a state holds, and says what it saw instead when it never does.

use std::fmt::Display;
use std::time::Duration;

use anyhow::bail;
use tokio::time::{Instant, sleep_until, timeout_at};

/// What one look at the world found: the value that was waited for, or what was there instead.
pub trait Look {
    /// What a satisfied wait returns.
    type Value;

    /// The value, or a description of what was seen instead.
    fn found(self) -> Result<Self::Value, String>;
}

impl Look for bool {
    type Value = ();

    fn found(self) -> Result<(), String> {
        if self { Ok(()) } else { Err("it is not so".to_owned()) }
    }
}

impl<T> Look for Option<T> {
    type Value = T;

    fn found(self) -> Result<T, String> {
        self.ok_or_else(|| "nothing".to_owned())
    }
}

/// An error is something seen, too: it does not end the wait, and is told when the wait fails.
impl<A: Look, E: Display> Look for Result<A, E> {
    type Value = A::Value;

    fn found(self) -> Result<A::Value, String> {
        self.map_err(|error| format!("{error:#}"))?.found()
    }
}

/// The shortest and the longest pause between two looks.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(250)];

/// Looks again and again until a look finds what is waited for.
///
/// `hopeless` says why there's no use in waiting any longer, for instance that the program waited for has ended.
pub async fn until<A: Look>(
    what: &str,
    limit: Duration,
    mut hopeless: impl FnMut() -> Option<String>,
    mut look: impl AsyncFnMut() -> A,
) -> anyhow::Result<A::Value> {
    let deadline = Instant::now() + limit;
    let [mut pause, longest] = PAUSES;
    let mut seen = "no answer".to_owned();
    loop {
        if let Some(reason) = hopeless() {
            bail!("gave up waiting until {what}: {reason}");
        }
        match timeout_at(deadline, look()).await.map(Look::found) {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(other)) => seen = other,
            // The last look hangs: what the one before it saw says more.
            Err(_) => {}
        }
        if Instant::now() >= deadline {
            bail!("waited {limit:?} in vain until {what}; last seen: {seen}");
        }
        sleep_until(deadline.min(Instant::now() + pause)).await;
        pause = longest.min(pause * 3 / 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(30);

    #[tokio::test]
    async fn a_wait_returns_what_it_found() {
        let mut looks = 0;
        let found = until(
            "the third look",
            SHORT * 100,
            || None,
            async || {
                looks += 1;
                (looks == 3).then_some(looks)
            },
        );
        assert_eq!(found.await.unwrap(), 3);
    }

    #[tokio::test]
    async fn a_wait_in_vain_says_what_it_waited_for_and_what_it_saw() {
        let waited = until("the moon is full", SHORT, || None, async || Err::<bool, _>("half a moon")).await;
        let said = waited.unwrap_err().to_string();
        assert_eq!(said, "waited 30ms in vain until the moon is full; last seen: half a moon");
    }

    #[tokio::test]
    async fn a_look_that_hangs_does_not_outlast_the_limit() {
        let waited = until("an answer", SHORT, || None, std::future::pending::<bool>).await;
        assert_eq!(waited.unwrap_err().to_string(), "waited 30ms in vain until an answer; last seen: no answer");
    }

    #[tokio::test]
    async fn a_hopeless_wait_ends_at_once() {
        let waited = until("an answer", SHORT * 1000, || Some("the line is dead".to_owned()), async || false).await;
        assert_eq!(waited.unwrap_err().to_string(), "gave up waiting until an answer: the line is dead");
    }
}
