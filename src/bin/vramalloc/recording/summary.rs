//! A recording in some lines.

use std::collections::BTreeMap;

use serde::Deserialize;
use vramalloc_core::recording::{RecordReader, Standing};

use super::books::{Books, Sum, Where};
use crate::lines::Lines;
use crate::statistics::Setting;
use crate::units;

/// What is read of the object that a recording begins with.
#[derive(Default, Deserialize)]
pub(super) struct Of {
    #[serde(default)]
    pub(super) program: String,
    #[serde(default)]
    pub(super) pid: u64,
    #[serde(default)]
    pub(super) host: String,
    #[serde(default)]
    pub(super) rank: String,
    /// The options in force when it began.
    #[serde(default)]
    pub(super) options: BTreeMap<String, Setting>,
}

impl Of {
    /// Reads the first line of a recording. Nothing is known where it is no such object.
    pub(super) fn read(text: &str) -> Of {
        serde_json::from_str(text).unwrap_or_default()
    }
}

/// The lines.
pub(super) fn lines<R: std::io::Read + std::io::Seek>(
    name: &str,
    reader: &RecordReader<R>,
    books: &Books,
) -> Lines {
    let of = Of::read(reader.text());
    let totals = reader.totals();
    let mut out = Lines::default();
    let rank = match of.rank.as_str() {
        "" | "0" => String::new(),
        rank => format!(", rank {rank}"),
    };
    out.heading(format_args!(
        "{name}: {} (process {} on {}{rank})",
        of.program, of.pid, of.host
    ));
    let span_us = books.last_us.saturating_sub(books.first_us.unwrap_or(0));
    out.fact(
        "events",
        format_args!(
            "{} in {}, over {}, on {}",
            totals.events,
            units::bytes(totals.bytes),
            units::duration(span_us.saturating_mul(1000)),
            units::count(u64::from(books.threads), "thread"),
        ),
    );
    if books.stacks > 0 {
        out.fact("call stacks", books.stacks);
    }
    out.fact("ended", ended(reader));
    whole(reader, books).iter().for_each(|line| out.item(line));
    for (at, sum) in &books.sums {
        out.exact("");
        place(at, sum, books, &mut out);
    }
    out
}

fn ended<R: std::io::Read + std::io::Seek>(reader: &RecordReader<R>) -> &'static str {
    match reader.standing() {
        Standing::Running => "not yet: the process still runs, or was killed",
        Standing::Ended => "with the process",
        Standing::Full => "before the process: it had reached record_size",
        Standing::Failed => "before the process: the system gave no more room for it",
    }
}

/// What is missing.
pub(super) fn whole<R: std::io::Read + std::io::Seek>(
    reader: &RecordReader<R>,
    books: &Books,
) -> Vec<String> {
    let totals = reader.totals();
    let mut lines = Vec::new();
    let mut add = |count: u64, what: &str, said: &str| {
        if count > 0 {
            lines.push(format!("{} {said}", units::count(count, what)));
        }
    };
    add(reader.lost(), "event", "found no room and are not in it");
    add(
        totals.damaged,
        "block",
        "of the file cannot be read to the end",
    );
    add(
        totals.missing,
        "block",
        "of the file are missing between others",
    );
    // A ring begins amid what happens to blocks of before.
    let unknown = match reader.begins_late() {
        true => "name blocks of before the oldest event, or are of a later version",
        false => "name blocks that were lost, or are of a later version",
    };
    add(totals.unknown, "event", unknown);
    if reader.begins_late() {
        lines.push("the oldest events have made room for new ones (record_full: ring)".to_owned());
    }
    if totals.is_cut {
        lines.push("the file is cut off; this is what can be read of it".to_owned());
    }
    if books.entries == 0 && !totals.is_cut {
        lines.push("nothing happened in it".to_owned());
    }
    lines
}

/// What a place is called.
pub(super) fn title((kind, device): &Where, sum: &Sum) -> String {
    match (kind.as_str(), device) {
        ("device", Some(device)) => match &sum.name {
            Some(name) => format!("device {device}: {name}"),
            None => format!("device {device}"),
        },
        ("pinned", _) => "page-locked host memory".to_owned(),
        ("pageable", _) => "pageable host memory".to_owned(),
        _ => "an arena that the recording does not tell of".to_owned(),
    }
}

fn place(at: &Where, sum: &Sum, books: &Books, out: &mut Lines) {
    out.heading(title(at, sum));
    let after = sum.peak_us.saturating_sub(books.first_us.unwrap_or(0));
    out.fact(
        "most live",
        format_args!(
            "{} in {}, after {}; at most {} reserved",
            units::bytes(sum.peak),
            units::count(sum.peak_blocks, "block"),
            units::duration(after.saturating_mul(1000)),
            units::bytes(sum.reserved_peak),
        ),
    );
    out.fact(
        "live at the end",
        format_args!(
            "{} in {}",
            units::bytes(sum.live),
            units::count(sum.blocks, "block")
        ),
    );
    out.fact(
        "requests",
        format_args!(
            "{}, {}, {} out of memory",
            units::count(sum.allocations, "allocation"),
            units::count(sum.frees, "free"),
            sum.ooms
        ),
    );
}
