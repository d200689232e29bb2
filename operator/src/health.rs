//! What the kubelet and Prometheus ask, over plain HTTP.
//!
//! | path | answer |
//! |---|---|
//! | `/livez` | 200: the process runs and its event loop answers |
//! | `/readyz` | 200 once every input was seen; before, 503 and a line for each that is missing |
//! | `/metrics` | everything registered, as OpenMetrics |

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::http;

/// Whether the process can do its work. Once true it stays true: a watch that reconnects is no reason to turn every
/// agent away.
#[derive(Clone)]
pub struct Readiness(Arc<Inner>);

struct Inner {
    reached: AtomicBool,
    missing: Box<dyn Fn() -> Vec<String> + Send + Sync>,
}

impl Readiness {
    /// Ready when `missing` first names nothing. It is asked at every probe until then, so it must be cheap.
    pub fn new(missing: impl Fn() -> Vec<String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner { reached: AtomicBool::new(false), missing: Box::new(missing) }))
    }

    /// What isn't there yet.
    pub fn missing(&self) -> Vec<String> {
        if self.0.reached.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let missing = (self.0.missing)();
        if missing.is_empty() {
            self.0.reached.store(true, Ordering::Relaxed);
        }
        missing
    }

    /// Whether nothing is missing, or ever wasn't.
    pub fn is_ready(&self) -> bool {
        self.missing().is_empty()
    }
}

/// The three paths.
pub fn router(readiness: Readiness, metrics: Arc<Registry>) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz).with_state(readiness))
        .route("/metrics", get(expose).with_state(metrics))
}

/// Serves them on a listener until `shutdown`.
pub async fn serve(listener: TcpListener, readiness: Readiness, metrics: Arc<Registry>, shutdown: CancellationToken) {
    // The kubelet and a few scrapers.
    let options = http::Options { connections: 64, ..http::Options::default() };
    http::serve(listener, router(readiness, metrics), options, shutdown).await;
}

/// Listens on `address`, then serves them.
pub async fn run(
    address: SocketAddr,
    readiness: Readiness,
    metrics: Arc<Registry>,
    shutdown: CancellationToken,
) -> Result<(), http::Error> {
    serve(http::listen(address).await?, readiness, metrics, shutdown).await;
    Ok(())
}

async fn readyz(State(readiness): State<Readiness>) -> Response {
    let missing = readiness.missing();
    if missing.is_empty() {
        return "ok\n".into_response();
    }
    let lines: Vec<_> = missing.iter().map(|name| format!("waiting for {name}\n")).collect();
    (StatusCode::SERVICE_UNAVAILABLE, lines.concat()).into_response()
}

async fn expose(State(metrics): State<Arc<Registry>>) -> Response {
    let mut text = String::new();
    match encode(&mut text, &metrics) {
        Ok(()) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(CONTENT_TYPE, kind)], ordered(&text)).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// The same samples with those of one metric in the order of their labels: the encoder has them in none. The buckets of
/// a histogram are in order already, and in no other.
fn ordered(text: &str) -> String {
    let mut blocks: Vec<Vec<&str>> = Vec::new();
    for line in text.lines() {
        let begins =
            line.starts_with('#') && blocks.last().is_none_or(|block| block.iter().any(|l| !l.starts_with('#')));
        match blocks.last_mut() {
            Some(block) if !begins => block.push(line),
            _ => blocks.push(vec![line]),
        }
    }
    for block in blocks.iter_mut().filter(|block| !block.iter().any(|line| line.ends_with(" histogram"))) {
        let head = block.iter().take_while(|line| line.starts_with('#')).count();
        block[head..].sort_unstable();
    }
    blocks.concat().into_iter().flat_map(|line| [line, "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use prometheus_client::metrics::counter::Counter;
    use tower::ServiceExt;

    use super::*;

    async fn ask(router: &Router, path: &str) -> (StatusCode, String, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let kind = response.headers()[CONTENT_TYPE].to_str().unwrap().to_owned();
        let (status, body) = (response.status(), to_bytes(response.into_body(), 10_000).await.unwrap());
        (status, kind, String::from_utf8(body.to_vec()).unwrap())
    }

    fn waiting_for(inputs: &[&str]) -> (Router, Arc<Mutex<Vec<String>>>) {
        let missing = Arc::new(Mutex::new(inputs.iter().map(ToString::to_string).collect::<Vec<_>>()));
        let readiness = Readiness::new({
            let missing = missing.clone();
            move || missing.lock().unwrap().clone()
        });
        (router(readiness, Arc::default()), missing)
    }

    #[tokio::test]
    async fn a_process_that_is_not_ready_says_what_it_waits_for() {
        let (router, _) = waiting_for(&["pods", "tiers"]);
        let (status, _, body) = ask(&router, "/readyz").await;
        assert_eq!((status, body.as_str()), (StatusCode::SERVICE_UNAVAILABLE, "waiting for pods\nwaiting for tiers\n"));
        assert_eq!(ask(&router, "/livez").await.0, StatusCode::OK, "alive all the same");
    }

    #[tokio::test]
    async fn ready_once_is_ready_for_good() {
        let (router, missing) = waiting_for(&["pods"]);
        missing.lock().unwrap().clear();
        assert_eq!(ask(&router, "/readyz").await.0, StatusCode::OK);
        missing.lock().unwrap().push("pods".to_owned());
        assert_eq!(ask(&router, "/readyz").await.0, StatusCode::OK);
    }

    #[tokio::test]
    async fn metrics_are_exposed_as_open_metrics() {
        let mut registry = Registry::with_prefix("outrider");
        let counter = Counter::<u64>::default();
        registry.register("resolves", "How often", counter.clone());
        counter.inc();
        let router = router(Readiness::new(Vec::new), Arc::new(registry));
        let (status, kind, body) = ask(&router, "/metrics").await;
        assert_eq!(
            (status, kind.as_str()),
            (StatusCode::OK, "application/openmetrics-text; version=1.0.0; charset=utf-8")
        );
        assert!(body.contains("outrider_resolves_total 1\n") && body.ends_with("# EOF\n"), "{body}");
    }

    #[tokio::test]
    async fn the_listener_answers_until_the_shutdown() {
        let listener = http::listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let served = tokio::spawn(serve(listener, Readiness::new(Vec::new), Arc::default(), shutdown.clone()));
        tokio::net::TcpStream::connect(address).await.unwrap();
        shutdown.cancel();
        served.await.unwrap();
        assert!(tokio::net::TcpStream::connect(address).await.is_err());
    }
}
