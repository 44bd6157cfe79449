//! The end: the context is gone, and its memory with it.
//!
//! Owns what is still told of it. Invariant: nothing is handed out from then on,
//! and no memory is taken under the lock. Cost: looks at all blocks.

use std::sync::Arc;

use crate::address::Bytes;
use crate::arena::Arena;
use crate::arena::inspect::TRIES;
use crate::arena::state::ArenaState;
use crate::driver::Driver;
use crate::heap::block::State;
use crate::heap::ranges::Remains;
use crate::stats::{ArenaStats, MOST_BLOCKS, Snapshot};

impl<D: Driver> Arena<D> {
    /// Forgets everything without a driver call: the context is gone and its
    /// memory with it. From then on nothing is handed out, and what it tells of
    /// itself is how it stood.
    pub fn retire(&self) {
        let (reserved, remains) = self.end();
        let backups = std::mem::take(&mut self.state.lock().backups);
        self.give_backups_back(backups.pieces);
        // Nothing uses it any more; it does not go with its context.
        let unit = self.state.lock().heap.ranges.unit();
        self.give_remains_back(remains, unit);
        self.quota.put_back(reserved);
        // Nothing that they wait for will come.
        self.notify_waiters();
    }

    /// Forgets everything without a driver call, and keeps how it stood, with
    /// its blocks where there are no more than [`MOST_BLOCKS`].
    fn end(&self) -> (Bytes, Remains) {
        let stats = Box::<ArenaStats>::default();
        let mut held = Arc::new(Snapshot::default());
        for _ in 0..TRIES {
            let mut room = self.state.lock().snapshot_room();
            let is_whole = self.watch.blocks && room.blocks as u64 <= MOST_BLOCKS;
            if !is_whole {
                room.blocks = 0;
            }
            let Some(last) = Arc::get_mut(&mut held) else {
                break;
            };
            if room.and_more().reserve(last).is_err() {
                break;
            }
            let mut state = self.state.lock();
            if state.last_snapshot(last, is_whole) {
                return state.retire(stats, held);
            }
        }
        self.state.lock().retire(stats, Arc::default())
    }

    /// What the arena held when its context ended, if it has.
    pub(super) fn at_the_end(&self) -> Option<Option<Snapshot>> {
        let held = self.state.lock().held.clone()?;
        let mut copy = held.copy();
        if let Some(copy) = &mut copy {
            copy.segments.sort_unstable_by_key(|s| s.address);
        }
        Some(copy)
    }

    /// How many blocks are kept of a context that has ended.
    pub fn blocks_at_the_end(&self) -> u64 {
        let held = self.state.lock().held.clone();
        held.map_or(0, |held| held.blocks.len() as u64)
    }

    /// Forgets the blocks and the events of a context that has ended.
    pub fn forget_the_end(&self) {
        let Some(held) = self.state.lock().held.clone() else {
            return;
        };
        let less = Some(Arc::new(Snapshot {
            made_us: held.made_us,
            ended_us: held.ended_us,
            events_lost: held.events_lost.saturating_add(held.events.len() as u64),
            forgotten: true,
            ..Snapshot::default()
        }));
        // What it was is freed when the lock is left.
        let _before = std::mem::replace(&mut self.state.lock().held, less);
    }
}

impl<F: Clone> ArenaState<F> {
    /// The driver refused to take back what counts for so much. False where it
    /// is gone with its context.
    pub(super) fn loses(&mut self, given: Bytes) -> bool {
        if !self.retired {
            self.lost = self.lost.saturating_add(given);
        }
        !self.retired
    }

    /// Forgets everything, because the context and its memory are gone, and
    /// returns how many bytes of the limit that were. What was counted until
    /// then stays, in this box, and what it held, in this snapshot.
    fn retire(&mut self, mut stats: Box<ArenaStats>, held: Arc<Snapshot>) -> (Bytes, Remains) {
        if self.retired {
            return (Bytes::ZERO, Remains::default());
        }
        self.retired = true;
        *stats = self.picture();
        // The picture has called back what threads kept.
        self.caches.forget();
        // Where the host had no memory for a snapshot it does not say.
        let ended_us = held.ended_us;
        stats.ended_us = ended_us.or_else(|| Some(self.counters.history.now_us()));
        self.ended = Some(stats);
        self.held = Some(held);
        self.forget_stacks();
        self.counters.history.end();
        let charged = self.heap.pages.charged(self.counters.reserved());
        let taken = charged.saturating_add(self.lost);
        self.lost = Bytes::ZERO;
        let mut remains = self.heap.clear();
        if self.moves {
            self.left = std::mem::take(&mut remains);
        }
        self.limbo.clear();
        if let Some(packing) = &mut self.packing {
            packing.forget();
        }
        self.counters.retired();
        (taken, remains)
    }

    /// What call stacks hold here they hold no longer.
    fn forget_stacks(&self) {
        let live = self.heap.blocks.all();
        for (id, block) in live.filter(|(_, block)| block.state == State::Live) {
            self.counters.lost(id, block.requested, block.size);
        }
    }
}
