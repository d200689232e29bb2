//! An operator that the test plays itself, over real TLS and HTTP/1.1 or 2.
//!
//! A test takes each request in turn with [`Server::call`] and answers it as it likes.

// Each test file is a crate of its own and uses a part of it.
#![allow(dead_code, unreachable_pub)]

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agent::operator::{Limits, Operator, Settings};
use axum::body::Body;
use bytes::Bytes;
use crds::wire::{Frame, Hello, NDJSON, Revision, Update, View, WIRE};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, Uri, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::UnboundedReceiverStream;

/// Longer than anything here takes, and shorter than anybody's patience.
pub const PATIENCE: Duration = Duration::from_secs(20);

#[path = "views.rs"]
pub mod views;

pub const TOKEN: &str = "header.claims.signature";

/// The files of one machine, and the CA that the servers of a test share.
pub struct Site {
    dir: TempDir,
    ca: CertifiedIssuer<'static, KeyPair>,
}

impl Site {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let site = Self { dir: tempfile::tempdir().unwrap(), ca };
        std::fs::write(site.ca_file(), site.ca.pem()).unwrap();
        site.token(TOKEN);
        site
    }

    pub fn ca_file(&self) -> PathBuf {
        self.dir.path().join("ca.crt")
    }

    pub fn token_file(&self) -> PathBuf {
        self.dir.path().join("token")
    }

    pub fn token(&self, token: &str) {
        std::fs::write(self.token_file(), format!("{token}\n")).unwrap();
    }

    /// The settings of an agent that tries `addresses`.
    pub fn settings(&self, addresses: &[String]) -> Settings {
        Settings {
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            ca: self.ca_file(),
            token_file: self.token_file(),
            limits: Limits::default(),
        }
    }

    pub fn operator(&self, addresses: &[String]) -> Operator {
        Operator::new(self.settings(addresses))
    }

    /// A server on 127.0.0.1 whose certificate names that and `localhost`.
    pub async fn server(&self) -> Server {
        self.server_with(&["127.0.0.1", "localhost"], &["h2", "http/1.1"]).await
    }

    pub async fn server_with(&self, names: &[&str], alpn: &[&str]) -> Server {
        let names: Vec<_> = names.iter().map(ToString::to_string).collect();
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &self.ca).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut tls = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap(),
            )
            .unwrap();
        tls.alpn_protocols = alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (calls, taken) = mpsc::unbounded_channel();
        tokio::spawn(accept(listener, TlsAcceptor::from(Arc::new(tls)), calls));
        Server { address, calls: taken }
    }
}

/// An address where nobody listens.
pub async fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

/// A listener that accepts and says nothing.
pub async fn mute() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

pub struct Server {
    pub address: SocketAddr,
    calls: mpsc::UnboundedReceiver<Call>,
}

impl Server {
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// The next request.
    pub async fn call(&mut self) -> Call {
        timeout(PATIENCE, self.calls.recv()).await.expect("a request in time").expect("the server runs")
    }

    /// Whether no request came that nobody took.
    pub fn is_idle(&mut self) -> bool {
        self.calls.try_recv().is_err()
    }
}

/// A request that waits for its answer.
#[derive(Debug)]
pub struct Call {
    pub method: Method,
    pub uri: Uri,
    pub version: Version,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// Tells connections apart.
    pub from: SocketAddr,
    answer: oneshot::Sender<Response<Body>>,
}

impl Call {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub fn answer(self, status: u16, body: impl Into<Body>) {
        self.answer_with(status, &[], body);
    }

    pub fn answer_with(self, status: u16, headers: &[(&str, &str)], body: impl Into<Body>) {
        let response = headers
            .iter()
            .fold(Response::builder().status(status), |response, (name, value)| response.header(*name, *value));
        self.answer.send(response.body(body.into()).unwrap()).unwrap();
    }

    /// `{"code", "reason", "message"}`.
    pub fn refuse(self, code: u16, reason: &str, message: &str) {
        self.answer(code, serde_json::json!({"code": code, "reason": reason, "message": message}).to_string());
    }

    /// Begins a stream.
    pub fn stream(self) -> Out {
        let (out, taken) = mpsc::unbounded_channel();
        let body = Body::from_stream(UnboundedReceiverStream::new(taken));
        self.answer_with(200, &[("content-type", NDJSON)], body);
        Out { out }
    }
}

/// The server's end of a stream. Dropped: the stream ends.
#[derive(Debug)]
pub struct Out {
    out: mpsc::UnboundedSender<io::Result<Bytes>>,
}

impl Out {
    pub fn bytes(&self, bytes: impl Into<Bytes>) -> u64 {
        let bytes = bytes.into();
        let length = bytes.len() as u64;
        // A client that has gone is what some tests wait for.
        let _ = self.out.send(Ok(bytes));
        length
    }

    pub fn frame(&self, frame: &Frame) -> u64 {
        self.bytes(frame.encode())
    }

    pub fn hello(&self, full: bool, heartbeat_seconds: u32) -> u64 {
        self.frame(&Frame::Hello(Hello { wire: WIRE, full, heartbeat_seconds }))
    }

    pub fn update(&self, update: &Update) -> u64 {
        update.changes.iter().map(|change| self.bytes(change.line())).sum()
    }

    pub fn commit(&self, n: u64) -> u64 {
        self.frame(&Frame::Commit(Revision::new("e", n)))
    }

    /// `hello`, all of `view`, `commit`.
    pub fn everything(&self, view: &View, n: u64) -> u64 {
        self.hello(true, 10) + self.update(&View::default().diff(view)) + self.commit(n)
    }

    /// Breaks the connection's stream: not an end, an error.
    pub fn cut(self) {
        let _ = self.out.send(Err(io::Error::other("cut by the test")));
    }

    /// Resolves when the client has let go of the stream.
    pub async fn abandoned(&self) {
        timeout(PATIENCE, self.out.closed()).await.expect("the client lets go in time");
    }
}

async fn accept(listener: TcpListener, tls: TlsAcceptor, calls: mpsc::UnboundedSender<Call>) {
    while let Ok((socket, from)) = listener.accept().await {
        let (tls, calls) = (tls.clone(), calls.clone());
        tokio::spawn(async move {
            let Ok(socket) = tls.accept(socket).await else { return };
            let serve = service_fn(move |request| serve(request, from, calls.clone()));
            let server = auto::Builder::new(TokioExecutor::new());
            let _ = server.serve_connection(TokioIo::new(socket), serve).await;
        });
    }
}

async fn serve(
    request: Request<Incoming>,
    from: SocketAddr,
    calls: mpsc::UnboundedSender<Call>,
) -> Result<Response<Body>, Infallible> {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(Body::new(body), usize::MAX).await.unwrap_or_default();
    let (answer, answered) = oneshot::channel();
    let call = Call {
        method: parts.method,
        uri: parts.uri,
        version: parts.version,
        headers: parts.headers,
        body,
        from,
        answer,
    };
    // The test is over.
    let _ = calls.send(call);
    Ok(answered.await.unwrap_or_else(|_| Response::builder().status(500).body(Body::empty()).unwrap()))
}
