//! How the command answers: its result, its messages, and its exit status.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;

use anstream::AutoStream;

use super::screen::HEADING;

/// The exit status if the command was called wrongly or could not read its
/// input.
pub(crate) const USAGE: u8 = 2;

/// The exit status if the result cannot be written.
pub(crate) const NOT_WRITTEN: u8 = 1;

/// Whether a file's name stands for standard input or output.
pub(crate) fn is_stream(name: &Path) -> bool {
    name == Path::new("-")
}

/// Prints a message on standard error, if that is open.
pub(crate) fn say(text: impl Display) {
    let text = plain(&text.to_string());
    complain(&format!("{HEADING}vramalloc:{HEADING:#} {text}\n"));
}

/// Writes text as it is to standard error, if that is open.
pub(crate) fn complain(text: &str) {
    let _ = AutoStream::auto(io::stderr().lock()).write_all(text.as_bytes());
}

/// A text without characters that are not seen.
pub(crate) fn plain(text: &str) -> String {
    text.replace(is_unseen, "\u{fffd}")
}

/// Whether a character is not seen but does something: to a terminal, to the order or the
/// lines of the text around it, or, without width, to whoever compares two texts.
pub(crate) fn is_unseen(c: char) -> bool {
    let has_no_width = matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{2069}' | '\u{feff}');
    c.is_control() || has_no_width
}

/// What is wrong with a file, behind its name.
pub(crate) fn of_file(path: &Path, wrong: impl Display) -> String {
    format!("{}: {wrong}", plain(&path.to_string_lossy()))
}

/// Writes what was found out about a file, with its exit status, or says what is wrong
/// with the file. Returns the exit status.
pub(crate) fn answer(path: &Path, told: Result<(String, u8), String>) -> u8 {
    match told {
        Ok((text, status)) => show(&text).max(status),
        Err(error) => {
            say(of_file(path, error));
            USAGE
        }
    }
}

/// Writes a result to standard output. Returns the exit status.
pub(crate) fn show(text: &str) -> u8 {
    let mut out = AutoStream::auto(io::stdout().lock());
    printed(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// The exit status once a result was written to standard output, or was not. A
/// reader that has closed the pipe is no failure.
pub(crate) fn printed(result: io::Result<()>) -> u8 {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            say(format_args!("standard output: {error}"));
            NOT_WRITTEN
        }
        _ => 0,
    }
}
