//! Finds the programs a lab runs: Kubernetes and etcd in a cache outside the source tree, ours beside the running test.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use aws_lc_rs::digest::{SHA256, digest};

const GO_MOD: &str = include_str!("../kube/go.mod");
const GO_SUM: &str = include_str!("../kube/go.sum");
const MAIN_GO: &str = include_str!("../kube/main.go");
const BUILD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../hack/lab-tools.sh");

/// The programs of the control plane, each a name of the one binary.
#[derive(Clone, Debug)]
pub struct Kube {
    folder: PathBuf,
}

impl Kube {
    /// The programs of the version that `e2e/kube/go.mod` names; builds them when this machine has none yet.
    pub fn locate() -> anyhow::Result<Self> {
        let folder = cache()?.join(folder_name());
        if !folder.join("kube").exists() {
            build(&folder)?;
        }
        Ok(Self { folder })
    }

    /// The path of `kube-apiserver`, `etcd`, `kubectl`, …
    pub fn program(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// The Kubernetes version of the lab, as its API server reports it: `v1.36.3`.
pub fn kubernetes_version() -> &'static str {
    let line = GO_MOD.lines().find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes "));
    line.expect("go.mod requires k8s.io/kubernetes").trim()
}

/// A program of this workspace, found beside the running one: `target/<profile>/<name>`.
pub fn ours(name: &str) -> anyhow::Result<PathBuf> {
    let me = std::env::current_exe().context("failed to find the running program")?;
    let folder = me.parent().expect("a program is in a folder");
    // Test binaries are in target/<profile>/deps, programs one level up.
    let profile = if folder.ends_with("deps") { folder.parent().unwrap_or(folder) } else { folder };
    let path = profile.join(name);
    ensure!(path.exists(), "{} is not built: run `make build`", path.display());
    Ok(path)
}

/// `kube-<version>-<hash of the module's files>`: hack/lab-tools.sh computes the same.
fn folder_name() -> String {
    let hash = digest(&SHA256, [GO_MOD, GO_SUM, MAIN_GO].concat().as_bytes());
    let (head, _) = hash.as_ref().split_first_chunk().expect("a SHA-256 has 32 bytes");
    // The first 12 of 16 hex digits.
    let short = u64::from_be_bytes(*head) >> 16;
    format!("kube-{}-{short:012x}", kubernetes_version().trim_start_matches('v'))
}

fn cache() -> anyhow::Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let ours = set("OUTRIDER_CACHE");
    let users = || set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache"))).map(|dir| dir.join("outrider"));
    ours.or_else(users).context("none of OUTRIDER_CACHE, XDG_CACHE_HOME and HOME says where to keep programs")
}

fn build(folder: &Path) -> anyhow::Result<()> {
    let status = Command::new(BUILD).stdin(Stdio::null()).stdout(Stdio::null()).status();
    let status = status.with_context(|| format!("failed to run {BUILD}"))?;
    ensure!(status.success(), "the control plane's programs did not build: run `make lab-tools` to see why");
    if !folder.join("kube").exists() {
        bail!("hack/lab-tools.sh built another version than {}: build the tests again", folder.display());
    }
    Ok(())
}
