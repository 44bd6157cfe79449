//! Folded stacks: a line for each, `outermost;…;innermost bytes`, as
//! `flamegraph.pl`, speedscope and others read them.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::super::output::plain;
use super::super::stacks::{At, Stacks};

/// The lines, sorted. Stacks that are written alike are one.
///
/// # Errors
/// That the file has no call stacks of this moment.
pub(super) fn text(stacks: &Stacks, at: At) -> Result<String, String> {
    if stacks.said().is_none() {
        let hint = "run the program with stacks:all or stacks:sampled";
        return Err(format!("it holds no call stacks of memory; {hint}"));
    }
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for held in stacks.held(at) {
        let shown = held
            .stack
            .map(|stack| stacks.shown(stack))
            .unwrap_or_default();
        let mut places: Vec<String> = shown.iter().map(|place| part(&place.text())).collect();
        if places.is_empty() {
            places.push("(no call stack)".to_owned());
        }
        places.reverse();
        let bytes = lines.entry(places.join(";")).or_default();
        *bytes = bytes.saturating_add(held.bytes);
    }
    let mut text = String::new();
    for (line, bytes) in lines.iter().filter(|(_, bytes)| **bytes > 0) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{line} {bytes}");
    }
    Ok(text)
}

/// A place without what has a meaning in a line.
fn part(text: &str) -> String {
    plain(text).replace(';', ",")
}
