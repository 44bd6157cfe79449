//! `vramalloc report`: the statistics of a program, in words.
//!
//! A file may come from anywhere: the answer is a report or one line that says
//! what is wrong with it.

mod advice;
mod failed;
mod file;
mod holders;
mod meaning;
mod merge;
mod ooms;
mod past;
mod summary;
mod table;
mod values;

use std::fs;
use std::path::PathBuf;

use super::lines::Lines;
use super::output::{USAGE, plain, say, show};
use super::symbols::Symbols;
use file::{Arena, File};
use merge::Named;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Files that programs wrote (VRAMALLOC_STATS)
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Show the ranks of one job in one table
    #[arg(long, conflicts_with = "snapshot")]
    merge: bool,
    /// Write what FILE says of each block, and its events, as a snapshot that
    /// PyTorch's memory_viz opens
    #[arg(long, value_name = "PICKLE")]
    snapshot: Option<PathBuf>,
    /// Write the same as JSON
    #[arg(long, value_name = "JSON", conflicts_with = "merge")]
    snapshot_json: Option<PathBuf>,
    /// Print only this value, by its JSON pointer (/arenas/0/waits), `-` where
    /// there is none; may be given several times, and prints a line for each FILE
    #[arg(long, value_name = "POINTER", conflicts_with_all = ["merge", "snapshot", "snapshot_json"])]
    value: Vec<String>,
    /// Show every place of a call stack, with those of allocators and of what
    /// lies between them and the program
    #[arg(long)]
    all_frames: bool,
}

/// A file's name and its contents, or why it could not be read.
pub(crate) type Read = (String, Result<Vec<u8>, String>);

/// Prints a report of each file, or one of all. Returns the exit status.
pub(crate) fn report(arguments: &Arguments) -> u8 {
    let targets = [&arguments.snapshot, &arguments.snapshot_json].map(Option::as_deref);
    if targets != [None, None] {
        return super::snapshot::report(targets, &arguments.files);
    }
    let files = arguments.files.iter().map(|path| {
        let read = fs::read(path).map_err(|error| error.to_string());
        (plain(&path.to_string_lossy()), read)
    });
    let (text, errors) = if arguments.merge {
        merged(files)
    } else if !arguments.value.is_empty() {
        values::values(files, &arguments.value)
    } else {
        each(files, &mut Symbols::new(), arguments.all_frames)
    };
    errors.iter().for_each(say);
    let status = if errors.is_empty() { 0 } else { USAGE };
    show(&text).max(status)
}

/// The reports of the files that have one, and a line for each other file.
pub(crate) fn each(
    files: impl Iterator<Item = Read>,
    symbols: &mut Symbols,
    shows_all: bool,
) -> (String, Vec<String>) {
    let (mut files, errors) = read(files);
    for named in &mut files {
        named.file.find_names(symbols, shows_all);
    }
    let reports: Vec<String> = files.iter().map(|named| whole(&named.file)).collect();
    let mut text = reports.join("\n");
    text += &holders::notes(&symbols.notes());
    (text, errors)
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

/// Everything about one process.
fn whole(file: &File) -> String {
    let mut out = Lines::default();
    summary::process(file, &mut out);
    for (i, arena) in file.arenas.iter().enumerate() {
        let same = |other: &&Arena| (other.device, other.lane) == (arena.device, arena.lane);
        let alike = file.arenas.iter().filter(same).count();
        let which = 1 + file.arenas.iter().take(i).filter(same).count();
        out.exact("");
        summary::device(arena, (which, alike), &mut out);
        one(file, arena, &mut out);
    }
    past::tell(file, &mut out);
    holders::tell(&file.stacks, &mut out);
    for host in &file.hosts {
        out.exact("");
        summary::host(host, &mut out);
    }
    if let Some(arena) = &file.pageable {
        out.exact("");
        out.exact("pageable host memory");
        summary::counts(arena, &mut out);
    }
    out.text
}

/// Everything about one arena.
fn one(file: &File, arena: &Arena, out: &mut Lines) {
    if let Some(memory) = &arena.memory {
        table::table(arena.device, memory, out);
        out.exact("what it means");
        meaning::meaning(file, arena, memory, out);
        out.exact("what held memory when the most was live");
        meaning::held(arena, out);
    } else {
        out.exact("  (written by a library that did not count as PyTorch does)");
    }
    failed::tell(file, arena, out);
    if let Some(memory) = &arena.memory {
        out.exact("what would have helped");
        advice::tell(file, arena, memory, out);
    }
    out.exact("what was counted");
    summary::counts(arena, out);
}
