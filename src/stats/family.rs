//! Memory of a device that the program takes from CUDA past the arenas, as plain
//! values; [`families`](crate::families) counts it.

use serde_json::{Value, json};

use super::Gauge;
use super::json::gauge;
use crate::address::Bytes;
use crate::library::LibraryBytes;

/// A family of functions that take device memory past the arenas.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Family {
    /// `cuMemAllocAsync` and its like: what CUDA's memory pools have reserved.
    AsyncPools,
    /// `cuMemCreate`: memory that is mapped at addresses of its own.
    Virtual,
    /// `cuMemAllocManaged`.
    Managed,
    /// `cuArrayCreate` and its like.
    Arrays,
    /// What the graphs of a device have reserved for their own allocations.
    Graphs,
}

impl Family {
    /// All of them, in the order of the statistics.
    pub const ALL: [Family; 5] = [
        Family::AsyncPools,
        Family::Virtual,
        Family::Managed,
        Family::Arrays,
        Family::Graphs,
    ];

    /// Its name for a reader.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Family::AsyncPools => "memory of a stream (cudaMallocAsync)",
            Family::Virtual => "virtual memory (cuMemCreate)",
            Family::Managed => "managed memory (cudaMallocManaged)",
            Family::Arrays => "an array (cudaMallocArray)",
            Family::Graphs => "memory of a graph",
        }
    }

    /// What a reader calls what takes such memory: the function of the runtime,
    /// or of the driver if the runtime has none.
    #[must_use]
    pub fn taken_by(self) -> &'static str {
        match self {
            Family::AsyncPools => "cudaMallocAsync",
            Family::Virtual => "cuMemCreate",
            Family::Managed => "cudaMallocManaged",
            Family::Arrays => "cudaMallocArray",
            Family::Graphs => "graphs",
        }
    }

    /// The family with this key, if it is known.
    #[must_use]
    pub fn with_key(key: &str) -> Option<Family> {
        Family::ALL.into_iter().find(|family| family.key() == key)
    }

    /// Its key in the statistics.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Family::AsyncPools => "async_pools",
            Family::Virtual => "virtual",
            Family::Managed => "managed",
            Family::Arrays => "arrays",
            Family::Graphs => "graphs",
        }
    }
}

/// What was counted of one family on one device.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct FamilyStats {
    /// Bytes of the device.
    pub bytes: Gauge,
    /// Calls that CUDA served.
    pub calls: u64,
    /// Calls that were answered with out of memory because of the limit.
    pub refused: u64,
    /// Bytes of each library of the program, of memory that one call gives.
    pub libraries: LibraryBytes,
}

/// A family on a device.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct FamilyReport {
    /// Ordinal of the device.
    pub device: u32,
    /// The family.
    pub family: Family,
    /// What was counted.
    pub stats: FamilyStats,
}

impl FamilyReport {
    /// Whether the program used the family.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.stats != FamilyStats::default()
    }

    pub(super) fn to_json(self) -> Value {
        json!({
            "device": self.device,
            "family": self.family.key(),
            "bytes": gauge(self.stats.bytes),
            "calls": self.stats.calls,
            "refused": self.stats.refused,
        })
    }
}

/// Memory that other processes or other interfaces made.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ImportReport {
    /// How it came here.
    pub way: &'static str,
    /// How often.
    pub count: u64,
    /// Bytes, as far as their number was told.
    pub bytes: Bytes,
}

impl ImportReport {
    pub(super) fn to_json(self) -> Value {
        json!({ "way": self.way, "count": self.count, "bytes": self.bytes.get() })
    }
}
