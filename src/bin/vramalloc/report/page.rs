//! `vramalloc report --html`: the page of some statistics and recordings.
//!
//! Statistics and a recording of one process are shown as one: the statistics say what
//! its numbers mean and what would have helped, the recording what it held over time.

mod shown;

use std::io::{self, Cursor, Read, Seek};
use std::path::{Path, PathBuf};

use super::super::html::{self, model};
use super::super::input::Input;
use super::super::output::{USAGE, is_stream, of_file, plain, say, show};
use super::super::progress::Progress;
use super::super::recording;
use super::super::symbols::Symbols;
use super::super::target;
use super::super::units::{bytes, count};
use model::{PageRoom, PageShown, ProcessShown};

/// More processes than a page can show.
const MOST_FILES: usize = 256;

/// Writes the page. Returns the exit status.
pub(super) fn report(target: &Path, files: &[PathBuf], shows_all: bool) -> u8 {
    if let Err(error) = target::check(target, files.iter().map(|path| &**path), "the page") {
        say(error);
        return USAGE;
    }
    if files.len() > MOST_FILES {
        say(format_args!("a page shows at most {MOST_FILES} files"));
        return USAGE;
    }
    let mut symbols = Symbols::new();
    let room = PageRoom::of_each(files.len());
    let mut processes = Vec::new();
    let mut failed = 0;
    let progress = Progress::reading(files.iter().map(|path| &**path));
    for path in files {
        match one(path, &progress, room, (&mut symbols, shows_all)) {
            Ok(process) => processes.push(process),
            Err(error) => {
                say(of_file(path, error));
                failed += 1;
            }
        }
    }
    drop(progress);
    symbols.notes().iter().for_each(say);
    if processes.is_empty() {
        return USAGE;
    }
    let page = html::text(&PageShown {
        version: env!("CARGO_PKG_VERSION"),
        processes: joined(processes),
    });
    let status = if failed > 0 { USAGE } else { 0 };
    let written = target::write(target, page.as_bytes());
    if written > 0 || is_stream(target) {
        return written.max(status);
    }
    let shown = count((files.len() - failed) as u64, "file");
    let size = bytes(page.len() as u64);
    show(&format!("{}: {shown} in {size}\n", target.display())).max(status)
}

/// What the page shows of a file.
fn one(
    path: &Path,
    progress: &Progress,
    room: PageRoom,
    names: (&mut Symbols, bool),
) -> Result<ProcessShown, String> {
    let name = plain(&path.to_string_lossy());
    if path.to_str() == Some("-") {
        let bytes = progress.read_input().map_err(|error| error.to_string())?;
        return of_input(Input::of(Cursor::new(bytes)), &name, room, names);
    }
    of_input(progress.open(path).and_then(Input::of), &name, room, names)
}

/// What it shows of statistics or a recording of this name.
///
/// # Errors
/// What is wrong with the file.
pub(super) fn of_input<R: Read + Seek>(
    input: io::Result<Input<R>>,
    name: &str,
    room: PageRoom,
    names: (&mut Symbols, bool),
) -> Result<ProcessShown, String> {
    match input.map_err(|error| error.to_string())? {
        Input::Statistics(bytes) => shown::process(&bytes, name, room, names),
        Input::Recording(file) => recording::process(file, name, room, names),
    }
}

/// Statistics and a recording of one process as one.
fn joined(processes: Vec<ProcessShown>) -> Vec<ProcessShown> {
    let mut joined: Vec<ProcessShown> = Vec::new();
    for process in processes {
        let fits = |other: &&mut ProcessShown| {
            other.is_recorded != process.is_recorded
                && other.files.len() == 1
                && other.identity == process.identity
        };
        match joined.iter_mut().find(fits) {
            Some(other) if process.is_recorded => {
                let statistics = std::mem::replace(other, process);
                other.join(statistics);
            }
            Some(other) => other.join(process),
            None => joined.push(process),
        }
    }
    joined
}
