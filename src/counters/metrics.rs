//! PyTorch's metrics while they are counted.
//!
//! Owns the values of both pools. Invariant: a peak is exact once `update_peak` has
//! been called for its metric after the last increase; `fall` does that before it
//! lowers, and `stat` for its answer. So what falls seldom need not be compared
//! with its peak at each increase. Cost: an increase is two additions, a decrease
//! one.

use crate::stats::{MemoryStats, Metric, Stat};
use crate::strategy::Pool;

/// A quantity of one pool.
#[derive(Copy, Clone, Default)]
pub(super) struct Counter {
    pub(super) current: u64,
    peak: u64,
    /// Sum of all increases.
    total: u64,
}

impl Counter {
    /// Sums wrap, as what counts is their difference; `validate` compares.
    pub(super) fn raise(&mut self, by: u64) {
        self.current = self.current.wrapping_add(by);
        self.total = self.total.wrapping_add(by);
    }

    pub(super) fn lower(&mut self, by: u64) {
        self.current = self.current.wrapping_sub(by);
    }

    /// Undoes a decrease.
    pub(super) fn return_to(&mut self, by: u64) {
        self.current = self.current.wrapping_add(by);
        self.update_peak();
    }

    pub(super) fn update_peak(&mut self) {
        if self.current > self.peak {
            self.peak = self.current;
        }
    }

    pub(super) fn stat(self) -> Stat {
        Stat {
            current: self.current,
            peak: self.peak.max(self.current),
            allocated: self.total,
            freed: self.total.wrapping_sub(self.current),
        }
    }
}

type Values = [Counter; Metric::COUNT];

/// Every metric of both pools.
#[derive(Default)]
pub(super) struct Metrics {
    small: Values,
    large: Values,
    /// Of both together, since they were begun anew.
    peaks: [u64; Metric::COUNT],
    /// The same before that.
    earlier: [u64; Metric::COUNT],
}

/// The metrics of one pool, on their way up or down.
pub(super) struct OfPool<'a> {
    values: &'a mut Values,
    other: &'a Values,
    peaks: &'a mut [u64; Metric::COUNT],
    earlier: &'a [u64; Metric::COUNT],
}

impl OfPool<'_> {
    #[inline]
    pub(super) fn raise(&mut self, metric: Metric, by: u64) {
        self.values[metric as usize].raise(by);
    }

    #[inline]
    pub(super) fn lower(&mut self, metric: Metric, by: u64) {
        self.values[metric as usize].lower(by);
    }

    /// Lowers what was not compared with its peak when it rose.
    #[inline]
    pub(super) fn fall(&mut self, metric: Metric, by: u64) {
        self.update_peak(metric);
        self.lower(metric, by);
    }

    /// So much is the other pool's, where it rises.
    pub(super) fn pass_on(&mut self, metric: Metric, by: u64) {
        self.lower(metric, by);
        let total = &mut self.values[metric as usize].total;
        *total = total.wrapping_sub(by);
    }

    /// So much rose and fell unseen.
    pub(super) fn passed(&mut self, metric: Metric, by: u64) {
        let total = &mut self.values[metric as usize].total;
        *total = total.wrapping_add(by);
    }

    /// How far this pool and both together are below their peaks.
    #[inline]
    pub(super) fn below_peak(&self, metric: Metric) -> u64 {
        let own = &self.values[metric as usize];
        let below = own.peak.saturating_sub(own.current);
        below.min(self.below_peak_of_all(metric))
    }

    /// How far both pools together are below their peak.
    #[inline]
    pub(super) fn below_peak_of_all(&self, metric: Metric) -> u64 {
        let metric = metric as usize;
        let all = (self.values[metric].current).wrapping_add(self.other[metric].current);
        self.peaks[metric].saturating_sub(all)
    }

    /// Undoes a decrease; true as for `update_peak`.
    pub(super) fn return_to(&mut self, metric: Metric, by: u64) -> bool {
        self.values[metric as usize].return_to(by);
        self.update_peak(metric)
    }

    /// Compares with the peaks; true where both pools together have more than
    /// ever.
    #[inline]
    pub(super) fn update_peak(&mut self, metric: Metric) -> bool {
        let metric = metric as usize;
        self.values[metric].update_peak();
        let all = self.values[metric]
            .current
            .wrapping_add(self.other[metric].current);
        let is_new = all > self.peaks[metric];
        if is_new {
            self.peaks[metric] = all;
        }
        is_new && all > self.earlier[metric]
    }
}

impl Metrics {
    #[inline]
    pub(super) fn of(&mut self, pool: Pool) -> OfPool<'_> {
        let (values, other) = match pool {
            Pool::Small => (&mut self.small, &self.large),
            Pool::Large | Pool::Oversize => (&mut self.large, &self.small),
        };
        OfPool {
            values,
            other,
            peaks: &mut self.peaks,
            earlier: &self.earlier,
        }
    }

    /// Of both pools together.
    #[inline]
    pub(super) fn current(&self, metric: Metric) -> u64 {
        let metric = metric as usize;
        self.small[metric]
            .current
            .wrapping_add(self.large[metric].current)
    }

    /// The same, with all that is known of it.
    pub(super) fn both(&self, metric: Metric) -> Stat {
        let [small, large] = [&self.small, &self.large].map(|pool| pool[metric as usize].stat());
        let current = small.current.wrapping_add(large.current);
        Stat {
            current,
            peak: self.peak(metric).max(self.earlier[metric as usize]),
            allocated: small.allocated.wrapping_add(large.allocated),
            freed: small.freed.wrapping_add(large.freed),
        }
    }

    /// The most that both pools together had since [`begin_peak`](Self::begin_peak).
    pub(super) fn peak(&self, metric: Metric) -> u64 {
        self.peaks[metric as usize].max(self.current(metric))
    }

    /// Begins this peak anew with what there is; what it was is returned.
    pub(super) fn begin_peak(&mut self, metric: Metric) -> u64 {
        let peak = self.peak(metric);
        let earlier = &mut self.earlier[metric as usize];
        *earlier = peak.max(*earlier);
        self.peaks[metric as usize] = self.current(metric);
        peak
    }

    /// Of one pool.
    pub(super) fn current_of(&self, pool: Pool, metric: Metric) -> u64 {
        match pool {
            Pool::Small => self.small[metric as usize].current,
            Pool::Large | Pool::Oversize => self.large[metric as usize].current,
        }
    }

    /// Everything fell to nothing.
    pub(super) fn clear(&mut self) {
        for pool in [Pool::Small, Pool::Large] {
            for metric in Metric::ALL {
                let all = self.current_of(pool, metric);
                self.of(pool).fall(metric, all);
            }
        }
    }

    /// Every metric, pool by pool.
    pub(super) fn write(&self, stats: &mut MemoryStats) {
        for metric in Metric::ALL {
            stats.small_pool[metric] = self.small[metric as usize].stat();
            stats.large_pool[metric] = self.large[metric as usize].stat();
            stats.all[metric] = self.both(metric);
        }
    }
}
