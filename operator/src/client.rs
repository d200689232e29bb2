//! The client for the API server: every watch and every call on one HTTP/2 connection.
//!
//! ```text
//! kube::Client -> base URL -> retry -> authorization, headers -> time limit -> pool of one HTTP/2 connection
//! ```
//!
//! kube's own client speaks HTTP/1.1 only: a connection, and a TLS session, for each watch. Which protocol the server
//! speaks is asked once, in a handshake at the start: what answers may be a proxy without HTTP/2. Leaving it to each
//! handshake would work too, but then as many connections are made, and all but one thrown away, as there are watches
//! that start or come back at once.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use axum::http::header::{RETRY_AFTER, USER_AGENT};
use axum::http::uri::Scheme;
use axum::http::{HeaderValue, Method, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt};
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use rustls::pki_types::InvalidDnsNameError;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt};

use crate::jitter;

#[cfg(test)]
mod tests;

/// How long things may take.
#[derive(Clone, Copy, Debug)]
struct Times {
    /// TCP and TLS together.
    connect: Duration,
    /// From the request to the head of the response. The API server itself gives up after 60 s.
    head: Duration,
    /// How often the server is asked whether it is there, and how long its answer may take: a dead one is noticed
    /// within twice this.
    keep_alive: Duration,
    /// Before the first retry. Doubled for each further one.
    backoff: Duration,
    /// The longest wait that a server may ask for.
    longest_wait: Duration,
}

const TIMES: Times = Times {
    connect: Duration::from_secs(10),
    head: Duration::from_secs(65),
    keep_alive: Duration::from_secs(10),
    backoff: Duration::from_millis(200),
    longest_wait: Duration::from_secs(30),
};

/// Tries of one call, the first included.
const TRIES: u32 = 5;

/// What one stream may send ahead of its reader, and all of them together: with room for more stalled readers than
/// there are watches, none of them holds up the others.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 1 << 26;

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kubeconfig can't be used.
    #[error("can't use the kubeconfig {path}")]
    Kubeconfig {
        /// Where it is.
        path: PathBuf,
        /// Why not.
        source: Box<KubeconfigError>,
    },
    /// No kubeconfig was given, and this is no Pod with a ServiceAccount.
    #[error("no kubeconfig was given, and there is no cluster around")]
    InCluster(#[source] InClusterError),
    /// The credentials or the proxy in the configuration can't be used.
    #[error("can't set up the client")]
    Setup(#[source] Box<kube::Error>),
    /// The name to expect in the server's certificate is none.
    #[error("{name:?} is no name of a server")]
    ServerName {
        /// What was configured.
        name: String,
        /// Why not.
        source: InvalidDnsNameError,
    },
}

/// A client by this kubeconfig, or by the ServiceAccount of the Pod. The server need not be there yet.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<Client, Error> {
    let config = match kubeconfig {
        None => Config::incluster().map_err(Error::InCluster)?,
        Some(path) => {
            let wrap = |source| Error::Kubeconfig { path: path.to_owned(), source: Box::new(source) };
            let kubeconfig = Kubeconfig::read_from(path).map_err(wrap)?;
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(wrap)?
        }
    };
    client(config, TIMES).await
}

async fn client(config: Config, times: Times) -> Result<Client, Error> {
    let setup = |error| Error::Setup(Box::new(error));
    // kube asks for the process's default. Somebody else may have set the same one.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    if config.proxy_url.is_some() {
        return Client::try_from(config).map_err(setup);
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(Duration::from_secs(30)));
    let mut tls =
        HttpsConnectorBuilder::new().with_tls_config(config.rustls_client_config().map_err(setup)?).https_or_http();
    if let Some(name) = &config.tls_server_name {
        let parsed = name.clone().try_into().map_err(|source| Error::ServerName { name: name.clone(), source })?;
        tls = tls.with_server_name_resolver(FixedServerNameResolver::new(parsed));
    }
    let connector = ServiceBuilder::new()
        .map_future(|connecting| -> Pin<Box<dyn Future<Output = _> + Send>> { Box::pin(connecting) })
        .timeout(times.connect)
        .service(tls.enable_all_versions().wrap_connector(tcp));
    let http2_only = speaks_http2(connector.clone(), config.cluster_url.clone()).await;
    let pool: legacy::Client<_, Body> = legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_only(http2_only)
        .http2_keep_alive_interval(times.keep_alive)
        .http2_keep_alive_timeout(times.keep_alive)
        .http2_keep_alive_while_idle(true)
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .build(connector);
    let once = ServiceBuilder::new()
        .option_layer(config.auth_layer().map_err(setup)?)
        .layer(config.extra_headers_layer().map_err(setup)?)
        .map_request(introduce)
        .timeout(times.head)
        .map_err(BoxError::from)
        .service(pool);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .service(tower::service_fn(move |request| send(once.clone(), request, times)));
    Ok(Client::new(service, config.default_namespace))
}

/// Whether the server agrees on HTTP/2. One that can't be reached is taken for an API server, which does.
async fn speaks_http2<S>(connector: S, server: Uri) -> bool
where
    S: Service<Uri, Error = BoxError>,
    S::Response: Connection,
{
    if server.scheme() != Some(&Scheme::HTTPS) {
        return false;
    }
    match connector.oneshot(server).await {
        Ok(connection) => connection.connected().is_negotiated_h2(),
        Err(error) => {
            tracing::debug!(%error, "can't reach the API server yet");
            true
        }
    }
}

/// Says who we are, unless the configuration says something else.
fn introduce(mut request: Request<Body>) -> Request<Body> {
    let ours = HeaderValue::from_static(concat!("outrider-operator/", env!("CARGO_PKG_VERSION")));
    request.headers_mut().entry(USER_AGENT).or_insert(ours);
    request
}

/// Sends, and again where the server asks for it or is in trouble.
async fn send<S>(once: S, request: Request<Body>, times: Times) -> Result<Response<Incoming>, BoxError>
where
    S: Service<Request<Body>, Response = Response<Incoming>, Error = BoxError> + Clone,
{
    let mut next = Some(request);
    let mut tried = 0;
    loop {
        let Some(request) = next.take() else { return Err("a request that was sent can't be sent again".into()) };
        tried += 1;
        let again = if tried < TRIES { copy(&request) } else { None };
        let response = once.clone().oneshot(request).await?;
        let Some(again) = again else { return Ok(response) };
        let Some(wait) = wait_before_retry(again.method(), &response, tried, times) else { return Ok(response) };
        tracing::debug!(status = response.status().as_u16(), ?wait, uri = %again.uri(), "will retry");
        drop(response);
        tokio::time::sleep(wait).await;
        next = Some(again);
    }
}

/// How long to wait before the next try, or None when the response is the answer.
///
/// A write is tried again only where the server says that it has done nothing. Others might have been done.
fn wait_before_retry<B>(method: &Method, response: &Response<B>, tried: u32, times: Times) -> Option<Duration> {
    let asked = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let asked = asked.map(Duration::from_secs);
    let retry = match response.status() {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => true,
        status => status.is_server_error() && (asked.is_some() || method == Method::GET),
    };
    if !retry || asked.is_some_and(|asked| asked > times.longest_wait) {
        return None;
    }
    let own = jitter::of(times.backoff.saturating_mul(1 << (tried - 1).min(10)));
    // Everybody was told the same: the jitter comes on top.
    Some(asked.unwrap_or_default() + own)
}

/// The same request once more. None for a watch, whose watcher has its own way of coming back, and for a body that
/// is a stream.
fn copy(request: &Request<Body>) -> Option<Request<Body>> {
    if is_watch(request.uri()) {
        return None;
    }
    let mut copy = Request::new(request.body().try_clone()?);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    *copy.extensions_mut() = request.extensions().clone();
    Some(copy)
}

fn is_watch(uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1")))
}
