//! `vramalloc report --snapshot`: what a program held, block by block, and its
//! newest events, in the form of `PyTorch`'s memory snapshots.
//!
//! One structure is written in one or both of two forms: a pickle, which
//! `PyTorch`'s page memory_viz and its `_memory_viz.py` open, and JSON.
//! Invariant: whatever the statistics hold, the output keeps to the rules that
//! these tools rely on; what would not is left out and counted. Each file is
//! replaced as a whole or not at all.

pub(crate) mod chunks;
mod json;
pub(crate) mod made;
mod pickle;
mod read;
mod replay;
mod shape;
pub(crate) mod steps;

use std::fs;
use std::io::{IsTerminal, Write, stdout};
use std::path::{Path, PathBuf};

use vramalloc_core::stats::write_whole;

use self::made::Made;
use super::output::{NOT_WRITTEN, USAGE, is_stream, of_file, printed, say, show};
use super::progress::Progress;
use super::symbols::Symbols;

/// Writes the snapshot of a statistics file, as a pickle and as JSON if a name
/// for it is given. Returns the exit status.
pub(super) fn report(targets: [Option<&Path>; 2], files: &[PathBuf]) -> u8 {
    let [file] = files else {
        say("a snapshot is made of one file");
        return USAGE;
    };
    write(targets, file, || {
        let progress = Progress::reading([&**file].into_iter());
        let read = match file.to_str() {
            Some("-") => progress.read_input(),
            _ => progress.read(file),
        };
        let bytes = read.map_err(|error| error.to_string())?;
        Made::of(&bytes, &mut Symbols::new())
    })
}

/// Writes what is made of a file, as a pickle and as JSON. Returns the exit status.
pub(super) fn write(
    targets: [Option<&Path>; 2],
    file: &Path,
    make: impl FnOnce() -> Result<Made, String>,
) -> u8 {
    let [pickle, json] = targets;
    if pickle.is_some_and(is_stream) && stdout().is_terminal() {
        say("a snapshot is no text: give it a name");
        return USAGE;
    }
    for (target, other) in [(pickle, Some(file)), (json, Some(file)), (json, pickle)] {
        if let (Some(target), Some(other)) = (target, other)
            && same(target, other)
        {
            let other = other.display();
            say(format_args!(
                "{other}: would be overwritten; give the snapshot another name"
            ));
            return USAGE;
        }
    }
    match make() {
        Ok(made) => written(targets, &made),
        Err(error) => {
            say(of_file(file, error));
            USAGE
        }
    }
}

fn written(targets: [Option<&Path>; 2], made: &Made) -> u8 {
    let mut names = Vec::new();
    for (target, contents) in targets.iter().zip([&*made.pickle, made.json.as_bytes()]) {
        let Some(target) = target else { continue };
        if is_stream(target) {
            let mut out = stdout().lock();
            match printed(out.write_all(contents).and_then(|()| out.flush())) {
                0 => continue,
                status => return status,
            }
        }
        if let Err(error) = write_whole(target, |out| out.write_all(contents)) {
            say(error);
            return NOT_WRITTEN;
        }
        names.push(target.display().to_string());
    }
    if names.is_empty() {
        return 0;
    }
    let summary = format!("{}: {}", names.join(" and "), made.summary);
    if targets.iter().flatten().any(|target| is_stream(target)) {
        say(summary);
        return 0;
    }
    show(&(summary + "\n"))
}

/// Whether two names are one file's.
pub(super) fn same(one: &Path, other: &Path) -> bool {
    match (fs::canonicalize(one), fs::canonicalize(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => one == other,
    }
}
