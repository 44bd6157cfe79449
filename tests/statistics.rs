//! The JSON of a process, and the page that documents it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::Value;
use vramalloc::Bytes;
use vramalloc::config::{Host, Loaded, OPTIONS, load};
use vramalloc::stats::{
    ArenaReport, ArenaStats, CallCount, ClassCount, ClassLive, Gauge, Metric, Parts, Process,
    Report, SCHEMA, SIZE_CLASSES,
};

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
                limbo: Bytes::new(14),
            },
            fragmented_misses: 15,
            limbo_misses: 16,
            longest_wait_ns: 17,
            budget_waits: 18,
            budget_wait_ns: 19,
            largest_oom: Bytes::new(20),
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
    };
    arena.calls.fence = CallCount {
        calls: 7,
        failures: 0,
        ns: 70,
    };
    arena
}

fn json(arenas: &[ArenaReport]) -> Value {
    Report {
        process: &process(),
        loaded: &loaded(),
        last: true,
        doors: &["cuMemAlloc_v2", "cudaMalloc"],
        arenas,
    }
    .to_json()
}

#[test]
fn numbers_stand_where_they_belong() {
    let json = json(&[arena(0), arena(1)]);
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
    let text = Report {
        process: &process(),
        loaded: &loaded(),
        last: true,
        doors: &["cuMemAlloc_v2", "cudaMalloc"],
        arenas: &[arena(0)],
    }
    .to_text();
    assert_eq!(
        serde_json::from_str::<Value>(&text).unwrap(),
        json(&[arena(0)])
    );
    assert!(text.starts_with("{\n  \"schema\": 1,\n") && text.ends_with("}\n"));
    assert!(text.find("\"pid\"") < text.find("\"totals\""));
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
                    "arenas[].driver_calls" => format!("{path}.<kind>"),
                    "arenas[].memory_stats" => format!("{path}.<key>"),
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
    let json = json(&[arena(0)]);
    let mut written = BTreeSet::new();
    keys(&json, "", &mut written);
    let sections = ["The process", "All arenas together", "One arena"];
    assert_eq!(written, documented(&sections));

    let kinds: BTreeSet<String> = json["arenas"][0]["driver_calls"]
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect();
    assert_eq!(kinds, documented(&["Kinds of driver calls"]));
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
