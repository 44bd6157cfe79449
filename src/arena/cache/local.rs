//! The caches of the calling thread.
//!
//! Owns a cache for each arena that the thread uses. Invariant: only its
//! thread touches a cache; when the thread ends, what it kept is in its
//! account, and the arena takes it from there. Cost: a look-up by number, the
//! arena that was used last first.

use std::cell::RefCell;
use std::sync::Arc;

use crate::address::{Address, Bytes};
use crate::arena::cache::account::{Account, Headroom, Left, Part, Payer};
use crate::arena::cache::bins::{Bins, Kept};
use crate::arena::cache::{Caches, is_recall, with_rooms_of};
use crate::page_map::{Entry, PageMap, SLOT, Spot};

/// A cache asks for an epoch when it got this many blocks, so that a fence of
/// some 200 ns costs each free a few of them; or this share of what it keeps at
/// most.
const BATCH: u64 = 128;
const BATCH_PART: u64 = 2;

/// Of a full cache so much stays.
const LEFT: f64 = 0.5;

/// What a thread keeps, and its account with the books.
struct Open {
    number: usize,
    account: Arc<Account>,
}

/// What one thread keeps of one arena.
pub(super) struct Local {
    key: u64,
    bins: Bins,
    /// None before anything was kept.
    open: Option<Open>,
    /// Calls that it has answered.
    calls: u64,
    /// What it may hold beyond what it does.
    room: Headroom,
    /// Bytes that it may get before it visits the arena.
    credit: i64,
    /// The epoch of the block that it got last.
    newest: u64,
    worth: Worth,
}

/// Whether the thread gains by its cache. For some programs it is only one more
/// look: then it rests for a while.
struct Worth {
    /// Requests until this is thought over.
    left: u32,
    /// What was won with those so far, and lost.
    sum: i32,
    rests: bool,
}

/// A cache is tried for so many requests, and rests for so many.
const TRIED: u32 = 8 << 10;
const RESTS: u32 = 32 << 10;

/// What a request wins that is served from the cache, what one loses that could
/// have been, and what one loses that is too large: in proportion.
const HIT: i32 = 4;
const MISS: i32 = -2;
const TOO_LARGE: i32 = -1;

impl Worth {
    /// Whether the cache is to be passed by at this request.
    #[inline]
    fn rests(&mut self) -> bool {
        self.left -= 1;
        if self.left == 0 {
            self.think();
        }
        self.rests
    }

    #[cold]
    fn think(&mut self) {
        self.rests = !self.rests && self.sum < 0;
        self.left = if self.rests { RESTS } else { TRIED };
        self.sum = 0;
    }
}

/// How a kept block was taken.
pub(super) enum Taken {
    /// As nobody has to be told.
    Quietly(Address),
    /// There was no room for it: the books are to be told.
    Short(Address),
}

/// What became of a block that was freed.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is not for the cache.
    NotKept,
    Kept,
    /// It is kept, and it is time for a visit to the arena.
    Visit,
}

impl Local {
    pub(super) fn new(key: u64, calls: u64) -> Local {
        Local {
            key,
            bins: Bins::new(),
            open: None,
            calls,
            room: Headroom::default(),
            credit: 0,
            newest: 0,
            worth: Worth {
                // At first it has to learn what comes back.
                left: 4 * TRIED,
                sum: 0,
                rests: false,
            },
        }
    }

    /// Whether a request passes the cache by.
    #[inline]
    pub(super) fn rests(&mut self) -> bool {
        self.worth.rests()
    }

    /// A request is too large for the cache.
    #[inline]
    pub(super) fn has_nothing_as_large(&mut self) {
        self.worth.sum += TOO_LARGE;
    }

    /// Its account's number, once there is one.
    pub(super) fn number(&self) -> Option<usize> {
        self.open.as_ref().map(|open| open.number)
    }

    /// From now on it has an account, of this number.
    pub(super) fn open(&mut self, number: usize, account: Arc<Account>) {
        self.open = Some(Open { number, account });
    }

    /// Whether a block of this entry, which is fine, is worth keeping.
    #[inline]
    pub(super) fn wants(&mut self, entry: Entry) -> bool {
        self.bins.wants(entry.units())
    }

    /// Whether requests and frees pass the cache by now.
    #[inline]
    pub(super) fn is_resting(&self) -> bool {
        self.worth.rests
    }

    /// A kept block for a request of 1 to [`Entry::MOST`] bytes.
    #[inline(always)]
    pub(super) fn take(&mut self, caches: &Caches, map: &PageMap, request: Bytes) -> Option<Taken> {
        let slots = request.get().div_ceil(SLOT.get());
        let rest = (slots * SLOT.get()).wrapping_sub(request.get());
        let units = usize::try_from(slots).ok()?;
        loop {
            let Some(kept) = self.bins.pop(units, |epoch| caches.is_over(epoch)) else {
                self.worth.sum += MISS;
                return None;
            };
            self.worth.sum += HIT;
            let account = &self.open.as_ref()?.account;
            let size = SLOT.saturating_mul(slots);
            // Before the exchange, as the invariant of the accounts wants it.
            account.allocated(size, rest, kept.entry.rest());
            let live = kept.entry.live_again(rest);
            let spot = map.spot(kept.address);
            if spot.is_none_or(|spot| !spot.exchange(kept.entry, live)) {
                // It was called back.
                account.not_allocated(size, rest, kept.entry.rest());
                continue;
            }
            self.room = self.room.minus(Headroom {
                requested: kept.entry.rest().wrapping_sub(rest).cast_signed(),
                ..Headroom::of(size)
            });
            let calls = caches.calls();
            if calls != self.calls {
                return self.take_amid_calls(calls, caches, map, kept, live);
            }
            if self.room.is_short() {
                return Some(Taken::Short(kept.address));
            }
            return Some(Taken::Quietly(kept.address));
        }
    }

    /// A block was taken while the books called. Where blocks were called back
    /// it may be another thread's, which got the same address and freed it a
    /// moment ago: then it is kept as if it were freed now.
    #[cold]
    fn take_amid_calls(
        &mut self,
        calls: u64,
        caches: &Caches,
        map: &PageMap,
        kept: Kept,
        live: Entry,
    ) -> Option<Taken> {
        if !is_recall(self.calls, calls) {
            self.calls = calls;
            self.room = Headroom::default();
            return Some(Taken::Short(kept.address));
        }
        if let Some(open) = &self.open {
            let (before, rest) = (kept.entry.rest(), live.rest());
            let slots = kept.entry.units() as u64;
            open.account
                .not_allocated(SLOT.saturating_mul(slots), rest, before);
        }
        // Room is asked for anew after a call.
        let spot = map.spot(kept.address);
        if spot.is_some_and(|spot| spot.exchange(live, kept.entry)) {
            let epoch = caches.open();
            self.bins.push(kept.entry.units(), Kept { epoch, ..kept });
        }
        None
    }

    /// Keeps a live block, whose entry this is.
    #[inline(always)]
    pub(super) fn keep(
        &mut self,
        caches: &Caches,
        spot: Spot<'_>,
        address: Address,
        entry: Entry,
    ) -> Fate {
        let Some(Open { account, .. }) = &self.open else {
            return Fate::NotKept;
        };
        let kept = entry.kept();
        if !spot.exchange(entry, kept) {
            return Fate::NotKept;
        }
        // After the exchange, as the invariant of the caches wants it.
        let epoch = caches.open();
        let units = entry.units();
        let size = SLOT.saturating_mul(units as u64);
        let kept = Kept {
            address,
            entry: kept,
            epoch,
        };
        self.bins.push(units, kept);
        account.freed(size);
        self.room = self.room.plus(Headroom::of(size));
        self.newest = epoch;
        // A small block counts as its share of a batch of so many.
        self.credit -= size.max(caches.batch_part).get().cast_signed();
        if self.credit > 0 && self.bins.bytes() <= caches.most {
            return Fate::Kept;
        }
        Fate::Visit
    }

    /// Does what the books called for.
    #[inline]
    pub(super) fn answer(&mut self, caches: &Caches, map: &PageMap) {
        let calls = caches.calls();
        if calls != self.calls {
            self.answer_to(calls, map);
        }
    }

    #[cold]
    fn answer_to(&mut self, calls: u64, map: &PageMap) {
        if is_recall(self.calls, calls) {
            self.bins
                .retain(|kept| map.entry(kept.address) == kept.entry);
        }
        self.room = Headroom::default();
        self.calls = calls;
    }

    /// Pays for a block that the books are to hand out, as far as there is room
    /// for it; for one that is too large to be kept as for one more, whatever its
    /// size.
    #[inline]
    pub(super) fn pay(&mut self, size: Bytes) -> Option<Payer> {
        if size > Entry::MOST {
            return self.pay_in_part(size, Part::Block);
        }
        let full = self.pay_in_part(size, Part::Full);
        full.or_else(|| self.pay_in_part(size, Part::OfPool))
    }

    #[inline]
    fn pay_in_part(&mut self, size: Bytes, part: Part) -> Option<Payer> {
        let payer = self.payer(part)?;
        let left = self.room.minus(payer.sum(size));
        if left.is_short() {
            return None;
        }
        self.room = left;
        Some(payer)
    }

    /// Gets room by a live block of this entry, which the books are to take
    /// back.
    #[inline]
    pub(super) fn get_back(&mut self, entry: Entry) -> Option<Payer> {
        let part = if entry.is_fine() {
            Part::Full
        } else {
            Part::Block
        };
        let payer = self.payer(part).filter(|_| entry.is_live())?;
        let size = SLOT.saturating_mul(entry.units() as u64);
        self.room = self.room.plus(payer.sum(size));
        Some(payer)
    }

    /// Gives up the room that it has: the books had no such block.
    pub(super) fn forfeit(&mut self) {
        self.room = Headroom::default();
    }

    #[inline]
    fn payer(&self, part: Part) -> Option<Payer> {
        self.open.as_ref()?;
        Some(Payer {
            rooms: self.rooms(),
            part,
        })
    }

    /// The calls for room that it has answered.
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "the lower half")]
    fn rooms(&self) -> u32 {
        self.calls as u32
    }

    /// The room that it has.
    pub(super) fn room(&self) -> Headroom {
        self.room
    }

    /// The books give it this, in answer to all calls for room so far.
    pub(super) fn grant(&mut self, room: Headroom, caches: &Caches) {
        self.room = room;
        self.calls = with_rooms_of(self.calls, caches.calls());
    }

    /// What it has too much of, at a visit.
    pub(super) fn surplus(&mut self, caches: &Caches) -> Vec<Kept> {
        if self.bins.bytes() <= caches.most {
            return Vec::new();
        }
        self.bins.shed(caches.most.scaled(LEFT))
    }

    /// Everything that it keeps.
    pub(super) fn drain(&mut self) -> Vec<Kept> {
        self.bins.drain()
    }

    /// Whether a batch of blocks came in; asked once for each, and true where
    /// the last of them waits for the open epoch.
    pub(super) fn needs_epoch(&mut self, caches: &Caches) -> bool {
        if self.credit > 0 {
            return false;
        }
        self.credit = batch_bytes(caches.most).get().cast_signed();
        self.newest == caches.open()
    }
}

/// The bytes after which a cache that keeps `most` asks for an epoch.
fn batch_bytes(most: Bytes) -> Bytes {
    Bytes::new(most.get() / BATCH_PART)
}

/// What a block counts for at least among these.
pub(super) fn batch_part(most: Bytes) -> Bytes {
    Bytes::new(batch_bytes(most).get() / BATCH)
}

/// The cache of the arena that was used last, and all others.
struct Locals {
    last: Option<Local>,
    others: Vec<Local>,
}

impl Drop for Locals {
    fn drop(&mut self) {
        for local in self.last.iter_mut().chain(&mut self.others) {
            let (kept, room, rooms) = (local.drain(), local.room, local.rooms());
            if let Some(open) = &local.open {
                open.account.leave(Left { kept, room, rooms });
            }
        }
    }
}

thread_local! {
    static LOCALS: RefCell<Locals> = const {
        RefCell::new(Locals {
            last: None,
            others: Vec::new(),
        })
    };
}

/// Does something with the thread's cache of the arena with this key; `open`
/// makes one. Nothing where the thread is ending, or is inside already.
#[inline]
pub(super) fn with<T>(
    key: u64,
    make: impl FnOnce() -> Local,
    act: impl FnOnce(&mut Local) -> T,
) -> Option<T> {
    LOCALS
        .try_with(|locals| {
            let mut locals = locals.try_borrow_mut().ok()?;
            if locals.last.as_ref().is_none_or(|last| last.key != key) {
                change(&mut locals, key, make);
            }
            locals.last.as_mut().map(act)
        })
        .ok()?
}

/// Makes the cache of another arena the one that was used last.
#[cold]
fn change(locals: &mut Locals, key: u64, make: impl FnOnce() -> Local) {
    let Locals { last, others } = locals;
    others.extend(last.take());
    // Arenas that are gone have let go of their accounts.
    others.retain(|local| {
        let is_known = |open: &Open| Arc::strong_count(&open.account) > 1;
        local.key == key || local.open.as_ref().is_none_or(is_known)
    });
    let at = others.iter().position(|local| local.key == key);
    *last = Some(match at {
        Some(at) => others.swap_remove(at),
        None => make(),
    });
}
