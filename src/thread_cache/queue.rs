//! A queue of kept blocks of one size.
//!
//! A ring whose length is a power of two. Cost: constant, but that a full ring
//! is copied to one of twice its length.

use crate::address::Address;
use crate::page_map::{ADDRESS_BITS, CacheableSlot, SLOT};

/// The length of a ring when the first block comes.
const FIRST: usize = 16;

/// A batch: its number, in the bits of a word that the number of a slot leaves.
#[derive(Copy, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Batch(u64);

const SLOT_BITS: u32 = ADDRESS_BITS - SLOT.get().ilog2();

impl Batch {
    /// The first one: the device is done with its blocks, wherever they come from.
    pub(super) const DONE: Batch = Batch::of(0);

    pub(super) const LAST: Batch = Batch(!(Batch::of(1).0 - 1));

    /// The one with this number, which is no higher than that of the last one.
    pub(super) const fn of(number: u64) -> Batch {
        Batch(number << SLOT_BITS)
    }

    pub(super) const fn number(self) -> u64 {
        self.0 >> SLOT_BITS
    }

    pub(super) const fn next(self) -> Batch {
        Batch(self.0 + Batch::of(1).0)
    }

    /// The one so many before this one, or the first.
    #[cfg(all(test, not(loom)))]
    pub(super) fn before(self, count: u64) -> Batch {
        Batch(self.0.saturating_sub(Batch::of(count).0))
    }
}

/// A block: where it is told of, and in one word the batch in which it was freed and
/// the number of the slot. Small, since a thread goes round in all that it keeps of a
/// size.
#[derive(Copy, Clone)]
pub(super) struct KeptBlock {
    pub(super) slot: CacheableSlot,
    place: u64,
}

impl KeptBlock {
    #[inline]
    pub(super) fn new(slot: CacheableSlot, address: Address, batch: Batch) -> KeptBlock {
        let place = batch.0 | (address.get() / SLOT.get());
        KeptBlock { slot, place }
    }

    #[inline]
    pub(super) fn address(self) -> Address {
        let number = self.place << (u64::BITS - SLOT_BITS) >> (u64::BITS - SLOT_BITS);
        Address::new(number * SLOT.get())
    }

    #[inline]
    pub(super) fn batch(self) -> Batch {
        Batch(self.place & Batch::LAST.0)
    }

    /// Whether it is of a batch before this one.
    #[inline]
    pub(super) fn is_before(self, batch: Batch) -> bool {
        self.place < batch.0
    }

    /// The same block of another batch.
    pub(super) fn of_batch(self, batch: Batch) -> KeptBlock {
        KeptBlock::new(self.slot, self.address(), batch)
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Queue {
    ring: Box<[KeptBlock]>,
    /// How many blocks came out and went in since the queue was new.
    out: usize,
    put: usize,
}

/// Where the next block goes.
pub(super) struct End<'a> {
    place: &'a mut KeptBlock,
    put: &'a mut usize,
}

impl End<'_> {
    /// Puts it there.
    #[inline]
    pub(super) fn push(self, block: KeptBlock) {
        *self.place = block;
        *self.put += 1;
    }
}

impl Queue {
    /// The oldest block.
    #[inline]
    pub(super) fn first(&self) -> Option<&KeptBlock> {
        if self.out == self.put {
            return None;
        }
        self.ring.get(self.place(self.out))
    }

    /// Where the block with this number is.
    #[inline]
    fn place(&self, number: usize) -> usize {
        number & self.ring.len().wrapping_sub(1)
    }

    /// How many blocks there are.
    pub(super) fn len(&self) -> usize {
        self.put.wrapping_sub(self.out)
    }

    /// How many ever went in.
    pub(super) fn put(&self) -> u64 {
        self.put as u64
    }

    /// How many came out, less those that were put first; wraps.
    pub(super) fn out(&self) -> u64 {
        self.out as u64
    }

    /// Takes out the block that `first` found.
    #[inline]
    pub(super) fn pop(&mut self) {
        self.out = self.out.wrapping_add(1);
    }

    /// The place for another block; none where that needs a longer ring.
    #[inline]
    pub(super) fn end(&mut self) -> Option<End<'_>> {
        if self.len() >= self.ring.len() {
            return None;
        }
        let at = self.place(self.put);
        let place = self.ring.get_mut(at)?;
        let put = &mut self.put;
        Some(End { place, put })
    }

    /// Puts in a block before all others; the queue is not full.
    pub(super) fn push_first(&mut self, block: KeptBlock) {
        let before = self.out.wrapping_sub(1);
        let at = self.place(before);
        if let Some(place) = self.ring.get_mut(at) {
            *place = block;
            self.out = before;
        }
    }

    /// Makes room for another block, if there is none, by a ring of twice the length;
    /// whether it is the first one.
    #[cold]
    #[inline(never)]
    pub(super) fn grow(&mut self, filler: KeptBlock) -> bool {
        if self.len() < self.ring.len() {
            return false;
        }
        let is_first = self.ring.is_empty();
        let mut ring = vec![filler; (2 * self.ring.len()).max(FIRST)].into_boxed_slice();
        let mask = ring.len() - 1;
        for ahead in 0..self.len() {
            let number = self.out.wrapping_add(ahead);
            ring[number & mask] = self.ring[self.place(number)];
        }
        self.ring = ring;
        is_first
    }

    /// Takes out the oldest block.
    pub(super) fn take(&mut self) -> Option<KeptBlock> {
        let first = self.first().copied();
        if first.is_some() {
            self.pop();
        }
        first
    }

    /// Changes the batch of each block by `batch`.
    pub(super) fn change_batches(&mut self, batch: impl Fn(Batch) -> Batch) {
        for number in 0..self.len() {
            let at = self.place(self.out.wrapping_add(number));
            let block = &mut self.ring[at];
            *block = block.of_batch(batch(block.batch()));
        }
    }

    /// Counts from zero again; nothing is in it.
    pub(super) fn restart(&mut self) {
        (self.out, self.put) = (0, 0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn what_goes_in_first_comes_out_first(steps in prop::collection::vec(0..4, 0..200)) {
            let slot = CacheableSlot::of_test();
            let (mut queue, mut model, mut is_new) = (Queue::default(), VecDeque::new(), true);
            for (batch, step) in (0..).zip(steps) {
                if step > 0 {
                    let address = Address::new(batch * 512);
                    let block = KeptBlock::new(slot, address, Batch::of(batch));
                    prop_assert_eq!(queue.grow(block), std::mem::take(&mut is_new));
                    if step == 1 {
                        queue.push_first(block);
                        model.push_front(Batch::of(batch));
                    } else {
                        queue.end().unwrap().push(block);
                        model.push_back(Batch::of(batch));
                    }
                } else {
                    prop_assert_eq!(queue.take().map(KeptBlock::batch), model.pop_front());
                }
                prop_assert_eq!(queue.first().map(|block| block.batch()), model.front().copied());
                prop_assert_eq!(queue.len(), model.len());
                prop_assert_eq!(queue.put().wrapping_sub(queue.out()), model.len() as u64);
            }
        }
    }
}
