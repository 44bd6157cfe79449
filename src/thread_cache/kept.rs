//! What a cache holds: a queue of blocks for each size, and what happened since
//! it was opened.
//!
//! Invariant: in each queue the blocks stand in the order in which they were
//! freed, so that the first is the first that the device is done with; each was
//! handed out last for a request of its own size class. Cost: constant; a recall
//! takes a step for each block.

use std::collections::VecDeque;

use crate::address::{Address, Bytes};
use crate::page_map::{MOST_CACHEABLE, SLOT, SlotWord};
use crate::stats::{ClassCount, SIZE_CLASSES, size_class};
use crate::thread_cache::CacheHub;
use crate::thread_cache::queue::{KeptBlock, Queue};

/// Sizes of blocks, each with a queue.
#[allow(clippy::cast_possible_truncation, reason = "there are 128")]
const SIZES: usize = (MOST_CACHEABLE.get() / SLOT.get()) as usize;

/// A batch of so many bytes is worth a fence, or of so many blocks: of some 350
/// ns, each block pays two or three.
const BATCH_BYTES: u64 = 8 << 20;
const BATCH_BLOCKS: u64 = 256;

/// What a block counts for at least.
const BLOCK: u64 = BATCH_BYTES / BATCH_BLOCKS;

/// Batches whose fences are kept apart. They pile up where the device works on
/// something for very long.
const MOST_SEALED: usize = 256;

/// A block may be larger than the request by this part of it.
const NEAR: usize = 8;

/// The blocks of one size. One cache line.
#[derive(Default)]
#[repr(align(64))]
struct Size {
    blocks: Queue,
    /// What happened since the cache was opened.
    allocations: u64,
    requested: u64,
    frees: u64,
    /// Frees less allocations, when the room was taken away last.
    noted: u64,
}

/// A figure of the arena that may rise without it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Figure {
    Blocks,
    Bytes,
    Asked,
}

/// By how much the arena's figures may rise without it: of blocks that the program
/// holds, of their bytes, and of what was asked for, of these and of others that
/// are not free.
#[derive(Copy, Clone, Default)]
pub(crate) struct Headroom {
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    pub(crate) asked: u64,
}

impl Size {
    /// Blocks that came back and were not handed out again; wraps.
    fn fewer(&self) -> u64 {
        self.frees.wrapping_sub(self.allocations)
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Kept {
    /// None before the cache is opened first.
    sizes: Box<[Size]>,
    room: Headroom,
    /// Which opening of the arena's caches this is; zero while it is closed.
    opening: u64,
    /// The most bytes that may be kept; zero while the cache is closed.
    most: u64,
    /// What may still be freed before the cache looks whether its open batch is
    /// full, or the cache is, and what that was when the batch was opened.
    left: u64,
    begun: u64,
    /// The number of the open batch.
    open: u64,
    /// Batches with the epochs that cover them, the oldest first.
    sealed: VecDeque<(u64, u64)>,
    /// The device is done with batches below this number.
    over: u64,
}

/// A block that was recalled.
pub(crate) struct Recalled {
    pub(crate) address: Address,
    /// The epoch that covers its free; none: its batch was open.
    pub(crate) epoch: Option<u64>,
    /// The device is done with it.
    pub(crate) is_reclaimable: bool,
}

/// What happened in a cache since it was opened.
#[derive(Copy, Clone, Default)]
pub(crate) struct Activity {
    /// What was handed out, bytes in the sizes of blocks.
    pub(crate) allocations: u64,
    pub(crate) handed_out: u64,
    pub(crate) requested: u64,
    classes: [ClassCount; SIZE_CLASSES],
}

impl Activity {
    fn add(&mut self, size: u64, of: &Size) {
        self.allocations += of.allocations;
        self.handed_out += of.allocations * size;
        self.requested += of.requested;
        let count = &mut self.classes[size_class(Bytes::new(size))];
        count.allocations += of.allocations;
        count.frees += of.frees;
        count.requested += of.requested;
    }

    /// Adds what happened to the counts by size class.
    pub(crate) fn add_to(&self, counts: &mut [ClassCount; SIZE_CLASSES]) {
        for (more, count) in self.classes.iter().zip(counts) {
            count.allocations += more.allocations;
            count.frees += more.frees;
            count.requested = count.requested.saturating_add(more.requested);
        }
    }
}

/// The number of the size for requests of so many bytes.
#[inline]
fn number_of(request: Bytes) -> usize {
    usize::try_from(request.get().wrapping_sub(1) / SLOT.get()).unwrap_or(usize::MAX)
}

#[inline]
fn size_of(number: usize) -> u64 {
    (number as u64 + 1) * SLOT.get()
}

/// What a block counts for in a batch.
#[inline]
fn weight(size: u64) -> u64 {
    size.max(BLOCK)
}

impl Kept {
    /// A block that the device is done with, of just the size of a request or a
    /// little larger: which size that is, and the block.
    #[inline]
    pub(crate) fn find(&self, request: Bytes) -> Option<(usize, Address)> {
        let number = number_of(request);
        match self.sizes.get(number)?.blocks.first() {
            Some(first) if first.batch < self.over => Some((number, first.address)),
            _ => self.find_near(number),
        }
    }

    /// The same in one of the next sizes, of the same class: so what happens to a
    /// block counts in the class of its request.
    #[cold]
    #[inline(never)]
    fn find_near(&self, number: usize) -> Option<(usize, Address)> {
        let last = (number + (number + 1) / NEAR).min((number + 1).next_power_of_two() - 1);
        let sizes = self.sizes.get(number + 1..=last)?;
        sizes.iter().zip(number + 1..).find_map(|(size, number)| {
            let first = size
                .blocks
                .first()
                .filter(|first| first.batch < self.over)?;
            Some((number, first.address))
        })
    }

    /// Takes out that block, of which this is said; what is said of it then.
    /// None where there is no room for it.
    #[inline]
    pub(crate) fn take(
        &mut self,
        number: usize,
        request: Bytes,
        word: SlotWord,
    ) -> Option<SlotWord> {
        let bytes = self.room.bytes.checked_sub(size_of(number))?;
        let blocks = self.room.blocks.checked_sub(1)?;
        let live = word.requested(request);
        if live.kept() != word {
            let asked = self.room.asked + word.request().get();
            self.room.asked = asked.checked_sub(request.get())?;
        }
        (self.room.bytes, self.room.blocks) = (bytes, blocks);
        let size = self.sizes.get_mut(number)?;
        size.blocks.pop();
        size.allocations += 1;
        size.requested += request.get();
        Some(live)
    }

    /// Takes out the first block of a size whatever room there is; the arena
    /// counts it.
    pub(crate) fn take_uncounted(&mut self, number: usize) {
        if let Some(size) = self.sizes.get_mut(number) {
            size.blocks.pop();
        }
    }

    /// Looks which epochs have ended.
    pub(crate) fn refresh(&mut self, hub: &CacheHub) {
        while let Some(&(batch, epoch)) = self.sealed.front() {
            if !hub.has_ended(epoch) {
                break;
            }
            // A fence within a fence is noted before the one around it.
            self.over = self.over.max(batch + 1);
            self.sealed.pop_front();
        }
    }

    /// The device is done with batches below this number.
    #[cfg(all(test, loom))]
    pub(crate) fn pass(&mut self, over: u64) {
        self.over = over;
    }

    /// Whether there is room for one more block; of a closed cache there is none.
    #[inline]
    pub(crate) fn fits(&self, word: SlotWord) -> bool {
        self.left >= weight(word.size().get())
    }

    #[inline]
    pub(crate) fn opening(&self) -> u64 {
        self.opening
    }

    /// Bytes kept.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = |(number, size): (usize, &Size)| size_of(number) * size.blocks.len() as u64;
        self.sizes.iter().enumerate().map(bytes).sum()
    }

    pub(crate) fn is_worth_a_fence(&self) -> bool {
        self.begun - self.left >= self.batch() / 2
    }

    /// Puts in a block that was just marked as kept.
    #[inline]
    pub(crate) fn put(&mut self, address: Address, word: SlotWord) {
        let number = word.slots_less_one();
        self.left -= weight(size_of(number));
        self.room.blocks += 1;
        self.room.bytes += size_of(number);
        if let Some(size) = self.sizes.get_mut(number) {
            size.frees += 1;
            size.blocks.push(KeptBlock {
                address,
                batch: self.open,
            });
        }
    }

    /// Gives more room.
    pub(crate) fn grant(&mut self, room: Headroom) {
        self.room.blocks += room.blocks;
        self.room.bytes += room.bytes;
        self.room.asked += room.asked;
    }

    /// Closes the open batch: its number; none where nothing is in it.
    pub(crate) fn close_batch(&mut self) -> Option<u64> {
        let is_empty = self.left == self.begun;
        self.open += u64::from(!is_empty);
        self.begun = self.left;
        self.begin_batch();
        (!is_empty).then(|| self.open - 1)
    }

    /// What a batch has that is worth a fence; half of it is, to a request that
    /// finds nothing else.
    fn batch(&self) -> u64 {
        BATCH_BYTES.min(self.most / 2)
    }

    /// Lets the open batch grow as far as there is room.
    fn begin_batch(&mut self) {
        let used = self.begun - self.left;
        let room = self.most.saturating_sub(self.bytes());
        self.left = self.batch().saturating_sub(used).min(room);
        self.begun = self.left + used;
    }

    /// What was recalled meanwhile is no longer here: the number of a batch is
    /// never given again.
    pub(crate) fn sealed(&mut self, batch: u64, epoch: u64) {
        if self.sealed.len() == MOST_SEALED {
            // A later epoch covers what each second one does.
            let mut stays = false;
            self.sealed.retain(|_| {
                stays = !stays;
                !stays
            });
        }
        self.sealed.push_back((batch, epoch));
    }

    pub(crate) fn open(&mut self, opening: u64, most: Bytes) {
        self.opening = opening;
        if self.sizes.is_empty() {
            self.sizes = (0..SIZES).map(|_| Size::default()).collect();
        }
        self.most = most.get();
        self.begun = self.left;
        self.begin_batch();
    }

    pub(crate) fn room(&self) -> Headroom {
        self.room
    }

    /// Of each size, how many blocks fewer (or wrapped, more) the program has than
    /// when the room was taken away last.
    pub(crate) fn fewer(&self) -> impl Iterator<Item = (Bytes, u64)> + '_ {
        let sizes = self.sizes.iter().enumerate();
        sizes.filter_map(|(number, size)| {
            let fewer = size.fewer().wrapping_sub(size.noted);
            (fewer != 0).then(|| (Bytes::new(size_of(number)), fewer))
        })
    }

    /// Takes room away.
    pub(crate) fn take_room(&mut self, of: Figure) -> u64 {
        match of {
            Figure::Blocks => std::mem::take(&mut self.room.blocks),
            Figure::Asked => std::mem::take(&mut self.room.asked),
            Figure::Bytes => {
                for size in &mut self.sizes {
                    size.noted = size.fewer();
                }
                std::mem::take(&mut self.room.bytes)
            }
        }
    }

    pub(crate) fn activity(&self) -> Activity {
        let mut activity = Activity::default();
        for (number, size) in self.sizes.iter().enumerate() {
            activity.add(size_of(number), size);
        }
        activity
    }

    /// Whether there is hardly room for another batch.
    pub(crate) fn is_full(&mut self) -> bool {
        self.begin_batch();
        self.left < self.batch() / 2
    }

    /// Takes out half of the blocks of each size.
    pub(crate) fn halve(&mut self, hub: &CacheHub, each: impl FnMut(Recalled)) {
        self.take_out(hub, |blocks| blocks.len().div_ceil(2), each);
        self.begin_batch();
    }

    pub(crate) fn recall(&mut self, hub: &CacheHub, each: impl FnMut(Recalled)) {
        self.take_out(hub, Queue::len, each);
        for size in &mut self.sizes {
            (size.allocations, size.requested) = (0, 0);
            (size.frees, size.noted) = (0, 0);
        }
        // What comes from now on is not of a batch that is being sealed.
        self.open += 1;
        self.sealed.clear();
        (self.opening, self.most) = (0, 0);
        (self.left, self.begun) = (0, 0);
    }

    fn take_out(
        &mut self,
        hub: &CacheHub,
        count: impl Fn(&Queue) -> usize,
        mut each: impl FnMut(Recalled),
    ) {
        self.refresh(hub);
        for size in &mut self.sizes {
            for _ in 0..count(&size.blocks) {
                let Some(KeptBlock { address, batch }) = size.blocks.take() else {
                    break;
                };
                let at = self.sealed.partition_point(|(last, _)| *last < batch);
                let epoch = self.sealed.get(at).map(|(_, epoch)| *epoch);
                each(Recalled {
                    address,
                    epoch,
                    is_reclaimable: batch < self.over,
                });
            }
        }
    }
}
