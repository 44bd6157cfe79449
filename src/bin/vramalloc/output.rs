//! How the command answers: its result, its messages, and its exit status.

use std::fmt::Display;
use std::io::{self, Write};

/// The exit status if the command was called wrongly or could not read its
/// input.
pub(crate) const USAGE: u8 = 2;

/// Prints a message on standard error, if that is open.
pub(crate) fn say(text: impl Display) {
    let line = plain(&format!("vramalloc: {text}"));
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// A text without control characters.
pub(crate) fn plain(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

/// Writes a result to standard output. Returns the exit status. A reader that
/// has closed the pipe is no failure.
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
