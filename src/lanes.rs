//! Memory whose users say on which stream they use it.
//!
//! A *lane* is an arena that serves one stream alone: what is freed there can
//! be handed out there again at once and without a fence, because the stream's
//! own order protects it. This is how PyTorch and Paddle keep their memory. A
//! block that other streams used too is told to us as such, and waits after
//! its free until all of them have come past it (`uses`).
//!
//! While a stream captures a graph its requests come from a lane of that
//! capture: the graph will use these addresses whenever it is launched. What is
//! freed there serves the same stream in the same capture, and nobody else
//! until the program says that the graph is gone.
//!
//! Owns the lanes of one context, and the blocks that wait. Invariant: a lane
//! changes hands only after all work of the stream that had it is done, or
//! empty; memory of a capture goes nowhere. Its lock spans no driver call; of
//! others it is taken alone or before that of an arena's books. Cost: a search
//! among the lanes, of which there are as many as streams, per request; a
//! mark per stream for a block that other streams used.

mod ended;
mod idle;
mod uses;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::address::{Address, Bytes};
use crate::arena::Arena;
use crate::driver::Driver;
use crate::error::{Code, FreeError};
use crate::sync::Lock;
use crate::sync::atomic::{AtomicUsize, Ordering};
use ended::{Ended, EndedLanes};
use uses::Uses;

/// At so many lanes, at first, comes a look for those that nobody needs: where
/// ends of streams are not told, they would pile up.
const MANY: usize = 64;

/// So many streams are remembered whose lanes were given up.
const REMEMBERED: usize = 4096;

/// A driver that knows single streams.
pub trait Streams: Driver {
    /// A stream, as it is marked.
    type Stream: Copy + PartialEq + Send + Sync;

    /// Marks the work that a stream was given so far, in whatever context it
    /// is.
    ///
    /// # Errors
    /// What the driver answers; a code of captures (900 to 908) where it
    /// cannot be marked now because a capture goes on.
    fn mark(&self, stream: Self::Stream) -> Result<Self::Fence, Code>;

    /// Marks the work that all streams were given so far, also those that are
    /// gone; none where that could disturb a capture.
    fn mark_all(&self) -> Option<Self::Fence>;
}

/// Whom a lane serves.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LaneKey {
    /// The stream, by a number that no other stream of the process ever has,
    /// or none while this one lives and its end is told; in a capture, by one
    /// that no other stream has during that capture.
    pub stream: u64,
    /// The capture that it is part of.
    pub capture: Option<Capture>,
}

/// A capture of a stream.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Capture {
    /// A number that no other capture of the process ever has.
    pub number: u64,
    /// Whether it is told which other streams use a block. Where it is not,
    /// what is freed serves nobody again.
    pub told: bool,
}

struct Lane<D: Driver> {
    arena: Arc<Arena<D>>,
    /// Requests that are being served here.
    requests: usize,
    /// Freed blocks of a capture that nobody gets before the graph is gone.
    kept: Vec<Address>,
}

struct Books<D: Streams> {
    serving: BTreeMap<LaneKey, Lane<D>>,
    /// The keys of those that serve, by the numbers of their arenas.
    keys: BTreeMap<u32, LaneKey>,
    ended: EndedLanes<D>,
    /// At so many lanes comes a look for those that nobody needs. A stream that
    /// comes back after its lane was given up doubles it, once between looks:
    /// the program goes on using more streams than that.
    many: usize,
    has_doubled: bool,
    /// The streams whose lanes were given up.
    given_up: BTreeSet<LaneKey>,
    /// The context is gone: no lane serves or waits any more.
    is_retired: bool,
}

impl<D: Streams> Books<D> {
    /// The lane with this key, with one more request.
    fn enter(&mut self, key: LaneKey) -> Option<Arc<Arena<D>>> {
        let lane = self.serving.get_mut(&key)?;
        lane.requests += 1;
        Some(Arc::clone(&lane.arena))
    }

    /// The lane that this arena is.
    fn lane_of(&mut self, arena: &Arena<D>) -> Option<(LaneKey, &mut Lane<D>)> {
        let key = *self.keys.get(&arena.id().0)?;
        Some((key, self.serving.get_mut(&key)?))
    }

    /// A lane for this stream is to be made.
    fn comes(&mut self, key: LaneKey) {
        if self.given_up.remove(&key) && !self.has_doubled {
            self.has_doubled = true;
            self.many *= 2;
        }
    }

    /// Where there are many lanes, those that hold no live block.
    fn unused(&mut self) -> Vec<Lane<D>> {
        if self.serving.len() < self.many {
            return Vec::new();
        }
        let mut keys = Vec::new();
        let unused = self.take(|key, lane| {
            let unused = key.capture.is_none() && lane.requests == 0 && !lane.arena.has_live();
            keys.extend(unused.then_some(*key));
            unused
        });
        self.has_doubled = false;
        self.given_up.extend(keys);
        while self.given_up.len() > REMEMBERED {
            self.given_up.pop_first();
        }
        unused
    }

    /// Takes the lanes out that `which` picks.
    fn take(&mut self, mut which: impl FnMut(&LaneKey, &mut Lane<D>) -> bool) -> Vec<Lane<D>> {
        let mut picked = Vec::new();
        for (key, lane) in &mut self.serving {
            if which(key, lane) {
                picked.push(*key);
            }
        }
        let mut taken = Vec::with_capacity(picked.len());
        for lane in picked.iter().filter_map(|key| self.serving.remove(key)) {
            self.keys.remove(&lane.arena.id().0);
            taken.push(lane);
        }
        taken
    }

    /// The lanes of streams that serve, except those of captures.
    fn for_streams(&self) -> impl Iterator<Item = &Arc<Arena<D>>> {
        let serving = self.serving.iter();
        serving
            .filter(|(key, _)| key.capture.is_none())
            .map(|(_, lane)| &lane.arena)
    }
}

/// The lanes of one context.
pub struct Lanes<D: Streams> {
    books: Lock<Books<D>>,
    uses: Uses<D>,
    /// Lanes of captures. Relaxed: who frees a block of one learned of it from
    /// the thread that made the lane, and so sees it counted.
    captures: AtomicUsize,
}

impl<D: Streams> Lanes<D> {
    /// No lanes.
    #[must_use]
    pub fn new() -> Lanes<D> {
        Lanes {
            books: Lock::new(Books {
                serving: BTreeMap::new(),
                keys: BTreeMap::new(),
                ended: EndedLanes::default(),
                many: MANY,
                has_doubled: false,
                given_up: BTreeSet::new(),
                is_retired: false,
            }),
            uses: Uses::new(),
            captures: AtomicUsize::new(0),
        }
    }

    /// Makes a request of the lane with this key: the one that serves, one
    /// whose stream is gone and done, or the one that `make` makes; none where
    /// it makes none. The lane stays its stream's meanwhile.
    pub fn serve<R>(
        &self,
        key: LaneKey,
        make: impl FnOnce() -> Option<Arc<Arena<D>>>,
        request: impl FnOnce(&Arc<Arena<D>>) -> R,
    ) -> Option<R> {
        let arena = self.lane(key, make)?;
        let served = request(&arena);
        let mut books = self.books.lock();
        if let Some((_, lane)) = books.lane_of(&arena) {
            lane.requests = lane.requests.saturating_sub(1);
        }
        Some(served)
    }

    /// The lane with this key, with one more request.
    fn lane(
        &self,
        key: LaneKey,
        make: impl FnOnce() -> Option<Arc<Arena<D>>>,
    ) -> Option<Arc<Arena<D>>> {
        if let Some(arena) = self.books.lock().enter(key) {
            return Some(arena);
        }
        self.give_up_unused(key);
        let (arena, fence) = match self.take_ended() {
            Some(Ended { arena, fence, .. }) => (arena, fence),
            None => (make()?, None),
        };
        let mut books = self.books.lock();
        if books.is_retired {
            drop(books);
            arena.retire();
            return None;
        }
        if let Some(serving) = books.enter(key) {
            // Another thread was faster; ours is kept for the next stream.
            books.ended.add(arena, fence);
            return Some(serving);
        }
        // Its addresses stay in the graph.
        arena.hold(key.capture.is_some());
        books.keys.insert(arena.id().0, key);
        let lane = Lane {
            arena: Arc::clone(&arena),
            requests: 1,
            kept: Vec::new(),
        };
        books.serving.insert(key, lane);
        if key.capture.is_some() {
            self.captures.fetch_add(1, Ordering::Relaxed);
        }
        Some(arena)
    }

    /// Before a lane is made for this stream: where there are many, takes their
    /// streams' memory from those that hold no live block.
    fn give_up_unused(&self, key: LaneKey) {
        let given_up: Vec<Arc<Arena<D>>> = {
            let mut books = self.books.lock();
            books.comes(key);
            let unused = books.unused();
            let given_up: Vec<_> = unused.into_iter().map(|lane| lane.arena).collect();
            for arena in &given_up {
                books.ended.add(Arc::clone(arena), None);
            }
            given_up
        };
        for arena in given_up {
            arena.trim();
        }
    }

    /// Makes available what other streams used and are done with, without
    /// waiting; to come before a request.
    pub fn poll(&self) {
        self.uses.poll();
    }

    /// Notes that a stream uses a live block of a lane besides the lane's own.
    ///
    /// # Errors
    /// [`FreeError::NotLive`] where no block starts there.
    pub fn record(
        &self,
        arena: &Arc<Arena<D>>,
        address: Address,
        number: u64,
        stream: impl FnOnce() -> D::Stream,
    ) -> Result<(), FreeError> {
        if !starts_at(arena, address) {
            return Err(FreeError::NotLive);
        }
        let own = {
            let mut books = self.books.lock();
            let lane = books.lane_of(arena);
            lane.is_some_and(|(key, _)| key.stream == number)
        };
        if own {
            return Ok(());
        }
        self.uses.note(address, stream())
    }

    /// Frees a block of a lane.
    ///
    /// # Errors
    /// As [`Arena::free`].
    pub fn free(&self, arena: &Arc<Arena<D>>, address: Address) -> Result<(), FreeError> {
        self.free_by(arena, address, || arena.free(address))
    }

    /// The same by this call, where no other stream's use is recorded.
    ///
    /// # Errors
    /// As [`Arena::free`].
    pub fn free_by(
        &self,
        arena: &Arc<Arena<D>>,
        address: Address,
        free: impl FnOnce() -> Result<(), FreeError>,
    ) -> Result<(), FreeError> {
        self.uses.poll();
        let capture = self.capture_of(arena);
        if let Some(Capture { told, .. }) = capture {
            let block = arena.locate(address).filter(|its| its.block == address);
            let Some(block) = block else {
                return free();
            };
            // A direct allocation would go back to the driver.
            if !told || block.is_direct {
                self.uses.note_nobody(address)?;
            }
        }
        let Some(used) = self.uses.take(address)? else {
            return free();
        };
        if capture.is_some() && self.keep(arena, address) {
            self.uses.keep();
        } else {
            self.uses.wait_for(Arc::clone(arena), address, used);
        }
        Ok(())
    }

    /// Whether this arena is the lane of a capture.
    #[must_use]
    pub fn is_of_capture(&self, arena: &Arc<Arena<D>>) -> bool {
        self.capture_of(arena).is_some()
    }

    fn capture_of(&self, arena: &Arc<Arena<D>>) -> Option<Capture> {
        if self.captures.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut books = self.books.lock();
        books.lane_of(arena)?.0.capture
    }

    /// Keeps a freed block of a capture; false where the capture's memory was
    /// given up meanwhile.
    fn keep(&self, arena: &Arc<Arena<D>>, address: Address) -> bool {
        let mut books = self.books.lock();
        let lane = books.lane_of(arena);
        let lane = lane.filter(|(key, _)| key.capture.is_some());
        lane.map(|(_, lane)| lane.kept.push(address)).is_some()
    }

    /// A stream ends. `fence` was made after its last work; without one its
    /// memory serves another stream only when it has gone through the driver.
    pub fn end_stream(&self, number: u64, stream: D::Stream, fence: Option<&D::Fence>) {
        {
            let mut books = self.books.lock();
            let its = LaneKey {
                stream: number,
                capture: None,
            };
            books.given_up.remove(&its);
            if let Some(Lane { arena, .. }) = books.serving.remove(&its) {
                books.keys.remove(&arena.id().0);
                books.ended.add(arena, fence.cloned());
            }
        }
        self.uses.end_stream(stream, fence);
    }

    /// A context ends with its streams, which may have used blocks of other
    /// contexts' lanes: their work is over.
    pub fn forget_streams(&self, are_gone: impl Fn(D::Stream) -> bool) {
        self.uses.forget_streams(are_gone);
    }

    /// The graphs of these captures are gone: their memory is free. How many
    /// bytes went back to the driver.
    pub fn release_captures(&self, gone: impl Fn(u64) -> bool) -> Bytes {
        let released: Vec<Lane<D>> = {
            let mut books = self.books.lock();
            let is_over = |key: &LaneKey| key.capture.is_some_and(|capture| gone(capture.number));
            let released = books.take(|key, _| is_over(key));
            self.captures.fetch_sub(released.len(), Ordering::Relaxed);
            released
        };
        let mut bytes = Bytes::ZERO;
        for Lane { arena, kept, .. } in released {
            for address in kept {
                self.uses.forget(address);
                // It was live: nothing else frees what is kept.
                let _ = arena.free(address);
            }
            arena.hold(false);
            bytes = bytes.saturating_add(arena.trim());
            // What is live still will be used and freed by its stream, which
            // is there still: that lane is for nobody before it is empty.
            let fence = if arena.has_live() || arena.is_empty() {
                None
            } else {
                arena.driver().mark_all()
            };
            let mut books = self.books.lock();
            if books.is_retired {
                // It was in neither list when the others were.
                drop(books);
                arena.retire();
            } else {
                books.ended.add(arena, fence);
            }
        }
        bytes.saturating_add(self.trim_ended())
    }

    /// Whether freed blocks wait for other streams.
    #[must_use]
    pub fn has_uses(&self) -> bool {
        self.uses.has_waiting()
    }

    /// Looks at the blocks that other streams used; whether none waits any more.
    pub fn are_uses_over(&self) -> bool {
        self.uses.look_at_all();
        !self.uses.has_waiting()
    }

    /// Forgets everything: the context is gone and its memory with it. The
    /// arenas of the lanes there were.
    pub fn retire(&self) -> Vec<Arc<Arena<D>>> {
        let (serving, ended) = {
            let mut books = self.books.lock();
            books.is_retired = true;
            let serving = std::mem::take(&mut books.serving);
            books.keys.clear();
            self.captures.store(0, Ordering::Relaxed);
            (serving, std::mem::take(&mut books.ended))
        };
        self.uses.retire();
        let serving = serving.into_values().map(|Lane { arena, kept, .. }| {
            for address in kept {
                // It was live: nothing else frees what is kept.
                let _ = arena.note_free(address);
            }
            arena
        });
        let ended = ended.arenas().cloned();
        let arenas: Vec<_> = serving.chain(ended).collect();
        arenas.iter().for_each(|arena| arena.retire());
        arenas
    }
}

/// Whether a live block starts there.
fn starts_at<D: Driver>(arena: &Arena<D>, address: Address) -> bool {
    let located = arena.locate(address);
    located.is_some_and(|located| located.block == address)
}

impl<D: Streams> Default for Lanes<D> {
    fn default() -> Lanes<D> {
        Lanes::new()
    }
}
