//! How the command answers: its result, what it has to say beside that, and
//! its exit status.

use std::fmt::Display;
use std::io::{self, Write};

/// Exit status where the command was called wrongly or could not read what it
/// was given.
pub(crate) const USAGE: u8 = 2;

/// Says something on standard error. Where that is closed, nobody listens.
pub(crate) fn say(text: impl Display) {
    let line = plain(&format!("vramalloc: {text}"));
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// A text that does nothing to a terminal.
pub(crate) fn plain(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

/// Writes a result to standard output and answers with the exit status. A
/// reader that has seen enough and closed the pipe is no failure.
pub(crate) fn show(text: &str) -> u8 {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            say(format_args!("standard output: {error}"));
            1
        }
        _ => 0,
    }
}
