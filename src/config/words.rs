//! The warnings: one line each, that does nothing to a terminal.
//!
//! Owns nothing. Invariant: a warning names what was given, and what is
//! accepted or what may have been meant; it has no control character and a
//! bounded length, whatever was given. Cost: only where something is wrong.

use std::ffi::OsStr;

use super::sources::variable;
use super::table::{OPTIONS, OptionRow};

/// A text, what may have been meant, and what would have been accepted.
pub(super) fn cannot_read(row: &OptionRow, text: &str, accepted: &str) -> String {
    let meant = match (row.meant)(text) {
        Some(meant) => format!(" (did you mean {meant}?)"),
        None => String::new(),
    };
    format!("cannot read {}{meant}; accepted: {accepted}", quoted(text))
}

/// The warning for a variable that starts like ours and is none.
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

/// What comes of an unknown name where everything else goes on.
pub(super) const IGNORED: &str = ", ignored";

/// The warning for a name that is no option's, with the option that may have
/// been meant.
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

/// A text in quotes, printable and not longer than a line.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", printable(text))
}

/// A text that does nothing to a terminal and is not longer than a line.
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

/// The `listed` option whose name differs in two letters, or in a third of
/// them.
fn nearest(name: &str, listed: impl Fn(&OptionRow) -> bool) -> Option<&'static OptionRow> {
    OPTIONS
        .iter()
        .filter(|row| listed(row))
        // Spares the comparison with a name of any length.
        .filter(|row| row.key.len().abs_diff(name.len()) <= slack(row))
        .map(|row| (distance(row.key.as_bytes(), name.as_bytes()), row))
        .filter(|(distance, row)| *distance <= slack(row))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, row)| row)
}

/// In how many letters a name may differ.
fn slack(row: &OptionRow) -> usize {
    (row.key.len() / 3).max(2)
}

/// Letters to insert, remove or replace to turn one name into the other.
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
