//! A queue of kept blocks of one size.
//!
//! A ring whose length is a power of two. Cost: constant, but that a full ring
//! is copied to one of twice its length.

use crate::address::Address;

/// The length of a ring when the first block comes.
const FIRST: usize = 16;

/// A block, and the batch in which it was freed.
#[derive(Copy, Clone)]
pub(super) struct KeptBlock {
    pub(super) address: Address,
    pub(super) batch: u64,
}

/// See the module.
#[derive(Default)]
pub(super) struct Queue {
    ring: Box<[KeptBlock]>,
    /// How many blocks came out and went in; both wrap.
    out: usize,
    put: usize,
}

impl Queue {
    /// The oldest block.
    #[inline]
    pub(super) fn first(&self) -> Option<&KeptBlock> {
        if self.out == self.put {
            return None;
        }
        self.ring.get(self.out & self.ring.len().wrapping_sub(1))
    }

    /// How many blocks there are.
    pub(super) fn len(&self) -> usize {
        self.put.wrapping_sub(self.out)
    }

    /// Takes out the block that `first` found.
    #[inline]
    pub(super) fn pop(&mut self) {
        self.out = self.out.wrapping_add(1);
    }

    /// Puts in a block.
    #[inline]
    pub(super) fn push(&mut self, block: KeptBlock) {
        if self.put.wrapping_sub(self.out) == self.ring.len() {
            self.grow(block);
        }
        let at = self.put & self.ring.len().wrapping_sub(1);
        if let Some(place) = self.ring.get_mut(at) {
            *place = block;
            self.put = self.put.wrapping_add(1);
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, filler: KeptBlock) {
        let blocks: Vec<KeptBlock> = std::iter::from_fn(|| self.take()).collect();
        let mut ring = vec![filler; (2 * blocks.len()).max(FIRST)];
        ring[..blocks.len()].copy_from_slice(&blocks);
        (self.out, self.put) = (0, blocks.len());
        self.ring = ring.into_boxed_slice();
    }

    /// Takes out the oldest block.
    pub(super) fn take(&mut self) -> Option<KeptBlock> {
        let first = self.first().copied();
        if first.is_some() {
            self.pop();
        }
        first
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn what_goes_in_first_comes_out_first(puts in prop::collection::vec(any::<bool>(), 0..200)) {
            let (mut queue, mut model) = (Queue::default(), VecDeque::new());
            for (batch, put) in (0..).zip(puts) {
                if put {
                    queue.push(KeptBlock { address: Address::new(batch * 512), batch });
                    model.push_back(batch);
                } else {
                    prop_assert_eq!(queue.take().map(|block| block.batch), model.pop_front());
                }
                prop_assert_eq!(queue.first().map(|block| block.batch), model.front().copied());
            }
        }
    }
}
