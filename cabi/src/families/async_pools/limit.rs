//! What lets a request to one of CUDA's pools through below a limit, and what it
//! waits for first.
//!
//! Owns the counts of requests that are under way, in the [`Pool`]. Invariant: of
//! the requests to a pool that could pass the limit one is made at a time, while
//! no other of the pool is. Cost: three questions to the driver for each request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use vramalloc_core::Bytes;
use vramalloc_core::busy::Turn;
use vramalloc_core::patience::wait_within;
use vramalloc_core::quota::Asked;

use super::{ANY, Pool, USED};
use crate::families::relief;

/// The longest that a request waits for another that may pass the limit: for a
/// call to the driver.
const LONGEST_TURN: Duration = Duration::from_secs(1);

/// What lets a request through: that the pool has room for it, or that what it
/// may make the pool reserve was taken out of the quota. Without a limit, neither.
pub(super) type Leave<'a> = (Option<InRoom<'a>>, Option<Asked<'a>>);

/// A request that a pool may have room for, until the driver has served it.
pub(super) struct InRoom<'a> {
    pool: &'a Pool,
    size: Bytes,
    /// What it may make the pool grow by, as long as that cannot pass the limit.
    growing: Bytes,
    /// Held by the one request that may pass the limit.
    turn: Option<Turn<'a>>,
}

impl<'a> InRoom<'a> {
    /// Waits until no other may pass the limit, if this one may; `None` if that
    /// takes too long.
    fn begin(pool: &'a Pool, size: Bytes) -> Option<InRoom<'a>> {
        let growth = pool.growth(size);
        // AcqRel: of two requests one sees the other.
        pool.flying.fetch_add(size.get(), Ordering::AcqRel);
        let mut begun = InRoom {
            pool,
            size,
            growing: growth,
            turn: None,
        };
        // SeqCst, here and below: of one that has the turn and one that needs
        // none, one sees the other.
        let others = pool.growing.fetch_add(growth.get(), Ordering::SeqCst);
        let passing_by = pool.passing_by.load(Ordering::SeqCst);
        let quota = &pool.device.quota;
        let most = Bytes::new(others).saturating_add(Bytes::new(passing_by));
        let most = most.saturating_add(growth).saturating_add(quota.reserved());
        if quota.limit().is_none_or(|limit| most <= limit) {
            return Some(begun);
        }
        // It waits until it has the turn, and until those are done that have
        // none: what is reserved may have grown since they began.
        begun.stop_growing();
        wait_within(LONGEST_TURN, || {
            if begun.turn.is_none() {
                begun.turn = pool.passing.turn();
                let has_turn = begun.turn.as_ref();
                has_turn.inspect(|_| pool.passing_by.store(growth.get(), Ordering::SeqCst));
            }
            begun.turn.is_some() && pool.growing.load(Ordering::SeqCst) == 0
        })
        .then_some(begun)
    }

    fn stop_growing(&mut self) {
        let growth = std::mem::replace(&mut self.growing, Bytes::ZERO);
        self.pool.growing.fetch_sub(growth.get(), Ordering::SeqCst);
    }
}

impl Drop for InRoom<'_> {
    fn drop(&mut self) {
        // Release: what the request uses is there for whoever finds it gone.
        (self.pool.flying).fetch_sub(self.size.get(), Ordering::Release);
        self.stop_growing();
        if self.turn.is_some() {
            self.pool.passing_by.store(0, Ordering::SeqCst);
        }
    }
}

/// Lets a request through, if its pool has room for it or the limit leaves so
/// much; if not, idle memory goes back first.
pub(super) fn leave(pool: &Pool, size: Bytes) -> Option<Leave<'_>> {
    let device = pool.device;
    if device.quota.limit().is_none() {
        return Some((None, None));
    }
    let ask = || match within(pool, size) {
        Some(within) => Some((Some(within), None)),
        None => Some((None, Some(device.quota.ask(pool.growth(size))?))),
    };
    relief::at_limit(device, pool.growth(size), ask)
}

/// Whether a pool has room for a request besides those that are under way.
fn within(pool: &Pool, size: Bytes) -> Option<InRoom<'_>> {
    let begun = InRoom::begin(pool, size)?;
    if !pool.is_within_limit() {
        return None;
    }
    // Not less than this one, however large it is.
    let flying = Bytes::new(pool.flying.load(Ordering::Acquire)).max(size);
    let used = pool.attribute(USED)?;
    (used.saturating_add(flying) <= pool.read()).then_some(begun)
}

/// How often memory was freed in the order of a stream, and how many of these
/// frees were waited for: not twice, since a kernel may run for ever. Relaxed
/// where nothing else is said: the worst is a wait for nothing.
static FREED: AtomicU64 = AtomicU64::new(0);
static DONE: AtomicU64 = AtomicU64::new(0);

/// The program has freed memory of CUDA's in the order of a stream.
pub(crate) fn freed() {
    if ANY.load(Ordering::Relaxed) {
        // Release: who sees it makes a fence that comes after the free.
        FREED.fetch_add(1, Ordering::Release);
    }
}

/// Makes a request again while there are frees that streams have yet to get to:
/// the driver itself would wait for them.
pub(super) fn after_frees<T>(
    pool: &Pool,
    size: Bytes,
    mut request: impl FnMut() -> Option<T>,
) -> Option<T> {
    let limit = pool.device.quota.limit()?;
    let freed = FREED.load(Ordering::Acquire);
    if size > limit || freed == DONE.load(Ordering::Relaxed) {
        return None;
    }
    let (served, has_waited) = relief::while_busy(pool.device, || {
        pool.trim(Bytes::ZERO);
        request()
    });
    if has_waited {
        DONE.fetch_max(freed, Ordering::Relaxed);
    }
    served
}
