//! Requests that failed for want of memory, and what may still come for them.
//!
//! What another thread is asking the driver for, or giving back to it, is
//! neither in the heap nor with the driver: a request that finds nothing else
//! looks again when it has landed. It waits for that off the ladder, and by one
//! clock for all it tries. With the option `gpu_allocator_retry_time` it waits
//! for others' frees, too. Owns nothing. Cost: a few loads for a request that
//! fails.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::address::{Address, Bytes};
use crate::arena::Arena;
use crate::arena::miss::is_shortage;
use crate::arena::shortage::Need;
use crate::driver::Driver;
use crate::error::AllocError;
use crate::quota::Landings;

/// A driver answers in milliseconds. Where it does not, it may be waiting for
/// what this thread is going to do next.
const ANSWER: Duration = Duration::from_secs(10);

/// Other threads that always come first are not to be told from memory in
/// pieces that are too small.
const LOOKS: u32 = 16;

/// The same for what neighbours are asked to give back.
const RELIEFS: u32 = 64;

/// Since when a request waits for what is on its way.
pub(super) type Clock = Cell<Option<Instant>>;

impl<D: Driver> Arena<D> {
    /// Tries to serve a request; where memory is short, again whenever another
    /// thread has freed some, as long as the options say, and once more when
    /// that time is over.
    pub(super) fn patiently(
        &self,
        need: &Need,
        attempt: impl Fn() -> Result<Address, AllocError>,
    ) -> Result<Address, AllocError> {
        let clock = Clock::new(None);
        let attempt = || self.look_again(need.request, &clock, &attempt);
        let fails =
            |result: &Result<Address, AllocError>| result.is_err_and(|error| self.is_fought(error));
        // What one look made its neighbours give, another thread may have before
        // the next: as long as memory moves, there is another.
        let everywhere = || {
            let mut result = attempt();
            for _ in 0..RELIEFS {
                let before = self.quota.moves();
                let helps = fails(&result) && self.could_be_had(need.request) && self.relieve();
                if !helps {
                    break;
                }
                result = attempt();
                if before == self.quota.moves() {
                    break;
                }
            }
            result
        };
        let mut result = everywhere();
        if !self.retry_time.is_zero() && fails(&result) && self.exists(need.request) {
            let mut waiter = self.quota.waiters().begin(self.retry_time);
            let mut freed = true;
            loop {
                result = everywhere();
                if !freed || !fails(&result) {
                    break;
                }
                freed = waiter.wait();
            }
        }
        result.inspect_err(|&error| self.note_oom(need, error))
    }

    /// Tries; where memory is short, again when some has landed that was on its
    /// way meanwhile.
    pub(super) fn look_again<T>(
        &self,
        size: Bytes,
        clock: &Clock,
        attempt: impl Fn() -> Result<T, AllocError>,
    ) -> Result<T, AllocError> {
        for _ in 0..LOOKS {
            let before = self.quota.landings();
            match attempt() {
                Err(error) if self.lands_for(size, error, before, clock) => {}
                ended => return ended,
            }
        }
        attempt()
    }

    /// Waits for what is on its way to where a request that failed by `error`
    /// may have it. False where nothing comes. Where the driver serves the
    /// request in any case, nobody is waited for.
    fn lands_for(&self, size: Bytes, error: AllocError, before: Landings, clock: &Clock) -> bool {
        if !is_shortage(error) || self.is_served_beyond(error) {
            return false;
        }
        let at_limit = error == AllocError::Limit;
        let has_landed = || self.quota.landings().may_serve(before, at_limit);
        let taken_off = self.quota.taken_off();
        let (flies, landed) = (self.quota.others_fly(taken_off), has_landed());
        if !(flies || landed) || !self.could_be_had(size) {
            return false;
        }
        let since = clock.get().unwrap_or_else(Instant::now);
        clock.set(Some(since));
        let left = ANSWER.saturating_sub(since.elapsed());
        self.quota.lands(Some(before), at_limit, left)
    }
}
