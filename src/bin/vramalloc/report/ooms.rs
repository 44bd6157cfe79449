//! The requests that failed for want of memory, as the file describes them.
//!
//! Invariant: as that of the file.

use serde::Deserialize;

/// A failed request.
#[derive(Deserialize)]
pub(super) struct Oom {
    /// Microseconds since 1970.
    pub(super) time_us: u64,
    #[serde(rename = "request_bytes")]
    pub(super) request: u64,
    #[serde(rename = "rounded_bytes")]
    pub(super) rounded: u64,
    pub(super) at_limit: bool,
    #[serde(rename = "limit_bytes")]
    pub(super) limit: Option<u64>,
    #[serde(rename = "driver_free_bytes")]
    pub(super) driver_free: Option<u64>,
    #[serde(rename = "driver_total_bytes")]
    pub(super) driver_total: Option<u64>,
    /// By all arenas of the device.
    #[serde(rename = "device_reserved_bytes")]
    pub(super) device_reserved: u64,
    pub(super) before: Holdings,
    pub(super) after: Holdings,
    #[serde(rename = "free_in_sum_bytes")]
    pub(super) free_in_sum: u64,
    #[serde(rename = "largest_free_bytes")]
    pub(super) largest_free: u64,
    pub(super) fragmented: bool,
    #[serde(rename = "live_sizes")]
    pub(super) sizes: Vec<Group>,
    #[serde(rename = "live_stacks")]
    pub(super) stacks: Vec<Group>,
    pub(super) stack: Option<u64>,
}

/// What an arena held.
#[derive(Deserialize)]
pub(super) struct Holdings {
    #[serde(rename = "reserved_bytes")]
    pub(super) reserved: u64,
    #[serde(rename = "live_bytes")]
    pub(super) live: u64,
    #[serde(rename = "cached_bytes")]
    pub(super) cached: u64,
    #[serde(rename = "limbo_bytes")]
    pub(super) limbo: u64,
}

/// Live blocks of one size, or of one call stack.
#[derive(Deserialize)]
pub(super) struct Group {
    /// The size, or the number of the call stack.
    #[serde(rename = "size_bytes", alias = "stack")]
    pub(super) key: u64,
    pub(super) count: u64,
    pub(super) bytes: u64,
}
