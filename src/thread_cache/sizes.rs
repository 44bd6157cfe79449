//! The queues of a cache, one for each size of block.
//!
//! Invariant: what a queue holds was handed out last for a request of its own size
//! class. Cost: 8 KiB, and 16 bytes for each block that a queue once held at a time.

use crate::address::Bytes;
use crate::page_map::{MOST_CACHEABLE, SLOT};
use crate::thread_cache::kept::PARCEL;
use crate::thread_cache::queue::{Batch, KeptBlock, Queue};
use crate::thread_cache::room::PackedRoom;

/// Sizes of blocks, each with a queue.
#[allow(clippy::cast_possible_truncation, reason = "there are 128")]
const SIZES: usize = (MOST_CACHEABLE.get() / SLOT.get()) as usize;

/// A block may be larger than the request by this part of it.
const NEAR: usize = 8;

/// Sizes up to each power of two are a class.
const CLASSES: usize = SIZES.ilog2() as usize + 1;

/// A class has little that has less than this part of all bytes.
const LITTLE: u64 = 16;

/// The blocks of one size. One cache line.
#[repr(align(64))]
pub(super) struct Size {
    pub(super) blocks: Queue,
    /// The room that one of them is.
    pub(super) block: PackedRoom,
    /// Bytes that were asked for since the cache was opened.
    pub(super) requested: u64,
    /// Blocks that came out of the queue other than for a request that is counted
    /// here, less those that came in other than by a free; wraps.
    uncounted: u64,
    /// Frees less allocations, when that was noted last.
    noted: u64,
}

/// See the module.
#[repr(C)]
pub(super) struct Sizes {
    /// There also in a closed cache, so that nobody has to ask whether it is.
    all: Box<[Size; SIZES]>,
    /// Those that ever had a block, in their order: so what a recall does hangs on what is
    /// there alone.
    used: Vec<usize>,
    /// A request gets a block of its own size alone: memory is scarce.
    pub(super) is_exact: bool,
}

/// The number of the size for requests of so many bytes.
#[inline]
pub(super) fn number_of(request: Bytes) -> usize {
    usize::try_from(request.get().wrapping_sub(1) / SLOT.get()).unwrap_or(usize::MAX)
}

/// The bytes of a block of this size.
#[inline]
pub(super) fn size_of(number: usize) -> u64 {
    (number as u64 + 1) * SLOT.get()
}

impl Size {
    fn new(number: usize) -> Size {
        Size {
            blocks: Queue::default(),
            block: PackedRoom::of(1, number as u64 + 1),
            requested: 0,
            uncounted: 0,
            noted: 0,
        }
    }

    pub(super) fn frees(&self) -> u64 {
        self.blocks.put()
    }

    pub(super) fn allocations(&self) -> u64 {
        self.blocks.out().wrapping_sub(self.uncounted)
    }

    /// Whether the thread frees far more blocks than it takes.
    pub(super) fn is_given(&self) -> bool {
        self.frees() >= 2 * self.allocations() + PARCEL
    }

    /// The number of its class.
    pub(super) fn class(&self) -> usize {
        self.block.slots().next_power_of_two().ilog2() as usize
    }

    /// Whether the device is done with its first block, if batches below this
    /// number are over.
    #[inline]
    pub(super) fn is_reclaimable(&self, over: Batch) -> bool {
        let first = self.blocks.first();
        first.is_some_and(|first| first.is_before(over))
    }

    /// Blocks that came back and were not handed out again; wraps.
    fn fewer(&self) -> u64 {
        self.frees().wrapping_sub(self.allocations())
    }

    /// How many blocks fewer (or wrapped, more) the program has than when this was
    /// noted last.
    pub(super) fn fewer_than_noted(&self) -> u64 {
        self.fewer().wrapping_sub(self.noted)
    }

    pub(super) fn note(&mut self) {
        self.noted = self.fewer();
    }

    /// Takes out the oldest block, but for a request that is counted here.
    pub(super) fn take(&mut self) -> Option<KeptBlock> {
        let first = self.blocks.take()?;
        self.uncounted = self.uncounted.wrapping_add(1);
        Some(first)
    }

    /// Puts in a block before all others, that was not freed here.
    pub(super) fn put_first(&mut self, block: KeptBlock) {
        self.blocks.push_first(block);
        self.uncounted = self.uncounted.wrapping_sub(1);
    }

    /// Counts from zero again; it holds nothing.
    pub(super) fn restart(&mut self) {
        self.blocks.restart();
        (self.requested, self.uncounted, self.noted) = (0, 0, 0);
    }
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes {
            all: Box::new(std::array::from_fn(Size::new)),
            used: Vec::new(),
            is_exact: false,
        }
    }
}

impl Sizes {
    #[inline]
    pub(super) fn get_mut(&mut self, number: usize) -> Option<&mut Size> {
        self.all.get_mut(number)
    }

    /// The sizes of which there ever was a block, with their numbers.
    pub(super) fn used(&self) -> impl ExactSizeIterator<Item = (usize, &Size)> {
        self.used.iter().map(|&number| (number, &self.all[number]))
    }

    /// Bytes of all blocks, for a look that may take long.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = |(number, size): (usize, &Size)| size_of(number) * size.blocks.len() as u64;
        self.used().map(bytes).sum()
    }

    /// Which classes have less than a small part of all bytes.
    pub(super) fn have_little(&self) -> [bool; CLASSES] {
        let mut bytes = [0; CLASSES];
        for (number, size) in self.used() {
            bytes[size.class()] += size_of(number) * size.blocks.len() as u64;
        }
        let little = bytes.iter().sum::<u64>() / LITTLE;
        bytes.map(|bytes| bytes < little)
    }

    /// Changes those sizes, each by `change`.
    pub(super) fn change_used(&mut self, mut change: impl FnMut(&mut Size)) {
        (self.used.iter()).for_each(|&number| change(&mut self.all[number]));
    }

    /// Makes room in a queue that is full; `filler` is any block.
    pub(super) fn grow(&mut self, number: usize, filler: KeptBlock) {
        if self.all[number].blocks.grow(filler) {
            let at = self.used.partition_point(|&other| other < number);
            self.used.insert(at, number);
        }
    }

    /// Blocks of the sizes from this number on find no place; there are none.
    pub(super) fn end_at(&mut self, end: usize) {
        self.used.retain(|&number| {
            let stays = number < end;
            if !stays {
                self.all[number] = Size::new(number);
            }
            stays
        });
    }

    /// The number of this size, or one of the next ones of the same class, that has
    /// a reclaimable block. So what happens to a block counts in the class of its
    /// request.
    pub(super) fn near(&self, number: usize, over: Batch) -> Option<usize> {
        let last = if self.is_exact {
            number
        } else {
            (number + (number + 1) / NEAR).min((number + 1).next_power_of_two() - 1)
        };
        let sizes = self.all.get(number..=last)?;
        let at = sizes.iter().position(|size| size.is_reclaimable(over))?;
        Some(number + at)
    }
}
