//! What the numbers of an arena mean, in words.
//!
//! Every sentence is made from numbers of the file and states them; a sentence
//! without content is left out.

use vramalloc_core::stats::Metric;

use super::super::grid::{Column, Grid};
use super::super::lines::Lines;
use super::super::units::{bytes, count, duration, share};
use super::file::{Arena, Class, File, Memory, Parts};
use super::spread::{self, Spread};

/// How many size classes are listed; the others are summed up.
const ROWS: usize = 6;

/// Writes all sentences about an arena.
pub(super) fn meaning(file: &File, arena: &Arena, memory: &Memory, out: &mut Lines) {
    end(file, arena, out);
    peak(file, arena, memory, out);
    switched_off(file, arena, out);
    fragmentation(arena, memory, out);
    spread(file, arena, out);
    limbo(arena, out);
    idle(arena, out);
    waits(file, arena, out);
    for sentence in arena.pause.sentences() {
        out.item(sentence);
    }
    driver(file, arena, out);
    failures(arena, out);
    left(file, arena, out);
}

/// Whether its context, and all its memory, ended before the process.
fn end(file: &File, arena: &Arena, out: &mut Lines) {
    if let Some(ended) = arena.ended {
        let after = ended.saturating_sub(file.started).saturating_mul(1_000_000);
        out.item(format_args!(
            "Its context ended {} after the start of the process: what is told of \"the end\" is \
             how it stood then.",
            duration(after),
        ));
    }
}

/// How much was held, and what for.
fn peak(file: &File, arena: &Arena, memory: &Memory, out: &mut Lines) {
    let (live, reserved) = (arena.live.peak, arena.reserved.peak);
    let rounding = memory
        .peak(Metric::ActiveBytes)
        .saturating_sub(memory.peak(Metric::RequestedBytes));
    // What the driver rounds itself is not known.
    let rounded = match file.option("strategy") {
        Some("passthrough") => String::new(),
        _ => format!(
            "; about {} of what was in use at the most came from rounding",
            bytes(rounding)
        ),
    };
    out.item(format_args!(
        "The program held at most {}{rounded}.",
        bytes(live)
    ));
    let &Parts {
        live: live_then,
        cached,
        idle,
        limbo,
    } = &arena.at_peak;
    out.item(format_args!(
        "At most {} were reserved, {} more than that; at that moment {} of it were live, {} \
         cached and {} in limbo; {} lay in chunks that nothing was live in.",
        bytes(reserved),
        share(reserved.saturating_sub(live), live),
        share(live_then, reserved),
        share(cached, reserved),
        share(limbo, reserved),
        share(idle, reserved),
    ));
}

/// Why the strategy did not map memory, or not pack chunks, where it would have.
fn switched_off(file: &File, arena: &Arena, out: &mut Lines) {
    let of = |strategy| file.option("strategy") == Some(strategy) && !arena.lane;
    let off = |told: &Option<String>| told.as_ref()?.strip_prefix("off: ").map(str::to_owned);
    if let (true, Some(why)) = (of("mapped"), off(&arena.mapping)) {
        out.item(format_args!(
            "Memory was not mapped, or not any more ({why}): auto_growth served."
        ));
    }
    if let (true, Some(why)) = (of("auto_growth"), off(&arena.packing)) {
        out.item(format_args!("Chunks were not packed, because of {why}."));
    }
}

/// Whether free memory lay in pieces, and in which.
fn fragmentation(arena: &Arena, memory: &Memory, out: &mut Lines) {
    let [all, large, small] = memory
        .pools(Metric::InactiveSplitBytes)
        .map(|values| values[1]);
    if arena.fragmented_misses == 0 {
        if arena.fragmented_ooms > 0 {
            // The failures are described below.
            return;
        }
        out.item(
            "Fragmentation cost no memory: no request took more from the driver while enough was \
             cached in pieces.",
        );
        return;
    }
    if arena.mapping.as_deref() == Some("on") {
        // Units of the pieces were mapped to where the request is.
        out.item(format_args!(
            "Fragmentation: for {} of {} that called the driver for memory enough was cached, but \
             not in one piece: more was taken, or pieces were mapped elsewhere. Up to {} lay free \
             beside blocks in use.",
            arena.fragmented_misses,
            count(arena.misses, "request"),
            bytes(all),
        ));
        return;
    }
    let whose = if small > large {
        "small requests, whose slabs are kept by what still lives in them"
    } else {
        "large requests, whose chunks are kept by what still lives in them"
    };
    out.item(format_args!(
        "Fragmentation: {} of {} that took more from the driver found enough cached, \
         but not in one piece. Up to {} lay free in chunks that were in use, most of it between \
         blocks of {whose}.",
        arena.fragmented_misses,
        count(arena.misses, "request"),
        bytes(all),
    ));
}

/// How much of what is reserved is of no use for the largest requests.
fn spread(file: &File, arena: &Arena, out: &mut Lines) {
    if let Some(Spread {
        useless,
        reserved,
        above,
    }) = spread::spread(file, arena)
    {
        let when = if file.last && arena.ended.is_none() {
            "In the end"
        } else {
            "Then"
        };
        out.item(format_args!(
            "{when} {} of what was reserved ({} of {}) lay free in pieces too small for the \
             largest requests (above {}).",
            share(useless, reserved),
            bytes(useless),
            bytes(reserved),
            bytes(above),
        ));
    }
}

/// Whether more was reserved because the device was behind.
fn limbo(arena: &Arena, out: &mut Lines) {
    if arena.limbo_misses > 0 {
        out.item(format_args!(
            "{} of {} that took more from the driver came while as much was in \
             limbo: freed, and still in use by the device. Limbo held up to {}.",
            arena.limbo_misses,
            count(arena.misses, "request"),
            bytes(arena.limbo.peak),
        ));
    }
}

/// Whether more was kept than was used.
fn idle(arena: &Arena, out: &mut Lines) {
    if arena.idle_low > 0 {
        out.item(format_args!(
            "{} of the {} reserved were kept for nothing: ever since memory was last taken or \
             given back, so much has been idle.",
            bytes(arena.idle_low),
            bytes(arena.reserved.current),
        ));
    }
}

/// The cost of waiting for the device.
fn waits(file: &File, arena: &Arena, out: &mut Lines) {
    if arena.waits == 0 {
        out.item("No call waited for the device.");
        return;
    }
    let reason = match (arena.budget_waits, arena.waits) {
        (0, _) => "none of them".to_owned(),
        (some, all) if some == all => "all of them".to_owned(),
        (some, _) => format!("{some} of them"),
    };
    out.item(format_args!(
        "{} waited for the device, {} in all, {}, {} at the longest; {reason} because \
         limbo was over its budget.",
        calls(arena.waits),
        duration(arena.wait_ns),
        of_run(arena.wait_ns, file),
        duration(arena.longest_wait_ns),
    ));
}

/// A time as a share of the run. Threads run side by side, so the sum of their
/// times can exceed the run.
pub(super) fn of_run(ns: u64, file: &File) -> String {
    let ran = file.ran_ns();
    if ns > ran {
        return "in several threads side by side".to_owned();
    }
    format!("{} of the run", share(ns, ran))
}

fn calls(count: u64) -> String {
    match count {
        1 => "One call".to_owned(),
        _ => format!("{count} calls"),
    }
}

/// The cost of the driver.
fn driver(file: &File, arena: &Arena, out: &mut Lines) {
    let ns = arena.driver_ns(&[]);
    out.item(format_args!(
        "Calls to the driver took {}, {}.",
        duration(ns),
        of_run(ns, file),
    ));
}

/// What went wrong.
fn failures(arena: &Arena, out: &mut Lines) {
    if arena.ooms > 0 {
        let (ran, largest) = match arena.ooms {
            1 => ("One request ran".to_owned(), "it"),
            n => (format!("{n} requests ran"), "the largest"),
        };
        let of_them = |some: u64| match (some, arena.ooms) {
            (some, all) if some < all => format!("{some} of them"),
            (_, 1) => "it".to_owned(),
            _ => "all of them".to_owned(),
        };
        let at_limit = match arena.limit_ooms {
            0 => String::new(),
            all if all == arena.ooms => " at the limit".to_owned(),
            some => format!(", {some} of them at the limit"),
        };
        let in_pieces = match arena.fragmented_ooms {
            0 => String::new(),
            some => format!(
                " For {} enough was cached, but in pieces of chunks in use.",
                of_them(some)
            ),
        };
        out.item(format_args!(
            "{ran} out of memory{at_limit}; {largest} asked for {}.{in_pieces}",
            bytes(arena.largest_oom),
        ));
    }
    if arena.bad_frees > 0 {
        out.item(format_args!(
            "{} freed an address at which no block was live: a mistake in the program, such as a \
             second free.",
            calls(arena.bad_frees),
        ));
    }
}

/// What was never freed.
fn left(file: &File, arena: &Arena, out: &mut Lines) {
    let blocks = arena.classes.iter().map(|class| class.live_blocks);
    let blocks = blocks.fold(0, u64::saturating_add);
    let live = bytes(arena.live.current);
    if arena.ended.is_some() && blocks > 0 {
        out.item(format_args!(
            "Live when its context ended, and gone with it: {}, {live}.",
            count(blocks, "block"),
        ));
    } else if file.last && blocks > 0 {
        out.item(format_args!(
            "The program ended without freeing {}, {live}.",
            count(blocks, "block"),
        ));
    }
}

const HELD: [Column; 4] = [
    Column::text("requests"),
    Column::number("blocks"),
    Column::number("in all"),
    Column::number("of the peak"),
];

/// What was live at the peak, by size, the largest sum first.
pub(super) fn held(arena: &Arena, out: &mut Lines) {
    let mut classes: Vec<&Class> = (arena.classes.iter())
        .filter(|class| class.peak_blocks > 0)
        .collect();
    classes.sort_by_key(|class| std::cmp::Reverse(class.peak_bytes));
    let mut grid = Grid::new(&HELD);
    let mut row = |name: &str, blocks: u64, held: u64| {
        grid.row([
            name.to_owned(),
            blocks.to_string(),
            bytes(held),
            share(held, arena.live.peak),
        ]);
    };
    let (listed, others) = classes.split_at(classes.len().min(ROWS));
    for class in listed {
        let name = match class.up_to {
            Some(bound) => format!("up to {}", bytes(bound)),
            None => "larger".to_owned(),
        };
        row(&name, class.peak_blocks, class.peak_bytes);
    }
    if !others.is_empty() {
        let sum = |of: fn(&Class) -> u64| {
            let numbers = others.iter().map(|class| of(class));
            numbers.fold(0, u64::saturating_add)
        };
        row(
            "all others",
            sum(|class| class.peak_blocks),
            sum(|class| class.peak_bytes),
        );
    }
    grid.write(2, out);
}
