//! `outrider-agent view`: what the operator tells this machine, printed.

use std::io::{self, Write};
use std::process::ExitCode;

use crds::wire::View;
use tokio::sync::oneshot;

use crate::args;
use crate::mirror::{Mirror, News, StreamError, Told, first_commit, follow_on};
use crate::operator::{Kind, Limits, Operator, Settings};
use crds::chain::{Chain, one_line};

pub mod json;
pub mod text;

#[cfg(test)]
mod tests;

/// Why nothing, or nothing more, was printed.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error("failed to print")]
    Print(#[from] io::Error),
}

/// Prints the view, and with `--follow` its changes; a failure is one line on standard error.
pub async fn run(asked: args::View) -> ExitCode {
    match show(asked).await {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has seen enough.
        Err(Error::Print(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            say(&failure(&error));
            ExitCode::from(code(&error))
        }
    }
}

async fn show(asked: args::View) -> Result<(), Error> {
    let args::View { operator: addresses, ca, token_file, node, follow, json } = asked;
    let operator = Operator::new(Settings { addresses, ca, token_file, limits: Limits::default() });
    let mut mirror = Mirror::new(node);
    let shown = async {
        let stream = first_commit(&operator, &mut mirror).await?;
        let (mut printer, stopped) = Printer::new(json);
        printer.view(&mirror)?;
        if follow {
            tokio::select! {
                never = follow_on(stream, &operator, &mut mirror, |mirror, news| printer.news(mirror, news)) => match never {},
                stopped = stopped => return stopped.map_or(Ok(()), |end| end.map_err(Error::from)),
            }
        }
        Ok(())
    };
    tokio::select! {
        shown = shown => shown,
        // Without --follow an interrupt ends the program as it ends any other.
        interrupted = tokio::signal::ctrl_c(), if follow => Ok(interrupted?),
    }
}

/// One line: what was tried, why it failed, and the way out.
fn failure(error: &Error) -> String {
    match error {
        Error::Stream(error) => format!("{}; {}", Chain(error), error.way_out()),
        Error::Print(_) => Chain(error).to_string(),
    }
}

fn code(error: &Error) -> u8 {
    match error {
        Error::Stream(error) => match error.kind() {
            Kind::NotAuthorised => 3,
            Kind::Unreachable => 4,
            Kind::Other => 1,
        },
        Error::Print(_) => 1,
    }
}

fn say(line: &str) {
    // There is nobody left to tell when standard error is closed.
    let _ = writeln!(io::stderr(), "outrider-agent: {line}");
}

/// Prints to standard output and remembers what it printed.
struct Printer {
    json: bool,
    seen: View,
    stop: Option<oneshot::Sender<io::Result<()>>>,
}

impl Printer {
    /// A printer, and what resolves when there is nothing more to print, or it can't.
    fn new(json: bool) -> (Self, oneshot::Receiver<io::Result<()>>) {
        let (stop, stopped) = oneshot::channel();
        (Self { json, seen: View::default(), stop: Some(stop) }, stopped)
    }

    fn view(&mut self, mirror: &Mirror) -> io::Result<()> {
        self.seen = mirror.view().clone();
        print(&if self.json {
            json::view(mirror.view(), mirror.revision())
        } else {
            text::view(mirror.view(), mirror.revision())
        })
    }

    fn news(&mut self, mirror: &Mirror, news: News) {
        let mut last = false;
        let text = match news {
            News::Told(Told::Commit(revision)) => {
                let before = std::mem::replace(&mut self.seen, mirror.view().clone());
                let changes = if self.json { json::changes } else { text::changes };
                changes(&before, mirror.view(), &revision)
            }
            News::Told(Told::Gone { uid, reason }) => {
                last = true;
                if self.json { json::gone(&uid, &reason) } else { format!("gone: {} (uid {uid})\n", one_line(&reason)) }
            }
            News::Told(Told::Hello | Told::Ping) => return,
            News::Lost { error, retry_in } => {
                return say(&format!("{}; will try again in {:.1} s", Chain(&error), retry_in.as_secs_f32()));
            }
        };
        let printed = print(&text);
        if (last || printed.is_err())
            && let Some(stop) = self.stop.take()
        {
            // The other end only goes away with the whole program.
            let _ = stop.send(printed);
        }
    }
}

fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
