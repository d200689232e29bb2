use axum::routing::get;
use futures::StreamExt;
use hyper::client::conn::http2;
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::*;

const SOON: Duration = Duration::from_secs(10);

struct Server {
    address: SocketAddr,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<()>,
    /// Each handler that has begun says so.
    begun: mpsc::UnboundedReceiver<()>,
    /// Lets the handlers that wait go on.
    go: Arc<Semaphore>,
}

impl Server {
    async fn start(options: Options) -> Self {
        let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (started, begun) = mpsc::unbounded_channel();
        let go = Arc::new(Semaphore::new(0));
        let wait = {
            let (started, go) = (started.clone(), go.clone());
            move || async move {
                started.send(()).unwrap();
                go.acquire().await.unwrap().forget();
                "waited"
            }
        };
        let endless = move || async move {
            started.send(()).unwrap();
            Body::from_stream(futures::stream::repeat(()).then(|()| async {
                std::future::pending::<()>().await;
                Ok::<_, Infallible>("never")
            }))
        };
        let router = Router::new()
            .route("/", get(|ConnectInfo(peer): ConnectInfo<Peer>| async move { peer.addr.to_string() }))
            .route("/wait", get(wait))
            .route("/endless", get(endless))
            .route("/panic", get(|| async { assert!(std::hint::black_box(false), "on purpose") }))
            .route(
                "/broken-stream",
                get(|| async {
                    Body::from_stream(
                        futures::stream::iter([0]).map(|_| -> Result<&str, Infallible> { panic!("on purpose") }),
                    )
                }),
            );
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(serve(listener, router, options, shutdown.clone()));
        Self { address, shutdown, task, begun, go }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    async fn get(&self, path: &str) -> String {
        let mut stream = self.connect().await;
        ask(&mut stream, path).await;
        rest(stream).await
    }

    async fn h2(&self) -> (http2::SendRequest<Body>, tokio::task::JoinHandle<hyper::Result<()>>) {
        let io = TokioIo::new(self.connect().await);
        let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
        (sender, tokio::spawn(connection))
    }

    async fn begun(&mut self) {
        timeout(SOON, self.begun.recv()).await.unwrap().unwrap();
    }
}

async fn ask(stream: &mut TcpStream, path: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
}

/// All that the peer still says until it closes.
async fn rest(mut stream: TcpStream) -> String {
    let mut text = Vec::new();
    // A reset is an end too.
    let _ = timeout(SOON, stream.read_to_end(&mut text)).await.expect("the connection ends");
    String::from_utf8(text).unwrap()
}

fn request(path: &str) -> Request<Body> {
    Request::get(format!("http://x{path}")).body(Body::empty()).unwrap()
}

fn short(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

#[tokio::test]
async fn both_versions_of_http_are_served_and_the_handler_knows_its_peer() {
    let server = Server::start(Options::default()).await;
    assert!(server.get("/").await.contains("127.0.0.1:"));
    let (mut sender, _) = server.h2().await;
    assert_eq!(sender.send_request(request("/")).await.unwrap().status(), 200);
}

#[tokio::test]
async fn headers_that_never_end_end_the_connection() {
    let server = Server::start(Options { header_timeout: short(100), ..Options::default() }).await;
    let mut stream = server.connect().await;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: ").await.unwrap();
    assert_eq!(rest(stream).await, "");
}

#[tokio::test]
async fn a_connection_that_says_nothing_is_closed() {
    let server = Server::start(Options { first_timeout: short(100), drain: short(100), ..Options::default() }).await;
    assert_eq!(rest(server.connect().await).await, "");
    // The preface of HTTP/2 and nothing after it.
    let mut stream = server.connect().await;
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    timeout(SOON, stream.read_to_end(&mut Vec::new())).await.expect("the connection ends").unwrap();
}

#[tokio::test]
async fn a_stream_without_traffic_is_not_idle() {
    let mut server = Server::start(Options { idle_timeout: short(50), drain: short(50), ..Options::default() }).await;
    let (mut sender, connection) = server.h2().await;
    let response = sender.send_request(request("/endless")).await.unwrap();
    server.begun().await;
    tokio::time::sleep(short(300)).await;
    assert!(!connection.is_finished());
    drop(response);
    timeout(SOON, connection).await.expect("without its stream it is idle").unwrap().ok();
}

#[tokio::test]
async fn a_peer_that_does_not_answer_pings_is_dropped() {
    let mut server = Server::start(Options { keep_alive: short(100), ..Options::default() }).await;
    let mut stream = server.connect().await;
    // Preface, settings, and a request for /endless; then never an answer to anything.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let headers = b"\x82\x86\x01\x01x\x04\x08/endless";
    let length = u8::try_from(headers.len()).unwrap();
    stream.write_all(&[&[0, 0, length, 1, 5, 0, 0, 0, 1], headers.as_slice()].concat()).await.unwrap();
    server.begun().await;
    timeout(SOON, stream.read_to_end(&mut Vec::new())).await.expect("the connection ends").ok();
}

#[tokio::test]
async fn connections_beyond_the_bound_wait_for_a_place() {
    let mut server = Server::start(Options { connections: 1, ..Options::default() }).await;
    let mut first = server.connect().await;
    ask(&mut first, "/wait").await;
    server.begun().await;
    let mut second = server.connect().await;
    ask(&mut second, "/").await;
    let mut byte = [0];
    assert!(timeout(short(200), second.read(&mut byte)).await.is_err(), "no answer yet");
    server.go.add_permits(1);
    assert!(rest(first).await.ends_with("waited"));
    assert!(rest(second).await.contains("200 OK"));
}

#[tokio::test]
async fn a_request_under_way_is_finished_at_shutdown() {
    let mut server = Server::start(Options::default()).await;
    let (mut sender, _connection) = server.h2().await;
    let over_h2 = tokio::spawn(async move { sender.send_request(request("/wait")).await.unwrap().status() });
    server.begun().await;
    let mut over_h1 = server.connect().await;
    ask(&mut over_h1, "/wait").await;
    server.begun().await;
    server.shutdown.cancel();
    server.go.add_permits(2);
    assert!(rest(over_h1).await.ends_with("waited"));
    assert_eq!(over_h2.await.unwrap(), 200);
    timeout(SOON, server.task).await.unwrap().unwrap();
    assert!(TcpStream::connect(server.address).await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn a_response_without_end_is_cut_after_the_drain() {
    let mut server = Server::start(Options { drain: short(100), ..Options::default() }).await;
    let mut stream = server.connect().await;
    ask(&mut stream, "/endless").await;
    let (mut sender, _connection) = server.h2().await;
    let _response = sender.send_request(request("/endless")).await.unwrap();
    server.begun().await;
    server.begun().await;
    server.shutdown.cancel();
    timeout(SOON, server.task).await.expect("the drain is bounded").unwrap();
}

#[tokio::test]
async fn a_handler_that_panics_costs_its_own_answer_only() {
    let server = Server::start(Options::default()).await;
    assert!(server.get("/panic").await.contains("500 Internal Server Error"));
    let (mut sender, _) = server.h2().await;
    assert_eq!(sender.send_request(request("/panic")).await.unwrap().status(), 500);
    let broken = sender.send_request(request("/broken-stream")).await;
    assert!(match broken {
        Ok(response) => axum::body::to_bytes(Body::new(response.into_body()), 100).await.is_err(),
        Err(_) => true,
    });
    assert_eq!(sender.send_request(request("/")).await.unwrap().status(), 200, "the connection lives on");
    // Over HTTP/1.1 the connection is lost, and nothing else.
    server.get("/broken-stream").await;
    assert!(server.get("/").await.contains("200 OK"));
}

#[tokio::test]
async fn an_address_in_use_is_told() {
    let taken = listen("[::]:0".parse().unwrap()).await.unwrap();
    let address = taken.local_addr().unwrap();
    let error = listen(address).await.unwrap_err();
    assert!(crds::chain::Chain(&error).to_string().starts_with(&format!("can't listen on {address}: ")));
}

#[tokio::test]
async fn the_unspecified_address_takes_both_families() {
    let listener = listen("[::]:0".parse().unwrap()).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
}
