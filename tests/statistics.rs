//! The JSON of a process, and the page that documents it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::Value;
use vramalloc::config::{Host, Loaded, OPTIONS, load};
use vramalloc::stats::{
    Action, ArenaReport, ArenaStats, BlockPicture, BlockState, CallCount, ClassCount, ClassLive,
    Event, Frame, Gauge, Group, Holdings, Metric, OomEvent, Parts, PinnedReport, Process, Report,
    SCHEMA, SIZE_CLASSES, Segment, SegmentKind, Snapshot, Snapshots, StackId, Stacks,
};
use vramalloc::{Address, Bytes};

fn gauge(current: u64, peak: u64) -> Gauge {
    Gauge {
        current: Bytes::new(current),
        peak: Bytes::new(peak),
    }
}

fn process() -> Process {
    Process {
        program: "train".to_owned(),
        command_line: vec!["./train".to_owned(), "--fast".to_owned()],
        pid: 42,
        started: UNIX_EPOCH + Duration::from_millis(1500),
        ended: UNIX_EPOCH + Duration::from_millis(2500),
        ..Process::default()
    }
}

fn loaded() -> Loaded {
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
fn arena(device: u32) -> ArenaReport {
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
fn oom() -> OomEvent {
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

fn group<K>(key: K) -> Group<K> {
    Group {
        key,
        count: 2,
        bytes: Bytes::new(1024),
    }
}

/// A segment of two blocks, two events, and a call stack.
fn snapshots() -> Snapshots {
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
    };
    let frame = |name: Option<&str>| Frame {
        object: "/usr/lib/a \"quoted\".so".to_owned(),
        offset: 4660,
        name: name.map(str::to_owned),
    };
    Snapshots {
        blocks: 2,
        left_out: false,
        arenas: vec![(1, snapshot), (0, Snapshot::default())],
        stacks: Stacks {
            frames: vec![frame(Some("load")), frame(None)],
            stacks: vec![(stack, vec![1, 0])],
        },
    }
}

fn text(arenas: &[ArenaReport], snapshots: Option<&Snapshots>) -> String {
    Report {
        process: &process(),
        loaded: &loaded(),
        last: true,
        doors: &["cuMemAlloc_v2", "cudaMalloc"],
        arenas,
        snapshots,
    }
    .to_text()
}

/// The same of page-locked host memory.
fn host_arena() -> ArenaReport {
    ArenaReport {
        pinned: Some(PinnedReport {
            context: 3,
            flags: Some(1),
        }),
        ..arena(1)
    }
}

fn json(arenas: &[ArenaReport]) -> Value {
    Report {
        process: &process(),
        loaded: &loaded(),
        last: true,
        doors: &["cuMemAlloc_v2", "cudaMalloc"],
        arenas,
        snapshots: None,
    }
    .to_json()
}

#[test]
fn numbers_stand_where_they_belong() {
    let json = json(&[arena(0), host_arena(), arena(1)]);
    for (pointer, expected) in [
        ("/schema", Value::from(SCHEMA)),
        ("/program", "train".into()),
        ("/pid", 42.into()),
        ("/started_unix_ms", 1500.into()),
        ("/ended_unix_ms", 2500.into()),
        ("/final", true.into()),
        ("/command_line/1", "--fast".into()),
        ("/options/limit/value", "8GiB".into()),
        ("/options/limit/origin", "VRAMALLOC_LIMIT".into()),
        ("/options/strategy/origin", "default".into()),
        ("/doors/1", "cudaMalloc".into()),
        ("/totals/allocations", 20.into()),
        ("/totals/frees", 12.into()),
        ("/totals/requested_bytes", 8000.into()),
        ("/totals/hits", 8.into()),
        ("/totals/driver_calls", 18.into()),
        ("/totals/driver_failures", 2.into()),
        ("/totals/driver_ns", 340.into()),
        ("/totals/wait_ns", 600.into()),
        ("/arenas/1/device", 1.into()),
        ("/host_arenas/0/device", 1.into()),
        ("/host_arenas/0/context", 3.into()),
        ("/host_arenas/0/flags", 1.into()),
        ("/host_arenas/0/live_bytes/peak", 4096.into()),
        ("/host_arenas/0/allocations", 10.into()),
        (
            "/host_arenas/0/host_memory_stats/active_bytes.peak",
            25.into(),
        ),
        (
            "/host_arenas/0/host_memory_stats/host_alloc_time.count",
            2.into(),
        ),
        ("/arenas/0/device_total_bytes", (16u64 << 30).into()),
        ("/arenas/0/live_bytes/peak", 4096.into()),
        ("/arenas/0/reserved_bytes/current", 4096.into()),
        ("/arenas/0/fragmentation", 0.25.into()),
        ("/arenas/0/allocations", 10.into()),
        ("/arenas/0/size_classes/0/up_to_bytes", 512.into()),
        ("/arenas/0/size_classes/1/up_to_bytes", Value::Null),
        ("/arenas/0/size_classes/1/frees", 3.into()),
        ("/arenas/0/driver_calls/alloc/failures", 1.into()),
        ("/arenas/0/driver_calls/fence/total_ns", 70.into()),
        ("/arenas/0/idle_low_bytes", 11.into()),
        ("/arenas/0/at_reserved_peak/live_bytes", 12.into()),
        ("/arenas/0/at_reserved_peak/cached_bytes", 13.into()),
        ("/arenas/0/at_reserved_peak/limbo_bytes", 14.into()),
        ("/arenas/0/at_reserved_peak/idle_bytes", 26.into()),
        ("/arenas/0/fragmented_ooms", 27.into()),
        ("/arenas/0/fragmented_misses", 15.into()),
        ("/arenas/0/limbo_misses", 16.into()),
        ("/arenas/0/longest_wait_ns", 17.into()),
        ("/arenas/0/budget_waits", 18.into()),
        ("/arenas/0/budget_wait_ns", 19.into()),
        ("/arenas/0/largest_oom_bytes", 20.into()),
        ("/arenas/0/size_classes/0/live_blocks", 21.into()),
        ("/arenas/0/size_classes/0/live_bytes", 22.into()),
        ("/arenas/0/size_classes/0/peak_blocks", 23.into()),
        ("/arenas/0/size_classes/0/peak_bytes", 24.into()),
        ("/arenas/0/memory_stats/active_bytes.all.peak", 25.into()),
        ("/arenas/0/paddle/Reserved/peak", 9000.into()),
        ("/arenas/0/paddle/Allocated/current", 1024.into()),
        ("/arenas/0/oom_events/0/request_bytes", 1000.into()),
        ("/arenas/0/oom_events/0/driver_total_bytes", Value::Null),
        ("/arenas/0/oom_events/0/free_in_sum_bytes", 1200.into()),
        ("/arenas/0/oom_events/0/largest_free_bytes", 700.into()),
        ("/arenas/0/oom_events/0/fragmented", true.into()),
        ("/arenas/0/oom_events/0/live_sizes/0/bytes", 1024.into()),
        ("/arenas/0/oom_events/0/live_stacks/0/stack", 3.into()),
        ("/arenas/0/oom_events/0/stack", Value::Null),
        ("/arenas/0/oom_events_left_out", 0.into()),
    ] {
        assert_eq!(json.pointer(pointer), Some(&expected), "{pointer}");
    }
    assert_eq!(json["warnings"].as_array().map(Vec::len), Some(1));
    assert_eq!(
        json["arenas"][0]["size_classes"].as_array().unwrap().len(),
        2
    );
    let keys = json["options"].as_object().unwrap().keys();
    assert!(keys.len() < OPTIONS.len() && keys.len() > 9);
}

#[test]
fn sums_do_not_overflow() {
    let mut full = arena(0);
    full.stats.hits = u64::MAX;
    full.stats.classes[0].requested = u64::MAX;
    let json = json(&[full.clone(), full]);
    assert_eq!(json["totals"]["hits"], u64::MAX);
    assert_eq!(json["totals"]["requested_bytes"], u64::MAX);
}

#[test]
fn a_process_without_arenas_is_a_report_too() {
    let json = json(&[]);
    assert_eq!(json["arenas"], Value::Array(Vec::new()));
    assert_eq!(json["totals"]["allocations"], 0);
}

#[test]
fn the_text_is_the_json_with_its_keys_in_order() {
    let text = text(&[arena(0)], None);
    assert_eq!(
        serde_json::from_str::<Value>(&text).unwrap(),
        json(&[arena(0)])
    );
    assert!(text.starts_with("{\n  \"schema\": 1,\n") && text.ends_with("}\n"));
    assert!(text.find("\"pid\"") < text.find("\"totals\""));
}

/// The snapshot comes last and changes nothing before it.
#[test]
fn the_snapshot_is_in_the_text() {
    let mut value: Value = serde_json::from_str(&text(&[arena(0)], Some(&snapshots()))).unwrap();
    let snapshot = value.as_object_mut().unwrap().remove("snapshot").unwrap();
    assert_eq!(value, json(&[arena(0)]));
    for (pointer, expected) in [
        ("/blocks", Value::from(2)),
        ("/left_out", false.into()),
        ("/arenas/0/device", 1.into()),
        ("/arenas/0/segments/0/address", 4096.into()),
        ("/arenas/0/segments/0/kind", "small".into()),
        ("/arenas/0/segments/0/blocks/0/requested", 1000.into()),
        ("/arenas/0/segments/0/blocks/0/stack", 3.into()),
        ("/arenas/0/segments/0/blocks/1/state", "inactive".into()),
        ("/arenas/0/events_lost", 5.into()),
        ("/arenas/0/events/0/address", 4096.into()),
        ("/arenas/0/events/1/device_free", 600.into()),
        ("/arenas/0/events/1/time_us", 77.into()),
        ("/arenas/1/segments", Value::Array(Vec::new())),
        ("/frames/0/object", "/usr/lib/a \"quoted\".so".into()),
        ("/frames/1/name", Value::Null),
        ("/stacks/0/stack", 3.into()),
        ("/stacks/0/frames/1", 0.into()),
    ] {
        assert_eq!(snapshot.pointer(pointer), Some(&expected), "{pointer}");
    }
    let free = &snapshot["arenas"][0]["segments"][0]["blocks"][1];
    assert_eq!(free.get("stack"), None);

    let none = text(&[arena(0)], Some(&Snapshots::default()));
    let none: Value = serde_json::from_str(&none).unwrap();
    assert_eq!(none["snapshot"]["arenas"], Value::Array(Vec::new()));
}

/// The paths of all keys below `value`, with what differs from file to file
/// replaced by what the page calls it.
fn keys(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let key = match path {
                    "" => key.clone(),
                    "options" => format!("{path}.<option>"),
                    "arenas[].driver_calls" | "host_arenas[].driver_calls" => {
                        format!("{path}.<kind>")
                    }
                    "arenas[].memory_stats" | "host_arenas[].host_memory_stats" => {
                        format!("{path}.<key>")
                    }
                    _ => format!("{path}.{key}"),
                };
                keys(value, &key, found);
                found.insert(key);
            }
        }
        Value::Array(values) => {
            for value in values {
                keys(value, &format!("{path}[]"), found);
            }
        }
        _ => {}
    }
}

/// First cells, in code quotes, of the rows below a heading of the page.
fn documented(headings: &[&str]) -> BTreeSet<String> {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/statistics.md"));
    let mut inside = false;
    let mut found = BTreeSet::new();
    for line in page.unwrap().lines() {
        if let Some(heading) = line.strip_prefix("### ") {
            inside = headings.contains(&heading);
        } else if inside && let Some(rest) = line.strip_prefix("| `") {
            let cells: Vec<&str> = rest.split('|').map(str::trim).collect();
            assert!(
                cells.iter().rev().skip(1).all(|cell| !cell.is_empty()),
                "{line}"
            );
            let key = cells[0].trim_end_matches('`').to_owned();
            assert!(found.insert(key), "{line} stands twice");
        }
    }
    found
}

#[test]
fn the_page_holds_every_key_and_no_other() {
    let arenas = [arena(0), host_arena()];
    let json: Value = serde_json::from_str(&text(&arenas, Some(&snapshots()))).unwrap();
    let mut written = BTreeSet::new();
    keys(&json, "", &mut written);
    let on_page = documented(&[
        "The process",
        "All arenas together",
        "One arena",
        "A request that failed",
        "The snapshot",
        "Page-locked host memory",
        "Pageable host memory",
    ]);
    // What both kinds of arenas have is on the page once.
    written.retain(|key| {
        let common = key.strip_prefix("host_").filter(|key| *key != "arenas");
        on_page.contains(key) || !common.is_some_and(|key| on_page.contains(key))
    });
    assert_eq!(written, on_page);

    let kinds: BTreeSet<String> = json["arenas"][0]["driver_calls"]
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect();
    assert_eq!(kinds, documented(&["Kinds of driver calls"]));
}

/// The keys that the page says both kinds of arenas have.
#[test]
fn host_arenas_have_the_keys_of_all_arenas() {
    let json = json(&[arena(0), host_arena()]);
    let keys_of = |arena: &Value, own: &[&str]| -> BTreeSet<String> {
        let keys = arena.as_object().unwrap().keys();
        let common = keys.filter(|key| !own.contains(&key.as_str()));
        common.cloned().collect()
    };
    let device = ["device_name", "device_total_bytes", "lane", "memory_stats"];
    let host = ["context", "flags", "host_memory_stats"];
    assert_eq!(
        keys_of(&json["arenas"][0], &device),
        keys_of(&json["host_arenas"][0], &host)
    );
}

/// Pageable memory is of no device.
#[test]
fn pageable_memory_has_the_keys_of_host_arenas() {
    let pageable = ArenaReport {
        pageable: true,
        ..arena(0)
    };
    let json = json(&[arena(0), host_arena(), pageable]);
    let expected = (json["host_arenas"][0].as_object().unwrap().keys())
        .filter(|key| !["device", "context", "flags", "host_memory_stats"].contains(&key.as_str()));
    let keys = json["pageable"].as_object().unwrap().keys();
    assert!(keys.eq(expected));
    assert_eq!(json["pageable"]["live_bytes"]["peak"], 4096);
    let one = |list: &str| json[list].as_array().map(Vec::len);
    assert_eq!((one("arenas"), one("host_arenas")), (Some(1), Some(1)));
    assert_eq!(json["totals"]["allocations"], 10);
    assert_eq!(self::json(&[arena(0)])["pageable"], Value::Null);
}

#[test]
fn the_page_holds_every_host_metric_of_pytorch() {
    let mut expected = documented(&["Single host numbers"]);
    for metric in documented(&["Host metrics"]) {
        let values = ["current", "peak", "allocated", "freed"];
        expected.extend(values.map(|value| format!("{metric}.{value}")));
    }
    for time in documented(&["Host times"]) {
        let values = ["total", "max", "min", "count", "avg"];
        expected.extend(values.map(|value| format!("{time}.{value}")));
    }
    let json = json(&[host_arena()]);
    let stats = json["host_arenas"][0]["host_memory_stats"].as_object();
    let keys = stats.unwrap().keys().cloned();
    assert_eq!(keys.collect::<BTreeSet<_>>(), expected);
}

#[test]
fn the_page_holds_every_metric_of_pytorch() {
    let values = ["current", "peak", "allocated", "freed"];
    let mut expected = documented(&["Single numbers"]);
    for metric in documented(&["Metrics without pools"]) {
        expected.extend(values.map(|value| format!("{metric}.{value}")));
    }
    for metric in documented(&["Metrics with pools"]) {
        for pool in ["all", "small_pool", "large_pool"] {
            expected.extend(values.map(|value| format!("{metric}.{pool}.{value}")));
        }
    }
    let json = json(&[arena(0)]);
    let stats = json["arenas"][0]["memory_stats"].as_object().unwrap();
    assert_eq!(stats.keys().cloned().collect::<BTreeSet<_>>(), expected);
    assert!(stats.keys().is_sorted());
}
