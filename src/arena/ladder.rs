//! The out-of-memory ladder: round after round, until a request is served or
//! nothing is left that could serve it.
//!
//! One thread is on it at a time, but others go on to take what is cached, and
//! to free it: what a round made available may be gone again before the request
//! has it, and in limbo once more. So there is another round while the program
//! holds little enough for the request, and something came out of limbo in the
//! last. A request that the program holds too much for fails before the first:
//! nobody is waited for in vain. Owns nothing. Cost: each round waits for the device.

use crate::address::Bytes;
use crate::arena::Arena;
use crate::busy::Turn;
use crate::driver::{Driver, MemInfo, Whose};
use crate::error::AllocError;
use crate::patience::Patience;

use super::pressure::Looked;
use super::shortage::is_shortage;

/// What may have brought the request its memory.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Neighbours gave some back.
    Relieved,
    /// Limbo was emptied, after a wait if there was something in it.
    Emptied { waited: bool },
}

/// Other threads that always come first are not to be told from memory in
/// pieces that are too small, which no wait joins: a request fails after so many
/// rounds.
const ROUNDS: u32 = 64;

impl<D: Driver> Arena<D> {
    /// Waits until no other thread is on the out-of-memory ladder. Taken after
    /// the guard to grow, where that is needed.
    pub(super) fn enter_ladder(&self) -> Turn<'_> {
        let mut patience = Patience::new();
        loop {
            if let Some(guard) = self.try_enter_ladder() {
                return guard;
            }
            patience.pause();
        }
    }

    /// The same where nobody is there. What one thread on the ladder takes out of limbo or
    /// gives back is for a while neither in the heap nor with the driver: another would
    /// find nothing and fail, with all the memory there.
    pub(super) fn try_enter_ladder(&self) -> Option<Turn<'_>> {
        self.ladder.turn()
    }

    /// Tries `attempt` after each step, as long as that may help a request for
    /// `size` bytes that failed by `error`. The guard is still held at the end.
    /// Others' work is waited for only where what it holds back is enough.
    pub(super) fn climb<'a, T>(
        &'a self,
        mut guard: Turn<'a>,
        size: Bytes,
        error: AllocError,
        mut attempt: impl FnMut(Step) -> Result<T, AllocError>,
    ) -> (Turn<'a>, Result<T, AllocError>) {
        let mut latest = error;
        for round in 0..ROUNDS {
            if round > 0 && self.is_served_beyond(latest) {
                break;
            }
            if round == 1 {
                let gave;
                (guard, gave) = self.ask_neighbours(guard);
                if gave && !self.fails_at_once(error) {
                    let served = attempt(Step::Relieved);
                    if !matches!(served, Err(error) if is_shortage(error)) {
                        return (guard, served);
                    }
                }
            }
            // The second time round, memory given back in the first may be
            // what it takes to wait with.
            let waited = !self.is_limbo_empty();
            let before = self.hub.ended();
            let whose = round > 0 && self.could_serve(size);
            self.empty_limbo(if whose { Whose::All } else { Whose::Own });
            match attempt(Step::Emptied { waited }) {
                Err(error) if is_shortage(error) => latest = error,
                ended => return (guard, ended),
            }
            let is_over = || self.hub.ended() == before || !self.could_be_had(size);
            if self.is_limbo_empty() || (round > 0 && is_over()) {
                break;
            }
        }
        (guard, Err(latest))
    }

    /// What lies idle elsewhere on the device comes before a wait for other
    /// devices. Nobody waits for another arena's ladder while on one.
    fn ask_neighbours<'a>(&'a self, guard: Turn<'a>) -> (Turn<'a>, bool) {
        if self.pressure.is_none() {
            return (guard, false);
        }
        drop(guard);
        let gave = self.relieve();
        (self.enter_ladder(), gave)
    }

    /// Whether so much could be had of what the program does not hold, in sum.
    /// Where not, bare CUDA refuses it at once; no wait helps, and what is
    /// waited for may end only by what the program does after the refusal.
    pub(super) fn could_be_had(&self, size: Bytes) -> bool {
        if !self.exists(size) {
            return false;
        }
        // All of `needed` was held at one moment, that of the neighbours: what
        // moves between arenas meanwhile counts once at the most.
        let own = Looked::at(self);
        let Some(elsewhere) = (self.pressure.as_ref()).map_or(Some(Bytes::ZERO), |n| (n.live)())
        else {
            return true;
        };
        let needed = (own.live()).saturating_add(elsewhere).saturating_add(size);
        // What is on its way between the heap and the driver, in whatever
        // arena, counts towards the quota, and what was there for a moment
        // between the looks does too: the sum is never less than there is for
        // the program. So a refusal is right, whatever other threads do.
        let before = self.quota.put_back_so_far();
        let Ok(MemInfo { free, .. }) = self.ask_memory() else {
            return true;
        };
        let reserved = self.quota.most_reserved_since(before);
        needed <= self.up_to_limit(free.saturating_add(reserved))
    }

    /// Whether there is so much at all, whatever the program frees.
    pub(super) fn exists(&self, size: Bytes) -> bool {
        let total = self.device_total();
        total.is_zero() || size <= self.up_to_limit(total)
    }

    pub(super) fn up_to_limit(&self, bytes: Bytes) -> Bytes {
        self.quota.limit().map_or(bytes, |limit| bytes.min(limit))
    }

    /// Whether a request could be served with all that lies in limbo, between
    /// the blocks that the program holds; as far as can be said.
    fn could_serve(&self, size: Bytes) -> bool {
        let Some(Ok(available)) = self.driver.may_fence().then(|| self.available()) else {
            return true;
        };
        let state = self.state.lock();
        let mapped = state.heap.not_live_in_ranges();
        let obtainable = state.obtainable().max(mapped);
        size <= obtainable.saturating_add(available) || state.heap.has_gap(size)
    }

    pub(super) fn is_limbo_empty(&self) -> bool {
        self.state.lock().counters.limbo().is_zero()
    }
}
