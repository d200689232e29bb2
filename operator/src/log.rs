//! What is said, in which form, and how an error is told.

use std::error::Error as StdError;
use std::fmt;
use std::str::FromStr;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

/// The value of `--log`: a filter, then optionally a comma and the form.
///
/// `info`, `info,json`, `operator=debug,kube=warn,text`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    filter: String,
    format: Format,
}

/// The form of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One object per line.
    Json,
}

/// Why logging can't start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What was asked for is no filter.
    #[error("{filter:?} is no log filter")]
    Filter {
        /// What was asked for.
        filter: String,
        /// Why not.
        source: tracing_subscriber::filter::ParseError,
    },
    /// Somebody else already logs.
    #[error("logging was already started")]
    Twice(#[source] Box<dyn StdError + Send + Sync>),
}

impl Default for Settings {
    fn default() -> Self {
        Self { filter: "info".to_owned(), format: Format::default() }
    }
}

impl FromStr for Settings {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (mut directives, mut format) = (Vec::new(), Format::default());
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part {
                "json" => format = Format::Json,
                "text" => format = Format::Text,
                directive => directives.push(directive),
            }
        }
        let filter = if directives.is_empty() { Self::default().filter } else { directives.join(",") };
        match EnvFilter::try_new(&filter) {
            Ok(_) => Ok(Self { filter, format }),
            Err(source) => Err(Error::Filter { filter, source }),
        }
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let format = match self.format {
            Format::Text => "text",
            Format::Json => "json",
        };
        write!(f, "{},{format}", self.filter)
    }
}

/// Logs to standard error from now on.
pub fn init(settings: &Settings) -> Result<(), Error> {
    let subscriber = subscriber(settings, BoxMakeWriter::new(std::io::stderr))?;
    tracing_subscriber::util::SubscriberInitExt::try_init(subscriber).map_err(|error| Error::Twice(error.into()))
}

fn subscriber(
    Settings { filter, format }: &Settings,
    writer: BoxMakeWriter,
) -> Result<Box<dyn tracing::Subscriber + Send + Sync>, Error> {
    // its failures are told by those who watch, once per trouble
    let quiet = if filter.contains("kube_runtime") { "" } else { ",kube_runtime::watcher=off" };
    let filter = EnvFilter::try_new(format!("{filter}{quiet}"))
        .map_err(|source| Error::Filter { filter: filter.clone(), source })?;
    // colours are for eyes: in a file they would stand between a name and its value
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(writer);
    Ok(match format {
        Format::Text => Box::new(lines.finish()),
        Format::Json => Box::new(lines.json().flatten_event(true).with_current_span(false).finish()),
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use crds::chain::Chain;

    use super::*;

    #[test]
    fn the_form_follows_the_filter() {
        let parse = |text: &str| text.parse::<Settings>().unwrap().to_string();
        assert_eq!(parse("info"), "info,text");
        assert_eq!(parse("operator=debug,kube=warn,json"), "operator=debug,kube=warn,json");
        assert_eq!(parse("json"), "info,json");
        assert_eq!(parse(""), "info,text");
    }

    #[test]
    fn a_filter_that_is_none_is_refused_with_the_reason() {
        let error = "operator=loud".parse::<Settings>().unwrap_err();
        assert!(Chain(&error).to_string().starts_with("\"operator=loud\" is no log filter: "), "{}", Chain(&error));
    }

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_json_line_has_its_fields_on_top() {
        let page = Page::default();
        let writer = BoxMakeWriter::new({
            let page = page.clone();
            move || page.clone()
        });
        let subscriber = subscriber(&"warn,json".parse().unwrap(), writer).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!("not asked for");
            tracing::warn!(node = "vm1", "late");
        });
        let line: serde_json::Value = serde_json::from_slice(&page.0.lock().unwrap()).unwrap();
        assert_eq!((&line["level"], &line["node"], &line["message"]), (&"WARN".into(), &"vm1".into(), &"late".into()));
    }
}
