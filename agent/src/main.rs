//! `outrider-agent`.

use std::process::ExitCode;

use clap::Parser;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    agent::run(agent::args::Args::parse()).await
}
