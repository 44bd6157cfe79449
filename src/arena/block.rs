//! Blocks: pieces of chunks, and direct allocations, as records in one table.
//!
//! Owns the records and the order of the blocks in their chunk. Invariant: the
//! blocks of a chunk tile it without gap or overlap. Cost: 56 bytes a block;
//! every operation takes constant time. Records of vanished blocks are reused.

use crate::address::{Address, Bytes};

/// A block's number in its arena.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct BlockId(pub(crate) u32);

impl BlockId {
    /// No block: the end of a list.
    pub(crate) const NONE: BlockId = BlockId(u32::MAX);

    pub(crate) fn some(self) -> Option<BlockId> {
        (self != BlockId::NONE).then_some(self)
    }

    fn index(self) -> usize {
        self.0 as usize
    }
}

/// A chunk's number in its arena.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
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
}

impl Block {
    /// Whether it shares its chunk with others.
    pub(crate) fn is_part(&self) -> bool {
        self.previous != BlockId::NONE || self.next != BlockId::NONE
    }
}

/// All blocks of an arena.
pub(crate) struct Blocks {
    records: Vec<Block>,
    vacant: BlockId,
    used: u32,
}

impl Blocks {
    pub(crate) fn new() -> Blocks {
        Blocks {
            records: Vec::new(),
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
            requested: Bytes::ZERO,
            chunk,
            previous: BlockId::NONE,
            next: BlockId::NONE,
            list_previous: BlockId::NONE,
            list_next: BlockId::NONE,
            state,
        };
        self.used += 1;
        if let Some(id) = self.vacant.some() {
            self.vacant = self.get(id).list_next;
            *self.get_mut(id) = block;
            return id;
        }
        // 2^32 records of 56 bytes do not fit into a host's memory.
        let id = BlockId(u32::try_from(self.records.len()).unwrap_or(u32::MAX));
        self.records.push(block);
        id
    }

    /// Gives up a record.
    pub(crate) fn remove(&mut self, id: BlockId) {
        let vacant = self.vacant;
        let block = self.get_mut(id);
        block.state = State::Vacant;
        block.list_next = vacant;
        self.vacant = id;
        self.used -= 1;
    }

    pub(crate) fn get(&self, id: BlockId) -> &Block {
        &self.records[id.index()]
    }

    pub(crate) fn get_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.records[id.index()]
    }

    /// The block with this number, if the number is one.
    pub(crate) fn find(&self, number: u32) -> Option<(BlockId, &Block)> {
        let id = BlockId(number);
        self.records.get(id.index()).map(|block| (id, block))
    }

    /// All records, also those of no block.
    pub(crate) fn all(&self) -> impl Iterator<Item = (BlockId, &Block)> {
        let numbered = self.records.iter().zip(0..);
        numbered.map(|(block, number)| (BlockId(number), block))
    }

    /// Records in use.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// Cuts the block at `size` and returns the new upper part, in the same
    /// state and in no list.
    pub(crate) fn split(&mut self, id: BlockId, size: Bytes) -> BlockId {
        let low = *self.get(id);
        // `size` is below the block's own: the sum cannot overflow.
        let address = low.address.checked_add(size).unwrap_or(low.address);
        let high = self.insert(address, low.size.saturating_sub(size), low.chunk, low.state);
        self.get_mut(id).size = size;
        self.join(high, low.next);
        self.join(id, high);
        high
    }

    /// Puts the block above (`high`) into the one below it, and gives up its
    /// record.
    pub(crate) fn merge(&mut self, low: BlockId, high: BlockId) {
        let upper = *self.get(high);
        let block = self.get_mut(low);
        block.size = block.size.saturating_add(upper.size);
        self.join(low, upper.next);
        self.remove(high);
    }

    fn join(&mut self, low: BlockId, high: BlockId) {
        self.get_mut(low).next = high;
        if let Some(high) = high.some() {
            self.get_mut(high).previous = low;
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
        assert!(blocks.find(5).is_none());
    }
}
