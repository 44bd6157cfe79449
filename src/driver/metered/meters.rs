//! The meters of kinds of driver calls.
//!
//! Calls about fences are short and many: one in 16 is timed, after the first [`FEW`] one
//! in 64, and stands for those since the last one. Cost: two readings of the clock and up
//! to five relaxed operations per call; of one that is not timed, one, also where it makes
//! a fence and asks for it.

use std::time::Instant;

use crate::driver::Driver;
use crate::driver::program_call::add_to_call;
use crate::error::Code;
use crate::stats::{CallCount, MappingCalls};
use crate::sync::atomic::{AtomicU64, Ordering};

/// Of so many calls about fences, the first, one in 16 is timed: those of a program that
/// makes few are a sample as well.
const FEW: u64 = 1024;

/// How many calls about fences one stands for that is timed, after so many others; none if
/// it is not timed.
#[inline]
fn stands_for(before: u64) -> Option<u64> {
    let one_in = if before > FEW { 64 } else { 16 };
    let is_timed = before.is_multiple_of(one_in);
    is_timed.then(|| one_in.min(before).max(1))
}

/// Counters of one kind of call. Relaxed throughout: nothing is ordered by
/// them.
pub(super) struct Meter {
    calls: AtomicU64,
    failures: AtomicU64,
    ns: AtomicU64,
    longest: AtomicU64,
    /// The largest number where there was none.
    shortest: AtomicU64,
}

impl Meter {
    pub(super) fn new() -> Meter {
        Meter {
            calls: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            ns: AtomicU64::new(0),
            longest: AtomicU64::new(0),
            shortest: AtomicU64::new(u64::MAX),
        }
    }

    pub(super) fn time<T>(&self, call: impl FnOnce() -> Result<T, Code>) -> Result<T, Code> {
        self.timed(call).0
    }

    /// Makes a call and counts it; times it if it is one of those that stand for others.
    /// `beside`: how many calls of this kind are counted elsewhere.
    #[inline]
    fn sample<T>(&self, beside: u64, call: impl FnOnce() -> Result<T, Code>) -> Result<T, Code> {
        let Some(calls) = self.next_stands_for(beside) else {
            return self.untimed(call);
        };
        let (result, ns) = clocked(call);
        let mut count = CallCount::one(ns, result.is_err());
        count.ns = ns.saturating_mul(calls);
        self.count(count);
        result
    }

    /// What `stands_for` says of the next call, where `beside` are counted elsewhere.
    #[inline]
    fn next_stands_for(&self, beside: u64) -> Option<u64> {
        stands_for(self.calls() + beside)
    }

    /// Counts a call that is not timed.
    #[inline]
    fn untimed<T>(&self, call: impl FnOnce() -> Result<T, Code>) -> Result<T, Code> {
        let result = call();
        self.calls.fetch_add(1, Ordering::Relaxed);
        if result.is_err() {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    /// The same for a call that waits for the device.
    pub(super) fn time_wait<T>(&self, call: impl FnOnce() -> Result<T, Code>) -> Result<T, Code> {
        let (result, ns) = self.timed(call);
        add_to_call(ns);
        result
    }

    /// The result, and what it took in ns.
    fn timed<T>(&self, call: impl FnOnce() -> Result<T, Code>) -> (Result<T, Code>, u64) {
        let (result, ns) = clocked(call);
        self.count(CallCount::one(ns, result.is_err()));
        (result, ns)
    }

    pub(super) fn count(&self, more: CallCount) {
        if more.calls == 0 {
            return;
        }
        self.calls.fetch_add(more.calls, Ordering::Relaxed);
        self.ns.fetch_add(more.ns, Ordering::Relaxed);
        self.longest.fetch_max(more.longest_ns, Ordering::Relaxed);
        self.shortest.fetch_min(more.shortest_ns, Ordering::Relaxed);
        self.failures.fetch_add(more.failures, Ordering::Relaxed);
    }

    /// How many calls there were.
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    pub(super) fn read(&self) -> CallCount {
        self.read_with(0)
    }

    /// The same with the calls that are counted elsewhere; none of those was timed.
    fn read_with(&self, beside: u64) -> CallCount {
        let calls = self.calls() + beside;
        let shortest = self.shortest.load(Ordering::Relaxed);
        CallCount {
            calls,
            failures: self.failures.load(Ordering::Relaxed),
            ns: self.ns.load(Ordering::Relaxed),
            longest_ns: self.longest.load(Ordering::Relaxed),
            shortest_ns: if calls == 0 { 0 } else { shortest },
        }
    }
}

/// What a call took in ns.
pub(super) fn clocked<T>(call: impl FnOnce() -> T) -> (T, u64) {
    let start = Instant::now();
    let result = call();
    let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    (result, ns)
}

/// The meters of calls about fences.
pub(super) struct FenceMeters {
    pub(super) fence: Meter,
    reached: Meter,
    /// Calls of both kinds in one, which neither counts.
    both: AtomicU64,
}

impl FenceMeters {
    pub(super) fn new() -> FenceMeters {
        FenceMeters {
            fence: Meter::new(),
            reached: Meter::new(),
            both: AtomicU64::new(0),
        }
    }

    pub(super) fn fence<D: Driver>(&self, driver: &D) -> Result<D::Fence, Code> {
        let both = self.both.load(Ordering::Relaxed);
        self.fence.sample(both, || driver.fence())
    }

    pub(super) fn reached<D: Driver>(&self, driver: &D, fence: &D::Fence) -> Result<bool, Code> {
        let both = self.both.load(Ordering::Relaxed);
        self.reached.sample(both, || driver.reached(fence))
    }

    /// Both calls in one, which says whether the device is done.
    pub(super) fn fence_unless_done<D: Driver>(
        &self,
        driver: &D,
    ) -> Result<Option<D::Fence>, Code> {
        let both = self.both.load(Ordering::Relaxed);
        let is_timed = |meter: &Meter| meter.next_stands_for(both).is_some();
        if is_timed(&self.fence) || is_timed(&self.reached) {
            // What each of the two takes is seen only where they are apart.
            let fence = self.fence(driver)?;
            let is_done = driver.may_fence() && self.reached(driver, &fence) == Ok(true);
            return Ok((!is_done).then_some(fence));
        }
        let made = driver.fence_unless_done();
        if made.is_ok() {
            self.both.fetch_add(1, Ordering::Relaxed);
            return made;
        }
        self.fence.untimed(|| made)
    }

    /// How many calls there were.
    pub(super) fn calls(&self) -> u64 {
        self.fence.calls() + self.reached.calls() + 2 * self.both.load(Ordering::Relaxed)
    }

    /// What is counted of calls that make a fence, and of those that ask for one.
    pub(super) fn read(&self) -> (CallCount, CallCount) {
        let both = self.both.load(Ordering::Relaxed);
        (self.fence.read_with(both), self.reached.read_with(both))
    }
}

/// The meters of calls about virtual memory.
pub(super) struct MappingMeters {
    pub(super) reserve: Meter,
    pub(super) create: Meter,
    pub(super) map: Meter,
    pub(super) set_access: Meter,
    pub(super) unmap: Meter,
    pub(super) release: Meter,
}

impl MappingMeters {
    pub(super) fn new() -> MappingMeters {
        MappingMeters {
            reserve: Meter::new(),
            create: Meter::new(),
            map: Meter::new(),
            set_access: Meter::new(),
            unmap: Meter::new(),
            release: Meter::new(),
        }
    }

    pub(super) fn all(&self) -> [&Meter; 6] {
        [
            &self.reserve,
            &self.create,
            &self.map,
            &self.set_access,
            &self.unmap,
            &self.release,
        ]
    }

    pub(super) fn read(&self) -> MappingCalls {
        MappingCalls {
            reserve: self.reserve.read(),
            create: self.create.read(),
            map: self.map.read(),
            set_access: self.set_access.read(),
            unmap: self.unmap.read(),
            release: self.release.read(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn those_that_are_timed_stand_for_all() {
        let mut all = 0;
        for before in 0..4 * FEW {
            if let Some(calls) = stands_for(before) {
                all += calls;
                assert_eq!(all, before + 1);
            }
        }
        assert_eq!(all, 4 * FEW - 63);
    }
}
