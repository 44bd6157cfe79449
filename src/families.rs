//! What the program takes of a device's memory past the arenas, by the family
//! of CUDA's functions that gave it.
//!
//! An arena serves `cudaMalloc`. What `cudaMallocAsync`, `cuMemCreate`, managed
//! memory, arrays and graphs take stays CUDA's own; here it is counted, and it
//! comes out of the same [`Quota`] as the arenas' chunks, so that the limit
//! holds for the sum.
//!
//! Two ways to count. Where a call takes a size and memory of that size is
//! given back one day, the size is asked for before the call
//! ([`Families::ask`]) and put back after the memory is gone
//! ([`Families::put_back`]). Pools of CUDA's own reserve what they like and
//! give it back when they like: their reserved bytes are read after each call
//! that may have changed them ([`LastRead`]).
//!
//! Invariant: what is counted of all families is part of what the quota has
//! reserved. Cost: the quota's lock and one more for each call; none
//! of it on the path of a hit.

use crate::address::Bytes;
use crate::library::LibraryId;
use crate::quota::{Asked, Quota};
use crate::stats::{Family, FamilyStats};
use crate::sync::Lock;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The families of one device.
pub struct Families {
    counts: Lock<[FamilyStats; Family::ALL.len()]>,
}

impl Default for Families {
    fn default() -> Families {
        Families::new()
    }
}

impl Families {
    /// Nothing was taken yet.
    #[must_use]
    pub fn new() -> Families {
        Families {
            counts: Lock::new([FamilyStats::default(); Family::ALL.len()]),
        }
    }

    /// Changes what was counted of a family.
    fn count(&self, family: Family, change: impl FnOnce(&mut FamilyStats)) {
        change(&mut self.counts.lock()[family as usize]);
    }

    /// Takes `size` bytes out of the quota for a call to CUDA that is about to
    /// be made; `None` if the limit leaves less.
    #[must_use]
    pub fn ask<'a>(&'a self, quota: &'a Quota, family: Family, size: Bytes) -> Option<Charge<'a>> {
        let asked = quota.ask(size)?;
        Some(Charge {
            asked,
            families: self,
            family,
            size,
        })
    }

    /// Notes a call that was refused because of the limit.
    pub fn refuse(&self, family: Family) {
        self.count(family, |count| count.refused += 1);
    }

    /// Notes that CUDA served a call.
    pub fn served(&self, family: Family) {
        self.count(family, |count| count.calls += 1);
    }

    /// Notes that `size` bytes went back to the device that this library had got.
    pub fn put_back(&self, quota: &Quota, family: Family, size: Bytes, library: LibraryId) {
        self.count(family, |count| {
            count.bytes.sub(size);
            count.libraries.sub(library, size);
        });
        quota.put_back(size);
    }

    /// Bytes of all families together.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        let counts = self.counts.lock();
        let each = counts.iter().map(|count| count.bytes.current);
        each.fold(Bytes::ZERO, Bytes::saturating_add)
    }

    /// What was counted so far.
    #[must_use]
    pub fn stats(&self, family: Family) -> FamilyStats {
        self.counts.lock()[family as usize]
    }
}

/// Bytes that CUDA is being asked for. When the value is dropped, they return
/// to the quota, unless CUDA gave them.
pub struct Charge<'a> {
    asked: Asked<'a>,
    families: &'a Families,
    family: Family,
    size: Bytes,
}

impl Charge<'_> {
    /// CUDA gave the memory, to this library.
    pub fn got(mut self, library: LibraryId) {
        self.families.count(self.family, |count| {
            count.bytes.add(self.size);
            count.libraries.add(library, self.size);
            count.calls += 1;
        });
        self.asked.got(self.size);
    }
}

/// How many bytes something of CUDA's own has reserved, as it was last read:
/// one of its memory pools, or the memory of a device's graphs.
///
/// Whoever changes the amount reads it afterwards. Readings that overlap are
/// put in the order in which they began, so the last one to begin stays, and
/// that one saw all changes that were over when it began.
pub struct LastRead {
    begun: AtomicU64,
    now: Lock<Latest>,
}

#[derive(Copy, Clone)]
struct Latest {
    begun: u64,
    bytes: Bytes,
}

impl Default for LastRead {
    fn default() -> LastRead {
        LastRead::new()
    }
}

impl LastRead {
    /// Nothing is reserved.
    #[must_use]
    pub fn new() -> LastRead {
        LastRead {
            begun: AtomicU64::new(0),
            now: Lock::new(Latest {
                begun: 0,
                bytes: Bytes::ZERO,
            }),
        }
    }

    /// The bytes that count.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.now.lock().bytes
    }

    /// Reads the bytes by `read` and counts them; if they cannot be read, what
    /// is counted stays. Returns what is counted now. `asked` is what was taken
    /// out of the quota for a growth; what did not come of it returns there.
    pub fn take(
        &self,
        families: &Families,
        quota: &Quota,
        family: Family,
        mut asked: Option<Asked<'_>>,
        read: impl FnOnce() -> Option<Bytes>,
    ) -> Bytes {
        // AcqRel: a reading that begins later, by any thread, has a higher
        // number, and sees what was changed before this one began.
        let begun = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
        let read = read();
        let mut now = self.now.lock();
        if let Some(bytes) = read.filter(|_| begun > now.begun) {
            let before = now.bytes;
            *now = Latest { begun, bytes };
            let (more, less) = (bytes.saturating_sub(before), before.saturating_sub(bytes));
            families.count(family, |count| {
                count.bytes.add(more);
                count.bytes.sub(less);
            });
            // What was taken for the growth already is not taken again: another
            // thread could be refused meanwhile.
            let taken = asked
                .as_mut()
                .map_or(Bytes::ZERO, |asked| asked.got_of(more));
            quota.take_anyway(more.saturating_sub(taken));
            quota.put_back(less);
        }
        let bytes = now.bytes;
        drop(now);
        // What the pool has more than this request needs is there for others.
        if let Some(asked) = &asked {
            asked.lands();
        }
        drop(asked);
        bytes
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn mib(count: u64) -> Bytes {
        Bytes::new(count * MIB)
    }

    #[test]
    fn what_is_asked_for_counts_when_it_is_there() {
        let (families, quota) = (Families::new(), Quota::new(mib(10)));
        let ask_of = |family, size| families.ask(&quota, family, size);
        let ask = |size| ask_of(Family::Virtual, size);
        ask(mib(6)).unwrap().got(LibraryId::new(5));
        assert!(ask(mib(5)).is_none());
        families.refuse(Family::Virtual);
        // CUDA refuses: nothing counts.
        drop(ask(mib(4)));
        assert_eq!(quota.reserved(), mib(6));
        ask_of(Family::Arrays, mib(1))
            .unwrap()
            .got(LibraryId::UNKNOWN);
        assert_eq!(families.bytes(), mib(7));
        families.put_back(&quota, Family::Arrays, mib(1), LibraryId::UNKNOWN);
        families.put_back(&quota, Family::Virtual, mib(2), LibraryId::new(5));
        let libraries = families.stats(Family::Virtual).libraries;
        assert_eq!(libraries.of(LibraryId::new(5)), mib(4));
        families.put_back(&quota, Family::Virtual, mib(4), LibraryId::new(5));
        let stats = families.stats(Family::Virtual);
        assert_eq!(stats.bytes.current, Bytes::ZERO);
        assert_eq!(stats.bytes.peak, mib(6));
        assert_eq!((stats.calls, stats.refused), (1, 1));
        assert_eq!(quota.reserved(), Bytes::ZERO);
        assert_eq!(families.stats(Family::Managed), FamilyStats::default());
    }

    /// A pool that took all that was asked for may have room for others: they
    /// look again.
    #[test]
    fn what_a_pool_has_taken_is_there_for_others() {
        let (families, quota) = (Families::new(), Quota::new(mib(64)));
        let (reading, before) = (LastRead::new(), quota.landings());
        let asked = quota.ask(mib(32));
        let others = std::thread::scope(|scope| {
            let other = || {
                let read = || Some(mib(32));
                reading.take(&families, &quota, Family::AsyncPools, asked, read)
            };
            scope.spawn(other).join().unwrap()
        });
        assert_eq!(others, mib(32));
        assert!(quota.lands(Some(before), true, std::time::Duration::ZERO));
    }

    #[test]
    fn a_reading_replaces_the_last_one() {
        let (families, quota) = (Families::new(), Quota::new(mib(64)));
        let reading = LastRead::new();
        let take = |bytes: Option<Bytes>| {
            let asked = quota.ask(mib(2));
            reading.take(&families, &quota, Family::AsyncPools, asked, || bytes)
        };
        assert_eq!(take(Some(mib(32))), mib(32));
        assert_eq!(quota.reserved(), mib(32));
        assert_eq!(take(None), mib(32));
        assert_eq!(take(Some(mib(8))), mib(8));
        assert_eq!(quota.reserved(), mib(8));
        let stats = families.stats(Family::AsyncPools);
        assert_eq!((stats.bytes.current, stats.bytes.peak), (mib(8), mib(32)));
    }

    /// One that began before another, and ends after it, may have seen less.
    #[test]
    fn an_older_reading_changes_nothing() {
        let (families, quota) = (Families::new(), Quota::new(Bytes::MAX));
        let reading = LastRead::new();
        let take = |read: &dyn Fn() -> Option<Bytes>| {
            reading.take(&families, &quota, Family::Graphs, None, read)
        };
        let older = take(&|| {
            take(&|| Some(mib(4)));
            Some(mib(2))
        });
        assert_eq!(older, mib(4));
        assert_eq!(quota.reserved(), mib(4));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Two threads change an amount and read it; what counts in the end is what
    /// is there.
    #[test]
    fn loom_the_last_reading_is_right() {
        loom::model(|| {
            let all = Arc::new((
                Families::new(),
                Quota::new(Bytes::MAX),
                LastRead::new(),
                AtomicU64::new(0),
            ));
            let grow = |all: &(Families, Quota, LastRead, AtomicU64)| {
                let (families, quota, reading, driver) = all;
                driver.fetch_add(8, Ordering::AcqRel);
                reading.take(families, quota, Family::AsyncPools, None, || {
                    Some(Bytes::new(driver.load(Ordering::Acquire)))
                });
            };
            let other = {
                let all = Arc::clone(&all);
                thread::spawn(move || grow(&all))
            };
            grow(&all);
            other.join().unwrap();
            assert_eq!(all.2.bytes(), Bytes::new(16));
            assert_eq!(all.1.reserved(), Bytes::new(16));
        });
    }
}
