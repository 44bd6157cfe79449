//! `vramalloc recording`: what the option `record` wrote, in words, line by line or as
//! a snapshot around the peak; and what other subcommands read of it.
//!
//! A file may come from anywhere, and be cut off anywhere: what can be read of it is
//! told, and what cannot. Cost: one pass over the file, for a snapshot two; in memory
//! are what is live at a time and the events of the window.

mod books;
mod callers;
mod dump;
mod history;
mod layout;
mod levels;
mod summary;
mod window;

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};

use clap::ArgGroup;
use serde_json::Value;
use vramalloc_core::recording::RecordReader;

use super::html::model::{PageRoom, ProcessShown};
use super::output::{USAGE, of_file, plain, printed, say, show};
use super::progress::Progress;
use super::snapshot::made::Made;
use super::snapshot::steps::Steps;
use super::symbols::Symbols;
pub(crate) use books::DEVICE;
pub(crate) use dump::DumpForm;

/// How many events a snapshot has if nothing else is said.
pub(crate) const EVENTS: u32 = 100_000;

/// What is said below the help.
const WHEN: &str = "\
A program that runs with the option record writes such a file:

  vramalloc run --option record=%e.%p.rec -- python train.py
  vramalloc recording python3.12.4711.rec

A recording that is cut off, or whose program was killed, is read up to its last \
whole event. docs/recording.md says what the lines mean.";

#[derive(clap::Args)]
#[command(after_help = WHEN, group = ArgGroup::new("snapshots").multiple(true))]
pub(crate) struct Arguments {
    /// The recording
    file: PathBuf,
    /// Print each event as a line of JSON
    #[arg(long, conflicts_with_all = ["csv", "snapshots"])]
    json_lines: bool,
    /// Print each event as a line of CSV
    #[arg(long, conflicts_with = "snapshots")]
    csv: bool,
    /// Write what was held around the peak, and the events that led there and away, as a
    /// snapshot that PyTorch's memory_viz opens
    #[arg(long, value_name = "PICKLE", group = "snapshots")]
    snapshot: Option<PathBuf>,
    /// Write the same as JSON
    #[arg(long, value_name = "JSON", group = "snapshots")]
    snapshot_json: Option<PathBuf>,
    /// How many events the snapshot has at the most
    #[arg(long, default_value_t = EVENTS, requires = "snapshots")]
    events: u32,
}

/// Tells of a recording. Returns the exit status.
pub(crate) fn recording(arguments: &Arguments) -> u8 {
    let Arguments {
        file,
        snapshot: pickle,
        snapshot_json: json,
        ..
    } = arguments;
    if pickle.is_some() || json.is_some() {
        return super::snapshot::write([pickle, json].map(Option::as_deref), file, || {
            let (_progress, read) = opened(file)?;
            let most = arguments.events.max(1) as usize;
            snapshot(read, most, &mut Symbols::new())
        });
    }
    let told = match (arguments.json_lines, arguments.csv) {
        (true, _) => lines(file, DumpForm::JsonLines),
        (_, true) => lines(file, DumpForm::Csv),
        _ => told(file),
    };
    told.unwrap_or_else(|error| {
        say(of_file(file, error));
        USAGE
    })
}

/// A recording, and the bar that shows how much of it was read.
fn opened(path: &Path) -> Result<(Progress, impl Read + Seek), String> {
    let progress = Progress::reading([path].into_iter());
    let file = progress.open(path).map_err(|error| error.to_string())?;
    Ok((progress, file))
}

fn told(file: &Path) -> Result<u8, String> {
    let (progress, read) = opened(file)?;
    let text = summary(read, &plain(&file.to_string_lossy()))?;
    drop(progress);
    Ok(show(&text))
}

/// Without a bar, which would stand between the lines.
fn lines(file: &Path, form: DumpForm) -> Result<u8, String> {
    let file = File::open(file).map_err(|error| error.to_string())?;
    let mut out = BufWriter::new(io::stdout().lock());
    let ended = dumped(file, form, &mut out)?;
    Ok(printed(ended.and_then(|()| out.flush())))
}

/// The summary of a recording of this name.
///
/// # Errors
/// What is wrong with the file.
pub(crate) fn summary<R: Read + Seek>(file: R, name: &str) -> Result<String, String> {
    let mut reader = RecordReader::open(file).map_err(|error| error.to_string())?;
    let mut books = books::Books::default();
    while let Some(entry) = reader.next_entry().map_err(|error| error.to_string())? {
        books.enter(&entry);
    }
    Ok(summary::lines(name, &reader, &books).text)
}

/// Writes each event as a line; inside, what `out` answered.
///
/// # Errors
/// What is wrong with the file.
pub(crate) fn dumped<R: Read + Seek>(
    file: R,
    form: DumpForm,
    out: &mut impl Write,
) -> Result<io::Result<()>, String> {
    let mut reader = RecordReader::open(file).map_err(|error| error.to_string())?;
    if let Err(error) = dump::head(form, out) {
        return Ok(Err(error));
    }
    while let Some(entry) = reader.next_entry().map_err(|error| error.to_string())? {
        if let Err(error) = dump::line(form, &entry, out) {
            return Ok(Err(error));
        }
    }
    Ok(Ok(()))
}

/// The snapshot around the peak, with so many events.
///
/// # Errors
/// What is wrong with the file.
pub(crate) fn snapshot<R: Read + Seek>(
    file: R,
    events: usize,
    symbols: &mut Symbols,
) -> Result<Made, String> {
    let statistics = window::statistics(file, events)?;
    Made::of(statistics.to_string().as_bytes(), symbols)
}

/// Who held device memory, and how much, in the form of statistics.
///
/// # Errors
/// What is wrong with the file.
pub(crate) fn statistics<R: Read + Seek>(file: R) -> Result<Value, String> {
    callers::statistics(file)
}

/// What the page of `vramalloc report --html` shows of a recording of this name; names
/// are found by `symbols`, and all places of call stacks shown or those that say who
/// asked.
///
/// # Errors
/// What is wrong with the file.
pub(crate) fn process<R: Read + Seek>(
    file: R,
    name: &str,
    room: PageRoom,
    named: (&mut Symbols, bool),
) -> Result<ProcessShown, String> {
    history::process(file, name, room, named)
}

/// How much each device held over time.
///
/// # Errors
/// What is wrong with the file, or that it has no events.
pub(crate) fn steps<R: Read + Seek>(file: R) -> Result<Steps, String> {
    levels::steps(file)
}
