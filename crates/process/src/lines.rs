//! The last lines of a child's error output, kept within bounds and without its secrets.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// Rewrites one line before it is kept.
pub(crate) type Redact = Arc<dyn Fn(&str) -> String + Send + Sync>;

/// The longest line that is looked at. What goes beyond is dropped before redaction, which is why this is
/// far longer than what is kept: a secret is not to escape by being cut in two.
const LONGEST_SEEN: usize = 16 * 1024;

/// A bounded tail of lines.
pub(crate) struct Lines {
    keep: usize,
    width: usize,
    redact: Option<Redact>,
    partial: Vec<u8>,
    lines: VecDeque<String>,
}

impl Lines {
    /// Keeps the last `keep` lines, each cut to `width` bytes.
    pub(crate) fn new(keep: usize, width: usize, redact: Option<Redact>) -> Self {
        Self {
            keep,
            width,
            redact,
            partial: Vec::new(),
            lines: VecDeque::new(),
        }
    }

    /// Takes output as it comes, in pieces of any size.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            // FFmpeg ends its progress lines with a carriage return.
            if byte == b'\n' || byte == b'\r' {
                self.end_line();
            } else if self.partial.len() < LONGEST_SEEN {
                self.partial.push(byte);
            }
        }
    }

    /// Ends the line that was begun, as the end of the output does.
    pub(crate) fn end_line(&mut self) {
        if self.partial.is_empty() || self.keep == 0 {
            self.partial.clear();
            return;
        }
        let line = String::from_utf8_lossy(&self.partial);
        let line = match &self.redact {
            Some(redact) => redact(&line),
            None => line.into_owned(),
        };
        self.partial.clear();
        let mut kept = String::new();
        for c in line.chars().map(|c| if c.is_control() { ' ' } else { c }) {
            if kept.len() + c.len_utf8() > self.width {
                break;
            }
            kept.push(c);
        }
        while self.lines.len() >= self.keep {
            self.lines.pop_front();
        }
        self.lines.push_back(kept);
    }

    /// What is kept, oldest first. A line that has not ended is not shown: it was not redacted as a whole.
    pub(crate) fn tail(&self) -> Vec<String> {
        self.lines.iter().cloned().collect()
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines")
            .field("kept", &self.lines.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_bounded_in_lines_and_in_width() {
        let mut lines = Lines::new(2, 5, None);
        lines.push(b"first\nsec");
        lines.push(b"ond\rthird line\n");
        lines.push(b"unfinished");
        assert_eq!(lines.tail(), ["secon", "third"]);
        lines.end_line();
        assert_eq!(lines.tail(), ["third", "unfin"]);
    }

    #[test]
    fn a_secret_is_redacted_even_where_the_width_cuts_it() {
        let redact: Redact = Arc::new(|line| line.replace("token=abcdef", "token=…"));
        let mut lines = Lines::new(4, 12, Some(redact));
        lines.push(b"GET token=abc");
        assert!(lines.tail().is_empty());
        lines.push(b"def failed\n");
        assert_eq!(lines.tail(), ["GET token="]);
    }

    #[test]
    fn a_line_without_end_does_not_grow_without_end() {
        let mut lines = Lines::new(1, 8, None);
        for _ in 0..1_000 {
            lines.push(&[b'x'; 1024]);
        }
        assert_eq!(lines.partial.len(), LONGEST_SEEN);
    }

    #[test]
    fn bytes_that_are_not_text_and_terminal_escapes_are_made_harmless() {
        let mut lines = Lines::new(1, 64, None);
        lines.push(b"\x1b[31mred\xff\n");
        assert_eq!(lines.tail(), [" [31mred\u{fffd}"]);
    }
}
