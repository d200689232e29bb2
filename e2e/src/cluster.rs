//! One test's hold on a cluster.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use futures::TryStreamExt;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{DeleteParams, DynamicObject, PostParams};
use kube::runtime::watcher::watch_object;
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::OnceCell;

use crate::audit::{Audit, Mark};
use crate::lab::{Lab, Options};
use crate::objects::{self, yaml_of};
use crate::process::{Launch, Program};
use crate::{Look, access, until};

/// A running cluster, in the hands of one test.
///
/// When the test panics, or one of its waits was in vain, dropping this prints what there is to see ([`Cluster::report`]).
pub struct Cluster {
    /// The administrator's client. It bypasses RBAC: permissions are tested with [`Cluster::client_with`].
    pub client: Client,
    lab: Arc<Lab>,
    /// What this test started.
    programs: Mutex<Vec<Arc<Program>>>,
    failed: AtomicBool,
}

impl Cluster {
    /// A cluster of this test's own.
    pub async fn start() -> anyhow::Result<Self> {
        Self::start_with(Options::default()).await
    }

    /// A cluster of this test's own, as `options` say.
    pub async fn start_with(options: Options) -> anyhow::Result<Self> {
        Self::hold(Arc::new(Lab::start(options).await?)).await
    }

    /// The cluster that the tests of one binary share. It lives as long as the process.
    ///
    /// Tests that share it keep to namespaces of their own.
    pub async fn shared() -> anyhow::Result<Self> {
        static SHARED: OnceCell<Result<Arc<Lab>, String>> = OnceCell::const_new();
        let start = async || {
            let lab = async { Lab::start(crate::outrider::options()?).await };
            lab.await.map(Arc::new).map_err(|error| format!("{error:#}"))
        };
        // A failure is kept, too: each of the other tests would wait just as long for the same.
        let lab = SHARED.get_or_init(start).await;
        Self::hold(lab.clone().map_err(|error| anyhow!(error))?).await
    }

    async fn hold(lab: Arc<Lab>) -> anyhow::Result<Self> {
        let client = access::client(&lab.admin_kubeconfig()).await?;
        Ok(Self { client, lab, programs: Mutex::default(), failed: AtomicBool::new(false) })
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.lab.admin_kubeconfig()
    }

    /// How it was to be.
    pub fn options(&self) -> &Options {
        &self.lab.options
    }

    /// The cluster's folder: logs, certificates, data.
    pub fn dir(&self) -> &Path {
        self.lab.dir()
    }

    /// Where programs find the API server.
    pub fn url(&self) -> String {
        self.lab.url()
    }

    /// A program of the control plane: `etcd`, `kube-apiserver` or `kube-controller-manager`.
    pub fn program(&self, name: &str) -> Option<Arc<Program>> {
        self.lab.programs().into_iter().find(|program| program.name() == name)
    }

    /// Runs the kubectl of the cluster's version; returns what it printed.
    pub async fn kubectl(&self, args: &[&str]) -> anyhow::Result<String> {
        let mut command = tokio::process::Command::from(self.kubectl_command(args));
        let output = command.kill_on_drop(true).output().await.context("failed to run kubectl")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl {}: {}", args.join(" "), errors.trim());
        Ok(String::from_utf8(output.stdout)?)
    }

    /// The path of that kubectl.
    pub fn kubectl_path(&self) -> PathBuf {
        self.lab.kube.program("kubectl")
    }

    /// A kubectl that talks to this cluster, and leaves the user's own files alone.
    pub(crate) fn kubectl_command(&self, args: &[&str]) -> Command {
        let (config, cache) = (self.kubeconfig(), self.lab.path("kubectl-cache"));
        let mut command = Command::new(self.kubectl_path());
        command.arg(format!("--kubeconfig={}", config.display())).arg(format!("--cache-dir={}", cache.display()));
        command.env("KUBERC", "off").args(args).stdin(Stdio::null());
        command
    }

    /// Starts a program for this test: it is part of the report, and ends with the test.
    pub fn run(&self, launch: &Launch) -> anyhow::Result<Arc<Program>> {
        let program = Arc::new(launch.start(&self.lab.path("log"))?);
        self.own_programs().push(program.clone());
        Ok(program)
    }

    /// Ends a program of this test and starts it again.
    pub async fn restart(&self, program: &Program) -> anyhow::Result<Arc<Program>> {
        let again = Arc::new(program.again().await?);
        let mut programs = self.own_programs();
        programs.retain(|old| old.pid() != program.pid());
        programs.push(again.clone());
        Ok(again)
    }

    /// Waits until a look finds what it looks for. Fails early when a program that is needed has ended.
    pub async fn until<A: Look>(&self, what: &str, look: impl AsyncFnMut() -> A) -> anyhow::Result<A::Value> {
        self.until_within(self.lab.options.wait_limit, what, look).await
    }

    /// As [`Cluster::until`], with a limit of its own.
    pub async fn until_within<A: Look>(
        &self,
        limit: Duration,
        what: &str,
        look: impl AsyncFnMut() -> A,
    ) -> anyhow::Result<A::Value> {
        let waited = until::until(what, limit, || self.surprise(), look).await;
        self.failed.fetch_or(waited.is_err(), Ordering::Relaxed);
        waited
    }

    /// Watches one object until it is as it should be (`None`: it is not there). Returns it as it was then.
    pub async fn until_object<K>(
        &self,
        api: &Api<K>,
        name: &str,
        what: &str,
        is_so: impl Fn(Option<&K>) -> bool,
    ) -> anyhow::Result<Option<K>>
    where
        K: Resource + Clone + Debug + DeserializeOwned + Serialize + Send + 'static,
    {
        let mut states = Box::pin(watch_object(api.clone(), name));
        let mut last = format!("{name} was not seen");
        // Looks end with each state of the object, or after a while, so that an ended program is noticed.
        self.until(what, async || {
            let next = tokio::time::timeout(Duration::from_millis(200), states.try_next()).await;
            match next {
                Ok(Ok(Some(state))) if is_so(state.as_ref()) => return Ok(Some(state)),
                Ok(Ok(Some(Some(object)))) => last = format!("\n{}", yaml_of(&object)),
                Ok(Ok(Some(None))) => last = format!("{name} is not there"),
                Ok(Ok(None)) => last = format!("the watch of {name} has ended"),
                Ok(Err(error)) => last = error.to_string(),
                Err(_) => {}
            }
            Err(last.clone())
        })
        .await
    }

    /// Applies the objects of a YAML text, in its order, the server's way. Returns them as the server has them now.
    ///
    /// A CustomResourceDefinition is waited for, so that objects of its kind may follow in the same text.
    pub async fn apply(&self, yaml: &str) -> anyhow::Result<Vec<DynamicObject>> {
        objects::apply(&self.client, yaml, self.lab.options.wait_limit).await
    }

    /// Deletes the objects of a YAML text, the last first, and waits until they are gone. What isn't there is no failure.
    pub async fn delete(&self, yaml: &str) -> anyhow::Result<()> {
        for object in objects::documents(yaml)?.iter().rev() {
            let title = objects::title(object);
            let (api, name) = (objects::api(&self.client, object).await?, object.name_any());
            let Some(there) = api.get_opt(&name).await? else { continue };
            let deleted = api.delete(&name, &DeleteParams::background()).await;
            deleted.with_context(|| format!("failed to delete {title}"))?;
            let is_gone = |now: Option<&DynamicObject>| now.is_none_or(|now| now.uid() != there.uid());
            self.until_object(&api, &name, &format!("{title} is gone"), is_gone).await?;
        }
        Ok(())
    }

    /// A token of a ServiceAccount. Without an audience it is one for the API server.
    pub async fn token(
        &self,
        namespace: &str,
        service_account: &str,
        audience: Option<&str>,
        lasting: Duration,
    ) -> anyhow::Result<String> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
        let spec = TokenRequestSpec {
            audiences: audience.map(str::to_owned).into_iter().collect(),
            expiration_seconds: Some(lasting.as_secs().try_into()?),
            ..TokenRequestSpec::default()
        };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let answer = accounts.create_token_request(service_account, &PostParams::default(), &request).await;
        let answer = answer.with_context(|| format!("failed to get a token of {namespace}/{service_account}"))?;
        Ok(answer.status.context("the token request has no answer")?.token)
    }

    /// Writes a kubeconfig that holds a token, so that a program has the rights of its ServiceAccount and no others.
    pub fn user_kubeconfig(&self, token: &str) -> anyhow::Result<PathBuf> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("user-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        self.lab.token_kubeconfig(&name, token)
    }

    /// A client that holds a token.
    pub async fn client_with(&self, token: &str) -> anyhow::Result<Client> {
        access::client(&self.user_kubeconfig(token)?).await
    }

    /// All that was asked of the API server.
    ///
    /// An event is written when its answer is on the way, so the last one may be missing: use [`Cluster::until`].
    pub fn audit(&self) -> anyhow::Result<Audit> {
        self.audit_since(Mark::default())
    }

    /// What was asked of the API server after the mark was set.
    pub fn audit_since(&self, mark: Mark) -> anyhow::Result<Audit> {
        Audit::read(&self.lab.audit_log(), mark)
    }

    /// Marks this moment in the audit log.
    pub fn audit_mark(&self) -> anyhow::Result<Mark> {
        Audit::mark(&self.lab.audit_log())
    }

    /// This test's programs, then the control plane's.
    pub(crate) fn all_programs(&self) -> Vec<Arc<Program>> {
        let mut programs = self.own_programs().clone();
        programs.extend(self.lab.programs());
        programs
    }

    fn own_programs(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Program>>> {
        self.programs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why waiting has become useless, if it has.
    fn surprise(&self) -> Option<String> {
        self.all_programs().iter().find_map(|program| program.surprise())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() || self.failed.load(Ordering::Relaxed) {
            self.lab.keep();
            eprintln!("{}", self.report());
        }
        // The report shows them as they were when the test failed, so they end only now.
        for program in self.own_programs().drain(..) {
            program.kill9();
        }
    }
}
