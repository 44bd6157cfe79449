//! Batches: what is put behind one fence.
//!
//! A batch is closed before its fence is made, so that what is freed meanwhile, also by
//! what the driver calls, is in the next one. With the arena, under its lock, it belongs
//! to an epoch. Alone, it is over at once if the device is done, and nobody else has to
//! know; if not, the arena's next epoch covers it. Cost: constant.

use crate::page_map::SLOT;
use crate::thread_cache::kept::Kept;
use crate::thread_cache::queue::Batch;
use crate::thread_cache::room::PackedRoom;

/// A batch has at most so many bytes and blocks: of a fence of some 350 ns, each
/// block pays less than three, of 64 KiB too.
const BATCH_BYTES: u64 = 8 << 20;
const BATCH_BLOCKS: u64 = 512;

/// Where a request finds nothing else, a batch of so many is worth a fence.
pub(crate) const WORTH_BYTES: u64 = 15 << 19;
const WORTH_BLOCKS: u64 = 256;

/// And in such a cache only, which may keep much.
pub(super) const MUCH: u64 = 8 << 20;

/// A fence is for so many blocks at least: for fewer it costs more than the arena does.
const FENCE_BLOCKS: u64 = 4;

/// A block is at most this part of what a cache may keep, and a batch half of that: one
/// that is full has as many.
pub(in crate::thread_cache) const BLOCK_PART: u64 = 2 * FENCE_BLOCKS;

/// Batches whose fences are kept apart. They pile up where the device works on
/// something for very long.
const MOST_SEALED: usize = 256;

/// Where the device was not done with a batch that was closed alone, its fence was made in
/// vain: so many batches are then closed with the arena.
const AFTER_VAIN: u8 = 7;

/// When batches are closed without the arena.
#[derive(Default)]
pub(super) struct Alone {
    /// How many are to be closed with it first.
    not_yet: u8,
    /// Whether the batch before the open one was, and nobody knows of its fence yet.
    is_pending: bool,
    /// The batch that was closed so last.
    last: Batch,
    /// How many batches were closed so.
    closed: u64,
    /// The slots of room when the arena closed one last, with those that there are more by
    /// something else than blocks that came or went; wraps.
    room: u64,
    /// How many are over, since the cache was opened.
    pub(super) ended: u64,
}

impl Alone {
    pub(super) fn new(room: PackedRoom) -> Alone {
        Alone {
            room: room.slots(),
            ..Alone::default()
        }
    }

    /// Whether the next one may be, of which this was freed.
    fn may_be(&self, room: PackedRoom, used: PackedRoom) -> bool {
        let freed = room.slots().wrapping_sub(self.room).cast_signed();
        let falls = freed > (used.slots() / 2).cast_signed();
        self.not_yet == 0 && !self.is_pending && !falls
    }

    /// One is closed with the arena.
    fn is_with_the_arena(&mut self, room: PackedRoom) {
        self.room = room.slots();
        self.not_yet = self.not_yet.saturating_sub(1);
    }

    /// There are so many slots of room more (or wrapped, fewer) by something else.
    pub(super) fn changed_room(&mut self, slots: u64) {
        self.room = self.room.wrapping_add(slots);
    }
}

/// Where a cache is small, it is looked at after so many frees whether it is of use.
const TRIED: u64 = 128;

/// One free in so many makes a fence where the arena has all of them.
const ARENA_FREES: u64 = 64;

/// One that hands out less than this part of what is freed is of no great use.
const HITS_PART: u64 = 4;

/// A small cache has closed so many batches before it makes way for a large one.
const OUTGROWN: u64 = 256;

/// What a small cache was of use for, since that was looked at last; also in openings
/// before this one, of whichever thread.
#[derive(Default)]
pub(super) struct Turnover {
    freed: u64,
    fences: u64,
    /// Blocks that were handed out again, or passed on to another cache, which is not to
    /// count them: there they are fewer at first.
    pub(super) hits: i64,
    /// How many were in this opening when that was counted last.
    counted: u64,
    /// Batches since it was opened.
    batches: u64,
}

impl Turnover {
    /// The cache is opened; it `stays` a small one, or not.
    pub(super) fn begin(&mut self, stays: bool) {
        self.batches = 0;
        if !stays {
            *self = Turnover::default();
        }
    }
}

impl Kept {
    /// Knows which epochs have ended: those below this number.
    pub(crate) fn refresh(&mut self, ended: u64) {
        while let Some(&(batch, epoch)) = self.sealed.front() {
            if epoch >= ended {
                break;
            }
            self.over = batch.next();
            self.sealed.pop_front();
        }
    }

    /// The device is done with batches below this number.
    #[cfg(all(test, loom))]
    pub(crate) fn pass(&mut self, over: u64) {
        self.over = Batch::of(over);
    }

    /// Whether the open batch is, where the cache has no place for another block.
    pub(crate) fn is_worth_a_fence(&self) -> bool {
        self.has_in_batch(self.batch_slots() / 2) && self.used_of_batch().blocks() >= FENCE_BLOCKS
    }

    /// Whether it is, for a request that found none.
    pub(crate) fn is_worth_an_early_fence(&self) -> bool {
        self.most >= MUCH && self.has_in_batch(WORTH_BYTES / SLOT.get())
    }

    fn has_in_batch(&self, slots: u64) -> bool {
        let used = self.used_of_batch();
        used.blocks() >= WORTH_BLOCKS || used.slots() >= slots
    }

    /// What was freed in the open batch.
    fn used_of_batch(&self) -> PackedRoom {
        self.begun.without(self.left)
    }

    /// Closes the open batch, if something is in it: its frees belong to this epoch.
    pub(crate) fn close_batch(&mut self, epoch: u64) {
        self.closed = self.used_of_batch().slots();
        self.turnover.freed += self.used_of_batch().blocks();
        self.turnover.fences += 1;
        self.turnover.batches += 1;
        self.alone.is_with_the_arena(self.room);
        let is_pending = std::mem::take(&mut self.alone.is_pending);
        if self.used_of_batch().blocks() == 0 && !is_pending {
            return;
        }
        if self.sealed.len() == MOST_SEALED {
            // A later epoch covers what each second one does.
            let mut stays = false;
            self.sealed.retain(|_| {
                stays = !stays;
                !stays
            });
        }
        self.sealed.push_back((self.open, epoch));
        self.begin_next_batch();
    }

    /// Whether something was in it.
    pub(crate) fn closed_some(&self) -> bool {
        self.closed > 0
    }

    /// Closes the open batch before a fence is made that may be reached at once; names it.
    /// None where the device is not done with an older one, or it is the arena's turn: also
    /// where the thread frees far more than it takes, since the program may be coming down.
    pub(crate) fn close_alone(&mut self, ended: u64) -> Option<u64> {
        self.refresh(ended);
        if !self.sealed.is_empty() || !self.alone.may_be(self.room, self.used_of_batch()) {
            return None;
        }
        self.alone.is_pending = true;
        self.alone.last = self.open;
        self.alone.closed += 1;
        self.begin_next_batch();
        Some(self.alone.closed)
    }

    /// Whether the fence was reached that was made after that batch was closed.
    pub(crate) fn closed_alone(&mut self, name: u64, is_done: bool) {
        if !is_done {
            self.alone.not_yet = AFTER_VAIN;
            return;
        }
        self.alone.ended += 1;
        // Else the driver has called back, and an epoch covers it.
        if name == self.alone.closed {
            self.alone.is_pending = false;
            self.over = self.over.max(self.alone.last.next());
        }
    }

    fn begin_next_batch(&mut self) {
        if self.open == Batch::LAST {
            self.renumber();
        }
        self.open = self.open.next();
        self.begun = self.left;
        self.begin_batch();
    }

    /// Numbers batches anew, from the lowest number on: those that are over have one, and
    /// those that the same fence covers. Takes a step for each block.
    #[cold]
    fn renumber(&mut self) {
        let (over, last, sealed) = (self.over, self.alone.last, &self.sealed);
        let number = |batch| {
            if batch < over {
                return Batch::DONE;
            }
            let before = sealed.partition_point(|(sealed, _)| *sealed < batch);
            Batch::of(1 + before as u64 + u64::from(last < batch))
        };
        (self.sizes).change_used(|size| size.blocks.change_batches(number));
        let renumbered = sealed.iter().map(|&(batch, epoch)| (number(batch), epoch));
        (self.open, self.alone.last) = (number(self.open), number(last));
        self.sealed = renumbered.collect();
        self.over = Batch::DONE.next();
    }

    /// Goes on as if so many batches had been that so few numbers are left.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn leave_numbers(&mut self, count: u64) {
        self.open = self.open.max(Batch::LAST.before(count));
    }

    /// Whether the blocks that were handed out again were worth the fences that there were
    /// more than the arena would have made; none where it is too early to say, or neither
    /// is much.
    pub(crate) fn was_of_use(&mut self) -> Option<bool> {
        if self.turnover.freed < TRIED {
            return None;
        }
        self.count_hits();
        let Turnover {
            freed,
            fences,
            hits,
            ..
        } = self.turnover;
        self.turnover.hits = hits.min(0);
        (self.turnover.freed, self.turnover.fences) = (0, 0);
        let hits = hits.max(0).cast_unsigned();
        let more = fences.saturating_sub(freed / ARENA_FREES);
        if more * FENCE_BLOCKS > hits {
            return Some(false);
        }
        (hits >= freed / HITS_PART).then_some(true)
    }

    fn count_hits(&mut self) {
        let all: u64 = self.sizes.used().map(|(_, size)| size.allocations()).sum();
        let more = all - std::mem::replace(&mut self.turnover.counted, all);
        self.turnover.hits += more.cast_signed();
    }

    /// The opening ends.
    pub(super) fn end_turnover(&mut self) {
        self.turnover.freed += self.used_of_batch().blocks();
        self.count_hits();
        self.turnover.counted = 0;
    }

    /// Whether a small cache has been there for long enough.
    pub(crate) fn is_outgrown(&self) -> bool {
        self.is_sparing() && self.turnover.batches >= OUTGROWN
    }

    /// The most slots of a batch.
    fn batch_slots(&self) -> u64 {
        BATCH_BYTES.min(self.most / 2) / SLOT.get()
    }

    /// Lets the open batch grow as far as there is room.
    pub(super) fn begin_batch(&mut self) {
        let used = self.used_of_batch();
        let slots = self.batch_slots().saturating_sub(used.slots());
        let blocks = BATCH_BLOCKS.saturating_sub(used.blocks());
        self.left = PackedRoom::of(blocks, slots.min(self.unused_slots()));
        self.begun = self.left.with(used);
    }

    /// Whether there is hardly room for another batch.
    pub(crate) fn is_full(&mut self) -> bool {
        self.begin_batch();
        self.unused_slots() < self.batch_slots() / 2
    }
}
