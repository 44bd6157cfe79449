//! The promises of the parsers, for any input.
//!
//! One function per target; each panics if a promise is broken. The parsers are
//! those of the environment (options) and of the command: statistics and
//! recordings that it reads back, ELF files with the names in them, the loader's
//! cache and its lists, patterns of file names.

mod command;
mod doctor;
mod options;

pub use command::{names, recording, report, snapshot, symbols};
pub use doctor::{elf, loader};
pub use options::{options, valid};

/// Checks that a text is one line without control characters.
fn is_plain(text: &str) {
    assert!(!text.chars().any(char::is_control), "{text:?}");
}
