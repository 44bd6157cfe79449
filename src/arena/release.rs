//! What goes back to the driver: because memory is short, because somebody asks
//! for it, or before that, because an option says so.
//!
//! Invariant: memory leaves the heap and the page map before the driver hears of
//! it, since the driver may hand the same addresses out at once. What others
//! than the program ask for never waits for the device, or makes the program
//! wait where bare CUDA would not: memory goes back at once where the device is
//! quiet, and else in the next free of the program that does more than the hit
//! path: the driver's own free would wait there too. What an option asks for
//! waits while a stream captures a graph. Who gives chunks back stays on the
//! out-of-memory ladder meanwhile, so that nobody there takes memory on its way
//! for memory that is not there. Cost: a look at all chunks, and the driver's
//! frees, which wait for the device; nothing where the options are off.

use std::time::Duration;

use crate::address::{Address, Bytes};
use crate::arena::Arena;
use crate::arena::fences::Extent;
use crate::arena::state::ArenaState;
use crate::arena::waits::Wait;
use crate::config::{Config, Decay};
use crate::driver::{Driver, IfEnding, Whose};
use crate::error::Code;
use crate::heap::{Heap, LeftChunk, Span};
use crate::recording::{ArenaOrder, Mark};
use crate::strategy::Strategy;
use crate::sync::atomic::Ordering;

/// What part of the device others may hold up before some of it goes back, however little is
/// live: enough for a program that waits for all its devices at each step.
const HELD_UP_PART: u64 = 16;

/// When idle chunks go back.
pub(super) struct ReleasePolicy {
    /// After a free, all of it.
    after_free: bool,
    /// After a free, what is more than the strategy lets lie idle.
    is_bounded: bool,
    /// Before another chunk is taken.
    before_growth: bool,
    /// The oldest, where more than this share of what may be reserved is.
    threshold: Option<f64>,
    /// When they are too old.
    pub(super) decays: bool,
}

impl ReleasePolicy {
    pub(super) fn new(config: &Config, strategy: &Strategy) -> ReleasePolicy {
        // Paddle's chunks in advance go back only when they are asked for.
        let grows = matches!(strategy, Strategy::AutoGrowth(_) | Strategy::Mapped(_));
        ReleasePolicy {
            after_free: grows && config.free_idle_chunk,
            is_bounded: strategy.most_idle().is_some(),
            before_growth: grows && config.free_when_no_cache_hit,
            threshold: config.garbage_collection_threshold,
            decays: config.decay != Decay::Never,
        }
    }

    /// Whether a free may have more to do.
    pub(super) fn follows_frees(&self) -> bool {
        self.after_free || self.is_bounded
    }

    /// Whether it goes before another chunk is taken.
    pub(super) fn is_released_before_growth(&self) -> bool {
        self.before_growth
    }
}

impl<D: Driver> Arena<D> {
    /// Waits for limbo, then gives every idle chunk back to the driver, unless
    /// the context may be ending; returns how many bytes that were.
    pub fn trim(&self) -> Bytes {
        self.tell(&Mark::Trim);
        self.counted(|| self.trim_now())
    }

    fn trim_now(&self) -> Bytes {
        let _guard = self.enter_ladder();
        self.state.lock().counters.waited_for_all();
        self.wait_for_all(Whose::Own);
        let mut released = self.release_idle_if(IfEnding::Leave);
        // The driver's own free takes chunks from limbo; units are unmapped only when
        // they have left it, whatever has become of their fences.
        if self.mapping().is_some() && !self.is_limbo_empty() && self.driver.may_give_back() {
            self.wait_by_free(Whose::Own);
            released = released.saturating_add(self.release_idle_if(IfEnding::Leave));
        }
        if !self.state.lock().is_used_elsewhere() {
            return released;
        }
        self.wait_for_all(Whose::All);
        released.saturating_add(self.release_idle_if(IfEnding::Leave))
    }

    /// Gives every idle chunk back to the driver, with what of it is in limbo,
    /// and waits for nobody itself: the driver's own free waits for whoever
    /// uses the memory. Returns how many bytes that were.
    pub fn give_back_idle(&self) -> Bytes {
        self.tell(&Mark::Order(ArenaOrder::GiveBackIdle));
        self.counted(|| {
            let _guard = self.enter_ladder();
            self.release_idle_if(IfEnding::Leave)
        })
    }

    /// Gives idle memory back to the driver if the device has nothing to do,
    /// and returns how many bytes that were. Else the program's next frees do.
    pub fn give_back_when_quiet(&self) -> Bytes {
        self.tell(&Mark::Order(ArenaOrder::GiveBackWhenQuiet));
        self.counted(|| {
            if let Some(given) = self.give_back_if_quiet() {
                return given;
            }
            // Relaxed: it stands for itself.
            self.owes.store(true, Ordering::Relaxed);
            Bytes::ZERO
        })
    }

    /// The driver's free waits for the device. Among several contexts, what one
    /// is given next may end only by what this thread does after the free.
    fn give_back_if_quiet(&self) -> Option<Bytes> {
        if self.holds() {
            return Some(Bytes::ZERO);
        }
        if !self.driver.may_fence() || !self.driver.is_alone() {
            return None;
        }
        self.state.lock().recall();
        self.close(Extent::All);
        let fence = self.driver.fence().ok()?;
        let is_quiet = self.driver.reached(&fence) == Ok(true);
        self.tell(&Mark::Quiet(is_quiet));
        if !is_quiet {
            return None;
        }
        self.poll(None);
        let _guard = self.try_enter_ladder()?;
        Some(self.release_idle_if(IfEnding::Leave))
    }

    /// In a free of the program: gives back what is owed, what others hold up, and what lies
    /// idle beyond a limit that was lowered.
    pub(super) fn pay(&self) {
        if self.is_held_up.load(Ordering::Relaxed) && self.driver.may_fence() {
            self.is_held_up.store(false, Ordering::Relaxed);
            self.release_held_up();
        }
        let is_beyond = self.quota.is_beyond_limit() && !self.strategy.has_soft_limit();
        let owes = is_beyond || self.owes.load(Ordering::Relaxed);
        if owes && self.driver.may_fence() {
            self.owes.store(false, Ordering::Relaxed);
            self.release_all_idle();
        }
    }

    /// Gives memory that has left the heap back to the driver. Where that
    /// refuses, it is lost: nobody has it, and it counts until its context ends.
    pub(super) fn give_back(&self, span: Span) -> Result<(), Code> {
        self.give_back_by(span, |address| self.driver.free(address))
    }

    fn give_back_by(
        &self,
        span: Span,
        free: impl FnOnce(Address) -> Result<(), Code>,
    ) -> Result<(), Code> {
        let given = self.state.lock().heap.pages.leave(span);
        let result = free(span.address);
        if is_gone(result) || !self.state.lock().loses(given) {
            self.quota.put_back(given);
        }
        result
    }

    /// Gives everything that no live block holds back to the driver and
    /// returns how many bytes that were.
    pub(super) fn release_idle(&self) -> Bytes {
        self.release_idle_if(IfEnding::Wait)
    }

    /// As [`Arena::release_idle`]; where the context may be ending, does what
    /// `ending` says.
    pub(super) fn release_idle_if(&self, ending: IfEnding) -> Bytes {
        if self.holds() {
            return Bytes::ZERO;
        }
        let released = self.release_if(ending, ArenaState::take_idle);
        let units = self.release_units(Bytes::MAX);
        released.unwrap_or(Bytes::ZERO).saturating_add(units)
    }

    /// Gives the chunks back that no live block holds, but for ranges.
    pub(super) fn release_idle_chunks(&self) -> Bytes {
        if self.holds() {
            return Bytes::ZERO;
        }
        self.release(ArenaState::take_idle)
    }

    /// More is in limbo than its budget allows, and the own context is done with the oldest of
    /// it: others hold that up. Where it is much, the next free gives some of it back, since a
    /// request waits for nothing that came after the frees before it.
    pub(super) fn note_held_up(&self) {
        // Without a fence it is not known who holds it up.
        let has_others = self.driver.may_fence() && !self.driver.is_alone();
        if has_others && !self.strategy.has_soft_limit() && !self.held_up_too_much().is_zero() {
            self.is_held_up.store(true, Ordering::Relaxed);
        }
    }

    /// By how much what is in limbo is more than what is live and than a part of the device:
    /// beside a context that is busy for long it would fill that.
    fn held_up_too_much(&self) -> Bytes {
        let part = Bytes::new(self.device_total().get() / HELD_UP_PART);
        let state = self.state.lock();
        let most = state.live_at_most().max(part);
        state.counters.limbo().saturating_sub(most)
    }

    /// Gives so much back of what others hold up, by the driver's own free: bare, the program
    /// makes one for each block, and waits there for whom this waits.
    fn release_held_up(&self) {
        let excess = self.held_up_too_much();
        if excess.is_zero() || self.holds() {
            return;
        }
        if let Some(_guard) = self.try_enter_ladder() {
            self.release(|state| state.let_go(|heap| heap.take_idle_in_limbo(excess)));
        }
    }

    /// Gives everything that no live block holds back to the driver, for a call
    /// of the program's to CUDA that found no memory, and returns how many bytes
    /// that were. That call need not wait for the device, so this waits for
    /// `most` at the longest. If the device is not done then, nothing goes back,
    /// since the driver's own free would wait on. While no fence may be made, what the
    /// program has freed is waited for as long as it takes, as the driver's free of empty
    /// chunks waits too.
    pub fn give_room(&self, most: Duration) -> Bytes {
        let has_some = {
            let mut state = self.state.lock();
            state.recall();
            !state.obtainable().is_zero() || state.holds_units_in_limbo()
        };
        if !has_some || self.holds() || !self.driver.may_give_back() {
            return Bytes::ZERO;
        }
        self.tell(&Mark::Order(ArenaOrder::GiveRoom));
        self.counted(|| {
            if !self.driver.may_fence() {
                let empty = self.release_empty();
                if self.is_limbo_empty() {
                    return empty;
                }
                self.wait_by_free(Whose::Own);
                return empty.saturating_add(self.release_empty());
            }
            // Units go when they have left limbo.
            self.close(Extent::All);
            let done = self
                .driver
                .fence()
                .and_then(|fence| self.driver.wait_within(&fence, most));
            let is_quiet = done == Ok(true);
            self.tell(&Mark::Quiet(is_quiet));
            if !is_quiet {
                return Bytes::ZERO;
            }
            self.poll(None);
            self.release_idle_if(IfEnding::Leave)
        })
    }

    /// Gives the chunks back that hold nothing, unless the context may be ending.
    fn release_empty(&self) -> Bytes {
        let released = self.release_if(IfEnding::Leave, |state| state.let_go(Heap::take_empty));
        released.unwrap_or(Bytes::ZERO)
    }

    /// Gives free oversize chunks back to the driver, for `need` bytes; false
    /// where there are none.
    pub(super) fn release_oversize(&self, need: Bytes) -> bool {
        if self.holds() {
            return false;
        }
        let released = self.release(|state| state.let_go(|heap| heap.take_oversize(need)));
        !released.is_zero()
    }

    /// Gives what `choose` takes out back to the driver and
    /// returns how many bytes that were.
    pub(super) fn release(
        &self,
        choose: impl FnOnce(&mut ArenaState<D::Fence>) -> Vec<Span>,
    ) -> Bytes {
        let released = self.release_if(IfEnding::Wait, choose);
        released.unwrap_or(Bytes::ZERO)
    }

    /// The same; none, and nothing leaves the heap, where the context may be
    /// ending: what were given back then would be in no heap, for as long
    /// as the end takes, and lost where there is none.
    pub(super) fn release_if(
        &self,
        ending: IfEnding,
        choose: impl FnOnce(&mut ArenaState<D::Fence>) -> Vec<Span>,
    ) -> Option<Bytes> {
        self.driver.giving_back(ending, |free| {
            let mut released = Bytes::ZERO;
            let (spans, flight) = {
                let mut state = self.state.lock();
                let spans = choose(&mut state);
                if spans.is_empty() {
                    return released;
                }
                (spans, self.quota.fly())
            };
            for span in spans {
                if is_gone(self.give_back_by(span, free)) {
                    released = released.saturating_add(span.size);
                    flight.lands();
                }
            }
            released
        })
    }

    /// After a free.
    pub(super) fn release_after_free(&self) {
        if self.policy.after_free {
            self.release_all_idle();
        }
        if let Some(most) = self.strategy.most_idle() {
            self.shed(most);
        }
    }

    /// No chunk stays without a live block. What of it is in limbo goes with
    /// it, since the driver's own free waits for the device.
    pub(super) fn release_all_idle(&self) {
        self.state.lock().recall();
        let (has_some, in_limbo) = {
            let state = self.state.lock();
            (!state.obtainable().is_zero(), state.holds_units_in_limbo())
        };
        if !(has_some || in_limbo) {
            return;
        }
        // A capture may have begun. And whoever is on the ladder may wait for the device,
        // and the device for this thread, if it is a host function's.
        let guard = self.driver.may_fence().then(|| self.try_enter_ladder());
        let Some(_guard) = guard.flatten() else {
            self.owes.store(true, Ordering::Relaxed);
            return;
        };
        if in_limbo {
            // The driver's free of a chunk waits. Units are unmapped only when they have
            // left limbo.
            self.wait_for_all(Whose::Own);
        }
        self.release_idle();
    }

    /// Gives back what lies idle beyond `most`, and waits where more lies in
    /// limbo than its budget allows, as the driver's own free would have
    /// waited.
    fn shed(&self, most: Bytes) {
        while self.is_over_budget() {
            self.close(Extent::All);
            if !self.wait_for_oldest(Wait::Budget, Whose::Own) {
                break;
            }
        }
        if self.state.lock().counters.idle() <= most {
            return;
        }
        self.close_and_poll(Extent::All);
        let beyond = |heap: &mut Heap, idle: Bytes| heap.take_oldest(idle.saturating_sub(most));
        self.release_surplus(beyond, Bytes::ZERO);
    }

    /// Before more is taken from the driver. The driver's frees wait for the
    /// device: not for a request that could not be had after all.
    pub(super) fn release_before_growth(&self, request: Bytes) {
        let is_worth = |surplus: Bytes| {
            let due = self.state.lock().obtainable().min(surplus);
            !due.is_zero() && self.could_be_had(request)
        };
        self.decay();
        if self.policy.before_growth {
            if is_worth(Bytes::MAX) {
                self.release_surplus(|heap, _| heap.take_empty(), Bytes::MAX);
            }
        } else {
            let garbage = self
                .policy
                .threshold
                .map(|threshold| self.garbage(threshold));
            let surplus = garbage
                .unwrap_or(Bytes::ZERO)
                .max(self.quota.beyond_soft(request));
            if !surplus.is_zero() && is_worth(surplus) {
                self.release_surplus(|heap, _| heap.take_oldest(surplus), surplus);
            }
        }
    }

    /// What PyTorch's garbage collection would free, which looks at memory on its
    /// way to the limit, or to what the device has where there is no limit.
    fn garbage(&self, threshold: f64) -> Bytes {
        let most = self.quota.limit().unwrap_or_else(|| self.device_total());
        if most.is_zero() {
            return most;
        }
        (self.quota.reserved()).saturating_sub(most.scaled(threshold))
    }

    /// Gives back what has been idle for too long.
    #[inline(always)]
    pub(super) fn decay(&self) {
        if self.policy.decays {
            self.release_decayed();
        }
    }

    #[cold]
    fn release_decayed(&self) {
        self.release_surplus(|heap, _| heap.take_decayed(), Bytes::ZERO);
    }

    /// Gives back the chunks that `choose` takes out of the heap, of which so
    /// much is idle, and units, until it is `most` bytes in all; nothing where another
    /// thread is on the ladder, and gives back more than this.
    fn release_surplus(
        &self,
        choose: impl FnOnce(&mut Heap, Bytes) -> Vec<LeftChunk>,
        most: Bytes,
    ) {
        if !self.driver.may_fence() || self.holds() {
            return;
        }
        if let Some(_guard) = self.try_enter_ladder() {
            let released = self.release(|state| {
                let idle = state.counters.idle();
                state.let_go(|heap| choose(heap, idle))
            });
            self.release_units(most.saturating_sub(released));
        }
    }
}

/// Whether memory is no longer on the device by what the driver answered to its
/// free. If it knows of none there, somebody was faster: the program, by a second
/// free of the block at its beginning.
fn is_gone(answer: Result<(), Code>) -> bool {
    matches!(answer, Ok(()) | Err(Code::INVALID_VALUE))
}
