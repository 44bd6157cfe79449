//! Statistics as programs write them, with the same numbers each time.

mod stacks;

use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};
use vramalloc_core::config::{Host, load};
use vramalloc_core::stats::{
    ArenaReport, BlockPicture, BlockState, CallCount, ClassCount, ClassLive, Family, FamilyReport,
    FamilyStats, Gauge, Group, Holdings, ImportReport, Metric, Moved, OomEvent, PauseStats,
    PinnedReport, Process, Report, Segment, SegmentKind, Snapshot, Snapshots, StackId, Stays,
};
use vramalloc_core::{Address, Bytes};

pub(crate) use stacks::{two_runs, with_stacks};

/// A process that ran for ten seconds.
fn process(rank: u32) -> Process {
    Process {
        program: "train".to_owned(),
        pid: 4711 + rank,
        host: "node7".to_owned(),
        rank: rank.to_string(),
        started: UNIX_EPOCH + Duration::from_secs(1000),
        ended: UNIX_EPOCH + Duration::from_secs(1010),
        ..Process::default()
    }
}

fn gauge(current_mib: u64, peak_mib: u64) -> Gauge {
    Gauge {
        current: Bytes::mib(current_mib),
        peak: Bytes::mib(peak_mib),
    }
}

fn calls(calls: u64, ms: u64) -> CallCount {
    CallCount {
        calls,
        ns: ms * 1_000_000,
        ..CallCount::default()
    }
}

/// What a training on this device held, in so many hundredths.
fn arena(device: u32, hundredths: u64) -> ArenaReport {
    let part = |mib: u64| mib * hundredths / 100;
    let mut arena = ArenaReport {
        device,
        device_name: Some("Model H200".to_owned()),
        device_total: Some(Bytes::gib(80)),
        not_mapped: Some("strategy:auto_growth"),
        ..ArenaReport::default()
    };
    let stats = &mut arena.stats;
    stats.live = gauge(0, part(62_600));
    stats.cached = gauge(3_000, part(40_000));
    stats.limbo = gauge(0, part(1_500));
    stats.reserved = gauge(3_000, part(66_000));
    stats.largest_cached = Bytes::mib(2_500);
    stats.hits = 16_700;
    stats.misses = 148;
    stats.direct = 2;
    stats.epochs = 1_110;
    stats.waits = 12;
    stats.wait_ns = part(340) * 1_000_000;
    stats.longest_wait_ns = 81_000_000;
    stats.budget_waits = 5;
    stats.fragmented_misses = 120;
    stats.limbo_misses = 3;
    stats.idle_low = Bytes::mib(64);
    stats.at_reserved_peak.live = Bytes::mib(part(60_000));
    stats.at_reserved_peak.cached = Bytes::mib(part(5_500));
    stats.at_reserved_peak.idle = Bytes::mib(part(1_000));
    stats.at_reserved_peak.limbo = Bytes::mib(part(500));
    for (class, requests, blocks, mib) in [
        (0, 9_000, 409, 1),
        (12, 6_000, 900, 1_600),
        (18, 1_500, 200, 21_000),
        (20, 350, 80, 39_999),
    ] {
        stats.classes[class] = ClassCount {
            allocations: requests,
            frees: requests,
            ..ClassCount::default()
        };
        stats.classes_at_peak[class] = ClassLive {
            blocks,
            bytes: part(mib) << 20,
        };
    }
    stats.memory.all[Metric::ActiveBytes].peak = part(62_700) << 20;
    stats.memory.all[Metric::RequestedBytes].peak = part(62_500) << 20;
    stats.memory.all[Metric::InactiveSplitBytes].peak = part(1_800) << 20;
    arena.calls.alloc = calls(150, part(95));
    arena.calls.free = calls(9, 4);
    arena.calls.fence = calls(1_110, 2);
    arena
}

/// Two segments of the memory at the end, one of which is in small pieces.
fn snapshots() -> Snapshots {
    let block = |address: u64, mib: u64, state| BlockPicture {
        address: Address::new(address << 20),
        size: Bytes::mib(mib),
        requested: Bytes::mib(if state == BlockState::Live { mib } else { 0 }),
        state,
        stack: StackId::NONE,
    };
    let segment = |address: u64, mib: u64, first_block, block_count| Segment {
        address: Address::new(address << 20),
        size: Bytes::mib(mib),
        kind: SegmentKind::Large,
        is_mapped: false,
        first_block,
        block_count,
    };
    let snapshot = Snapshot {
        segments: vec![segment(1_000, 2_500, 0, 1), segment(10_000, 500, 1, 2)],
        blocks: vec![
            block(1_000, 2_500, BlockState::Free),
            block(10_000, 100, BlockState::Free),
            block(10_100, 400, BlockState::Free),
        ],
        ..Snapshot::default()
    };
    Snapshots {
        blocks: 3,
        left_out: false,
        arenas: vec![(0, snapshot)],
    }
}

/// What a process writes.
#[derive(Default)]
struct Contents {
    arenas: Vec<ArenaReport>,
    families: Vec<FamilyReport>,
    imports: Vec<ImportReport>,
    snapshots: Option<Snapshots>,
    environment: Vec<(&'static str, &'static str)>,
    runs_on: bool,
}

fn written(rank: u32, contents: &Contents) -> Value {
    let environment = contents.environment.iter();
    let environment = environment.map(|(name, value)| (name.into(), value.into()));
    let statistics = Report {
        process: &process(rank),
        loaded: &load(environment, Host::default()),
        last: !contents.runs_on,
        doors: &["cudaMalloc"],
        lanes: "unused",
        control: "on",
        recording: None,
        stacks: None,
        families: &contents.families,
        libraries: &[],
        elsewhere: &[],
        imports: &contents.imports,
        arenas: &contents.arenas,
        snapshots: contents.snapshots.as_ref(),
    }
    .to_text();
    let mut statistics: Value = serde_json::from_str(&statistics).unwrap();
    statistics["library_version"] = "0.2.0".into();
    statistics
}

/// One device, and nothing that went wrong.
pub(crate) fn training() -> String {
    let contents = Contents {
        arenas: vec![arena(0, 100)],
        snapshots: Some(snapshots()),
        ..Contents::default()
    };
    written(0, &contents).to_string()
}

/// A server whose memory was paused when its statistics were taken: its weights were
/// kept and its cache lost.
pub(crate) fn paused() -> String {
    let region = |name: Option<&str>, given: u64, copied: u64| {
        let mut arena = arena(0, 40);
        arena.region = name.map(str::to_owned);
        arena.stats.reserved = gauge(0, 26_400);
        arena.stats.idle_low = Bytes::ZERO;
        // Where there is no region, something stayed and something failed.
        let stayed = if name.is_none() { 64 } else { 0 };
        let stays = Stays {
            plain: Bytes::mib(stayed),
            exported: Bytes::mib(stayed / 8),
            ..Stays::default()
        };
        arena.not_mapped = None;
        arena.stats.pause = PauseStats {
            is_paused: true,
            paused: Bytes::mib(given),
            stays,
            backups: Bytes::mib(copied),
            pauses: 3,
            resumes: 2,
            failures: stayed / 64,
            pause_ns: 1_900_000_000,
            resume_ns: 800_000_000,
            last: Moved {
                bytes: Bytes::mib(given),
                copied: Bytes::mib(copied),
                stays,
            },
        }
        .into();
        arena
    };
    let contents = Contents {
        arenas: vec![
            region(None, 1_200, 1_100),
            region(Some("weights"), 14_000, 14_000),
            region(Some("cache"), 24_000, 0),
        ],
        environment: vec![("VRAMALLOC_STRATEGY", "mapped")],
        runs_on: true,
        ..Contents::default()
    };
    written(0, &contents).to_string()
}

/// A training by a library that tells who holds memory.
pub(crate) fn with_owners() -> String {
    let contents = Contents {
        arenas: vec![arena(0, 100)],
        ..Contents::default()
    };
    let mut statistics = written(0, &contents);
    let owner = |owner: &str, mib: u64| {
        let past = if owner == "libnccl.so.2" {
            3_u64 << 30
        } else {
            0
        };
        json!({
            "device": 0,
            "owner": owner,
            "file": null,
            "bytes": mib << 18,
            "peak_bytes": mib << 20,
            "past_pool_bytes": past,
        })
    };
    statistics["owners"] = json!([
        owner("libc10_cuda.so", 61_000),
        owner("libcublasLt.so.12", 500),
        owner("libcublas.so.12", 12),
        owner("libnccl.so.2", 0),
        owner("train", 1_088),
    ]);
    let (bytes, asked) = (600_u64 << 20, 1_007_000_000_u64);
    statistics["elsewhere"] = json!([{ "device": 0, "bytes": bytes, "asked_unix_ms": asked }]);
    statistics.to_string()
}

/// One rank of several.
pub(crate) fn rank(rank: u32) -> String {
    grown_rank(rank, 0)
}

/// The same of a run that held so many hundredths more.
pub(crate) fn grown_rank(rank: u32, more: u64) -> String {
    let contents = Contents {
        arenas: vec![arena(rank, 100 + more - 7 * u64::from(rank))],
        ..Contents::default()
    };
    written(rank, &contents).to_string()
}

/// A request that failed at the limit, while enough was cached in pieces.
fn failure() -> OomEvent {
    let holdings = Holdings {
        reserved: Bytes::mib(61_000),
        live: Bytes::mib(57_000),
        cached: Bytes::mib(4_000),
        largest_cached: Bytes::mib(1_200),
        ..Holdings::default()
    };
    let group = |mib, count| Group {
        key: Bytes::mib(mib),
        count,
        bytes: Bytes::mib(mib * count),
    };
    OomEvent {
        time_us: 1_007_300_000,
        request: Bytes::mib(2_047),
        rounded: Bytes::mib(2_048),
        at_limit: true,
        driver_free: Some(Bytes::gib(15)),
        driver_total: Some(Bytes::gib(80)),
        limit: Some(Bytes::gib(60)),
        device_reserved: Bytes::mib(61_000),
        before: holdings,
        after: holdings,
        sizes: vec![group(512, 90), group(64, 150)],
        ..OomEvent::default()
    }
}

/// A limit that was reached.
pub(crate) fn out_of_memory() -> String {
    let mut arena = arena(0, 90);
    arena.stats.ooms = 3;
    arena.stats.limit_ooms = 3;
    arena.stats.largest_oom = Bytes::mib(2_047);
    for _ in 0..3 {
        arena.ooms.push(failure());
    }
    let contents = Contents {
        arenas: vec![arena],
        environment: vec![
            ("VRAMALLOC_LIMIT", "60G"),
            ("VRAMALLOC_CONF", "frobnicate:1"),
        ],
        ..Contents::default()
    };
    written(0, &contents).to_string()
}

/// Two devices, a lane, host memory, memory past the pool, mistakes; taken while
/// the process ran.
pub(crate) fn mixed() -> String {
    let mut lane = arena(0, 10);
    lane.lane = true;
    let mut second = arena(1, 40);
    second.stats.bad_frees = 2;
    second.stats.ended_us = Some(1_009_000_000);
    let host = ArenaReport {
        pinned: Some(PinnedReport {
            context: 0,
            flags: Some(1),
        }),
        ..arena(0, 3)
    };
    let family = |family, [current, peak]: [u64; 2], refused| FamilyReport {
        device: 0,
        family,
        stats: FamilyStats {
            bytes: gauge(current, peak),
            calls: 12,
            refused,
            ..FamilyStats::default()
        },
    };
    let import = |way, mib| ImportReport {
        way,
        count: 2,
        bytes: Bytes::mib(mib),
    };
    let contents = Contents {
        arenas: vec![arena(0, 100), lane, second, host],
        families: vec![
            family(Family::AsyncPools, [0, 1_536], 0),
            family(Family::Virtual, [2_048, 3_072], 1),
            family(Family::Managed, [64, 64], 0),
        ],
        imports: vec![import("ipc", 0), import("external", 16)],
        environment: vec![("VRAMALLOC_LIMIT", "70G")],
        runs_on: true,
        ..Contents::default()
    };
    written(0, &contents).to_string()
}
