//! The option `limit`: how much may be reserved on one device, shared by all
//! arenas of that device.
//!
//! Invariant: the sum of what arenas hold never passes the limit; bytes are
//! taken from the quota before the driver is asked. Until it has answered they
//! are told apart: nobody may ever have them, and a request that they alone
//! stand in the way of has not come to the limit. Cost: a lock of its own twice
//! per driver allocation, none on a hit.

use crate::address::Bytes;
use crate::sync::Lock;
use crate::sync::atomic::{AtomicU64, Ordering};

/// What all arenas of a device may reserve together.
pub struct Quota {
    limit: AtomicU64,
    sums: Lock<Sums>,
}

#[derive(Copy, Clone, Default)]
struct Sums {
    /// What is taken.
    reserved: Bytes,
    /// Of that, what the driver has not answered for yet.
    asked: Bytes,
}

/// What stands in the way of a request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Full {
    /// What is held.
    Held,
    /// What others are asking the driver for at this moment.
    Asked,
}

/// Bytes that the driver is being asked for; back in the quota with the value,
/// as far as it gave none.
pub struct Asked<'a> {
    quota: &'a Quota,
    size: Bytes,
    taken: Bytes,
}

impl Asked<'_> {
    /// The driver gave so much: it is held from now on.
    pub fn got(mut self, taken: Bytes) {
        self.taken = taken;
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let mut sums = self.quota.sums.lock();
        sums.asked = sums.asked.saturating_sub(self.size);
        let rest = self.size.saturating_sub(self.taken);
        sums.reserved = sums.reserved.saturating_sub(rest);
    }
}

impl Quota {
    /// A quota of `limit` bytes; [`Bytes::MAX`] where there is no limit.
    #[must_use]
    pub fn new(limit: Bytes) -> Quota {
        Quota {
            limit: AtomicU64::new(limit.get()),
            sums: Lock::new(Sums::default()),
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
        self.sums.lock().reserved
    }

    /// Takes `size` bytes out of the quota, if they are left, for as long as the
    /// driver is asked for them.
    ///
    /// # Errors
    /// Why they are not.
    pub fn ask(&self, size: Bytes) -> Result<Asked<'_>, Full> {
        let mut sums = self.sums.lock();
        let left = |held: Bytes| {
            let sum = held.get().checked_add(size.get());
            sum.is_some_and(|sum| sum <= self.limit.load(Ordering::Relaxed))
        };
        if left(sums.reserved) {
            sums.reserved = sums.reserved.saturating_add(size);
            sums.asked = sums.asked.saturating_add(size);
            let (quota, taken) = (self, Bytes::ZERO);
            return Ok(Asked { quota, size, taken });
        }
        let held = sums.reserved.saturating_sub(sums.asked);
        Err(if left(held) { Full::Asked } else { Full::Held })
    }

    /// Takes `size` bytes out of the quota, if they are left.
    #[must_use]
    pub fn take(&self, size: Bytes) -> bool {
        self.ask(size).is_ok_and(|asked| {
            asked.got(size);
            true
        })
    }

    /// Takes `size` bytes whether they are left or not: the memory is already
    /// there, handed out by the real function.
    pub fn take_anyway(&self, size: Bytes) {
        let mut sums = self.sums.lock();
        sums.reserved = sums.reserved.saturating_add(size);
    }

    /// Puts `size` bytes back.
    pub fn put_back(&self, size: Bytes) {
        let mut sums = self.sums.lock();
        sums.reserved = sums.reserved.saturating_sub(size);
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

    /// What the driver has not answered for is not the limit's fault.
    #[test]
    fn what_is_only_asked_for_is_told_apart() {
        let quota = Quota::new(Bytes::new(10));
        let full = |size| quota.ask(Bytes::new(size)).err();
        assert!(quota.take(Bytes::new(2)));
        let asked = quota.ask(Bytes::new(6)).unwrap();
        assert_eq!(
            [full(2), full(8), full(9)],
            [None, Some(Full::Asked), Some(Full::Held)]
        );
        assert_eq!(quota.reserved(), Bytes::new(8));
        asked.got(Bytes::new(4));
        assert_eq!([full(4), full(5)], [None, Some(Full::Held)]);
        assert_eq!(quota.reserved(), Bytes::new(6));
        drop(quota.ask(Bytes::new(4)));
        assert_eq!(quota.reserved(), Bytes::new(6));
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
