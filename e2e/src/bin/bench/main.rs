//! `make bench B=name`: one measurement. Progress goes to stderr; the last line of stdout is one JSON object.
//!
//! A bench never asserts a time. It fails only when the work itself went wrong.

use std::io::Write;

use anyhow::bail;

mod lifecycle;
mod model;
mod resolve;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let name = std::env::args().nth(1).unwrap_or_default();
    let result = match name.as_str() {
        "resolve" => resolve::run()?,
        "lifecycle" => lifecycle::run().await?,
        _ => bail!("there is no bench {name:?}; there are lifecycle and resolve"),
    };
    writeln!(std::io::stdout().lock(), "{result}")?;
    Ok(())
}

/// A line of progress.
fn say(line: &str) {
    // without a stderr there is nobody to tell
    let _ = writeln!(std::io::stderr().lock(), "bench: {line}");
}

/// The value at `share` of the sorted `times`, in milliseconds.
fn quantile(times: &mut [std::time::Duration], share: f64) -> f64 {
    times.sort_unstable();
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
    let index = ((times.len().saturating_sub(1)) as f64 * share).round() as usize;
    milliseconds(times.get(index).copied().unwrap_or_default())
}

fn milliseconds(time: std::time::Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}
