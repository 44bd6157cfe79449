//! What a user wants to know first, in few lines, or as JSON: how much of each
//! device was used and reserved, how many calls of the driver were saved, what
//! failed, and who held most.
//!
//! Several contexts or lanes of a device count as one. Their peaks need not have
//! been at the same moment, so the sums are bounds ("at most"); contexts that were
//! there one after the other do not add up.

use serde::Serialize;

use super::super::grid::{Column, Grid};
use super::super::lines::Lines;
use super::super::output::plain;
use super::super::screen::PROSE;
use super::super::statistics::{Lifetime, most_together, there_with};
use super::super::units::{bytes, count, duration, share};
use super::file::{Arena, File, Gauge};
use super::owners::{self, Owner};
use super::past;
use super::spread;

/// Where the text of a line begins.
const INDENT: usize = 18;

/// What one process had of one device.
#[derive(Serialize)]
pub(super) struct DeviceBrief {
    pub(super) device: u64,
    device_name: Option<String>,
    pub(super) device_total_bytes: Option<u64>,
    pub(super) limit_bytes: Option<u64>,
    /// What the program held of the pool.
    pub(super) live_bytes: Gauge,
    pub(super) reserved_bytes: Gauge,
    cached_bytes: u64,
    /// What the device has until the program resumes it.
    paused_bytes: u64,
    /// What is free in pieces too small for the largest requests, if that is
    /// known.
    too_small_bytes: Option<u64>,
    /// What CUDA gave by other functions.
    pub(super) past_pool_bytes: Gauge,
    requests: u64,
    frees: u64,
    /// Calls that took memory from the driver or gave it back.
    driver_memory_calls: u64,
    out_of_memory: u64,
    out_of_memory_at_limit: u64,
    /// Of page-locked memory of its contexts.
    out_of_host_memory: u64,
    refused_past_pool: u64,
    bad_frees: u64,
    owners: Vec<Owner>,
    /// What CUDA itself and other processes have, if that is known.
    elsewhere_bytes: Option<u64>,
}

impl DeviceBrief {
    fn new(file: &File, device: u64) -> DeviceBrief {
        let arenas: Vec<&Arena> = file.arenas.iter().filter(|a| a.device == device).collect();
        let sum = |of: fn(&Arena) -> u64| {
            let numbers = arenas.iter().map(|arena| of(arena));
            numbers.fold(0, u64::saturating_add)
        };
        // What the others held went with their contexts. Where all have ended, it is what was
        // there at last.
        let is_any_there = arenas.iter().any(|arena| arena.ended.is_none());
        let lifetimes: Vec<Lifetime> = arenas.iter().map(|arena| arena.lifetime()).collect();
        let newest = (0..arenas.len()).max_by_key(|&at| arenas[at].made);
        let there: Vec<&Arena> = match newest {
            Some(newest) if !is_any_there => {
                let there = there_with(&lifetimes, newest).into_iter();
                there.map(|at| arenas[at]).collect()
            }
            _ => (arenas.iter().copied())
                .filter(|arena| arena.ended.is_none())
                .collect(),
        };
        let now = |of: fn(&Arena) -> u64| {
            (there.iter()).fold(0_u64, |sum, arena| sum.saturating_add(of(arena)))
        };
        let gauge = |current, peak: fn(&Arena) -> u64| Gauge {
            current: now(current),
            peak: most_together(&lifetimes, |at| peak(arenas[at])).0,
        };
        let total = arenas.iter().find_map(|arena| arena.device_total);
        let (past_pool_bytes, refused) = past::on(file, device);
        DeviceBrief {
            device,
            device_name: arenas.iter().find_map(|arena| arena.device_name.clone()),
            device_total_bytes: total,
            limit_bytes: file.limit_on(device, total),
            live_bytes: gauge(|arena| arena.live.current, |arena| arena.live.peak),
            reserved_bytes: gauge(|arena| arena.reserved.current, |arena| arena.reserved.peak),
            cached_bytes: now(|arena| arena.cached.current),
            paused_bytes: now(|arena| arena.pause.paused),
            too_small_bytes: too_small(file, &there),
            past_pool_bytes,
            requests: sum(|arena| arena.allocations),
            frees: sum(|arena| arena.frees),
            driver_memory_calls: sum(Arena::memory_calls),
            out_of_memory: sum(|arena| arena.ooms),
            out_of_memory_at_limit: sum(|arena| arena.limit_ooms),
            out_of_host_memory: file
                .hosts
                .iter()
                .filter(|arena| arena.device == device)
                .fold(0, |sum, arena| arena.ooms.saturating_add(sum)),
            refused_past_pool: refused,
            bad_frees: sum(|arena| arena.bad_frees),
            owners: owners::on(file, device),
            elsewhere_bytes: owners::elsewhere(file, device),
        }
    }

    /// Of all calls for memory that the program made, those that did not reach
    /// the driver.
    fn saved(&self) -> [u64; 2] {
        let made = self.requests.saturating_add(self.frees);
        [made.saturating_sub(self.driver_memory_calls), made]
    }

    /// The device by its number and its name.
    pub(super) fn name(&self) -> String {
        match &self.device_name {
            Some(name) => format!("device {}: {}", self.device, plain(name)),
            None => format!("device {}", self.device),
        }
    }

    /// The device, its size and the limit; without the name where there is no
    /// room for it.
    pub(super) fn title(&self, room: usize) -> String {
        let size = self.device_total_bytes.map(bytes);
        let size = size.map_or_else(String::new, |size| format!(", {size}"));
        let limit = self.limit_bytes.map(bytes);
        let limit = limit.map_or_else(String::new, |limit| format!(", limit {limit}"));
        let name = self.device_name.as_ref();
        let name = name.map_or_else(String::new, |name| format!(": {}", plain(name)));
        let whole = format!("device {}{name}{size}{limit}", self.device);
        if whole.chars().count() <= room {
            return whole;
        }
        format!("device {}{size}{limit}", self.device)
    }

    /// The lines below the title; `ends`: when the current figures were taken.
    pub(super) fn facts(&self, ends: &str, out: &mut Lines) {
        let (live, reserved) = (self.live_bytes.peak, self.reserved_bytes.peak);
        let past = bytes(self.past_pool_bytes.peak);
        let used = match (live, self.past_pool_bytes.peak) {
            (_, 0) => bytes(live),
            (0, _) => format!("{past}, all past the pool"),
            (_, _) => format!("{}, and {past} past the pool", bytes(live)),
        };
        out.fact("used at most", used);
        let more = match live {
            0 => String::new(),
            _ => format!(" ({} more)", share(reserved.saturating_sub(live), live)),
        };
        if reserved > 0 || self.requests > 0 {
            out.fact(
                "reserved",
                format_args!("{} at most{more}", bytes(reserved)),
            );
            let cached = bytes(self.cached_bytes);
            out.fact("cached", format_args!("{cached}, {ends}"));
            out.fact("driver calls", saved(self.saved()));
        }
        out.fact("failures", self.failures());
        let room = out.width.min(PROSE).saturating_sub(INDENT);
        if let Some(held) = owners::in_words(&self.owners, self.elsewhere_bytes, room) {
            out.fact("held most", held);
        }
    }

    fn failures(&self) -> String {
        let mut parts = Vec::new();
        match (self.out_of_memory, self.out_of_memory_at_limit) {
            (0, _) => {}
            (all, at_limit) if at_limit == all => {
                parts.push(format!("{all} out of memory at the limit"))
            }
            (all, 0) => parts.push(format!("{all} out of memory")),
            (all, some) => parts.push(format!("{all} out of memory ({some} at the limit)")),
        }
        if self.out_of_host_memory > 0 {
            parts.push(format!(
                "{} out of page-locked memory",
                self.out_of_host_memory
            ));
        }
        if self.refused_past_pool > 0 {
            parts.push(format!("{} refused", self.refused_past_pool));
        }
        if self.bad_frees > 0 {
            parts.push(count(self.bad_frees, "bad free"));
        }
        match parts.len() {
            0 => "none".to_owned(),
            _ => parts.join(", "),
        }
    }

    /// The most that it had, of the pool and past it.
    fn used(&self) -> u64 {
        let past = self.past_pool_bytes.peak;
        self.live_bytes.peak.saturating_add(past)
    }

    pub(super) fn failed(&self) -> u64 {
        let out_of_memory = self.out_of_memory.saturating_add(self.out_of_host_memory);
        let more = self.refused_past_pool.saturating_add(self.bad_frees);
        out_of_memory.saturating_add(more)
    }
}

/// What is free in pieces that are too small; `None` where that is not known of all.
fn too_small(file: &File, there: &[&Arena]) -> Option<u64> {
    let mut having = there
        .iter()
        .filter(|arena| arena.reserved.current > 0)
        .peekable();
    having.peek()?;
    having
        .map(|arena| Some(spread::spread(file, arena)?.useless))
        .sum()
}

fn saved([saved, made]: [u64; 2]) -> String {
    format!("{saved} of {made} saved ({})", share(saved, made))
}

/// What one process had.
#[derive(Serialize)]
pub(super) struct Brief {
    pub(super) program: String,
    pid: u64,
    host: String,
    rank: String,
    library_version: String,
    started_unix_ms: u64,
    ended_unix_ms: u64,
    r#final: bool,
    pub(super) devices: Vec<DeviceBrief>,
}

impl Brief {
    pub(super) fn new(file: &File) -> Brief {
        Brief {
            program: file.program.clone(),
            pid: file.pid,
            host: file.host.clone(),
            rank: file.rank.clone(),
            library_version: file.version.clone(),
            started_unix_ms: file.started,
            ended_unix_ms: file.ended,
            r#final: file.last,
            devices: (file.devices())
                .map(|device| DeviceBrief::new(file, device))
                .collect(),
        }
    }

    /// The program, its process, and how long it had run.
    pub(super) fn title(&self) -> String {
        format!("{} (process {}): {}", self.program, self.pid, self.ran())
    }

    /// How long it had run.
    pub(super) fn ran(&self) -> String {
        match self.ended_unix_ms.saturating_sub(self.started_unix_ms) {
            // The file has whole milliseconds.
            0 => "less than 1 ms".to_owned(),
            ms => duration(ms.saturating_mul(1_000_000)),
        }
    }

    /// The most that it had of any device.
    pub(super) fn used(&self) -> u64 {
        let used = self.devices.iter().map(DeviceBrief::used);
        used.max().unwrap_or(0)
    }

    /// When the current figures were taken, in a process that ended at this time.
    pub(super) fn ends(&self, ended_ms: u64) -> String {
        if self.r#final {
            return "at the end".to_owned();
        }
        let before = ended_ms.saturating_sub(self.ended_unix_ms);
        format!(
            "{} before the end",
            duration(before.saturating_mul(1_000_000))
        )
    }
}

const COLUMNS: [Column; 8] = [
    Column::text("program"),
    Column::number("pid"),
    Column::number("dev"),
    Column::number("used"),
    Column::number("reserved").spare(1),
    Column::number("cached").spare(3),
    Column::number("limit").spare(2),
    Column::number("failed"),
];

/// The devices of several processes, those most used first, in so many rows.
pub(super) fn rows(briefs: &[&Brief], most: usize, out: &mut Lines) {
    let mut all: Vec<(&Brief, &DeviceBrief)> = briefs
        .iter()
        .flat_map(|brief| brief.devices.iter().map(move |device| (*brief, device)))
        .collect();
    all.sort_by_key(|(_, device)| std::cmp::Reverse(device.used()));
    let mut grid = Grid::new(&COLUMNS);
    for (brief, device) in all.iter().take(most) {
        grid.row([
            brief.program.clone(),
            brief.pid.to_string(),
            device.device.to_string(),
            bytes(device.used()),
            bytes(device.reserved_bytes.peak),
            bytes(device.cached_bytes),
            device.limit_bytes.map_or_else(|| "none".to_owned(), bytes),
            device.failed().to_string(),
        ]);
    }
    grid.write_quietly(2, out);
    let sum = all.iter().fold([0_u64; 2], |[saved, made], (_, device)| {
        let [more_saved, more_made] = device.saved();
        [
            saved.saturating_add(more_saved),
            made.saturating_add(more_made),
        ]
    });
    if let Some(more) = all.len().checked_sub(most).filter(|&more| more > 0) {
        out.fact("not shown", format_args!("{more} more, each with less"));
    }
    out.fact("driver calls", saved(sum));
    let room = out.width.min(PROSE).saturating_sub(INDENT);
    if let Some(held) = owners::in_words(&of_all(briefs), None, room) {
        out.fact("held most", held);
    }
}

/// The owners on all devices together.
fn of_all(briefs: &[&Brief]) -> Vec<Owner> {
    let devices = briefs.iter().flat_map(|brief| &brief.devices);
    owners::summed(devices.flat_map(|device| device.owners.iter().cloned()))
}
