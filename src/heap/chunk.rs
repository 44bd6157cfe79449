//! Chunks: regions that the driver gave in one call.
//!
//! Owns the records of the chunks of an arena. Invariant: `live` is the
//! number of blocks of the chunk that the program holds; a chunk without any
//! is *idle* and can go back. Cost: 48 bytes a chunk; records are reused.

use crate::address::{Address, Bytes};
use crate::heap::block::{BlockId, ChunkId};
use crate::heap::table::Table;
use crate::strategy::Pool;

/// One chunk.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Chunk {
    pub(crate) address: Address,
    pub(crate) size: Bytes,
    pub(crate) pool: Pool,
    /// The block at its start.
    pub(crate) first: BlockId,
    /// Blocks that the program holds.
    pub(crate) live: u32,
    /// It stays for good, idle or not.
    pub(crate) kept: bool,
    /// When it last became one free block, as the heap tells ages.
    pub(crate) empty_since: u64,
}

/// All chunks of an arena.
pub(crate) struct Chunks {
    records: Table<Option<Chunk>>,
    vacant: Vec<ChunkId>,
}

impl Chunks {
    pub(crate) fn new() -> Chunks {
        Chunks {
            records: Table::new(None),
            vacant: Vec::new(),
        }
    }

    pub(crate) fn insert(&mut self, chunk: Chunk) -> ChunkId {
        if let Some(id) = self.vacant.pop() {
            self.records[id.0] = Some(chunk);
            return id;
        }
        ChunkId(self.records.push(Some(chunk)))
    }

    pub(crate) fn remove(&mut self, id: ChunkId) -> Option<Chunk> {
        let chunk = self.get_mut(id).copied();
        if chunk.is_some() {
            self.records[id.0] = None;
            self.vacant.push(id);
        }
        chunk
    }

    /// None for a direct allocation.
    pub(crate) fn get(&self, id: ChunkId) -> Option<&Chunk> {
        self.records.get(id.0)?.as_ref()
    }

    /// None for a direct allocation.
    pub(crate) fn get_mut(&mut self, id: ChunkId) -> Option<&mut Chunk> {
        self.records.get_mut(id.0)?.as_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ChunkId, &Chunk)> {
        self.records
            .iter()
            .zip(0..)
            .filter_map(|(chunk, n)| Some((ChunkId(n), chunk.as_ref()?)))
    }
}
