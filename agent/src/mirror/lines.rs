//! Lines out of bytes that arrive in any pieces.

use bytes::{Bytes, BytesMut};

/// Bytes of which a line isn't taken yet.
#[derive(Debug, Default)]
pub(super) struct Lines {
    buffer: BytesMut,
    /// How far no line end was found.
    searched: usize,
}

impl Lines {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole line, without its end.
    pub(super) fn next(&mut self) -> Option<Bytes> {
        match self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
            None => {
                self.searched = self.buffer.len();
                None
            }
            Some(at) => {
                let mut line = self.buffer.split_to(self.searched + at + 1);
                line.truncate(self.searched + at);
                self.searched = 0;
                Some(line.freeze())
            }
        }
    }

    /// How much of a line has come whose end hasn't.
    pub(super) fn rest(&self) -> usize {
        self.buffer.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_without_its_end_is_not_a_line() {
        let mut lines = Lines::default();
        lines.push(b"one\ntw");
        assert_eq!(lines.next().unwrap(), "one");
        assert_eq!(lines.next(), None);
        assert_eq!(lines.rest(), 2);
        lines.push(b"o\n\n");
        assert_eq!(lines.next().unwrap(), "two");
        assert_eq!(lines.next().unwrap(), "");
        assert_eq!(lines.rest(), 0);
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_how_the_bytes_were_cut(
            text in "[a\n]{0,40}",
            pieces in prop::collection::vec(1usize..9, 40),
        ) {
            let mut lines = Lines::default();
            let (mut got, mut rest) = (Vec::new(), text.as_bytes());
            for piece in pieces {
                let (now, later) = rest.split_at(piece.min(rest.len()));
                lines.push(now);
                rest = later;
                got.extend(std::iter::from_fn(|| lines.next()));
            }
            let (whole, cut) = text.rsplit_once('\n').map_or((None, &*text), |(whole, cut)| (Some(whole), cut));
            let expected: Vec<_> = whole.into_iter().flat_map(|whole| whole.split('\n')).collect();
            prop_assert_eq!(got, expected);
            prop_assert_eq!(lines.rest(), cut.len());
        }
    }
}
