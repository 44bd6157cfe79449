//! `vramalloc report`: the statistics of a program, in words.
//!
//! A file may come from anywhere: the answer is a report or one line that says
//! what is wrong with it.

mod advice;
mod brief;
mod failed;
mod file;
mod holders;
mod meaning;
mod merge;
mod ooms;
mod owners;
mod page;
mod past;
mod spread;
mod summary;
mod table;
mod values;

use std::env;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::{Value, json};
use vramalloc_core::config::{self, Host, StatsTarget};

use super::gloss;
use super::html;
use super::lines::Lines;
use super::output::{USAGE, plain, say, show};
use super::progress::Progress;
use super::symbols::Symbols;
use super::units::{count, span};
use super::written::Files;
use brief::Brief;
use file::{Arena, File};
use merge::Named;

#[derive(clap::Args)]
#[command(after_help = "\
Without FILE it reads the newest file of statistics in the place where they go \
by default, or where VRAMALLOC_STATS says, and names it on standard error.")]
pub(crate) struct Arguments {
    /// Files that programs wrote (VRAMALLOC_STATS); - is standard input
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Show the report of an example, which needs no GPU
    #[arg(long, conflicts_with_all = ["files", "snapshot", "snapshot_json"])]
    example: bool,
    /// Also print the table of PyTorch's memory_summary(), and every count
    #[arg(long)]
    table: bool,
    /// Show the ranks of one job in one table
    #[arg(long, conflicts_with = "snapshot")]
    merge: bool,
    /// Print what the files say together as JSON
    #[arg(long, conflicts_with_all = ["merge", "table", "snapshot", "snapshot_json"])]
    json: bool,
    /// Write one page of HTML that shows them: over time, with who held memory when; of
    /// recordings (option record), of statistics what they tell, or of both; - is standard
    /// output
    #[arg(long, value_name = "HTML",
          conflicts_with_all = ["merge", "json", "table", "value", "snapshot", "snapshot_json"])]
    html: Option<PathBuf>,
    /// Write what FILE says of each block, and its events, as a snapshot that
    /// PyTorch's memory_viz opens
    #[arg(long, value_name = "PICKLE")]
    snapshot: Option<PathBuf>,
    /// Write the same as JSON
    #[arg(long, value_name = "JSON", conflicts_with = "merge")]
    snapshot_json: Option<PathBuf>,
    /// Print only this value, by its JSON pointer (/arenas/0/waits), `-` where
    /// there is none; may be given several times, and prints a line for each FILE
    #[arg(long, value_name = "POINTER",
          value_parser = values::pointer,
          conflicts_with_all = ["merge", "json", "table", "snapshot", "snapshot_json"])]
    value: Vec<String>,
    /// Show every place of a call stack, with those of allocators and of what
    /// lies between them and the program
    #[arg(long)]
    all_frames: bool,
}

/// The statistics of `examples/train.py`; `scripts/example` writes them.
const EXAMPLE: (&str, &[u8]) = (
    "examples/train.json",
    include_bytes!("../../../examples/train.json"),
);

/// A file's name and its contents, or why it could not be read.
pub(crate) type Read = (String, Result<Vec<u8>, String>);

/// Prints a report of each file, or one of all. Returns the exit status.
pub(crate) fn report(arguments: &Arguments) -> u8 {
    let newest = match arguments.files.as_slice() {
        [] if arguments.example => Ok(vec![EXAMPLE.0.into()]),
        [] => newest(),
        given => Ok(given.to_owned()),
    };
    let paths = match newest {
        Ok(paths) => paths,
        Err(error) => {
            say(error);
            return USAGE;
        }
    };
    if let Some(page) = &arguments.html {
        return page::report(page, &paths, arguments.all_frames);
    }
    let targets = [&arguments.snapshot, &arguments.snapshot_json].map(Option::as_deref);
    if targets != [None, None] {
        return super::snapshot::report(targets, &paths);
    }
    if arguments.example {
        say("an example: a small program in Python, on a simulated GPU");
    }
    let progress = Progress::reading(paths.iter().map(|path| &**path));
    let files = paths.iter().map(|path| {
        let read = match path.to_str() {
            _ if arguments.example => Ok(EXAMPLE.1.to_vec()),
            Some("-") => progress.read_input(),
            _ => progress.read(path),
        };
        let read = read.map_err(|error| error.to_string());
        (plain(&path.to_string_lossy()), read)
    });
    let (text, errors) = if arguments.merge {
        merged(files)
    } else if arguments.json {
        together(files)
    } else if !arguments.value.is_empty() {
        values::values(files, &arguments.value)
    } else {
        each(
            files,
            arguments.table,
            &mut Symbols::new(),
            arguments.all_frames,
        )
    };
    drop(progress);
    errors.iter().for_each(say);
    let status = if errors.is_empty() { 0 } else { USAGE };
    show(&text).max(status)
}

/// The newest file in the place where the library and `vramalloc run` put them.
fn newest() -> Result<Vec<PathBuf>, String> {
    let pattern = match config::load(env::vars_os(), Host::default()).settings.stats {
        StatsTarget::File(pattern) => pattern,
        target => return Err(format!("statistics go to {target} here; name a FILE")),
    };
    let Some((path, written)) = Files::now(&pattern).newest() else {
        return Err(format!(
            "no file of statistics here ({}); name a FILE",
            plain(&pattern)
        ));
    };
    let age = SystemTime::now()
        .duration_since(written)
        .unwrap_or_default();
    let age = span(u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
    say(format_args!("{}, written {age} ago", path.display()));
    Ok(vec![path])
}

/// The reports of the files that have one, and a line for each other file;
/// `whole`: with `PyTorch`'s table and every count; `shows_all`: with every place
/// of a call stack.
pub(crate) fn each(
    files: impl Iterator<Item = Read>,
    whole: bool,
    symbols: &mut Symbols,
    shows_all: bool,
) -> (String, Vec<String>) {
    let (mut files, errors) = read(files);
    let mut out = Lines::default();
    for (n, named) in files.iter_mut().enumerate() {
        if n > 0 {
            out.exact("");
        }
        named.file.find_names(symbols, shows_all);
        tell(&named.file, whole, &mut out);
    }
    holders::notes(&symbols.notes(), &mut out);
    gloss::explain(&mut out);
    (out.text, errors)
}

/// The ranks of one job in one table, and a line for each file that cannot be
/// read. If a file is of another job there is no table.
pub(crate) fn merged(files: impl Iterator<Item = Read>) -> (String, Vec<String>) {
    let (mut files, mut errors) = read(files);
    let text = merge::merged(&mut files).unwrap_or_else(|strangers| {
        errors.extend(strangers);
        String::new()
    });
    (text, errors)
}

/// What the files say, as JSON, and a line for each file that cannot be read.
pub(crate) fn together(files: impl Iterator<Item = Read>) -> (String, Vec<String>) {
    let (files, errors) = read(files);
    let processes = files.iter().map(|Named { name, file }| {
        let advice = file.arenas.iter().filter_map(|arena| {
            let advice = advice::as_json(file, arena, arena.memory.as_ref()?);
            Some(advice)
        });
        json!({
            "file": name,
            "process": Brief::new(file),
            "advice": advice.flatten().collect::<Vec<Value>>(),
        })
    });
    let processes: Vec<Value> = processes.collect();
    (format!("{:#}\n", json!({ "processes": processes })), errors)
}

/// What `vramalloc run --report` prints of the files that a run wrote, in eleven lines at
/// most; `ended`: how its program ended, and when, in ms. What is next is told of the process
/// that used most. `None` if nothing can be told of any.
pub(crate) fn in_short(
    paths: &[PathBuf],
    ended: (&str, u64),
    next: &dyn Fn(&Path) -> String,
    mut out: Lines,
) -> Option<String> {
    let progress = Progress::reading(paths.iter().map(|path| &**path));
    let files = paths.iter().filter_map(|path| {
        let file = File::read(&progress.read(path).ok()?).ok()?;
        Some((path, file.recording_file(), Brief::new(&file)))
    });
    let files: Vec<_> = files.collect();
    drop(progress);
    let (how, when) = ended;
    let (path, recording, most) = files.iter().max_by_key(|(.., brief)| brief.used())?;
    match files.as_slice() {
        [_] if most.devices.len() <= 1 => {
            out.heading(format_args!("vramalloc: {}, {how}", most.title()));
            match most.devices.first() {
                Some(device) => {
                    out.exact(format_args!("  {}", device.title(out.width - 2)));
                    device.facts(&most.ends(when), &mut out);
                }
                None => out.exact("  no device memory was allocated"),
            }
            out.exact(format_args!("  {:<16}{}", "statistics", path.display()));
        }
        _ => {
            const ROWS: usize = 3;
            let first = files.first().map(|(.., brief)| brief)?;
            out.heading(match files.len() {
                1 => format!("vramalloc: {}, {how}", first.title()),
                2 => format!("vramalloc: {} and 1 more process, {how}", first.program),
                n => format!(
                    "vramalloc: {} and {} more processes, {how}",
                    first.program,
                    n - 1
                ),
            });
            let briefs: Vec<&Brief> = files.iter().map(|(.., brief)| brief).collect();
            brief::rows(&briefs, ROWS, &mut out);
            let folder = path.parent().unwrap_or(Path::new(""));
            let count = count(files.len() as u64, "file");
            let place = format!("{count} in {}", folder.display());
            out.exact(format_args!("  {:<16}{place}", "statistics"));
        }
    }
    if let Some(recording) = recording {
        out.exact(format_args!("  {:<16}{}", "recording", plain(recording)));
    }
    out.exact(format_args!("  {:<16}{}", "next", next(path)));
    Some(out.text)
}

fn read(files: impl Iterator<Item = Read>) -> (Vec<Named>, Vec<String>) {
    let (mut named, mut errors) = (Vec::new(), Vec::new());
    for (name, read) in files {
        match read.and_then(|bytes| File::read(&bytes)) {
            Ok(file) => named.push(Named { name, file }),
            Err(error) => errors.push(format!("{name}: {error}")),
        }
    }
    (named, errors)
}

/// Everything about one process, the summary first.
fn tell(file: &File, whole: bool, out: &mut Lines) {
    summary::process(file, out);
    for device in file.devices() {
        owners::tell(file, device, out);
    }
    for (i, arena) in file.arenas.iter().enumerate() {
        let kind = |arena: &Arena| (arena.device, arena.lane, arena.region.clone());
        let same = |other: &&Arena| kind(other) == kind(arena);
        let alike = file.arenas.iter().filter(same).count();
        let which = 1 + file.arenas.iter().take(i).filter(same).count();
        out.exact("");
        if file.arenas.len() > 1 {
            summary::device(arena, (which, alike), out);
        }
        one(file, arena, whole, out);
    }
    past::tell(file, out);
    holders::tell(&file.stacks, out);
    for host in &file.hosts {
        out.exact("");
        summary::host(file, host, out);
    }
    if let Some(arena) = &file.pageable {
        out.exact("");
        out.heading("pageable host memory");
        summary::counts(file, arena, out);
    }
}

/// Everything about one arena.
fn one(file: &File, arena: &Arena, whole: bool, out: &mut Lines) {
    if let Some(memory) = &arena.memory {
        out.heading("what it means");
        meaning::meaning(file, arena, memory, out);
        out.heading("what held memory when the most was live");
        meaning::held(arena, out);
    } else {
        out.exact("  (written by a library that did not count as PyTorch does)");
    }
    failed::tell(file, arena, out);
    if let Some(memory) = &arena.memory {
        out.heading(html::ADVICE);
        advice::tell(file, arena, memory, out);
    }
    if whole {
        if let Some(memory) = &arena.memory {
            table::table(arena.device, memory, out);
        }
        out.heading("what was counted");
        summary::counts(file, arena, out);
    }
}
