//! Device memory that went past the pool: what `cudaMallocAsync`,
//! `cuMemCreate` and the like took, and what came from other processes.
//!
//! Peaks of several families need not have been at the same moment, so their sum
//! is told as a bound ("at most").

use std::collections::BTreeMap;

use serde::Deserialize;
use vramalloc_core::stats::Family;

use super::super::families;
use super::super::grid::{Column, Grid};
use super::super::lines::Lines;
use super::super::units::bytes;
use super::file::{File, Gauge};

/// What one family took of one device.
#[derive(Deserialize)]
pub(super) struct Taken {
    device: u64,
    /// Its key; a newer library may have families that are not known here.
    family: String,
    bytes: Gauge,
    calls: u64,
    refused: u64,
}

/// Memory that other processes or interfaces made, by the way it came.
#[derive(Deserialize)]
pub(super) struct Imported {
    way: String,
    count: u64,
    bytes: u64,
}

/// The ways by which memory comes from other processes, by their keys.
const FROM_PROCESSES: [(&str, &str); 3] = [
    ("ipc", "cuIpcOpenMemHandle"),
    ("virtual", "cuMemImportFromShareableHandle"),
    ("async_pools", "cuMemPoolImportPointer and its like"),
];

impl Taken {
    fn is(&self, family: Family) -> bool {
        self.family == family.key()
    }

    /// Its name for a reader.
    fn name(&self) -> &str {
        families::called(&self.family)
    }
}

/// The sum of these numbers.
fn sum(taken: &[&Taken], of: fn(&Taken) -> u64) -> u64 {
    let numbers = taken.iter().map(|taken| of(taken));
    numbers.fold(0, u64::saturating_add)
}

/// These numbers by family, in words.
fn parts(taken: &[&Taken], of: fn(&Taken) -> u64, written: fn(u64) -> String) -> String {
    let numbers = taken.iter().map(|taken| (&*taken.family, of(taken)));
    families::in_words(numbers, written)
}

/// What went past the pool, on all devices: `at most 2.1 GiB (1.5 GiB by …)`;
/// `None` if nothing did.
pub(super) fn in_short(taken: &[Taken]) -> Option<String> {
    let taken: Vec<&Taken> = taken.iter().collect();
    let peak = sum(&taken, |taken| taken.bytes.peak);
    (peak > 0).then(|| {
        let parts = parts(&taken, |taken| taken.bytes.peak, bytes);
        format!("at most {} ({parts})", bytes(peak))
    })
}

/// The devices on which something went past the pool.
fn devices(file: &File) -> BTreeMap<u64, Vec<&Taken>> {
    let mut devices: BTreeMap<u64, Vec<&Taken>> = BTreeMap::new();
    for taken in &file.past {
        devices.entry(taken.device).or_default().push(taken);
    }
    devices
}

/// The devices on which something went past the pool.
pub(super) fn on_devices(file: &File) -> impl Iterator<Item = u64> {
    file.past.iter().map(|taken| taken.device)
}

/// What went past the pool on a device, and how many requests were refused.
pub(super) fn on(file: &File, device: u64) -> (Gauge, u64) {
    let taken = file.past.iter().filter(|taken| taken.device == device);
    let taken: Vec<&Taken> = taken.collect();
    let bytes = Gauge {
        current: sum(&taken, |taken| taken.bytes.current),
        peak: sum(&taken, |taken| taken.bytes.peak),
    };
    (bytes, sum(&taken, |taken| taken.refused))
}

/// Writes a part for each of these devices, and one about memory that came from
/// elsewhere.
pub(super) fn tell(file: &File, out: &mut Lines) {
    for (device, taken) in devices(file) {
        out.exact("");
        out.heading(format_args!("device {device}: memory past the pool"));
        rows(&taken, out);
        meaning(file, device, &taken, out);
    }
    imports(&file.imports, out);
}

const COUNTS: [Column; 5] = [
    Column::text(""),
    Column::number("at the end"),
    Column::number("peak"),
    Column::number("served"),
    Column::number("refused"),
];

/// The counts of a device.
fn rows(taken: &[&Taken], out: &mut Lines) {
    let mut grid = Grid::new(&COUNTS);
    for taken in taken {
        grid.row([
            taken.name().to_owned(),
            bytes(taken.bytes.current),
            bytes(taken.bytes.peak),
            taken.calls.to_string(),
            taken.refused.to_string(),
        ]);
    }
    grid.write(2, out);
}

/// What the counts mean.
fn meaning(file: &File, device: u64, taken: &[&Taken], out: &mut Lines) {
    let has = |family| taken.iter().any(|taken| taken.is(family));
    let refused = sum(taken, |taken| taken.refused);
    if refused > 0 {
        let (name, key) = match file.has_own_limit(device) {
            true => ("device_limits", "device_limits"),
            false => ("the limit", "limit"),
        };
        let limit = file.option(key).unwrap_or("none");
        out.item(format_args!(
            "{} because of {name} ({limit}): {}.",
            match refused {
                1 => "One request was refused".to_owned(),
                n => format!("{n} requests were refused"),
            },
            parts(taken, |taken| taken.refused, |n| n.to_string()),
        ));
    }
    if has(Family::AsyncPools) {
        out.item(
            "For cudaMallocAsync the figures are what CUDA's memory pools have reserved, which can \
             be more than the program asked for.",
        );
    }
    if has(Family::Managed) {
        out.item(
            "Managed memory counts in whole, although CUDA may keep it on the host; \
             managed:uncounted leaves it out.",
        );
    }
    out.item(
        "CUDA itself gave this memory: it is counted, also towards the limit, and not pooled. What \
         CUDA takes for contexts, modules and its libraries is not counted.",
    );
}

/// Memory that came from elsewhere.
fn imports(imports: &[Imported], out: &mut Lines) {
    if imports.is_empty() {
        return;
    }
    out.exact("");
    out.heading("imported memory");
    let (mut processes, mut others) = (Vec::new(), Vec::new());
    for import in imports {
        let size = match import.bytes {
            0 => String::new(),
            size => format!(" ({})", bytes(size)),
        };
        let known = FROM_PROCESSES.iter().find(|(key, _)| *key == import.way);
        match known {
            Some((_, function)) => {
                processes.push(format!("{} by {function}{size}", import.count));
            }
            None if import.way == "external" => {
                others.push(format!("{} by cuImportExternalMemory{size}", import.count));
            }
            None => others.push(format!("{} by {}{size}", import.count, import.way)),
        }
    }
    for (whose, list) in [("other processes", processes), ("other interfaces", others)] {
        if !list.is_empty() {
            out.item(format_args!("From {whose}: {}.", list.join(", ")));
        }
    }
    out.item("It counts where it was made, and not here.");
}

/// What went past the pool in one row of the ranks: a rank's device.
pub(super) struct PastRow<'a> {
    rank: &'a str,
    host: &'a str,
    device: u64,
    taken: Vec<&'a Taken>,
}

impl<'a> PastRow<'a> {
    /// The rows of a rank.
    pub(super) fn of(file: &'a File) -> impl Iterator<Item = PastRow<'a>> {
        devices(file).into_iter().map(|(device, taken)| PastRow {
            rank: &file.rank,
            host: &file.host,
            device,
            taken,
        })
    }
}

const RANKS: [Column; 6] = [
    Column::number("rank"),
    Column::text("host").spare(1),
    Column::number("dev"),
    Column::number("peak"),
    Column::number("at the end"),
    Column::number("refused"),
];

/// The table of what went past the pool in all ranks.
pub(super) fn ranks(rows: &[PastRow<'_>], out: &mut Lines) {
    if rows.is_empty() {
        return;
    }
    out.exact("");
    out.heading("memory past the pool");
    let mut grid = Grid::new(&RANKS);
    let mut line = |[rank, host, device]: [&str; 3], taken: &[&Taken]| {
        grid.row([
            rank.to_owned(),
            host.to_owned(),
            device.to_owned(),
            bytes(sum(taken, |taken| taken.bytes.peak)),
            bytes(sum(taken, |taken| taken.bytes.current)),
            sum(taken, |taken| taken.refused).to_string(),
        ]);
    };
    for row in rows {
        line([row.rank, row.host, &row.device.to_string()], &row.taken);
    }
    let taken = rows.iter().flat_map(|row| row.taken.iter().copied());
    let taken: Vec<&Taken> = taken.collect();
    line(["sum", "", ""], &taken);
    grid.write(0, out);
    out.exact("");
    let peaks = parts(&taken, |taken| taken.bytes.peak, bytes);
    if !peaks.is_empty() {
        out.item(format_args!("Past the pool went at most {peaks}."));
    }
    let refused = sum(&taken, |taken| taken.refused);
    if refused > 0 {
        out.item(format_args!(
            "Because of the limit, {} refused: {}.",
            match refused {
                1 => "one request past the pool was".to_owned(),
                n => format!("{n} requests past the pool were"),
            },
            parts(&taken, |taken| taken.refused, |n| n.to_string()),
        ));
    }
}
