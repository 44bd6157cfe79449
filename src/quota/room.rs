//! How much of a device there is for this process.
//!
//! Invariant: it is what the driver said last. Cost: a few loads a look.

use crate::address::Bytes;
use crate::sync::atomic::{AtomicU64, Ordering};

/// How much of a device this process could have, as the driver said last. So what others
/// hold counts without a question for each look. The driver is asked where nobody else has
/// asked it since the process had half or twice as much, and where memory is scarce for what
/// others hold, since they may have gone; but now and then only, once it was asked so often
/// as a program that grows has to.
pub(crate) struct DeviceRoom {
    /// All there is until the driver was asked.
    bytes: AtomicU64,
    total: AtomicU64,
    /// How much the process had then.
    asked_at: AtomicU64,
    /// How many looks found a reason to ask since.
    looks: AtomicU64,
    /// How often it was asked since the process had twice or half of what it had before.
    moves: AtomicU64,
}

/// How often the last answer serves although there is a reason to ask again.
const LOOKS: u64 = 64;

/// What a process has may double so often without such a wait: from a page to the whole of
/// any device.
const PROMPT: u64 = 24;

// Relaxed: each word stands for itself, and a look at an old one does no harm.
impl DeviceRoom {
    pub(super) fn new() -> DeviceRoom {
        DeviceRoom {
            bytes: AtomicU64::new(u64::MAX),
            total: AtomicU64::new(u64::MAX),
            asked_at: AtomicU64::new(0),
            looks: AtomicU64::new(0),
            moves: AtomicU64::new(0),
        }
    }

    pub(crate) fn bytes(&self) -> Bytes {
        Bytes::new(self.bytes.load(Ordering::Relaxed))
    }

    pub(crate) fn total(&self) -> Bytes {
        Bytes::new(self.total.load(Ordering::Relaxed))
    }

    /// Whether the process has twice or half of what it had when the driver was asked.
    fn has_moved(&self, reserved: Bytes) -> bool {
        let then = self.asked_at.load(Ordering::Relaxed);
        reserved.get() / 2 >= then || reserved.get() < then / 2
    }

    /// Whether the driver is to be asked again. `is_for_others`: by what it said last,
    /// memory is scarce for what others hold.
    pub(crate) fn is_due(&self, reserved: Bytes, is_for_others: bool) -> bool {
        let moved = self.has_moved(reserved);
        if !moved && !is_for_others {
            return false;
        }
        // A process that takes and gives back for ever is not to ask for ever.
        moved && self.moves.load(Ordering::Relaxed) < PROMPT
            || self.looks.fetch_add(1, Ordering::Relaxed) >= LOOKS
    }

    /// The driver has said what there is, when the process had so much.
    pub(crate) fn learn(&self, free: Bytes, total: Bytes, reserved: Bytes) {
        if total.is_zero() {
            return;
        }
        if self.has_moved(reserved) {
            self.moves.fetch_add(1, Ordering::Relaxed);
        }
        let bytes = free.saturating_add(reserved).min(total);
        self.bytes.store(bytes.get(), Ordering::Relaxed);
        self.total.store(total.get(), Ordering::Relaxed);
        self.asked_at
            .store(reserved.get().max(1), Ordering::Relaxed);
        self.looks.store(0, Ordering::Relaxed);
    }
}
