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

use std::time::Duration;

use crate::address::Bytes;
use crate::strategy::Strategy;

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

/// What a shared chunk has beyond whole requests of one size is for smaller ones. Where so
/// many requests in a row came for one size, and more than this part of what is live, in
/// percent, is free in pieces, that does not come about.
const RUN: u32 = 16;
const SCATTERED: u64 = 1;

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

/// A program that never held as much is left alone.
const LEAST: Bytes = Bytes::mib(256);

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

/// Whether a request may cut an idle chunk of this size without need, where pieces are
/// wasted or not.
#[inline]
pub(crate) fn fills(request: Bytes, chunk: Bytes, wastes: impl FnOnce() -> bool) -> bool {
    request >= percent(chunk, FILLS) && (request >= percent(chunk, FILLS_CLOSELY) || !wastes())
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
    /// What there could be then.
    capacity: Bytes,
    /// The size that was asked for last, and how many requests for it came in a row before.
    size: Bytes,
    run: u32,
}

impl Packing {
    /// None where chunks are not packed.
    pub(crate) fn new(strategy: &Strategy) -> Option<Packing> {
        strategy.not_packed().is_none().then(Packing::default)
    }

    /// Whether the program is large enough.
    pub(crate) fn is_on(&self) -> bool {
        self.peak >= LEAST
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
                self.exchanges = 0;
                self.brought_together = 0;
            }
        }
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

    /// How much room there is for `reserved` bytes where there can be
    /// `capacity`, and so much is free in `pieces` of chunks in use. It is remembered
    /// whether that is ample.
    pub(crate) fn room(&mut self, reserved: Bytes, capacity: Bytes, pieces: Bytes) -> Room {
        let beyond = self.beyond(capacity);
        self.capacity = capacity;
        self.has_room = self.has_room_for(reserved);
        if self.has_room {
            Room::Ample
        } else if self.is_settled() && pieces <= percent(beyond, IN_PIECES) {
            Room::Scarce
        } else {
            Room::Tight
        }
    }

    /// A request for a block of this size was served, not by a small chunk.
    #[inline]
    pub(crate) fn serves(&mut self, size: Bytes) {
        let goes_on = size == self.size;
        self.run = if goes_on {
            self.run.saturating_add(1)
        } else {
            0
        };
        self.size = size;
    }

    /// Whether all requests come for this size, so that nobody uses what they leave.
    fn is_in_run(&self, size: Bytes) -> bool {
        self.run >= RUN && size == self.size && !self.is_known()
    }

    /// Whether so much is free in pieces of chunks in use that a chunk which requests of
    /// this size share is to have room for them alone.
    pub(crate) fn is_scattered(&self, size: Bytes, pieces: Bytes, live: Bytes) -> bool {
        self.is_in_run(size) && pieces > percent(live, SCATTERED)
    }

    /// Whether so much is free in pieces of chunks in use that requests of this size are to
    /// cut off no more without need: more than may be reserved beyond what is live, or where
    /// there is ample room for `reserved` bytes, half of what is live.
    pub(crate) fn wastes(&self, size: Bytes, reserved: Bytes, pieces: Bytes, live: Bytes) -> bool {
        if !self.is_in_run(size) {
            return false;
        }
        let most = if self.has_room_for(reserved) {
            percent(live, WASTED)
        } else {
            part(live, SLACK)
        };
        pieces > most
    }

    /// Whether there is ample room for `reserved` bytes.
    fn has_room_for(&self, reserved: Bytes) -> bool {
        let (size, ample) = match (self.is_settled(), self.lags) {
            (false, _) => (reserved, ROOMY),
            (true, false) => (self.peak, HAS_ROOM),
            (true, true) => (self.peak, LAGS_HAS_ROOM),
        };
        size <= percent(self.capacity, ample)
    }

    fn is_settled(&self) -> bool {
        self.is_known() || self.is_spent()
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
mod tests {
    use super::*;

    const MIB: fn(u64) -> Bytes = Bytes::mib;

    /// A program that came to hold `peak`, and `returns` times came back to
    /// it from nothing.
    fn program(peak: Bytes, returns: u32) -> Packing {
        let mut packing = Packing::default();
        packing.rose(peak);
        for _ in 0..returns {
            packing.fell(Bytes::ZERO);
            packing.rose(peak);
        }
        packing
    }

    #[test]
    fn a_chunk_is_cut_for_what_fills_it() {
        assert!(fills(MIB(60), MIB(100), || false));
        assert!(!fills(MIB(59), MIB(100), || false));
        assert!(!fills(Bytes::new(512), Bytes::MAX, || false));
        assert!(fills(MIB(90), MIB(100), || true));
        assert!(!fills(MIB(89), MIB(100), || true));
    }

    #[test]
    fn a_small_program_is_left_alone() {
        assert!(!program(MIB(255), 9).is_on());
        let mut packing = program(MIB(256), 0);
        packing.fell(Bytes::ZERO);
        assert!(packing.is_on());
    }

    #[test]
    fn pieces_are_scattered_in_a_run_until_the_program_is_known() {
        let of = |packing: &Packing, mib| packing.is_scattered(MIB(12), MIB(mib), MIB(1000));
        let mut packing = program(MIB(1000), 0);
        packing.serves(MIB(12));
        for _ in 0..RUN {
            assert!(!of(&packing, 900));
            packing.serves(MIB(12));
        }
        assert!(!of(&packing, 10) && of(&packing, 11));
        assert!(!packing.is_scattered(MIB(11), MIB(900), MIB(1000)));
        packing.returns = KNOWN;
        assert!(!of(&packing, 900));
        packing.returns = 0;
        packing.serves(MIB(11));
        packing.serves(MIB(12));
        assert!(!of(&packing, 900), "the run is over");
    }

    #[test]
    fn pieces_are_wasted_sooner_where_room_is_short() {
        let mut packing = program(MIB(1000), 0);
        packing.room(MIB(1000), MIB(2000), Bytes::ZERO);
        let wastes = |packing: &Packing, reserved, mib| {
            packing.wastes(MIB(12), MIB(reserved), MIB(mib), MIB(1000))
        };
        assert!(!wastes(&packing, 1001, 900));
        (0..=RUN).for_each(|_| packing.serves(MIB(12)));
        assert!(!wastes(&packing, 1000, 500) && wastes(&packing, 1000, 501));
        assert!(!wastes(&packing, 1001, 80) && wastes(&packing, 1001, 81));
    }

    #[test]
    fn who_came_back_twice_is_known_until_the_peak_is_clearly_higher() {
        assert!(!program(MIB(1000), 1).is_known());
        let mut packing = program(MIB(1000), 2);
        assert!(packing.is_known());
        packing.rose(MIB(1030));
        assert!(packing.is_known());
        packing.rose(MIB(1031));
        assert!(!packing.is_known());
    }

    #[test]
    fn to_come_back_takes_a_fall_and_a_rise() {
        let mut packing = program(MIB(1000), 0);
        for _ in 0..9 {
            // Not down far enough, and then not back up.
            packing.fell(MIB(750));
            packing.rose(MIB(1000));
        }
        packing.fell(MIB(749));
        packing.rose(MIB(950));
        assert_eq!(packing.returns, 0);
        packing.rose(MIB(951));
        packing.rose(MIB(952));
        assert_eq!(packing.returns, 1);
    }

    #[test]
    fn it_comes_down_once_and_low_once_until_it_is_back() {
        let mut packing = program(MIB(1000), 0);
        let falls = [800, 749, 600, 100, 99, 500, 99, 0];
        let comes = falls.map(|live| packing.fell(MIB(live)));
        assert_eq!(
            comes,
            [false, true, false, false, true, false, false, false]
        );
        packing.rose(MIB(951));
        assert!(packing.fell(MIB(0)));
        assert!(!packing.fell(MIB(0)));
        assert!(program(MIB(64), 0).fell(MIB(0)));
        assert!(!program(MIB(63), 0).fell(MIB(0)), "it is left alone");
    }

    #[test]
    fn threads_keep_while_a_known_program_has_room_until_it_holds_nothing() {
        let mut known = program(MIB(1000), KNOWN);
        known.room(MIB(1080), MIB(2000), Bytes::ZERO);
        assert!(!known.lets_keep(), "it has just become known");
        let mut known = program(MIB(1000), KNOWN + 1);
        assert!(!known.lets_keep(), "no miss has found room yet");
        known.room(MIB(500), MIB(1000), Bytes::ZERO);
        assert!(!known.lets_keep(), "it hardly fits");
        known.room(MIB(1080), MIB(2000), Bytes::ZERO);
        assert!(known.lets_keep());
        assert_eq!(
            [749, 99, 0].map(|live| known.fell(MIB(live))),
            [true, true, false]
        );
        known.rose(MIB(1031));
        assert!(!known.lets_keep(), "it is not known at that height");
    }

    #[test]
    fn the_bound_is_the_peak_and_a_little_or_what_is_about_to_be_one() {
        let packing = program(MIB(1000), 0);
        assert_eq!(packing.bound(MIB(10), MIB(10)), MIB(1080));
        assert_eq!(packing.bound(MIB(1000), MIB(1000)), MIB(2160));
        assert_eq!(packing.bound(Bytes::MAX, MIB(1)), Bytes::MAX);
    }

    #[test]
    fn what_a_known_program_exchanges_raises_its_bound_to_an_end() {
        let mut unknown = program(MIB(1000), 0);
        unknown.exchanged();
        assert_eq!(unknown.bound(MIB(0), MIB(0)), MIB(1080));
        let mut packing = program(MIB(1000), 2);
        packing.exchanged();
        assert_eq!(packing.bound(MIB(0), MIB(0)), MIB(1085));
        for _ in 0..11 {
            packing.exchanged();
        }
        assert_eq!(packing.bound(MIB(0), MIB(0)), MIB(1140));
        assert!(!packing.is_spent());
        packing.exchanged();
        assert!(packing.is_spent());
        assert_eq!(packing.bound(MIB(0), MIB(0)), MIB(1140));
    }

    #[test]
    fn who_came_back_adds_slabs_up_to_a_bound() {
        assert!(!program(MIB(1000), 0).adds_slab(MIB(10), MIB(1), MIB(1090)));
        let back = program(MIB(1000), 1);
        assert!(back.adds_slab(MIB(10), MIB(1), MIB(1160)));
        assert!(!back.adds_slab(MIB(10), MIB(1), MIB(1161)));
    }

    #[test]
    fn exchanging_ends_at_each_peak() {
        let mut packing = program(MIB(1000), 0);
        for _ in 0..EXCHANGES {
            assert!(!packing.is_spent());
            packing.exchanged();
        }
        assert!(packing.is_spent());
        packing.rose(MIB(1100));
        assert!(!packing.is_spent());
    }

    #[test]
    fn room_is_what_is_left_until_the_program_is_known() {
        let room =
            |program: &mut Packing, reserved| program.room(MIB(reserved), MIB(1000), Bytes::ZERO);
        let mut unknown = program(MIB(400), 0);
        assert_eq!(room(&mut unknown, 500), Room::Ample);
        assert_eq!(room(&mut unknown, 501), Room::Tight);
        let mut spent = program(MIB(400), 0);
        spent.exchanges = EXCHANGES;
        for mut program in [program(MIB(920), 2), spent] {
            assert_eq!(room(&mut program, 999), Room::Ample);
            program.rose(MIB(921));
            assert_ne!(room(&mut program, 999), Room::Ample);
        }
        let mut lagging = program(MIB(600), 2);
        lagging.lags = true;
        assert_eq!(room(&mut lagging, 999), Room::Ample);
        lagging.rose(MIB(601));
        assert_eq!(room(&mut lagging, 999), Room::Scarce);
    }

    #[test]
    fn pieces_and_chunks_may_take_half_of_what_the_peak_leaves() {
        let mut known = program(MIB(940), 2);
        assert_eq!(known.room(MIB(999), MIB(1000), MIB(30)), Room::Scarce);
        assert_eq!(known.room(MIB(999), MIB(1000), MIB(31)), Room::Tight);
        assert_eq!(known.filled(MIB(1000)), MIB(970));
    }

    #[test]
    fn patience_ends() {
        let mut packing = program(MIB(1000), 0);
        for _ in 0..VAIN {
            assert!(packing.is_patient());
            packing.waited_in_vain();
        }
        assert!(!packing.is_patient());
    }
}
