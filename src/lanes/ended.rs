//! Lanes whose streams are gone.
//!
//! Owns what is left of them, for other streams. Invariant: one is taken for another stream
//! after the work of the last, or empty; whoever asks the driver about that holds no lock, so
//! each end has a number, by which it is known again. Cost: a question for each, where a lane
//! is to be made.

use std::sync::Arc;

use crate::address::Bytes;
use crate::arena::Arena;
use crate::driver::Driver;

use super::{Lanes, Streams};

/// A lane without a stream.
pub(super) struct Ended<D: Driver> {
    /// Which end it was: the arena may serve another stream, and end again.
    number: u64,
    pub(super) arena: Arc<Arena<D>>,
    /// After the last work of its stream; none where that is not marked.
    pub(super) fence: Option<D::Fence>,
}

/// All of them.
pub(super) struct EndedLanes<D: Driver> {
    all: Vec<Ended<D>>,
    /// How many there were so far.
    count: u64,
}

impl<D: Driver> Default for EndedLanes<D> {
    fn default() -> EndedLanes<D> {
        EndedLanes {
            all: Vec::new(),
            count: 0,
        }
    }
}

impl<D: Driver> EndedLanes<D> {
    /// An arena has no stream any more.
    pub(super) fn add(&mut self, arena: Arc<Arena<D>>, fence: Option<D::Fence>) {
        self.count += 1;
        self.all.push(Ended {
            number: self.count,
            arena,
            fence,
        });
    }

    /// That of this end, if nobody has taken it.
    fn take(&mut self, number: u64) -> Option<Ended<D>> {
        let at = self.all.iter().position(|ended| ended.number == number)?;
        Some(self.all.swap_remove(at))
    }

    pub(super) fn arenas(&self) -> impl Iterator<Item = &Arc<Arena<D>>> {
        self.all.iter().map(|ended| &ended.arena)
    }
}

impl<D: Streams> Lanes<D> {
    /// An arena that was another stream's and can be anybody's now.
    pub(super) fn take_ended(&self) -> Option<Ended<D>> {
        let ended: Vec<_> = {
            let books = self.books.lock();
            let all = books.ended.all.iter();
            all.map(|ended| (ended.number, Arc::clone(&ended.arena), ended.fence.clone()))
                .collect()
        };
        let is_done = |arena: &Arena<D>, fence: &D::Fence| {
            arena.driver().may_fence() && arena.driver().reached(fence) == Ok(true)
        };
        let mut ended = ended.into_iter();
        let (number, ..) = ended.find(|(_, arena, fence)| {
            arena.is_empty() || fence.as_ref().is_some_and(|fence| is_done(arena, fence))
        })?;
        self.books.lock().ended.take(number)
    }

    /// Gives back what lanes have that ended with a live block, and hold none any more: so
    /// that they are empty, and for others.
    pub(super) fn trim_ended(&self) -> Bytes {
        let ended: Vec<Arc<Arena<D>>> = {
            let books = self.books.lock();
            let unfenced = books.ended.all.iter().filter(|ended| ended.fence.is_none());
            unfenced.map(|ended| Arc::clone(&ended.arena)).collect()
        };
        let unused = ended
            .iter()
            .filter(|arena| !arena.is_empty() && !arena.has_live());
        let given = unused.map(|arena| arena.trim());
        given.fold(Bytes::ZERO, Bytes::saturating_add)
    }
}
