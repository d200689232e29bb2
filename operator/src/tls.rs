//! TLS for our own listeners: the certificate of a mounted Secret, followed as the kubelet swaps it.
//!
//! ```text
//! tls.crt, tls.key [, client CA] --every few seconds, when the content differs--> ServerConfig
//!                                                                                      |
//! TCP --accept--> one task per handshake (bounded, with a time limit) -----------------+--> TlsListener::accept
//! ```
//!
//! A directory that can't be used keeps the certificate of before, and says so once.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::serve::Listener;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, interval, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::task::AbortOnDropHandle;

use crate::http::{self, Certified};
use crds::chain::Chain;

#[cfg(test)]
mod tests;

/// How a listener behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// The oldest version spoken.
    pub oldest: Version,
    /// A file of PEM certificates. A client that shows a certificate must have it from one of these; one that shows
    /// none is let in all the same, and known by other means.
    pub client_ca: Option<PathBuf>,
    /// From the connection to the end of the handshake.
    pub handshake_timeout: Duration,
    /// Handshakes at once.
    pub handshakes: usize,
    /// How long the oldest handshake keeps its place when all places are taken and another client waits.
    pub patience: Duration,
    /// How often the files are read.
    pub reload_every: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            oldest: Version::Tls13,
            client_ca: None,
            handshake_timeout: Duration::from_secs(10),
            handshakes: 256,
            patience: Duration::from_secs(1),
            reload_every: Duration::from_secs(5),
        }
    }
}

/// The oldest version of TLS spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// 1.2 too, for API servers that speak nothing newer.
    Tls12,
    /// 1.3 only.
    Tls13,
}

/// How often the files changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reloads {
    /// Contents taken into use, the first included.
    pub loaded: u64,
    /// Contents refused.
    pub refused: u64,
}

/// Why there is no certificate to serve with, or no listener.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address can't be listened on.
    #[error(transparent)]
    Listen(http::Error),
    /// A file can't be read.
    #[error("can't read {path}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is no PEM.
    #[error("{path} holds no usable {wanted}")]
    Pem {
        /// Which.
        path: PathBuf,
        /// What it should hold.
        wanted: &'static str,
        /// Why it does not.
        source: pem::Error,
    },
    /// The key isn't the certificate's, or either is of a kind that isn't supported.
    #[error("certificate and key in {dir} can't be used together")]
    Pair {
        /// The directory.
        dir: PathBuf,
        /// Why not.
        source: rustls::Error,
    },
    /// The certificates of the client CA are none.
    #[error("{path} holds no usable client CA")]
    ClientCa {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Accepts connections whose handshake is done.
#[derive(Debug)]
pub struct TlsListener {
    accepted: mpsc::Receiver<(TlsStream<TcpStream>, SocketAddr)>,
    address: SocketAddr,
    reloads: watch::Receiver<Reloads>,
    _tasks: [AbortOnDropHandle<()>; 2],
}

impl TlsListener {
    /// Listens on `address` with the certificate in `tls_dir`, which must be usable now.
    pub async fn bind(address: SocketAddr, tls_dir: &Path, options: Options) -> Result<Self, Error> {
        let source = Source { dir: tls_dir.to_owned(), client_ca: options.client_ca.clone(), oldest: options.oldest };
        let content = source.read().await?;
        let config = Arc::new(ArcSwap::from_pointee(source.config(&content)?));
        let tcp = http::listen(address).await.map_err(Error::Listen)?;
        let address = tcp.local_addr().map_err(|source| Error::Listen(http::Error::Listen { address, source }))?;
        let (accept, accepted) = mpsc::channel(64);
        let (told, reloads) = watch::channel(Reloads { loaded: 1, refused: 0 });
        let follow = follow(source, content, config.clone(), options.reload_every, told);
        let tasks = [tokio::spawn(follow), tokio::spawn(handshakes(tcp, config, options, accept))];
        Ok(Self { accepted, address, reloads, _tasks: tasks.map(AbortOnDropHandle::new) })
    }

    /// How often the certificate was exchanged.
    pub fn reloads(&self) -> watch::Receiver<Reloads> {
        self.reloads.clone()
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.accepted.recv().await {
            Some(accepted) => accepted,
            // Only while the runtime ends.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Ok(self.address)
    }
}

impl Certified for TlsStream<TcpStream> {
    fn certificates(&self) -> Arc<[CertificateDer<'static>]> {
        self.get_ref().1.peer_certificates().unwrap_or_default().to_vec().into()
    }
}

/// Where the certificate comes from.
struct Source {
    dir: PathBuf,
    client_ca: Option<PathBuf>,
    oldest: Version,
}

/// The files as read, to be compared with those of the next time.
#[derive(PartialEq)]
struct Content {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl Source {
    async fn read(&self) -> Result<Content, Error> {
        // A swap between the two files would give a key that isn't the certificate's: both through one generation.
        let generation = tokio::fs::canonicalize(self.dir.join("..data")).await;
        let dir = generation.as_deref().unwrap_or(&self.dir);
        let client_ca = match &self.client_ca {
            Some(path) => Some(read(path).await?),
            None => None,
        };
        Ok(Content {
            certificate: read(&dir.join("tls.crt")).await?,
            key: read(&dir.join("tls.key")).await?,
            client_ca,
        })
    }

    fn config(&self, content: &Content) -> Result<ServerConfig, Error> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let versions: &[_] = match self.oldest {
            Version::Tls12 => &[&rustls::version::TLS13, &rustls::version::TLS12],
            Version::Tls13 => &[&rustls::version::TLS13],
        };
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions)
            .map_err(|source| Error::Pair { dir: self.dir.clone(), source })?;
        let builder = match (&self.client_ca, &content.client_ca) {
            (Some(path), Some(pem)) => {
                let refuse = |source| Error::ClientCa { path: path.clone(), source };
                let mut roots = RootCertStore::empty();
                for certificate in certificates(pem, path)? {
                    roots.add(certificate).map_err(|error| refuse(error.into()))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = verifier.allow_unauthenticated().build().map_err(|error| refuse(error.into()))?;
                builder.with_client_cert_verifier(verifier)
            }
            _ => builder.with_no_client_auth(),
        };
        let chain = certificates(&content.certificate, &self.dir.join("tls.crt"))?;
        let key = PrivateKeyDer::from_pem_slice(&content.key).map_err(|source| Error::Pem {
            path: self.dir.join("tls.key"),
            wanted: "key",
            source,
        })?;
        let mut config =
            builder.with_single_cert(chain, key).map_err(|source| Error::Pair { dir: self.dir.clone(), source })?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // A resumed session would not look at the client's certificate again, nor at a new client CA.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}

async fn read(path: &Path) -> Result<Vec<u8>, Error> {
    tokio::fs::read(path).await.map_err(|source| Error::Read { path: path.to_owned(), source })
}

fn certificates(pem: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let refuse = |source| Error::Pem { path: path.to_owned(), wanted: "certificate", source };
    let chain: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(refuse)?;
    if chain.is_empty() { Err(refuse(pem::Error::NoItemsFound)) } else { Ok(chain) }
}

/// Takes every new content into use. By content and not by event: the kubelet, an editor and a copy all look alike.
async fn follow(
    source: Source,
    mut last: Content,
    config: Arc<ArcSwap<ServerConfig>>,
    every: Duration,
    told: watch::Sender<Reloads>,
) {
    let mut ticks = interval(every);
    let mut complaint = None;
    loop {
        ticks.tick().await;
        // The generation may go away while it is read.
        let content = match source.read().await {
            Err(_) => source.read().await,
            read => read,
        };
        let loaded = match content {
            Ok(content) if content == last => continue,
            Ok(content) => {
                let loaded = source.config(&content);
                last = content;
                loaded
            }
            Err(error) => Err(error),
        };
        match loaded {
            Ok(new) => {
                config.store(Arc::new(new));
                complaint = None;
                tracing::info!(dir = %source.dir.display(), "took a new certificate into use");
                told.send_modify(|reloads| reloads.loaded += 1);
            }
            Err(error) => {
                let text = Chain(&error).to_string();
                if complaint.as_ref() != Some(&text) {
                    tracing::warn!(error = text, "keeping the certificate of before");
                    complaint = Some(text);
                    told.send_modify(|reloads| reloads.refused += 1);
                }
            }
        }
    }
}

/// Accepts and shakes hands. With every place taken, whoever has shaken longest gives way to the next: clients that
/// connect and say nothing can slow others down by no more than `patience`.
async fn handshakes(
    mut tcp: TcpListener,
    config: Arc<ArcSwap<ServerConfig>>,
    options: Options,
    accept: mpsc::Sender<(TlsStream<TcpStream>, SocketAddr)>,
) {
    let mut running = JoinSet::new();
    let mut oldest_first: VecDeque<(Instant, AbortHandle)> = VecDeque::new();
    loop {
        while running.try_join_next().is_some() {}
        while oldest_first.front().is_some_and(|(_, handshake)| handshake.is_finished()) {
            oldest_first.pop_front();
        }
        if let Some((since, oldest)) = oldest_first.front().filter(|_| running.len() >= options.handshakes.max(1)) {
            tokio::select! {
                biased;
                _ = running.join_next() => {}
                () = sleep_until(*since + options.patience) => oldest.abort(),
            }
            continue;
        }
        tokio::select! {
            () = accept.closed() => return,
            Some(_) = running.join_next() => {}
            (stream, peer) = Listener::accept(&mut tcp) => {
                let (config, accept) = (config.load_full(), accept.clone());
                let handshake = running.spawn(async move {
                    // Small frames: waiting for more to send would only delay them.
                    let _ = stream.set_nodelay(true);
                    match timeout(options.handshake_timeout, TlsAcceptor::from(config).accept(stream)).await {
                        Ok(Ok(stream)) => drop(accept.send((stream, peer)).await),
                        Ok(Err(error)) => tracing::debug!(%peer, error = %Chain(&error), "handshake failed"),
                        Err(_) => tracing::debug!(%peer, "handshake took too long"),
                    }
                });
                oldest_first.push_back((Instant::now(), handshake));
            }
        }
    }
}
