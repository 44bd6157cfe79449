//! The table of a real run, against a count that is made from the trace alone.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::report_of;
use vramalloc_tests::stage::{Kind, Run, trace};

const PASSES: u64 = 2;
const MIB: u64 = 1 << 20;

/// Current, peak, sum of increases, sum of decreases.
type Four = [u64; 4];

fn raise(four: &mut Four, by: u64) {
    four[0] += by;
    four[1] = four[1].max(four[0]);
    four[2] += by;
}

fn lower(four: &mut Four, by: u64) {
    four[0] -= by;
    four[3] += by;
}

/// What the trace did: for all, for large and for small requests, the number
/// of allocations, their bytes in whole slots of 512, and what was asked for.
#[derive(Default)]
struct Count {
    blocks: [Four; 3],
    bytes: [Four; 3],
    requested: [Four; 3],
    /// Each request is a driver allocation of its own: bytes are in pages
    /// where it shares none.
    is_direct: bool,
}

impl Count {
    /// Pools in which a request counts; `apart`: small ones have their own.
    fn pools(size: u64, apart: bool) -> [usize; 2] {
        let rounded = size.next_multiple_of(512);
        [0, if apart && rounded <= MIB { 2 } else { 1 }]
    }

    fn block(&self, size: u64) -> u64 {
        let slots = size.next_multiple_of(512);
        match self.is_direct && slots > MIB {
            true => slots.next_multiple_of(2 * MIB),
            false => slots,
        }
    }

    fn change(&mut self, size: u64, apart: bool, change: fn(&mut Four, u64)) {
        let block = self.block(size);
        for pool in Count::pools(size, apart) {
            change(&mut self.blocks[pool], 1);
            change(&mut self.bytes[pool], block);
            change(&mut self.requested[pool], size);
        }
    }

    /// As `replay.c` does it: all events, then frees of what is left.
    fn of(trace: &Path, apart: bool, is_direct: bool) -> Count {
        let text = fs::read_to_string(trace).unwrap();
        let mut count = Count {
            is_direct,
            ..Count::default()
        };
        for _ in 0..PASSES {
            let mut live: BTreeMap<&str, u64> = BTreeMap::new();
            for line in text.lines() {
                let fields: Vec<&str> = line.split(',').collect();
                if fields[0] == "a" {
                    let size = fields[2].parse().unwrap();
                    count.change(size, apart, raise);
                    assert_eq!(live.insert(fields[1], size), None);
                } else {
                    count.change(live.remove(fields[1]).unwrap(), apart, lower);
                }
            }
            for size in live.into_values() {
                count.change(size, apart, lower);
            }
        }
        count
    }
}

/// A number in the unit that fits `leading`, as the table's description has
/// it: sizes change at 768 KiB of the unit, counts at 750 000.
fn written(is_size: bool, value: u64, leading: u64) -> String {
    let (units, step, most): (&[&str], u64, u64) = if is_size {
        (&["B  ", "KiB", "MiB", "GiB"], 1024, 768 * 1024)
    } else {
        (&[" ", "K", "M"], 1000, 750_000)
    };
    let fits = |unit: u32| leading / step.pow(unit) < most;
    let (mut unit, mut power) = (0, 0);
    while !fits(power) && unit + 1 < units.len() {
        unit += 1;
        power += 1;
    }
    let value = value / step.pow(power);
    match is_size {
        true => format!("{value:>6} {}", units[unit]),
        false => format!("{value:>7} {} ", units[unit]),
    }
}

/// The three rows of a metric.
fn rows(name: &str, is_size: bool, pools: &[Four; 3]) -> Vec<String> {
    let names = [name, "      from large pool", "      from small pool"];
    let row = |(name, values): (&str, &Four)| {
        let columns: Vec<String> = (values.iter().zip(&pools[0]))
            .map(|(&value, &leading)| written(is_size, value, leading))
            .collect();
        format!("| {name:<21} | {} |", columns.join(" | "))
    };
    names.into_iter().zip(pools).map(row).collect()
}

/// A metric in the JSON, pool by pool.
fn metric(stats: &Value, name: &str) -> [Four; 3] {
    ["all", "large_pool", "small_pool"].map(|pool| {
        ["current", "peak", "allocated", "freed"].map(|value| {
            let key = format!("{name}.{pool}.{value}");
            let found = &stats["arenas"][0]["memory_stats"][&key];
            found.as_u64().unwrap_or_else(|| panic!("{key} is {found}"))
        })
    })
}

/// Fails unless the metric is in the JSON and in the printed table as counted.
#[track_caller]
fn is_told(stats: &Value, report: &str, (key, name): (&str, &str), counted: &[Four; 3]) {
    assert_eq!(metric(stats, key), *counted, "{key}");
    let rows = rows(name, key.ends_with("bytes"), counted).join("\n");
    assert!(report.contains(&rows), "{rows}\nis not in\n{report}");
}

fn check(conf: &str, apart: bool) {
    let trace = trace("gpt_train");
    let outcome = Run::preloaded("replay", Kind::Dynamic)
        .args([&trace.to_string_lossy(), &PASSES.to_string()])
        .env("SIM_CUDA_MEMORY", "64G")
        .conf(conf)
        .go();
    outcome.quiet(0).no_violations();
    let stats = outcome.stats();
    let report = report_of(&stats.to_string());
    let count = Count::of(&trace, apart, conf.contains("passthrough"));
    assert!(count.blocks[0][2] > 11_000 && count.blocks[1][2] > 5_000);

    let told = |names, counted| is_told(&stats, &report, names, counted);
    told(("allocation", "Allocations"), &count.blocks);
    told(("allocated_bytes", "Allocated memory"), &count.bytes);
    // What is active is more than that by what is in limbo, and so is what was
    // requested of it; of either as much was taken. With nothing in limbo it is
    // the same.
    if conf.contains("strict") || conf.contains("passthrough") {
        told(("active", "Active allocs"), &count.blocks);
        told(("active_bytes", "Active memory"), &count.bytes);
        told(("requested_bytes", "Requested memory"), &count.requested);
    } else {
        for (key, counted) in [
            ("active", &count.blocks),
            ("active_bytes", &count.bytes),
            ("requested_bytes", &count.requested),
        ] {
            let found = metric(&stats, key);
            for (found, counted) in found.iter().zip(counted) {
                assert_eq!(found[2], counted[2], "{key}");
                assert!(found[1] >= counted[1], "{key}");
            }
        }
    }
    if conf.contains("passthrough") {
        told(("segment", "GPU reserved segments"), &count.blocks);
        told(("reserved_bytes", "GPU reserved memory"), &count.bytes);
        told(("inactive_split", "Non-releasable allocs"), &[[0; 4]; 3]);
    } else {
        // The driver's own count, but for the two halves of the page that is
        // kept back.
        let segments = metric(&stats, "segment")[0];
        assert_eq!(segments[2] + 2, outcome.driver_calls("cuMemAlloc_v2"));
        assert_eq!(segments[3], outcome.driver_calls("cuMemFree_v2"));
    }
    let paddle = &stats["arenas"][0]["paddle"]["Allocated"];
    assert_eq!(paddle["peak"], count.bytes[0][1]);
}

#[test]
fn the_table_of_gpt_train_is_what_its_trace_says() {
    check("strategy:auto_growth", true);
}

#[test]
fn with_frees_that_wait_everything_follows_from_the_trace() {
    check("strategy:auto_growth,free_sync:strict", true);
}

#[test]
fn one_pool_counts_as_large() {
    check("strategy:naive_best_fit", false);
}

#[test]
fn direct_allocations_are_segments() {
    check("strategy:passthrough", true);
}
