//! The parsers of files that others may have written, for the tests that give
//! them any input.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::Cursor;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::doctor::{cache, image, loader, preloads, program};
use crate::export::{Format, in_form};
use crate::input::Input;
use crate::screen::HEADING;
use crate::snapshot::made;
use crate::stacks::At;
use crate::symbols::{self, Symbols};
use crate::{library, output, recording, replay, report, written};

/// A text without characters that are not seen.
#[must_use]
pub fn plain(text: &str) -> String {
    output::plain(text)
}

/// How the files of a report are told.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// One after the other.
    Each,
    /// As the ranks of one job.
    Merged,
    /// As JSON.
    Json,
}

/// The output and the complaints of `vramalloc report` for these files, without
/// its own colours.
#[must_use]
pub fn report(files: &[&[u8]], form: Form) -> (String, Vec<String>) {
    let files = files.iter().enumerate();
    let files = files.map(|(n, data)| (format!("{n}.json"), Ok(data.to_vec())));
    let (text, errors) = match form {
        Form::Each => report::each(files, true, &mut Symbols::none(), false),
        Form::Merged => report::merged(files),
        Form::Json => report::together(files),
    };
    (uncoloured(&text), errors)
}

/// A text without our own colours.
fn uncoloured(text: &str) -> String {
    let (begins, ends) = (HEADING.render(), HEADING.render_reset());
    let text = text.replace(&begins.to_string(), "");
    text.replace(&ends.to_string(), "")
}

/// A snapshot as `vramalloc report` writes it for PyTorch's viewer.
pub struct SnapshotFiles {
    /// As a pickle.
    pub pickle: Vec<u8>,
    /// As JSON.
    pub json: String,
    /// The summary line.
    pub summary: String,
}

/// The snapshot in a file of statistics.
///
/// # Errors
/// What is wrong with the file.
pub fn snapshot(data: &[u8]) -> Result<SnapshotFiles, String> {
    made::Made::of(data, &mut Symbols::none()).map(|made| SnapshotFiles {
        pickle: made.pickle,
        json: made.json,
        summary: made.summary,
    })
}

/// What a recording, or a snapshot of PyTorch's, is as a tape: how many blocks it has.
///
/// # Errors
/// What is wrong with the file.
pub fn tape(data: &[u8]) -> Result<u32, String> {
    replay::tape_of(Cursor::new(data)).map(|tape| tape.blocks)
}

/// What `vramalloc recording` makes of a file.
pub struct RecordingTexts {
    /// The summary, without its own colours.
    pub summary: String,
    /// Each event as a line of JSON.
    pub json_lines: String,
    /// Each event as a line of CSV.
    pub csv: String,
    /// The snapshot around the peak, of at most 1000 events.
    pub snapshot: Result<SnapshotFiles, String>,
    /// Folded stacks of the peak, as `vramalloc export` writes them.
    pub folded: Result<Vec<u8>, String>,
    /// A Chrome trace, also.
    pub trace: Result<Vec<u8>, String>,
}

/// A recording.
///
/// # Errors
/// What is wrong with the file.
pub fn recording(data: &[u8]) -> Result<RecordingTexts, String> {
    let lines = |form| {
        let mut out = Vec::new();
        let written = recording::dumped(Cursor::new(data), form, &mut out)?;
        written.map_err(|error| error.to_string())?;
        Ok::<_, String>(String::from_utf8_lossy(&out).into_owned())
    };
    let exported = |format| {
        let input = Input::Recording(Cursor::new(data));
        in_form(input, format, (At::Peak, false), &mut Symbols::none())
    };
    let snapshot = recording::snapshot(Cursor::new(data), 1000, &mut Symbols::none());
    Ok(RecordingTexts {
        summary: uncoloured(&recording::summary(Cursor::new(data), "file")?),
        json_lines: lines(recording::DumpForm::JsonLines)?,
        csv: lines(recording::DumpForm::Csv)?,
        snapshot: snapshot.map(|made| SnapshotFiles {
            pickle: made.pickle,
            json: made.json,
            summary: made.summary,
        }),
        folded: exported(Format::Folded),
        trace: exported(Format::Perfetto),
    })
}

/// The functions around some addresses of an ELF file, as they are shown.
///
/// # Errors
/// What is wrong with the file.
pub fn functions(data: &[u8], addresses: &[u64]) -> Result<Vec<Option<String>>, String> {
    let tables = symbols::tables::read(&mut Cursor::new(data), addresses)?;
    let named = tables.around.into_iter();
    Ok(named
        .map(|one| one.map(|one| one.name.to_string()))
        .collect())
}

/// The name that a mangled one stands for, and the same in short.
#[must_use]
pub fn function(mangled: &[u8]) -> (String, String) {
    let name = symbols::demangled(mangled);
    let brief = symbols::brief(&name).into_owned();
    (name, brief)
}

/// Whether a file of the cache of functions' names can be read.
#[must_use]
pub fn kept_names(data: &[u8]) -> bool {
    symbols::cache::Known::parse(data).is_some()
}

/// Whether a pattern of the option `stats` can have given a file this name.
#[must_use]
pub fn fits(pattern: &str, name: &str, pid: Option<&str>) -> bool {
    written::fits(pattern, name, pid)
}

/// The machine that an ELF file is for, and its exports.
///
/// # Errors
/// What is wrong with the file.
pub fn image(data: &[u8]) -> Result<(String, BTreeSet<String>), String> {
    let image = image::Image::read(&mut Cursor::new(data))?;
    Ok((image.machine.name(), image.exports))
}

/// The files of a library's name in a cache of the loader.
#[must_use]
pub fn cached(data: &[u8], name: &str) -> Vec<PathBuf> {
    let cache = cache::Cache::new(data);
    cache.files(OsStr::new(name)).collect()
}

/// The names in a list of libraries to preload, read as a process's list and as
/// the machine-wide list.
#[must_use]
pub fn preloads(data: &[u8]) -> Vec<OsString> {
    let names = library::names(data);
    names.chain(preloads::machine_wide(data)).collect()
}

/// The interpreter that a script names.
#[must_use]
pub fn interpreter(data: &[u8]) -> Option<OsString> {
    program::interpreter(data)
}

/// The directories of a search path in a file that lies in `origin`.
#[must_use]
pub fn directories(data: &[u8], origin: &Path) -> Vec<PathBuf> {
    loader::directories(OsStr::from_bytes(data), origin)
}
