//! A statistics file, as values.
//!
//! Invariant: all values are read at once, so a file is found to be wrong from
//! the start or not at all. Keys that were added to the schema's first version
//! later are `None`, 0 or empty if the file is older.

use std::collections::{BTreeMap, BTreeSet};

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use vramalloc_core::Bytes;
use vramalloc_core::config::Loaded;
use vramalloc_core::stats::Metric;

use super::super::owners::Owned;
use super::super::pauses::Pauses;
use super::super::stacks::{CallStacks, Stacks};
use super::super::statistics::{self, Lifetime, Setting};
use super::super::symbols::Symbols;
use super::ooms::Oom;
use super::owners::Elsewhere;
use super::past::{self, Imported, Taken};
use super::spread::Pieces;

/// The kinds of calls that take memory from the driver, map it, or give it back.
pub(super) const MEMORY_CALLS: [&str; 8] = [
    "alloc",
    "free",
    "reserve",
    "create",
    "map",
    "set_access",
    "unmap",
    "release",
];

/// One process.
#[derive(Deserialize)]
pub(super) struct File {
    pub(super) program: String,
    pub(super) pid: u64,
    pub(super) host: String,
    pub(super) rank: String,
    #[serde(rename = "library_version")]
    pub(super) version: String,
    /// Unix time, ms.
    #[serde(rename = "started_unix_ms")]
    pub(super) started: u64,
    /// Unix time, ms.
    #[serde(rename = "ended_unix_ms")]
    pub(super) ended: u64,
    /// Whether it was written at the end of the process; all files were, before
    /// they said so.
    #[serde(default = "yes", rename = "final")]
    pub(super) last: bool,
    pub(super) options: IndexMap<String, Setting>,
    pub(super) warnings: Vec<String>,
    /// Whether lanes serve streams, or why not; `None` in older files.
    pub(super) lanes: Option<String>,
    /// What went past the pool, by device and family; none in older files.
    #[serde(default, rename = "families")]
    pub(super) past: Vec<Taken>,
    /// Memory that came from elsewhere; none in older files.
    #[serde(default)]
    pub(super) imports: Vec<Imported>,
    pub(super) arenas: Vec<Arena>,
    /// Arenas of page-locked host memory.
    #[serde(default, rename = "host_arenas")]
    pub(super) hosts: Vec<Arena>,
    /// The arena of pageable host memory.
    pub(super) pageable: Option<Arena>,
    pub(super) snapshot: Option<Pieces>,
    /// Who holds memory of devices, and what others have; none in older files.
    #[serde(default)]
    pub(super) owners: Vec<Owned>,
    #[serde(default)]
    pub(super) elsewhere: Vec<Elsewhere>,
    recording: Option<Recorded>,
    call_stacks: Option<CallStacks>,
    /// What this and the snapshot say of call stacks, once the names are found.
    #[serde(skip)]
    pub(super) stacks: Stacks,
}

/// The recording of the process.
#[derive(Deserialize)]
struct Recorded {
    file: String,
}

fn yes() -> bool {
    true
}

/// A quantity and its peak, in bytes.
#[derive(Copy, Clone, Deserialize, Serialize)]
pub(super) struct Gauge {
    pub(super) current: u64,
    pub(super) peak: u64,
}

/// Calls of one kind to the driver.
#[derive(Deserialize)]
pub(super) struct Calls {
    pub(super) calls: u64,
    pub(super) failures: u64,
    #[serde(rename = "total_ns")]
    pub(super) ns: u64,
}

/// Memory of one device context, or of the host. Keys with a default are those
/// of some arenas only, and those that older files lack.
#[derive(Deserialize)]
pub(super) struct Arena {
    #[serde(default)]
    pub(super) device: u64,
    pub(super) device_name: Option<String>,
    #[serde(rename = "device_total_bytes")]
    pub(super) device_total: Option<u64>,
    #[serde(default)]
    pub(super) lane: bool,
    /// The tag of its memory, if that was asked for in a region.
    pub(super) region: Option<String>,
    #[serde(default)]
    pub(super) pause: Pauses,
    /// The context of page-locked memory, by its number.
    #[serde(default)]
    pub(super) context: u64,
    /// The flags that page-locked memory was requested with; `None`: without.
    pub(super) flags: Option<u64>,
    /// Whether its memory is mapped, or why not; `None` in older files.
    pub(super) mapping: Option<String>,
    /// Whether its chunks are packed, or why not; `None` in older files.
    pub(super) packing: Option<String>,
    /// When it was made, Unix time in ms; 0 in older files.
    #[serde(default, rename = "made_unix_ms")]
    pub(super) made: u64,
    /// When its context ended, Unix time in ms, if it ended before the process.
    #[serde(rename = "ended_unix_ms")]
    pub(super) ended: Option<u64>,
    #[serde(rename = "live_bytes")]
    pub(super) live: Gauge,
    #[serde(rename = "cached_bytes")]
    pub(super) cached: Gauge,
    #[serde(rename = "limbo_bytes")]
    pub(super) limbo: Gauge,
    #[serde(rename = "reserved_bytes")]
    pub(super) reserved: Gauge,
    #[serde(rename = "largest_cached_bytes")]
    pub(super) largest_cached: u64,
    #[serde(default, rename = "idle_low_bytes")]
    pub(super) idle_low: u64,
    /// When the most was reserved.
    #[serde(default, rename = "at_reserved_peak")]
    pub(super) at_peak: Parts,
    pub(super) allocations: u64,
    pub(super) frees: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) direct: u64,
    #[serde(default)]
    pub(super) fragmented_misses: u64,
    #[serde(default)]
    pub(super) limbo_misses: u64,
    #[serde(default, rename = "size_classes")]
    pub(super) classes: Vec<Class>,
    pub(super) epochs: u64,
    pub(super) waits: u64,
    pub(super) wait_ns: u64,
    #[serde(default)]
    pub(super) longest_wait_ns: u64,
    #[serde(default)]
    pub(super) budget_waits: u64,
    #[serde(default)]
    pub(super) budget_wait_ns: u64,
    pub(super) ooms: u64,
    pub(super) limit_ooms: u64,
    /// How many failed requests a higher limit serves; `None` in older files.
    pub(super) raisable_ooms: Option<u64>,
    /// How much the largest of these needs.
    #[serde(rename = "limit_needed_bytes")]
    pub(super) limit_needed: Option<u64>,
    #[serde(default)]
    pub(super) fragmented_ooms: u64,
    #[serde(default, rename = "largest_oom_bytes")]
    pub(super) largest_oom: u64,
    pub(super) bad_frees: u64,
    /// By kind.
    #[serde(rename = "driver_calls")]
    pub(super) calls: IndexMap<String, Calls>,
    /// The failed requests, in their order; none if the library that wrote the
    /// file did not describe them.
    #[serde(default)]
    pub(super) oom_events: Vec<Oom>,
    /// How many requests in the middle were left out.
    #[serde(default)]
    pub(super) oom_events_left_out: u64,
    /// `None` in files of libraries that did not count as PyTorch does.
    #[serde(rename = "memory_stats")]
    pub(super) memory: Option<Memory>,
}

/// What reserved memory was used for; `idle` is chunks without a live block.
#[derive(Default, Deserialize)]
pub(super) struct Parts {
    #[serde(rename = "live_bytes")]
    pub(super) live: u64,
    #[serde(rename = "cached_bytes")]
    pub(super) cached: u64,
    #[serde(rename = "idle_bytes")]
    pub(super) idle: u64,
    #[serde(rename = "limbo_bytes")]
    pub(super) limbo: u64,
}

/// What was live at the peak of one size class.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Class {
    /// The largest request; `None`: no bound.
    #[serde(rename = "up_to_bytes")]
    pub(super) up_to: Option<u64>,
    pub(super) live_blocks: u64,
    pub(super) peak_blocks: u64,
    pub(super) peak_bytes: u64,
}

/// PyTorch's numbers, by their names.
#[derive(Deserialize)]
pub(super) struct Memory(BTreeMap<String, i64>);

/// Current, peak, sum of increases, sum of decreases.
pub(super) type Four = [u64; 4];

impl Memory {
    /// A number; 0 where it is not there.
    pub(super) fn number(&self, name: &str) -> u64 {
        let number = self.0.get(name).copied().unwrap_or(0);
        u64::try_from(number).unwrap_or(0)
    }

    pub(super) fn four(&self, name: &str) -> Four {
        ["current", "peak", "allocated", "freed"]
            .map(|value| self.number(&format!("{name}.{value}")))
    }

    /// Of `all`, `large_pool`, `small_pool`.
    pub(super) fn pools(&self, metric: Metric) -> [Four; 3] {
        ["all", "large_pool", "small_pool"]
            .map(|pool| self.four(&format!("{}.{pool}", metric.name())))
    }

    /// The peak of both pools together.
    pub(super) fn peak(&self, metric: Metric) -> u64 {
        self.number(&format!("{}.all.peak", metric.name()))
    }
}

impl Arena {
    pub(super) fn lifetime(&self) -> Lifetime {
        Lifetime {
            made: self.made,
            ended: self.ended,
        }
    }

    /// Time spent in calls of these kinds, in ns.
    pub(super) fn driver_ns(&self, kinds: &[&str]) -> u64 {
        let of_kind = |kind: &str| kinds.is_empty() || kinds.contains(&kind);
        let calls = self.calls.iter().filter(|(kind, _)| of_kind(kind));
        calls.fold(0, |sum, (_, calls)| sum.saturating_add(calls.ns))
    }

    /// The calls that took memory from the driver, mapped it, or gave it back.
    pub(super) fn memory_calls(&self) -> u64 {
        let kinds = MEMORY_CALLS.iter().filter_map(|&kind| self.calls.get(kind));
        kinds.fold(0, |sum, calls| sum.saturating_add(calls.calls))
    }
}

impl File {
    /// Reads a file.
    ///
    /// # Errors
    /// One line that says what is wrong with it.
    pub(super) fn read(bytes: &[u8]) -> Result<File, String> {
        statistics::read(bytes)
    }

    /// How long the process ran until the statistics were taken, in ns.
    pub(super) fn ran_ns(&self) -> u64 {
        self.ended
            .saturating_sub(self.started)
            .saturating_mul(1_000_000)
    }

    /// The devices that it had memory of, in their order.
    pub(super) fn devices(&self) -> impl Iterator<Item = u64> {
        let arenas = self.arenas.iter().map(|arena| arena.device);
        let all: BTreeSet<u64> = arenas.chain(past::on_devices(self)).collect();
        all.into_iter()
    }

    /// The value of an option; `None` if the library had no such option.
    pub(super) fn option(&self, key: &str) -> Option<&str> {
        Some(&self.options.get(key)?.value)
    }

    /// The options as the library reads them.
    pub(super) fn loaded(&self) -> Loaded {
        statistics::loaded(&self.options, &[])
    }

    /// The limit of a device with so much memory, if there is one.
    pub(super) fn limit_on(&self, device: u64, total: Option<u64>) -> Option<u64> {
        let config = self.loaded().settings.config;
        let limit = config.limit_of(u32::try_from(device).ok())?;
        let limit = limit.of(total.map_or(Bytes::MAX, Bytes::new)).get();
        Some(limit).filter(|&limit| limit < u64::MAX)
    }

    /// Whether `device_limits` names a device.
    pub(super) fn has_own_limit(&self, device: u64) -> bool {
        let own = self.loaded().settings.config.device_limits;
        own.iter().any(|(number, _)| u64::from(*number) == device)
    }

    /// Where the process was recorded.
    pub(super) fn recording_file(&self) -> Option<String> {
        Some(self.recording.as_ref()?.file.clone())
    }

    /// Finds the names in its call stacks.
    pub(super) fn find_names(&mut self, symbols: &mut Symbols, shows_all: bool) {
        let old = self.snapshot.as_mut().map(Pieces::take_stacks);
        let said = self.call_stacks.take();
        self.stacks = Stacks::new(said, old, self.started / 1000, symbols).with_all(shows_all);
    }
}
