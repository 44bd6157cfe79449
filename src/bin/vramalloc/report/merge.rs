//! The ranks of one job in one table.
//!
//! Files belong together if they are of the same program and the same library
//! and their processes ran at the same time. Any other file is an error that
//! names it: sums over different jobs mean nothing.

use std::collections::BTreeMap;

use super::super::gloss;
use super::super::grid::{Column, Grid};
use super::super::lines::Lines;
use super::super::output::plain;
use super::super::statistics::{Lifetime, most_together};
use super::super::units::{bytes, duration, share};
use super::failed;
use super::file::{Arena, File};
use super::past::{self, PastRow};

/// A file and its name.
pub(super) struct Named {
    pub(super) name: String,
    pub(super) file: File,
}

/// One row: an arena of a rank.
struct Row<'a> {
    named: &'a Named,
    /// The device, with the number of the context if it has several.
    device: String,
    values: [u64; FIGURES.len()],
}

/// A value of a rank: how it is read and written, and its name in the sentence
/// on the imbalance.
struct Figure {
    of: fn(&Arena) -> u64,
    written: fn(u64) -> String,
    told: &'static str,
    /// Contexts that were there one after the other do not add up.
    is_level: bool,
    /// If no rank reaches this value, differences do not matter.
    least: u64,
}

const FIGURES: [Figure; 6] = [
    Figure {
        of: |arena| arena.live.peak,
        written: bytes,
        told: "live memory at the peak",
        is_level: true,
        least: 64 << 20,
    },
    Figure {
        of: |arena| arena.reserved.peak,
        written: bytes,
        told: "reserved memory at the peak",
        is_level: true,
        least: 64 << 20,
    },
    Figure {
        of: |arena| arena.limbo.peak,
        written: bytes,
        told: "limbo at the peak",
        is_level: true,
        least: 64 << 20,
    },
    Figure {
        of: |arena| arena.ooms,
        written: |count| count.to_string(),
        told: "requests out of memory",
        is_level: false,
        least: 1,
    },
    Figure {
        of: |arena| arena.wait_ns,
        written: duration,
        told: "time in waits",
        is_level: false,
        least: 100_000_000,
    },
    Figure {
        of: |arena| arena.driver_ns(&[]),
        written: duration,
        told: "time in the driver",
        is_level: false,
        least: 100_000_000,
    },
];

/// The difference between ranks from which it is reported, in percent of the
/// largest.
const EVEN: u64 = 10;

/// The report on the ranks of a job.
///
/// # Errors
/// One line for each file that is not of the first file's job.
pub(super) fn merged(files: &mut [Named]) -> Result<String, Vec<String>> {
    one_job(files)?;
    files.sort_by_key(|named| (number(named).unwrap_or(u64::MAX), named.name.clone()));
    let mut out = Lines::default();
    let Some(Named { file, .. }) = files.first() else {
        return Ok(out.text);
    };
    let processes = match files.len() {
        1 => "1 process".to_owned(),
        n => format!("{n} processes"),
    };
    out.heading(format_args!(
        "{}: {processes} under vramalloc {}",
        file.program, file.version
    ));
    remarks(files, &mut out);
    let rows = rows(files);
    let past = files.iter().flat_map(|named| PastRow::of(&named.file));
    let past: Vec<PastRow<'_>> = past.collect();
    if rows.is_empty() && past.is_empty() {
        out.exact("  no device memory was allocated");
        return Ok(out.text);
    }
    if !rows.is_empty() {
        out.exact("");
        table(&rows, files, &mut out);
        out.exact("");
        first_to_fail(files, &mut out);
        imbalance(&rows, &mut out);
    }
    past::ranks(&past, &mut out);
    gloss::explain(&mut out);
    Ok(out.text)
}

/// Compares every file with the first.
fn one_job(files: &[Named]) -> Result<(), Vec<String>> {
    let Some((first, others)) = files.split_first() else {
        return Ok(());
    };
    // Process ids of one host are not unique if containers share its name.
    let process = |file: &File| (file.host.clone(), file.pid, file.started);
    let mut seen = BTreeMap::from([(process(&first.file), &first.name)]);
    let mut errors = Vec::new();
    for Named { name, file } in others {
        let (one, its) = (&first.file, &first.name);
        let wrong = if file.version != one.version {
            format!(
                "written by vramalloc {}, but {its} by {}",
                file.version, one.version
            )
        } else if file.program != one.program {
            format!(
                "of another job: it is of {}, and {its} of {}",
                file.program, one.program
            )
        } else if file.started > one.ended || one.started > file.ended {
            format!("of another job: it did not run at the same time as {its}")
        } else if let Some(same) = seen.insert(process(file), name) {
            format!("of the same process as {same}")
        } else {
            continue;
        };
        errors.push(plain(&format!("{name}: {wrong}")));
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(errors)
    }
}

/// The rank, if it is a number, as launchers give it.
fn number(named: &Named) -> Option<u64> {
    named.file.rank.parse().ok()
}

/// Notes files that are not complete, ranks without a file, and ranks with
/// several.
fn remarks(files: &[Named], out: &mut Lines) {
    for Named { name, file } in files.iter().filter(|named| !named.file.last) {
        out.item(format_args!(
            "rank {}: {name} was taken while it ran, not at its end",
            file.rank
        ));
    }
    let mut processes: BTreeMap<u64, usize> = BTreeMap::new();
    for rank in files.iter().filter_map(number) {
        *processes.entry(rank).or_default() += 1;
    }
    let mut next = 0;
    let mut missing = Vec::new();
    for (&rank, &count) in &processes {
        match rank.saturating_sub(next) {
            0 => {}
            1 => missing.push(format!("rank {next}")),
            _ => missing.push(format!("ranks {next} to {}", rank - 1)),
        }
        next = rank.saturating_add(1);
        if count > 1 {
            out.item(format_args!("rank {rank}: {count} processes"));
        }
    }
    if !missing.is_empty() {
        out.item(format_args!("no file of {}", missing.join(", ")));
    }
}

fn rows(files: &[Named]) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    for named in files {
        let arenas = &named.file.arenas;
        for (i, arena) in arenas.iter().enumerate() {
            let same = |other: &&Arena| other.device == arena.device;
            let device = match arenas.iter().filter(same).count() {
                1 => arena.device.to_string(),
                _ => {
                    let before = arenas.iter().take(i).filter(same).count();
                    format!("{}.{}", arena.device, before + 1)
                }
            };
            let values =
                std::array::from_fn(|at| FIGURES.get(at).map_or(0, |figure| (figure.of)(arena)));
            rows.push(Row {
                named,
                device,
                values,
            });
        }
    }
    rows
}

const TABLE: [Column; 3 + FIGURES.len()] = [
    Column::number("rank"),
    Column::text("host").spare(3),
    Column::number("dev"),
    Column::number("peak live"),
    Column::number("reserved"),
    Column::number("limbo").spare(4),
    Column::number("ooms"),
    Column::number("waits").spare(1),
    Column::number("driver").spare(2),
];

fn table(rows: &[Row<'_>], files: &[Named], out: &mut Lines) {
    let mut grid = Grid::new(&TABLE);
    let mut line = |first: [&str; 3], values: [u64; FIGURES.len()]| {
        let written = FIGURES.iter().zip(values);
        let written = written.map(|(figure, value)| (figure.written)(value));
        grid.row(first.map(str::to_owned).into_iter().chain(written));
    };
    for row in rows {
        let file = &row.named.file;
        line([&file.rank, &file.host, &row.device], row.values);
    }
    let all = |start: u64, combine: fn(u64, u64) -> u64| {
        rows.iter().fold([start; FIGURES.len()], |mut all, row| {
            for (one, &value) in all.iter_mut().zip(&row.values) {
                *one = combine(*one, value);
            }
            all
        })
    };
    line(
        ["sum", "", ""],
        FIGURES.each_ref().map(|figure| sum(files, figure)),
    );
    line(["max", "", ""], all(0, u64::max));
    line(["min", "", ""], all(u64::MAX, u64::min));
    grid.write(0, out);
}

/// A figure of all ranks together.
fn sum(files: &[Named], figure: &Figure) -> u64 {
    let devices = files.iter().flat_map(|Named { file, .. }| {
        let of = |device| {
            file.arenas
                .iter()
                .filter(move |arena| arena.device == device)
        };
        file.devices().map(move |device| of(device).collect())
    });
    let sums = devices.map(|arenas: Vec<&Arena>| {
        if !figure.is_level {
            let values = arenas.iter().map(|arena| (figure.of)(arena));
            return values.fold(0, u64::saturating_add);
        }
        let lifetimes: Vec<Lifetime> = arenas.iter().map(|arena| arena.lifetime()).collect();
        most_together(&lifetimes, |at| (figure.of)(arenas[at])).0
    });
    sums.fold(0, u64::saturating_add)
}

/// The rank of a row, and if it has several rows what distinguishes this one.
fn who(row: &Row<'_>, rows: &[Row<'_>]) -> String {
    let file = &row.named.file;
    let of_rank = rows.iter().filter(|row| row.named.file.rank == file.rank);
    if of_rank.count() == 1 {
        return format!("rank {}", file.rank);
    }
    let (rank, pid, host, device) = (&file.rank, file.pid, &file.host, &row.device);
    format!("rank {rank} (process {pid} on {host}, device {device})")
}

/// Where memory was short first: the others often fail because of that.
fn first_to_fail(files: &[Named], out: &mut Lines) {
    let first = files.iter().flat_map(|named| {
        let arenas = named.file.arenas.iter();
        arenas.filter_map(move |arena| Some((named, arena.oom_events.first()?)))
    });
    if let Some((Named { name, file }, oom)) = first.min_by_key(|(_, oom)| oom.time_us) {
        out.item(format_args!(
            "The first request that failed for want of memory was of rank {}: {}, {} after its \
             start. The report of {name} says what stood in the way.",
            file.rank,
            bytes(oom.request),
            duration(failed::after_ns(file, oom)),
        ));
    }
}

/// How far the ranks differ, in words.
fn imbalance(rows: &[Row<'_>], out: &mut Lines) {
    let mut even = Vec::new();
    for (at, figure) in FIGURES.iter().enumerate() {
        let value = |row: &&Row<'_>| row.values.get(at).copied().unwrap_or(0);
        let (Some(most), Some(least)) = (
            // The first of several.
            rows.iter().rev().max_by_key(value),
            rows.iter().min_by_key(value),
        ) else {
            return;
        };
        let (high, low) = (value(&most), value(&least));
        if high < figure.least {
            continue;
        }
        if (high - low).saturating_mul(100) <= high.saturating_mul(EVEN) {
            even.push(figure.told);
            continue;
        }
        out.item(format_args!(
            "{}: {} has most ({}) and {} least ({}), {} less.",
            figure.told,
            who(most, rows),
            (figure.written)(high),
            who(least, rows),
            (figure.written)(low),
            share(high - low, high),
        ));
    }
    if rows.len() > 1 && !even.is_empty() {
        out.item(format_args!(
            "Within {EVEN} % of each other: {}.",
            even.join(", ")
        ));
    }
}
