//! The JSON of a process, and the page that documents it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod kept;
mod page;
mod sample;

use serde_json::Value;
use vramalloc_core::config::OPTIONS;
use vramalloc_core::stats::{SCHEMA, Snapshots};

use crate::sample::{arena, host_arena, json, snapshots, text};

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
        ("/families/0/device", 1.into()),
        ("/families/0/family", "virtual".into()),
        ("/families/0/bytes/current", 31.into()),
        ("/families/0/bytes/peak", 32.into()),
        ("/families/0/calls", 33.into()),
        ("/families/0/refused", 34.into()),
        ("/owners/0/device", 0.into()),
        ("/owners/0/owner", "libfirst.so.1".into()),
        ("/owners/0/file", "/lib/libfirst.so.1".into()),
        ("/owners/0/bytes", 0.into()),
        ("/owners/0/peak_bytes", 43.into()),
        ("/owners/0/past_pool_bytes", 0.into()),
        ("/owners/1/device", 1.into()),
        ("/owners/2/owner", "train".into()),
        ("/owners/2/past_pool_bytes", 41.into()),
        ("/elsewhere/0/device", 1.into()),
        ("/elsewhere/0/bytes", 44.into()),
        ("/elsewhere/0/asked_unix_ms", 45.into()),
        ("/imports/0/way", "ipc".into()),
        ("/imports/0/count", 35.into()),
        ("/imports/0/bytes", 36.into()),
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

/// The snapshot comes last, after the call stacks, and both change nothing before
/// them.
#[test]
fn the_snapshot_is_in_the_text() {
    let mut value: Value = serde_json::from_str(&text(&[arena(0)], Some(&snapshots()))).unwrap();
    let snapshot = value.as_object_mut().unwrap().remove("snapshot").unwrap();
    let stacks = value
        .as_object_mut()
        .unwrap()
        .remove("call_stacks")
        .unwrap();
    assert_eq!(value, json(&[arena(0)]));
    for (pointer, expected) in [
        ("/mode", Value::from("all")),
        ("/python/version", "3.12".into()),
        ("/python/reason", Value::Null),
        ("/objects/0/file", "/usr/lib/a \"quoted\".so".into()),
        ("/objects/0/build_id", "00ff".into()),
        ("/frames/0/offset", 4660.into()),
        ("/frames/1/object", Value::Null),
        ("/frames/2/function", "forward".into()),
        ("/stacks/0/frames/2", 2.into()),
        ("/live/0/bytes", 1024.into()),
        ("/peak/1/stack", Value::Null),
        ("/failed/0/count", 2.into()),
    ] {
        assert_eq!(stacks.pointer(pointer), Some(&expected), "{pointer}");
    }
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
        ("/frames/2/object", "train.py".into()),
        ("/frames/2/offset", 41.into()),
        ("/frames/2/name", "forward".into()),
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
