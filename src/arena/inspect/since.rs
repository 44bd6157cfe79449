//! What happened to an arena since somebody asked before: peaks that can be begun anew,
//! and the blocks that are held.
//!
//! Invariant: a peak that was begun anew is as exact as the one since the start, which
//! it leaves alone. Cost: what threads keep is called back where a peak is begun and
//! where blocks are listed; a list looks at every block, and takes no memory under the
//! lock.

use crate::address::Bytes;
use crate::arena::Arena;
use crate::arena::state::ArenaState;
use crate::driver::Driver;
use crate::heap::block::{Block, BlockId, State};
use crate::stats::{BlockPicture, Metric};

use super::TRIES;

/// A quantity whose peak can be begun anew.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Peak {
    /// What the program holds.
    Live,
    /// What the driver gave.
    Reserved,
}

impl Peak {
    fn metric(self) -> Metric {
        match self {
            Peak::Live => Metric::AllocatedBytes,
            Peak::Reserved => Metric::ReservedBytes,
        }
    }
}

impl<D: Driver> Arena<D> {
    /// The most there was of it since the arena was made, or since
    /// [`begin_peak`](Arena::begin_peak); nothing when its context has ended.
    #[must_use]
    pub fn peak(&self, peak: Peak) -> Bytes {
        let state = self.state.lock();
        if state.retired {
            return Bytes::ZERO;
        }
        // What caches have room for counts as used, up to the peak and not beyond.
        state.counters.peak(peak.metric())
    }

    /// Begins a peak anew with what there is now, and returns what it was. The
    /// statistics do not change by that.
    pub fn begin_peak(&self, peak: Peak) -> Bytes {
        let mut state = self.state.lock();
        if state.retired {
            return Bytes::ZERO;
        }
        // Room of caches that was counted as used would count as there now.
        state.recall();
        state.counters.begin_peak(peak.metric())
    }

    /// The blocks that the program holds, in no order. None where the host has no
    /// memory for them.
    #[must_use]
    pub fn blocks_held(&self) -> Option<Vec<BlockPicture>> {
        self.of_live(ArenaState::block_picture)
    }

    /// The same of what `of` says of each.
    pub(in crate::arena) fn of_live<T>(
        &self,
        of: impl Fn(&ArenaState<D::Fence>, BlockId, &Block) -> T,
    ) -> Option<Vec<T>> {
        let mut all = Vec::new();
        for _ in 0..TRIES {
            let room = self.state.lock().snapshot_room().and_more();
            all.try_reserve_exact(room.blocks).ok()?;
            let mut state = self.state.lock();
            state.recall();
            if all.capacity() >= state.heap.blocks.used() as usize {
                let blocks = state.heap.blocks.all();
                let live = blocks.filter(|(_, block)| block.state == State::Live);
                all.extend(live.map(|(id, block)| of(&state, id, block)));
                return Some(all);
            }
        }
        None
    }
}
