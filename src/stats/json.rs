//! The documented JSON.
//!
//! Owns the names of its keys, which docs/statistics.md explains; a test
//! compares the two. Invariant: keys are added, never renamed or removed,
//! without a new [`SCHEMA`].

use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use super::host::host_memory_stats;
use super::owners::owners;
use super::{
    ArenaStats, CallCount, ClassCount, DriverCalls, ElsewhereReport, FamilyReport, Gauge,
    ImportReport, OomLog, PauseStats, Process, RecordingReport, Snapshots, StackReport,
    size_class_limit,
};
use crate::address::Bytes;
use crate::config::{Effective, Loaded, StrategyKind, strategy_name};

/// Version of the JSON's schema.
pub const SCHEMA: u32 = 1;

/// One arena and the device it is on.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ArenaReport {
    /// Ordinal of the device.
    pub device: u32,
    /// Name of the device, if the driver said.
    pub device_name: Option<String>,
    /// Memory of the device, if the driver said.
    pub device_total: Option<Bytes>,
    /// Which page-locked host memory it is, for an arena of such memory.
    pub pinned: Option<PinnedReport>,
    /// Whether it is the arena of pageable host memory.
    pub pageable: bool,
    /// Whether it is a lane: an arena that serves one stream.
    pub lane: bool,
    /// The strategy that is in force; see `Arena::strategy_in_force`.
    pub strategy: StrategyKind,
    /// The tag of its memory, of an arena of a region.
    pub region: Option<String>,
    /// Why its memory is not mapped, if it is not; see `Arena::not_mapped`.
    pub not_mapped: Option<&'static str>,
    /// Why its chunks are not packed, if they are not; see
    /// `Arena::not_packed`.
    pub not_packed: Option<&'static str>,
    /// Why threads keep nothing of it, if they do not; see `Arena::not_kept`.
    pub not_kept: Option<&'static str>,
    /// How many more arenas are summed up in it; see [`sum_up`](super::sum_up).
    pub more: u64,
    /// What happened in the arena.
    pub stats: ArenaStats,
    /// Its calls to the driver.
    pub calls: DriverCalls,
    /// The requests that failed for want of memory.
    pub ooms: OomLog,
}

/// Which page-locked host memory an arena holds.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct PinnedReport {
    /// Number of the context that it belongs to, from 0.
    pub context: u32,
    /// The flags of `cuMemHostAlloc`; `None` for `cuMemAllocHost`.
    pub flags: Option<u32>,
}

/// Everything that a process reports.
#[derive(Copy, Clone, Debug)]
pub struct Report<'a> {
    /// The process.
    pub process: &'a Process,
    /// The options that were in force.
    pub loaded: &'a Loaded,
    /// Whether this is the last report: the process has come to its end.
    pub last: bool,
    /// Names of the doors that were called, sorted.
    pub doors: &'a [&'static str],
    /// Whether lanes serve requests for the memory of a stream: `unused` if
    /// there were none, `on` if lanes serve them, else `off: ` and the reason.
    pub lanes: &'static str,
    /// Whether the process had a page: `unused` if it took no memory, `on`, or
    /// `off: ` and the reason.
    pub control: &'a str,
    /// The recording, if the options ask for one.
    pub recording: Option<&'a RecordingReport>,
    /// Every arena, also those whose context is gone.
    pub arenas: &'a [ArenaReport],
    /// What the program took past the arenas.
    pub families: &'a [FamilyReport],
    /// The paths of the libraries that asked for memory, from number 1 on.
    pub libraries: &'a [String],
    /// What is in use of devices that the process has not.
    pub elsewhere: &'a [ElsewhereReport],
    /// Memory that came from other processes and other interfaces.
    pub imports: &'a [ImportReport],
    /// The same arenas block by block, if that is wanted.
    pub snapshots: Option<&'a Snapshots>,
    /// The call stacks, if any were taken.
    pub stacks: Option<&'a StackReport>,
}

impl Report<'_> {
    /// The report as JSON, its keys always in the same order. Without the
    /// snapshots and the call stacks, which can be large: only the text has them.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let process = self.process;
        let (pageable, rest): (Vec<_>, Vec<_>) =
            self.arenas.iter().partition(|arena| arena.pageable);
        let (devices, hosts): (Vec<_>, Vec<_>) =
            (rest.into_iter()).partition(|arena: &&ArenaReport| arena.pinned.is_none());
        let options = options(self.loaded);
        json!({
            "schema": SCHEMA,
            "library_version": env!("CARGO_PKG_VERSION"),
            "program": process.program,
            "command_line": process.command_line,
            "pid": process.pid,
            "host": process.host,
            "rank": process.rank,
            "started_unix_ms": unix_ms(process.started),
            "ended_unix_ms": unix_ms(process.ended),
            "final": self.last,
            "options": options,
            "warnings": self.loaded.warnings,
            "doors": self.doors,
            "lanes": self.lanes,
            "control": self.control,
            "recording": self.recording.map(RecordingReport::to_json),
            "totals": totals(&devices),
            "owners": owners(devices.iter().copied(), self.families, self.libraries),
            "elsewhere": self.elsewhere.iter().map(|of| of.to_json()).collect::<Vec<_>>(),
            "families": self.families.iter().map(|of| of.to_json()).collect::<Vec<_>>(),
            "imports": self.imports.iter().map(|of| of.to_json()).collect::<Vec<_>>(),
            "arenas": devices.into_iter().map(arena).collect::<Vec<_>>(),
            "host_arenas": hosts.into_iter().map(host_arena).collect::<Vec<_>>(),
            "pageable": pageable.first().copied().map(self::pageable),
        })
    }

    /// The report as the text of a file.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = Vec::new();
        // Writing to memory cannot fail, and all of it is text.
        let _ = self.write(&mut text);
        String::from_utf8(text).unwrap_or_default()
    }

    /// Writes the text of a file, what can be large of it piece by piece.
    ///
    /// # Errors
    /// What `out` answers.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let text = format!("{:#}", self.to_json());
        // Without its last line, a brace, the object can be continued.
        let (open, close) = text.split_at(text.rfind('\n').unwrap_or(0));
        out.write_all(open.as_bytes())?;
        if let Some(stacks) = self.stacks {
            out.write_all(b",\n  \"call_stacks\": ")?;
            stacks.write(out)?;
        }
        if let Some(snapshots) = self.snapshots {
            out.write_all(b",\n  \"snapshot\": ")?;
            snapshots.write(self.stacks.map(|report| &report.stacks), out)?;
        }
        out.write_all(close.as_bytes())?;
        out.write_all(b"\n")
    }
}

/// The options in force, with where they came from.
fn options(loaded: &Loaded) -> Map<String, Value> {
    let entry = |option: &Effective| {
        let mut entry = json!({ "value": option.value, "origin": option.origin });
        if let Some(why) = option.no_effect {
            entry["no_effect"] = why.into();
        }
        (option.key.to_owned(), entry)
    };
    loaded.echo.iter().map(entry).collect()
}

/// What a recording says of its process, as JSON, under the keys of the statistics.
#[must_use]
pub fn record_text(process: &Process, loaded: &Loaded) -> String {
    let value = json!({
        "library_version": env!("CARGO_PKG_VERSION"),
        "program": process.program,
        "command_line": process.command_line,
        "pid": process.pid,
        "host": process.host,
        "rank": process.rank,
        "started_unix_ms": unix_ms(process.started),
        "options": options(loaded),
    });
    value.to_string()
}

/// Milliseconds since 1970, 0 for times before.
pub(super) fn unix_ms(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|since| u64::try_from(since.as_millis()).ok())
        .unwrap_or(0)
}

/// The calls of every kind, with the name of the kind.
fn kinds(calls: &DriverCalls) -> [(&'static str, CallCount); 12] {
    let mapping = &calls.mapping;
    [
        ("alloc", calls.alloc),
        ("free", calls.free),
        ("mem_info", calls.mem_info),
        ("fence", calls.fence),
        ("reached", calls.reached),
        ("wait", calls.wait),
        ("reserve", mapping.reserve),
        ("create", mapping.create),
        ("map", mapping.map),
        ("set_access", mapping.set_access),
        ("unmap", mapping.unmap),
        ("release", mapping.release),
    ]
}

fn sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

/// Sums over all arenas of devices.
fn totals(arenas: &[&ArenaReport]) -> Value {
    let over = |count: fn(&ArenaStats) -> u64| sum(arenas.iter().map(|arena| count(&arena.stats)));
    let driver = |count: fn(&CallCount) -> u64| {
        sum(arenas
            .iter()
            .flat_map(|arena| kinds(&arena.calls))
            .map(|(_, calls)| count(&calls)))
    };
    json!({
        "allocations": over(|stats| allocations(&stats.classes)),
        "frees": over(|stats| frees(&stats.classes)),
        "requested_bytes": over(|stats| requested(&stats.classes)),
        "hits": over(|stats| stats.hits),
        "misses": over(|stats| stats.misses),
        "direct": over(|stats| stats.direct),
        "driver_calls": driver(|calls| calls.calls),
        "driver_failures": driver(|calls| calls.failures),
        "driver_ns": driver(|calls| calls.ns),
        "waits": over(|stats| stats.waits),
        "wait_ns": over(|stats| stats.wait_ns),
        "ooms": over(|stats| stats.ooms),
        "limit_ooms": over(|stats| stats.limit_ooms),
        "bad_frees": over(|stats| stats.bad_frees),
    })
}

fn allocations(classes: &[ClassCount]) -> u64 {
    sum(classes.iter().map(|class| class.allocations))
}

fn frees(classes: &[ClassCount]) -> u64 {
    sum(classes.iter().map(|class| class.frees))
}

fn requested(classes: &[ClassCount]) -> u64 {
    sum(classes.iter().map(|class| class.requested))
}

fn arena(arena: &ArenaReport) -> Value {
    let mut value = json!({
        "device": arena.device,
        "device_name": arena.device_name,
        "device_total_bytes": arena.device_total.map(Bytes::get),
        "lane": arena.lane,
        "strategy": strategy_name(arena.strategy),
        "region": arena.region,
        "mapping": mode(arena.not_mapped),
        "packing": mode(arena.not_packed),
        "thread_cache": mode(arena.not_kept),
    });
    add(&mut value, counted(arena));
    add(
        &mut value,
        json!({
            "pause": pause(&arena.stats.pause),
            "memory_stats": arena.stats.memory.flat(),
            "paddle": paddle(&arena.stats),
        }),
    );
    value
}

fn pause(stats: &PauseStats) -> Value {
    json!({
        "is_paused": stats.is_paused,
        "paused_bytes": stats.paused.get(),
        "stays_plain_bytes": stats.stays.plain.get(),
        "stays_exported_bytes": stats.stays.exported.get(),
        "stays_refused_bytes": stats.stays.refused.get(),
        "backup_bytes": stats.backups.get(),
        "pauses": stats.pauses,
        "resumes": stats.resumes,
        "failures": stats.failures,
        "pause_ns": stats.pause_ns,
        "resume_ns": stats.resume_ns,
        "last": {
            "given_bytes": stats.last.bytes.get(),
            "copied_bytes": stats.last.copied.get(),
            "stays_plain_bytes": stats.last.stays.plain.get(),
            "stays_exported_bytes": stats.last.stays.exported.get(),
            "stays_refused_bytes": stats.last.stays.refused.get(),
        },
    })
}

fn host_arena(arena: &ArenaReport) -> Value {
    let PinnedReport { context, flags } = arena.pinned.unwrap_or_default();
    let mut value = json!({
        "device": arena.device,
        "context": context,
        "flags": flags,
    });
    add(&mut value, counted(arena));
    add(
        &mut value,
        json!({
            "host_memory_stats": host_memory_stats(&arena.stats.memory, &arena.calls),
            "paddle": paddle(&arena.stats),
        }),
    );
    value
}

fn pageable(arena: &ArenaReport) -> Value {
    let mut value = counted(arena);
    add(&mut value, json!({ "paddle": paddle(&arena.stats) }));
    value
}

/// Adds the keys of one object to another.
fn add(value: &mut Value, more: Value) {
    if let (Value::Object(value), Value::Object(more)) = (value, more) {
        value.extend(more);
    }
}

/// Paddle's two quantities.
fn paddle(stats: &ArenaStats) -> Value {
    json!({
        "Reserved": gauge(stats.reserved),
        "Allocated": gauge(stats.live),
    })
}

/// The keys that every arena has.
/// Whether something is done, or why it is not.
fn mode(not: Option<&str>) -> String {
    not.map_or("on".to_owned(), |why| format!("off: {why}"))
}

fn counted(arena: &ArenaReport) -> Value {
    let stats = &arena.stats;
    let calls: Map<String, Value> = kinds(&arena.calls)
        .into_iter()
        .map(|(kind, calls)| (kind.to_owned(), call_count(calls)))
        .collect();
    json!({
        "made_unix_ms": stats.made_us / 1000,
        "ended_unix_ms": stats.ended_us.map(|us| us / 1000),
        "sum_of": arena.more.saturating_add(1),
        "live_bytes": gauge(stats.live),
        "cached_bytes": gauge(stats.cached),
        "limbo_bytes": gauge(stats.limbo),
        // What threads keep is called back before the figures are taken; readers
        // add it to the others.
        "thread_cached_bytes": 0,
        "reserved_bytes": gauge(stats.reserved),
        "idle_bytes": stats.idle.get(),
        "largest_cached_bytes": stats.largest_cached.get(),
        "fragmentation": stats.fragmentation(),
        "chunks": stats.chunks,
        "chunks_released": stats.chunks_released,
        "idle_low_bytes": stats.idle_low.get(),
        "at_reserved_peak": {
            "live_bytes": stats.at_reserved_peak.live.get(),
            "cached_bytes": stats.at_reserved_peak.cached.get(),
            "idle_bytes": stats.at_reserved_peak.idle.get(),
            "limbo_bytes": stats.at_reserved_peak.limbo.get(),
        },
        "allocations": allocations(&stats.classes),
        "frees": frees(&stats.classes),
        "requested_bytes": requested(&stats.classes),
        "hits": stats.hits,
        "thread_hits": stats.thread_hits,
        "misses": stats.misses,
        "direct": stats.direct,
        "fragmented_misses": stats.fragmented_misses,
        "limbo_misses": stats.limbo_misses,
        "size_classes": size_classes(stats),
        "epochs": stats.epochs,
        "waits": stats.waits,
        "wait_ns": stats.wait_ns,
        "longest_wait_ns": stats.longest_wait_ns,
        "budget_waits": stats.budget_waits,
        "budget_wait_ns": stats.budget_wait_ns,
        "ooms": stats.ooms,
        "limit_ooms": stats.limit_ooms,
        "raisable_ooms": stats.raisable_ooms,
        "limit_needed_bytes": stats.limit_needed.get(),
        "fragmented_ooms": stats.fragmented_ooms,
        "largest_oom_bytes": stats.largest_oom.get(),
        "bad_frees": stats.bad_frees,
        "driver_calls": calls,
        "oom_events": arena.ooms.to_json(),
        "oom_events_left_out": arena.ooms.left_out(),
    })
}

pub(super) fn gauge(gauge: Gauge) -> Value {
    json!({ "current": gauge.current.get(), "peak": gauge.peak.get() })
}

fn call_count(calls: CallCount) -> Value {
    json!({ "calls": calls.calls, "failures": calls.failures, "total_ns": calls.ns })
}

/// The size classes that were used, by size. The last has no upper bound.
fn size_classes(stats: &ArenaStats) -> Vec<Value> {
    let last = stats.classes.len() - 1;
    stats
        .classes
        .iter()
        .enumerate()
        .filter(|(_, count)| **count != ClassCount::default())
        .map(|(class, count)| {
            let bound = (class < last).then(|| size_class_limit(class).get());
            let (live, peak) = (stats.classes_live[class], stats.classes_at_peak[class]);
            json!({
                "up_to_bytes": bound,
                "allocations": count.allocations,
                "frees": count.frees,
                "requested_bytes": count.requested,
                "live_blocks": live.blocks,
                "live_bytes": live.bytes,
                "peak_blocks": peak.blocks,
                "peak_bytes": peak.bytes,
            })
        })
        .collect()
}
