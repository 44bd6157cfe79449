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
    limit: AtomicU64,
    reserved: AtomicU64,
}

impl Quota {
    /// A quota of `limit` bytes; [`Bytes::MAX`] where there is no limit.
    #[must_use]
    pub fn new(limit: Bytes) -> Quota {
        Quota {
            limit: AtomicU64::new(limit.get()),
            reserved: AtomicU64::new(0),
        }
    }

    /// The limit, if there is one.
    #[must_use]
    pub fn limit(&self) -> Option<Bytes> {
        let limit = Bytes::new(self.limit.load(Ordering::Relaxed));
        (limit != Bytes::MAX).then_some(limit)
    }

    /// Changes the limit. What is reserved beyond it stays; nothing is added
    /// until enough went back.
    // Relaxed: whoever takes at this moment obeys the one or the other.
    pub fn set_limit(&self, limit: Bytes) {
        self.limit.store(limit.get(), Ordering::Relaxed);
    }

    /// Bytes reserved on the device.
    #[must_use]
    pub fn reserved(&self) -> Bytes {
        Bytes::new(self.reserved.load(Ordering::Relaxed))
    }

    /// Takes `size` bytes out of the quota, if they are left.
    // Relaxed throughout: the counter guards no other memory; the loop alone
    // keeps the sum below the limit.
    #[must_use]
    pub fn take(&self, size: Bytes) -> bool {
        self.reserved
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |reserved| {
                reserved
                    .checked_add(size.get())
                    .filter(|&sum| sum <= self.limit.load(Ordering::Relaxed))
            })
            .is_ok()
    }

    /// Takes `size` bytes whether they are left or not: the memory is already
    /// there, handed out by the real function.
    pub fn take_anyway(&self, size: Bytes) {
        self.reserved.fetch_add(size.get(), Ordering::Relaxed);
    }

    /// Puts `size` bytes back.
    pub fn put_back(&self, size: Bytes) {
        self.reserved.fetch_sub(size.get(), Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Of two arenas that ask for more than is left together, one gets it.
    #[test]
    fn loom_the_limit_holds() {
        loom::model(|| {
            let quota = Arc::new(Quota::new(Bytes::new(10)));
            let other = {
                let quota = Arc::clone(&quota);
                thread::spawn(move || quota.take(Bytes::new(6)))
            };
            let got = quota.take(Bytes::new(6));
            assert_ne!(other.join().unwrap(), got);
            assert_eq!(quota.reserved(), Bytes::new(6));
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_stays_below_the_limit() {
        let quota = Quota::new(Bytes::new(10));
        assert!(quota.take(Bytes::new(10)));
        assert!(!quota.take(Bytes::new(1)));
        assert!(!quota.take(Bytes::MAX));
        quota.put_back(Bytes::new(1));
        assert!(quota.take(Bytes::new(1)));
        assert_eq!(quota.limit(), Some(Bytes::new(10)));
        assert_eq!(Quota::new(Bytes::MAX).limit(), None);
    }

    #[test]
    fn a_lower_limit_holds_from_then_on() {
        let quota = Quota::new(Bytes::MAX);
        assert!(quota.take(Bytes::new(10)));
        quota.set_limit(Bytes::new(8));
        assert!(!quota.take(Bytes::new(1)));
        quota.put_back(Bytes::new(3));
        assert!(quota.take(Bytes::new(1)));
    }
}
