//! The warnings: one line each, without control characters.
//!
//! Invariant: a warning names what was given, and what is accepted or may have
//! been meant; its length is bounded, whatever was given.

use std::ffi::OsStr;

use super::sources::variable;
use super::table::{OPTIONS, OptionRow};

/// The warning for a text that cannot be read: the text, what may have been
/// meant, and what is accepted.
pub(super) fn cannot_read(row: &OptionRow, text: &str, accepted: &str) -> String {
    let meant = match (row.meant)(text) {
        Some(meant) => format!(" (did you mean {meant}?)"),
        None => String::new(),
    };
    format!("cannot read {}{meant}; accepted: {accepted}", quoted(text))
}

/// The warning for a variable that has our prefix and is none of ours.
pub(super) fn unknown_variable(name: &str, option: &str, value: &OsStr) -> String {
    let meant = nearest(&option.to_ascii_lowercase(), |_| true).map(variable);
    unknown("variable", name, &value.to_string_lossy(), IGNORED, meant)
}

/// The warning for a key that is not one of the `listed` options.
pub(super) fn unknown_option(
    key: &str,
    value: &str,
    then: &str,
    listed: impl Fn(&OptionRow) -> bool,
) -> String {
    let meant = nearest(key, listed).map(|row| row.key.to_owned());
    unknown("option", key, value, then, meant)
}

/// Said of an unknown name when everything else goes on.
pub(super) const IGNORED: &str = ", ignored";

/// The warning for an unknown name, with the option that may have been meant.
fn unknown(what: &str, name: &str, value: &str, then: &str, meant: Option<String>) -> String {
    let end = match meant {
        Some(meant) => format!("did you mean {meant}?"),
        None => "accepted: what `vramalloc options` lists".to_owned(),
    };
    format!(
        "unknown {what} {} with value {}{then}; {end}",
        quoted(name),
        quoted(value)
    )
}

/// A text in quotes, escaped and cut to 80 characters.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", printable(text))
}

/// A text, escaped so that a terminal shows it and does nothing else, and cut
/// to 80 characters.
pub(super) fn printable(text: &str) -> String {
    const LONGEST: usize = 80;
    let mut short: String = text
        .chars()
        .take(LONGEST)
        .flat_map(char::escape_debug)
        .collect();
    if text.chars().nth(LONGEST).is_some() {
        short.push('…');
    }
    short
}

/// The `listed` option whose name is nearest, if it differs in at most two
/// letters, or a third of them.
fn nearest(name: &str, listed: impl Fn(&OptionRow) -> bool) -> Option<&'static OptionRow> {
    OPTIONS
        .iter()
        .filter(|row| listed(row))
        // Avoids the comparison with very long names.
        .filter(|row| row.key.len().abs_diff(name.len()) <= slack(row))
        .map(|row| (distance(row.key.as_bytes(), name.as_bytes()), row))
        .filter(|(distance, row)| *distance <= slack(row))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, row)| row)
}

/// The number of letters in which a name may differ.
fn slack(row: &OptionRow) -> usize {
    (row.key.len() / 3).max(2)
}

/// The edit distance: letters to insert, remove or replace to turn one name
/// into the other.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, &x) in a.iter().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, &y) in row.iter_mut().skip(1).zip(b) {
            let above = *cell;
            left = (diagonal + usize::from(x != y))
                .min(above + 1)
                .min(left + 1);
            diagonal = above;
            *cell = left;
        }
    }
    row.last().copied().unwrap_or(a.len())
}
