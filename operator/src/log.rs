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
    let filter = EnvFilter::try_new(filter).map_err(|source| Error::Filter { filter: filter.clone(), source })?;
    // colours are for eyes: in a file they would stand between a name and its value
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(writer);
    Ok(match format {
        Format::Text => Box::new(lines.finish()),
        Format::Json => Box::new(lines.json().flatten_event(true).with_current_span(false).finish()),
    })
}

/// Prints an error and all its causes on one line, each once.
///
/// Only the place that gives up prints; what is returned isn't also logged.
#[derive(Clone, Copy, Debug)]
pub struct Chain<'a>(pub &'a (dyn StdError + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut told = text(self.0);
        let mut cause = cause(self.0);
        while let Some(error) = cause {
            let next = text(error);
            // Many errors repeat their cause at the end of their own text.
            if !told.ends_with(&next) {
                told = format!("{told}: {next}");
            }
            cause = self::cause(error);
        }
        f.write_str(&told)
    }
}

/// The error in words. An answer of the API server is told as it was given, without the debug form that kube adds.
fn text(error: &(dyn StdError + 'static)) -> String {
    match answer(error) {
        Some(status) => format!("the API server answered {}: {}", status.code, words(status)),
        None => error.to_string(),
    }
}

/// What caused the error. Behind an answer of the API server stands only the answer itself.
fn cause<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a (dyn StdError + 'static)> {
    error.source().filter(|_| answer(error).is_none())
}

fn answer<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a kube::core::Status> {
    // Many errors keep kube's large one in a box, and the box is then the cause.
    match error.downcast_ref().or_else(|| error.downcast_ref().map(Box::as_ref)) {
        Some(kube::Error::Api(status)) => Some(status),
        _ => None,
    }
}

fn words(status: &kube::core::Status) -> &str {
    if status.message.is_empty() { &status.reason } else { &status.message }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Because {
        text: &'static str,
        source: Option<Box<dyn StdError + Send + Sync>>,
    }

    fn because(text: &'static str, source: impl Into<Option<Because>>) -> Because {
        Because { text, source: source.into().map(|source| Box::new(source) as _) }
    }

    #[test]
    fn an_error_is_told_with_all_its_causes() {
        let error = because("can't serve", because("can't bind", because("address in use", None)));
        assert_eq!(Chain(&error).to_string(), "can't serve: can't bind: address in use");
    }

    #[test]
    fn a_cause_that_was_already_told_is_not_repeated() {
        let error = because("can't bind: address in use", because("address in use", None));
        assert_eq!(Chain(&error).to_string(), "can't bind: address in use");
    }

    #[test]
    fn an_answer_of_the_api_is_told_without_its_debug_form() {
        let status = kube::core::Status::failure("leases \"x\" is forbidden", "Forbidden").with_code(403);
        let error = kube::Error::Api(status.boxed());
        assert_eq!(Chain(&error).to_string(), "the API server answered 403: leases \"x\" is forbidden");
        let boxed = Because { text: "can't write", source: Some(Box::new(Box::new(error))) };
        assert_eq!(Chain(&boxed).to_string(), "can't write: the API server answered 403: leases \"x\" is forbidden");
    }

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
