//! What a process tells `vramalloc run` and `vramalloc doctor` about its
//! statistics: one line per note, three lines per process.
//!
//! The command names a file in its own memory by the variable
//! [`NOTES`](crate::config::NOTES), and processes append to it.

/// The name of the command's file in memory, as the system shows it.
pub const NOTES_FILE: &str = "/memfd:vramalloc-run";

/// A warning in the statistics: why no allocation that came through a runtime
/// was served.
pub const NOT_SERVED: &str = "look-ups of the driver's functions do not come by this library, \
    since it was opened late or another one exports dlsym before it: CUDA serves what comes by \
    the runtime";

/// What a process says.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Note<'a> {
    /// It used CUDA memory for the first time.
    Seen,
    /// Its statistics could not be written, and why.
    Failed(&'a str),
    /// Its last statistics are in this file.
    Wrote(&'a str),
    /// It came to its end.
    Ended,
}

impl<'a> Note<'a> {
    /// The note of this process as a line.
    #[must_use]
    pub fn line(self) -> String {
        let (what, text) = match self {
            Note::Seen => ("seen", ""),
            Note::Failed(why) => ("failed ", why),
            Note::Wrote(path) => ("wrote ", path),
            Note::Ended => ("ended", ""),
        };
        let text = text.replace(char::is_control, "\u{fffd}");
        format!("{} {what}{text}\n", std::process::id())
    }

    /// The process and the note of a line, which is given without its end.
    #[must_use]
    pub fn read(line: &'a str) -> Option<(u32, Note<'a>)> {
        let (process, what) = line.split_once(' ')?;
        let note = match what.split_once(' ').unwrap_or((what, "")) {
            ("seen", _) => Note::Seen,
            ("ended", _) => Note::Ended,
            ("failed", why) => Note::Failed(why),
            ("wrote", path) => Note::Wrote(path),
            _ => return None,
        };
        Some((process.parse().ok()?, note))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_one_line_and_read_back() {
        let process = std::process::id();
        for note in [
            Note::Seen,
            Note::Failed("a/b: no room"),
            Note::Wrote("/a b/c"),
            Note::Ended,
        ] {
            let line = note.line();
            assert_eq!(Note::read(line.trim_end()), Some((process, note)));
        }
        assert_eq!(Note::Failed("a\nb").line().lines().count(), 1);
        for line in ["", "seen", "x seen", "1 more"] {
            assert_eq!(Note::read(line), None, "{line}");
        }
    }
}
