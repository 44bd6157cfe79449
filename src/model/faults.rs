//! What goes wrong: faults that a test scripts, and violations that it reads.
//!
//! Owns the script and the record.

use std::collections::BTreeMap;
use std::fmt;

use crate::ids::StreamId;
use crate::random::Random;
use crate::settings::Nanos;
use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::error::Code;

/// The calls of the [`Driver`](vramalloc_core::driver::Driver) trait.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Call {
    /// `alloc`.
    Alloc,
    /// `free`.
    Free,
    /// `mem_info`.
    MemInfo,
    /// `fence`.
    Fence,
    /// `reached`.
    Reached,
    /// `wait`.
    Wait,
    /// `fill`.
    Fill,
    /// `synchronize`.
    Synchronize,
    /// `reserve` and `unreserve`.
    Reserve,
    /// `create`.
    Create,
    /// `map`.
    Map,
    /// `admit`.
    Admit,
    /// `unmap`.
    Unmap,
    /// `release`.
    Release,
    /// `take_backup`.
    TakeBackup,
    /// `save`.
    Save,
    /// `restore`.
    Restore,
}

impl Call {
    /// All of them.
    pub const ALL: [Call; 17] = [
        Call::Alloc,
        Call::Free,
        Call::MemInfo,
        Call::Fence,
        Call::Reached,
        Call::Wait,
        Call::Fill,
        Call::Synchronize,
        Call::Reserve,
        Call::Create,
        Call::Map,
        Call::Admit,
        Call::Unmap,
        Call::Release,
        Call::TakeBackup,
        Call::Save,
        Call::Restore,
    ];

    /// Its name in the trait.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Call::Alloc => "alloc",
            Call::Free => "free",
            Call::MemInfo => "mem_info",
            Call::Fence => "fence",
            Call::Reached => "reached",
            Call::Wait => "wait",
            Call::Fill => "fill",
            Call::Synchronize => "synchronize",
            Call::Reserve => "reserve",
            Call::Create => "create",
            Call::Map => "map",
            Call::Admit => "admit",
            Call::Unmap => "unmap",
            Call::Release => "release",
            Call::TakeBackup => "take_backup",
            Call::Save => "save",
            Call::Restore => "restore",
        }
    }
}

/// An error that a real device would punish by corrupted data or a fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Violation {
    /// Work touches memory that is not allocated.
    Unallocated {
        /// The stream of the work.
        stream: StreamId,
        /// The first byte touched.
        start: Address,
        /// How many bytes.
        size: Bytes,
    },
    /// Two pieces of work on two streams, in no order, touch the same bytes,
    /// and one writes.
    Race {
        /// The stream of the later work.
        stream: StreamId,
        /// The stream of the work that is not finished.
        other: StreamId,
        /// The first byte the later work touches.
        start: Address,
    },
    /// A call that an open stream capture forbids; it invalidates the capture.
    InCapture(String),
    /// A call after the driver was shut down.
    AfterShutdown(String),
    /// A call on a context that is destroyed.
    DeadContext(String),
    /// A free of an address that is not the start of an allocation.
    UnknownFree(Address),
    /// Memory was freed without waiting for work that still touches it.
    FreedInUse {
        /// The allocation.
        start: Address,
        /// When the last of that work ends.
        until: Nanos,
    },
    /// A violation that a user of the model records.
    Other(String),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Unallocated {
                stream,
                start,
                size,
            } => write!(
                f,
                "work on stream {} touches {} bytes at {start:?} that are not allocated",
                stream.number(),
                size.get()
            ),
            Violation::Race {
                stream,
                other,
                start,
            } => write!(
                f,
                "work on stream {} touches {start:?} while unordered work on stream {} does",
                stream.number(),
                other.number()
            ),
            Violation::InCapture(call) => write!(f, "{call} during a stream capture"),
            Violation::AfterShutdown(call) => write!(f, "{call} after shutdown"),
            Violation::DeadContext(call) => write!(f, "{call} on a destroyed context"),
            Violation::UnknownFree(address) => {
                write!(f, "free of {address:?}, which is no allocation")
            }
            Violation::FreedInUse { start, until } => {
                write!(
                    f,
                    "{start:?} was given back although work uses it until {until} ns"
                )
            }
            Violation::Other(what) => f.write_str(what),
        }
    }
}

/// The counts of calls, and the calls that are to fail.
#[derive(Debug, Default)]
pub(crate) struct Script {
    counts: BTreeMap<Call, u64>,
    nth: BTreeMap<(Call, u64), Code>,
    random: BTreeMap<Call, (u64, Code)>,
}

impl Script {
    /// Counts a call. Returns the error that it is to fail with, if it is to
    /// fail.
    pub(crate) fn count(&mut self, call: Call, random: &mut Random) -> Result<(), Code> {
        let count = self.counts.entry(call).or_default();
        *count += 1;
        if let Some(code) = self.nth.remove(&(call, *count)) {
            return Err(code);
        }
        match self.random.get(&call) {
            Some(&(per_mille, code)) if random.below(1000) < per_mille => Err(code),
            _ => Ok(()),
        }
    }

    pub(crate) fn counted(&self, call: Call) -> u64 {
        self.counts.get(&call).copied().unwrap_or(0)
    }

    /// Makes the `n`-th of the calls that follow (1: the next) fail.
    pub(crate) fn fail_nth(&mut self, call: Call, n: u64, code: Code) {
        let at = self.counted(call).saturating_add(n);
        self.nth.insert((call, at), code);
    }

    pub(crate) fn end(&mut self) {
        self.nth.clear();
        self.random.clear();
    }

    pub(crate) fn fail_randomly(&mut self, call: Call, per_mille: u64, code: Code) {
        self.random.insert(call, (per_mille, code));
    }
}
