//! What a cache holds: a queue of blocks for each size, and what happened since
//! it was opened.
//!
//! Invariant: in each queue the blocks stand in the order in which they were
//! freed, so that the first is the first that the device is done with. Cost:
//! constant; a recall takes a step for each block.

mod batches;
mod figures;

use std::collections::VecDeque;

use crate::address::{Address, Bytes};
use crate::library::{LibraryId, LibraryUnits};
use crate::page_map::{CacheableSlot, PageMap, RecentSubpages, SLOT};
use crate::thread_cache::queue::{Batch, KeptBlock};
use crate::thread_cache::room::{Headroom, PackedRoom};
use crate::thread_cache::sizes::{Size, Sizes, number_of, size_of};
pub(super) use batches::BLOCK_PART;
pub(crate) use batches::WORTH_BYTES;
use batches::{Alone, MUCH, Turnover};

/// How many blocks pass from one thread to another at a time.
pub(super) const PARCEL: u64 = 64;

/// After each batch one looks at so many sizes for what others may have, or after each
/// second one at twice as many.
const LOOKED_AT: u64 = 32;

/// This part of its blocks leaves a cache that is full.
const SHED: usize = 4;

/// The same of a class of sizes that has little, where much may be kept.
const SHED_OF_LITTLE: usize = 16;

/// See the module. In this order: what each block needs is a pair of cache lines, but for
/// its queue.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Kept {
    /// Which opening of the arena's caches this is; zero while it is closed.
    opening: u64,
    /// What the words of the arena's live blocks have in common.
    owner: u64,
    room: PackedRoom,
    /// By how much the bytes that were asked for may rise.
    asked: u64,
    /// What may still be freed before the cache looks whether its open batch is
    /// full, or the cache is.
    left: PackedRoom,
    /// The open batch.
    open: Batch,
    /// The device is done with the batches before this one.
    over: Batch,
    /// None before the cache is opened first.
    recent: Option<RecentSubpages>,
    sizes: Sizes,
    /// How many slots more (or wrapped, fewer) each library has than was noted last.
    libraries: LibraryUnits,
    /// What `left` was when the batch was opened.
    begun: PackedRoom,
    /// The most bytes that may be kept; zero while the cache is closed.
    most: u64,
    /// Blocks handed out until it was asked for that.
    served: u64,
    /// Blocks freed and handed out until it was asked whether its thread uses it.
    used: u64,
    /// Batches with the epochs that cover them, the oldest first.
    sealed: VecDeque<(Batch, u64)>,
    /// The slots of the batch that was closed last.
    closed: u64,
    /// The bytes that the program held when that was noted last.
    held: u64,
    turnover: Turnover,
    /// The slots of blocks kept less those of `room`; wraps. So the hit path counts both
    /// at once.
    beside_room: u64,
    alone: Alone,
}

/// A block that was recalled.
pub(crate) struct Recalled {
    pub(crate) address: Address,
    /// The epoch that covers its free; none: its batch was open.
    pub(crate) epoch: Option<u64>,
    /// The device is done with it.
    pub(crate) is_reclaimable: bool,
}

impl Kept {
    /// Takes out a block of just the size of a request, if there is one that the
    /// device is done with, and room for it. The program has it then.
    #[inline(always)]
    pub(crate) fn take_exact(&mut self, request: Bytes, library: LibraryId) -> Option<Address> {
        self.take_first(number_of(request), request, library)
    }

    /// Takes out such a block that may be a little larger than the request.
    pub(crate) fn take_near(&mut self, request: Bytes, library: LibraryId) -> Option<Address> {
        let near = self.sizes.near(number_of(request), self.over)?;
        self.take_first(near, request, library)
    }

    /// Takes out the first block of a size, if the device is done with it.
    #[inline(always)]
    fn take_first(&mut self, number: usize, request: Bytes, library: LibraryId) -> Option<Address> {
        let size = self.sizes.get_mut(number)?;
        let block = *size.blocks.first()?;
        if !block.is_before(self.over) {
            return None;
        }
        let of_block = size.block;
        if !self.room.has(of_block) || self.asked < request.get() {
            return None;
        }
        // Counted afterwards, so that nothing that was read has to be remembered.
        block.slot.hand_out(request, library);
        size.blocks.pop();
        size.requested += request.get();
        self.room = self.room.without(of_block);
        self.asked -= request.get();
        self.libraries.add(library, of_block.slots());
        Some(block.address())
    }

    /// The same whatever room there is: the arena counts it. With it, its size.
    pub(crate) fn take_uncounted(
        &mut self,
        request: Bytes,
        library: LibraryId,
    ) -> Option<(Address, Bytes)> {
        let number = self.sizes.near(number_of(request), self.over)?;
        let block = self.sizes.get_mut(number)?.take()?;
        self.count(number, -1);
        block.slot.hand_out(request, library);
        Some((block.address(), Bytes::new(size_of(number))))
    }

    /// A size that serves a request, of which the thread frees far more blocks than it
    /// takes, and the device is done with one.
    fn given(&mut self, request: Bytes, ended: u64) -> Option<usize> {
        self.refresh(ended);
        let number = self.sizes.near(number_of(request), self.over)?;
        self.sizes.get_mut(number)?.is_given().then_some(number)
    }

    /// Whether this batch is one after which `has_for_others` is asked: a look at many sizes
    /// takes as long as a hundred frees.
    pub(super) fn is_worth_a_look(&self) -> bool {
        (self.open.number()).is_multiple_of(1 + self.sizes.used().len() as u64 / LOOKED_AT)
    }

    /// Whether there is one for any request, now or when the device is done.
    pub(super) fn has_for_others(&self) -> bool {
        self.sizes.used().any(|(_, size)| size.is_given())
    }

    /// Whether there is one.
    pub(crate) fn gives(&mut self, request: Bytes, ended: u64) -> bool {
        self.given(request, ended).is_some()
    }

    /// Passes blocks of that size on to another thread's cache; whether there are any.
    pub(crate) fn pass_on(&mut self, request: Bytes, ended: u64, to: &mut Kept) -> bool {
        let Some(number) = self.given(request, ended) else {
            return false;
        };
        let over = self.over;
        let fits = match to.keeps(number) {
            true => to.unused_slots() / (number as u64 + 1),
            false => 0,
        };
        let mut passed = 0;
        if let Some(size) = self.sizes.get_mut(number) {
            for _ in 0..PARCEL.min(fits) {
                let next = size.is_reclaimable(over).then(|| size.take()).flatten();
                let Some(block) = next else {
                    break;
                };
                to.take_over(number, block);
                passed += 1;
            }
        }
        self.count(number, -passed);
        // Its fences had the device be done with them.
        self.turnover.hits += passed;
        to.turnover.hits -= passed;
        true
    }

    fn take_over(&mut self, number: usize, block: KeptBlock) {
        let block = block.of_batch(Batch::DONE);
        self.sizes.grow(number, block);
        if let Some(size) = self.sizes.get_mut(number) {
            size.put_first(block);
            self.count(number, 1);
        }
    }

    /// How much room is missing for such a block, if there is one.
    pub(crate) fn lacks(&self, request: Bytes) -> Option<Headroom> {
        let number = self.sizes.near(number_of(request), self.over)?;
        let has = self.room();
        Some(Headroom {
            blocks: u64::from(has.blocks == 0),
            bytes: size_of(number).saturating_sub(has.bytes),
            asked: request.get().saturating_sub(has.asked),
        })
    }

    /// Where the block is told of that starts at an address, if that was looked at
    /// lately.
    #[inline(always)]
    pub(crate) fn recent(&self, address: Address) -> Option<CacheableSlot> {
        self.recent.as_ref()?.cacheable(address)
    }

    /// The same wherever it is.
    pub(crate) fn look(&mut self, map: &PageMap, address: Address) -> Option<CacheableSlot> {
        self.recent.as_mut()?.look(map, address)
    }

    /// Puts in the arena's live block that is told of there and that the program
    /// frees, if there is a place for it; none where not, as in a closed cache.
    #[inline(always)]
    pub(crate) fn put(&mut self, slot: CacheableSlot, address: Address) -> Option<()> {
        let word = slot.word_for_keep();
        if !word.is_live_of(self.owner) {
            return None;
        }
        let size = self.sizes.get_mut(word.slots_less_one())?;
        let of_block = size.block;
        if !self.left.has(of_block) {
            return None;
        }
        let end = size.blocks.end()?;
        // What was exchanged is what was read.
        let word = slot.keep(word)?;
        self.left = self.left.without(of_block);
        self.room = self.room.with(of_block);
        self.asked += word.request().get();
        self.libraries.sub(word.library(), of_block.slots());
        end.push(KeptBlock::new(slot, address, self.open));
        Some(())
    }

    /// Whether blocks of a size are small enough beside what may be kept.
    fn keeps(&self, number: usize) -> bool {
        size_of(number) <= self.most / BLOCK_PART
    }

    /// Whether such a block is.
    pub(crate) fn keeps_at(&self, slot: CacheableSlot) -> bool {
        self.keeps(slot.word().slots_less_one())
    }

    /// Makes that place.
    pub(crate) fn prepare(&mut self, slot: CacheableSlot, address: Address) {
        let filler = KeptBlock::new(slot, address, self.open);
        self.sizes.grow(slot.word().slots_less_one(), filler);
    }

    #[inline]
    pub(crate) fn opening(&self) -> u64 {
        self.opening
    }

    /// Whether little is kept here, since memory is scarce.
    pub(crate) fn is_sparing(&self) -> bool {
        self.sizes.is_exact
    }

    /// What may still be kept, in slots.
    fn unused_slots(&self) -> u64 {
        if self.room.is_too_much() {
            return 0;
        }
        self.most.saturating_sub(self.bytes()) / SLOT.get()
    }

    /// Opens it for a thread, for blocks whose words have this in common while they are
    /// live.
    pub(crate) fn open(&mut self, opening: u64, owner: u64, most: Bytes, is_sparing: bool) {
        (self.opening, self.owner) = (opening, owner);
        let first = Batch::DONE.next();
        (self.open, self.over) = (self.open.max(first), self.over.max(first));
        self.recent = self.recent.take().or_else(RecentSubpages::new);
        (self.most, self.closed) = (most.get(), 0);
        self.alone = Alone::new(self.room);
        self.turnover.begin(is_sparing && self.is_sparing());
        let most = most.get() / BLOCK_PART / SLOT.get();
        self.sizes.is_exact = is_sparing;
        self.sizes
            .end_at(usize::try_from(most).unwrap_or(usize::MAX));
        self.begun = self.left;
        self.begin_batch();
    }

    /// Has what the other one has learned of its use, and the other way round; both are
    /// closed.
    pub(crate) fn exchange_learned(&mut self, other: &mut Kept) {
        std::mem::swap(&mut self.turnover, &mut other.turnover);
        std::mem::swap(&mut self.sizes.is_exact, &mut other.sizes.is_exact);
    }

    /// Takes out a part of the blocks of each size, and where much may be kept a smaller one
    /// of the classes that have little: their blocks leave hardly any room.
    pub(crate) fn shed(&mut self, ended: u64, each: impl FnMut(Recalled)) {
        let has_little = self.sizes.have_little();
        let keeps_little = self.is_sparing() || self.most < MUCH;
        // One at the least goes. What one size has too few blocks for is taken of the next.
        let (mut blocks, mut of_little) = (SHED - 1, 0);
        let part = |size: &Size| {
            let count = size.blocks.len();
            if keeps_little {
                count.div_ceil(SHED)
            } else if has_little[size.class()] {
                one_in(SHED_OF_LITTLE, &mut of_little, count)
            } else {
                one_in(SHED, &mut blocks, count)
            }
        };
        self.take_out(ended, part, each);
        self.begin_batch();
    }

    pub(crate) fn recall(&mut self, ended: u64, each: impl FnMut(Recalled)) {
        self.end_turnover();
        self.take_out(ended, |size| size.blocks.len(), each);
        self.sizes.change_used(Size::restart);
        self.sealed.clear();
        (self.opening, self.most, self.served, self.used) = (0, 0, 0, 0);
        (self.left, self.begun) = (PackedRoom::default(), PackedRoom::default());
    }

    fn take_out(
        &mut self,
        ended: u64,
        mut count: impl FnMut(&Size) -> usize,
        mut each: impl FnMut(Recalled),
    ) {
        self.refresh(ended);
        let (sealed, over, beside_room) = (&self.sealed, self.over, &mut self.beside_room);
        self.sizes.change_used(|size| {
            for _ in 0..count(size) {
                let Some(block) = size.take() else {
                    break;
                };
                let batch = block.batch();
                *beside_room = beside_room.wrapping_sub(size.block.slots());
                let at = sealed.partition_point(|(last, _)| *last < batch);
                let epoch = sealed.get(at).map(|(_, epoch)| *epoch);
                each(Recalled {
                    address: block.address(),
                    epoch,
                    is_reclaimable: batch < over,
                });
            }
        });
    }
}

/// How many of `count` more go, where one in `part` does and `rest` are left over.
fn one_in(part: usize, rest: &mut usize, count: usize) -> usize {
    let all = *rest + count;
    *rest = all % part;
    all / part
}
