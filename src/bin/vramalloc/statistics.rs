//! What the readers of a statistics file have in common.
//!
//! A reader's types describe what it reads. Invariant: a file is found to be
//! wrong from the start or not at all. Keys that the types do not name are
//! skipped, so that a snapshot, which can be large, is held by nobody who does
//! not need it.

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Deserializer;
use vramalloc_core::config::{self, Host, Loaded};
use vramalloc_core::recording::is_recording;
use vramalloc_core::stats::SCHEMA;

use super::given::variable;
use super::output::plain;

/// An option that was in force.
#[derive(Debug, Deserialize)]
pub(super) struct Setting {
    pub(super) value: String,
    pub(super) origin: String,
}

/// The options that were given, with these in their place, as the library reads them.
pub(super) fn loaded<'a>(
    given: impl IntoIterator<Item = (&'a String, &'a Setting)>,
    changed: &[(String, String)],
) -> Loaded {
    let given = given.into_iter();
    let given = given.filter(|(_, setting)| setting.origin != "default");
    let kept = given.filter(|(key, _)| changed.iter().all(|(other, _)| other != *key));
    let pairs = kept
        .map(|(key, setting)| (key, &setting.value))
        .chain(changed.iter().map(|(key, value)| (key, value)))
        .map(|(key, value)| (variable(key).into(), value.into()));
    config::load(pairs, Host::default())
}

/// When a context was there, in Unix time in ms.
#[derive(Copy, Clone)]
pub(super) struct Lifetime {
    /// 0 in older files.
    pub(super) made: u64,
    /// If it ended before the process.
    pub(super) ended: Option<u64>,
}

/// Those that were there when the one at this place was made, and itself. Of one moment, they
/// are in the order in which they were made.
pub(super) fn there_with(lifetimes: &[Lifetime], new: usize) -> Vec<usize> {
    let made = lifetimes[new].made;
    let there = |&at: &usize| {
        let other = lifetimes[at];
        let is_gone = other.ended.is_some_and(|ended| ended <= made);
        let is_made = other.made < made || (other.made == made && at < new);
        at == new || (is_made && !is_gone)
    };
    (0..lifetimes.len()).filter(there).collect()
}

/// The largest sum over contexts that were there together, and which those are.
pub(super) fn most_together(
    lifetimes: &[Lifetime],
    bytes: impl Fn(usize) -> u64,
) -> (u64, Vec<usize>) {
    // What is there only changes for the more where one is made.
    let sets = (0..lifetimes.len()).map(|new| there_with(lifetimes, new));
    let sums = sets.map(|set| {
        let sum = set.iter().fold(0, |sum, &at| bytes(at).saturating_add(sum));
        (sum, set)
    });
    sums.max_by_key(|(sum, _)| *sum).unwrap_or_default()
}

/// The version alone, so that a newer file is recognised.
#[derive(Deserialize)]
struct Version {
    schema: Option<u64>,
}

/// Whether this is JSON of something else: whole, and without a version.
pub(super) fn is_of_others(bytes: &[u8]) -> bool {
    let versioned = serde_json::from_slice::<Version>(bytes).is_ok_and(|it| it.schema.is_some());
    !versioned && serde_json::from_slice::<IgnoredAny>(bytes).is_ok()
}

/// Reads what a `T` describes.
///
/// # Errors
/// One line that says what is wrong with the file, and where.
pub(super) fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    if is_recording(bytes) {
        return Err(
            "a recording; vramalloc recording, report --html, export and diff read it".to_owned(),
        );
    }
    if bytes.trim_ascii().is_empty() {
        return Err("it is empty".to_owned());
    }
    let foreign = |error: &str| format!("not statistics of vramalloc: {error}");
    let version: Version = serde_json::from_slice(bytes).map_err(|error| {
        if error.is_eof() {
            return format!("it ends too early: {error}");
        }
        // The error may quote the file.
        foreign(&plain(&error.to_string()))
    })?;
    match version.schema {
        Some(schema) if schema == u64::from(SCHEMA) => {}
        Some(schema) => {
            return Err(format!(
                "schema {schema}, but this command reads schema {SCHEMA}"
            ));
        }
        None => return Err(foreign("no schema")),
    }
    // To know the place takes time, which only a file with a fault is worth.
    serde_json::from_slice(bytes).or_else(|_| {
        serde_path_to_error::deserialize(&mut Deserializer::from_slice(bytes))
            .map_err(|error| plain(&error.to_string()))
    })
}
