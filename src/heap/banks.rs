//! The free blocks of small chunks, by bank.
//!
//! The page map tells of eight slots in one cache line, and a thread writes there with
//! each block that it frees to its cache or takes from it. Where the small blocks of two
//! threads lie among each other, each of them takes such lines from the other's processor
//! all the time (*false sharing*). So threads and slabs are divided among *banks*: a
//! thread's blocks are cut from what its own bank has, and only where that has nothing
//! from what others have, whatever fits best. Nothing is kept for a bank: what a request
//! gets is only looked for in another order. `arena::banks` makes banks larger.
//!
//! Owns a free index for each bank. Invariant: the blocks of a chunk are all of one bank.
//! Cost: where the own bank has what fits, that of its free index; else that of each.

use crate::address::Bytes;
use crate::driver::PAGE;
use crate::heap::block::{BlockId, Blocks};
use crate::heap::fit::Search;
use crate::heap::free_index::FreeIndex;

/// A part of the small chunks, and of the threads.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Bank {
    First,
    Second,
    Third,
    Fourth,
}

const BANKS: [Bank; 4] = [Bank::First, Bank::Second, Bank::Third, Bank::Fourth];

impl Bank {
    /// The bank of the threads in a seat of the caches.
    pub(crate) fn of_seat(seat: u8) -> Bank {
        BANKS[usize::from(seat) % BANKS.len()]
    }
}

/// What is free in a bank.
struct Free {
    index: FreeIndex,
    bytes: Bytes,
}

/// See the module.
pub(super) struct Banks([Free; BANKS.len()]);

impl Banks {
    pub(super) fn new() -> Banks {
        Banks(BANKS.map(|_| Free {
            index: FreeIndex::new(),
            bytes: Bytes::ZERO,
        }))
    }

    /// Enters a block.
    pub(super) fn insert(&mut self, blocks: &mut Blocks, id: BlockId) {
        let (size, free) = self.of(blocks, id);
        free.bytes = free.bytes.saturating_add(size);
        free.index.insert(blocks, id);
    }

    /// Takes a block out.
    pub(super) fn remove(&mut self, blocks: &mut Blocks, id: BlockId) {
        let (size, free) = self.of(blocks, id);
        free.bytes = free.bytes.saturating_sub(size);
        free.index.remove(blocks, id);
    }

    fn of(&mut self, blocks: &Blocks, id: BlockId) -> (Bytes, &mut Free) {
        let block = blocks.get(id);
        (block.size, &mut self.0[block.bank as usize])
    }

    /// A block of at least this size for a thread of a bank; for one of none, the best
    /// that any has.
    #[inline(always)]
    pub(super) fn find(
        &self,
        blocks: &Blocks,
        bank: Option<Bank>,
        size: Bytes,
        search: Search,
    ) -> Option<BlockId> {
        let own = bank.and_then(|bank| self.0[bank as usize].index.search(blocks, size, search));
        own.or_else(|| self.find_in_all(blocks, size, search))
    }

    #[inline(never)]
    fn find_in_all(&self, blocks: &Blocks, size: Bytes, search: Search) -> Option<BlockId> {
        let found = (self.0.iter()).filter_map(|free| free.index.search(blocks, size, search));
        found.min_by_key(|&id| blocks.get(id).size)
    }

    /// A chunk that is whole.
    pub(super) fn whole(&self, blocks: &Blocks) -> Option<BlockId> {
        let found = self.find_in_all(blocks, PAGE, Search::Quick)?;
        (!blocks.get(found).is_part()).then_some(found)
    }

    /// Bytes of a bank.
    pub(super) fn bytes(&self, bank: Bank) -> Bytes {
        self.0[bank as usize].bytes
    }

    /// Blocks of all banks.
    pub(super) fn count(&self) -> u64 {
        self.0.iter().map(|free| free.index.count()).sum()
    }

    /// The size of the largest block. Looks at the whole of each index's highest list.
    pub(super) fn largest(&self, blocks: &Blocks) -> Bytes {
        let largest = self.0.iter().map(|free| free.index.largest(blocks));
        largest.max().unwrap_or(Bytes::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Address;
    use crate::heap::block::{ChunkId, State};

    #[test]
    fn the_own_bank_comes_first() {
        let (mut blocks, mut banks) = (Blocks::new(), Banks::new());
        let mut add = |seat, size| {
            let address = Address::new(1 << 30);
            let id = blocks.insert(address, size, ChunkId(0), State::Free);
            blocks.get_mut(id).bank = Bank::of_seat(seat);
            banks.insert(&mut blocks, id);
            id
        };
        let [of_first, of_second, large] = [
            add(0, Bytes::kib(4)),
            add(1, Bytes::kib(8)),
            add(2, Bytes::mib(1)),
        ];
        let find = |seat: Option<u8>, size| {
            let bank = seat.map(Bank::of_seat);
            banks.find(&blocks, bank, size, Search::Quick)
        };
        assert_eq!(find(Some(0), Bytes::kib(4)), Some(of_first));
        assert_eq!(find(Some(1), Bytes::kib(4)), Some(of_second));
        assert_eq!(find(Some(0), Bytes::kib(5)), Some(of_second));
        assert_eq!(find(Some(3), Bytes::kib(4)), Some(of_first));
        assert_eq!(find(None, Bytes::kib(4)), Some(of_first));
        assert_eq!(find(None, Bytes::kib(9)), Some(large));
        assert_eq!(find(None, Bytes::mib(2)), None);
    }
}
