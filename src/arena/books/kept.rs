//! Blocks that threads keep, as the books see them.
//!
//! A kept block is live in the books, and in its entry in the page map it is
//! not. Here it comes back from a thread, and here the books hear how many
//! blocks the program really holds. Cost: constant for a block; `recall` looks
//! at all of them.

use std::sync::Arc;

use crate::address::{Address, Bytes};
use crate::arena::block::{Block, BlockId, State};
use crate::arena::books::Books;
use crate::arena::cache::{Account, Headroom, Kept};
use crate::page_map::Entry;

impl<F: Clone> Books<F> {
    /// Enters the account of a thread that begins to keep blocks.
    pub(crate) fn open_account(&mut self, account: Arc<Account>) -> usize {
        let number = self.accounts.open(account);
        self.tally.is_shared_now();
        number
    }

    /// Counts what all threads did.
    pub(crate) fn hear_all(&mut self) {
        if self.accounts.count() == 0 {
            return;
        }
        self.tally.note_peak();
        for number in self.accounts.numbers() {
            self.hear(number);
        }
    }

    fn hear(&mut self, number: usize) {
        let tally = &mut self.tally;
        let change = self.accounts.hear(number, |passed| tally.passed(passed));
        tally.change_room(change);
    }

    /// Hears what a thread did, and gives it its share of the room that there
    /// is, in place of what it had.
    pub(crate) fn make_room(&mut self, number: usize, had: Headroom) -> Headroom {
        self.tally.note_peak();
        self.hear(number);
        self.tally.change_room(Headroom::default().minus(had));
        if self.tally.is_near_peak(self.tally.kept_pool()) {
            self.find_peak();
        }
        let room = self.tally.room_left().share();
        self.tally.change_room(room);
        room
    }

    /// Finds out how much is live, and compares it with the peak: as far as
    /// known it may be more.
    #[cold]
    pub(super) fn find_peak(&mut self) {
        self.hear_all();
        if self.tally.has_given_room() {
            self.gate.call_for_room();
            self.hear_all();
            self.tally.take_all_room();
        }
        self.tally.settle_live();
    }

    /// Takes back blocks that a thread has kept.
    pub(crate) fn take_back(&mut self, blocks: &[Kept], is_over: &dyn Fn(u64) -> bool) {
        for kept in blocks {
            if self.takes(kept.address, kept.entry)
                && let Some(id) = kept.entry.number().map(BlockId)
            {
                self.came_back(id, kept.entry, is_over(kept.epoch));
            }
        }
        self.tally.was_cached();
    }

    /// The same of threads that have ended.
    pub(crate) fn take_what_threads_left(&mut self, is_over: &dyn Fn(u64) -> bool) {
        for number in self.accounts.numbers() {
            if let Some(left) = self.accounts.left(number) {
                self.tally.note_peak();
                self.hear(number);
                if self.gate.has_answered(left.rooms) {
                    self.tally.change_room(Headroom::default().minus(left.room));
                }
                self.accounts.close(number);
                self.take_back(&left.kept, is_over);
            }
        }
    }

    /// Takes back all blocks that are kept, whatever their threads do; they were
    /// called before.
    pub(crate) fn recall(&mut self, at_once: bool) {
        self.hear_all();
        self.take_what_threads_left(&|_| at_once);
        let mut number = 0;
        while let Some((id, &block)) = self.blocks.find(number) {
            number += 1;
            if block.state != State::Live {
                continue;
            }
            let entry = self.map.entry(block.address);
            if entry.is_kept() && self.takes(block.address, entry) {
                self.came_back(id, entry, at_once);
            }
        }
        self.tally.was_cached();
    }

    /// Whether the counters are those of one moment for a thread with this
    /// account: while others go on, what they do is heard of piece by piece.
    pub(in crate::arena) fn are_counted(&self, own: Option<usize>) -> bool {
        self.accounts.are_all_of(own)
    }

    fn takes(&self, address: Address, entry: Entry) -> bool {
        let spot = self.map.spot(address);
        spot.is_some_and(|spot| spot.take(entry))
    }

    /// Whether the program holds the block.
    pub(super) fn is_held(&self, block: &Block) -> bool {
        block.state == State::Live && !self.map.entry(block.address).is_kept()
    }

    /// The block with what the program asked for last.
    pub(in crate::arena) fn as_asked_for(&self, block: &Block) -> Block {
        as_asked_for(block, self.map.entry(block.address))
    }

    /// A block was kept and is so no more.
    fn came_back(&mut self, id: BlockId, entry: Entry, is_over: bool) {
        let block = self.blocks.get_mut(id);
        block.requested = block.size.saturating_sub(Bytes::new(entry.rest()));
        let block = *block;
        self.tally.no_longer_kept(block.size);
        if let Some(chunk) = self.chunks.get_mut(block.chunk) {
            chunk.live -= 1;
            if chunk.live == 0 {
                self.tally.fell_idle(chunk.size);
            }
        }
        if is_over {
            // No direct allocation is ever kept.
            let _ = self.put_back(id, block);
        } else {
            self.blocks.get_mut(id).state = State::Limbo;
            self.limbo.push(id, &block);
        }
    }
}

/// The block with what the program asked for last, as its entry says: between
/// threads and the program blocks pass without the books.
pub(super) fn as_asked_for(block: &Block, entry: Entry) -> Block {
    let requested = if block.state == State::Live && entry.is_fine() {
        block.size.saturating_sub(Bytes::new(entry.rest()))
    } else {
        block.requested
    };
    Block {
        requested,
        ..*block
    }
}
