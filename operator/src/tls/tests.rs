use std::fs;
use std::os::unix::fs::symlink;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::http::Peer;

const SOON: Duration = Duration::from_secs(20);

struct Ca {
    der: CertificateDer<'static>,
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

struct Leaf {
    pem: String,
    key: KeyPair,
}

impl Ca {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self { der: certificate.der().clone(), pem: certificate.pem(), issuer: Issuer::new(params, key) }
    }

    fn leaf(&self, name: &str) -> Leaf {
        let mut params = CertificateParams::new(vec!["localhost".into()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        Leaf { pem: params.signed_by(&key, &self.issuer).unwrap().pem(), key }
    }
}

/// A mounted Secret, as the kubelet lays it out: files are links through `..data` to a directory per generation.
struct Mount {
    dir: TempDir,
    generation: u32,
}

impl Mount {
    fn new(certificate: &str, key: &str) -> Self {
        let mut mount = Self { dir: TempDir::new().unwrap(), generation: 0 };
        mount.swap(certificate, key);
        for file in ["tls.crt", "tls.key"] {
            symlink(format!("..data/{file}"), mount.dir.path().join(file)).unwrap();
        }
        mount
    }

    fn of(leaf: &Leaf) -> Self {
        Self::new(&leaf.pem, &leaf.key.serialize_pem())
    }

    /// A new directory, a new link, its rename over the old one, and the end of the old directory.
    fn swap(&mut self, certificate: &str, key: &str) {
        let dir = self.dir.path();
        let old = dir.join(format!("..generation-{}", self.generation));
        self.generation += 1;
        let new = format!("..generation-{}", self.generation);
        fs::create_dir(dir.join(&new)).unwrap();
        fs::write(dir.join(&new).join("tls.crt"), certificate).unwrap();
        fs::write(dir.join(&new).join("tls.key"), key).unwrap();
        symlink(&new, dir.join("..data_tmp")).unwrap();
        fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
        if old.exists() {
            fs::remove_dir_all(old).unwrap();
        }
    }

    fn swap_to(&mut self, leaf: &Leaf) {
        self.swap(&leaf.pem, &leaf.key.serialize_pem());
    }
}

struct Server {
    address: SocketAddr,
    reloads: watch::Receiver<Reloads>,
}

impl Server {
    async fn start(mount: &Mount, options: Options) -> Self {
        let options = Options { reload_every: Duration::from_millis(20), ..options };
        let listener = TlsListener::bind("127.0.0.1:0".parse().unwrap(), mount.dir.path(), options).await.unwrap();
        let (address, reloads) = (Listener::local_addr(&listener).unwrap(), listener.reloads());
        let whoami = |ConnectInfo(peer): ConnectInfo<Peer>| async move { peer.certificates.len().to_string() };
        let router = Router::new().route("/", get(whoami));
        tokio::spawn(http::serve(listener, router, http::Options::default(), CancellationToken::new()));
        Self { address, reloads }
    }

    /// The answer to a request, or why there is none.
    async fn get(&self, client: ClientConfig) -> io::Result<String> {
        let tcp = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = TlsConnector::from(Arc::new(client)).connect(name, tcp).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    async fn until(&mut self, reached: impl Fn(&Reloads) -> bool) {
        timeout(SOON, self.reloads.wait_for(|reloads| reached(reloads))).await.expect("it comes to that").unwrap();
    }
}

fn builder(
    ca: &Ca,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert> {
    let mut roots = RootCertStore::empty();
    roots.add(ca.der.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
}

fn trusting(ca: &Ca) -> ClientConfig {
    builder(ca, rustls::ALL_VERSIONS).with_no_client_auth()
}

fn showing(ca: &Ca, leaf: &Leaf) -> ClientConfig {
    let chain = vec![CertificateDer::from_pem_slice(leaf.pem.as_bytes()).unwrap()];
    builder(ca, rustls::ALL_VERSIONS)
        .with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(leaf.key.serialize_pem().as_bytes()).unwrap())
        .unwrap()
}

#[tokio::test]
async fn the_certificate_follows_the_kubelets_swaps() {
    let cas = [Ca::new("one"), Ca::new("two"), Ca::new("three")];
    let mut mount = Mount::of(&cas[0].leaf("server"));
    let mut server = Server::start(&mount, Options::default()).await;
    assert!(server.get(trusting(&cas[0])).await.unwrap().contains("200 OK"));
    for (loaded, ca) in (2..).zip(&cas[1..]) {
        mount.swap_to(&ca.leaf("server"));
        server.until(|reloads| reloads.loaded == loaded).await;
        assert!(server.get(trusting(ca)).await.unwrap().contains("200 OK"));
        assert!(server.get(trusting(&cas[0])).await.is_err());
    }
    assert_eq!(server.reloads.borrow().refused, 0);
}

#[tokio::test]
async fn garbage_keeps_the_certificate_of_before_and_is_told_once() {
    let ca = Ca::new("one");
    let (first, other) = (ca.leaf("server"), ca.leaf("other"));
    let mut mount = Mount::of(&first);
    let mut server = Server::start(&mount, Options::default()).await;
    let garbage = [
        ("no certificate".to_owned(), first.key.serialize_pem()),
        (first.pem.clone(), "no key".to_owned()),
        (first.pem.clone(), other.key.serialize_pem()),
        (first.pem.replace("MII", "III"), first.key.serialize_pem()),
    ];
    for (refused, (certificate, key)) in (1..).zip(&garbage) {
        mount.swap(certificate, key);
        server.until(|reloads| reloads.refused == refused).await;
        assert!(server.get(trusting(&ca)).await.unwrap().contains("200 OK"), "{refused}");
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(*server.reloads.borrow(), Reloads { loaded: 1, refused: 4 });
    let next = Ca::new("two");
    mount.swap_to(&next.leaf("server"));
    server.until(|reloads| reloads.loaded == 2).await;
    assert!(server.get(trusting(&next)).await.unwrap().contains("200 OK"));
}

#[tokio::test]
async fn files_that_go_away_and_come_back_change_nothing() {
    let ca = Ca::new("one");
    let mount = Mount::of(&ca.leaf("server"));
    let mut server = Server::start(&mount, Options::default()).await;
    let (data, aside) = (mount.dir.path().join("..data"), mount.dir.path().join("aside"));
    fs::rename(&data, &aside).unwrap();
    server.until(|reloads| reloads.refused == 1).await;
    fs::rename(&aside, &data).unwrap();
    assert!(server.get(trusting(&ca)).await.unwrap().contains("200 OK"));
    assert_eq!(server.reloads.borrow().loaded, 1);
}

#[tokio::test]
async fn a_directory_without_a_certificate_is_no_start() {
    let dir = TempDir::new().unwrap();
    let error = TlsListener::bind("127.0.0.1:0".parse().unwrap(), dir.path(), Options::default()).await.unwrap_err();
    assert!(Chain(&error).to_string().contains("tls.crt: No such file"), "{}", Chain(&error));
}

#[tokio::test]
async fn tls_1_2_is_spoken_only_when_allowed() {
    let ca = Ca::new("one");
    let mount = Mount::of(&ca.leaf("server"));
    let old = || builder(&ca, &[&rustls::version::TLS12]).with_no_client_auth();
    let server = Server::start(&mount, Options::default()).await;
    assert!(server.get(old()).await.is_err());
    let server = Server::start(&mount, Options { oldest: Version::Tls12, ..Options::default() }).await;
    assert!(server.get(old()).await.unwrap().contains("200 OK"));
}

#[tokio::test]
async fn http_2_is_offered_first() {
    let ca = Ca::new("one");
    let mount = Mount::of(&ca.leaf("server"));
    let server = Server::start(&mount, Options::default()).await;
    let mut client = trusting(&ca);
    client.alpn_protocols = vec![b"http/1.1".to_vec(), b"h2".to_vec()];
    let tcp = TcpStream::connect(server.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let stream = TlsConnector::from(Arc::new(client)).connect(name, tcp).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
}

#[tokio::test]
async fn a_client_certificate_is_optional_and_seen_by_the_handler() {
    let (ca, clients, strangers) = (Ca::new("one"), Ca::new("clients"), Ca::new("strangers"));
    let mount = Mount::of(&ca.leaf("server"));
    let file = mount.dir.path().join("clients.crt");
    fs::write(&file, &clients.pem).unwrap();
    let server = Server::start(&mount, Options { client_ca: Some(file), ..Options::default() }).await;
    assert!(server.get(trusting(&ca)).await.unwrap().ends_with("\r\n\r\n0"));
    assert!(server.get(showing(&ca, &clients.leaf("vm1"))).await.unwrap().ends_with("\r\n\r\n1"));
    assert!(server.get(showing(&ca, &strangers.leaf("vm1"))).await.is_err());
}

#[tokio::test]
async fn a_new_client_ca_ends_the_old_ones_certificates() {
    let (ca, old, new) = (Ca::new("one"), Ca::new("old"), Ca::new("new"));
    let mount = Mount::of(&ca.leaf("server"));
    let file = mount.dir.path().join("clients.crt");
    fs::write(&file, &old.pem).unwrap();
    let mut server = Server::start(&mount, Options { client_ca: Some(file.clone()), ..Options::default() }).await;
    let client = showing(&ca, &old.leaf("vm1"));
    assert!(server.get(client.clone()).await.is_ok());
    fs::write(mount.dir.path().join("next"), &new.pem).unwrap();
    fs::rename(mount.dir.path().join("next"), &file).unwrap();
    server.until(|reloads| reloads.loaded == 2).await;
    assert!(server.get(client).await.is_err(), "not even by resuming its session");
    assert!(server.get(showing(&ca, &new.leaf("vm1"))).await.is_ok());
}

#[tokio::test]
async fn a_client_that_never_shakes_hands_is_dropped() {
    let ca = Ca::new("one");
    let mount = Mount::of(&ca.leaf("server"));
    let options = Options { handshake_timeout: Duration::from_millis(100), ..Options::default() };
    let server = Server::start(&mount, options).await;
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    let read = timeout(SOON, idle.read(&mut [0])).await.expect("the connection ends");
    assert!(matches!(read, Ok(0) | Err(_)));
}

#[tokio::test]
async fn clients_that_say_nothing_block_nobody_even_when_every_place_is_taken() {
    let ca = Ca::new("one");
    let mount = Mount::of(&ca.leaf("server"));
    let options = Options {
        handshakes: 4,
        patience: Duration::from_millis(50),
        handshake_timeout: Duration::from_hours(1),
        ..Options::default()
    };
    let server = Server::start(&mount, options).await;
    let mut idle = Vec::new();
    for _ in 0..12 {
        idle.push(TcpStream::connect(server.address).await.unwrap());
    }
    let answer = timeout(SOON, server.get(trusting(&ca))).await.expect("it gets its turn");
    assert!(answer.unwrap().contains("200 OK"));
}

#[tokio::test]
async fn without_pressure_a_slow_client_keeps_its_place() {
    let ca = Ca::new("one");
    let mount = Mount::of(&ca.leaf("server"));
    let server = Server::start(&mount, Options { patience: Duration::ZERO, ..Options::default() }).await;
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    for _ in 0..20 {
        assert!(server.get(trusting(&ca)).await.is_ok());
    }
    assert!(timeout(Duration::from_millis(100), slow.read(&mut [0])).await.is_err(), "still connected");
}
