//! An arena among others that share its device.
//!
//! Owns nothing. Cost: each question takes the lock of the state.

use crate::address::Bytes;
use crate::arena::Arena;
use crate::driver::Driver;
use crate::sync::atomic::Ordering;

/// What a program holds of a device in an arena, at the least, at every moment between
/// two looks: what it was given until the first, without what it freed until the second,
/// and without what was paused at either. What another thread moves from one arena to another counts in none
/// of them rather than in both, so that a sum of many is never more than there
/// was.
pub(super) struct Looked<'a, D: Driver> {
    arena: &'a Arena<D>,
    given: u64,
    paused: Bytes,
}

impl<'a, D: Driver> Looked<'a, D> {
    /// The first look.
    pub(super) fn at(arena: &'a Arena<D>) -> Looked<'a, D> {
        let mut state = arena.state.lock();
        let (given, _) = state.turnover();
        state.forget_gone();
        let paused = state.counters.paused();
        Looked {
            arena,
            given,
            paused,
        }
    }

    /// The second.
    pub(super) fn live(&self) -> Bytes {
        let (freed, paused) = {
            let mut state = self.arena.state.lock();
            let freed = state.turnover().1;
            state.forget_gone();
            (freed, state.counters.paused())
        };
        // Both wrap: less than nothing was held where the difference is huge.
        let held = i64::try_from(self.given.wrapping_sub(freed)).unwrap_or(0);
        Bytes::new(held.unsigned_abs()).saturating_sub(paused.max(self.paused))
    }
}

/// Bytes that a program holds of all these arenas together, at the least, at the
/// moment when `meanwhile` is called; none where it has no answer.
pub fn live_at<D: Driver>(
    arenas: &[&Arena<D>],
    meanwhile: impl FnOnce() -> Option<()>,
) -> Option<Bytes> {
    let looked: Vec<_> = arenas.iter().map(|arena| Looked::at(arena)).collect();
    meanwhile()?;
    let live = looked.iter().map(Looked::live);
    Some(live.fold(Bytes::ZERO, Bytes::saturating_add))
}

/// Who else has memory of the device.
pub(super) struct PressureCallback {
    /// Gives back what is idle there; whether it is worth asking again.
    pub(super) relieve: Box<dyn Fn() -> bool + Send + Sync>,
    /// See [`Arena::relieved_by`].
    pub(super) live: Box<dyn Fn() -> Option<Bytes> + Send + Sync>,
    /// See [`Arena::shared_when`].
    pub(super) is_shared: Box<dyn Fn() -> bool + Send + Sync>,
}

impl<D: Driver> Arena<D> {
    /// This arena, which asks the arenas beside it for idle memory before a
    /// request fails for want of memory. `relieve` asks them; it is called
    /// without a lock, off the ladder, and says whether they gave anything.
    /// `live` says how much the program holds there at the least, at a moment
    /// while it is called ([`live_at`]). It says none if the program has freed
    /// memory on the device that some arena still counts as live.
    #[must_use]
    pub fn relieved_by(
        mut self,
        relieve: impl Fn() -> bool + Send + Sync + 'static,
        live: impl Fn() -> Option<Bytes> + Send + Sync + 'static,
    ) -> Arena<D> {
        self.pressure = Some(PressureCallback {
            relieve: Box::new(relieve),
            live: Box::new(live),
            is_shared: Box::new(|| false),
        });
        self
    }

    /// This arena, whose device is another context's too whenever `is_shared` says so.
    /// While a stream captures, nothing is unmapped: what is mapped then could serve no
    /// other context before the end, so that chunks are taken instead.
    #[must_use]
    pub fn shared_when(mut self, is_shared: impl Fn() -> bool + Send + Sync + 'static) -> Arena<D> {
        if let Some(callback) = &mut self.pressure {
            callback.is_shared = Box::new(is_shared);
        }
        self
    }

    /// Whether a miss now is to be served by a window.
    pub(super) fn serves_by_windows(&self) -> bool {
        let is_shared = || (self.pressure.as_ref()).is_some_and(|callback| (callback.is_shared)());
        self.mapping().is_some() && (self.driver.may_fence() || !is_shared())
    }

    /// Gives back what is idle elsewhere on the device; whether it is worth
    /// asking again.
    pub(super) fn relieve(&self) -> bool {
        (self.pressure.as_ref()).is_some_and(|callback| (callback.relieve)())
    }

    /// From now on no chunk goes back to the driver, whatever is short and
    /// whatever the options say; or it may again. What is no part of a chunk
    /// goes back nevertheless when it is freed.
    pub fn hold(&self, holds: bool) {
        // Relaxed: whoever allocates here learned of the arena from the
        // thread that set it, and so sees it.
        self.holds.store(holds, Ordering::Relaxed);
    }

    pub(super) fn holds(&self) -> bool {
        self.holds.load(Ordering::Relaxed)
    }
}
