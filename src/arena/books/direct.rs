//! Driver allocations that are one block: how they come, and come back where
//! the driver does not take them.
//!
//! Owns nothing. Invariant: a free that the driver refuses changes nothing but
//! the list of events. Cost: as a block's.

use crate::address::Bytes;
use crate::arena::block::{Block, BlockId, ChunkId, State};
use crate::arena::books::{Books, Piece, Region};
use crate::stats::StackId;
use crate::strategy::{Pool, SMALL};

/// A direct allocation that the program has freed, as it was before.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Direct {
    pub(crate) region: Region,
    requested: Bytes,
    stack: StackId,
}

impl<F: Clone> Books<F> {
    /// Enters a driver allocation that is one block. False where the page map
    /// cannot hold it.
    pub(crate) fn add_direct(&mut self, region: Region, request: Bytes, stack: StackId) -> bool {
        let Some(piece) = self.enter_direct(region, request, stack) else {
            return false;
        };
        self.tally.segment_taken(region, piece.pool, stack);
        self.gave(piece);
        self.tally.went_direct();
        true
    }

    /// The driver refused to take back what the program has freed: the program
    /// has it still, as if it had never been freed. What it counts for; none
    /// where it is gone with its context, or the driver took it all the same.
    pub(crate) fn was_refused(&mut self, direct: Direct) -> Option<Bytes> {
        let Direct {
            region,
            requested,
            stack,
        } = direct;
        let piece = self.enter_direct(region, requested, stack)?;
        self.tally.free_refused(piece, region);
        if let Some(packing) = &mut self.packing {
            packing.rose(self.tally.live());
        }
        Some(self.device_gave(region))
    }

    /// A direct allocation that has just left, as it was.
    pub(super) fn as_it_was(&self, region: Region, id: BlockId, block: &Block) -> Direct {
        Direct {
            region,
            requested: block.requested,
            stack: self.tally.history().stack_of(id),
        }
    }

    /// A live block that is a driver allocation of its own, still uncounted.
    fn enter_direct(&mut self, region: Region, requested: Bytes, stack: StackId) -> Option<Piece> {
        let Region { address, size } = region;
        let id = self
            .blocks
            .insert(address, size, ChunkId::DIRECT, State::Live);
        if self.retired || !self.map.hold_direct(self.arena, address, id.0) {
            self.blocks.remove(id);
            return None;
        }
        let block = self.blocks.get_mut(id);
        block.requested = requested;
        let block = *block;
        self.tally.history_mut().remember(id, stack);
        Some(Piece {
            stack,
            ..self.piece(&block)
        })
    }
}

/// The pool in which a direct allocation is counted.
pub(super) fn pool_of(size: Bytes) -> Pool {
    if size <= SMALL {
        Pool::Small
    } else {
        Pool::Large
    }
}
