//! Serves a router on a listener, TLS or plain, with bounds on everything a peer can take its time with.
//!
//! What `axum::serve` can't do and this does: a time limit on request headers, HTTP/2 keep-alive (a dead agent is
//! noticed), an end of idle connections, a bound on connections, and a drain that ends.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::connect_info::ConnectInfo;
use axum::http::Request;
use axum::response::IntoResponse;
use axum::serve::Listener;
use bytes::Bytes;
use futures::FutureExt;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use tower_http::catch_panic::CatchPanicLayer;

#[cfg(test)]
mod tests;

/// Bounds on connections.
#[derive(Clone, Debug)]
pub struct Options {
    /// At once; more wait in the kernel's queue.
    pub connections: usize,
    /// Requests and streams at once on one HTTP/2 connection.
    pub streams: u32,
    /// For the headers of a request over HTTP/1.1.
    pub header_timeout: Duration,
    /// For the first request of a connection.
    pub first_timeout: Duration,
    /// A connection that had one, and has been without for this long, is closed.
    pub idle_timeout: Duration,
    /// How often an HTTP/2 peer is asked whether it is there, and how long its answer may take.
    pub keep_alive: Duration,
    /// How long requests may go on after the shutdown, or after their connection was told to end.
    pub drain: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connections: 20_000,
            streams: 64,
            header_timeout: Duration::from_secs(15),
            first_timeout: Duration::from_secs(15),
            idle_timeout: Duration::from_mins(2),
            keep_alive: Duration::from_secs(15),
            drain: Duration::from_secs(10),
        }
    }
}

/// Who is at the other end. Handlers get it as `ConnectInfo<Peer>`.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Where the connection comes from.
    pub addr: SocketAddr,
    /// What the peer showed and the client CA vouches for, its own first. Empty without TLS or without a client CA.
    pub certificates: Arc<[CertificateDer<'static>]>,
}

/// A connection that may know certificates of its peer.
pub trait Certified {
    /// Those that were verified.
    fn certificates(&self) -> Arc<[CertificateDer<'static>]>;
}

impl Certified for TcpStream {
    fn certificates(&self) -> Arc<[CertificateDer<'static>]> {
        Arc::default()
    }
}

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address can't be listened on.
    #[error("can't listen on {address}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
}

/// Listens on `address`. `[::]` means both families, and IPv4 alone where the host has no IPv6.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    let listener = match TcpListener::bind(address).await {
        Err(error) if address.is_ipv6() && address.ip().is_unspecified() && !is_taken(&error) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        listener => listener,
    };
    listener.map_err(|source| Error::Listen { address, source })
}

fn is_taken(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied)
}

/// Serves until `shutdown`, then lets requests finish for [`Options::drain`].
///
/// A response that streams without end must end itself on shutdown; otherwise it is cut at the end of the drain.
pub async fn serve<L>(mut listener: L, router: Router, options: Options, shutdown: CancellationToken)
where
    L: Listener<Addr = SocketAddr>,
    L::Io: Certified,
{
    let router = router.layer(CatchPanicLayer::custom(|_: Box<dyn std::any::Any + Send>| {
        // The panic hook has already said where.
        tracing::error!("a handler panicked");
        axum::http::StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }));
    let places = Arc::new(Semaphore::new(options.connections));
    let options = Arc::new(options);
    let mut connections = JoinSet::new();
    loop {
        let mut next = pin!(async {
            // Never closed, so always there in the end.
            let place = places.clone().acquire_owned().await;
            (place, listener.accept().await)
        });
        // Going on with the same future: a listener may be in the middle of something when another connection ends.
        let next = loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break None,
                Some(ended) = connections.join_next() => observe(ended),
                next = next.as_mut() => break Some(next),
            }
        };
        let Some((place, (io, addr))) = next else { break };
        let peer = Peer { addr, certificates: io.certificates() };
        let connection = connection(io, peer, router.clone(), options.clone(), shutdown.clone());
        connections.spawn(async move {
            connection.await;
            drop(place);
        });
    }
    // No new ones while the old ones end.
    drop(listener);
    while let Some(ended) = connections.join_next().await {
        observe(ended);
    }
}

fn observe(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a connection's task died");
    }
}

async fn connection<I>(io: I, peer: Peer, router: Router, options: Arc<Options>, shutdown: CancellationToken)
where
    I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let addr = peer.addr;
    let activity = Activity::new();
    let service = service_fn(|request: Request<Incoming>| {
        let busy = activity.begin();
        let router = router.clone();
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ConnectInfo(peer.clone()));
        async move {
            let response = router.oneshot(request).await?;
            Ok::<_, Infallible>(response.map(|body| Body::new(Streamed { body, _busy: busy })))
        }
    });
    let mut builder = auto::Builder::new(Executor);
    builder.http1().timer(TokioTimer::new()).header_read_timeout(options.header_timeout).max_buf_size(64 * 1024);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(options.keep_alive)
        .keep_alive_timeout(options.keep_alive)
        .max_concurrent_streams(options.streams)
        .max_header_list_size(64 * 1024);
    let mut served = pin!(builder.serve_connection(TokioIo::new(io), service));
    let ended = tokio::select! {
        ended = served.as_mut() => Some(ended),
        () = shutdown.cancelled() => None,
        () = activity.idle(options.first_timeout, options.idle_timeout) => None,
    };
    let ended = if ended.is_some() {
        ended
    } else {
        served.as_mut().graceful_shutdown();
        tokio::time::timeout(options.drain, served).await.ok()
    };
    if ended.is_none() {
        tracing::debug!(%addr, "cut the connection after the drain");
    }
    if let Some(Err(error)) = ended {
        tracing::debug!(%addr, %error, "connection failed");
    }
}

/// How many requests are under way, since when it is so many, and whether there ever was one.
#[derive(Clone)]
struct Activity(watch::Sender<Requests>);

#[derive(Clone, Copy)]
struct Requests {
    now: usize,
    since: Instant,
    ever: bool,
}

struct Busy(Activity);

impl Activity {
    fn new() -> Self {
        Self(watch::Sender::new(Requests { now: 0, since: Instant::now(), ever: false }))
    }

    fn begin(&self) -> Busy {
        self.0.send_modify(|r| *r = Requests { now: r.now + 1, since: Instant::now(), ever: true });
        Busy(self.clone())
    }

    /// Returns when there was no request for `first` from the begin on, or for `later` after one.
    async fn idle(&self, first: Duration, later: Duration) {
        let mut changes = self.0.subscribe();
        loop {
            let Requests { now, since, ever } = *changes.borrow_and_update();
            let long = if ever { later } else { first };
            tokio::select! {
                _ = changes.changed() => {}
                () = sleep_until(since + long), if now == 0 => return,
            }
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.0.send_modify(|r| *r = Requests { now: r.now - 1, since: Instant::now(), ever: true });
    }
}

/// A body that counts as a request under way until its end.
struct Streamed {
    body: Body,
    _busy: Busy,
}

impl HttpBody for Streamed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Runs the streams of HTTP/2; a panic in one is seen and ends that stream only.
#[derive(Clone, Copy)]
struct Executor;

impl<F> hyper::rt::Executor<F> for Executor
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, stream: F) {
        tokio::spawn(async move {
            if AssertUnwindSafe(stream).catch_unwind().await.is_err() {
                tracing::error!("the task of a stream died");
            }
        });
    }
}
