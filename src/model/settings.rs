//! What a model GPU is like, and its time.

use vramalloc_core::address::{Address, Bytes};

/// A time of the virtual clock, or a duration, in nanoseconds.
pub type Nanos = u64;

/// What a model GPU is like.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How many devices there are.
    pub devices: u32,
    /// Memory of each device.
    pub memory: Bytes,
    /// Unit in which a device's memory is used up, a power of two.
    pub page: Bytes,
    /// Where the addresses of the first device begin; a multiple of `page`.
    pub base: Address,
    /// How much address space each device has, one after the other.
    pub span: Bytes,
    /// Simulated time that each call takes.
    pub call_ns: Nanos,
    /// Seed of everything random.
    pub seed: u64,
    /// Whether work on the same bytes that nothing orders is a violation,
    /// also where the clock happens to keep it apart.
    pub races: bool,
    /// Whether what a destroyed stream still does orders with no other stream:
    /// the least that CUDA promises.
    pub orphans: bool,
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
        }
    }
}
