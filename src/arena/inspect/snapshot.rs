//! All blocks of an arena, as plain values.
//!
//! Invariant: what is taken is of one moment, and no memory is
//! taken under the lock where the lists had room. Cost: a few ns a block, and
//! a copy of the events.

use std::collections::TryReserveError;

use crate::address::Bytes;
use crate::arena::state::ArenaState;
use crate::heap::block::{Block, BlockId, ChunkId, State};
use crate::heap::chunk::Chunk;
use crate::stats::{
    Action, BlockPicture, BlockState, Holdings, Segment, SegmentKind, Snapshot, StackId,
};
use crate::strategy::Pool;

/// How much a snapshot holds.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(in crate::arena) struct SnapshotSize {
    pub(in crate::arena) blocks: usize,
    pub(in crate::arena) events: usize,
}

impl SnapshotSize {
    /// The same with something for what happens until it is used.
    pub(in crate::arena) fn and_more(self) -> SnapshotSize {
        let more = |n: usize| n.saturating_add(n / 8).saturating_add(64);
        SnapshotSize {
            blocks: more(self.blocks),
            events: if self.events > 0 {
                more(self.events)
            } else {
                0
            },
        }
    }

    /// Empties a snapshot and makes this room in it.
    ///
    /// # Errors
    /// Where the host has no memory for it.
    pub(in crate::arena) fn reserve(self, snapshot: &mut Snapshot) -> Result<(), TryReserveError> {
        *snapshot = Snapshot::default();
        snapshot.blocks.try_reserve_exact(self.blocks)?;
        snapshot.segments.try_reserve_exact(self.blocks)?;
        snapshot.events.try_reserve_exact(self.events)
    }
}

impl<F: Clone> ArenaState<F> {
    /// How large a snapshot would be now, at the most: a segment has one block
    /// at the least.
    pub(in crate::arena) fn snapshot_room(&self) -> SnapshotSize {
        SnapshotSize {
            blocks: self.heap.blocks.used() as usize,
            events: self.counters.history.len(),
        }
    }

    /// Puts everything into an empty snapshot, the segments in no order. False,
    /// and nothing done, where it has no room.
    pub(in crate::arena) fn snapshot(&mut self, snapshot: &mut Snapshot) -> bool {
        self.recall();
        let room = snapshot.blocks.capacity().min(snapshot.segments.capacity());
        if room < self.snapshot_room().blocks || !self.events(snapshot) {
            return false;
        }
        for (id, chunk) in self.heap.chunks.iter() {
            self.add_segments(id, chunk, snapshot);
        }
        for (id, block) in self.direct_blocks() {
            snapshot.segments.push(Segment {
                address: block.address,
                size: block.size,
                kind: SegmentKind::Direct,
                is_mapped: false,
                first_block: snapshot.blocks.len(),
                block_count: 1,
            });
            snapshot.blocks.push(self.block_picture(id, block));
        }
        true
    }

    /// Puts a chunk into a snapshot; a range as one segment for each stretch of it that
    /// has memory.
    fn add_segments(&self, id: ChunkId, chunk: &Chunk, snapshot: &mut Snapshot) {
        let is_mapped = self.heap.is_mapped(id);
        let kind = match chunk.pool {
            Pool::Small => SegmentKind::Small,
            Pool::Large | Pool::Oversize => SegmentKind::Large,
        };
        let mut is_open = false;
        for (id, block) in self.heap.blocks.walk(chunk.first) {
            let has_memory = !matches!(block.state, State::Hole | State::Claimed | State::Slab);
            if has_memory && !is_open {
                snapshot.segments.push(Segment {
                    address: block.address,
                    size: Bytes::ZERO,
                    kind,
                    is_mapped,
                    first_block: snapshot.blocks.len(),
                    block_count: 0,
                });
            }
            is_open = has_memory;
            if let Some(segment) = snapshot.segments.last_mut().filter(|_| has_memory) {
                segment.size = segment.size.saturating_add(block.size);
                segment.block_count += 1;
                snapshot.blocks.push(self.block_picture(id, block));
            }
        }
    }

    /// Puts the events into a snapshot that has none. False, and nothing done,
    /// where it has no room.
    pub(in crate::arena) fn events(&self, snapshot: &mut Snapshot) -> bool {
        let history = &self.counters.history;
        let fits = snapshot.events.capacity() >= history.len();
        snapshot.made_us = history.made_us();
        if fits {
            snapshot.events_lost = history.read(&mut snapshot.events);
        }
        fits
    }

    /// Puts what there is when the context ends into an empty snapshot, blocks
    /// only where it is to be whole. False, and nothing done, where it has no
    /// room.
    pub(in crate::arena) fn last_snapshot(&mut self, snapshot: &mut Snapshot, whole: bool) -> bool {
        self.recall();
        self.put_back_reclaimable();
        snapshot.ended_us = Some(self.counters.history.now_us());
        snapshot.forgotten = !whole;
        if whole {
            self.snapshot(snapshot)
        } else {
            self.events(snapshot)
        }
    }

    /// Tells the recording of all segments. The number of the first block.
    pub(in crate::arena) fn tell_segments(&self) -> Option<u32> {
        let history = &self.counters.history;
        let tell = |action, size| history.tell(action, size, StackId::NONE, false);
        for (id, chunk) in self.heap.chunks.iter() {
            let action = match self.heap.is_range(id) {
                true => Action::SegmentMap,
                false => Action::SegmentAlloc,
            };
            for span in self.heap.held_by(id, chunk) {
                tell(action(span.address), span.size);
            }
        }
        for (_, block) in self.direct_blocks() {
            tell(Action::SegmentAlloc(block.address), block.size);
        }
        (self.heap.blocks.used() > 0).then_some(0)
    }

    /// The call stacks of so many blocks from this number.
    pub(in crate::arena) fn stacks_from(&self, from: u32, most: usize) -> Vec<StackId> {
        let blocks = self.heap.blocks.all_from(from).take(most);
        let stacks = blocks.map(|(id, _)| self.counters.history.stack_of(id));
        stacks.filter(|&stack| stack != StackId::NONE).collect()
    }

    /// Tells the recording of so many blocks from this number. The number of the next.
    pub(in crate::arena) fn tell_blocks(&self, from: u32, most: usize) -> Option<u32> {
        let history = &self.counters.history;
        let mut last = None;
        for (id, block) in self.heap.blocks.all_from(from).take(most) {
            last = Some(id);
            let waits = match block.state {
                State::Live => false,
                State::Limbo => true,
                _ => continue,
            };
            let stack = history.stack_of(id);
            let requested = self.heap.requested(block).0;
            history.tell(Action::Alloc(block.address), requested, stack, waits);
        }
        last?.0.checked_add(1)
    }

    /// What is held, in a few numbers.
    pub(in crate::arena) fn holdings(&self) -> Holdings {
        Holdings {
            reserved: self.counters.reserved(),
            live: self.counters.live(),
            cached: self.counters.cached(),
            limbo: self.counters.limbo(),
            idle: self.idle(),
            largest_cached: self.heap.largest_free(),
        }
    }

    /// The direct allocations.
    fn direct_blocks(&self) -> impl Iterator<Item = (BlockId, &Block)> {
        self.heap.blocks.all().filter(|(_, block)| {
            block.chunk == ChunkId::DIRECT && matches!(block.state, State::Live | State::Limbo)
        })
    }

    pub(super) fn block_picture(&self, id: BlockId, block: &Block) -> BlockPicture {
        let (state, stack) = match block.state {
            State::Live => (BlockState::Live, self.counters.history.stack_of(id)),
            State::Limbo => (BlockState::Limbo, self.counters.history.stack_of(id)),
            _ => (BlockState::Free, StackId::NONE),
        };
        BlockPicture {
            address: block.address,
            size: block.size,
            requested: self.heap.requested(block).0,
            state,
            stack,
        }
    }
}
