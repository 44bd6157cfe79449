//! What threads keep, called back, and the room that their caches have.
//!
//! Owns which caches are open. Invariant: the arena's figures are what the program
//! holds and all room together, of caches and common. Cost: a recall takes as long as the
//! frees that it ends.

use std::time::{Duration, Instant};

use crate::address::{Address, Bytes};
use crate::arena::state::ArenaState;
use crate::counters::{BlockInfo, Counters};
use crate::library::LibraryId;
use crate::stats::StackId;
use crate::strategy::Pool;
use crate::strategy::packing::Packing;
use crate::thread_cache::{Headroom, Held, Kept, OwnCache, Recalled, WORTH_BYTES};

/// What the first thread may keep of what is reserved, or so much; the next one gets half
/// of that at most, the third a third, and so on.
const KEPT_PART: u64 = 32;
const KEPT_LEAST: Bytes = Bytes::mib(64);

/// An arena with less is small, or tiny: what threads keep there has to be somewhere.
const SMALL_ARENA: Bytes = Bytes::mib(256);
const TINY_ARENA: Bytes = Bytes::mib(64);

/// What threads keep there is called back before growth from so much on: with that
/// it may not have to grow.
const SMALL_KEPT: u64 = 4 << 20;

/// But not from a thread that has taken that many times what it keeps since the arena
/// grew last.
const SERVES: u64 = 2;

/// Nor where it is less than this part of the request, in the arena of a program that
/// repeats: even with what is free beside it, it would hardly serve.
const SERVES_PART: u64 = 4;

/// Of slabs in use of so many bytes in all, threads keep nothing where less than this
/// part is held.
const SPARSE_LEAST: Bytes = Bytes::mib(64);
const SPARSE_PART: u64 = 4;

/// What one thread may keep at the least and at the most, and between these which
/// part of the chunks that small requests are served from.
const CACHE_LEAST: Bytes = Bytes::kib(512);
const CACHE_MOST: Bytes = Bytes::mib(32);
const CACHE_PART: u64 = 32;

/// For so long is the room of caches that others use told as it was.
const GLANCE: Duration = Duration::from_millis(100);

/// What is to be done after a thread has closed a batch.
pub(super) struct AfterBatch {
    pub(super) recalls: Recalls,
    /// Whether the thread's small cache was of use, where that was looked at.
    pub(super) was_of_use: Option<bool>,
}

/// What is called back.
pub(super) enum Recalls {
    Nothing,
    /// What the thread itself keeps.
    Own,
    All,
}

impl<F: Clone> ArenaState<F> {
    /// Opens a cache for a thread, which may keep so much there.
    pub(super) fn open_cache(
        &mut self,
        most: Bytes,
        is_sparing: bool,
        has_bank: bool,
    ) -> Option<OwnCache> {
        if self.retired || self.heap.is_paused() || self.lies_sparse() {
            return None;
        }
        // A thread that has ended uses its cache no more.
        if self.caches.are_all_open() && !self.recall_where(|kept| !kept.take_used()) {
            return None;
        }
        // The more there are, the less each gets.
        let bound = KEPT_LEAST
            .get()
            .max(self.counters.reserved().get() / KEPT_PART);
        let share = Bytes::new(bound / (self.caches.count() as u64 + 1));
        let most = most.min(share.max(CACHE_LEAST));
        let own = self.caches.open(&self.hub, most, is_sparing, has_bank);
        self.hub.common.tell_shared(self.caches.count() > 1);
        if let Some(mut kept) = own.hold_now() {
            kept.note_held(self.held_small());
        }
        Some(own)
    }

    /// What counts as live of the blocks that threads may keep, but for common room.
    fn held_small(&self) -> Bytes {
        let live = self.counters.live_of(self.heap.pool_of_kept());
        live.saturating_sub(Bytes::new(self.hub.common.bytes()))
    }

    /// Closes the open batch of the thread's cache for an epoch, and says what is to be
    /// called back then: everything where it would keep chunks in use for little. That is so
    /// where the chunks are nearly empty, or where memory is scarce (`is_sparing`: see
    /// `Arena::is_sparing`) and the program holds less by nearly all that the thread has
    /// freed since it closed a batch last. That lies scattered then: each block of it that
    /// is handed out again would keep a chunk in use. Not so where another thread takes what
    /// this one frees. The thread's cache alone goes where it is small and of no use, or
    /// memory is no longer scarce.
    pub(super) fn after_batch(&self, own: OwnCache, epoch: u64, is_sparing: bool) -> AfterBatch {
        let held = self.held_small();
        let mut after = AfterBatch {
            recalls: Recalls::Nothing,
            was_of_use: None,
        };
        if let Some(mut kept) = own.hold_now() {
            kept.close_batch(epoch);
            if kept.closed_some() {
                own.invite(&kept);
            }
            let fell = kept.note_held(held);
            if kept.is_sparing() {
                after.was_of_use = kept.was_of_use();
            }
            if is_sparing && (fell || !kept.is_sparing()) {
                after.recalls = Recalls::All;
            } else if after.was_of_use == Some(false) || !is_sparing && kept.is_outgrown() {
                after.recalls = Recalls::Own;
            }
        }
        if self.lies_sparse() {
            after.recalls = Recalls::All;
        }
        after
    }

    /// Whether the chunks in use for small requests are nearly empty, where idle ones serve
    /// all requests. What threads kept of them would lie scattered over all: handed out
    /// again, a few blocks would keep each chunk from coming to be idle.
    pub(super) fn lies_sparse(&self) -> bool {
        if self.packing.as_ref().is_none_or(Packing::lets_keep) {
            return false;
        }
        let counters = &self.counters;
        let (live, idle) = (counters.live_of(Pool::Small).get(), counters.idle_small());
        // The slabs that threads were given to be apart are no sign of that.
        let beside = idle.saturating_add(self.slabs.bytes());
        let used = counters.reserved_of(Pool::Small).saturating_sub(beside);
        let is_sparse =
            |held: u64| used >= SPARSE_LEAST && held.saturating_mul(SPARSE_PART) < used.get();
        if !is_sparse(live) {
            return false;
        }
        let held = self.caches.hold();
        is_sparse(live.saturating_sub(self.room_with(&held).bytes))
    }

    /// What a thread may keep, where no option says so.
    pub(super) fn auto_cache(&self, is_sparing: bool) -> Bytes {
        if is_sparing {
            return CACHE_LEAST;
        }
        if self.counters.reserved() < SMALL_ARENA {
            return CACHE_MOST;
        }
        let pool = self.counters.reserved_of(self.heap.pool_of_kept());
        Bytes::new(pool.get() / CACHE_PART).clamp(CACHE_LEAST, CACHE_MOST)
    }

    /// Counts, by `count`, a block that the program got, on a thread with this cache.
    /// Where a figure would pass its peak by that, room comes first: of the thread's own
    /// cache, and what is common, which hold no other thread up; and if that is not
    /// enough that of others, one after another. Where all of it is gone the figure
    /// is exact, and passes its peak. What is left then is common.
    pub(super) fn count_given(
        &mut self,
        info: &BlockInfo,
        own: Option<OwnCache>,
        count: impl FnOnce(&mut Counters),
    ) {
        let held = if self.caches.are_closed() {
            None
        } else {
            self.make_room(info, own)
        };
        count(&mut self.counters);
        if held.is_some() {
            self.share_room();
        }
        drop(held);
        let live = self.live_at_most();
        if let Some(packing) = &mut self.packing {
            packing.rose(live);
        }
    }

    /// Takes room so that no figure passes its peak by this block while there is any. With
    /// it, those that do without their caches until the block is counted; none where
    /// nobody's room but the thread's own was needed.
    #[inline]
    fn make_room(&mut self, info: &BlockInfo, own: Option<OwnCache>) -> Option<Vec<Held>> {
        let pool = self.heap.pool_of_kept();
        let beyond = self.counters.beyond_peak(pool, info);
        if self.take_own_room(own, beyond).is_none() {
            return None;
        }
        self.take_common_room();
        if self.counters.beyond_peak(pool, info).is_none() {
            return Some(Vec::new());
        }
        Some(self.take_others_room(info))
    }

    /// Takes room from caches, one after another, until no figure would pass its peak by
    /// this block, or none is left. These threads do without them meanwhile.
    fn take_others_room(&mut self, info: &BlockInfo) -> Vec<Held> {
        let pool = self.heap.pool_of_kept();
        let (counters, common) = (&mut self.counters, &self.hub.common);
        let mut beyond = Headroom::default();
        let mut held = self.caches.hold_while(|kept| {
            // Its thread may have left some meanwhile.
            let room = kept.take_room().and(common.take());
            counters.ungrant(pool, room);
            beyond = counters.beyond_peak(pool, info);
            !beyond.is_none()
        });
        if beyond.bytes > 0 {
            // What the program holds at a peak is told by class.
            (held.iter_mut()).for_each(|kept| counters.count_classes(kept));
        }
        held
    }

    /// Takes what is common.
    fn take_common_room(&mut self) {
        let room = self.hub.common.take();
        self.counters.ungrant(self.heap.pool_of_kept(), room);
    }

    /// What is left below the peaks is common.
    fn share_room(&mut self) {
        let room = self.counters.grant(self.heap.pool_of_kept());
        self.hub.common.add(room);
    }

    /// Takes room from a thread's own cache, in each figure of which the cache has as
    /// much as `room` says. Returns what is still missing.
    fn take_own_room(&mut self, own: Option<OwnCache>, room: Headroom) -> Headroom {
        if room.is_none() {
            return room;
        }
        let Some(mut kept) = own.and_then(OwnCache::hold_now) else {
            return room;
        };
        let given = kept.give_room(room);
        self.counters.ungrant(self.heap.pool_of_kept(), given);
        room.less(given)
    }

    /// Hands out a block that the calling thread keeps and has no room for: there may be
    /// some below the peaks, of which its cache gets half. If not, the arena counts the block.
    pub(super) fn take_kept(
        &mut self,
        own: OwnCache,
        request: Bytes,
        library: LibraryId,
    ) -> Option<Address> {
        let pool = self.heap.pool_of_kept();
        let mut kept = own.hold_now()?;
        let lacks = kept.lacks(request)?;
        kept.grant(self.counters.grant_lacking(pool, lacks));
        let taken = kept.take_near(request, library);
        if taken.is_some() {
            return taken;
        }
        let (address, size) = kept.take_uncounted(request, library)?;
        drop(kept);
        let info = BlockInfo {
            address,
            size,
            requested: request,
            pool,
            library,
            stack: StackId::NONE,
        };
        self.count_given(&info, Some(own), |counters| {
            counters.handed_out_again(&info)
        });
        Some(address)
    }

    /// Hands out a block that another thread has freed, with more of its size for the
    /// calling thread's cache, if the other one hardly takes any itself.
    pub(super) fn take_passed_on(
        &mut self,
        own: OwnCache,
        request: Bytes,
        library: LibraryId,
    ) -> Option<Address> {
        let ended = self.hub.ended();
        if self.caches.count() < 2 {
            return None;
        }
        let mut to = own.hold_now()?;
        let pass_on = |from: &mut Kept| from.pass_on(request, ended, &mut to);
        let is_passed_on = self.caches.look_at_others(Some(own), pass_on);
        drop(to);
        let take = || self.take_kept(own, request, library);
        is_passed_on.then(take).flatten()
    }

    /// Whether another thread frees what a thread without a cache takes.
    pub(super) fn is_freed_by_others(&mut self, request: Bytes) -> bool {
        let ended = self.hub.ended();
        (self.caches).look_at_others(None, |kept| kept.gives(request, ended))
    }

    /// Bytes that the program holds, or has room for in a cache.
    #[inline]
    pub(super) fn live_at_most(&self) -> Bytes {
        let common = Bytes::new(self.hub.common.bytes());
        self.counters.live().saturating_sub(common)
    }

    /// Bytes that the program holds.
    pub(super) fn live(&self) -> Bytes {
        self.counters.live().saturating_sub(self.room())
    }

    /// Bytes that the program was ever given, and those of them that it holds
    /// no more.
    pub(super) fn turnover(&mut self) -> (u64, u64) {
        self.recall();
        self.counters.turnover()
    }

    /// Bytes by which the figures are more than what the program holds.
    pub(super) fn room(&self) -> Bytes {
        let held = self.caches.hold();
        Bytes::new(self.room_with(&held).bytes)
    }

    /// The same for who asks often and goes by about: where a look would take away the bias
    /// of a thread's lock, it is what it was, for up to a tenth of a second.
    pub(super) fn room_about(&mut self) -> Bytes {
        if let Some((room, at)) = self.room_seen
            && self.caches.are_biased_elsewhere()
            && at.elapsed() < GLANCE
        {
            return room;
        }
        let room = self.room();
        self.room_seen = Some((room, Instant::now()));
        room
    }

    /// All the room there is, where these are all caches.
    pub(super) fn room_with(&self, held: &[Held]) -> Headroom {
        let rooms = held.iter().map(|kept| kept.room());
        rooms.fold(self.hub.common.get(), Headroom::and)
    }

    /// Takes a part of its blocks from a thread's cache.
    pub(super) fn shed_kept(&mut self, own: OwnCache) {
        let ended = self.hub.ended();
        let mut held = self.hold_without_room();
        if let Some(kept) = held.iter_mut().find(|kept| own.has(kept)) {
            kept.shed(ended, |block| self.take_back(&block));
        }
        self.counters.was_cached();
    }

    /// Stops all threads from using their caches, and takes their room away: what is
    /// called back into limbo counts as active again, and the figures have to be exact
    /// for that.
    fn hold_without_room(&mut self) -> Vec<Held> {
        let pool = self.heap.pool_of_kept();
        let mut held = self.caches.hold();
        for kept in &mut held {
            self.counters.ungrant(pool, kept.take_room());
        }
        self.take_common_room();
        held
    }

    /// Before growth for so much, calls back what threads keep. In a small arena what
    /// serves its thread well stays: the arena grows rather than that the thread loses it.
    /// The request is of the thread with the cache `own`. Whether there was anything.
    pub(super) fn recall_for_growth(
        &mut self,
        own: Option<OwnCache>,
        size: Bytes,
        is_sparing: bool,
    ) -> bool {
        let reserved = self.counters.reserved();
        let bytes: u64 = self.caches.hold().iter().map(|kept| kept.bytes()).sum();
        if bytes < size.get() / SERVES_PART && self.packing.as_ref().is_some_and(Packing::lets_keep)
        {
            // What is decided next goes by what the program holds.
            drop(self.hold_without_room());
            return bytes > 0;
        }
        if is_sparing {
            return self.recall_where(|_| true);
        }
        // What the thread itself keeps grows until it is worth a fence.
        let owns = own.and_then(OwnCache::hold_now);
        let owns = owns.map_or(0, |kept| kept.bytes().min(WORTH_BYTES));
        let is_tiny = reserved < TINY_ARENA;
        if is_tiny && bytes - owns < SMALL_KEPT {
            return false;
        }
        let may_stay = is_tiny || reserved < SMALL_ARENA && bytes >= SMALL_KEPT;
        self.recall_where(|kept| {
            // What a thread that has ended keeps serves nobody any more.
            let serves = kept.take_served() >= SERVES * kept.blocks();
            !(may_stay && serves)
        })
    }

    /// Calls back what threads keep, and closes their caches.
    #[inline(always)]
    pub(super) fn recall(&mut self) {
        if self.has_something_kept() {
            self.recall_where(|_| true);
        }
    }

    /// Calls back what one thread keeps, and closes its cache.
    pub(super) fn recall_own(&mut self, own: OwnCache) {
        self.recall_where(|kept| own.has(kept));
    }

    /// Whether there may be something to take out, or room to take away.
    fn has_something_kept(&self) -> bool {
        !self.caches.are_closed() || !self.hub.common.get().is_none()
    }

    /// Calls back and closes the caches of which `goes` is true. Whether there was one.
    fn recall_where(&mut self, goes: impl FnMut(&mut Kept) -> bool) -> bool {
        if !self.has_something_kept() {
            return false;
        }
        let (ended, pool) = (self.hub.ended(), self.heap.pool_of_kept());
        let held = self.hold_without_room();
        let (closing, _staying) = self.caches.close_some(held, goes);
        self.hub.common.tell_shared(self.caches.count() > 1);
        let recalls = !closing.is_empty();
        for mut kept in closing {
            self.counters.count_classes(&mut kept);
            self.counters.passed(pool, &kept.activity());
            kept.recall(ended, |block| self.take_back(&block));
        }
        if recalls {
            let live = self.live_at_most();
            if let Some(packing) = &mut self.packing {
                let _comes_down = packing.fell(live);
            }
            self.counters.was_cached();
        }
        recalls
    }

    /// A block that a thread has kept is free, or waits with those of its epoch.
    fn take_back(&mut self, recalled: &Recalled) {
        let Some((id, block)) = self.heap.take_kept(recalled.address) else {
            return;
        };
        if self.heap.has_exports() {
            self.heap.end_exports(block.span());
        }
        let (pool, is_idle) = self.heap.returned(&block);
        if let Some(chunk) = is_idle {
            self.counters.fell_idle(pool, chunk);
        }
        let info = BlockInfo::of(&block, pool);
        if recalled.is_reclaimable {
            let joined = self.heap.join(id, &block, pool);
            if let Some(joined) = joined {
                self.counters.joined(info.pool, info.size, &joined);
                self.heap.enter(&joined);
            }
        } else {
            self.counters.recalled_to_limbo(info);
            self.heap.wait(id, block.requested, false);
            self.limbo.push_to(recalled.epoch, id, &block);
            self.hub.tell_waiting(true);
        }
    }
}
