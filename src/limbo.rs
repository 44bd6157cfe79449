//! Blocks that the program freed and the device may still be using.
//!
//! Owns the open batch and the closed ones, the *epochs*, in the order in
//! which they were closed. Invariant: the fence of an epoch is made after its
//! batch was taken, and so after every free in it and in all older epochs;
//! therefore one reached fence ends its own epoch and all older ones. Cost: a
//! push per free, one fence per epoch.
//!
//! A batch of small blocks whose epoch has ended is not put back at once: that
//! would be some 5 µs for one unlucky call. It is *reclaimable*, and goes a
//! few blocks at a time, or all together when one of them may be missing.

use std::collections::VecDeque;

use crate::address::Bytes;
use crate::heap::block::{Block, BlockId, Blocks, ChunkId, State};
use crate::strategy::SMALL;

/// An epoch is closed when this many blocks wait, so that a fence of some 200
/// ns costs each free a few of them.
const BATCH_BLOCKS: usize = 64;

/// An epoch is closed when this many bytes wait, so that large blocks do not
/// lie about until many of them have come together.
const BATCH_BYTES: Bytes = Bytes::mib(64);

/// Epochs kept apart. They pile up where work goes on for very long, be it
/// that of another context.
const MOST_EPOCHS: usize = 256;

/// So many blocks must come to what is kept back, in proportion to it.
const KEPT_PART: usize = 8;

/// Batches kept for reuse, so that a steady state allocates no host memory.
const SPARE_BATCHES: usize = 16;

/// The room of a batch that is kept for reuse, in blocks: what a burst of frees
/// took goes back to the host.
const SPARE_ROOM: usize = 4096;

/// A batch behind one fence.
struct Epoch<F> {
    number: u64,
    /// Whether a block in it is not to be put off.
    is_prompt: bool,
    /// None while the thread that closed the batch is making the fence.
    fence: Option<F>,
    blocks: Vec<BlockId>,
}

/// Whether a block is to be put back as soon as its epoch has ended: it is the
/// driver's, or what is done about large requests depends on it.
fn is_prompt(block: &Block) -> bool {
    block.chunk == ChunkId::DIRECT || block.size > SMALL
}

/// The oldest epoch, as a thread that polls or waits needs it.
pub(crate) struct Oldest<F> {
    pub(crate) number: u64,
    pub(crate) fence: Option<F>,
}

/// All blocks in limbo of an arena.
pub(crate) struct Limbo<F> {
    /// The blocks freed since the last batch was closed come last; those
    /// before them were kept back then.
    open: Vec<BlockId>,
    fresh: usize,
    fresh_bytes: Bytes,
    /// Whether a block of the open batch is not to be put off.
    is_prompt: bool,
    /// Bytes of direct allocations.
    direct: Bytes,
    epochs: VecDeque<Epoch<F>>,
    /// Batches whose epochs have ended, each in the opposite order.
    reclaimable: VecDeque<Vec<BlockId>>,
    next_number: u64,
    spare: Vec<Vec<BlockId>>,
}

impl<F: Clone> Limbo<F> {
    pub(crate) fn new() -> Limbo<F> {
        Limbo {
            open: Vec::new(),
            fresh: 0,
            fresh_bytes: Bytes::ZERO,
            is_prompt: false,
            direct: Bytes::ZERO,
            epochs: VecDeque::new(),
            reclaimable: VecDeque::new(),
            next_number: 0,
            spare: Vec::new(),
        }
    }

    /// Adds a block that was freed to the open batch.
    pub(crate) fn push(&mut self, id: BlockId, block: &Block) {
        self.push_again(id, block);
        if block.chunk == ChunkId::DIRECT {
            self.direct = self.direct.saturating_add(block.size);
        }
    }

    /// So many bytes of direct allocations are no longer in limbo.
    pub(crate) fn direct_left(&mut self, bytes: Bytes) {
        self.direct = self.direct.saturating_sub(bytes);
    }

    /// Bytes of direct allocations in limbo.
    pub(crate) fn direct(&self) -> Bytes {
        self.direct
    }

    fn push_again(&mut self, id: BlockId, block: &Block) {
        self.open.push(id);
        self.fresh += 1;
        self.fresh_bytes = self.fresh_bytes.saturating_add(block.size);
        self.is_prompt |= is_prompt(block);
    }

    /// Adds a block whose free this epoch covers, or to the open batch.
    pub(crate) fn push_to(&mut self, epoch: Option<u64>, id: BlockId, block: &Block) {
        // One that was joined to a later one is found there.
        let covers = |covering: &&mut Epoch<F>| epoch.is_some_and(|own| own <= covering.number);
        match self.epochs.iter_mut().find(covers) {
            Some(epoch) => epoch.blocks.push(id),
            None => self.push(id, block),
        }
    }

    /// Bytes freed since the last batch was closed.
    pub(crate) fn fresh_bytes(&self) -> Bytes {
        self.fresh_bytes
    }

    /// Whether the open batch is worth a fence of its own. Where much is kept
    /// back each time, it is not sorted again for a few blocks more.
    pub(crate) fn batch_is_full(&self) -> bool {
        self.fresh >= BATCH_BLOCKS.max(self.open.len() / KEPT_PART)
            || self.fresh_bytes >= BATCH_BYTES
    }

    /// Closes the open batch, whose fence is then to be made and brought by
    /// `set_fence`; nothing where it is empty. Only the largest blocks are
    /// taken, up to the share `fraction` of the bytes (the last one may pass
    /// it); the rest stays open.
    pub(crate) fn close(&mut self, blocks: &mut Blocks, fraction: f64) -> Option<u64> {
        let mut batch = self.take_open();
        // Of what is kept back nobody looks whether it is small.
        let is_prompt = std::mem::replace(&mut self.is_prompt, fraction < 1.0);
        if fraction < 1.0 {
            self.keep_the_small(blocks, &mut batch, fraction);
        }
        if batch.is_empty() {
            self.recycle(batch);
            return None;
        }
        Some(self.push_epoch(blocks, batch, is_prompt))
    }

    /// Closes the open batch, whether a block is in it or none: blocks that a thread
    /// keeps belong to this epoch.
    pub(crate) fn close_for_others(&mut self, blocks: &mut Blocks) -> u64 {
        let batch = self.take_open();
        let is_prompt = std::mem::take(&mut self.is_prompt);
        self.push_epoch(blocks, batch, is_prompt)
    }

    #[inline]
    fn take_open(&mut self) -> Vec<BlockId> {
        self.fresh = 0;
        self.fresh_bytes = Bytes::ZERO;
        let spare = self.spare.pop().unwrap_or_default();
        std::mem::replace(&mut self.open, spare)
    }

    #[inline(always)]
    fn push_epoch(&mut self, blocks: &mut Blocks, batch: Vec<BlockId>, is_prompt: bool) -> u64 {
        if self.epochs.len() >= MOST_EPOCHS {
            self.join_pairs(blocks);
        }
        let number = self.next_number;
        self.next_number += 1;
        self.epochs.push_back(Epoch {
            number,
            is_prompt,
            fence: None,
            blocks: batch,
        });
        number
    }

    /// Puts each second epoch into the one after it, whose fence covers both,
    /// and forgets the blocks that have gone back to the driver meanwhile.
    fn join_pairs(&mut self, blocks: &mut Blocks) {
        let mut joined = VecDeque::with_capacity(MOST_EPOCHS);
        while let Some(mut older) = self.epochs.pop_front() {
            let Some(mut epoch) = self.epochs.pop_front() else {
                joined.push_back(older);
                break;
            };
            epoch.blocks.append(&mut older.blocks);
            epoch.is_prompt |= older.is_prompt;
            epoch.blocks.retain(|&id| {
                let stays = blocks.get(id).state == State::Limbo;
                if !stays {
                    blocks.remove(id);
                }
                stays
            });
            self.recycle(older.blocks);
            joined.push_back(epoch);
        }
        self.epochs = joined;
    }

    fn keep_the_small(&mut self, blocks: &Blocks, batch: &mut Vec<BlockId>, fraction: f64) {
        let size = |id: &BlockId| blocks.get(*id).size;
        batch.sort_by_key(|id| std::cmp::Reverse(size(id)));
        let sum = |sum: Bytes, id: &BlockId| sum.saturating_add(size(id));
        let target = batch.iter().fold(Bytes::ZERO, sum).scaled(fraction);
        let mut taken = Bytes::ZERO;
        let end = batch.iter().position(|id| {
            let enough = taken >= target;
            taken = sum(taken, id);
            enough
        });
        self.open.extend(batch.drain(end.unwrap_or(batch.len())..));
    }

    /// Brings the fence of an epoch that was closed. The epoch may have ended
    /// already, by a later fence.
    pub(crate) fn set_fence(&mut self, number: u64, fence: F) {
        if let Some(epoch) = self.epochs.iter_mut().find(|epoch| epoch.number == number) {
            epoch.fence = Some(fence);
        }
    }

    /// Undoes `close`, because no fence could be made.
    pub(crate) fn reopen(&mut self, blocks: &Blocks, number: u64) {
        let at = self.epochs.iter().position(|epoch| epoch.number == number);
        let Some(epoch) = at.and_then(|at| self.epochs.remove(at)) else {
            return;
        };
        for &id in &epoch.blocks {
            self.push_again(id, blocks.get(id));
        }
        self.recycle(epoch.blocks);
    }

    /// The oldest epoch.
    pub(crate) fn oldest(&self) -> Option<Oldest<F>> {
        let epoch = self.epochs.front()?;
        Some(Oldest {
            number: epoch.number,
            fence: epoch.fence.clone(),
        })
    }

    /// Whether this epoch is the oldest.
    pub(crate) fn is_oldest(&self, number: u64) -> bool {
        let oldest = self.epochs.front();
        oldest.is_some_and(|epoch| epoch.number == number)
    }

    /// The number of the newest epoch.
    pub(crate) fn newest(&self) -> Option<u64> {
        self.epochs.back().map(|epoch| epoch.number)
    }

    /// Takes out the oldest epoch's blocks if it is no younger than `number`,
    /// whose fence was reached. The vector comes back through `recycle`. With
    /// `puts_off`, epochs without a prompt block are passed over: their blocks are
    /// reclaimable, and come one by one from `next_reclaimable`.
    pub(crate) fn end_oldest(&mut self, number: u64, puts_off: bool) -> Option<Vec<BlockId>> {
        while self.epochs.front()?.number <= number {
            let mut epoch = self.epochs.pop_front()?;
            if epoch.is_prompt || !puts_off {
                return Some(epoch.blocks);
            }
            // They are taken from the end, and what was freed first comes first.
            epoch.blocks.reverse();
            self.reclaimable.push_back(epoch.blocks);
        }
        None
    }

    /// Takes out the next block that is reclaimable.
    #[inline]
    pub(crate) fn next_reclaimable(&mut self) -> Option<BlockId> {
        while let Some(batch) = self.reclaimable.front_mut() {
            if let Some(id) = batch.pop() {
                return Some(id);
            }
            let emptied = self.reclaimable.pop_front();
            emptied.into_iter().for_each(|batch| self.recycle(batch));
        }
        None
    }

    /// Whether there is one.
    #[inline]
    pub(crate) fn has_reclaimable(&self) -> bool {
        !self.reclaimable.is_empty()
    }

    /// Takes a batch's vector back for reuse.
    pub(crate) fn recycle(&mut self, mut batch: Vec<BlockId>) {
        if self.spare.len() < SPARE_BATCHES && batch.capacity() <= SPARE_ROOM {
            batch.clear();
            self.spare.push(batch);
        }
    }

    /// Forgets everything, but that numbers were given.
    pub(crate) fn clear(&mut self) {
        *self = Limbo {
            next_number: self.next_number,
            ..Limbo::new()
        };
    }

    /// All blocks, in no order.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.open
            .iter()
            .chain(self.epochs.iter().flat_map(|epoch| &epoch.blocks))
            .chain(self.reclaimable.iter().flatten())
            .copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Address;
    use crate::heap::block::ChunkId;

    fn limbo_of(sizes: &[u64]) -> (Blocks, Limbo<u32>) {
        let (mut blocks, mut limbo) = (Blocks::new(), Limbo::new());
        for &size in sizes {
            let size = Bytes::new(size);
            let id = blocks.insert(Address::new(0), size, ChunkId(0), State::Limbo);
            limbo.push(id, blocks.get(id));
        }
        (blocks, limbo)
    }

    fn sizes(blocks: &Blocks, batch: &[BlockId]) -> Vec<u64> {
        batch.iter().map(|&id| blocks.get(id).size.get()).collect()
    }

    #[test]
    fn a_later_fence_ends_older_epochs() {
        let (mut blocks, mut limbo) = limbo_of(&[512]);
        let first = limbo.close(&mut blocks, 1.0).unwrap();
        let id = blocks.insert(Address::new(0), Bytes::new(1024), ChunkId(0), State::Limbo);
        limbo.push(id, blocks.get(id));
        let second = limbo.close(&mut blocks, 1.0).unwrap();
        limbo.set_fence(second, 7);
        let oldest = limbo.oldest().unwrap();
        assert_eq!((oldest.number, oldest.fence), (first, None));
        assert_eq!(
            sizes(&blocks, &limbo.end_oldest(second, false).unwrap()),
            [512]
        );
        assert_eq!(
            sizes(&blocks, &limbo.end_oldest(second, false).unwrap()),
            [1024]
        );
        assert!(limbo.end_oldest(second, false).is_none());
        limbo.set_fence(first, 8);
        assert!(limbo.oldest().is_none());
    }

    #[test]
    fn an_epoch_never_ends_before_a_fence_of_its_own_or_a_later_one() {
        let (mut blocks, mut limbo) = limbo_of(&[512]);
        let first = limbo.close(&mut blocks, 1.0).unwrap();
        let id = blocks.insert(Address::new(0), Bytes::new(1024), ChunkId(0), State::Limbo);
        limbo.push(id, blocks.get(id));
        limbo.close(&mut blocks, 1.0).unwrap();
        assert!(limbo.end_oldest(first, false).is_some());
        assert!(limbo.end_oldest(first, false).is_none());
    }

    #[test]
    fn the_largest_go_first_up_to_the_fraction() {
        let (mut blocks, mut limbo) = limbo_of(&[100, 400, 200, 300]);
        let number = limbo.close(&mut blocks, 0.5).unwrap();
        // Half of 1000 is 500: 400 is less, 300 passes it.
        assert_eq!(
            sizes(&blocks, &limbo.end_oldest(number, false).unwrap()),
            [400, 300]
        );
        // What is kept back does not count towards the next batch.
        assert_eq!(limbo.fresh_bytes(), Bytes::ZERO);
        assert_eq!(limbo.close(&mut blocks, 0.0), None);
        let number = limbo.close(&mut blocks, 1.0).unwrap();
        assert_eq!(
            sizes(&blocks, &limbo.end_oldest(number, false).unwrap()),
            [200, 100]
        );
    }

    #[test]
    fn what_is_kept_back_is_not_sorted_for_a_few_blocks() {
        let (mut blocks, mut limbo) = limbo_of(&[1; 4000]);
        assert!(limbo.batch_is_full());
        limbo.close(&mut blocks, 0.001).unwrap();
        // 3996 are left; of all that are then there, an eighth has to be new.
        for _ in 0..569 {
            limbo.push(BlockId(0), blocks.get(BlockId(0)));
        }
        assert!(!limbo.batch_is_full());
        limbo.push(BlockId(0), blocks.get(BlockId(0)));
        assert!(limbo.batch_is_full());
    }

    #[test]
    fn the_room_of_a_burst_is_given_back() {
        let (mut blocks, mut limbo) = limbo_of(&[1; 2 * SPARE_ROOM]);
        for _ in 0..2 {
            let number = limbo.close(&mut blocks, 1.0).unwrap();
            let batch = limbo.end_oldest(number, false).unwrap();
            limbo.recycle(batch);
            limbo.push(BlockId(0), blocks.get(BlockId(0)));
        }
        let rooms = limbo.spare.iter().map(Vec::capacity);
        assert!(limbo.spare.len() == 1 && rooms.max() <= Some(SPARE_ROOM));
    }

    #[test]
    fn a_batch_without_a_fence_is_open_again() {
        let (mut blocks, mut limbo) = limbo_of(&[512, 1024]);
        let number = limbo.close(&mut blocks, 1.0).unwrap();
        assert_eq!(limbo.fresh_bytes(), Bytes::ZERO);
        limbo.reopen(&blocks, number);
        assert_eq!(limbo.fresh_bytes(), Bytes::new(1536));
        assert!(limbo.oldest().is_none());
    }

    #[test]
    fn small_blocks_come_one_by_one_when_they_are_reclaimable() {
        let (mut blocks, mut limbo) = limbo_of(&[512, 1024, SMALL.get()]);
        let number = limbo.close(&mut blocks, 1.0).unwrap();
        assert!(!limbo.has_reclaimable());
        assert!(limbo.end_oldest(number, true).is_none());
        assert_eq!(limbo.blocks().count(), 3);
        let reclaimable: Vec<BlockId> = std::iter::from_fn(|| limbo.next_reclaimable()).collect();
        assert_eq!(sizes(&blocks, &reclaimable), [512, 1024, SMALL.get()]);
        assert!(!limbo.has_reclaimable());
    }

    #[test]
    fn no_large_or_direct_block_is_put_off() {
        let large = (SMALL.get() + 512, ChunkId(0));
        for (size, chunk) in [large, (512, ChunkId::DIRECT)] {
            let (mut blocks, mut limbo) = limbo_of(&[512]);
            let size = Bytes::new(size);
            let id = blocks.insert(Address::new(0), size, chunk, State::Limbo);
            limbo.push(id, blocks.get(id));
            let number = limbo.close(&mut blocks, 1.0).unwrap();
            assert_eq!(
                limbo.end_oldest(number, true).map(|batch| batch.len()),
                Some(2)
            );
        }
    }

    #[test]
    fn epochs_that_pile_up_are_joined_and_end_as_before() {
        let (mut blocks, mut limbo) = limbo_of(&[]);
        let count = 3 * MOST_EPOCHS as u64;
        let mut numbers = Vec::new();
        for n in 0..count {
            let size = Bytes::new((n + 1) * 512);
            // Every third block leaves limbo by another way.
            let state = if n % 3 == 0 {
                State::Gone
            } else {
                State::Limbo
            };
            let id = blocks.insert(Address::new(0), size, ChunkId(0), state);
            limbo.push(id, blocks.get(id));
            let number = limbo.close(&mut blocks, 1.0).unwrap();
            limbo.set_fence(number, u32::try_from(n).unwrap());
            numbers.push(number);
            assert!(limbo.epochs.len() <= MOST_EPOCHS);
        }
        // What a fence ends was in limbo before it was made.
        let mut seen = 0;
        for (n, &number) in (0..).zip(&numbers) {
            while let Some(batch) = limbo.end_oldest(number, false) {
                let newest = batch.iter().map(|&id| blocks.get(id).size.get() / 512 - 1);
                assert!(newest.max() <= Some(n));
                seen += batch
                    .iter()
                    .filter(|&&id| blocks.get(id).state == State::Limbo)
                    .count();
            }
        }
        assert_eq!(seen as u64, count - count.div_ceil(3));
        assert!(limbo.oldest().is_none());
    }
}
