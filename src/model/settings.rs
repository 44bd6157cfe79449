//! The properties of a model GPU, and its unit of time.

use vramalloc_core::address::{Address, Bytes};

/// A time of the virtual clock, or a duration, in nanoseconds.
pub type Nanos = u64;

/// The properties of a model GPU.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How many devices there are.
    pub devices: u32,
    /// Memory of each device.
    pub memory: Bytes,
    /// Unit of a device's memory, a power of two.
    pub page: Bytes,
    /// The first address of the first device; a multiple of `page`.
    pub base: Address,
    /// The address space of each device; devices follow each other.
    pub span: Bytes,
    /// Simulated time that each call takes.
    pub call_ns: Nanos,
    /// Seed of everything random.
    pub seed: u64,
    /// Whether unordered work on the same bytes is a violation, even if the
    /// clock happens to keep it apart.
    pub races: bool,
    /// Whether a destroyed stream's unfinished work is ordered with no other
    /// stream: the least that CUDA promises.
    pub orphans: bool,
    /// Whether there is virtual memory.
    pub maps: bool,
    /// Whether one call unmaps several units.
    pub unmaps_runs: bool,
    /// Memory of the host, for backups.
    pub host: Bytes,
}

impl Default for Settings {
    /// One device of 16 GiB with 2 MiB pages, and 1 µs per call.
    fn default() -> Settings {
        Settings {
            devices: 1,
            memory: Bytes::gib(16),
            page: Bytes::mib(2),
            base: Address::new(0x7f40_0000_0000),
            span: Bytes::gib(64),
            call_ns: 1_000,
            seed: 1,
            races: false,
            orphans: false,
            maps: true,
            unmaps_runs: true,
            host: Bytes::MAX,
        }
    }
}
