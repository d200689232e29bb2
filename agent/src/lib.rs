//! The Outrider agent: keeps what the operator tells this machine, and shows it.
//!
//! ```text
//! operator ~~~stream~~~> Mirror --view--> text or JSON
//! ```
//!
//! The agent talks to the operator alone, never to the API server of a cluster.

pub mod args;
pub mod host;
pub mod mirror;
pub mod operator;
pub mod view;

use std::process::ExitCode;

use args::{Args, Command};

/// Does what the command line asks for.
pub async fn run(args: Args) -> ExitCode {
    let Args { command, log } = args;
    let lines = tracing_subscriber::fmt().with_env_filter(log).with_writer(std::io::stderr);
    // Somebody who embeds us may log already.
    let _ = tracing_subscriber::util::SubscriberInitExt::try_init(lines.finish());
    match command {
        Command::View(asked) => view::run(asked).await,
    }
}
