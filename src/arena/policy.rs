//! Memory that goes back to the driver before it is short, because an option
//! says so.
//!
//! Nothing of this happens while a stream captures a graph: it can wait. Who
//! gives chunks back stays on the out-of-memory ladder meanwhile, so
//! that nobody there takes memory on its way for memory that is not there.
//! Cost: nothing where the options are off; else a look at all chunks where
//! something is due, and the driver's frees, which wait for the device.

use crate::address::Bytes;
use crate::arena::Arena;
use crate::arena::fences::{Extent, Wait};
use crate::config::{Config, Decay};
use crate::driver::{Driver, Whose};
use crate::heap::Heap;
use crate::heap::leave::LeftChunk;
use crate::strategy::Strategy;

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
    decays: bool,
}

impl ReleasePolicy {
    pub(super) fn new(config: &Config, strategy: &Strategy) -> ReleasePolicy {
        // Paddle's chunks in advance go back only when they are asked for.
        let grows = matches!(strategy, Strategy::AutoGrowth(_));
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
        if self.state.lock().counters.idle().is_zero() || !self.driver.may_fence() {
            return;
        }
        let _guard = self.enter_ladder();
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
        self.close(Extent::All);
        self.poll();
        self.release_surplus(|heap, idle| heap.take_oldest(idle.saturating_sub(most)));
    }

    /// Before more is taken from the driver. The driver's frees wait for the
    /// device: not for a request that could not be had after all.
    pub(super) fn release_before_growth(&self, request: Bytes) {
        let is_worth = |surplus: Bytes| {
            let due = self.state.lock().counters.idle().min(surplus);
            !due.is_zero() && self.could_be_had(request)
        };
        self.decay();
        if self.policy.before_growth {
            if is_worth(Bytes::MAX) {
                self.release_surplus(|heap, _| heap.take_empty());
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
                self.release_surplus(|heap, _| heap.take_oldest(surplus));
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
    pub(super) fn decay(&self) {
        if self.policy.decays {
            self.release_surplus(|heap, _| heap.take_decayed());
        }
    }

    /// Gives back the chunks that `choose` takes out of the heap, of which so
    /// much is idle; nothing where another thread is on the ladder, and gives
    /// back more than this.
    fn release_surplus(&self, choose: impl FnOnce(&mut Heap, Bytes) -> Vec<LeftChunk>) {
        if !self.driver.may_fence() || self.holds() {
            return;
        }
        if let Some(_guard) = self.try_enter_ladder() {
            self.release(|state| {
                let idle = state.counters.idle();
                state.let_go(|heap| choose(heap, idle))
            });
        }
    }
}
