//! The values that options can have: plain data. Their readers define what they
//! do.

use std::time::Duration;

use crate::address::Bytes;

/// Whether the frameworks' own variables are read as well.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Import {
    /// Unless the framework is loaded and reads them itself.
    #[default]
    Auto,
    /// In any process.
    Always,
    /// In no process.
    Never,
}

/// When chunks are taken from the driver and how large they are.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum StrategyKind {
    /// A large chunk in advance, by fraction or by size.
    NaiveBestFit,
    /// A chunk for what is needed, when it is needed; freed memory is cached.
    #[default]
    AutoGrowth,
    /// The same, with memory in units that are mapped to wherever it is needed.
    Mapped,
    /// Every call goes to the driver.
    Passthrough,
}

/// When memory that the program freed may be handed out again.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum FreeSync {
    /// When a fence later than the free was reached; the free returns at once.
    #[default]
    Deferred,
    /// When a fence later than the free was reached; the free waits for it, as
    /// CUDA's own does.
    Strict,
    /// At once. Unsafe if more than one stream is used.
    Immediate,
}

/// How much of what a thread frees it may keep for its own next requests.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum ThreadCacheSize {
    /// A share of what is reserved.
    #[default]
    Auto,
    /// This many bytes; none: no thread keeps anything.
    Most(Bytes),
}

/// How much freed memory collects before an epoch is closed.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
pub enum GarbageThreshold {
    /// The epoch closes at the next opportunity.
    #[default]
    NextOpportunity,
    /// The epoch closes when this many bytes were freed.
    Bytes(Bytes),
    /// The epoch closes only under memory pressure, at an explicit flush, or
    /// when the limbo budget is used up.
    Pressure,
}

/// A size that may be given as a share of the device.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum DeviceShare {
    /// A number of bytes.
    Bytes(Bytes),
    /// This share of the device's total memory, above 0 and up to 1.
    Fraction(f64),
}

impl DeviceShare {
    /// The size in bytes on a device of `total` bytes.
    #[must_use]
    pub fn of(self, total: Bytes) -> Bytes {
        match self {
            DeviceShare::Bytes(bytes) => bytes,
            DeviceShare::Fraction(fraction) => total.scaled(fraction),
        }
    }
}

/// How requests are rounded, beyond whole slots, before a block is looked for:
/// sizes that are equal after rounding reuse each other's blocks exactly.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Rounding {
    /// The number of equal steps between two powers of two, by size: entry `i`
    /// holds for sizes from `2^i` MiB to below `2^(i+1)` MiB, the first entry
    /// also for all below and the last for all above. 0 and 1: no rounding;
    /// else a power of two.
    pub divisions: [u32; 16],
    /// Sizes above this are not rounded; `None`: all are.
    pub bypass: Option<Bytes>,
}

/// Which cached blocks may be cut and which requests they may serve, by
/// PyTorch's rules.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Splitting {
    /// Requests of at least this size have chunks of their own, which are not
    /// cut and serve no smaller request; `None`: all blocks may be cut.
    pub max_split: Option<Bytes>,
    /// A block that is larger than the request by this much or more does not
    /// serve a request of at least `max_split`; `None`: `large_segment`, or 20
    /// MiB if that is `None` too.
    pub max_non_split_rounding: Option<Bytes>,
    /// The chunk that is taken for a request above 1 MiB and below 10 MiB;
    /// `None`: as large as needed.
    pub large_segment: Option<Bytes>,
}

/// The fill of memory that is handed out, for finding uses of memory that was
/// never written.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Fill {
    /// The byte.
    pub byte: u8,
    /// Whether the whole block is filled, or only the requested bytes.
    pub whole_block: bool,
}

/// The recording of every event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordConfig {
    /// The pattern of its file, as in [`StatsTarget`](super::StatsTarget); `None`:
    /// there is none.
    pub file: Option<String>,
    /// The most bytes of it.
    pub most: Bytes,
    /// Whether the oldest events then make room for new ones.
    pub ring: bool,
}

impl Default for RecordConfig {
    fn default() -> RecordConfig {
        RecordConfig {
            file: None,
            most: Bytes::gib(1),
            ring: false,
        }
    }
}

/// What is reported when a request fails for want of memory.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum OomReport {
    /// Only the count.
    Off,
    /// A line on standard error and an entry in the statistics.
    #[default]
    Summary,
    /// As `Summary`, with the call stacks of the live blocks, which are then
    /// taken at every allocation.
    Full,
}

/// Which requests have their call stacks taken.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum StackChoice {
    /// None, unless another option asks for them.
    #[default]
    Off,
    /// A sample, by their sizes.
    Sampled,
    /// Each.
    All,
}

/// What is done about memory that the program takes from CUDA past the arenas.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct FamiliesConfig {
    /// Whether idle memory goes back where a call of CUDA's finds none.
    pub room: bool,
    /// How long such a call waits for the device.
    pub room_wait: Duration,
    /// Whether managed memory counts.
    pub managed: bool,
    /// Whether NVML's answers about memory agree with the limit.
    pub nvml: bool,
}

impl Default for FamiliesConfig {
    fn default() -> FamiliesConfig {
        FamiliesConfig {
            room: true,
            room_wait: Duration::from_secs(1),
            managed: true,
            nvml: true,
        }
    }
}

/// The pool of page-locked host memory.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct PinnedConfig {
    /// The most that may be reserved, as a share of the host's memory, 0 to 1;
    /// 0: nothing is pooled and every call goes to CUDA.
    pub fraction: f64,
    /// The size of a segment that is taken at the first request and kept;
    /// `None`: there is no such segment.
    pub reserve_segment: Option<Bytes>,
    /// Requests up to this size are rounded to a power of two; `None`: requests
    /// are rounded to whole blocks only.
    pub max_round_threshold: Option<Bytes>,
    /// Larger blocks go back to CUDA when they are freed; `None`: all are
    /// cached.
    pub max_cached: Option<Bytes>,
    /// Whether memory is taken from the system, touched and then registered,
    /// rather than allocated by CUDA.
    pub use_host_register: bool,
    /// The number of threads that touch it; a power of two up to 128.
    pub register_threads: u32,
    /// Whether a thread of the library processes freed blocks.
    pub background_threads: bool,
}

impl Default for PinnedConfig {
    fn default() -> PinnedConfig {
        PinnedConfig {
            fraction: 0.5,
            reserve_segment: None,
            max_round_threshold: None,
            max_cached: None,
            use_host_register: false,
            register_threads: 1,
            background_threads: false,
        }
    }
}

/// The pool of pageable host memory behind the C API.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct PageableConfig {
    /// A chunk is at most this share of a 32nd of the host's memory.
    pub fraction: f64,
    /// A chunk is at most this large.
    pub initial: Bytes,
}

impl Default for PageableConfig {
    fn default() -> PageableConfig {
        PageableConfig {
            fraction: 1.0,
            initial: Bytes::mib(500),
        }
    }
}

impl PageableConfig {
    /// The size of a chunk on a host with this much memory. Larger requests are
    /// not pooled.
    #[must_use]
    pub fn chunk(self, memory: Bytes) -> Bytes {
        Bytes::new(memory.scaled(self.fraction).get() / 32).min(self.initial)
    }
}

/// How the C API packs groups of buffers into few allocations.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct GroupConfig {
    /// A group ends when it has more members than this; 1 or less: no bound.
    pub most_members: i32,
    /// A group ends when it has at least this many MiB; 0: all buffers are one
    /// group; negative: each layer is one.
    pub least_mib: f64,
}

impl Default for GroupConfig {
    fn default() -> GroupConfig {
        GroupConfig {
            most_members: 1,
            least_mib: -1.0,
        }
    }
}

/// How long idle memory is kept.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Decay {
    /// For good.
    #[default]
    Never,
    /// For this time; then it goes back to the driver at the next opportunity.
    After(Duration),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Paddle's formula for its CPU allocator, with its hidden 32nd.
    #[test]
    fn a_chunk_of_pageable_memory_is_the_smaller_of_both() {
        let chunk = |fraction, initial| {
            let config = PageableConfig { fraction, initial };
            config.chunk(Bytes::gib(64))
        };
        assert_eq!(chunk(1.0, Bytes::mib(500)), Bytes::mib(500));
        assert_eq!(chunk(1.0, Bytes::gib(500)), Bytes::gib(2));
        assert_eq!(chunk(0.125, Bytes::mib(500)), Bytes::mib(256));
        assert_eq!(chunk(0.0, Bytes::mib(500)), Bytes::ZERO);
    }
}
