//! Blocks that streams use besides the one that they belong to.
//!
//! Owns what was noted of live blocks, and the freed blocks that wait.
//! Invariant: a noted block goes back to its arena only after a mark later than
//! its free was reached on every stream that was noted. What was noted of it is
//! forgotten before that, since the address may be handed out again at once.
//! Cost: where nothing is noted, one atomic load per free; else a few looks at
//! the oldest blocks that wait, per request and per free.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::Streams;
use crate::address::Address;
use crate::arena::Arena;
use crate::driver::Whose;
use crate::error::{Code, FreeError};
use crate::patience::Patience;
use crate::sync::Lock;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// Blocks looked at in passing.
const POLLED: usize = 4;

/// Work that a block waits for.
pub(super) enum Use<D: Streams> {
    /// That of a stream, which is still to be marked.
    Of(D::Stream),
    /// That before a mark; made on this stream, where it is there still.
    Marked(D::Fence, Option<D::Stream>),
    /// That of a stream which is gone and was not marked.
    Lost,
}

/// What is noted of a block.
enum Note<D: Streams> {
    /// It is live, and these use it.
    Live(Vec<Use<D>>),
    /// It was freed, and waits.
    Freed,
}

/// A freed block that waits.
struct Waiting<D: Streams> {
    arena: Arc<Arena<D>>,
    address: Address,
    uses: Vec<Use<D>>,
}

struct Books<D: Streams> {
    notes: HashMap<Address, Note<D>>,
    waiting: VecDeque<Waiting<D>>,
    /// Threads that mark or look at what uses one, which is not among them meanwhile.
    looking: usize,
    /// Threads that give one back to its arena, for which the driver may wait.
    freeing: usize,
    /// Threads that end streams, for whom no other begins to look that need not.
    ending: usize,
    /// The memory is gone.
    is_retired: bool,
}

impl<D: Streams> Books<D> {
    /// Whether a block waits, or is looked at, or is about to be free.
    fn has_waiting(&self) -> bool {
        self.looking + self.freeing > 0 || !self.waiting.is_empty()
    }
}

pub(super) struct Uses<D: Streams> {
    books: Lock<Books<D>>,
    /// How many notes there are. Relaxed: who frees a block learned of the
    /// note from the thread that made it, and so sees it counted.
    noted: AtomicUsize,
}

impl<D: Streams> Uses<D> {
    pub(super) fn new() -> Uses<D> {
        Uses {
            books: Lock::new(Books {
                notes: HashMap::new(),
                waiting: VecDeque::new(),
                looking: 0,
                freeing: 0,
                ending: 0,
                is_retired: false,
            }),
            noted: AtomicUsize::new(0),
        }
    }

    /// Notes that a stream uses a live block.
    pub(super) fn note(&self, address: Address, stream: D::Stream) -> Result<(), FreeError> {
        self.with_note(address, |uses| {
            let known = |known: &Use<D>| matches!(known, Use::Of(other) if *other == stream);
            if !uses.iter().any(known) {
                uses.push(Use::Of(stream));
            }
        })
    }

    /// Notes a live block without saying who uses it.
    pub(super) fn note_nobody(&self, address: Address) -> Result<(), FreeError> {
        self.with_note(address, |_| ())
    }

    fn with_note(
        &self,
        address: Address,
        change: impl FnOnce(&mut Vec<Use<D>>),
    ) -> Result<(), FreeError> {
        let mut books = self.books.lock();
        let note = books.notes.entry(address).or_insert_with(|| {
            self.noted.fetch_add(1, Ordering::Relaxed);
            Note::Live(Vec::new())
        });
        match note {
            Note::Live(uses) => change(uses),
            Note::Freed => return Err(FreeError::NotLive),
        }
        Ok(())
    }

    /// Takes what was noted of a block that is being freed; none where that is
    /// nothing. Else it waits for that from then on, by [`Uses::wait_for`], or
    /// is [kept](Uses::keep).
    pub(super) fn take(&self, address: Address) -> Result<Option<Vec<Use<D>>>, FreeError> {
        if self.noted.load(Ordering::Relaxed) == 0 {
            return Ok(None);
        }
        let mut books = self.books.lock();
        let Some(note) = books.notes.get_mut(&address) else {
            return Ok(None);
        };
        match std::mem::replace(note, Note::Freed) {
            Note::Live(uses) => {
                books.looking += 1;
                Ok(Some(uses))
            }
            Note::Freed => Err(FreeError::NotLive),
        }
    }

    /// What was taken is kept for a graph: it waits for nothing.
    pub(super) fn keep(&self) {
        self.books.lock().looking -= 1;
    }

    /// Forgets what was noted of a block.
    pub(super) fn forget(&self, address: Address) {
        let mut books = self.books.lock();
        if books.notes.remove(&address).is_some() {
            self.noted.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Lets a freed block wait for the work that uses it.
    pub(super) fn wait_for(&self, arena: Arc<Arena<D>>, address: Address, uses: Vec<Use<D>>) {
        let mut waiting = Waiting {
            arena,
            address,
            uses,
        };
        // Else it is marked when somebody looks.
        if self.books.lock().ending == 0 {
            waiting.mark();
        }
        self.looked(waiting, false);
    }

    /// Whether any block waits.
    pub(super) fn has_waiting(&self) -> bool {
        self.books.lock().has_waiting()
    }

    /// Looks at the oldest blocks that wait.
    pub(super) fn poll(&self) {
        if self.noted.load(Ordering::Relaxed) == 0 {
            return;
        }
        for _ in 0..POLLED {
            let Some(mut waiting) = self.look(false) else {
                return;
            };
            let done = waiting.is_done();
            self.looked(waiting, done);
        }
    }

    /// Waits for all blocks that wait, as far as it can be waited for them.
    /// None is taken out meanwhile: a stream that ends must not have to wait.
    pub(super) fn wait_for_all(&self) {
        self.look_at_all();
        let marks: Vec<(Arc<Arena<D>>, D::Fence)> = {
            let books = self.books.lock();
            let all = books.waiting.iter();
            all.flat_map(Waiting::marks).collect()
        };
        for (arena, mark) in marks {
            if arena.driver().may_fence() {
                // Whether it could be waited for is asked below.
                let _ = arena.driver().wait(&mark, Whose::All);
            }
        }
        self.look_at_all();
        // What others are looking at is not to be missed.
        let mut patience = Patience::new();
        while {
            let books = self.books.lock();
            books.looking + books.freeing > 0
        } {
            patience.pause();
        }
    }

    /// Looks at all blocks that wait.
    pub(super) fn look_at_all(&self) {
        let left = self.books.lock().waiting.len();
        for _ in 0..left {
            let Some(mut waiting) = self.look(true) else {
                return;
            };
            let done = waiting.is_done();
            self.looked(waiting, done);
        }
    }

    /// Takes out the block that has waited longest to be looked at; none where that need not
    /// be and a stream ends.
    fn look(&self, is_needed: bool) -> Option<Waiting<D>> {
        let mut books = self.books.lock();
        if books.ending > 0 && !is_needed {
            return None;
        }
        let waiting = books.waiting.pop_front()?;
        books.looking += 1;
        Some(waiting)
    }

    fn looked(&self, waiting: Waiting<D>, done: bool) {
        let mut books = self.books.lock();
        books.looking -= 1;
        if books.is_retired {
            drop(books);
            waiting.note_free();
            return;
        }
        if !done {
            books.waiting.push_back(waiting);
            return;
        }
        books.freeing += 1;
        drop(books);
        let Waiting { arena, address, .. } = waiting;
        self.forget(address);
        // It was live: nobody else frees what waits. A direct allocation
        // that the driver does not take back was counted.
        let _ = arena.free(address);
        self.books.lock().freeing -= 1;
    }

    /// A stream ends; `fence` comes after its last work.
    pub(super) fn end_stream(&self, stream: D::Stream, fence: Option<&D::Fence>) {
        self.end_streams(
            |its| its == stream,
            || match fence {
                Some(fence) => Some(Use::Marked(fence.clone(), None)),
                None => Some(Use::Lost),
            },
        );
    }

    /// Streams are gone with their context, and so is their work.
    pub(super) fn forget_streams(&self, are_gone: impl Fn(D::Stream) -> bool) {
        self.end_streams(are_gone, || None);
    }

    /// Streams end: `left` is what is to be waited for instead of them.
    fn end_streams(&self, do_end: impl Fn(D::Stream) -> bool, left: impl Fn() -> Option<Use<D>>) {
        if self.noted.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut patience = Patience::new();
        self.books.lock().ending += 1;
        loop {
            let mut books = self.books.lock();
            let Books { notes, waiting, .. } = &mut *books;
            let live = notes.values_mut().filter_map(|note| match note {
                Note::Live(uses) => Some(uses),
                Note::Freed => None,
            });
            let freed = waiting.iter_mut().map(|waiting| &mut waiting.uses);
            for uses in live.chain(freed) {
                uses.retain_mut(|used| match used {
                    Use::Of(its) if do_end(*its) => left().map(|left| *used = left).is_some(),
                    Use::Marked(_, its) if its.is_some_and(&do_end) => {
                        *its = None;
                        true
                    }
                    _ => true,
                });
            }
            // A block that is being looked at may be waiting for one of them.
            if books.looking == 0 {
                books.ending -= 1;
                return;
            }
            drop(books);
            patience.pause();
        }
    }

    /// Forgets everything: the memory is gone. Who waited was freed.
    pub(super) fn retire(&self) {
        let waiting = {
            let mut books = self.books.lock();
            books.is_retired = true;
            books.notes.clear();
            self.noted.store(0, Ordering::Relaxed);
            std::mem::take(&mut books.waiting)
        };
        waiting.iter().for_each(Waiting::note_free);
    }
}

impl<D: Streams> Waiting<D> {
    /// It is gone with its memory.
    fn note_free(&self) {
        // It was live: nobody else frees what waits.
        let _ = self.arena.note_free(self.address);
    }

    /// Marks the streams that are still to be marked, as far as that can be
    /// done now.
    fn mark(&mut self) {
        let driver = self.arena.driver();
        for used in &mut self.uses {
            let fence = match used {
                Use::Of(stream) => driver.mark(*stream).ok().map(|mark| (mark, Some(*stream))),
                Use::Lost => driver.mark_all().map(|mark| (mark, None)),
                Use::Marked(..) => None,
            };
            if let Some((mark, stream)) = fence {
                *used = Use::Marked(mark, stream);
            }
        }
    }

    /// Drops the uses that have come to their end; whether none is left.
    fn is_done(&mut self) -> bool {
        let driver = self.arena.driver();
        if !driver.may_fence() {
            return false;
        }
        self.mark();
        let driver = self.arena.driver();
        self.uses.retain_mut(|used| {
            let Use::Marked(mark, stream) = used else {
                return true;
            };
            match driver.reached(mark) {
                Ok(reached) => !reached,
                Err(code) => {
                    // The mark became part of a capture: it marks nothing.
                    if let Some(stream) = stream.filter(|_| is_about_captures(code)) {
                        *used = Use::Of(stream);
                    }
                    true
                }
            }
        });
        self.uses.is_empty()
    }

    /// What it waits for, as far as that is marked.
    fn marks(&self) -> impl Iterator<Item = (Arc<Arena<D>>, D::Fence)> {
        self.uses.iter().filter_map(|used| match used {
            Use::Marked(mark, _) => Some((Arc::clone(&self.arena), mark.clone())),
            Use::Of(_) | Use::Lost => None,
        })
    }
}

fn is_about_captures(code: Code) -> bool {
    (900..=908).contains(&code.get())
}
