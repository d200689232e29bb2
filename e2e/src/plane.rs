//! The programs of a control plane and their arguments.

use std::fmt::Display;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};

use anyhow::Context;

use crate::audit;
use crate::binaries::Kube;
use crate::lab::Lab;
use crate::pki::{Pki, Subject};
use crate::process::Launch;

pub(crate) const ETCD: &str = "etcd";
pub(crate) const API_SERVER: &str = "kube-apiserver";
pub(crate) const CONTROLLER_MANAGER: &str = "kube-controller-manager";

/// What only the control plane's own programs listen on.
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The first address of the Services' range, which the API server claims for the Service `kubernetes`.
const KUBERNETES_SERVICE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1));
const SERVICES: &str = "10.96.0.0/16";

/// Issues the certificates that the control plane's programs need.
pub(crate) fn certificates(pki: &Pki, address: IpAddr) -> anyhow::Result<()> {
    let names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"].map(str::to_owned);
    let addresses = vec![address, LOOPBACK, KUBERNETES_SERVICE];
    let server = Subject { common_name: "kube-apiserver", names: names.into(), addresses, ..Subject::default() };
    pki.issue("apiserver", &server)?;
    let client = |common_name, organisation| Subject { common_name, organisation, ..Subject::default() };
    pki.issue("admin", &client("admin", Some("system:masters")))?;
    pki.issue(CONTROLLER_MANAGER, &client("system:kube-controller-manager", None))?;
    pki.issue_front_proxy("front-proxy", &client("front-proxy", None))
}

/// etcd, and the port that the API server finds it at.
pub(crate) fn etcd(lab: &Lab, kube: &Kube) -> anyhow::Result<(Launch, u16)> {
    let port = crate::ports::free(LOOPBACK)?;
    let clients = format!("http://127.0.0.1:{port}");
    let peers = format!("http://127.0.0.1:{}", crate::ports::free(LOOPBACK)?);
    let launch = Launch::new(ETCD, kube.program(ETCD))
        .arg(flag("data-dir", lab.path("etcd").display()))
        .args([flag("name", "lab"), flag("initial-cluster", format!("lab={peers}"))])
        .args([flag("listen-client-urls", &clients), flag("advertise-client-urls", &clients)])
        .args([flag("listen-peer-urls", &peers), flag("initial-advertise-peer-urls", &peers)])
        // A test's data need not survive the machine, and the disk would be most of the latency.
        .arg("--unsafe-no-fsync")
        .arg("--log-level=warn");
    Ok((launch, port))
}

/// The API server, with RBAC, webhooks at their endpoints' addresses, and an audit log.
pub(crate) fn api_server(lab: &Lab, kube: &Kube, etcd: u16) -> anyhow::Result<Launch> {
    let policy = lab.path("audit-policy.yaml");
    fs::write(&policy, audit::POLICY).context("failed to write the audit policy")?;
    let pem = |name: &str| lab.pki.file(name).display().to_string();
    let mut launch = Launch::new(API_SERVER, kube.program(API_SERVER))
        .arg(flag("etcd-servers", format!("http://127.0.0.1:{etcd}")))
        .args([flag("bind-address", lab.options.address), flag("secure-port", lab.port)])
        .args([flag("advertise-address", lab.options.address), flag("service-cluster-ip-range", SERVICES)])
        .args([flag("tls-cert-file", pem("apiserver.crt")), flag("tls-private-key-file", pem("apiserver.key"))])
        .arg(flag("client-ca-file", pem("ca.crt")))
        .arg(flag("service-account-issuer", "https://kubernetes.default.svc"))
        .arg(flag("service-account-key-file", pem("sa.pub")))
        .arg(flag("service-account-signing-key-file", pem("sa.key")))
        .arg(flag("requestheader-client-ca-file", pem("front-proxy-ca.crt")))
        .arg(flag("requestheader-allowed-names", "front-proxy"))
        .arg(flag("requestheader-username-headers", "X-Remote-User"))
        .arg(flag("requestheader-group-headers", "X-Remote-Group"))
        .arg(flag("requestheader-extra-headers-prefix", "X-Remote-Extra-"))
        .arg(flag("proxy-client-cert-file", pem("front-proxy.crt")))
        .arg(flag("proxy-client-key-file", pem("front-proxy.key")))
        .arg("--authorization-mode=Node,RBAC")
        .arg("--enable-admission-plugins=NodeRestriction")
        // Webhooks are dialled at their endpoints, so that no kube-proxy is needed where the API server runs.
        .arg("--enable-aggregator-routing=true")
        .arg("--allow-privileged=true")
        .args([flag("audit-policy-file", policy.display()), flag("audit-log-path", lab.audit_log().display())])
        // In MiB: a log that rotates would invalidate the marks of tests.
        .arg("--audit-log-maxsize=4096");
    if lab.options.address.is_loopback() {
        // Endpoints cannot have loopback addresses, so the Service `kubernetes` has none.
        launch = launch.arg("--endpoint-reconciler-type=none");
    }
    Ok(launch.args(&lab.options.api_server))
}

/// The controller manager, with every controller under its own ServiceAccount.
pub(crate) fn controller_manager(lab: &Lab, kube: &Kube) -> anyhow::Result<Launch> {
    let config = lab.certificate_kubeconfig(CONTROLLER_MANAGER)?;
    let pem = |name: &str| lab.pki.file(name).display().to_string();
    let uses = ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"];
    let launch = Launch::new(CONTROLLER_MANAGER, kube.program(CONTROLLER_MANAGER))
        .args(uses.map(|name| flag(name, config.display())))
        .args([flag("bind-address", LOOPBACK), flag("secure-port", crate::ports::free(LOOPBACK)?)])
        .args(["--leader-elect=false", "--use-service-account-credentials"])
        // Every controller asks for its own account before any starts: at the usual 20 requests a second that is 4 s.
        .args(["--kube-api-qps=1000", "--kube-api-burst=1000"])
        .args([flag("root-ca-file", pem("ca.crt")), flag("service-account-private-key-file", pem("sa.key"))])
        .args([flag("cluster-signing-cert-file", pem("ca.crt")), flag("cluster-signing-key-file", pem("ca.key"))])
        .args(&lab.options.controller_manager);
    Ok(launch)
}

fn flag(name: &str, value: impl Display) -> String {
    format!("--{name}={value}")
}
