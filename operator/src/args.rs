//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use crate::log;

/// Turns ExternalNodes and policies into what each machine outside the cluster is told, and tells it.
#[derive(Clone, Debug, Parser)]
#[command(name = "outrider-operator", version, about)]
pub struct Args {
    /// Where agents connect (TLS 1.3).
    #[arg(long, env = "OUTRIDER_LISTEN", default_value = "[::]:10448", value_name = "ADDRESS:PORT")]
    pub listen: SocketAddr,

    /// Where health and metrics are served: /livez, /readyz, /metrics.
    #[arg(long, env = "OUTRIDER_HEALTH_LISTEN", default_value = "[::]:8080", value_name = "ADDRESS:PORT")]
    pub health_listen: SocketAddr,

    /// The folder with tls.crt and tls.key, as a Secret of type kubernetes.io/tls is mounted. Read again when it changes.
    #[arg(long, env = "OUTRIDER_TLS_DIR", default_value = "/etc/outrider/tls", value_name = "DIR")]
    pub tls_dir: PathBuf,

    /// Where the other replicas reach this one; written into the Lease. Default: the Pod's address, or where it listens.
    #[arg(long, env = "OUTRIDER_ADVERTISE", value_name = "ADDRESS:PORT")]
    pub advertise: Option<SocketAddr>,

    /// How often agents report, in seconds. Three missed are Late, six are Gone.
    #[arg(long, env = "OUTRIDER_HEARTBEAT", default_value = "10", value_name = "SECONDS", value_parser = seconds)]
    pub heartbeat: Duration,

    /// The kubeconfig; in a Pod none is needed.
    #[arg(long, env = "OUTRIDER_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// The operator's own namespace, where its Lease is.
    #[arg(long, env = "OUTRIDER_NAMESPACE", default_value = "outrider-system", value_name = "NAME")]
    pub namespace: String,

    /// What to log and how: a filter, then json or text. As info,json or operator=debug,info.
    #[arg(long, env = "OUTRIDER_LOG", default_value = "info,text", value_name = "FILTER[,json|text]")]
    pub log: log::Settings,

    /// The name of this replica; the Pod's name in a Pod.
    #[arg(long, env = "POD_NAME", hide = true)]
    pub pod: Option<String>,

    /// The address of this replica's Pod.
    #[arg(long, env = "POD_IP", hide = true)]
    pub pod_ip: Option<std::net::IpAddr>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.trim_end_matches('s').parse::<u64>() {
        Ok(seconds @ 1..=3600) => Ok(Duration::from_secs(seconds)),
        _ => Err("a whole number of seconds from 1 to 3600".to_owned()),
    }
}

impl Args {
    /// The identity of this replica in the Lease: its Pod, and where the others reach it.
    pub fn identity(&self) -> String {
        let host = || nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        let pod = self.pod.clone().or_else(host).unwrap_or_else(|| format!("outrider-operator-{}", std::process::id()));
        let own = self.pod_ip.map(|ip| SocketAddr::new(ip, self.listen.port()));
        crate::lease::identity(&pod, self.advertise.or(own).unwrap_or(self.listen))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_holds_together() {
        Args::command().debug_assert();
        let args =
            Args::parse_from(["outrider-operator", "--heartbeat", "5", "--advertise", "[fd00::1]:10448", "--pod", "p"]);
        assert_eq!(args.heartbeat, Duration::from_secs(5));
        assert_eq!(args.identity(), "p_[fd00::1]:10448");
        assert!(Args::try_parse_from(["outrider-operator", "--heartbeat", "0"]).is_err());
    }
}
