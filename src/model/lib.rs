//! A model GPU: finite memory in 2 MiB pages, streams that lag behind the
//! host, a virtual clock, scripted faults, and a strict eye.
//!
//! [`Model`] is the machine itself, plain data that one owner drives: it knows
//! contexts, streams, work in flight, allocations and captures. [`Gpu`] shares
//! a model between threads for tests, and [`SimDriver`] is the [`Driver`] of
//! one of its contexts. The simulated `libcuda.so.1` (`tests/sim`) drives the
//! same [`Model`], with real memory behind its addresses.
//!
//! # Time
//!
//! There is no sleeping. The clock counts nanoseconds; it passes
//! [`Settings::call_ns`] with every call (a seeded eighth more or less) and
//! jumps when a call waits. When a piece of work is submitted its beginning
//! and its end are known at once, because everything it waits for was
//! submitted before it: a stream is the time at which its last piece of work
//! ends, an event or a fence is a time, and asking for one is a comparison.
//!
//! # Strictness
//!
//! What a real device answers with corrupted data or a fault is recorded as a
//! [`Violation`] that tests read: work that touches memory which is not
//! allocated, a call that a stream capture forbids, a call after shutdown, a
//! free of something unknown.
//!
//! Same settings, same calls, same run. Every operation costs O(log n) in the
//! live allocations and the work in flight.
//!
//! [`Driver`]: vramalloc_core::driver::Driver

mod capture;
mod device;
mod faults;
mod flight;
mod gpu;
mod memory;
mod model;
mod order;
mod runs;

pub use capture::{Capture, CaptureMode};
pub use device::Allocation;
pub use faults::{Call, Violation};
pub use flight::{Touch, Work};
pub use gpu::{Gpu, SimDriver, SimFence};
pub use model::{ContextId, Model, StreamId, StreamKind};
pub use order::Mark;

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

/// A small seeded generator (splitmix64): good enough to vary a test and the
/// same on every machine.
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 where that is 0.
    fn below(&mut self, bound: u64) -> u64 {
        self.next().checked_rem(bound).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
