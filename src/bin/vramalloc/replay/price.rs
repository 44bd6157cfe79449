//! What the driver's calls for memory take, where nothing was measured: published
//! figures, which docs/benchmarks.md uses, too.

use vramalloc_core::stats::DriverCalls;

/// Nanoseconds of an allocation and of a free, which take 14 µs together.
const ALLOC: u64 = 7_000;
const FREE: u64 = 7_000;

/// Nanoseconds of the calls for a unit of mapped memory, of 2 MiB.
const CREATE: u64 = 29_000;
const MAP: u64 = 2_000;
const SET_ACCESS: u64 = 38_000;
const UNMAP: u64 = 34_000;
const RELEASE: u64 = 23_000;

/// Nanoseconds of recording an event, and of querying one.
const FENCE: u64 = 210;
const REACHED: u64 = 100;

/// Calls that take memory from the driver, give it back, map or unmap it.
pub(crate) fn memory_calls(calls: &DriverCalls) -> u64 {
    let mapping = &calls.mapping;
    calls.alloc.calls
        + calls.free.calls
        + mapping.create.calls
        + mapping.map.calls
        + mapping.set_access.calls
        + mapping.unmap.calls
        + mapping.release.calls
}

/// What all calls take, in ns, without what they wait for the device.
pub(crate) fn price(calls: &DriverCalls) -> u64 {
    let mapping = &calls.mapping;
    [
        (calls.alloc.calls, ALLOC),
        (calls.free.calls, FREE),
        (mapping.create.calls, CREATE),
        (mapping.map.calls, MAP),
        (mapping.set_access.calls, SET_ACCESS),
        (mapping.unmap.calls, UNMAP),
        (mapping.release.calls, RELEASE),
        (calls.fence.calls, FENCE),
        (calls.reached.calls, REACHED),
        (calls.wait.calls, REACHED),
    ]
    .iter()
    .map(|(calls, ns)| calls.saturating_mul(*ns))
    .sum()
}
