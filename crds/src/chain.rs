//! Errors in words.

use std::error::Error;
use std::fmt;

/// Prints an error and all its causes on one line, each once.
///
/// Only the place that gives up prints; what is returned isn't also logged.
#[derive(Clone, Copy, Debug)]
pub struct Chain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut told = text(self.0);
        for cause in causes(self.0).skip(1).map(text) {
            // Many errors repeat their cause at the end of their own text.
            if !told.ends_with(&cause) {
                told = format!("{told}: {cause}");
            }
        }
        f.write_str(&one_line(&told))
    }
}

/// The error and its causes, outermost first; also the one that an I/O error carries inside.
pub fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| cause(*error))
}

/// What it all came from: the layers above only say that they failed.
pub fn root(error: &(dyn Error + 'static)) -> String {
    causes(error).last().map(text).unwrap_or_default()
}

/// `text` without control characters, so that nobody who wrote it can paint the terminal or forge a line of the log.
pub fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The error in words. An answer of the API server is told as it was given, without the debug form that kube adds.
fn text(error: &(dyn Error + 'static)) -> String {
    answer(error).unwrap_or_else(|| error.to_string())
}

/// What caused the error. Behind an answer of the API server stands only the answer itself.
fn cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    let carried = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    let cause = carried.map(|inner| inner as &(dyn Error + 'static)).or_else(|| error.source());
    cause.filter(|_| answer(error).is_none())
}

#[cfg(feature = "watch")]
fn answer(error: &(dyn Error + 'static)) -> Option<String> {
    // Many errors keep kube's large one in a box, and the box is then the cause.
    let kube::Error::Api(status) = error.downcast_ref().or_else(|| error.downcast_ref().map(Box::as_ref))? else {
        return None;
    };
    let words = if status.message.is_empty() { &status.reason } else { &status.message };
    Some(format!("the API server answered {}: {words}", status.code))
}

/// Without a client nothing answers.
#[cfg(not(feature = "watch"))]
fn answer(_: &(dyn Error + 'static)) -> Option<String> {
    None
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Because {
        text: &'static str,
        source: Option<Box<dyn Error + Send + Sync>>,
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
    fn what_an_io_error_carries_is_a_cause() {
        let carried = io::Error::other(io::Error::other("the root\nof it"));
        let error = Because { text: "outer", source: Some(Box::new(carried)) };
        assert_eq!(Chain(&error).to_string(), "outer: the root of it");
        assert_eq!(root(&error), "the root\nof it");
    }

    #[cfg(feature = "watch")]
    #[test]
    fn an_answer_of_the_api_is_told_without_its_debug_form() {
        let status = kube::core::Status::failure("leases \"x\" is forbidden", "Forbidden").with_code(403);
        let error = kube::Error::Api(status.boxed());
        assert_eq!(Chain(&error).to_string(), "the API server answered 403: leases \"x\" is forbidden");
        let boxed = Because { text: "can't write", source: Some(Box::new(Box::new(error))) };
        assert_eq!(Chain(&boxed).to_string(), "can't write: the API server answered 403: leases \"x\" is forbidden");
    }

    #[test]
    fn no_control_character_survives() {
        assert_eq!(one_line("a\x1b[31mb\r\nc"), "a [31mb  c");
    }
}
