//! Outrider in a lab: its kinds, its permissions, a running operator, and machines that talk to it.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent::mirror::{Mirror, Stream, Told};
use agent::operator::{Limits, Operator, Settings};
use anyhow::{Context, anyhow, ensure};
use crds::names::NodeName;
use crds::wire::{
    Attach, AttachStage, Facts, Full, Heartbeat, InterfaceReport, PolicyOutcome, PolicyReport, Report, Revision,
};

use crate::pki::{Pki, Subject};
use crate::{Cluster, Launch, Options, Program, binaries, ports};

const CRDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/outrider/crds");
const RBAC: &str = include_str!("../../charts/outrider/rbac/operator.yaml");

/// The ServiceAccount that the operator runs as.
pub const USER: &str = "system:serviceaccount:outrider-system:outrider-operator";

/// A cluster with our kinds, which are there before the garbage collector starts.
pub fn options() -> anyhow::Result<Options> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(CRDS)?.map(|entry| Ok(entry?.path())).collect::<Result<_, std::io::Error>>()?;
    files.sort();
    let texts: Vec<String> = files.iter().map(fs::read_to_string).collect::<Result<_, _>>()?;
    Ok(Options { name: "outrider".to_owned(), objects: texts.join("\n---\n"), ..Options::default() })
}

/// A running operator.
#[derive(Debug)]
pub struct Outrider {
    /// The process.
    pub program: Arc<Program>,
    address: SocketAddr,
    health: SocketAddr,
    pki: Pki,
    folder: PathBuf,
}

impl Outrider {
    /// Installs the permissions and starts an operator as the ServiceAccount it has in a cluster.
    pub async fn start(cluster: &Cluster, heartbeat: Duration) -> anyhow::Result<Self> {
        cluster.apply(RBAC).await?;
        let token = cluster.token("outrider-system", "outrider-operator", None, Duration::from_hours(2)).await?;
        let kubeconfig = cluster.user_kubeconfig(&token)?;
        let port = || ports::free(Ipv4Addr::LOCALHOST.into()).map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let (address, health) = (port()?, port()?);
        let folder = cluster.dir().join(format!("operator-{}", address.port()));
        let pki = Pki::create(&folder)?;
        let subject = Subject {
            common_name: "outrider-operator",
            names: vec!["outrider-operator.outrider-system.svc".to_owned(), "localhost".to_owned()],
            addresses: vec![Ipv4Addr::LOCALHOST.into()],
            ..Subject::default()
        };
        pki.issue("tls", &subject)?;
        let launch = Launch::new(format!("operator-{}", address.port()), binaries::ours("outrider-operator")?)
            .args(["--listen", &address.to_string(), "--health-listen", &health.to_string()])
            .arg("--tls-dir")
            .arg(&folder)
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(["--heartbeat", &heartbeat.as_secs().to_string(), "--log", "info,operator=debug,text"]);
        let program = cluster.run(&launch)?;
        let operator = Self { program, address, health, pki, folder };
        operator.until_ready(cluster).await?;
        Ok(operator)
    }

    /// Waits until every kind was listed.
    pub async fn until_ready(&self, cluster: &Cluster) -> anyhow::Result<()> {
        let ready = async || {
            let (status, body) = self.health("/readyz").await?;
            if status == 200 { Ok(true) } else { Err(anyhow!(body)) }
        };
        cluster.until("the operator is ready", ready).await
    }

    /// What the health listener says at `path`.
    pub async fn health(&self, path: &str) -> anyhow::Result<(u16, String)> {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(self.health).await?;
        stream
            .write_all(format!("GET {path} HTTP/1.1\r\nHost: operator\r\nConnection: close\r\n\r\n").as_bytes())
            .await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        let (head, body) = text.split_once("\r\n\r\n").context("no head")?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).context("no status")?;
        Ok((status, body.to_owned()))
    }

    /// The same operator as a new process, after the old one was killed without warning.
    pub async fn kill_and_restart(&mut self, cluster: &Cluster) -> anyhow::Result<()> {
        self.program.kill9();
        self.program = cluster.restart(&self.program).await?;
        self.until_ready(cluster).await
    }

    /// Ends the operator as its Pod would end, so that the Lease is free for the next one.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.program.term();
        self.program.wait_exit(Duration::from_secs(20)).await.map(|_| ())
    }

    /// Where agents connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where its health and metrics are.
    pub fn health_address(&self) -> SocketAddr {
        self.health
    }

    /// The CA of its certificate.
    pub fn ca(&self) -> PathBuf {
        self.pki.file("ca.crt")
    }

    /// A machine that shows `token`.
    pub fn machine(&self, name: &str, token: &str) -> anyhow::Result<Machine> {
        Machine::new(&self.folder, self.address, self.ca(), name, token)
    }
}

/// How long a commit may take that was asked for.
const COMMIT: Duration = Duration::from_mins(1);

/// A machine as the operator sees it: an agent's mirror and stream, without a host.
#[derive(Debug)]
pub struct Machine {
    operator: Operator,
    /// What it was told.
    pub mirror: Mirror,
    /// Each frame as it came, of what was committed and of what was not.
    pub heard: Vec<String>,
    stream: Option<Stream>,
    node: NodeName,
    digest: u64,
}

impl Machine {
    fn new(folder: &Path, address: SocketAddr, ca: PathBuf, name: &str, token: &str) -> anyhow::Result<Self> {
        let node: NodeName = name.parse()?;
        let token_file = folder.join(format!("{}-{}.token", node.key().namespace, node.key().name));
        fs::write(&token_file, token)?;
        let addresses = vec![address.to_string().parse().map_err(|error| anyhow!("{error}"))?];
        let operator = Operator::new(Settings { addresses, ca, token_file, limits: Limits::default() });
        Ok(Self { operator, mirror: Mirror::new(Some(node.clone())), heard: Vec::new(), stream: None, node, digest: 0 })
    }

    /// Connects, resuming from what it has, and reads to the first commit.
    pub async fn connect(&mut self) -> anyhow::Result<()> {
        self.stream = Some(self.operator.watch(&self.mirror).await?);
        self.until_commit().await.map(|_| ())
    }

    /// Reads to the next commit. Pings are no commit: a stream that says nothing else is an error.
    pub async fn until_commit(&mut self) -> anyhow::Result<Revision> {
        let commit = async {
            loop {
                match self.told().await? {
                    Told::Commit(revision) => return Ok(revision),
                    Told::Gone { uid, reason } => return Err(anyhow!("gone: {uid}: {reason}")),
                    Told::Hello | Told::Ping => {}
                }
            }
        };
        let committed = tokio::time::timeout(COMMIT, commit).await;
        committed.with_context(|| {
            let view = self.mirror.view();
            format!(
                "no commit in {COMMIT:?}; it was told {} groups and policies {:?}",
                view.groups.len(),
                self.policies()
            )
        })?
    }

    /// Reads to the next thing that the operator tells.
    pub async fn told(&mut self) -> anyhow::Result<Told> {
        let stream = self.stream.as_mut().context("not connected")?;
        loop {
            let frame =
                tokio::time::timeout(Duration::from_secs(30), stream.next()).await.context("nothing for 30 s")??;
            self.heard.push(format!("{frame:?}"));
            if let Some(told) = self.mirror.frame(frame)? {
                return Ok(told);
            }
        }
    }

    /// Bytes of this stream so far.
    pub fn bytes(&self) -> u64 {
        self.stream.as_ref().map_or(0, Stream::bytes_received)
    }

    /// Drops the connection.
    pub fn disconnect(&mut self) {
        self.stream = None;
    }

    /// The names of the policies that it was told, sorted.
    pub fn policies(&self) -> Vec<String> {
        let mut names: Vec<_> = self.mirror.view().policies.values().map(|p| p.body().name.to_string()).collect();
        names.sort();
        names
    }

    /// Reports everything as a well agent does that enforces all it was told.
    pub async fn report(&mut self) -> anyhow::Result<()> {
        self.report_with(|_| ()).await
    }

    /// The same, changed by `change` before it is sent.
    pub async fn report_with(&mut self, change: impl FnOnce(&mut Full)) -> anyhow::Result<()> {
        self.digest += 1;
        let mut full = self.full()?;
        change(&mut full);
        let answer = self.operator.report(&Report::Full(Box::new(full))).await?;
        ensure!(answer.want.is_none(), "asked for what was just said");
        Ok(())
    }

    /// Says that nothing changed.
    pub async fn heartbeat(&self) -> anyhow::Result<()> {
        self.operator.report(&Report::Heartbeat(self.head()?)).await?;
        Ok(())
    }

    fn head(&self) -> anyhow::Result<Heartbeat> {
        Ok(Heartbeat {
            node: self.node.clone(),
            uid: self.mirror.uid().context("not told yet which ExternalNode it is")?.clone(),
            revision: self.mirror.revision().cloned(),
            digest: self.digest.to_string(),
        })
    }

    fn full(&self) -> anyhow::Result<Full> {
        let view = self.mirror.view();
        let node = view.node.as_ref().context("not told yet which ExternalNode it is")?.body();
        let policies = view.policies.values().map(|entry| PolicyReport {
            id: entry.key().clone(),
            generation: entry.body().generation,
            outcome: PolicyOutcome::Realized(true),
        });
        let interfaces = node.interfaces.iter().map(|i| InterfaceReport {
            name: i.name.clone().unwrap_or_else(|| "eth0".to_owned()),
            mac: i.mac.clone().unwrap_or_default(),
            mtu: 1500,
            ips: i.ips.clone(),
            state: "attached".to_owned(),
        });
        let attach = node.interfaces.iter().map(|i| Attach {
            interface: i.name.clone().unwrap_or_else(|| "eth0".to_owned()),
            stage: AttachStage::Attached,
            message: String::new(),
        });
        Ok(Full {
            head: self.head()?,
            policies: policies.collect(),
            interfaces: interfaces.collect(),
            attach: attach.collect(),
            facts: Facts { version: env!("CARGO_PKG_VERSION").to_owned(), ..Facts::default() },
        })
    }
}
