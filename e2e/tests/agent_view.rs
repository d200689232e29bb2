//! `outrider-agent view` on a machine: what the operator tells it, in words.

use std::fs;
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::Context;
use e2e::{Cluster, Outrider, binaries};

const OBJECTS: &str = include_str!("../../docs/examples/three-machines.yaml");

fn view(operator: &Outrider, token: &std::path::Path, more: &[&str]) -> anyhow::Result<Output> {
    let mut agent = Command::new(binaries::ours("outrider-agent")?);
    agent.args(["view", "--operator", &operator.address().to_string(), "--ca"]).arg(operator.ca());
    agent.arg("--token-file").arg(token).args(more);
    agent.output().context("failed to start outrider-agent")
}

#[tokio::test]
async fn a_machine_is_shown_what_it_is_told_and_nothing_of_others() -> anyhow::Result<()> {
    let cluster = Cluster::shared().await?;
    let operator = Outrider::start(&cluster, Duration::from_secs(10)).await?;
    cluster.apply(OBJECTS).await?;
    let token = cluster.token("vms", "db1", Some("outrider"), Duration::from_hours(1)).await?;
    let file = cluster.dir().join("db1.token");
    fs::write(&file, token)?;

    let shown = async || {
        let output = view(&operator, &file, &[])?;
        let text = String::from_utf8(output.stdout)?;
        let complete = output.status.success() && text.contains("db-from-web") && text.contains("10.66.0.12");
        if complete {
            Ok(Some(text))
        } else {
            Err(anyhow::anyhow!("{text}{}", String::from_utf8_lossy(&output.stderr)))
        }
    };
    let text = cluster.until("db1 sees its policy", shown).await?;
    assert!(text.contains("vms/db1") && text.contains("5432"), "{text}");
    assert!(!text.contains("batch1") && !text.contains("10.66.0.13"), "{text}");

    let refused = view(&operator, &file, &["--node", "vms/web1"])?;
    assert_eq!(refused.status.code(), Some(3), "not authorised");
    let said = String::from_utf8(refused.stderr)?;
    assert!(said.contains("no ExternalNodeBinding lets"), "{said}");
    assert_eq!(said.trim().lines().count(), 1, "one line: {said}");
    operator.stop().await
}
