//! Blocks: pieces of chunks, and direct allocations, as records in one table.
//!
//! Owns the records and the order of the blocks in their chunk. Invariant: the
//! blocks of a chunk tile it without gap or overlap. Cost: 48 bytes a block, and
//! every operation takes constant time. Records of vanished blocks are reused;
//! there are never more than there were blocks at a time.

use crate::address::{Address, Bytes};
use crate::heap::Span;
use crate::heap::banks::Bank;
use crate::heap::table::Table;
use crate::library::LibraryId;

/// A block's number in its arena.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct BlockId(pub(crate) u32);

impl BlockId {
    /// No block: the end of a list.
    pub(crate) const NONE: BlockId = BlockId(u32::MAX);

    pub(crate) fn some(self) -> Option<BlockId> {
        (self != BlockId::NONE).then_some(self)
    }
}

/// A chunk's number in its arena.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ChunkId(pub(crate) u32);

impl ChunkId {
    /// The block is a driver allocation of its own.
    pub(crate) const DIRECT: ChunkId = ChunkId(u32::MAX);
}

/// What a block is at the moment.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// In the free index.
    Free,
    /// The program holds it.
    Live,
    /// The program freed it, the device may still use it.
    Limbo,
    /// Its chunk went back to the driver while it was in limbo; the record
    /// waits for its epoch to end.
    Gone,
    /// Addresses of a range without memory.
    Hole,
    /// A part of a range that is a slab: a chunk of its own.
    Slab,
    /// A part of a range that the driver is called for: no other thread touches it.
    Claimed,
    /// The record is of no block.
    Vacant,
}

/// One block.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Block {
    pub(crate) address: Address,
    pub(crate) size: Bytes,
    /// What the program asked for; of a free block, zero.
    pub(crate) requested: Bytes,
    pub(crate) chunk: ChunkId,
    /// Neighbours in the chunk, by address.
    pub(crate) previous: BlockId,
    pub(crate) next: BlockId,
    /// Neighbours in the free index's list; of a vacant record, `list_next`
    /// is the next vacant one.
    pub(crate) list_previous: BlockId,
    pub(crate) list_next: BlockId,
    pub(crate) state: State,
    /// Which library of the program asked for it; of a free block nothing.
    pub(crate) library: LibraryId,
    /// Of a block in limbo: it was freed from another context than the arena's.
    pub(crate) elsewhere: bool,
    /// The bank of its chunk.
    pub(crate) bank: Bank,
}

impl Block {
    /// The record of no block.
    const VACANT: Block = Block {
        address: Address::new(0),
        size: Bytes::ZERO,
        requested: Bytes::ZERO,
        chunk: ChunkId::DIRECT,
        previous: BlockId::NONE,
        next: BlockId::NONE,
        list_previous: BlockId::NONE,
        list_next: BlockId::NONE,
        state: State::Vacant,
        library: LibraryId::UNKNOWN,
        elsewhere: false,
        bank: Bank::First,
    };

    /// Whether it shares its chunk with others.
    pub(crate) fn is_part(&self) -> bool {
        self.previous != BlockId::NONE || self.next != BlockId::NONE
    }

    /// Whether the work of another context may still use it, freed as it is, and
    /// the driver's free in the arena's own would not wait for that.
    pub(crate) fn is_used_elsewhere(&self) -> bool {
        self.state == State::Limbo && self.elsewhere
    }

    /// Where a direct allocation lies.
    pub(crate) fn span(&self) -> Span {
        Span {
            address: self.address,
            size: self.size,
        }
    }
}

/// All blocks of an arena.
pub(crate) struct Blocks {
    records: Table<Block>,
    vacant: BlockId,
    used: u32,
}

impl Blocks {
    pub(crate) fn new() -> Blocks {
        Blocks {
            records: Table::new(Block::VACANT),
            vacant: BlockId::NONE,
            used: 0,
        }
    }

    /// A new block without neighbours.
    pub(crate) fn insert(
        &mut self,
        address: Address,
        size: Bytes,
        chunk: ChunkId,
        state: State,
    ) -> BlockId {
        let block = Block {
            address,
            size,
            chunk,
            state,
            ..Block::VACANT
        };
        self.enter(block)
    }

    #[inline]
    fn enter(&mut self, block: Block) -> BlockId {
        self.used += 1;
        let Some(id) = self.vacant.some() else {
            return BlockId(self.records.push(block));
        };
        let record = self.get_mut(id);
        let next = record.list_next;
        *record = block;
        self.vacant = next;
        id
    }

    /// Gives up a record, and returns what it was.
    pub(crate) fn remove(&mut self, id: BlockId) -> Block {
        let vacant = std::mem::replace(&mut self.vacant, id);
        self.used -= 1;
        let record = self.get_mut(id);
        let block = *record;
        record.state = State::Vacant;
        record.list_next = vacant;
        block
    }

    pub(crate) fn get(&self, id: BlockId) -> &Block {
        &self.records[id.0]
    }

    pub(crate) fn get_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.records[id.0]
    }

    /// The record with this number, if the number is one.
    pub(crate) fn find(&self, number: u32) -> Option<(BlockId, &Block)> {
        let id = BlockId(number);
        self.records.get(id.0).map(|block| (id, block))
    }

    /// All records, also those of no block.
    pub(crate) fn all(&self) -> impl Iterator<Item = (BlockId, &Block)> {
        let numbered = self.records.iter().zip(0..);
        numbered.map(|(block, number)| (BlockId(number), block))
    }

    /// The same from this number.
    pub(crate) fn all_from(&self, first: u32) -> impl Iterator<Item = (BlockId, &Block)> {
        let numbered = self.records.iter_from(first).zip(first..);
        numbered.map(|(block, number)| (BlockId(number), block))
    }

    /// Records in use.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// Cuts the block at `size` and returns the new upper part, free and in no
    /// list.
    pub(crate) fn split(&mut self, id: BlockId, size: Bytes) -> BlockId {
        let low = self.get_mut(id);
        let above = low.next;
        let rest = Block {
            // `size` is below the block's own: the sum cannot overflow.
            address: low.address.checked_add(size).unwrap_or(low.address),
            size: low.size.saturating_sub(size),
            chunk: low.chunk,
            previous: id,
            next: above,
            state: State::Free,
            bank: low.bank,
            ..Block::VACANT
        };
        low.size = size;
        let high = self.enter(rest);
        self.get_mut(id).next = high;
        if let Some(above) = above.some() {
            self.get_mut(above).previous = high;
        }
        high
    }

    /// Puts the block above (`high`) into the one below it, and gives up its
    /// record.
    #[inline]
    pub(crate) fn merge(&mut self, low: BlockId, high: BlockId) {
        let Block { size, next, .. } = self.remove(high);
        let block = self.get_mut(low);
        block.size = block.size.saturating_add(size);
        block.next = next;
        if let Some(next) = next.some() {
            self.get_mut(next).previous = low;
        }
    }

    /// The blocks of a chunk from its first one up, by address.
    pub(crate) fn walk(&self, first: BlockId) -> impl Iterator<Item = (BlockId, &Block)> {
        let mut at = first.some();
        std::iter::from_fn(move || {
            let id = at?;
            let block = self.get(id);
            at = block.next.some();
            Some((id, block))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_and_merge_keep_the_tiling() {
        let mut blocks = Blocks::new();
        let start = Address::new(4096);
        let low = blocks.insert(start, Bytes::new(4096), ChunkId(0), State::Free);
        let high = blocks.split(low, Bytes::new(1024));
        let middle = blocks.split(low, Bytes::new(512));
        let sizes: Vec<u64> = blocks
            .walk(low)
            .map(|(_, block)| block.size.get())
            .collect();
        assert_eq!(sizes, [512, 512, 3072]);
        assert_eq!(blocks.get(high).address, Address::new(4096 + 1024));
        blocks.merge(middle, high);
        blocks.merge(low, middle);
        assert_eq!(blocks.get(low).size, Bytes::new(4096));
        assert_eq!(blocks.used(), 1);
    }

    #[test]
    fn records_are_reused() {
        let mut blocks = Blocks::new();
        let first = blocks.insert(Address::new(0), Bytes::new(512), ChunkId(0), State::Free);
        blocks.remove(first);
        let second = blocks.insert(Address::new(512), Bytes::new(512), ChunkId(0), State::Free);
        assert_eq!(first, second);
        assert!(
            blocks
                .find(1)
                .is_none_or(|(_, block)| block.state == State::Vacant)
        );
    }
}
