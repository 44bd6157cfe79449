//! The way past the lock: what the calling thread keeps.
//!
//! Owns nothing. Invariant: a cache is left before any call of the driver, so
//! that what the driver calls back does not find it in use; and while an option
//! follows each request or each free, there are none. Cost: see
//! `thread_cache`.

use crate::address::{Address, Bytes};
use crate::arena::Arena;
use crate::arena::direct::Kind;
use crate::arena::hit::Want;
use crate::arena::recall::Recalls;
use crate::config::{Config, FreeSync, GarbageThreshold, ThreadCacheSize};
use crate::driver::{Driver, OwnCaches, Whose};
use crate::heap::banks::Bank;
use crate::library::LibraryId;
use crate::page_map::CacheableSlot;
use crate::strategy::packing::is_roomy;
use crate::strategy::{Rounder, Strategy};
use crate::thread_cache::{
    Entered, Held, Kept, LEAST_CACHE, Lacks, MOST_KEPT, OwnCache, TryKeep, Waits,
};

/// Why threads keep nothing, by the options; none where they may.
pub(super) fn why_not(config: &Config, kind: Kind, strategy: &Strategy) -> Option<&'static str> {
    let usual = Config::default();
    let reasons = [
        (kind == Kind::Host, "memory of the host"),
        (
            Rounder::new(&config.rounding).is_some(),
            "roundup_power2_divisions",
        ),
        (!strategy.takes_chunks(), "strategy:passthrough"),
        (
            matches!(config.thread_cache, ThreadCacheSize::Most(most) if most < LEAST_CACHE),
            "thread_cache",
        ),
        (config.free_sync != FreeSync::Deferred, "free_sync"),
        (
            config.garbage_threshold != GarbageThreshold::NextOpportunity,
            "eager_delete_tensor_gb",
        ),
        (
            config.garbage_fraction < 1.0,
            "memory_fraction_of_eager_deletion",
        ),
        (config.fill.is_some(), "memory is filled"),
        (config.sync_after_alloc, "sync_after_alloc"),
        (config.free_idle_chunk, "free_idle_chunk"),
        (!config.retry_time.is_zero(), "gpu_allocator_retry_time"),
        (config.decay != usual.decay, "decay_ms"),
        (
            config.splitting.max_split != usual.splitting.max_split,
            "max_split_size_mb",
        ),
        (
            config.dedicated_min.is_some_and(|least| least <= MOST_KEPT),
            "dedicated_min",
        ),
    ];
    let found = reasons.iter().find(|(is_so, _)| *is_so);
    found.map(|(_, reason)| *reason)
}

impl<D: Driver> Arena<D> {
    /// Why threads keep nothing; none where they may. In an option's name, or
    /// words.
    pub fn not_kept(&self) -> Option<&'static str> {
        let all = self.watch.stacks.filter(|stacks| stacks.samples.is_none());
        let stacks = all.map(|stacks| stacks.asked_by);
        let traced = || (self.events_kept() > 0).then_some("trace");
        let recorded = || self.watch.recording.is_some().then_some("record");
        self.not_kept.or(stacks).or_else(traced).or_else(recorded)
    }

    /// The calling thread's cache, if it ever had one here.
    pub(super) fn own_cache(&self) -> Option<OwnCache> {
        D::with_own_caches(|caches| caches.of(self.hub_serial))
    }

    /// The calling thread's cache, if it used none of another arena since.
    #[inline(always)]
    pub(super) fn last_cache(&self) -> Option<OwnCache> {
        D::with_own_caches(|caches| caches.last_of(self.hub_serial))
    }

    /// Notes the calling thread's cache for a request that it makes, and its bank.
    #[inline(never)]
    pub(super) fn for_this_thread(&self, want: &mut Want) {
        want.own = self.taking_cache(want.fit.request);
        let seat = want.own.and_then(OwnCache::seat);
        want.fit.bank = seat.map(Bank::of_seat);
    }

    /// Whether a request is of a size that threads keep blocks for.
    #[inline(always)]
    #[must_use]
    pub fn may_be_kept(request: Bytes) -> bool {
        // Zero bytes wrap.
        request.get().wrapping_sub(1) < MOST_KEPT.get()
    }

    /// Memory for a request, if the calling thread keeps a block of about its size
    /// that may be handed out: the shortest way of
    /// [`allocate`](Arena::allocate), for callers that look there first and know which
    /// library asks.
    #[inline(always)]
    pub fn allocate_kept(&self, request: Bytes, library: LibraryId) -> Option<Address> {
        match self.take_exact(request, library) {
            Ok(address) => Some(address),
            Err(kept) => self.take_near(kept, request, library),
        }
    }

    /// The same of a block of just its size, where nobody else has wanted the thread's
    /// cache lately. Where there is none, with the cache.
    #[inline(always)]
    pub(super) fn take_exact(
        &self,
        request: Bytes,
        library: LibraryId,
    ) -> Result<Address, Option<Entered>> {
        if !Self::may_be_kept(request) {
            return Err(None);
        }
        let own = D::with_own_caches(|caches| caches.last_of(self.hub_at_once));
        let mut kept = own.and_then(OwnCache::enter).ok_or(None)?;
        match kept.take_exact(request, library) {
            Some(address) => Ok(address),
            None => Err(Some(kept)),
        }
    }

    /// The same of a block that may be larger, and also where somebody else wanted the
    /// thread's cache.
    #[inline(never)]
    pub(super) fn take_near(
        &self,
        entered: Option<Entered>,
        request: Bytes,
        library: LibraryId,
    ) -> Option<Address> {
        let mut kept = match entered {
            Some(entered) => Held::from(entered),
            None => {
                let own = D::with_own_caches(|caches| caches.last_of(self.hub_at_once));
                let mut kept = own.filter(|_| Self::may_be_kept(request))?.hold()?;
                if let Some(address) = kept.take_exact(request, library) {
                    return Some(address);
                }
                kept
            }
        };
        kept.take_near(request, library)
    }

    /// The same after a look at which epochs have ended, and where the arena has to
    /// count it. Where there is none, what waits without a fence gets one if that is
    /// enough; the arena is asked next all the same, since a thread that took a block
    /// of that at once would come to need a fence for each few.
    #[inline(never)]
    pub(super) fn take_counted(&self, request: Bytes, library: LibraryId) -> Option<Address> {
        let own = self.own_cache()?;
        match self.hub.take_refreshed(own, request, library) {
            Ok(address) => Some(address),
            Err(Lacks::Room) => self.state.lock().take_kept(own, request, library),
            Err(Lacks::Fence) => {
                self.counted(|| self.seal(own));
                None
            }
            Err(Lacks::Blocks) => None,
        }
    }

    /// The calling thread's cache. One that has none gets one where others free what it
    /// takes.
    fn taking_cache(&self, request: Bytes) -> Option<OwnCache> {
        let own = self.own_cache().filter(|own| own.is_open());
        if own.is_some() || !D::with_own_caches(OwnCaches::asks_much) {
            return own;
        }
        if self.state.lock().is_freed_by_others(request) {
            self.open_cache();
        }
        self.own_cache()
    }

    /// Frees the live block at `address`, if the calling thread keeps it and nothing
    /// has to be prepared for that; false where it is not freed. The shortest way
    /// of [`free`](Arena::free), for callers that know that the arena's own
    /// context is current.
    #[inline(always)]
    pub fn free_kept(&self, address: Address) -> bool {
        match self.keep(address) {
            Ok(()) => true,
            Err(kept) => matches!(self.keep_looked(address, kept), TryKeep::Kept),
        }
    }

    /// Frees it if its place was looked at lately too, and nobody else has wanted the
    /// thread's cache. Where it was not looked at, with the cache.
    #[inline(always)]
    pub(super) fn keep(&self, address: Address) -> Result<(), Option<Entered>> {
        let own = self.last_cache();
        let mut kept = own.and_then(OwnCache::enter).ok_or(None)?;
        match kept.recent(address) {
            Some(slot) => kept.put(slot, address).ok_or(None),
            None => Err(Some(kept)),
        }
    }

    /// Frees it after a look at its place, and also where somebody else wanted the cache.
    #[inline(never)]
    pub(super) fn keep_looked(&self, address: Address, entered: Option<Entered>) -> TryKeep {
        let kept = match entered {
            Some(entered) => Held::from(entered),
            None => {
                let Some(mut kept) = self.last_cache().and_then(OwnCache::hold) else {
                    return TryKeep::Unprepared;
                };
                if let Some(slot) = kept.recent(address) {
                    let is_kept = kept.put(slot, address);
                    return is_kept.map_or(TryKeep::Unprepared, |()| TryKeep::Kept);
                }
                kept
            }
        };
        self.hub.keep_looked(kept, address)
    }

    /// The same of a live block that is told of there, where something is to be prepared for
    /// it first.
    #[inline(never)]
    pub(super) fn keep_prepared(&self, slot: CacheableSlot, address: Address) -> bool {
        let own = self.own_cache();
        let keeps = |own| self.hub.asked(own, |kept| kept.keeps_at(slot));
        if own.and_then(keeps) == Some(false) {
            return false;
        }
        own.is_some_and(|own| self.hub.keep_prepared(own, address)) || self.keep_now(address)
    }

    /// The same where the thread's cache is closed or full, or a batch is.
    #[cold]
    #[inline(never)]
    fn keep_now(&self, address: Address) -> bool {
        if self.is_to_wait_in_capture() {
            self.counted(|| self.wait_by_free(Whose::Own));
        }
        match self.own_cache().filter(|own| own.is_open()) {
            None if D::with_own_caches(OwnCaches::frees_much) => {
                if self.is_to_wait() {
                    return false;
                }
                self.open_cache();
            }
            None => return false,
            Some(own) if self.driver.may_fence() => {
                if self.hub.asked(own, |kept| kept.is_worth_a_fence()) == Some(true) {
                    self.counted(|| {
                        self.seal(own);
                        self.pay();
                    });
                }
                if self.hub.asked(own, Kept::is_full) == Some(true) {
                    self.state.lock().shed_kept(own);
                }
            }
            Some(_) => {}
        }
        let own = self.own_cache();
        own.is_some_and(|own| self.hub.keep_prepared(own, address))
    }

    /// Makes a fence for what the calling thread has freed, and looks which
    /// fences were reached.
    #[cold]
    #[inline(never)]
    fn seal(&self, own: OwnCache) {
        if !self.driver.may_fence() {
            return;
        }
        self.hub.leave_room(own);
        if self.seal_alone(own) {
            return;
        }
        let after = self.close_and_poll_with(own);
        match after.recalls {
            Recalls::Nothing => {}
            Recalls::Own => self.state.lock().recall_own(own),
            Recalls::All => self.state.lock().recall(),
        }
        if let Some(was_of_use) = after.was_of_use {
            let waits = D::with_own_caches(|caches| caches.were_sparing(was_of_use));
            self.hub.tell_sparing_waits(waits);
        }
    }

    /// The same without the arena's lock, where the device is done: false where it is not,
    /// or the arena has to look at what is kept.
    fn seal_alone(&self, own: OwnCache) -> bool {
        if self.hub.is_waiting() || self.is_sparing() || own.is_sparing() {
            return false;
        }
        let ended = self.hub.ended();
        let closed = self.hub.asked(own, |kept| kept.close_alone(ended));
        let Some(name) = closed.flatten() else {
            return false;
        };
        // What is freed from now on, also by what the driver calls, is in the next batch.
        let is_done = matches!(self.driver.fence_unless_done_from(own.seat()), Ok(None));
        (self.hub).asked(own, |kept| {
            kept.closed_alone(name, is_done);
            own.invite(kept);
        });
        is_done
    }

    /// Whether more of the device, or of the limit, is taken than leaves ample room: what
    /// threads keep is to be little then. A chunk that is taken in advance says nothing
    /// of that.
    pub(super) fn is_sparing(&self) -> bool {
        if self.strategy.grows_alone() {
            return false;
        }
        let reserved = self.quota.reserved();
        let room = &self.quota.room;
        let is_scarce = || !is_roomy(reserved, self.up_to_limit(room.bytes()));
        let is_for_others = is_scarce() && is_roomy(reserved, self.up_to_limit(room.total()));
        if room.is_due(reserved, is_for_others) && self.driver.may_fence() {
            // What it says is learned.
            let _ = self.ask_memory();
        }
        is_scarce()
    }

    /// Whether the calling thread is to go on without a cache, as long as memory is scarce;
    /// that is looked at now and then.
    fn is_to_wait(&self) -> bool {
        let last = self.hub.sparing_waits();
        match D::with_own_caches(|caches| caches.waits_while_sparing(last)) {
            Waits::No => false,
            Waits::Yes => true,
            Waits::Looks => {
                let is_sparing = self.is_sparing();
                if !is_sparing {
                    self.hub.tell_sparing_waits(0);
                }
                is_sparing
            }
        }
    }

    /// Lets the calling thread keep blocks from now on.
    fn open_cache(&self) {
        let is_sparing = self.is_sparing();
        let has_bank = !is_sparing && self.has_banks();
        let mut state = self.state.lock();
        let most = match self.cache_size {
            ThreadCacheSize::Most(most) => most,
            ThreadCacheSize::Auto => state.auto_cache(is_sparing),
        };
        let own = state.open_cache(most, is_sparing, has_bank);
        drop(state);
        D::with_own_caches(|caches| match own {
            Some(own) => caches.remember(own),
            None => caches.waits(),
        });
    }
}
