//! The operator as an agent sees it: some addresses, one connection, two calls.
//!
//! ```text
//! watch  --each address in turn--> connection --200--> Stream
//! report ------------------------> the same connection, or as watch
//! ```
//!
//! Both ends prove who they are: the operator by a certificate that the CA file vouches for, the agent by a token.
//! The two files are read again whenever a connection is made, so they can be replaced at any time.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crds::names::{NodeName, Uid};
use crds::wire::{NDJSON, Report, ReportAnswer, WIRE, WIRE_HEADER};
use futures::future::join_all;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Method, Response, StatusCode, Url, redirect};
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use crate::mirror::{Mirror, Stream};

mod address;
mod error;
mod tls;

pub use address::{Address, NotAnAddress, PORT};
pub use error::{Answer, Attempt, CallError, Failure, Kind, TokenError};
pub use tls::CaError;

/// What an agent needs to know to find its operator.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Each is tried, and of each everything that it resolves to.
    pub addresses: Vec<Address>,
    /// The certificates that vouch for an operator, PEM.
    pub ca: PathBuf,
    /// The bearer token of this machine.
    pub token_file: PathBuf,
    /// Bounds on what an operator can take.
    pub limits: Limits,
}

/// Bounds on time and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For a name to resolve, and for a connection with TLS to be made, each.
    pub connect: Duration,
    /// For an answer to a request.
    pub answer: Duration,
    /// For the silence before `hello`; after it 1.5 heartbeats.
    pub hello: Duration,
    /// Bytes of one line of a stream.
    pub line: usize,
    /// Bytes between two commits.
    pub commit: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            answer: Duration::from_secs(10),
            hello: Duration::from_secs(15),
            line: 64 << 20,
            commit: 1 << 30,
        }
    }
}

/// The operator: all its replicas, over one connection to one of them.
#[derive(Debug)]
pub struct Operator {
    settings: Settings,
    /// Whom we last had an answer from.
    current: Mutex<Option<Peer>>,
}

/// A connection to one address.
#[derive(Clone, Debug)]
struct Peer {
    client: Client,
    address: Address,
    socket: SocketAddr,
}

/// One request, to be made of whoever answers.
#[derive(Clone, Debug)]
struct Call {
    method: Method,
    path: &'static str,
    query: Vec<(&'static str, String)>,
    body: Option<Vec<u8>>,
    /// To be made instead when this one can't be used as it is.
    instead: Option<Box<Call>>,
}

impl Operator {
    /// The operator at these addresses. Nothing is connected yet.
    pub fn new(settings: Settings) -> Self {
        Self { settings, current: Mutex::default() }
    }

    /// A stream of what this machine is told: all of it, or what `mirror` lacks.
    ///
    /// Makes a new connection, and begins with the address after the one that was used last.
    pub async fn watch(&self, mirror: &Mirror) -> Result<Stream, CallError> {
        let (peer, response) = self.anywhere(&Call::watch(mirror)).await?;
        Ok(Stream::new(peer, response, self.settings.limits))
    }

    /// Says how this machine is doing.
    pub async fn report(&self, report: &Report) -> Result<ReportAnswer, CallError> {
        let call = Call::report(report);
        let (peer, response) = match self.here(&call).await? {
            Some(answered) => answered,
            None => self.anywhere(&call).await?,
        };
        let body = body(response, self.settings.limits.answer).await;
        serde_json::from_slice(&body).map_err(|source| CallError::Garbage { peer, source })
    }

    /// Asks on the connection that there is. `None`: there is none, or it didn't help.
    async fn here(&self, call: &Call) -> Result<Option<(SocketAddr, Response)>, CallError> {
        let Some(peer) = self.current() else { return Ok(None) };
        match self.ask(&peer, call, &self.token().await?).await {
            Ok(response) => Ok(Some((peer.socket, response))),
            Err(Failure::Answer(answer)) if answer.is_final() => {
                Err(CallError::Unanswered { attempts: vec![peer.attempt(Failure::Answer(answer))] })
            }
            Err(failure) => {
                tracing::debug!(peer = %peer.socket, %failure, "the connection didn't help, will make another");
                Ok(None)
            }
        }
    }

    /// Asks each address on a new connection until one gives what is asked for, or one that settles it.
    /// The connection that it came on is then the current one.
    async fn anywhere(&self, call: &Call) -> Result<(SocketAddr, Response), CallError> {
        let ca = || self.settings.ca.clone();
        let tls = tls::config(&self.settings.ca).map_err(|source| CallError::Ca { path: ca(), source })?;
        let token = self.token().await?;
        let (candidates, mut attempts) = self.candidates().await;
        for (address, socket) in candidates {
            let client = client(&address, socket, tls.clone(), self.settings.limits).map_err(CallError::Client)?;
            let peer = Peer { client, address, socket };
            let failure = match self.ask(&peer, call, &token).await {
                Ok(response) => {
                    self.remember(peer);
                    return Ok((socket, response));
                }
                Err(failure) => failure,
            };
            tracing::debug!(peer = %peer.socket, %failure, "an address was tried in vain");
            let settled = matches!(&failure, Failure::Answer(answer) if answer.is_final());
            attempts.push(peer.attempt(failure));
            if settled {
                break;
            }
        }
        Err(CallError::Unanswered { attempts })
    }

    async fn ask(&self, peer: &Peer, call: &Call, token: &HeaderValue) -> Result<Response, Failure> {
        match (self.once(peer, call, token).await, &call.instead) {
            (Err(Failure::Answer(answer)), Some(instead)) if answer.is_about_the_request() => {
                self.once(peer, instead, token).await
            }
            (answered, _) => answered,
        }
    }

    async fn once(&self, peer: &Peer, call: &Call, token: &HeaderValue) -> Result<Response, Failure> {
        let Limits { connect, answer, .. } = self.settings.limits;
        let request = peer.client.request(call.method.clone(), peer.url(call)).headers(headers(call, token));
        let request = match &call.body {
            Some(body) => request.body(body.clone()),
            None => request,
        };
        let response = match timeout(connect + answer, request.send()).await {
            Err(_) => return Err(Failure::Late(connect + answer)),
            Ok(sent) => sent.map_err(|error| Failure::Connect(error.without_url()))?,
        };
        if response.status() == StatusCode::OK { Ok(response) } else { Err(refusal(response, answer).await) }
    }

    /// Every address that there is, beginning after the one that was used last; and the names that don't resolve.
    async fn candidates(&self) -> (Vec<(Address, SocketAddr)>, Vec<Attempt>) {
        let limit = self.settings.limits.connect;
        let resolved = join_all(self.settings.addresses.iter().map(|address| async move {
            match timeout(limit, address.resolve()).await {
                Err(_) => Err(Failure::Late(limit)),
                Ok(Err(error)) => Err(Failure::Resolve(error)),
                Ok(Ok(sockets)) if sockets.is_empty() => Err(Failure::NoAddress),
                Ok(Ok(sockets)) => Ok(sockets),
            }
        }));
        let (mut candidates, mut attempts) = (Vec::new(), Vec::new());
        for (address, resolved) in self.settings.addresses.iter().zip(resolved.await) {
            match resolved {
                Ok(sockets) => candidates.extend(sockets.into_iter().map(|socket| (address.clone(), socket))),
                Err(failure) => attempts.push(Attempt { address: address.clone(), socket: None, failure }),
            }
        }
        let last = self.current().and_then(|last| candidates.iter().position(|(_, socket)| *socket == last.socket));
        candidates.rotate_left(last.map_or(0, |last| last + 1));
        (candidates, attempts)
    }

    async fn token(&self) -> Result<HeaderValue, CallError> {
        let path = &self.settings.token_file;
        token(path).await.map_err(|source| CallError::Token { path: path.clone(), source })
    }

    fn current(&self) -> Option<Peer> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn remember(&self, peer: Peer) {
        tracing::debug!(address = %peer.address, peer = %peer.socket, "an operator answered");
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(peer);
    }
}

impl Peer {
    fn url(&self, call: &Call) -> Url {
        let mut url: Url = format!("https://{}{}", self.address, call.path)
            .parse()
            .expect("an address has only what a URL's authority may have");
        if !call.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&call.query);
        }
        url
    }

    fn attempt(self, failure: Failure) -> Attempt {
        Attempt { address: self.address, socket: Some(self.socket), failure }
    }
}

impl Call {
    fn watch(mirror: &Mirror) -> Self {
        let everything = Self::everything(mirror.node(), mirror.uid());
        if mirror.wants_everything() {
            return everything;
        }
        let body = serde_json::to_vec(&mirror.resume()).expect("a map with text keys");
        Self {
            method: Method::POST,
            body: Some(body),
            query: everything.query.iter().filter(|(name, _)| *name == "node").cloned().collect(),
            instead: Some(Box::new(everything)),
            path: "/v1/watch",
        }
    }

    fn everything(node: Option<&NodeName>, uid: Option<&Uid>) -> Self {
        let node = node.map(|node| ("node", node.to_string()));
        let uid = uid.map(|uid| ("uid", uid.to_string()));
        let query = node.into_iter().chain(uid).collect();
        Self { method: Method::GET, path: "/v1/watch", query, body: None, instead: None }
    }

    fn report(report: &Report) -> Self {
        let body = serde_json::to_vec(report).expect("maps with text keys");
        Self { method: Method::POST, path: "/v1/report", query: Vec::new(), body: Some(body), instead: None }
    }
}

/// A client that connects to `socket` alone: which address answered, and which didn't, is told.
fn client(address: &Address, socket: SocketAddr, tls: rustls::ClientConfig, limits: Limits) -> reqwest::Result<Client> {
    let client = Client::builder()
        .tls_backend_preconfigured(tls)
        .https_only(true)
        // The address is the operator's own; the proxy in the environment is somebody else's.
        .no_proxy()
        .redirect(redirect::Policy::none())
        .connect_timeout(limits.connect)
        .user_agent(concat!("outrider-agent/", env!("CARGO_PKG_VERSION")));
    match address.name() {
        Some(name) => client.resolve(name, socket),
        None => client,
    }
    .build()
}

fn headers(call: &Call, token: &HeaderValue) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(WIRE_HEADER, HeaderValue::from(WIRE));
    headers.insert(AUTHORIZATION, token.clone());
    headers
        .insert(ACCEPT, HeaderValue::from_static(if call.path == "/v1/watch" { NDJSON } else { "application/json" }));
    if call.body.is_some() {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    headers
}

/// The value of the `Authorization` header, which no debug output shows.
async fn token(path: &Path) -> Result<HeaderValue, TokenError> {
    const LONGEST: u64 = 64 << 10;
    let mut text = Vec::new();
    tokio::fs::File::open(path).await?.take(LONGEST).read_to_end(&mut text).await?;
    let token = text.trim_ascii();
    if token.is_empty() {
        return Err(TokenError::Empty);
    }
    let plain = token.iter().all(u8::is_ascii_graphic) && (text.len() as u64) < LONGEST;
    let value = HeaderValue::from_bytes(&[b"Bearer ", token].concat());
    let mut value = value.ok().filter(|_| plain).ok_or(TokenError::NotAToken)?;
    value.set_sensitive(true);
    Ok(value)
}

async fn refusal(response: Response, limit: Duration) -> Failure {
    let status = response.status().as_u16();
    let text = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    // Only seconds: a date would ask this machine's clock, which may be wrong.
    let retry_after = text(RETRY_AFTER.as_str()).and_then(|text| text.parse().ok()).map(Duration::from_secs);
    let theirs = text(WIRE_HEADER);
    let mut answer = Answer::new(status, retry_after, &body(response, limit).await);
    if let (505, true, Some(theirs)) = (status, answer.message.is_empty(), theirs) {
        answer.message = format!("it speaks version {theirs} of the wire, this agent {WIRE}");
    }
    Failure::Answer(answer)
}

/// What comes of a short body in time.
async fn body(mut response: Response, limit: Duration) -> Vec<u8> {
    const LONGEST: usize = 64 << 10;
    let mut body = Vec::new();
    let _ = timeout(limit, async {
        while let Ok(Some(chunk)) = response.chunk().await {
            body.extend_from_slice(&chunk);
            if body.len() >= LONGEST {
                break;
            }
        }
    })
    .await;
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_token_is_sent_and_never_shown() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), " header.claims.signature\n").unwrap();
        let value = token(file.path()).await.unwrap();
        assert_eq!(value.to_str().unwrap(), "Bearer header.claims.signature");
        assert_eq!(format!("{value:?}"), "Sensitive");
    }
}
