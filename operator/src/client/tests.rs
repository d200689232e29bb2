use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::ConnectInfo;
use axum::response::IntoResponse;
use axum::serve::Listener;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::Api;
use kube::api::{PostParams, WatchParams};
use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::http::{self, Peer};
use crate::tls::{self, TlsListener};

const SOON: Duration = Duration::from_secs(20);

/// An API server that answers what the test wants, and remembers who came and how.
#[derive(Clone, Default)]
struct Seen {
    connections: Arc<Mutex<HashSet<SocketAddr>>>,
    requests: Arc<Mutex<Vec<Request<()>>>>,
}

struct Server {
    address: SocketAddr,
    seen: Seen,
    dir: TempDir,
    ca: Vec<u8>,
}

impl Server {
    async fn start<F, A>(answer: F) -> Self
    where
        F: Fn(usize) -> A + Clone + Send + Sync + 'static,
        A: IntoResponse,
    {
        let dir = TempDir::new().unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["localhost".into()]).unwrap().self_signed(&key).unwrap();
        std::fs::write(dir.path().join("tls.crt"), certificate.pem()).unwrap();
        std::fs::write(dir.path().join("tls.key"), key.serialize_pem()).unwrap();
        let listener =
            TlsListener::bind("127.0.0.1:0".parse().unwrap(), dir.path(), tls::Options::default()).await.unwrap();
        let address = Listener::local_addr(&listener).unwrap();
        let seen = Seen::default();
        serve(listener, &seen, answer);
        Self { address, seen, dir, ca: certificate.der().to_vec() }
    }

    fn config(&self) -> Config {
        let mut config = Config::new(format!("https://localhost:{}", self.address.port()).parse().unwrap());
        config.root_cert = Some(vec![self.ca.clone()]);
        config
    }

    async fn client(&self) -> Client {
        client(self.config(), quick()).await.unwrap()
    }
}

fn serve<L, F, A>(listener: L, seen: &Seen, answer: F)
where
    L: Listener<Addr = SocketAddr>,
    L::Io: http::Certified,
    F: Fn(usize) -> A + Clone + Send + Sync + 'static,
    A: IntoResponse,
{
    let seen = seen.clone();
    let count = Arc::new(AtomicUsize::new(0));
    let router =
        Router::new().fallback(async move |ConnectInfo(peer): ConnectInfo<Peer>, request: axum::extract::Request| {
            seen.connections.lock().unwrap().insert(peer.addr);
            seen.requests.lock().unwrap().push(request.map(|_| ()));
            answer(count.fetch_add(1, Ordering::Relaxed)).into_response()
        });
    tokio::spawn(http::serve(listener, router, http::Options::default(), CancellationToken::new()));
}

fn quick() -> Times {
    Times { backoff: Duration::from_millis(10), ..TIMES }
}

fn empty_list() -> axum::Json<serde_json::Value> {
    axum::Json(serde_json::json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": []}))
}

fn pods(client: &Client) -> Api<Pod> {
    Api::all(client.clone())
}

async fn list(client: &Client) -> Result<(), kube::Error> {
    pods(client).list(&kube::api::ListParams::default()).await.map(drop)
}

#[tokio::test]
async fn many_watches_share_one_connection() {
    let server =
        Server::start(|_| axum::body::Body::from_stream(futures::stream::pending::<Result<String, BoxError>>())).await;
    let client = server.client().await;
    let watch = async |_| pods(&client).watch(&WatchParams::default(), "0").await.unwrap().boxed();
    let watches = futures::future::join_all((0..40).map(watch)).await;
    let connections = server.seen.connections.lock().unwrap().len();
    assert_eq!((watches.len(), connections), (40, 1));
    let requests = server.seen.requests.lock().unwrap();
    assert!(requests.iter().all(|request| request.version() == axum::http::Version::HTTP_2));
}

#[tokio::test]
async fn what_starts_at_once_makes_one_connection_and_not_one_each() {
    let server = Server::start(|_| empty_list()).await;
    let (address, connections) = counted(server.address).await;
    let mut config = server.config();
    config.cluster_url = format!("https://localhost:{}", address.port()).parse().unwrap();
    let client = client(config, quick()).await.unwrap();
    futures::future::join_all((0..40).map(async |_| list(&client).await.unwrap())).await;
    assert_eq!(connections.load(Ordering::Relaxed), 2, "the question, and the one for all");
}

/// Passes bytes to and fro, and counts for how many connections.
async fn counted(server: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::<AtomicUsize>::default();
    tokio::spawn({
        let count = count.clone();
        async move {
            loop {
                let (mut near, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(async move {
                    let mut far = TcpStream::connect(server).await.unwrap();
                    tokio::io::copy_bidirectional(&mut near, &mut far).await.ok();
                });
            }
        }
    });
    (address, count)
}

#[tokio::test]
async fn watches_that_nobody_reads_hold_up_no_call() {
    let server = Server::start(|n| match n {
        0..20 => {
            let line = format!("{}\n", " ".repeat(100_000));
            let endless = futures::stream::repeat_with(move || Ok::<_, BoxError>(line.clone()));
            axum::body::Body::from_stream(endless).into_response()
        }
        _ => empty_list().into_response(),
    })
    .await;
    let client = server.client().await;
    let watch = async |_| pods(&client).watch(&WatchParams::default(), "0").await.unwrap().boxed();
    let _unread = futures::future::join_all((0..20).map(watch)).await;
    for _ in 0..20 {
        timeout(SOON, list(&client)).await.expect("an answer comes through").unwrap();
    }
    assert_eq!(server.seen.connections.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_server_without_tls_is_served_over_http_1() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let seen = Seen::default();
    serve(listener, &seen, |_| empty_list());
    list(&client(Config::new(url.parse().unwrap()), quick()).await.unwrap()).await.unwrap();
    assert_eq!(seen.requests.lock().unwrap()[0].version(), axum::http::Version::HTTP_11);
}

/// Speaks TLS and knows of no HTTP/2.
struct Old(TcpListener, tokio_rustls::TlsAcceptor);

impl Listener for Old {
    type Io = tokio_rustls::server::TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        let (stream, peer) = self.0.accept().await.unwrap();
        (self.1.accept(stream).await.unwrap(), peer)
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

#[tokio::test]
async fn a_server_that_knows_no_http_2_is_served_over_http_1() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".into()]).unwrap().self_signed(&key).unwrap();
    let chain = vec![certificate.der().clone()];
    let key = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let mut tls = rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).unwrap();
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let listener = Old(TcpListener::bind("127.0.0.1:0").await.unwrap(), Arc::new(tls).into());
    let port = Listener::local_addr(&listener).unwrap().port();
    let seen = Seen::default();
    serve(listener, &seen, |_| empty_list());
    let mut config = Config::new(format!("https://localhost:{port}").parse().unwrap());
    config.root_cert = Some(vec![certificate.der().to_vec()]);
    list(&client(config, quick()).await.unwrap()).await.unwrap();
    assert_eq!(seen.requests.lock().unwrap()[0].version(), axum::http::Version::HTTP_11);
}

#[tokio::test]
async fn a_server_that_comes_later_is_spoken_to_all_the_same() {
    let place = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = place.local_addr().unwrap();
    drop(place);
    let client = client(Config::new(format!("https://{address}").parse().unwrap()), quick()).await.unwrap();
    assert!(list(&client).await.is_err());
}

#[tokio::test]
async fn the_server_is_told_who_asks_and_with_which_token() {
    let server = Server::start(|_| empty_list()).await;
    let token = server.dir.path().join("token");
    std::fs::write(&token, "secret").unwrap();
    let mut config = server.config();
    config.auth_info.token_file = Some(token.display().to_string());
    list(&client(config, quick()).await.unwrap()).await.unwrap();
    let requests = server.seen.requests.lock().unwrap();
    let header = |name| requests[0].headers()[name].to_str().unwrap();
    assert_eq!(header("user-agent"), concat!("outrider-operator/", env!("CARGO_PKG_VERSION")));
    assert_eq!(header("authorization"), "Bearer secret");
}

#[tokio::test]
async fn a_call_is_tried_again_while_the_server_is_busy() {
    let server = Server::start(|n| match n {
        0 => StatusCode::TOO_MANY_REQUESTS.into_response(),
        1 => StatusCode::BAD_GATEWAY.into_response(),
        _ => empty_list().into_response(),
    })
    .await;
    list(&server.client().await).await.unwrap();
    assert_eq!(server.seen.requests.lock().unwrap().len(), 3);
}

#[tokio::test]
async fn the_server_says_when_to_come_back() {
    let server = Server::start(|n| match n {
        0 => (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, "1")]).into_response(),
        _ => empty_list().into_response(),
    })
    .await;
    let start = Instant::now();
    list(&server.client().await).await.unwrap();
    assert!(start.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn tries_are_bounded() {
    let server = Server::start(|_| StatusCode::SERVICE_UNAVAILABLE).await;
    assert!(matches!(list(&server.client().await).await, Err(kube::Error::Api(status)) if status.code == 503));
    assert_eq!(server.seen.requests.lock().unwrap().len(), 5);
}

#[tokio::test]
async fn a_write_that_may_have_been_done_is_not_tried_again() {
    for (status, tries) in [(StatusCode::GATEWAY_TIMEOUT, 1), (StatusCode::TOO_MANY_REQUESTS, 5)] {
        let server = Server::start(move |_| status).await;
        let maps: Api<ConfigMap> = Api::default_namespaced(server.client().await);
        assert!(maps.create(&PostParams::default(), &ConfigMap::default()).await.is_err());
        assert_eq!(server.seen.requests.lock().unwrap().len(), tries, "{status}");
    }
}

#[tokio::test]
async fn a_watch_is_left_to_its_watcher() {
    let server = Server::start(|_| StatusCode::SERVICE_UNAVAILABLE).await;
    assert!(pods(&server.client().await).watch(&WatchParams::default(), "0").await.is_err());
    assert_eq!(server.seen.requests.lock().unwrap().len(), 1);
}

#[test]
fn a_wait_that_is_too_long_is_the_callers_to_decide() {
    let busy = |seconds: &str| Response::builder().status(429).header(RETRY_AFTER, seconds).body(()).unwrap();
    assert!(wait_before_retry(&Method::GET, &busy("30"), 1, TIMES).is_some());
    assert_eq!(wait_before_retry(&Method::GET, &busy("31"), 1, TIMES), None);
    assert_eq!(wait_before_retry(&Method::GET, &Response::builder().status(404).body(()).unwrap(), 1, TIMES), None);
}

#[tokio::test]
async fn a_server_that_never_answers_is_given_up() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}", server.local_addr().unwrap().port());
    let times = Times { connect: Duration::from_millis(100), ..quick() };
    let client = client(Config::new(url.parse().unwrap()), times).await.unwrap();
    assert!(timeout(SOON, list(&client)).await.expect("in bounded time").is_err());
}

/// Passes bytes to and fro until told to be dead.
async fn through(server: SocketAddr, alive: CancellationToken) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut dead = Vec::new();
        loop {
            let (mut near, _) = listener.accept().await.unwrap();
            let mut far = TcpStream::connect(server).await.unwrap();
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                // Neither closed nor reset: silent, as behind a broken network.
                () = alive.cancelled(), if !alive.is_cancelled() => dead.push((near, far)),
            }
        }
    });
    address
}

#[tokio::test]
async fn a_dead_connection_is_noticed_and_replaced() {
    let server = Server::start(|n| match n {
        0 => axum::body::Body::from_stream(futures::stream::pending::<Result<String, BoxError>>()).into_response(),
        _ => empty_list().into_response(),
    })
    .await;
    let dead = CancellationToken::new();
    let address = through(server.address, dead.clone()).await;
    let mut config = server.config();
    config.cluster_url = format!("https://localhost:{}", address.port()).parse().unwrap();
    let client = client(config, Times { keep_alive: Duration::from_millis(100), ..quick() }).await.unwrap();
    let mut watch = pods(&client).watch(&WatchParams::default(), "0").await.unwrap().boxed();
    dead.cancel();
    let end = timeout(SOON, watch.next()).await.expect("the watch ends in bounded time");
    assert!(end.is_none_or(|event| event.is_err()));
    timeout(SOON, list(&client)).await.expect("over a new connection").unwrap();
    assert_eq!(server.seen.connections.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn a_kubeconfig_that_is_not_there_is_named() {
    let error = connect(Some(Path::new("/nowhere/kubeconfig"))).await.err().unwrap();
    assert!(crds::chain::Chain(&error).to_string().starts_with("can't use the kubeconfig /nowhere/kubeconfig: "));
}
