//! The free blocks of small chunks, by bank.
//!
//! The page map tells of eight slots in one cache line, and a thread writes there with
//! each block that it frees to its cache or takes from it. Where the small blocks of two
//! threads lie among each other, each of them takes such lines from the other's processor
//! all the time (*false sharing*). So the threads are divided among *banks*, and small
//! chunks are too, when they are cut first: a thread's small blocks are cut from chunks of
//! its own bank. Blocks go from hand to hand all the same, and chunks change banks when
//! they are whole.
//!
//! What is free in a bank is not lost to the others: of more than `APART` they are served
//! too, and for a request that is of no bank, as all are where memory is scarce, there are
//! no banks.
//!
//! Owns a free index for each bank. Invariant: the blocks of a chunk are all of one bank.
//! Cost: where the own bank has what fits, that of its free index; else that of each.

use crate::address::Bytes;
use crate::driver::PAGE;
use crate::heap::block::{BlockId, Blocks};
use crate::heap::fit::Search;
use crate::heap::free_index::FreeIndex;

/// What may be free in each of the other banks when a bank takes another chunk: twice what
/// a cache gives back at a time when it is full. With half of that, two threads with a bank
/// each shared one line in ten.
const APART: Bytes = Bytes::mib(8);

/// A part of the small chunks, and of the threads.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Bank {
    First,
    Second,
    Third,
    Fourth,
}

/// More threads than that take small blocks at a time in few programs; of two that do, one
/// in four shares the other's bank.
const BANKS: [Bank; 4] = [Bank::First, Bank::Second, Bank::Third, Bank::Fourth];

impl Bank {
    /// The bank of the thread with this number.
    pub(crate) fn of_thread(number: u32) -> Bank {
        BANKS[number as usize % BANKS.len()]
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
        own.or_else(|| self.find_in_others(blocks, bank, size, search))
    }

    /// The same of what other banks have; chunks that are whole are nobody's.
    #[inline(never)]
    fn find_in_others(
        &self,
        blocks: &Blocks,
        bank: Option<Bank>,
        size: Bytes,
        search: Search,
    ) -> Option<BlockId> {
        let others = BANKS
            .iter()
            .zip(&self.0)
            .filter(|(other, _)| bank != Some(**other));
        let found = others.filter_map(|(_, free)| {
            let is_apart = bank.is_some() && free.bytes <= APART;
            let least = if is_apart { size.max(PAGE) } else { size };
            free.index.search(blocks, least, search)
        });
        found.min_by_key(|&id| blocks.get(id).size)
    }

    /// Whether other banks have a free block.
    pub(super) fn have_others(&self, bank: Bank) -> bool {
        let mut all = BANKS.iter().zip(&self.0);
        all.any(|(other, free)| *other != bank && free.index.count() > 0)
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

    struct Store {
        blocks: Blocks,
        banks: Banks,
    }

    impl Store {
        fn new() -> Store {
            Store {
                blocks: Blocks::new(),
                banks: Banks::new(),
            }
        }

        fn add(&mut self, bank: u32, size: Bytes) -> BlockId {
            let address = Address::new(1 << 30);
            let id = (self.blocks).insert(address, size, ChunkId(0), State::Free);
            self.blocks.get_mut(id).bank = Bank::of_thread(bank);
            self.banks.insert(&mut self.blocks, id);
            id
        }

        fn find(&self, bank: Option<u32>, size: Bytes) -> Option<BlockId> {
            let bank = bank.map(Bank::of_thread);
            (self.banks).find(&self.blocks, bank, size, Search::Quick)
        }
    }

    #[test]
    fn a_thread_is_served_by_its_own_bank() {
        let mut store = Store::new();
        let of_others = store.add(0, Bytes::kib(4));
        assert_eq!(store.find(Some(1), Bytes::kib(4)), None);
        let own = store.add(1, Bytes::kib(8));
        assert_eq!(store.find(Some(1), Bytes::kib(4)), Some(own));
        assert_eq!(store.find(Some(5), Bytes::kib(4)), Some(own));
        assert_eq!(store.find(Some(0), Bytes::kib(4)), Some(of_others));
        assert_eq!(store.find(None, Bytes::kib(4)), Some(of_others));
        assert_eq!(store.find(None, Bytes::kib(5)), Some(own));
    }

    #[test]
    fn what_others_have_serves_where_it_is_much_or_a_whole_chunk() {
        let mut store = Store::new();
        for _ in 0..8 {
            store.add(2, Bytes::mib(1));
        }
        store.add(3, Bytes::kib(8));
        assert_eq!(store.find(Some(1), Bytes::kib(4)), None, "{APART}");
        let more = store.add(2, Bytes::kib(64));
        assert_eq!(store.find(Some(1), Bytes::kib(4)), Some(more));
        let mut store = Store::new();
        let whole = store.add(0, PAGE);
        store.add(0, Bytes::kib(64));
        assert_eq!(store.find(Some(1), Bytes::kib(4)), Some(whole));
    }
}
