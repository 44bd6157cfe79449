//! PyTorch's statistics of page-locked host memory, under its own keys.
//!
//! Owns their names and their meaning for this library: an *allocation* is a
//! chunk or a direct allocation; a request is active until its block can be
//! handed out again.

use std::collections::BTreeMap;

use super::{CallCount, DriverCalls, MemoryStats, Metric};

/// PyTorch reports these times in microseconds.
const US: u64 = 1000;

/// Every number under PyTorch's flat key, sorted.
pub(super) fn host_memory_stats(
    memory: &MemoryStats,
    calls: &DriverCalls,
) -> BTreeMap<String, u64> {
    let mut flat = BTreeMap::new();
    for (name, metric) in [
        ("allocations", Metric::Segment),
        ("allocated_bytes", Metric::ReservedBytes),
        ("active_requests", Metric::Active),
        ("active_bytes", Metric::ActiveBytes),
    ] {
        for (value, number) in memory.all[metric].values() {
            flat.insert(format!("{name}.{value}"), number);
        }
    }
    flat.insert("num_host_alloc".to_owned(), memory.num_device_alloc);
    flat.insert("num_host_free".to_owned(), memory.num_device_free);
    for (name, calls) in [
        ("host_alloc_time", calls.alloc),
        ("host_free_time", calls.free),
    ] {
        for (value, number) in times(calls) {
            flat.insert(format!("{name}.{value}"), number);
        }
    }
    flat
}

fn times(calls: CallCount) -> [(&'static str, u64); 5] {
    [
        ("total", calls.ns / US),
        ("max", calls.longest_ns / US),
        ("min", calls.shortest_ns / US),
        ("count", calls.calls),
        ("avg", calls.ns.checked_div(calls.calls).unwrap_or(0) / US),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Stat;

    #[test]
    fn the_numbers_are_those_of_the_arena() {
        let mut memory = MemoryStats::default();
        memory.all[Metric::ReservedBytes] = Stat {
            current: 7,
            peak: 9,
            allocated: 12,
            freed: 5,
        };
        memory.num_device_alloc = 3;
        let alloc = CallCount {
            calls: 3,
            ns: 7000,
            longest_ns: 4000,
            shortest_ns: 1000,
            ..CallCount::default()
        };
        let calls = DriverCalls {
            alloc,
            ..DriverCalls::default()
        };
        let flat = host_memory_stats(&memory, &calls);
        for (key, expected) in [
            ("allocated_bytes.peak", 9),
            ("allocated_bytes.freed", 5),
            ("allocations.current", 0),
            ("num_host_alloc", 3),
            ("host_alloc_time.total", 7),
            ("host_alloc_time.max", 4),
            ("host_alloc_time.min", 1),
            ("host_alloc_time.avg", 2),
            ("host_free_time.avg", 0),
        ] {
            assert_eq!(flat.get(key), Some(&expected), "{key}");
        }
        assert_eq!(flat.len(), 4 * 4 + 2 + 2 * 5);
    }
}
