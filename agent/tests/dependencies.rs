//! What the agent is linked from.

// Helpers of tests fail as tests do.
#![allow(clippy::unwrap_used)]

use std::process::Command;

fn tree() -> String {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let out = Command::new(cargo)
        .args(["tree", "--offline", "-p", "agent", "-e", "normal", "--prefix", "none", "--format", "{p}"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn the_agent_links_no_kubernetes_client_and_one_crypto_provider() {
    let tree = tree();
    let crates: Vec<_> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    for linked in ["crds", "rustls", "aws-lc-rs"] {
        assert!(crates.contains(&linked), "{linked}");
    }
    for foreign in ["kube-client", "kube-runtime", "ring", "openssl-sys", "native-tls"] {
        assert!(!crates.contains(&foreign), "{foreign}");
    }
}
