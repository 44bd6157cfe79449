//! A model GPU: finite memory in 2 MiB pages, streams that lag behind the host,
//! a virtual clock, scripted faults, and strict checks.
//!
//! [`Model`] is the machine itself, plain data with one owner: contexts,
//! streams, work in flight, allocations and captures. [`Gpu`] shares a model
//! between threads for tests, and [`SimDriver`] is the [`Driver`] of one of its
//! contexts. The simulated `libcuda.so.1` (`tests/sim`) uses the same
//! [`Model`], with real memory behind its addresses.
//!
//! # Time
//!
//! Nothing sleeps. The clock counts nanoseconds; it advances by
//! [`Settings::call_ns`] with every call (a seeded eighth more or less) and
//! jumps when a call waits. When a piece of work is submitted, its beginning
//! and its end are known at once, because everything that it waits for was
//! submitted before it. So a stream is the time at which its last piece of work
//! ends, an event or a fence is a time, and querying one is a comparison.
//!
//! # Strictness
//!
//! An error to which a real device would answer with corrupted data or a fault
//! is recorded as a [`Violation`] that tests read: work that touches memory
//! which is not allocated, a call that a stream capture forbids, a call after
//! shutdown, a free of an unknown address.
//!
//! The same settings and calls give the same run. Every operation costs O(log
//! n) in the live allocations and the work in flight.
//!
//! # Floors
//!
//! From the ground up. A module imports from the floors below it, or from its
//! own without a circle; `ci/floors` reads this list.
//!
//! 1. `settings`, `random`, `ids`, `runs`, `family`: the properties of a model
//!    GPU, seeded numbers, identifiers of contexts and streams, runs of free
//!    pages, and what memory is used for.
//! 2. `device`, `flight`, `faults`, `capture`: the memory of one device, the
//!    work in flight, faults and violations, and the open captures.
//! 3. `order`, `pool`: which work is known to be done before which, and memory
//!    that is handed out in the order of streams.
//! 4. `model`: the machine.
//! 5. `gpu`: the machine shared between threads, as a driver.
//! 6. `arena`: the arena over that driver.
//!
//! [`Driver`]: vramalloc_core::driver::Driver

mod arena;
mod capture;
mod device;
mod family;
mod faults;
mod flight;
mod gpu;
mod ids;
mod model;
mod order;
mod pool;
mod random;
mod runs;
mod settings;

pub use capture::{Capture, CaptureMode};
pub use device::{Allocation, Holds};
pub use family::Family;
pub use faults::{Call, Violation};
pub use flight::{Touch, Work};
pub use gpu::{Gpu, SimDriver, SimFence};
pub use ids::{ContextId, StreamId};
pub use model::{Model, Place, StreamKind};
pub use order::Mark;
pub use pool::{Pending, Pool};
pub use settings::{Nanos, Settings};

#[cfg(test)]
mod tests;
