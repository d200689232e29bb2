//! `make demo`: a control plane, the operator, three machines and a policy, from nothing to nothing.
//! `make lab`: the same, which stays until it is interrupted, for whoever wants to try something by hand.
//!
//! What is printed on stdout is the same at every run but for hashes, uids and ages; timings go to stderr. Every step is
//! checked, and the program fails when one is not as it should be.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use e2e::{Cluster, Outrider};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

const EXAMPLE: &str = "docs/examples/three-machines.yaml";
const OBJECTS: &str = include_str!("../../../docs/examples/three-machines.yaml");
/// How long `make lab` stays at most: as long as the operator's token lasts.
const LAB: Duration = Duration::from_hours(2);
const BEAT: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let stay = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => false,
        ["--stay"] => true,
        _ => bail!("the only argument is --stay, not {arguments:?}"),
    };
    let start = Instant::now();
    let cluster = Cluster::start_with(e2e::outrider::options()?).await?;
    lap(start, "the control plane is up");
    let operator = Outrider::start(&cluster, BEAT).await?;
    lap(start, "the operator is ready");

    if stay {
        cluster.apply(OBJECTS).await?;
        return stay_here(&cluster, operator).await;
    }
    title("Three machines outside the cluster, and a policy: only web machines reach the database's port 5432");
    cluster.apply(OBJECTS).await?;
    print(&format!("(they are in {EXAMPLE}; make lab starts the same and stays)"));
    let objects = ["get", "externalnodes,externalentities,antreaagentinfos,networkpolicies.crd.antrea.io", "-n", "vms"];
    cluster.until("every machine has its entity and its AgentInfo", async || everything_stands(&cluster).await).await?;
    print(&cluster.kubectl(&objects).await?);

    title("What machine db1 is told, read with curl and its own token");
    let token = cluster.kubectl(&["create", "token", "db1", "-n", "vms", "--audience", "outrider"]).await?;
    let mut stream = Curl::start(&operator, "vms/db1", token.trim())?;
    let told = stream.until_commit().await?;
    ensure!(members(&told) == ["web1"], "the database lets in {:?}, not web1", members(&told));

    title("kubectl label externalnode batch1 role=web: one change, sent to whom it concerns");
    cluster.kubectl(&["label", "externalnode", "batch1", "-n", "vms", "role=web", "--overwrite"]).await?;
    let told = stream.until_commit().await?;
    ensure!(members(&told) == ["batch1"], "the change is about {:?}, not batch1", members(&told));

    title("The same question with web1's token");
    let other = cluster.kubectl(&["create", "token", "web1", "-n", "vms", "--audience", "outrider"]).await?;
    let refusal = Curl::start(&operator, "vms/db1", other.trim())?.rest().await?;
    print(&refusal);
    ensure!(refusal.contains("\"code\":403"), "another machine's token was let in");

    title("kubectl delete externalnode db1: the only word that makes an agent give its interface back");
    cluster.kubectl(&["delete", "externalnode", "db1", "-n", "vms"]).await?;
    let last = stream.rest().await?;
    ensure!(last.contains(r#""frame":"gone""#), "the machine was not told that it is gone");
    print(&last);

    operator.stop().await?;
    drop(cluster);
    lap(start, "everything is gone again");
    Ok(())
}

/// Tells how to reach everything, and leaves it to the user until an interrupt or the end of a program.
async fn stay_here(cluster: &Cluster, operator: Outrider) -> anyhow::Result<()> {
    let tools = cluster.kubectl_path();
    let agent = e2e::binaries::ours("outrider-agent")?;
    let folder = |path: &Path| path.parent().unwrap_or(path).display().to_string();
    let (address, health, ca) = (operator.address(), operator.health_address(), operator.ca());
    print(&format!(
        "\n# {EXAMPLE} is applied. In another shell:\n\n\
         export KUBECONFIG={}\n\
         export PATH={}:{}:$PATH\n\
         kubectl get en,ee,annp,enb -n vms\n\
         kubectl create token db1 -n vms --audience outrider > /tmp/db1.token\n\
         outrider-agent view --operator {address} --ca {} --token-file /tmp/db1.token --node vms/db1 --follow\n\
         curl -s http://{health}/metrics\n\n\
         # The operator's log is {}. Interrupt (Ctrl-C) to end everything.",
        cluster.kubeconfig().display(),
        folder(&tools),
        folder(&agent),
        ca.display(),
        operator.program.log_path().display(),
    ));
    let ended = cluster.until_within(LAB, "the end", async || false);
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted.context("can't listen to signals")?,
        ended = ended => return ended,
    }
    operator.stop().await
}

async fn everything_stands(cluster: &Cluster) -> anyhow::Result<bool> {
    let count =
        async |kind| Ok::<_, anyhow::Error>(cluster.kubectl(&["get", kind, "-A", "-o", "name"]).await?.lines().count());
    let status = [
        "get",
        "externalnodes",
        "-n",
        "vms",
        "-o",
        "jsonpath={.items[*].status.conditions[?(@.type=='Joined')].reason}",
    ];
    let joined = cluster.kubectl(&status).await?;
    Ok(count("externalentities").await? == 3
        && count("antreaagentinfos").await? == 3
        && joined == "NeverSeen NeverSeen NeverSeen")
}

/// The names of the group members in these frames.
fn members(frames: &[Value]) -> Vec<&str> {
    let lists = frames.iter().flat_map(|frame| [&frame["body"]["members"], &frame["added"]]);
    lists
        .filter_map(Value::as_array)
        .flatten()
        .filter_map(|m| m["ref"]["name"].as_str()?.rsplit_once('-'))
        .map(|(name, _)| name)
        .collect()
}

/// A stream in the hands of curl.
struct Curl {
    lines: Lines<BufReader<ChildStdout>>,
    _child: Child,
}

impl Curl {
    fn start(operator: &Outrider, node: &str, token: &str) -> anyhow::Result<Self> {
        let url = format!("https://{}/v1/watch?node={node}", operator.address());
        let mut curl = Command::new("curl");
        curl.args(["-sN", "--max-time", "60", "--noproxy", "*", "--cacert"]).arg(operator.ca());
        curl.args(["-H", &format!("Authorization: Bearer {token}"), &url]);
        let mut child = curl.stdout(Stdio::piped()).kill_on_drop(true).spawn().context("failed to start curl")?;
        let stdout = child.stdout.take().context("curl has no output")?;
        Ok(Self { lines: BufReader::new(stdout).lines(), _child: child })
    }

    /// Prints the frames up to the next commit.
    async fn until_commit(&mut self) -> anyhow::Result<Vec<Value>> {
        let mut frames = Vec::new();
        loop {
            let line = tokio::time::timeout(Duration::from_secs(20), self.lines.next_line()).await;
            let Some(line) = line.context("no commit within 20 s")?? else { bail!("the stream ended before a commit") };
            let frame: Value = serde_json::from_str(&line).with_context(|| format!("no frame: {line}"))?;
            if frame["frame"] == "ping" {
                continue;
            }
            print(&line);
            let last = frame["frame"] == "commit";
            frames.push(frame);
            if last {
                return Ok(frames);
            }
        }
    }

    /// What is left until the server ends it.
    async fn rest(&mut self) -> anyhow::Result<String> {
        let mut text = Vec::new();
        while let Some(line) = tokio::time::timeout(Duration::from_secs(20), self.lines.next_line())
            .await
            .context("no end within 20 s")??
        {
            if !line.contains(r#""frame":"ping""#) {
                text.push(line);
            }
        }
        Ok(text.join("\n"))
    }
}

fn title(text: &str) {
    print(&format!("\n# {text}"));
}

fn print(text: &str) {
    // without a stdout there is nobody to tell
    let _ = writeln!(std::io::stdout().lock(), "{}", text.trim_end_matches('\n'));
}

fn lap(start: Instant, what: &str) {
    let _ = writeln!(std::io::stderr().lock(), "demo: {what} after {:.1} s", start.elapsed().as_secs_f64());
}
