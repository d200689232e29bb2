//! The program as somebody types it.

// Helpers of tests fail as tests do.
#![allow(clippy::unwrap_used, clippy::panic)]

mod server;

use std::process::{Output, Stdio};
use std::time::Duration;

use crds::wire::Frame;
use server::views::view;
use server::{Call, PATIENCE, Server, Site, TOKEN, nobody};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

fn agent(site: &Site, operator: &str, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outrider-agent"));
    command
        .arg("view")
        .args(["--operator", operator, "--ca"])
        .arg(site.ca_file())
        .arg("--token-file")
        .arg(site.token_file())
        .args(flags)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

async fn end(mut command: Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } =
        timeout(PATIENCE, command.output()).await.expect("an end in time").expect("it runs");
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// Runs the program while `operator` answers one request.
async fn run(
    site: &Site,
    server: &mut Server,
    flags: &[&str],
    operator: impl AsyncFnOnce(Call),
) -> (i32, String, String) {
    let command = agent(site, &server.address(), flags);
    let (ended, ()) = tokio::join!(end(command), async { operator(server.call().await).await });
    ended
}

async fn everything(call: Call) {
    let out = call.stream();
    out.everything(&view(2), 1);
    out.abandoned().await;
}

struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Reads up to a line that has `text` in it.
    async fn until(&mut self, text: &str) -> String {
        let mut read = Vec::new();
        loop {
            let next = timeout(PATIENCE, self.lines.next_line()).await;
            let Ok(Ok(Some(line))) = next else { panic!("{text:?} is missing after {read:#?}") };
            if line.contains(text) {
                return line;
            }
            read.push(line);
        }
    }

    async fn interrupt(self) -> i32 {
        let pid = self.child.id().unwrap().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().await.unwrap().success());
        self.end().await
    }

    async fn end(mut self) -> i32 {
        timeout(PATIENCE, self.child.wait()).await.expect("an end in time").unwrap().code().unwrap()
    }
}

#[tokio::test]
async fn the_view_is_printed() {
    let site = Site::new();
    let mut server = site.server().await;
    let (code, out, err) = run(&site, &mut server, &[], everything).await;
    assert_eq!((code, &*err), (0, ""));
    assert!(out.starts_with("node vms/vm1 (uid u1)\n"), "{out}");
    assert!(out.contains("ingress 1: allow TCP 443 from group"), "{out}");
    assert!(out.contains("ExternalEntity vms/vm100  10.0.0.1\n"), "{out}");
}

#[tokio::test]
async fn the_view_is_printed_for_programs() {
    let site = Site::new();
    let mut server = site.server().await;
    let (code, out, err) = run(&site, &mut server, &["--json"], everything).await;
    assert_eq!((code, &*err), (0, ""));
    let view: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(view["node"]["name"], "vms/vm1");
    assert_eq!(view["policies"][0]["rules"][0]["action"], "Allow");
    assert_eq!(out.lines().count(), 1);
}

#[tokio::test]
async fn the_environment_stands_for_flags() {
    let site = Site::new();
    let mut server = site.server().await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_outrider-agent"));
    command
        .arg("view")
        .env("OUTRIDER_OPERATOR", format!("{},{}", nobody().await, server.address()))
        .env("OUTRIDER_CA", site.ca_file())
        .env("OUTRIDER_TOKEN_FILE", site.token_file())
        .env("OUTRIDER_NODE", "vms/vm1");
    let ((code, ..), ()) = tokio::join!(end(command), async {
        let call = server.call().await;
        assert_eq!(call.uri.query(), Some("node=vms%2Fvm1"));
        everything(call).await;
    });
    assert_eq!(code, 0);
}

#[tokio::test]
async fn changes_are_printed_as_they_commit_until_an_interrupt() {
    let site = Site::new();
    let mut server = site.server().await;
    let mut running = Running::start(agent(&site, &server.address(), &["--follow"]));
    let out = server.call().await.stream();
    out.everything(&view(2), 1);
    running.until("vms/vm101").await;
    out.update(&view(2).diff(&view(3)));
    out.commit(2);
    running.until("revision e.2").await;
    running.until("~ group").await;
    assert_eq!(running.until("vm102").await, "    + ExternalEntity vms/vm102  10.0.0.3");

    // the stream breaks, and the next one brings what happened meanwhile
    out.cut();
    let out = server.call().await.stream();
    out.hello(false, 10);
    out.update(&view(3).diff(&view(2)));
    out.commit(1);
    assert_eq!(running.until("vm102").await, "    - ExternalEntity vms/vm102  10.0.0.3");
    assert_eq!(running.interrupt().await, 0);
}

#[tokio::test]
async fn following_ends_when_the_node_is_deleted() {
    let site = Site::new();
    let mut server = site.server().await;
    let mut running = Running::start(agent(&site, &server.address(), &["--follow"]));
    let out = server.call().await.stream();
    out.everything(&view(2), 1);
    running.until("vms/vm101").await;
    out.frame(&Frame::Gone { uid: "u1".into(), reason: "kubectl delete".to_owned() });
    assert_eq!(running.until("gone").await, "gone: kubectl delete (uid u1)");
    assert_eq!(running.end().await, 0);
}

#[tokio::test]
async fn an_interrupt_ends_it_before_the_first_view_too() {
    let site = Site::new();
    let mut server = site.server().await;
    let running = Running::start(agent(&site, &server.address(), &["--follow"]));
    let out = server.call().await.stream();
    assert_eq!(running.interrupt().await, 0);
    out.abandoned().await;
}

#[tokio::test]
async fn changes_are_frames_for_programs() {
    let site = Site::new();
    let mut server = site.server().await;
    let mut running = Running::start(agent(&site, &server.address(), &["--follow", "--json"]));
    let out = server.call().await.stream();
    out.everything(&view(50), 1);
    running.until("policies").await;
    out.update(&view(50).diff(&view(51)));
    out.commit(2);
    let change: serde_json::Value = serde_json::from_str(&running.until("changes").await).unwrap();
    assert_eq!(change["revision"], "e.2");
    assert_eq!(change["changes"][0]["frame"], "members");
    assert_eq!(change["changes"][0]["added"][0]["ref"]["name"], "vm150");
    assert_eq!(running.interrupt().await, 0);
}

#[tokio::test]
async fn a_reader_that_has_seen_enough_ends_it() {
    let site = Site::new();
    let mut server = site.server().await;
    let mut running = Running::start(agent(&site, &server.address(), &["--follow"]));
    let out = server.call().await.stream();
    out.everything(&view(2), 1);
    running.until("vms/vm101").await;
    let Running { mut child, lines } = running;
    drop(lines);
    // more than one change: a sibling that is being started may hold the pipe open for a moment
    let status = timeout(PATIENCE, async {
        for revision in 2.. {
            let (from, to) = if revision % 2 == 0 { (2, 3) } else { (3, 2) };
            out.update(&view(from).diff(&view(to)));
            out.commit(revision);
            if let Ok(ended) = timeout(Duration::from_millis(200), child.wait()).await {
                return ended.unwrap();
            }
        }
        unreachable!("there is always one more");
    });
    let status = status.await.expect("an end in time");
    assert_eq!(status.code(), Some(0));
}

#[tokio::test]
async fn who_may_not_is_told_why_and_what_to_do() {
    let site = Site::new();
    let mut server = site.server().await;
    let message = "identity vm1 may act for vms/a and vms/b: name one";
    let (code, out, err) = run(&site, &mut server, &[], async |call| call.refuse(403, "Forbidden", message)).await;
    assert_eq!((code, &*out), (3, ""));
    let expected = format!(
        "outrider-agent: tried {}: answered 403 Forbidden ({message}); bind this identity to the ExternalNode with an \
         ExternalNodeBinding, or name a node it is bound to\n",
        server.address
    );
    assert_eq!(err, expected);
    let (code, _, err) =
        run(&site, &mut server, &["--follow"], async |call| call.refuse(401, "Unauthorized", "")).await;
    assert_eq!(code, 3, "also when it would follow");
    assert!(err.contains("kubectl create token") && !err.contains(TOKEN), "{err}");
}

#[tokio::test]
async fn an_operator_out_of_reach_is_told_as_that() {
    let site = Site::new();
    let nobody = nobody().await.to_string();
    let (code, out, err) = end(agent(&site, &nobody, &[])).await;
    assert_eq!((code, &*out), (4, ""));
    assert!(err.starts_with(&format!("outrider-agent: tried {nobody}: Connection refused")), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
}

#[tokio::test]
async fn anything_else_is_1() {
    let site = Site::new();
    let mut server = site.server().await;
    let (code, _, err) = run(&site, &mut server, &[], async |call| _ = call.stream().bytes("<html>\n")).await;
    assert_eq!(code, 1);
    assert!(err.contains("what came is no frame") && err.lines().count() == 1, "{err}");
    std::fs::remove_file(site.token_file()).unwrap();
    let (code, _, err) = end(agent(&site, &server.address(), &[])).await;
    assert_eq!(code, 1);
    assert!(err.contains("failed to use the token file") && err.contains("No such file"), "{err}");
}

#[tokio::test]
async fn a_wrong_command_line_is_2() {
    let site = Site::new();
    let (code, _, err) = end(agent(&site, "https://operator", &[])).await;
    assert_eq!(code, 2);
    assert!(err.contains("is not HOST or HOST:PORT"), "{err}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_outrider-agent"));
    command.arg("view").env_clear();
    let (code, _, err) = end(command).await;
    assert_eq!(code, 2);
    assert!(err.contains("--operator"), "{err}");
}

#[tokio::test]
async fn the_version_is_told() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outrider-agent"));
    command.arg("--version");
    let (code, out, _) = end(command).await;
    assert_eq!((code, out), (0, format!("outrider-agent {}\n", env!("CARGO_PKG_VERSION"))));
}
