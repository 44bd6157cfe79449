//! `vramalloc report --snapshot`: what a program held, block by block, and its
//! newest events, in the form of `PyTorch`'s memory snapshots.
//!
//! Two files of one structure: a pickle, which `PyTorch`'s page memory_viz and
//! its `_memory_viz.py` open, and the same as JSON. Invariant: whatever the
//! statistics hold, what is written keeps to the rules that these tools rely
//! on; what would not is left out and counted. Each file is replaced as a whole
//! or not at all.

mod json;
mod made;
mod pickle;
mod read;
mod replay;
mod shape;

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

use vramalloc::stats::write_whole;

use self::made::Made;
use super::{USAGE, say, show};

/// Writes the snapshot of a statistics file and answers with the exit status.
pub(super) fn report(target: &Path, files: &[PathBuf]) -> u8 {
    let [file] = files else {
        say("a snapshot is made of one file");
        return USAGE;
    };
    match prepared(target, file) {
        Ok((beside, made)) => written(target, &beside, &made),
        Err(error) => {
            say(error);
            USAGE
        }
    }
}

fn prepared(target: &Path, file: &Path) -> Result<(PathBuf, Made), String> {
    let beside = beside(target, file)?;
    let named = |error: &dyn Display| format!("{}: {error}", file.display());
    let bytes = fs::read(file).map_err(|error| named(&error))?;
    let made = Made::of(&bytes).map_err(|error| named(&error))?;
    Ok((beside, made))
}

fn written(target: &Path, beside: &Path, made: &Made) -> u8 {
    let result = write_whole(target, |out| out.write_all(&made.pickle))
        .and_then(|()| write_whole(beside, |out| out.write_all(made.json.as_bytes())));
    if let Err(error) = result {
        say(error);
        return 1;
    }
    show(&format!(
        "{} and {}: {}\n",
        target.display(),
        beside.display(),
        made.summary
    ))
}

/// The JSON file beside the pickle; nothing may be overwritten by it that is
/// not of its kind.
fn beside(target: &Path, file: &Path) -> Result<PathBuf, String> {
    let beside = target.with_extension("json");
    let same = |path: &Path| match (fs::canonicalize(path), fs::canonicalize(file)) {
        (Ok(path), Ok(file)) => path == file,
        _ => path == file,
    };
    for path in [target, &beside] {
        if same(path) {
            return Err(format!(
                "{}: would be overwritten; give the snapshot another name",
                path.display()
            ));
        }
    }
    if beside == target {
        return Err(format!(
            "{}: the JSON beside the pickle would have the same name; call it .pickle",
            target.display()
        ));
    }
    Ok(beside)
}
