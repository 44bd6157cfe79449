//! What a thread keeps of the blocks that it freed, for its next requests of
//! the same size.
//!
//! Owns, for each thread and arena, the blocks of up to [`Entry::MOST`] that
//! the thread freed last, by exact size and in the order of their frees. A
//! block moves between the program, a cache and the arena by an exchange of
//! its entry in the page map: so the two paths that a program is on all the
//! time take no lock and share no written cache line with other threads, and
//! the arena can call kept blocks back at any time without asking the threads.
//! To the books a kept block is in use; what their counters do not know of is
//! in the thread's [`Account`].
//!
//! # Invariant
//!
//! A kept block is handed out again only when an epoch has ended that was
//! closed after its free. A free exchanges the entry and then reads the number
//! of the open epoch; whoever closes an epoch first writes the next number and
//! then makes the fence. Both are sequentially consistent, so a free that read
//! the older number is before the fence, with all that its thread gave the
//! device to do.
//!
//! What a cache remembers of a block may be out of date, when the block was
//! called back; then the exchange fails and the cache forgets it. Or it does
//! not fail, because another thread keeps the same block of the same address:
//! a recall is announced before it takes anything, so whoever sees none after
//! its exchange has taken its own.
//!
//! Cost: a request or a free that a cache serves takes a look at the page map
//! and an atomic exchange; so many frees an epoch, as without. Host memory: 32
//! bytes for each kept block, 8 KiB for each thread.

mod account;
mod bins;
mod local;
#[cfg(all(test, loom))]
mod loom_tests;

use std::sync::Arc;

use crate::address::{Address, Bytes};
use crate::arena::Arena;
use crate::arena::books::Books;
use crate::arena::reclaim::Extent;
use crate::config::{Config, Decay, FreeSync, GarbageThreshold};
use crate::driver::Driver;
use crate::page_map::{Entry, SLOT, Spot};
use crate::strategy::Strategy;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

pub(super) use account::{Account, Accounts, Headroom, Passed, Payer};
pub(super) use bins::Kept;
use local::{Fate, Local, Taken};

/// What is read at every step and seldom written.
#[repr(align(128))]
pub(super) struct Gate {
    /// The number of the open epoch, one more than that of the books: 0 is
    /// over from the start.
    open: AtomicU64,
    /// All epochs with smaller numbers have ended.
    ended: AtomicU64,
    /// Whether any thread ever kept a block.
    used: AtomicBool,
    /// How often all kept blocks were called back (upper half), and how often
    /// all room was (lower half).
    calls: AtomicU64,
}

/// One recall, in [`Gate::calls`].
const RECALL: u64 = 1 << 32;

/// Whether there was a recall between two states of [`Gate::calls`].
fn is_recall(before: u64, now: u64) -> bool {
    before / RECALL != now / RECALL
}

/// The recalls of one state, and the calls for room of another.
fn with_rooms_of(calls: u64, rooms: u64) -> u64 {
    calls - calls % RECALL + rooms % RECALL
}

impl Gate {
    fn new() -> Gate {
        Gate {
            open: AtomicU64::new(1),
            ended: AtomicU64::new(1),
            used: AtomicBool::new(false),
            calls: AtomicU64::new(0),
        }
    }

    /// Whether a thread that answered so many calls for room has answered all; under the lock of the
    /// books, who call.
    #[inline]
    pub(super) fn has_answered(&self, rooms: u32) -> bool {
        self.calls.load(Ordering::Relaxed) % RECALL == u64::from(rooms)
    }

    /// Threads have no room any more but what they ask for.
    pub(super) fn call_for_room(&self) {
        // What threads did before they see this is heard after it. A thread
        // stores its account, exchanges an entry and loads this, the last two
        // sequentially consistent: no processor that we run on lets the load
        // pass the store (x86: the exchange is a barrier; AArch64: an acquiring
        // load does not pass a releasing exchange, nor that an older store).
        let mut calls = self.calls.load(Ordering::Relaxed);
        loop {
            let rooms = calls.wrapping_add(1) % RECALL;
            let next = calls - calls % RECALL + rooms;
            match (self.calls).compare_exchange_weak(
                calls,
                next,
                Ordering::SeqCst,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(now) => calls = now,
            }
        }
        // And here no load of an account passes the exchange.
        fence(Ordering::SeqCst);
    }
}

/// The side of the arena.
pub(super) struct Caches {
    gate: Arc<Gate>,
    /// Tells the arena from all others of the process.
    key: u64,
    /// The most that a thread keeps; zero: nothing.
    most: Bytes,
    /// What a block counts for at least where a thread counts bytes.
    batch_part: Bytes,
    /// Whether blocks can be handed out again at once.
    at_once: bool,
}

static KEYS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

impl Caches {
    /// Caches as the options allow them: what has to be done at each free, or
    /// told of each, is done on the way through the books.
    pub(super) fn new(config: &Config, strategy: &Strategy, plain: bool) -> Caches {
        let pooled = matches!(
            strategy,
            Strategy::AutoGrowth(_) | Strategy::NaiveBestFit(_)
        );
        let timely = config.garbage_threshold == GarbageThreshold::NextOpportunity
            && config.garbage_fraction >= 1.0
            && config.garbage_collection_threshold.is_none()
            && config.decay == Decay::Never;
        let small = |least: Option<Bytes>| least.is_some_and(|least| least <= Entry::MOST);
        let allowed = plain
            && pooled
            && timely
            && !small(config.dedicated_min)
            && !small(config.splitting.max_split)
            && !config.fail_at_limit
            && config.free_sync != FreeSync::Strict
            && config.fill.is_none()
            && !config.sync_after_alloc
            && cfg!(not(loom));
        let most = if allowed {
            config.thread_cache
        } else {
            Bytes::ZERO
        };
        Caches {
            gate: Arc::new(Gate::new()),
            key: KEYS.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
            most,
            batch_part: local::batch_part(most),
            at_once: config.free_sync == FreeSync::Immediate,
        }
    }

    /// What the books call through.
    pub(super) fn gate(&self) -> Arc<Gate> {
        Arc::clone(&self.gate)
    }

    /// From now on threads keep nothing.
    pub(super) fn switch_off(&mut self) {
        self.most = Bytes::ZERO;
    }

    #[inline]
    pub(super) fn is_on(&self) -> bool {
        !self.most.is_zero()
    }

    /// Whether a request is the threads' business.
    #[inline]
    pub(super) fn may_serve(&self, request: Bytes) -> bool {
        self.is_on() && (request <= Entry::MOST || self.are_used())
    }

    /// Whether the free of a block with this entry is.
    #[inline]
    pub(super) fn may_keep(&self, entry: Entry) -> bool {
        self.is_on() && (entry.can_be_kept() || self.are_used())
    }

    /// Whether any thread ever kept a block.
    #[inline]
    pub(super) fn are_used(&self) -> bool {
        // Relaxed: a thread that knows of a block in another's cache knows it
        // through the lock of the books, which comes after this was set.
        self.gate.used.load(Ordering::Relaxed)
    }

    /// The number of the open epoch, for a block that was just freed.
    #[inline]
    fn open(&self) -> u64 {
        if self.at_once {
            return 0;
        }
        self.gate.open.load(Ordering::SeqCst)
    }

    /// Whether what was freed in this epoch can be handed out.
    #[inline]
    fn is_over(&self, epoch: u64) -> bool {
        // Acquire: pairs with the Release of `ended`.
        epoch < self.gate.ended.load(Ordering::Acquire)
    }

    /// What the books called for.
    #[inline]
    fn calls(&self) -> u64 {
        self.gate.calls.load(Ordering::SeqCst)
    }

    /// What threads remember is to be looked at again.
    pub(super) fn announce_recall(&self) {
        self.gate.calls.fetch_add(RECALL, Ordering::SeqCst);
    }

    /// The epoch of this number, as the books count, is closed; its fence is
    /// made after this.
    pub(super) fn closed(&self, number: u64) {
        self.gate.open.fetch_max(number + 2, Ordering::SeqCst);
    }

    /// It has ended.
    pub(super) fn ended(&self, number: u64) {
        // Release: pairs with the Acquire of `is_over`.
        self.gate.ended.fetch_max(number + 2, Ordering::Release);
    }
}

impl<D: Driver> Arena<D> {
    /// Serves a request from the thread's cache, if that can; else says who
    /// pays for it.
    #[inline(never)]
    pub(super) fn take_kept(&self, request: Bytes) -> Result<Address, Option<Payer>> {
        let served = self.with_cache(|local| {
            local.answer(&self.caches, &self.map);
            if local.rests() {
                return Err(None);
            }
            let taken = if request <= Entry::MOST {
                local.take(&self.caches, &self.map, request)
            } else {
                local.has_nothing_as_large();
                None
            };
            match taken {
                Some(Taken::Quietly(address)) => Ok(address),
                Some(Taken::Short(address)) => {
                    self.ask_for_room(&mut self.books.lock(), local);
                    Ok(address)
                }
                None => Err(request.round_up(SLOT).and_then(|size| local.pay(size))),
            }
        });
        served.unwrap_or(Err(None))
    }

    /// Keeps a block that the program frees in the thread's cache; where it is
    /// for the books, says which thread gets room by that.
    #[inline(never)]
    pub(super) fn keep(
        &self,
        spot: Spot<'_>,
        address: Address,
        entry: Entry,
    ) -> Result<(), Option<Payer>> {
        let fate = self.with_cache(|local| {
            local.answer(&self.caches, &self.map);
            if local.is_resting() {
                // It does not pay, so it is not paid either.
                return Err(None);
            }
            if entry.can_be_kept() && local.wants(entry) {
                if local.number().is_none() {
                    self.open_account(local);
                }
                match local.keep(&self.caches, spot, address, entry) {
                    Fate::NotKept => {}
                    Fate::Kept => return Ok(false),
                    Fate::Visit => return Ok(self.visit(local)),
                }
            }
            Err(local.get_back(entry))
        });
        match fate {
            Some(Ok(false)) => Ok(()),
            Some(Ok(true)) => {
                self.end_visit();
                Ok(())
            }
            Some(Err(payer)) => Err(payer),
            // The thread is ending, or inside already.
            None => Err(None),
        }
    }

    /// The books had no block to take back from the payer.
    #[cold]
    pub(super) fn forfeit_room(&self, payer: Option<Payer>) {
        if payer.is_some() {
            self.with_cache(Local::forfeit);
        }
    }

    /// The calling thread's account, if it keeps blocks.
    pub(super) fn account_number(&self) -> Option<usize> {
        if !self.caches.are_used() {
            return None;
        }
        self.with_cache(|local| local.number())?
    }

    #[inline]
    fn with_cache<T>(&self, act: impl FnOnce(&mut Local) -> T) -> Option<T> {
        local::with(
            self.caches.key,
            || Local::new(self.caches.key, self.caches.calls()),
            act,
        )
    }

    #[cold]
    fn open_account(&self, local: &mut Local) {
        let account = Arc::new(Account::new());
        // Relaxed: what the thread does next it does for itself.
        self.caches.gate.used.store(true, Ordering::Relaxed);
        let mut books = self.books.lock();
        if books.retired {
            return;
        }
        books.take_what_threads_left(&|epoch| self.caches.is_over(epoch));
        let number = books.open_account(Arc::clone(&account));
        local.open(number, account);
    }

    /// Tells the books that the thread holds more than it had room for, or has
    /// changed what it keeps.
    #[cold]
    fn ask_for_room(&self, books: &mut Books<D::Fence>, local: &mut Local) {
        local.answer(&self.caches, &self.map);
        if let Some(number) = local.number() {
            let room = books.make_room(number, local.room());
            // Still under the lock, so that no call for room is missed.
            local.grant(room, &self.caches);
        }
    }

    /// What a cache does now and then: tells the books what it did and gives
    /// back what it has too much of. True where an epoch has to be closed.
    #[cold]
    fn visit(&self, local: &mut Local) -> bool {
        let surplus = local.surplus(&self.caches);
        {
            let mut books = self.books.lock();
            self.ask_for_room(&mut books, local);
            books.take_back(&surplus, &|epoch| self.caches.is_over(epoch));
        }
        local.needs_epoch(&self.caches)
    }

    /// Closes an epoch for what threads keep.
    #[cold]
    fn end_visit(&self) {
        self.close(Extent::Kept);
        self.poll();
    }

    /// Gives back all that the calling thread keeps: what it knows to be over is
    /// free then.
    pub(super) fn empty_cache(&self) {
        self.with_cache(|local| {
            let kept = local.drain();
            if !kept.is_empty() {
                let mut books = self.books.lock();
                self.ask_for_room(&mut books, local);
                books.take_back(&kept, &|epoch| self.caches.is_over(epoch));
            }
        });
    }

    /// Calls back what threads keep, for the books to do with it what they do
    /// with what is freed.
    pub(super) fn recall(&self) {
        if self.caches.are_used() {
            self.empty_cache();
            self.caches.announce_recall();
            self.books.lock().recall(self.caches.at_once);
        }
    }
}
