//! The laboratory itself: what tests rely on when they run in it.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use e2e::until::until;
use e2e::{Cluster, Launch, Options, binaries};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use tokio::io::{AsyncBufReadExt, BufReader};

const MINUTES: Duration = Duration::from_mins(10);

#[tokio::test]
async fn the_api_server_is_of_the_version_that_was_built() -> anyhow::Result<()> {
    let cluster = Cluster::shared().await?;
    let version = cluster.client.apiserver_version().await?;
    assert_eq!(version.git_version, binaries::kubernetes_version());
    let said = cluster.kubectl(&["version"]).await?;
    assert_eq!(said.matches(binaries::kubernetes_version()).count(), 2, "kubectl and server: {said}");
    Ok(())
}

#[tokio::test]
async fn an_owned_object_goes_with_its_owner() -> anyhow::Result<()> {
    let cluster = Cluster::shared().await?;
    let reference = owner(&cluster).await?;
    let dependent =
        format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: owned, ownerReferences: [{reference}]}}}}");
    cluster.apply(&dependent).await?;

    cluster.delete(OWNER).await?;

    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), "default");
    cluster.until_object(&maps, "owned", "the owned ConfigMap is collected", |map| map.is_none()).await?;
    Ok(())
}

#[tokio::test]
async fn an_object_of_a_kind_given_at_the_start_goes_with_its_owner_at_once() -> anyhow::Result<()> {
    let cluster = Cluster::start_with(Options { objects: SHIPS.to_owned(), ..Options::default() }).await?;
    let reference = owner(&cluster).await?;
    let metadata = format!("{{name: raft, ownerReferences: [{reference}]}}");
    cluster.apply(&format!("{{apiVersion: sea.example/v1, kind: Ship, metadata: {metadata}}}")).await?;

    cluster.delete(OWNER).await?;

    let only_the_other = async || {
        let left = cluster.kubectl(&["get", "ships", "-o", "name"]).await?;
        if left.trim() == "ship.sea.example/santa-maria" { Ok(true) } else { Err(anyhow!(left)) }
    };
    cluster.until_within(Duration::from_secs(10), "only the other ship is left", only_the_other).await
}

const OWNER: &str = "{apiVersion: v1, kind: ConfigMap, metadata: {name: owner}}";

/// Makes the owner; returns a reference to it, as YAML.
async fn owner(cluster: &Cluster) -> anyhow::Result<String> {
    let uid = cluster.apply(OWNER).await?[0].uid().context("an applied object has a uid")?;
    Ok(format!("{{apiVersion: v1, kind: ConfigMap, name: owner, uid: {uid}}}"))
}

#[tokio::test]
async fn a_service_account_without_a_role_is_refused_and_the_audit_log_says_so() -> anyhow::Result<()> {
    let cluster = Cluster::shared().await?;
    cluster.apply("{apiVersion: v1, kind: ServiceAccount, metadata: {name: nobody}}").await?;
    let token = cluster.token("default", "nobody", None, MINUTES).await?;
    let nobody: Api<ConfigMap> = Api::namespaced(cluster.client_with(&token).await?, "kube-system");
    let mark = cluster.audit_mark()?;

    let refusal = nobody.list(&ListParams::default()).await.unwrap_err();

    assert!(matches!(&refusal, kube::Error::Api(status) if status.code == 403), "{refusal}");
    let user = "system:serviceaccount:default:nobody";
    let asked = || cluster.audit_since(mark).map(|audit| audit.by(user).verb("list").on("configmaps"));
    let asked = cluster.until("the refusal is in the audit log", async || asked().map(|asked| asked.first().cloned()));
    assert_eq!(asked.await?.response_status.code, 403);
    assert_eq!(cluster.audit()?.by(user).writes().len(), 0);
    Ok(())
}

#[tokio::test]
async fn a_token_is_for_the_audience_it_was_asked_for() -> anyhow::Result<()> {
    let cluster = Cluster::shared().await?;
    cluster.apply("{apiVersion: v1, kind: ServiceAccount, metadata: {name: agent}}").await?;
    let token = cluster.token("default", "agent", Some("outrider"), MINUTES).await?;
    let elsewhere = cluster.client_with(&token).await?;
    let refusal = Api::<Namespace>::all(elsewhere).list(&ListParams::default()).await.unwrap_err();
    assert!(matches!(&refusal, kube::Error::Api(status) if status.code == 401), "{refusal}");
    Ok(())
}

#[tokio::test]
async fn a_namespace_is_deleted_with_all_that_is_in_it() -> anyhow::Result<()> {
    let cluster = Cluster::shared().await?;
    let namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: doomed}}";
    let map = "{apiVersion: v1, kind: ConfigMap, metadata: {name: inside, namespace: doomed}}";
    cluster.apply(&format!("{namespace}\n---\n{map}")).await?;
    // Deletion is asked for and waited for.
    cluster.delete(namespace).await?;
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), "doomed");
    assert!(maps.get_opt("inside").await?.is_none());
    Ok(())
}

#[tokio::test]
async fn an_object_may_follow_the_definition_of_its_kind() -> anyhow::Result<()> {
    let cluster = Cluster::shared().await?;
    let applied = cluster.apply(SHIPS).await?;
    assert_eq!(applied[1].name_any(), "santa-maria");
    let listed = cluster.kubectl(&["get", "ships.sea.example", "-o", "name"]).await?;
    assert_eq!(listed.trim(), "ship.sea.example/santa-maria");
    cluster.delete(SHIPS).await
}

const SHIPS: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ships.sea.example}
spec:
  group: sea.example
  scope: Namespaced
  names: {kind: Ship, plural: ships, singular: ship}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: sea.example/v1
kind: Ship
metadata: {name: santa-maria}
";

#[tokio::test]
async fn a_killed_program_is_noticed() -> anyhow::Result<()> {
    let cluster = Cluster::shared().await?;
    let program = cluster.run(&watcher(&cluster))?;
    let prints = async || program.log().contains("kube-root-ca.crt");
    program.ready("it prints what it watches", cluster.options().wait_limit, prints).await?;
    program.kill9();
    assert_eq!(program.wait_exit(Duration::from_secs(5)).await?.signal(), Some(9));

    let again = cluster.restart(&program).await?;
    assert_ne!(again.pid(), program.pid());
    Ok(())
}

#[tokio::test]
async fn a_wait_ends_at_once_when_a_program_has_died() -> anyhow::Result<()> {
    let logs = tempfile::tempdir()?;
    let program = Launch::new("short-lived", "/bin/sh").args(["-c", "echo cannot go on; exit 3"]).start(logs.path())?;
    let begun = Instant::now();
    let waited = program.ready("it is ready", Duration::from_mins(1), async || false).await;
    let said = waited.unwrap_err().to_string();
    assert!(
        said.starts_with("gave up waiting until it is ready: short-lived ended by itself (exit status: 3)"),
        "{said}"
    );
    assert!(said.ends_with("cannot go on"), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(10));
    Ok(())
}

/// A program that runs until it is ended.
fn watcher(cluster: &Cluster) -> Launch {
    let config = format!("--kubeconfig={}", cluster.kubeconfig().display());
    Launch::new("watcher", cluster.kubectl_path()).args([&config, "get", "configmaps", "--watch"])
}

/// Set for the half of the next test that is killed.
const DOOMED: &str = "OUTRIDER_TEST_DOOMED";

#[tokio::test]
async fn programs_die_with_the_test_process_even_when_it_is_killed() -> anyhow::Result<()> {
    if let Some(folder) = std::env::var_os(DOOMED) {
        let program = Launch::new("sleeper", "sleep").arg("600").start(folder.as_ref())?;
        println!("sleeper {}", program.pid());
        return std::future::pending().await;
    }
    let folder = tempfile::tempdir()?;
    let me = "programs_die_with_the_test_process_even_when_it_is_killed";
    let mut doomed = tokio::process::Command::new(std::env::current_exe()?);
    doomed.args([me, "--exact", "--nocapture"]).env(DOOMED, folder.path()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut doomed = doomed.spawn()?;
    let mut lines = BufReader::new(doomed.stdout.take().context("its output is piped")?).lines();
    let pid = loop {
        let line = lines.next_line().await?.context("it says the pid")?;
        if let Some(pid) = line.trim().strip_prefix("sleeper ") {
            break pid.to_owned();
        }
    };
    until("the sleeper runs", Duration::from_secs(5), || None, async || runs(&pid)).await?;

    doomed.kill().await?;

    until("the sleeper is dead, too", Duration::from_secs(5), || None, async || !runs(&pid)).await
}

/// A dead process that nobody has waited for yet has no command line any more.
fn runs(pid: &str) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

#[tokio::test]
async fn a_report_shows_our_objects_and_the_end_of_each_log() -> anyhow::Result<()> {
    let cluster = Cluster::shared().await?;
    cluster.apply(&SHIPS.replace("sea.example", "outrider.io")).await?;
    let program = cluster.run(&Launch::new("talker", "echo").arg("land in sight"))?;
    program.wait_exit(MINUTES).await?;
    let report = cluster.report();
    for part in ["name: santa-maria", "log of talker, ended: exit status: 0 ----\nland in sight", "log of etcd ----"] {
        assert!(report.contains(part), "no {part} in {report}");
    }
    Ok(())
}

#[tokio::test]
async fn an_unknown_kind_is_told() -> anyhow::Result<()> {
    let cluster = Cluster::shared().await?;
    let refusal = cluster.apply("{apiVersion: sea.example/v9, kind: Kraken, metadata: {name: k}}").await.unwrap_err();
    assert_eq!(refusal.to_string(), "failed to find the kind of Kraken k");
    Ok(())
}
