//! `outrider-operator`: see the library.

use clap::Parser;

#[tokio::main]
async fn main() -> anyhow::Result<std::process::ExitCode> {
    let args = operator::args::Args::parse();
    operator::log::init(&args.log)?;
    if let Err(error) = operator::run::run(args).await {
        tracing::error!(target: "operator", error = %crds::chain::Chain(error.as_ref()), "the operator ends");
        return Ok(std::process::ExitCode::FAILURE);
    }
    Ok(std::process::ExitCode::SUCCESS)
}
