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
        let mut told = self.0.to_string();
        for cause in causes(self.0).skip(1).map(ToString::to_string) {
            // Many errors repeat their cause at the end of their own text.
            if !told.ends_with(&cause) {
                told = format!("{told}: {cause}");
            }
        }
        f.write_str(&one_line(&told))
    }
}

/// The error and its causes, outermost first; also the one that an I/O error carries inside.
pub(crate) fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    fn cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
        let carried = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        carried.map(|inner| inner as &(dyn Error + 'static)).or_else(|| error.source())
    }
    std::iter::successors(Some(error), |error| cause(*error))
}

/// What it all came from: the layers above only say that they failed.
pub(crate) fn root(error: &(dyn Error + 'static)) -> String {
    causes(error).last().map(ToString::to_string).unwrap_or_default()
}

/// `text` without control characters, so that nobody who wrote it can paint the terminal or forge a line of the log.
pub(crate) fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] io::Error);

    #[test]
    fn a_chain_tells_every_cause_once() {
        let error = Outer(io::Error::other(io::Error::other("the root\nof it")));
        assert_eq!(Chain(&error).to_string(), "outer: the root of it");
        assert_eq!(root(&error), "the root\nof it");
    }

    #[test]
    fn no_control_character_survives() {
        assert_eq!(one_line("a\x1b[31mb\r\nc"), "a [31mb  c");
    }
}
