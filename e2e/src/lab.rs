//! The part of a cluster that tests share: its folder, its authorities and its programs.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::api::GetParams;
use kube::core::Request;
use tokio::net::TcpStream;

use crate::binaries::Kube;
use crate::home::Home;
use crate::pki::Pki;
use crate::process::{Launch, Program, stop};
use crate::{access, objects, plane, say};

/// How a cluster is to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// Begins the name of its folder.
    pub name: String,
    /// What the API server listens on, and clients and nodes dial.
    pub address: IpAddr,
    /// More arguments of the API server; they win over the lab's own.
    pub api_server: Vec<String>,
    /// More arguments of the controller manager.
    pub controller_manager: Vec<String>,
    /// Definitions and other objects that are there before the controllers start.
    ///
    /// The garbage collector learns of a kind that is defined later only within 30 s.
    pub objects: String,
    /// How long one program may take to be ready.
    pub start_limit: Duration,
    /// How long `Cluster::until` waits.
    pub wait_limit: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: "lab".to_owned(),
            address: Ipv4Addr::LOCALHOST.into(),
            api_server: Vec::new(),
            controller_manager: Vec::new(),
            objects: String::new(),
            // An API server starts in 4 s on an idle machine, and much later beside a compiler.
            start_limit: Duration::from_mins(2),
            wait_limit: Duration::from_secs(30),
        }
    }
}

/// A running control plane.
#[derive(Debug)]
pub(crate) struct Lab {
    pub(crate) options: Options,
    pub(crate) pki: Pki,
    pub(crate) kube: Kube,
    /// The API server's port.
    pub(crate) port: u16,
    /// What must run for the cluster to be whole. Later also the scheduler, and each node's programs.
    programs: Mutex<BTreeMap<String, Arc<Program>>>,
    home: Home,
}

impl Lab {
    /// Starts etcd, the API server and the controller manager, and returns when all do their work.
    pub(crate) async fn start(options: Options) -> anyhow::Result<Self> {
        let begun = Instant::now();
        let kube = Kube::locate()?;
        let home = Home::claim(&options.name)?;
        say(&format!("starting Kubernetes {} in {}", crate::binaries::kubernetes_version(), home.path().display()));
        std::fs::create_dir(home.path().join("log"))?;
        let pki = Pki::create(&home.path().join("pki"))?;
        plane::certificates(&pki, options.address)?;
        let port = crate::ports::free(options.address)?;
        let lab = Self { options, pki, kube, port, programs: Mutex::default(), home };
        let started = lab.start_programs().await;
        if started.is_err() {
            lab.home.keep();
        }
        started.with_context(|| format!("the control plane did not start; see {}", lab.path("log").display()))?;
        say(&format!("the control plane is ready after {:.1?}", begun.elapsed()));
        Ok(lab)
    }

    async fn start_programs(&self) -> anyhow::Result<()> {
        let limit = self.options.start_limit;
        let (etcd, etcd_port) = plane::etcd(self, &self.kube)?;
        let etcd = self.add(&etcd)?;
        let listens = async || TcpStream::connect((Ipv4Addr::LOCALHOST, etcd_port)).await.map(|_| true);
        etcd.ready("etcd listens", limit, listens).await?;

        let api_server = self.add(&plane::api_server(self, &self.kube, etcd_port)?)?;
        let client = access::client(&self.certificate_kubeconfig("admin")?).await?;
        let answers = async || {
            let question = Request::new("").get("readyz", &GetParams::default()).map_err(kube::Error::BuildRequest)?;
            client.request_text(question).await.map(|_| true)
        };
        api_server.ready("the API server is ready", limit, answers).await?;
        say("the API server is ready");
        objects::apply(&client, &self.options.objects, limit).await?;

        let controller_manager = self.add(&plane::controller_manager(self, &self.kube)?)?;
        // The controllers run once one of them has made this.
        let accounts: Api<ServiceAccount> = Api::namespaced(client, "default");
        let made = async || accounts.get_opt("default").await;
        controller_manager.ready("the controllers run", limit, made).await?;
        Ok(())
    }

    /// Starts a program that the cluster needs from now on.
    pub(crate) fn add(&self, launch: &Launch) -> anyhow::Result<Arc<Program>> {
        let program = Arc::new(launch.start(&self.path("log"))?);
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        programs.insert(program.name().to_owned(), program.clone());
        Ok(program)
    }

    /// The programs that the cluster needs.
    pub(crate) fn programs(&self) -> Vec<Arc<Program>> {
        self.programs.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// A path in the cluster's folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    pub(crate) fn dir(&self) -> &Path {
        self.home.path()
    }

    pub(crate) fn audit_log(&self) -> PathBuf {
        self.path("audit.jsonl")
    }

    pub(crate) fn keep(&self) {
        self.home.keep();
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let programs = self.programs();
        // On a thread of its own: the runtime this is dropped on, if any, must not be blocked on from within.
        let stopping = thread::spawn(move || {
            if let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() {
                runtime.block_on(stop(&programs));
            }
        });
        // A panic in there has already been printed, and the programs die with the process at the latest.
        let _ = stopping.join();
    }
}
