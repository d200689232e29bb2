//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use crds::names::NodeName;
use tracing_subscriber::EnvFilter;

use crate::operator::Address;

/// The Outrider agent: network policy of a Kubernetes cluster on a machine outside of it.
#[derive(Debug, Parser)]
#[command(name = "outrider-agent", version, arg_required_else_help = true)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,

    /// What is logged to standard error: a level, or a filter such as "agent=debug"
    #[arg(long, global = true, value_name = "FILTER", env = "OUTRIDER_LOG", default_value = "warn")]
    pub log: EnvFilter,
}

/// What the agent can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what the operator tells this machine
    ///
    /// Connects to the operator, prints the node, the policies with their rules in the order in which they are judged,
    /// and the groups with their members, and ends. Changes nothing on this machine.
    #[command(after_help = EXIT_CODES)]
    View(View),
}

const EXIT_CODES: &str = "\
Exit codes:
  0  the view was printed; with --follow: interrupted, or the ExternalNode was deleted
  1  something else went wrong, such as an ExternalNode that isn't there
  2  the command line makes no sense
  3  the operator doesn't accept the token, or the identity may not act for the node
  4  no operator could be reached

Example:
  outrider-agent view --operator operator.example.com:10448 --ca ca.crt --token-file token --follow";

/// `outrider-agent view`.
#[derive(Clone, Debug, clap::Args)]
pub struct View {
    /// Where the operator is; each of several is tried, and of each name every address
    ///
    /// A name, an IPv4 address or an IPv6 address in brackets. The port is 10448 when none is given.
    #[arg(
        long,
        value_name = "HOST:PORT",
        env = "OUTRIDER_OPERATOR",
        value_delimiter = ',',
        required = true,
        action = clap::ArgAction::Append
    )]
    pub operator: Vec<Address>,

    /// The CA that the operator's certificate was issued by, PEM; a self-signed certificate is its own
    #[arg(long, value_name = "FILE", env = "OUTRIDER_CA")]
    pub ca: PathBuf,

    /// A file with this machine's bearer token, which must have the audience "outrider"
    #[arg(long, value_name = "FILE", env = "OUTRIDER_TOKEN_FILE")]
    pub token_file: PathBuf,

    /// The ExternalNode that this machine is; needed when the token may act for several
    #[arg(long, value_name = "NAMESPACE/NAME", env = "OUTRIDER_NODE")]
    pub node: Option<NodeName>,

    /// Go on and print each change as it commits, until interrupted or until the ExternalNode is deleted
    #[arg(long)]
    pub follow: bool,

    /// Print JSON: the view on one line, then each change on one line
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn view(flags: &[&str]) -> Result<View, clap::Error> {
        let begin = ["outrider-agent", "view", "--ca", "ca.crt", "--token-file", "token"];
        let Command::View(view) = Args::try_parse_from(begin.iter().chain(flags))?.command;
        Ok(view)
    }

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn several_operators_can_be_named() {
        let view = view(&["--operator", "a.example.com,[2001:db8::1]:443", "--operator", "192.0.2.1"]).unwrap();
        let told: Vec<_> = view.operator.iter().map(ToString::to_string).collect();
        assert_eq!(told, ["a.example.com:10448", "[2001:db8::1]:443", "192.0.2.1:10448"]);
    }

    #[test]
    fn a_node_has_a_namespace() {
        assert!(view(&["--operator", "a", "--node", "vms/vm1"]).is_ok());
        let error = view(&["--operator", "a", "--node", "vm1"]).unwrap_err().to_string();
        assert!(error.contains("<namespace>/<name>"), "{error}");
    }
}
