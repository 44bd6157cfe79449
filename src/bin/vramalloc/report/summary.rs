//! The process that wrote a file, and its counts, number by number.

use super::super::grid::{Column, Grid};
use super::super::lines::Lines;
use super::super::output::plain;
use super::super::statistics::Setting;
use super::super::units::{bytes, duration, share};
use super::brief::{self, Brief};
use super::file::{Arena, File};
use super::past;
use super::spread::{self, Spread};

/// The process, and the options that were set.
pub(super) fn process(file: &File, out: &mut Lines) {
    let File {
        program,
        pid,
        host,
        version,
        ..
    } = file;
    let brief = Brief::new(file);
    let ran = brief.ran();
    out.heading(format_args!(
        "{program} (process {pid} on {host}): {ran} under vramalloc {version}"
    ));
    if !file.last {
        out.exact("  taken while it ran, not at its end");
    }
    match brief.devices.as_slice() {
        [] => {}
        [device] => {
            let when = match file.last {
                true => "at the end",
                false => "when it was taken",
            };
            out.wrapped(format_args!("  {}", device.title(out.width)), 2);
            device.facts(when, out);
        }
        _ => brief::rows(&[&brief], usize::MAX, out),
    }
    let paused = file.arenas.iter().map(|arena| arena.pause.paused);
    let paused = paused.fold(0, u64::saturating_add);
    if paused > 0 {
        out.fact("paused", format_args!("{}, not resumed", bytes(paused)));
    }
    for (key, Setting { value, origin }) in &file.options {
        // Where statistics go is no news to who reads them.
        let is_about_files = ["stats", "stats_interval_s"].contains(&&**key);
        if key == "strategy" || origin != "default" && !is_about_files {
            out.wrapped(format_args!("  {key} = {value} ({origin})"), 4);
        }
    }
    for warning in &file.warnings {
        out.wrapped(format_args!("  warning: {warning}"), 2);
    }
    if let Some(lanes) = file.lanes.as_ref().filter(|lanes| lanes.starts_with("off")) {
        out.wrapped(format_args!("  lanes for streams: {lanes}"), 2);
    }
    let past = past::in_short(&file.past);
    match (past, file.arenas.is_empty()) {
        (Some(past), false) => out.wrapped(format_args!("  past the pool: {past}"), 2),
        (Some(past), true) => {
            out.wrapped(
                format_args!("  all device memory went past the pool: {past}"),
                2,
            );
        }
        (None, true) => out.exact("  no device memory was allocated"),
        (None, false) => {}
    }
}

/// The device of an arena, which is the context `which` of `alike` on it.
pub(super) fn device(arena: &Arena, (which, alike): (usize, usize), out: &mut Lines) {
    let name = arena.device_name.as_ref();
    let name = name.map_or_else(String::new, |name| format!(": {name}"));
    let total = arena.device_total;
    let total = total.map_or_else(String::new, |total| format!(", {}", bytes(total)));
    let context = match (arena.lane, alike) {
        (true, _) => format!(", lane {which} of {alike}"),
        (false, 1) => String::new(),
        (false, _) => format!(", context {which} of {alike}"),
    };
    let region = arena.region.as_ref();
    let region = region.map_or_else(String::new, |tag| format!(", region {}", plain(tag)));
    out.heading(format_args!(
        "device {}{name}{total}{context}{region}",
        arena.device
    ));
}

/// Page-locked memory: its context, how it was requested, and the counts.
pub(super) fn host(file: &File, host: &Arena, out: &mut Lines) {
    let flags = match host.flags {
        Some(flags) => format!(", flags {flags:#x}"),
        None => String::new(),
    };
    out.heading(format_args!(
        "page-locked host memory of device {}, context {}{flags}",
        host.device, host.context
    ));
    counts(file, host, out);
}

/// A quantity at the end, of the process or of its context, and its peak.
const GAUGES: [Column; 3] = gauges("at the end");
const ENDED: [Column; 3] = gauges("at its end");

const fn gauges(end: &'static str) -> [Column; 3] {
    let names = Column::text("              ");
    [names, Column::number(end), Column::number("peak")]
}

/// Every count of an arena.
pub(super) fn counts(file: &File, arena: &Arena, out: &mut Lines) {
    let mut grid = Grid::new(match arena.ended {
        None => &GAUGES,
        Some(_) => &ENDED,
    });
    for (name, gauge) in [
        ("live", arena.live),
        ("cached", arena.cached),
        ("limbo", arena.limbo),
        ("reserved", arena.reserved),
    ] {
        grid.row([name.to_owned(), bytes(gauge.current), bytes(gauge.peak)]);
    }
    grid.write(2, out);
    let requests = arena.allocations;
    out.fact(
        "requests",
        format_args!(
            "{requests}: {} hits, {} misses, {} direct",
            share(arena.hits, requests),
            share(arena.misses, requests),
            share(arena.direct, requests),
        ),
    );
    out.fact("frees", arena.frees);
    driver_calls(arena, out);
    out.fact(
        "waits",
        format_args!("{} in {}", arena.waits, duration(arena.wait_ns)),
    );
    out.fact("epochs", arena.epochs);
    out.fact(
        "out of memory",
        format_args!("{} ({} at the limit)", arena.ooms, arena.limit_ooms),
    );
    out.fact("bad frees", arena.bad_frees);
    let largest = bytes(arena.largest_cached);
    let useless = match spread::spread(file, arena) {
        Some(Spread {
            useless, reserved, ..
        }) => format!("{} too small, ", share(useless, reserved)),
        None => String::new(),
    };
    out.fact(
        "fragmentation",
        format_args!("{useless}largest cached block {largest}"),
    );
}

/// Calls to the driver, in all and by kind.
fn driver_calls(arena: &Arena, out: &mut Lines) {
    let sum = |numbers: &mut dyn Iterator<Item = u64>| numbers.fold(0, u64::saturating_add);
    let count = sum(&mut arena.calls.values().map(|calls| calls.calls));
    let failures = sum(&mut arena.calls.values().map(|calls| calls.failures));
    let kinds: Vec<String> = arena
        .calls
        .iter()
        .filter(|(_, calls)| calls.calls > 0)
        .map(|(kind, calls)| format!("{} {kind}", calls.calls))
        .collect();
    let kinds = match kinds.len() {
        0 => String::new(),
        _ => format!(": {}", kinds.join(", ")),
    };
    let time = duration(arena.driver_ns(&[]));
    out.fact(
        "driver calls",
        format_args!("{count} in {time}, {failures} failed{kinds}"),
    );
}
