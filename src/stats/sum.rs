//! The arenas whose contexts are gone, summed up.
//!
//! A program may make and end contexts for as long as it runs. The first
//! [`APART`] arenas that are gone have entries of their own in the statistics;
//! the others are summed up, by device and kind. Invariant: counts are exact
//! sums; of peaks, and of what was longest or largest, the highest is reported.
//! Cost: constant per arena.

use super::{
    ArenaReport, ArenaStats, CallCount, DriverCalls, Gauge, MappingCalls, MemoryStats, Metric,
    PoolStats, Stat,
};
use crate::address::Bytes;

/// How many arenas that are gone are reported one by one.
const APART: usize = 256;

/// Sums up the reports of arenas that are gone, except the first [`APART`].
pub fn sum_up(reports: impl Iterator<Item = ArenaReport>) -> Vec<ArenaReport> {
    let (mut apart, mut sums): (_, Vec<ArenaReport>) = (Vec::new(), Vec::new());
    let mut gone = 0;
    for report in reports {
        let is_gone = report.stats.ended_us.is_some();
        gone += usize::from(is_gone);
        if !is_gone || gone <= APART {
            apart.push(report);
        } else if let Some(sum) = sums.iter_mut().find(|sum| sum.is_alike(&report)) {
            sum.add(&report);
        } else {
            sums.push(report);
        }
    }
    apart.append(&mut sums);
    apart
}

impl ArenaReport {
    /// Whether any memory was requested from it.
    #[must_use]
    pub fn has_allocated(&self) -> bool {
        let stats = &self.stats;
        stats.hits + stats.misses + stats.direct + stats.ooms > 0
    }

    /// Whether both arenas hold the same kind of memory of the same device.
    fn is_alike(&self, other: &ArenaReport) -> bool {
        let sort = |report: &ArenaReport| {
            let flags = report.pinned.map(|pinned| pinned.flags);
            let region = report.region.clone();
            (report.device, report.lane, report.pageable, flags, region)
        };
        sort(self) == sort(other)
    }

    fn add(&mut self, other: &ArenaReport) {
        self.not_mapped = self.not_mapped.or(other.not_mapped);
        self.not_packed = self.not_packed.or(other.not_packed);
        self.not_kept = self.not_kept.or(other.not_kept);
        self.more = self.more.saturating_add(other.more).saturating_add(1);
        self.stats.add(&other.stats);
        self.calls.add(&other.calls);
        self.ooms.add(&other.ooms);
    }
}

fn add(sum: &mut u64, other: u64) {
    *sum = sum.saturating_add(other);
}

fn add_bytes(sum: &mut Bytes, other: Bytes) {
    *sum = sum.saturating_add(other);
}

fn add_gauge(sum: &mut Gauge, other: &Gauge) {
    add_bytes(&mut sum.current, other.current);
    sum.peak = sum.peak.max(other.peak);
}

impl ArenaStats {
    fn add(&mut self, other: &ArenaStats) {
        self.made_us = self.made_us.min(other.made_us);
        self.ended_us = self.ended_us.max(other.ended_us);
        if other.live.peak > self.live.peak {
            self.classes_at_peak = other.classes_at_peak;
            self.libraries_at_peak = other.libraries_at_peak;
        }
        if other.reserved.peak > self.reserved.peak {
            self.at_reserved_peak = other.at_reserved_peak;
        }
        add_gauge(&mut self.live, &other.live);
        add_gauge(&mut self.cached, &other.cached);
        add_gauge(&mut self.limbo, &other.limbo);
        add_gauge(&mut self.reserved, &other.reserved);
        self.pause.add(&other.pause);
        self.libraries_live.add_all(&other.libraries_live);
        for (sum, other) in self.classes.iter_mut().zip(&other.classes) {
            add(&mut sum.allocations, other.allocations);
            add(&mut sum.frees, other.frees);
            add(&mut sum.requested, other.requested);
        }
        for (sum, other) in self.classes_live.iter_mut().zip(&other.classes_live) {
            add(&mut sum.blocks, other.blocks);
            add(&mut sum.bytes, other.bytes);
        }
        for (sum, other) in [
            (&mut self.hits, other.hits),
            (&mut self.thread_hits, other.thread_hits),
            (&mut self.misses, other.misses),
            (&mut self.fragmented_misses, other.fragmented_misses),
            (&mut self.limbo_misses, other.limbo_misses),
            (&mut self.direct, other.direct),
            (&mut self.chunks, other.chunks),
            (&mut self.chunks_released, other.chunks_released),
            (&mut self.epochs, other.epochs),
            (&mut self.waits, other.waits),
            (&mut self.wait_ns, other.wait_ns),
            (&mut self.budget_waits, other.budget_waits),
            (&mut self.budget_wait_ns, other.budget_wait_ns),
            (&mut self.ooms, other.ooms),
            (&mut self.limit_ooms, other.limit_ooms),
            (&mut self.fragmented_ooms, other.fragmented_ooms),
            (&mut self.raisable_ooms, other.raisable_ooms),
            (&mut self.bad_frees, other.bad_frees),
        ] {
            add(sum, other);
        }
        self.longest_wait_ns = self.longest_wait_ns.max(other.longest_wait_ns);
        self.largest_oom = self.largest_oom.max(other.largest_oom);
        self.limit_needed = self.limit_needed.max(other.limit_needed);
        self.largest_cached = self.largest_cached.max(other.largest_cached);
        add_bytes(&mut self.idle, other.idle);
        add_bytes(&mut self.idle_low, other.idle_low);
        self.memory.add(&other.memory);
    }
}

impl MemoryStats {
    fn add(&mut self, other: &MemoryStats) {
        self.all.add(&other.all);
        self.small_pool.add(&other.small_pool);
        self.large_pool.add(&other.large_pool);
        self.oversize_allocations.add(&other.oversize_allocations);
        self.oversize_segments.add(&other.oversize_segments);
        for (sum, other) in [
            (&mut self.num_alloc_retries, other.num_alloc_retries),
            (&mut self.num_ooms, other.num_ooms),
            (&mut self.num_sync_all_streams, other.num_sync_all_streams),
            (&mut self.num_device_alloc, other.num_device_alloc),
            (&mut self.num_device_free, other.num_device_free),
            (&mut self.num_oom_rejections, other.num_oom_rejections),
        ] {
            add(sum, other);
        }
    }
}

impl PoolStats {
    fn add(&mut self, other: &PoolStats) {
        for metric in Metric::ALL {
            self[metric].add(&other[metric]);
        }
    }
}

impl Stat {
    fn add(&mut self, other: &Stat) {
        add(&mut self.current, other.current);
        add(&mut self.allocated, other.allocated);
        add(&mut self.freed, other.freed);
        self.peak = self.peak.max(other.peak);
    }
}

impl DriverCalls {
    /// Counts the calls of another arena, too.
    pub fn add(&mut self, other: &DriverCalls) {
        self.alloc.add(other.alloc);
        self.free.add(other.free);
        self.mem_info.add(other.mem_info);
        self.fence.add(other.fence);
        self.reached.add(other.reached);
        self.wait.add(other.wait);
        self.mapping.add(&other.mapping);
    }
}

impl MappingCalls {
    fn add(&mut self, other: &MappingCalls) {
        self.reserve.add(other.reserve);
        self.create.add(other.create);
        self.map.add(other.map);
        self.set_access.add(other.set_access);
        self.unmap.add(other.unmap);
        self.release.add(other.release);
    }
}

impl CallCount {
    pub(crate) const NONE: CallCount = CallCount {
        calls: 0,
        failures: 0,
        ns: 0,
        longest_ns: 0,
        shortest_ns: 0,
    };

    pub(crate) fn one(ns: u64, failed: bool) -> CallCount {
        CallCount {
            calls: 1,
            failures: u64::from(failed),
            ns,
            longest_ns: ns,
            shortest_ns: ns,
        }
    }

    pub(crate) fn add(&mut self, other: CallCount) {
        self.shortest_ns = match (self.calls, other.calls) {
            (0, _) => other.shortest_ns,
            (_, 0) => self.shortest_ns,
            _ => self.shortest_ns.min(other.shortest_ns),
        };
        self.longest_ns = self.longest_ns.max(other.longest_ns);
        add(&mut self.calls, other.calls);
        add(&mut self.failures, other.failures);
        add(&mut self.ns, other.ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(device: u32, hits: u64, ended_us: Option<u64>) -> ArenaReport {
        let bytes = Bytes::new(hits);
        ArenaReport {
            device,
            stats: ArenaStats {
                ended_us,
                hits,
                live: Gauge {
                    current: bytes,
                    peak: bytes,
                },
                ..ArenaStats::default()
            },
            ..ArenaReport::default()
        }
    }

    #[test]
    fn those_that_are_gone_are_summed_up_where_there_are_many() {
        let many = 2 * APART as u64 + 10;
        let gone = (0..many).map(|number| report(u32::from(number % 2 == 1), number, Some(number)));
        let alive = [report(0, 1_000_000, None)];
        let all = sum_up(gone.chain(alive));
        assert_eq!(all.len(), APART + 1 + 2);
        let sum = |of: fn(&ArenaReport) -> u64| all.iter().map(of).sum::<u64>();
        assert_eq!(sum(|report| report.more + 1), many + 1);
        let hits = (0..many).sum::<u64>() + 1_000_000;
        assert_eq!(sum(|report| report.stats.hits), hits);
        assert_eq!(sum(|report| report.stats.live.current.get()), hits);
        // No two of them were there at once.
        let peaks = all.iter().skip(APART + 1).map(|r| r.stats.live.peak.get());
        assert!(peaks.eq([many - 2, many - 1]));
        assert!(all.iter().take(APART + 1).all(|report| report.more == 0));
    }
}
