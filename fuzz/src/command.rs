//! The command's parsers, built from the command's own sources: it is a
//! binary, and what it reads is nobody else's business.

#![allow(dead_code, unused_imports, reason = "only the parsers are called here")]

#[path = "../../src/bin/vramalloc/report.rs"]
mod report;
#[path = "../../src/bin/vramalloc/units.rs"]
mod units;
#[path = "../../src/bin/vramalloc/written.rs"]
mod written;

/// What the command's modules find in the command.
const USAGE: u8 = 2;

pub(crate) fn plain(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

fn say(_text: impl std::fmt::Display) {}

fn show(_text: &str) -> u8 {
    0
}

/// A statistics file, from anywhere.
pub fn report(data: &[u8]) {
    match report::summarise(data) {
        Ok(text) => text.lines().for_each(super::is_plain),
        Err(error) => super::is_plain(&error),
    }
}

/// A statistics file of ours has a summary.
pub(crate) fn reads(data: &[u8]) {
    report(data);
    assert_eq!(report::summarise(data).err(), None);
}

/// A pattern, and on the next line a name that it may have given.
pub fn names(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Some((pattern, name)) = text.split_once('\n') else {
        return;
    };
    let fits = |pid| written::fits(pattern, name, pid);
    // A name of one process is a name.
    assert!(fits(None) || !fits(Some("42")));
}
