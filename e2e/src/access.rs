//! Kubeconfigs and clients: the administrator's, and those of programs that have no more rights than their roles give.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Once;

use anyhow::Context;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

use crate::lab::Lab;

impl Lab {
    /// Where the API server is.
    pub(crate) fn url(&self) -> String {
        format!("https://{}", SocketAddr::new(self.options.address, self.port))
    }

    /// The administrator's kubeconfig.
    pub(crate) fn admin_kubeconfig(&self) -> PathBuf {
        self.path("admin.conf")
    }

    /// Writes `<name>.conf` for the certificate of that name.
    pub(crate) fn certificate_kubeconfig(&self, name: &str) -> anyhow::Result<PathBuf> {
        let pem = |suffix: &str| self.pki.file(&format!("{name}.{suffix}"));
        self.write_kubeconfig(name, &json!({ "client-certificate": pem("crt"), "client-key": pem("key") }))
    }

    /// Writes `<name>.conf` for a bearer token.
    pub(crate) fn token_kubeconfig(&self, name: &str, token: &str) -> anyhow::Result<PathBuf> {
        self.write_kubeconfig(name, &json!({ "token": token }))
    }

    fn write_kubeconfig(&self, name: &str, credentials: &Value) -> anyhow::Result<PathBuf> {
        let cluster = json!({ "server": self.url(), "certificate-authority": self.pki.file("ca.crt") });
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "lab",
            "clusters": [{ "name": "lab", "cluster": cluster }],
            "users": [{ "name": name, "user": credentials }],
            "contexts": [{ "name": "lab", "context": { "cluster": "lab", "user": name } }],
        });
        let path = self.path(&format!("{name}.conf"));
        // JSON is YAML.
        fs::write(&path, format!("{config:#}\n")).with_context(|| format!("failed to write {}", path.display()))?;
        Ok(path)
    }
}

/// A client for the runtime that calls this: a client dies with the runtime it was made on.
pub(crate) async fn client(kubeconfig: &Path) -> anyhow::Result<Client> {
    static PROVIDER: Once = Once::new();
    PROVIDER.call_once(|| {
        // Fails when the test has chosen one already, which is as good.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    });
    let config = Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    // The machine's proxy does not lead here.
    config.proxy_url = None;
    Client::try_from(config).with_context(|| format!("failed to make a client of {}", kubeconfig.display()))
}
