//! Reports in which every number is another, for the tests to find again.

use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::Value;
use vramalloc_core::config::{Host, Loaded, load};
use vramalloc_core::library::{LibraryBytes, LibraryId};
use vramalloc_core::stats::{
    Action, ArenaReport, ArenaStats, BlockPicture, BlockState, CallCount, ClassCount, ClassLive,
    ElsewhereReport, Event, Family, FamilyReport, FamilyStats, Frame, Gauge, Group, Holdings,
    ImportReport, Metric, Object, OomEvent, Parts, PinnedReport, Process, RecordingReport, Report,
    SIZE_CLASSES, Segment, SegmentKind, Snapshot, Snapshots, StackId, StackReport, StackSums,
    Stacks,
};
use vramalloc_core::{Address, Bytes};

pub(crate) fn gauge(current: u64, peak: u64) -> Gauge {
    Gauge {
        current: Bytes::new(current),
        peak: Bytes::new(peak),
    }
}

pub(crate) fn process() -> Process {
    Process {
        program: "train".to_owned(),
        command_line: vec!["./train".to_owned(), "--fast".to_owned()],
        pid: 42,
        started: UNIX_EPOCH + Duration::from_millis(1500),
        ended: UNIX_EPOCH + Duration::from_millis(2500),
        ..Process::default()
    }
}

pub(crate) fn loaded() -> Loaded {
    let environment = [
        ("VRAMALLOC_LIMIT", "8G"),
        ("VRAMALLOC_CONF", "nothing:1,backend:native"),
    ];
    load(
        environment.map(|(name, value)| (name.into(), value.into())),
        Host::default(),
    )
}

/// An arena in which a bit of everything happened.
pub(crate) fn arena(device: u32) -> ArenaReport {
    let mut arena = ArenaReport {
        device,
        device_name: Some("Model".to_owned()),
        device_total: Some(Bytes::gib(16)),
        stats: ArenaStats {
            live: gauge(1024, 4096),
            cached: gauge(3072, 8192),
            reserved: gauge(4096, 9000),
            hits: 4,
            misses: 1,
            waits: 2,
            wait_ns: 300,
            largest_cached: Bytes::new(2304),
            idle_low: Bytes::new(11),
            at_reserved_peak: Parts {
                live: Bytes::new(12),
                cached: Bytes::new(13),
                idle: Bytes::new(26),
                limbo: Bytes::new(14),
            },
            fragmented_misses: 15,
            limbo_misses: 16,
            longest_wait_ns: 17,
            budget_waits: 18,
            budget_wait_ns: 19,
            largest_oom: Bytes::new(20),
            fragmented_ooms: 27,
            raisable_ooms: 29,
            limit_needed: Bytes::new(30),
            ended_us: Some(28_000),
            ..ArenaStats::default()
        },
        ..ArenaReport::default()
    };
    let count = ClassCount {
        allocations: 5,
        frees: 3,
        requested: 2000,
    };
    arena.stats.classes[0] = count;
    arena.stats.classes[SIZE_CLASSES - 1] = count;
    arena.stats.classes_live[0] = ClassLive {
        blocks: 21,
        bytes: 22,
    };
    arena.stats.classes_at_peak[0] = ClassLive {
        blocks: 23,
        bytes: 24,
    };
    arena.stats.libraries_live = library_bytes(1, 42);
    arena.stats.libraries_at_peak = library_bytes(1, 43);
    arena.stats.memory.all[Metric::ActiveBytes].peak = 25;
    arena.calls.alloc = CallCount {
        calls: 2,
        failures: 1,
        ns: 100,
        ..CallCount::default()
    };
    arena.calls.fence = CallCount {
        calls: 7,
        ns: 70,
        ..CallCount::default()
    };
    arena.ooms.push(oom());
    arena
}

/// A request that failed, with everything that can be told.
pub(crate) fn oom() -> OomEvent {
    OomEvent {
        request: Bytes::new(1000),
        rounded: Bytes::new(1024),
        driver_free: Some(Bytes::new(600)),
        limit: Some(Bytes::new(9000)),
        device_reserved: Bytes::new(8500),
        after: Holdings {
            cached: Bytes::new(700),
            largest_cached: Bytes::new(700),
            ..Holdings::default()
        },
        sizes: vec![group(Bytes::new(512))],
        stacks: vec![group(StackId::new(3))],
        ..OomEvent::default()
    }
}

pub(crate) fn group<K>(key: K) -> Group<K> {
    Group {
        key,
        count: 2,
        bytes: Bytes::new(1024),
    }
}

/// A segment of two blocks, two events, and a call stack.
pub(crate) fn snapshots() -> Snapshots {
    let stack = StackId::new(3);
    let block = |address, state, requested| BlockPicture {
        address: Address::new(address),
        size: Bytes::new(1024),
        requested: Bytes::new(requested),
        state,
        stack: if requested > 0 { stack } else { StackId::NONE },
    };
    let event = |action, size| Event {
        action,
        size: Bytes::new(size),
        time_us: 77,
        stack,
    };
    let snapshot = Snapshot {
        segments: vec![Segment {
            address: Address::new(4096),
            size: Bytes::new(2048),
            kind: SegmentKind::Small,
            is_mapped: true,
            first_block: 0,
            block_count: 2,
        }],
        blocks: vec![
            block(4096, BlockState::Live, 1000),
            block(5120, BlockState::Free, 0),
        ],
        events: vec![
            event(Action::Alloc(Address::new(4096)), 1000),
            event(
                Action::Oom {
                    device_free: Bytes::new(600),
                },
                1024,
            ),
        ],
        events_lost: 5,
        made_us: 6,
        ended_us: Some(7),
        forgotten: false,
    };
    Snapshots {
        blocks: 2,
        left_out: false,
        arenas: vec![(1, snapshot), (0, Snapshot::default())],
    }
}

/// A call stack of three places, and what it has.
pub(crate) fn stacks() -> StackReport {
    let stack = StackId::new(3);
    StackReport {
        mode: "all",
        distance: Bytes::ZERO,
        taken: 8,
        cut: 2,
        untaken: 2,
        dropped: 1,
        python: Some("3.12".to_owned()),
        unread: None,
        sums: StackSums {
            live: vec![group(stack)],
            peak: vec![group(stack), group(StackId::NONE)],
            failed: vec![group(stack)],
        },
        stacks: Stacks {
            objects: vec![Object {
                file: "/usr/lib/a \"quoted\".so".to_owned(),
                build_id: Some("00ff".to_owned()),
            }],
            frames: vec![
                Frame::Native {
                    object: Some(0),
                    offset: 4660,
                },
                Frame::Native {
                    object: None,
                    offset: 9,
                },
                Frame::Python {
                    file: "train.py".to_owned(),
                    line: Some(41),
                    function: "forward".to_owned(),
                },
            ],
            stacks: vec![(stack, vec![1, 0, 2])],
        },
    }
}

/// What went past the pool.
/// What one library has.
fn library_bytes(number: u8, bytes: u64) -> LibraryBytes {
    let mut all = LibraryBytes::default();
    all.add(LibraryId::new(number), Bytes::new(bytes));
    all
}

fn family() -> FamilyReport {
    FamilyReport {
        device: 1,
        family: Family::Virtual,
        stats: FamilyStats {
            bytes: gauge(31, 32),
            calls: 33,
            refused: 34,
            libraries: library_bytes(2, 41),
        },
    }
}

fn import() -> ImportReport {
    ImportReport {
        way: "ipc",
        count: 35,
        bytes: Bytes::new(36),
    }
}

fn recording() -> RecordingReport {
    RecordingReport {
        file: PathBuf::from("/tmp/train.rec"),
        state: "running",
        events: 37,
        bytes: 38,
        lost: 39,
        came_round: false,
        why: None,
    }
}

pub(crate) fn text(arenas: &[ArenaReport], snapshots: Option<&Snapshots>) -> String {
    Report {
        process: &process(),
        loaded: &loaded(),
        last: true,
        doors: &["cuMemAlloc_v2", "cudaMalloc"],
        lanes: "unused",
        control: "unused",
        recording: Some(&recording()),
        families: &[family()],
        libraries: &libraries(),
        elsewhere: &[elsewhere()],
        imports: &[import()],
        arenas,
        snapshots,
        stacks: snapshots.is_some().then_some(&stacks()),
    }
    .to_text()
}

fn elsewhere() -> ElsewhereReport {
    ElsewhereReport {
        device: 1,
        bytes: Bytes::new(44),
        at: UNIX_EPOCH + Duration::from_millis(45),
    }
}

/// The paths of the libraries that asked for memory.
fn libraries() -> Vec<String> {
    vec!["/lib/libfirst.so.1".to_owned(), "train".to_owned()]
}

/// The same of page-locked host memory.
pub(crate) fn host_arena() -> ArenaReport {
    ArenaReport {
        pinned: Some(PinnedReport {
            context: 3,
            flags: Some(1),
        }),
        ..arena(1)
    }
}

pub(crate) fn json(arenas: &[ArenaReport]) -> Value {
    Report {
        process: &process(),
        loaded: &loaded(),
        last: true,
        doors: &["cuMemAlloc_v2", "cudaMalloc"],
        lanes: "unused",
        control: "unused",
        recording: Some(&recording()),
        families: &[family()],
        libraries: &libraries(),
        elsewhere: &[elsewhere()],
        imports: &[import()],
        arenas,
        snapshots: None,
        stacks: None,
    }
    .to_json()
}
