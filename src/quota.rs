//! The option `limit`: how much may be reserved on one device, shared by all
//! arenas of that device.
//!
//! Invariant: the sum of what arenas hold never passes the limit; bytes are
//! taken from the quota before the driver is asked. Cost: one atomic
//! operation per driver allocation, none on a hit.

use crate::address::Bytes;
use crate::sync::atomic::{AtomicU64, Ordering};

/// What all arenas of a device may reserve together.
pub struct Quota {
    limit: Bytes,
    reserved: AtomicU64,
}

impl Quota {
    /// A quota of `limit` bytes; [`Bytes::MAX`] where there is no limit.
    #[must_use]
    pub fn new(limit: Bytes) -> Quota {
        Quota {
            limit,
            reserved: AtomicU64::new(0),
        }
    }

    /// The limit, if there is one.
    #[must_use]
    pub fn limit(&self) -> Option<Bytes> {
        (self.limit != Bytes::MAX).then_some(self.limit)
    }

    /// Bytes reserved on the device.
    #[must_use]
    pub fn reserved(&self) -> Bytes {
        Bytes::new(self.reserved.load(Ordering::Relaxed))
    }

    /// Takes `size` bytes out of the quota, if they are left.
    // Relaxed throughout: the counter guards no other memory; the loop alone
    // keeps the sum below the limit.
    pub(crate) fn take(&self, size: Bytes) -> bool {
        self.reserved
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |reserved| {
                reserved
                    .checked_add(size.get())
                    .filter(|&sum| sum <= self.limit.get())
            })
            .is_ok()
    }

    /// Puts `size` bytes back.
    pub(crate) fn put_back(&self, size: Bytes) {
        self.reserved.fetch_sub(size.get(), Ordering::Relaxed);
    }
}
