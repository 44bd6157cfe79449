//! Requests that failed for want of memory, in words.
//!
//! The first and the last are described in full: the first is what went wrong,
//! the last is what the program ended on. Those in between are in the file.

use super::super::grid::{Column, Grid};
use super::super::lines::Lines;
use super::super::units::{self, bytes, count, duration, share};
use super::file::{Arena, File};
use super::holders;
use super::ooms::{Holdings, Oom};

/// Describes the first and the last, if there are any.
pub(super) fn tell(file: &File, arena: &Arena, out: &mut Lines) {
    let (events, left_out) = (arena.oom_events.as_slice(), arena.oom_events_left_out);
    let [first, rest @ ..] = events else {
        return;
    };
    out.heading("requests that failed for want of memory");
    let all = left_out.saturating_add(events.len() as u64);
    one(file, first, (1, all), out);
    if let Some((last, between)) = rest.split_last() {
        let between = left_out.saturating_add(between.len() as u64);
        if between > 0 {
            out.item(format_args!("{between} more in between"));
        }
        one(file, last, (all, all), out);
    }
}

/// Describes one of them, the `which` of `all`.
fn one(file: &File, oom: &Oom, (which, all): (u64, u64), out: &mut Lines) {
    let of_all = match all {
        1 => String::new(),
        _ => format!("number {which} of {all}, "),
    };
    let rounded = match oom.rounded == oom.request {
        true => String::new(),
        false => format!(" ({} in whole slots)", bytes(oom.rounded)),
    };
    out.item(format_args!(
        "{}{rounded}, {of_all}{} after the start: {}.",
        bytes(oom.request),
        duration(after_ns(file, oom)),
        why(oom),
    ));
    device(oom, out);
    out.fact("when it came", held(&oom.before));
    out.fact("in the end", held(&oom.after));
    out.fact(
        "free in the end",
        format_args!(
            "{}, at most {} in one piece",
            bytes(oom.free_in_sum),
            bytes(oom.largest_free)
        ),
    );
    out.fact("fragmentation", fragmentation(oom));
    blocks(file, oom, out);
}

/// The time since the start of the process, in ns.
pub(super) fn after_ns(file: &File, oom: &Oom) -> u64 {
    let start_us = file.started.saturating_mul(1000);
    oom.time_us.saturating_sub(start_us).saturating_mul(1000)
}

fn why(oom: &Oom) -> String {
    match oom.limit.filter(|_| oom.at_limit) {
        Some(limit) => format!("the limit of {} was reached", bytes(limit)),
        None => "the device had no more".to_owned(),
    }
}

/// What the driver said about the device, and who holds the rest.
fn device(oom: &Oom, out: &mut Lines) {
    let (Some(free), Some(total)) = (oom.driver_free, oom.driver_total) else {
        out.fact("device", "the driver did not say how much was free");
        return;
    };
    let others = total.saturating_sub(free.saturating_add(oom.device_reserved));
    let mine = bytes(oom.device_reserved);
    let rest = match others {
        0 => String::new(),
        _ => format!(
            ", {} taken by others: other processes, and what CUDA itself and libraries hold of \
             this one",
            bytes(others)
        ),
    };
    out.fact(
        "device",
        format_args!(
            "{} free of {}; {mine} reserved by this process{rest}",
            bytes(free),
            bytes(total),
        ),
    );
}

fn held(holdings: &Holdings) -> String {
    let Holdings {
        reserved,
        live,
        cached,
        limbo,
    } = *holdings;
    format!(
        "{} reserved: {} live, {} cached, {} in limbo",
        bytes(reserved),
        bytes(live),
        bytes(cached),
        bytes(limbo),
    )
}

fn fragmentation(oom: &Oom) -> String {
    if oom.largest_free >= oom.rounded {
        return "not in the way: a piece was large enough, but not before all had been tried"
            .into();
    }
    if oom.fragmented {
        return format!(
            "in the way: there was enough in sum, but the largest piece was {} too small",
            bytes(oom.rounded.saturating_sub(oom.largest_free))
        );
    }
    format!(
        "not in the way: also in one piece it would have been {} too little",
        bytes(oom.rounded.saturating_sub(oom.free_in_sum))
    )
}

const SIZES: [Column; 4] = [
    Column::number("blocks"),
    Column::number("of"),
    Column::number("in all"),
    Column::number("of live"),
];

/// Who held memory: by size, and by call stack if these were taken.
fn blocks(file: &File, oom: &Oom, out: &mut Lines) {
    if let Some(stack) = oom.stack {
        out.fact("asked for by", file.stacks.in_words(Some(stack)));
    }
    if let Some((place, bytes)) = holders::most_by_python(&file.stacks, &oom.stacks) {
        out.fact(
            "held most",
            format_args!("{place}, {} of the live memory", units::bytes(bytes)),
        );
    }
    let mut grid = Grid::new(&SIZES);
    for group in &oom.sizes {
        grid.row([
            group.count.to_string(),
            bytes(group.key),
            bytes(group.bytes),
            share(group.bytes, oom.after.live),
        ]);
    }
    if !oom.sizes.is_empty() {
        out.exact("  live blocks by size, those that held most:");
        grid.write(4, out);
    }
    if !oom.stacks.is_empty() {
        out.exact("  live blocks by call stack, those that held most:");
    }
    for group in &oom.stacks {
        let (size, place) = (bytes(group.bytes), file.stacks.in_words(Some(group.key)));
        let blocks = count(group.count, "block");
        out.wrapped(format_args!("    {size} in {blocks}: {place}"), 4);
    }
}
