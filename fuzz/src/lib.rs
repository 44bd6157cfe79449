//! What the parsers must keep to, whatever they are given.
//!
//! One function per target; each panics where a promise is broken. The
//! parsers are the environment's (options), and the command's: statistics
//! that it reads back, ELF files, the loader's cache and its lists, patterns
//! of file names.

mod command;
mod doctor;
mod options;

// What the doctor's modules find above them in the command.

pub use command::{names, report, snapshot};
pub use doctor::{elf, loader};
pub use options::options;

/// A text that is one line and does nothing to a terminal.
fn is_plain(text: &str) {
    assert!(!text.chars().any(char::is_control), "{text:?}");
}
