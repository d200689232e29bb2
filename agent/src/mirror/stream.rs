//! The stream that feeds a mirror: its frames, its end, and the next one.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use crds::wire::{Frame, FrameError};
use reqwest::Response;
use tokio::time::{Instant, sleep, timeout_at};

use super::backoff::{Backoff, chance};
use super::lines::Lines;
use super::{Mirror, MirrorError, Told};
use crate::operator::{CallError, Kind, Limits, Operator};

/// The frames of one answer to a watch.
#[derive(Debug)]
pub struct Stream {
    peer: SocketAddr,
    response: Response,
    lines: Lines,
    limits: Limits,
    /// How long nothing may be heard.
    silence: Duration,
    heard: Instant,
    received: u64,
    since_commit: u64,
}

/// Why there is no stream, or no more of it. None of it means that this machine was deleted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// It never began.
    #[error(transparent)]
    Call(#[from] CallError),
    /// It is over.
    #[error("the stream of {peer} is lost")]
    Lost {
        /// The operator that it came from.
        peer: SocketAddr,
        /// What happened.
        #[source]
        loss: Loss,
    },
}

/// How a stream is lost.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// The operator ended it.
    #[error("the operator ended it")]
    Ended,
    /// It ended where no frame ends.
    #[error("it ended in the middle of a line")]
    Torn,
    /// The connection broke.
    #[error("the connection broke")]
    Broken(#[source] reqwest::Error),
    /// Not even a ping.
    #[error("nothing was heard for {} s", .0.as_secs_f32())]
    Silent(Duration),
    /// Not what an operator says.
    #[error("what came is no frame")]
    Garbage(#[source] FrameError),
    /// A line that doesn't end.
    #[error("a line is longer than {0} bytes")]
    LongLine(usize),
    /// Changes without a commit.
    #[error("more than {0} bytes came without a commit")]
    LongCommit(u64),
    /// A frame that contradicts what was said before.
    #[error("what came makes no sense")]
    Disbelieved(#[source] MirrorError),
}

impl StreamError {
    /// How long the operators want to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Call(error) => error.retry_after(),
            Self::Lost { .. } => None,
        }
    }

    /// What it means to whoever started the program.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Call(error) => error.kind(),
            Self::Lost { loss: Loss::Silent(_) | Loss::Broken(_), .. } => Kind::Unreachable,
            Self::Lost { .. } => Kind::Other,
        }
    }

    /// What to do about it.
    pub fn way_out(&self) -> &'static str {
        match self {
            Self::Call(error) => error.way_out(),
            Self::Lost { loss, .. } => match loss {
                Loss::Ended | Loss::Torn => "try again; if it stays so, look at the log of the operator",
                Loss::Broken(_) | Loss::Silent(_) => "check the network between this machine and the operator",
                Loss::Disbelieved(MirrorError::AnotherNode { .. }) => "name the node that this machine is",
                Loss::Disbelieved(MirrorError::Wire { .. }) => "install an agent and an operator of the same release",
                _ => "check that the address is an Outrider operator's, of the same release as this agent",
            },
        }
    }
}

impl Stream {
    pub(crate) fn new(peer: SocketAddr, response: Response, limits: Limits) -> Self {
        Self {
            peer,
            response,
            lines: Lines::default(),
            limits,
            silence: limits.hello,
            heard: Instant::now(),
            received: 0,
            since_commit: 0,
        }
    }

    /// The operator that the stream comes from.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// How many bytes of frames have come.
    pub fn bytes_received(&self) -> u64 {
        self.received
    }

    /// The next frame. May be dropped and called again: nothing is lost. After an error there is nothing more.
    pub async fn next(&mut self) -> Result<Frame, StreamError> {
        self.frame().await.map_err(|loss| self.lost(loss))
    }

    async fn frame(&mut self) -> Result<Frame, Loss> {
        let frame = loop {
            match self.lines.next() {
                Some(line) if line.trim_ascii().is_empty() => {}
                Some(line) if line.len() > self.limits.line => return Err(Loss::LongLine(self.limits.line)),
                Some(line) => break Frame::decode(&line).map_err(Loss::Garbage)?,
                None => self.more().await?,
            }
        };
        match &frame {
            // Below a second the clock decides, not the network; above an hour nobody would notice a dead operator.
            Frame::Hello(hello) => {
                self.silence = Duration::from_secs(hello.heartbeat_seconds.clamp(1, 3600).into()).mul_f32(1.5);
            }
            Frame::Commit(_) => self.since_commit = 0,
            _ => {}
        }
        Ok(frame)
    }

    /// Waits for bytes: any are a sign of life, also those of a long line on a slow link.
    async fn more(&mut self) -> Result<(), Loss> {
        loop {
            // Whoever comes back late from work of its own first looks at what came meanwhile.
            let deadline = (self.heard + self.silence).max(Instant::now() + self.silence / 4);
            let Ok(chunk) = timeout_at(deadline, self.response.chunk()).await else {
                return Err(Loss::Silent(self.silence));
            };
            match chunk.map_err(|error| Loss::Broken(error.without_url()))? {
                None if self.lines.rest() == 0 => return Err(Loss::Ended),
                None => return Err(Loss::Torn),
                Some(chunk) if chunk.is_empty() => {}
                Some(chunk) => return self.take(&chunk),
            }
        }
    }

    fn take(&mut self, chunk: &[u8]) -> Result<(), Loss> {
        self.heard = Instant::now();
        self.received += chunk.len() as u64;
        self.since_commit += chunk.len() as u64;
        self.lines.push(chunk);
        match self.limits {
            Limits { line, .. } if self.lines.rest() > line && !chunk.contains(&b'\n') => Err(Loss::LongLine(line)),
            Limits { commit, .. } if self.since_commit > commit => Err(Loss::LongCommit(commit)),
            _ => Ok(()),
        }
    }

    fn lost(&self, loss: Loss) -> StreamError {
        StreamError::Lost { peer: self.peer, loss }
    }
}

/// What whoever follows an operator hears of.
#[derive(Debug)]
pub enum News {
    /// A frame that means something.
    Told(Told),
    /// There is no stream any more, or again none. The mirror stays as it was; another try follows.
    Lost {
        /// Why.
        error: StreamError,
        /// When the operator is tried again.
        retry_in: Duration,
    },
}

/// Keeps `mirror` up to date until dropped, over as many streams as it takes, and says what happens.
pub async fn follow(operator: &Operator, mirror: &mut Mirror, on: impl FnMut(&Mirror, News)) -> Infallible {
    keep(None, operator, mirror, on).await
}

/// [`follow`] that begins with a stream which is open already.
pub async fn follow_on(
    stream: Stream,
    operator: &Operator,
    mirror: &mut Mirror,
    on: impl FnMut(&Mirror, News),
) -> Infallible {
    keep(Some(stream), operator, mirror, on).await
}

async fn keep(
    mut open: Option<Stream>,
    operator: &Operator,
    mirror: &mut Mirror,
    mut on: impl FnMut(&Mirror, News),
) -> Infallible {
    let mut backoff = Backoff::default();
    loop {
        let opened = match open.take() {
            Some(stream) => Ok(stream),
            None => begin(operator, mirror).await,
        };
        let error = match opened {
            Err(error) => error,
            Ok(mut stream) => loop {
                match step(&mut stream, mirror).await {
                    Err(error) => break error,
                    Ok(None) => {}
                    Ok(Some(told)) => {
                        backoff.hear(&told);
                        on(mirror, News::Told(told));
                    }
                }
            },
        };
        let retry_in = backoff.next(chance(), error.retry_after());
        on(mirror, News::Lost { error, retry_in });
        sleep(retry_in).await;
    }
}

/// Opens a stream and reads it up to its first commit; the stream goes on from there.
pub async fn first_commit(operator: &Operator, mirror: &mut Mirror) -> Result<Stream, StreamError> {
    let mut stream = begin(operator, mirror).await?;
    loop {
        if let Some(Told::Commit(_)) = step(&mut stream, mirror).await? {
            return Ok(stream);
        }
    }
}

async fn begin(operator: &Operator, mirror: &mut Mirror) -> Result<Stream, StreamError> {
    // Whoever fed the mirror before may have been dropped in the middle.
    mirror.cut();
    Ok(operator.watch(mirror).await?)
}

async fn step(stream: &mut Stream, mirror: &mut Mirror) -> Result<Option<Told>, StreamError> {
    let told = match stream.next().await {
        Ok(frame) => mirror.frame(frame).map_err(|error| stream.lost(Loss::Disbelieved(error))),
        Err(error) => Err(error),
    };
    if told.is_err() {
        mirror.cut();
    }
    told
}
