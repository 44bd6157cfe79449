//! How tightly `auto_growth` packs chunks, when the cache has nothing that fits.
//!
//! Memory that blocks hold cannot be moved, so what decides how much a program
//! needs is where its blocks are put. A chunk that is cut for a small request
//! is lost to the large one it was taken for, until the small one is freed;
//! an idle chunk that goes back to the driver, on the other hand, is pages
//! that any other chunk can be made of. So
//!
//! * a small request leaves an idle chunk whole as long as there is another
//!   way;
//! * what is reserved stays within a little of the most that the program has
//!   held: beyond that, idle chunks are opened, or given back and taken again
//!   as one chunk, rather than more taken;
//! * a program that has come back to its peak exchanges nothing for a slab of small
//!   requests: what would go back is larger, and taken again at the next peak;
//! * where the device is filling up, idle chunks always go back before others
//!   are cut, and the program waits for what it has freed, as it would have
//!   waited in the driver's own free. A program that repeats finds most of its
//!   chunks again, since only the oldest go, while few pieces are free: these
//!   may keep it from its next peak.
//!
//! Both cost driver calls, so they end where the program is seen to repeat and
//! the device has room for it: after some passes a program that repeats makes
//! none. Where it is not seen to repeat, they end after so many exchanges.
//!
//! None of it is worth a program that hangs: it waits for what ends soon, and
//! a driver's free, which waits for everything, comes only after that. What
//! the device is asked about has then ended, or nothing is packed.
//!
//! The figures were chosen on three real traces (tests/traces) and the device
//! that lags behind them; docs/design.md has what they come to.
//!
//! Owns what is known of the program's rise and fall. Invariant: `peak` is the
//! most that was live. Cost: two comparisons for each allocation and free; one
//! question to the driver for each miss that ends here.

mod requests;

use std::time::Duration;

use crate::address::Bytes;
use crate::strategy::{Sharing, Strategy};
use requests::Requests;

/// An idle chunk is cut, without need, only for a request of at least this
/// share of it, in percent; and of this where pieces are wasted.
const FILLS: u64 = 60;
const FILLS_CLOSELY: u64 = 90;

/// What may be reserved beyond the most that was live, in thousandths of it:
/// at first, by how much more each time that a program which repeats had to
/// exchange chunks, and at most.
const SLACK: u64 = 80;
const SLACK_STEP: u64 = 5;
const SLACK_MOST: u64 = 140;

/// The same with the slabs that a program which has come back to its peak takes
/// beside that.
const SLABS_MOST: u64 = 160;

/// Of a device of which more than this is reserved, in percent, the rest is
/// used sparingly, until the program is known.
const ROOMY: u64 = 50;

/// Threads keep much only as long as at most so much of the device is taken, in percent.
/// A few blocks that they hand out again can keep all of that in use.
const KEEPS_MUCH: u64 = 25;

/// So often must the program have come back to its peak to be known.
const KNOWN: u32 = 2;

/// A program that is known, or spent, has room where its peak is at most this
/// share of the device, in percent: with the first slack on top of it, it fits.
/// Where the device lags behind, what is in limbo has to fit as well.
const HAS_ROOM: u64 = 92;
const LAGS_HAS_ROOM: u64 = 60;

/// Of what a program's peak leaves of such a device, so much, in percent, may
/// be reserved as well (others need memory too, CUDA itself among them), and so
/// much free in pieces of chunks in use: with more of these the program may not
/// come to its peak again.
const FILLED: u64 = 50;
const IN_PIECES: u64 = 50;

/// What a shared chunk has beyond whole requests of one size is for smaller ones. Where all
/// requests come for one size, and more than this part of what is live, in percent, is free
/// in pieces, that does not come about.
const SCATTERED: u64 = 1;

/// Where more than this part of it is, what requests of other sizes leave is not used either.
const UNUSED: u64 = 5;

/// Of what is live, in percent, so much is wasted in pieces also on a roomy device.
const WASTED: u64 = 50;

/// A peak that is higher by less than this, in percent, is the same.
const SAME_PEAK: u64 = 3;

/// In percent of the peak: the program has come down below the first, back above
/// the second, and holds hardly anything below the third.
const DOWN: u64 = 75;
const BACK: u64 = 95;
const LOW: u64 = 10;

/// For how long a miss waits for one fence, and how often it may do so in vain
/// before nothing is packed any more. What keeps the device busy for longer may
/// end only by what the waiting thread does next: then a program has lost less
/// than a second, once.
pub(crate) const PATIENCE: Duration = Duration::from_millis(100);
const VAIN: u32 = 8;

/// A program that never held as much is left alone, unless it held so much of all that it can
/// have, in percent.
const LEAST: Bytes = Bytes::mib(256);
const LEAST_PART: u64 = 25;
const LEAST_AT_ALL: Bytes = Bytes::mib(16);

/// Where one comes down that held so much, what is kept for it is called back.
const CALLED_BACK: Bytes = Bytes::mib(64);

/// So often may chunks be exchanged, counted anew at each higher peak, before
/// more is taken instead.
const EXCHANGES: u32 = 256;

/// So often may scattered memory be brought together, counted in the same way.
const BROUGHT_TOGETHER: u32 = 64;

/// Percent of a size.
fn percent(of: Bytes, percent: u64) -> Bytes {
    part(of, 10 * percent)
}

/// Thousandths of a size.
fn part(of: Bytes, thousandths: u64) -> Bytes {
    let part = u128::from(of.get()) * u128::from(thousandths) / 1000;
    u64::try_from(part).map_or(Bytes::MAX, Bytes::new)
}

/// Whether a request may cut an idle chunk of this size without need, where the rest of it
/// is wasted or not.
#[inline]
pub(crate) fn fills(request: Bytes, chunk: Bytes, wastes: impl FnOnce(Bytes) -> bool) -> bool {
    let wastes_rest = || wastes(chunk.saturating_sub(request));
    request >= percent(chunk, FILLS) && (request >= percent(chunk, FILLS_CLOSELY) || !wastes_rest())
}

/// Whether threads may keep much where so much of `capacity` is taken.
pub(crate) fn is_roomy(taken: Bytes, capacity: Bytes) -> bool {
    taken <= percent(capacity, KEEPS_MUCH)
}

/// How much room there is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Room {
    /// Enough for more than the program holds.
    Ample,
    /// For little more: what was idle the longest goes back for what is taken.
    Scarce,
    /// Hardly for what it holds: everything idle goes back.
    Tight,
}

/// The program's rise and fall.
#[derive(Debug, Default)]
pub(crate) struct Packing {
    peak: Bytes,
    /// Below this it has come down, above this it is back.
    down: Bytes,
    back: Bytes,
    is_down: bool,
    /// Below this there is hardly anything.
    low: Bytes,
    is_low: bool,
    /// The peak that it has to come back to.
    height: Bytes,
    returns: u32,
    /// Beyond [`SLACK`].
    more_slack: u64,
    exchanges: u32,
    brought_together: u32,
    /// The device is behind the program at times.
    pub(crate) lags: bool,
    /// Waits that [`PATIENCE`] was not enough for.
    vain: u32,
    /// There was ample room when that was asked last.
    has_room: bool,
    /// What there could be when that was looked at last.
    capacity: Bytes,
    requests: Requests,
}

impl Packing {
    /// None where chunks are not packed.
    pub(crate) fn new(strategy: &Strategy) -> Option<Packing> {
        strategy.not_packed().is_none().then(Packing::default)
    }

    /// Whether the program is large enough.
    pub(crate) fn is_on(&self) -> bool {
        let is_known = !self.capacity.is_zero();
        let has_much = || is_known && self.peak >= percent(self.capacity, LEAST_PART);
        self.peak >= LEAST || (self.may_be_on() && has_much())
    }

    /// Whether it is on a small device.
    pub(crate) fn may_be_on(&self) -> bool {
        self.peak >= LEAST_AT_ALL
    }

    /// So much there could be.
    pub(crate) fn learn(&mut self, capacity: Bytes) {
        self.capacity = capacity;
    }

    /// A block was handed out, and so much is live now.
    #[inline]
    pub(crate) fn rose(&mut self, live: Bytes) {
        if live > self.peak {
            self.peak = live;
            self.down = percent(self.peak, DOWN);
            self.back = percent(self.peak, BACK);
            self.low = percent(self.peak, LOW);
            if self.peak > percent(self.height, 100 + SAME_PEAK) {
                self.height = self.peak;
                self.returns = 0;
                self.requests.rose_higher();
                self.exchanges = 0;
                self.brought_together = 0;
            }
        }
        self.requests.moved(live);
        if self.is_down && live > self.back {
            (self.is_down, self.is_low) = (false, false);
            self.returns = self.returns.saturating_add(1);
        }
    }

    /// A block was freed, and so much is live now. Whether the program comes down
    /// by that, or then to nearly nothing, so that what threads keep is called back: what
    /// it does next can find the chunks as it did before if nothing is kept anywhere.
    #[inline]
    pub(crate) fn fell(&mut self, live: Bytes) -> bool {
        let comes_down = live < self.down && !self.is_down;
        let comes_low = live < self.low && !self.is_low;
        self.is_down |= comes_down;
        self.is_low |= comes_low;
        self.requests.moved(live);
        self.peak >= CALLED_BACK && (comes_down || comes_low)
    }

    /// Whether scattered memory may be brought together: the program holds hardly
    /// anything, and it was not done too often at this peak.
    pub(crate) fn may_bring_together(&self, live: Bytes) -> bool {
        live < self.low && self.brought_together < BROUGHT_TOGETHER
    }

    /// It is.
    pub(crate) fn brought_together(&mut self) {
        self.brought_together += 1;
    }

    /// Whether threads may go on keeping blocks while chunks are packed for others:
    /// the program is known and has since come back to its peak once more, and the device
    /// had ample room when a miss looked last.
    pub(crate) fn lets_keep(&self) -> bool {
        self.returns > KNOWN && self.has_room
    }

    /// A request for `size` bytes was refused while so much was live. Where there is so much
    /// in sum, the chunks do not lie so that the program fits: it goes on as if all sizes were
    /// new.
    pub(crate) fn failed(&mut self, live: Bytes, size: Bytes) {
        if live.saturating_add(size) <= self.capacity {
            self.requests.failed();
        }
    }

    /// Whether it was refused something lately for which there was as much in pieces.
    pub(crate) fn is_careful(&self) -> bool {
        self.requests.is_careful()
    }

    /// Everything is gone.
    pub(crate) fn forget(&mut self) {
        *self = Packing::default();
    }

    /// Whether it is worth waiting for the device.
    pub(crate) fn is_patient(&self) -> bool {
        self.vain < VAIN
    }

    pub(crate) fn waited_in_vain(&mut self) {
        self.vain = self.vain.saturating_add(1);
    }

    fn is_known(&self) -> bool {
        self.returns >= KNOWN
    }

    /// Whether it is known to ask for a block of this size. Of small chunks, for which there
    /// is none here, it is not looked what they are for.
    fn knows(&self, size: Option<Bytes>) -> bool {
        self.is_known() && !size.is_some_and(|size| self.requests.is_new(size))
    }

    /// How much room there is for `reserved` bytes, with what is asked for, where there can
    /// be `capacity`, and so much is free in `pieces` of chunks in use. It is remembered
    /// whether that is ample. `size`: see `knows`.
    pub(crate) fn room(
        &mut self,
        size: Option<Bytes>,
        reserved: Bytes,
        capacity: Bytes,
        pieces: Bytes,
    ) -> Room {
        let beyond = self.beyond(capacity);
        self.capacity = capacity;
        self.has_room = self.has_room_for(size, reserved);
        if self.has_room {
            Room::Ample
        } else if self.is_settled(size) && pieces <= percent(beyond, IN_PIECES) {
            Room::Scarce
        } else {
            Room::Tight
        }
    }

    /// A request for a block of this size was served, not by a small chunk.
    #[inline]
    pub(crate) fn serves(&mut self, size: Bytes) {
        self.requests.serves(size);
    }

    /// Whether all requests come for this size, so that nobody uses what they leave.
    fn is_in_run(&self, size: Bytes) -> bool {
        self.requests.are_all_for(size) && !(self.is_known() && self.requests.has_asked(size))
    }

    /// Who is to share a chunk that is taken for a request of this size, where so much is
    /// live, and free in pieces of chunks in use, none of which serves it.
    pub(crate) fn sharing(&self, size: Bytes, pieces: Bytes, live: Bytes) -> Sharing {
        if self.is_careful() {
            Sharing::Nobody
        } else if self.is_in_run(size) && pieces > percent(live, SCATTERED) {
            Sharing::Alike
        } else if self.requests.is_new(size) && pieces > percent(live, UNUSED) {
            Sharing::Nobody
        } else {
            Sharing::All
        }
    }

    /// Whether so much would be free in pieces of chunks in use beside what would be `held`
    /// that a request of this size is to cut off no more without need, where the size is new
    /// or all requests are of it: more than may be reserved beyond that; where there is ample
    /// room for `reserved` bytes, half of it, and only if all are.
    pub(crate) fn wastes(&self, size: Bytes, reserved: Bytes, pieces: Bytes, held: Bytes) -> bool {
        let most = if self.has_room_for(Some(size), reserved) {
            self.is_in_run(size).then(|| percent(held, WASTED))
        } else {
            let is_careful = self.requests.is_new(size) || self.is_in_run(size);
            is_careful.then(|| part(held, SLACK))
        };
        most.is_some_and(|most| pieces > most)
    }

    /// Whether there is ample room for `reserved` bytes, with what is asked for.
    fn has_room_for(&self, size: Option<Bytes>, reserved: Bytes) -> bool {
        let (taken, ample) = match (self.is_settled(size), self.lags) {
            (false, _) => (reserved, ROOMY),
            (true, false) => (self.peak, HAS_ROOM),
            (true, true) => (self.peak, LAGS_HAS_ROOM),
        };
        taken <= percent(self.capacity, ample)
    }

    fn is_settled(&self, size: Option<Bytes>) -> bool {
        self.knows(size) || (self.is_spent() && !self.is_careful())
    }

    /// What the peak leaves of `capacity`.
    fn beyond(&self, capacity: Bytes) -> Bytes {
        capacity.saturating_sub(self.peak)
    }

    /// The most that should be reserved of it where there is little room.
    pub(crate) fn filled(&self, capacity: Bytes) -> Bytes {
        self.peak
            .saturating_add(percent(self.beyond(capacity), FILLED))
    }

    /// The most that should be reserved once the program holds `more`.
    pub(crate) fn bound(&self, live: Bytes, more: Bytes) -> Bytes {
        self.with_slack(live, more, SLACK + self.more_slack)
    }

    /// Whether a slab more is simply taken, so that `reserved` bytes are, rather than
    /// chunks given back for it: these are larger, and a program that has come back to
    /// its peak would take them again at its next. Slabs need not be as many in each
    /// pass, since small blocks lie differently each time.
    pub(crate) fn adds_slab(&self, live: Bytes, more: Bytes, reserved: Bytes) -> bool {
        self.returns > 0 && reserved <= self.with_slack(live, more, SLABS_MOST)
    }

    fn with_slack(&self, live: Bytes, more: Bytes, thousandths: u64) -> Bytes {
        let held = self.peak.max(live.saturating_add(more));
        held.saturating_add(part(held, thousandths))
    }

    /// Whether the program is about to hold more than ever.
    pub(crate) fn rises(&self, live: Bytes, more: Bytes) -> bool {
        live.saturating_add(more) > self.peak
    }

    /// Whether exchanging has not led to an end.
    pub(crate) fn is_spent(&self) -> bool {
        self.exchanges >= EXCHANGES
    }

    /// Chunks had to be exchanged. Where the program repeats, so would that.
    pub(crate) fn exchanged(&mut self) {
        self.exchanges = self.exchanges.saturating_add(1);
        if self.is_known() {
            if self.more_slack < SLACK_MOST - SLACK {
                self.more_slack += SLACK_STEP;
            } else {
                self.exchanges = EXCHANGES;
            }
        }
    }
}

#[cfg(test)]
mod tests;
