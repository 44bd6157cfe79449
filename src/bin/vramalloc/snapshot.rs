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

use std::io::{IsTerminal, stdout};
use std::path::{Path, PathBuf};

use self::made::Made;
use super::output::{USAGE, is_stream, of_file, say, show};
use super::progress::Progress;
use super::symbols::Symbols;
use super::target;

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
    let both = [pickle, json].into_iter().flatten();
    let mut checked = both.map(|target| target::check(target, [file], "the snapshot"));
    let twice = || match (json, pickle) {
        (Some(json), Some(pickle)) => target::check(json, [pickle], "the snapshot"),
        _ => Ok(()),
    };
    if let Err(error) = checked
        .try_for_each(|checked| checked)
        .and_then(|()| twice())
    {
        say(error);
        return USAGE;
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
        match target::write(target, contents) {
            0 if is_stream(target) => {}
            0 => names.push(target.display().to_string()),
            status => return status,
        }
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
