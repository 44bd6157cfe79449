//! `vramalloc recording`: what the option `record` wrote, in words, line by line or as
//! a snapshot around the peak.
//!
//! A file may come from anywhere, and be cut off anywhere: what can be read of it is
//! told, and what cannot. Cost: one pass over the file, for a snapshot two; in memory
//! are what is live at a time and the events of the window.

mod books;
mod dump;
mod summary;
pub(crate) mod window;

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};

use vramalloc_core::recording::RecordReader;
use vramalloc_core::stats::write_whole;

use super::output::{USAGE, plain, say, show};
use super::snapshot::made::Made;
use super::symbols::Symbols;
pub(crate) use dump::DumpForm;

/// What is said below the help.
const WHEN: &str = "\
A program that runs with the option record writes such a file:

  vramalloc run --option record=%e.%p.rec -- python train.py
  vramalloc recording python3.42.rec

A recording that is cut off, or whose program was killed, is read up to its last
whole event. docs/recording.md says what the lines mean.";

#[derive(clap::Args)]
#[command(after_help = WHEN)]
pub(crate) struct Arguments {
    /// The recording
    file: PathBuf,
    /// Print each event as a line of JSON
    #[arg(long, conflicts_with_all = ["csv", "snapshot"])]
    json_lines: bool,
    /// Print each event as a line of CSV
    #[arg(long, conflicts_with = "snapshot")]
    csv: bool,
    /// Write what was held around the peak, and the events that led there and away, as a
    /// snapshot that PyTorch's memory_viz opens
    #[arg(long, value_name = "PICKLE")]
    snapshot: Option<PathBuf>,
    /// Write the same as JSON
    #[arg(long, value_name = "JSON", requires = "snapshot")]
    snapshot_json: Option<PathBuf>,
    /// How many events the snapshot has at the most
    #[arg(long, default_value_t = 100_000, requires = "snapshot")]
    events: u32,
}

/// Tells of a recording. Returns the exit status.
pub(crate) fn recording(arguments: &Arguments) -> u8 {
    match told(arguments) {
        Ok(status) => status,
        Err(error) => {
            say(format_args!("{}: {error}", arguments.file.display()));
            USAGE
        }
    }
}

fn told(arguments: &Arguments) -> Result<u8, String> {
    let name = plain(&arguments.file.to_string_lossy());
    let file = File::open(&arguments.file).map_err(|error| error.to_string())?;
    let form = if arguments.json_lines {
        Some(DumpForm::JsonLines)
    } else {
        arguments.csv.then_some(DumpForm::Csv)
    };
    if let Some(form) = form {
        let mut out = BufWriter::new(io::stdout().lock());
        let ended = dumped(file, form, &mut out)?;
        return Ok(match ended.and_then(|()| out.flush()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                say(format_args!("standard output: {error}"));
                1
            }
            _ => 0,
        });
    }
    match &arguments.snapshot {
        Some(pickle) => {
            let json = arguments.snapshot_json.as_deref();
            let most = arguments.events.max(1) as usize;
            let made = snapshot(file, most, &mut Symbols::new())?;
            written(pickle, json, &made)
        }
        None => Ok(show(&summary(file, &name)?)),
    }
}

fn written(pickle: &Path, json: Option<&Path>, made: &Made) -> Result<u8, String> {
    let both = [
        Some((pickle, &*made.pickle)),
        json.map(|at| (at, made.json.as_bytes())),
    ];
    for (path, bytes) in both.into_iter().flatten() {
        write_whole(path, |out| out.write_all(bytes)).map_err(|error| error.to_string())?;
    }
    Ok(show(&format!(
        "{}: {}\n",
        plain(&pickle.to_string_lossy()),
        made.summary
    )))
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
    Ok(summary::text(name, &reader, &books))
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
