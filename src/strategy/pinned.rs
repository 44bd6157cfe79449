//! Pinned host memory: chunks that grow in proportion to what is in use.
//!
//! Locking memory is slow, and locked memory is lost to all other users of the
//! host. So the first chunk is small, each further one is as large as all
//! before it together, and none is larger than Paddle's chunk, a 256th of what
//! may be reserved. Larger requests go to the driver and, when they are freed,
//! straight back. Idle memory beyond a small share of the host's memory goes
//! back as well (the arena does that after a free), because the program may
//! need it where the library is not asked: in `malloc`.
//!
//! Blocks are whole pages of the host: programs hand pinned memory to the
//! kernel (direct I/O, registrations) and rely on that.

use std::sync::Arc;

use crate::address::Bytes;
use crate::config::PinnedConfig;
use crate::quota::Quota;
use crate::strategy::{Pool, Route};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Blocks are multiples of the host's page.
pub(super) const BLOCK: Bytes = Bytes::kib(4);

/// Chunks are multiples of the page map's granularity for them.
pub(super) const CHUNK: Bytes = Bytes::kib(64);

/// The first chunk, unless the request is larger.
const FIRST: Bytes = Bytes::kib(256);

/// Paddle's chunk is this part of what may be reserved.
const CHUNK_PART: u64 = 256;

/// This part of the host's memory may lie idle, in all arenas together.
const IDLE_PART: u64 = 64;

/// The state that all arenas of pinned memory of a process share.
pub struct PinnedPlan {
    config: PinnedConfig,
    /// Whether anything is pooled.
    pools: bool,
    quota: Arc<Quota>,
    largest_chunk: Bytes,
    idle: Bytes,
    arenas: AtomicUsize,
    reserved: AtomicBool,
}

impl PinnedPlan {
    /// The plan on a host with `memory` for this process.
    #[must_use]
    pub fn new(config: &PinnedConfig, memory: Bytes) -> PinnedPlan {
        let cap = memory.scaled(config.fraction);
        let chunk = Bytes::new(cap.get() / CHUNK_PART);
        PinnedPlan {
            config: *config,
            pools: !cap.is_zero(),
            quota: Arc::new(Quota::new(cap)),
            largest_chunk: chunk.round_down(CHUNK),
            idle: Bytes::new(memory.get() / IDLE_PART),
            arenas: AtomicUsize::new(0),
            reserved: AtomicBool::new(false),
        }
    }

    /// What all arenas may reserve together.
    pub(crate) fn quota(&self) -> Arc<Quota> {
        Arc::clone(&self.quota)
    }

    /// Whether anything is pooled; if not, every call goes to the driver.
    pub(crate) fn pools(&self) -> bool {
        self.pools
    }
}

/// The strategy of one arena of pinned memory.
pub(crate) struct Pinned {
    plan: Arc<PinnedPlan>,
    /// Size of the segment that this arena takes first and keeps; only one of
    /// all arenas has one.
    reserve: Option<Bytes>,
}

impl Pinned {
    // Relaxed throughout: the two atomics are independent.
    pub(crate) fn new(plan: &Arc<PinnedPlan>) -> Pinned {
        plan.arenas.fetch_add(1, Ordering::Relaxed);
        let reserve = (plan.config.reserve_segment)
            .and_then(|size| size.round_up(CHUNK))
            .filter(|_| !plan.reserved.swap(true, Ordering::Relaxed));
        Pinned {
            plan: Arc::clone(plan),
            reserve,
        }
    }

    /// The block that serves a request: whole pages, and a power of two if the
    /// option says so.
    pub(crate) fn block(&self, request: Bytes) -> Option<Bytes> {
        let rounds = (self.plan.config.max_round_threshold).is_some_and(|most| request <= most);
        let request = if rounds {
            Bytes::new(request.get().checked_next_power_of_two()?)
        } else {
            request
        };
        request.round_up(BLOCK)
    }

    pub(crate) fn route(&self, size: Bytes) -> Route {
        let cached = (self.plan.config.max_cached).is_none_or(|most| size <= most);
        let largest = self
            .plan
            .largest_chunk
            .max(self.reserve.unwrap_or_default());
        if cached && size <= largest {
            Route::Pool(Pool::Large)
        } else {
            Route::Direct
        }
    }

    /// The chunk for a request of `size` bytes while `held` bytes are held in
    /// chunks.
    pub(crate) fn chunk(&self, size: Bytes, held: Bytes) -> Bytes {
        let grown = match self.reserve {
            Some(reserve) if held.is_zero() => reserve,
            _ => held.max(FIRST).min(self.plan.largest_chunk),
        };
        let least = size.round_up(CHUNK).unwrap_or(size);
        // As many of this size as it holds: a program that fills the host with blocks of one
        // size would lose the rest of each chunk.
        let whole = grown.get().checked_div(least.get()).unwrap_or(0);
        least.max(Bytes::new(whole * least.get()))
    }

    /// Whether the first chunk is never given back.
    pub(crate) fn keeps_first(&self) -> bool {
        self.reserve.is_some()
    }

    /// The most that may lie idle in this arena, including the segment that it
    /// keeps.
    pub(crate) fn most_idle(&self) -> Bytes {
        let arenas = self.plan.arenas.load(Ordering::Relaxed).max(1) as u64;
        let share = Bytes::new(self.plan.idle.get() / arenas).max(FIRST);
        share.saturating_add(self.reserve.unwrap_or_default())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn pinned(config: PinnedConfig, memory: Bytes) -> Pinned {
        let plan = PinnedPlan::new(&config, memory);
        Pinned::new(&Arc::new(plan))
    }

    #[test]
    fn chunks_double_up_to_paddles() {
        let pinned = pinned(PinnedConfig::default(), Bytes::gib(512));
        let mut held = Bytes::ZERO;
        let mut chunks = Vec::new();
        for _ in 0..16 {
            let chunk = pinned.chunk(Bytes::kib(4), held);
            held = held.saturating_add(chunk);
            chunks.push(chunk.get() >> 10);
        }
        let kib = [
            256,
            256,
            512,
            1 << 10,
            2 << 10,
            4 << 10,
            8 << 10,
            16 << 10,
            32 << 10,
            64 << 10,
            128 << 10,
            256 << 10,
            512 << 10,
            1 << 20,
            1 << 20,
            1 << 20,
        ];
        assert_eq!(chunks, kib, "up to 1 GiB, half of 512 GiB by 256");
        assert_eq!(pinned.route(Bytes::gib(1)), Route::Pool(Pool::Large));
        assert_eq!(pinned.route(Bytes::new((1 << 30) + 4096)), Route::Direct);
        assert_eq!(pinned.chunk(Bytes::mib(600), Bytes::ZERO), Bytes::mib(600));
        assert_eq!(pinned.chunk(Bytes::mib(3), Bytes::mib(32)), Bytes::mib(30));
    }

    #[test]
    fn small_hosts_have_small_chunks_and_none_below_a_subpage() {
        let chunk = |memory| pinned(PinnedConfig::default(), memory).chunk(BLOCK, Bytes::gib(1));
        assert_eq!(chunk(Bytes::gib(1)), Bytes::mib(2));
        assert_eq!(chunk(Bytes::mib(100)), Bytes::kib(192));
        let tiny = pinned(PinnedConfig::default(), Bytes::mib(16));
        assert_eq!(tiny.route(BLOCK), Route::Direct);
    }

    #[test]
    fn blocks_are_pages_or_powers_of_two() {
        let plain = pinned(PinnedConfig::default(), Bytes::gib(16));
        let rounding = pinned(
            PinnedConfig {
                max_round_threshold: Some(Bytes::mib(1)),
                ..PinnedConfig::default()
            },
            Bytes::gib(16),
        );
        for (request, pages, powers) in [
            (1, 4096, 4096),
            (4097, 8192, 8192),
            (20_000, 20_480, 32_768),
            (1 << 20, 1 << 20, 1 << 20),
            ((1 << 20) + 1, (1 << 20) + 4096, (1 << 20) + 4096),
        ] {
            let request = Bytes::new(request);
            assert_eq!(plain.block(request), Some(Bytes::new(pages)));
            assert_eq!(rounding.block(request), Some(Bytes::new(powers)));
        }
        assert_eq!(plain.block(Bytes::MAX), None);
    }

    #[test]
    fn one_arena_takes_the_reserve() {
        let config = PinnedConfig {
            reserve_segment: Some(Bytes::mib(96)),
            max_cached: Some(Bytes::mib(80)),
            ..PinnedConfig::default()
        };
        let plan = PinnedPlan::new(&config, Bytes::gib(16));
        let plan = Arc::new(plan);
        let (first, second) = (Pinned::new(&plan), Pinned::new(&plan));
        assert_eq!(first.chunk(BLOCK, Bytes::ZERO), Bytes::mib(96));
        assert_eq!(first.chunk(BLOCK, Bytes::mib(96)), Bytes::mib(32));
        assert_eq!(second.chunk(BLOCK, Bytes::ZERO), FIRST);
        assert!(first.keeps_first() && !second.keeps_first());
        assert_eq!(first.route(Bytes::mib(80)), Route::Pool(Pool::Large));
        assert_eq!(first.route(Bytes::mib(81)), Route::Direct);
        assert_eq!(second.route(Bytes::mib(33)), Route::Direct);
        // A 64th of 16 GiB for both arenas together.
        assert_eq!(second.most_idle(), Bytes::mib(128));
        assert_eq!(first.most_idle(), Bytes::mib(128 + 96));
    }
}
