//! The page that documents the JSON names every key of it, and no other.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;
use vramalloc_core::stats::ArenaReport;

use crate::sample::{arena, host_arena, json, snapshots, text};

/// The paths of all keys below `value`; `named` is what a key below a path is
/// called.
pub(crate) fn paths(
    value: &Value,
    path: &str,
    named: &impl Fn(&str, &str) -> String,
    found: &mut BTreeSet<String>,
) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let key = match path {
                    "" => key.clone(),
                    _ => format!("{path}.{}", named(path, key)),
                };
                paths(value, &key, named, found);
                found.insert(key);
            }
        }
        Value::Array(values) => {
            for value in values {
                paths(value, &format!("{path}[]"), named, found);
            }
        }
        _ => {}
    }
}

/// The paths of all keys below `value`, with what differs from file to file
/// replaced by what the page calls it.
fn keys(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    let named = |path: &str, key: &str| {
        let called = match path {
            "options" => "<option>",
            "arenas[].driver_calls" | "host_arenas[].driver_calls" => "<kind>",
            "arenas[].memory_stats" | "host_arenas[].host_memory_stats" => "<key>",
            _ => key,
        };
        called.to_owned()
    };
    paths(value, path, &named, found);
}

/// First cells, in code quotes, of the rows below a heading of the page.
fn documented(headings: &[&str]) -> BTreeSet<String> {
    let page = fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../docs/statistics.md"
    ));
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
        "Who holds it",
        "Memory past the pool",
        "A request that failed",
        "Call stacks",
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
    let device = [
        "device_name",
        "device_total_bytes",
        "lane",
        "mapping",
        "memory_stats",
        "packing",
        "pause",
        "region",
        "strategy",
        "thread_cache",
    ];
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
