//! The tasks of the process, and its end.
//!
//! ```text
//! SIGTERM, SIGINT ---------+
//!                          v
//! a task ends ------> shutdown token --> every task ends by itself --> run returns
//!                                   \--> grace is over, or a second signal --> the end all the same
//! ```
//!
//! No task may end while the others go on: half a process is harder to notice than none.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::future::Future;
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crds::chain::Chain;

type Cause = Box<dyn StdError + Send + Sync>;

/// The named tasks of a process.
#[derive(Debug)]
pub struct Runtime {
    tasks: JoinSet<Result<(), Cause>>,
    names: HashMap<Id, String>,
    shutdown: CancellationToken,
    grace: Duration,
}

/// Why the process ends, when it should not have.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A task failed.
    #[error("{task} failed")]
    Failed {
        /// Its name.
        task: String,
        /// Why.
        source: Cause,
    },
    /// A task ended, and nobody had asked it to.
    #[error("{task} ended by itself")]
    Ended {
        /// Its name.
        task: String,
    },
    /// A task panicked. Where and why, the panic itself has printed.
    #[error("{task} panicked")]
    Panicked {
        /// Its name.
        task: String,
    },
    /// Tasks that did not end in time.
    #[error("still running {grace:?} after the shutdown: {tasks}")]
    Stuck {
        /// Their names.
        tasks: String,
        /// How long they were waited for.
        grace: Duration,
    },
    /// A second signal came.
    #[error("ended by a second signal")]
    Forced,
    /// Signals can't be listened to.
    #[error("can't listen to signals")]
    Signals(#[source] std::io::Error),
}

impl Runtime {
    /// No tasks yet. At the end, `grace` is how long tasks get to end by themselves.
    pub fn new(grace: Duration) -> Self {
        Self { tasks: JoinSet::new(), names: HashMap::new(), shutdown: CancellationToken::new(), grace }
    }

    /// Cancelled when the process should end. Every task holds one.
    pub fn shutdown(&self) -> CancellationToken {
        self.shutdown.clone()
    }

    /// Starts a task that runs until the shutdown.
    pub fn spawn<E: Into<Cause>>(
        &mut self,
        name: impl Into<String>,
        task: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        let task = self.tasks.spawn(async move { task.await.map_err(Into::into) });
        self.names.insert(task.id(), name.into());
    }

    /// Runs until a signal or the end of any task, then until all have ended.
    /// A second signal ends the process on the spot.
    pub async fn run(self) -> Result<(), Error> {
        let (terminate, interrupt) = (each(SignalKind::terminate())?, each(SignalKind::interrupt())?);
        let result = self.run_until(stream::select(terminate, interrupt)).await;
        if let Err(error @ Error::Forced) = &result {
            // Returning would wait for tasks that block.
            tracing::error!("{error}");
            std::process::exit(1);
        }
        result
    }

    async fn run_until(mut self, signals: impl Stream<Item = ()>) -> Result<(), Error> {
        let mut signals = std::pin::pin!(signals.fuse());
        let mut reason = Ok(());
        let mut end = None;
        while !self.tasks.is_empty() {
            tokio::select! {
                Some(()) = signals.next() => {
                    if end.is_some() {
                        return Err(Error::Forced);
                    }
                    tracing::info!("shutting down");
                }
                Some(ended) = self.tasks.join_next_with_id() => match self.judge(ended, end.is_some()) {
                    Ok(()) => {}
                    // The first is why the process ends; what follows is only told.
                    Err(error) if reason.is_err() => tracing::warn!(error = %Chain(&error), "and another"),
                    Err(error) => reason = Err(error),
                },
                () = at(end) => {
                    let mut tasks: Vec<_> = self.names.into_values().collect();
                    tasks.sort_unstable();
                    return reason.and(Err(Error::Stuck { tasks: tasks.join(", "), grace: self.grace }));
                }
            }
            if end.is_none() {
                self.shutdown.cancel();
                end = Some(Instant::now() + self.grace);
            }
        }
        reason
    }

    fn judge(&mut self, ended: Result<(Id, Result<(), Cause>), JoinError>, shutting_down: bool) -> Result<(), Error> {
        let id = ended.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let task = self.names.remove(&id).unwrap_or_default();
        match ended {
            Ok((_, Ok(()))) if shutting_down => Ok(()),
            Ok((_, Ok(()))) => Err(Error::Ended { task }),
            Ok((_, Err(source))) => Err(Error::Failed { task, source }),
            Err(_) => Err(Error::Panicked { task }),
        }
    }
}

fn each(kind: SignalKind) -> Result<impl Stream<Item = ()> + Unpin, Error> {
    let mut signal = signal(kind).map_err(Error::Signals)?;
    Ok(stream::poll_fn(move |cx| signal.poll_recv(cx)))
}

async fn at(end: Option<Instant>) {
    match end {
        Some(end) => sleep_until(end).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::pending;

    use tokio::sync::mpsc;
    use tokio_stream::wrappers::UnboundedReceiverStream;

    use super::*;

    fn runtime() -> Runtime {
        Runtime::new(Duration::from_secs(30))
    }

    /// A task that ends when asked to.
    fn obedient(runtime: &mut Runtime, name: &str) {
        let shutdown = runtime.shutdown();
        runtime.spawn(name, async move {
            shutdown.cancelled().await;
            Ok::<_, Infallible>(())
        });
    }

    #[tokio::test]
    async fn a_failing_task_ends_the_others_and_the_process() {
        let mut runtime = runtime();
        obedient(&mut runtime, "watch");
        runtime.spawn("serve", async { Err("address in use") });
        let error = runtime.run_until(stream::pending()).await.unwrap_err();
        assert_eq!(Chain(&error).to_string(), "serve failed: address in use");
    }

    #[tokio::test]
    async fn a_task_that_ends_early_ends_the_process() {
        let mut runtime = runtime();
        obedient(&mut runtime, "watch");
        runtime.spawn("serve", async { Ok::<_, Infallible>(()) });
        let error = runtime.run_until(stream::pending()).await.unwrap_err();
        assert_eq!(error.to_string(), "serve ended by itself");
    }

    #[tokio::test]
    async fn a_panicking_task_ends_the_process() {
        let mut runtime = runtime();
        obedient(&mut runtime, "watch");
        runtime.spawn::<Infallible>("serve", async { panic!("on purpose") });
        let error = runtime.run_until(stream::pending()).await.unwrap_err();
        assert_eq!(error.to_string(), "serve panicked");
    }

    #[tokio::test]
    async fn the_first_failure_is_the_reason() {
        let mut runtime = runtime();
        let shutdown = runtime.shutdown();
        runtime.spawn("watch", async move {
            shutdown.cancelled().await;
            Err("cut off")
        });
        runtime.spawn("serve", async { Err("address in use") });
        let error = runtime.run_until(stream::pending()).await.unwrap_err();
        assert_eq!(Chain(&error).to_string(), "serve failed: address in use");
    }

    #[tokio::test]
    async fn a_signal_ends_the_process_without_an_error() {
        let mut runtime = runtime();
        obedient(&mut runtime, "watch");
        obedient(&mut runtime, "serve");
        runtime.run_until(stream::once(async {}).chain(stream::pending())).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_does_not_end_is_named_after_the_grace() {
        let mut runtime = runtime();
        obedient(&mut runtime, "watch");
        runtime.spawn::<Infallible>("serve", pending());
        let start = Instant::now();
        let error = runtime.run_until(stream::once(async {}).chain(stream::pending())).await.unwrap_err();
        assert_eq!(error.to_string(), "still running 30s after the shutdown: serve");
        assert_eq!(start.elapsed(), Duration::from_secs(30));
    }

    #[tokio::test]
    async fn a_second_signal_waits_for_nobody() {
        let mut runtime = runtime();
        runtime.spawn::<Infallible>("serve", pending());
        let shutdown = runtime.shutdown();
        let (kill, signals) = mpsc::unbounded_channel();
        let run = tokio::spawn(runtime.run_until(UnboundedReceiverStream::new(signals)));
        kill.send(()).unwrap();
        shutdown.cancelled().await;
        kill.send(()).unwrap();
        assert!(matches!(run.await.unwrap(), Err(Error::Forced)));
    }

    #[tokio::test]
    async fn a_real_sigterm_is_heard() {
        let mut runtime = runtime();
        let shutdown = runtime.shutdown();
        let pid = std::process::id().to_string();
        runtime.spawn("victim", async move {
            // Started by the runtime, so after it listens.
            let killed = tokio::process::Command::new("kill").args(["-TERM", &pid]).status().await?;
            assert!(killed.success());
            shutdown.cancelled().await;
            Ok::<_, std::io::Error>(())
        });
        runtime.run().await.unwrap();
    }
}
