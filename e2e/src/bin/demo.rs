//! `make demo`: a control plane, the operator, three machines and a policy, from nothing to nothing.
//!
//! What is printed on stdout is the same at every run but for hashes, uids and ages; timings go to stderr. Every step is
//! checked, and the program fails when one is not as it should be.

use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use e2e::{Cluster, Outrider};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

const OBJECTS: &str = include_str!("demo.yaml");
const BEAT: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let start = Instant::now();
    let cluster = Cluster::start_with(e2e::outrider::options()?).await?;
    lap(start, "the control plane is up");
    let operator = Outrider::start(&cluster, BEAT).await?;
    lap(start, "the operator is ready");

    title("Three machines outside the cluster, and a policy: only web machines reach the database's port 5432");
    cluster.apply(OBJECTS).await?;
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
