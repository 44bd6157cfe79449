//! One recording of all that happens in a process's arenas.
//!
//! Owns the order of the events, and where in the file the next one goes.
//! Invariant: an event is in the file, whole, before the lock of its arena is
//! let go, and nothing under that lock waits for a disk: room is made by
//! [`Recording::tend`], which callers that hold nothing run. What finds no room
//! is counted, and the gap is told. Cost: one lock more, a reading of the
//! clock, and some five bytes an event (docs/recording.md has the form).

mod block;
mod clock;
mod encode;
mod form;
mod known;
mod mark;
mod read;
mod tend;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
mod writer;

use crate::address::Bytes;
use crate::stats::{Event, StackId};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Lock, Mutex, MutexGuard};

pub(crate) use clock::EventClock;
use form::Out;
use known::Known;
pub use mark::{ArenaOrder, FenceSeen, Mark, Place, RecordFrame};
pub use read::{Entry, Found, RecordReader, Totals, Unreadable, is_recording};
use tend::Tender;
pub use tend::{Recorded, Standing};
use writer::Writer;

/// Where the bytes go: a file that stays what it is when the process is killed.
/// None of these waits for anything but [`extend`](Medium::extend), which is
/// called where nothing is held.
pub trait Medium: Send + Sync {
    /// Writes bytes at a place that `extend` has made.
    fn put(&self, at: u64, bytes: &[u8]);
    /// Writes a number there. Whoever reads it, also after the end of this process,
    /// finds all that was put before.
    fn publish(&self, at: u64, value: u32);
    /// Puts bytes and publishes a number, which is how each event is written.
    fn append(&self, at: u64, bytes: &[u8], number_at: u64, value: u32);
    /// Reads what was put.
    fn get(&self, at: u64, bytes: &mut [u8]);
    /// Makes room from one place up to another; false where there is none, which has
    /// been said.
    fn extend(&self, from: u64, to: u64) -> bool;
    /// What lies between these places is hardly touched again.
    fn leave(&self, from: u64, to: u64);
    /// Nothing is put any more: the file ends here.
    fn end(&self, length: u64);
    /// The recording has come to its bound, which is to be said.
    fn is_full(&self);
    /// The innermost place of a call stack first; none where that is not known.
    fn stack(&self, stack: StackId) -> Vec<Place>;
    /// Has every arena tell what it holds ([`crate::Arena::tell_blocks`]).
    fn tell_all(&self);
}

/// How large a recording becomes, and what happens then.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct RecordBound {
    /// The most bytes of the file.
    pub most: Bytes,
    /// Whether the oldest events make room for new ones.
    pub ring: bool,
}

/// Waits for it. A panic of another thread does not matter: the values are whole.
fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    match lock.lock() {
        Ok(locked) => locked,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// See the module.
pub struct Recording {
    medium: Box<dyn Medium>,
    clock: EventClock,
    /// Something is to be done by [`Recording::tend`]. Relaxed: whoever misses it
    /// does it at the next call.
    is_due: AtomicBool,
    writer: Lock<Writer>,
    tender: Mutex<Tender>,
    known: Mutex<Known>,
    /// What each arena is, by its number.
    arenas: Mutex<Vec<String>>,
}

impl std::fmt::Debug for Recording {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recording").finish_non_exhaustive()
    }
}

impl Recording {
    /// Begins a recording, with a JSON object that says of what it is. None where
    /// the medium has no room for it.
    #[must_use]
    pub fn begin(medium: Box<dyn Medium>, bound: RecordBound, text: &str) -> Option<Recording> {
        let clock = EventClock::new();
        let tender = Tender::new(bound);
        let room = tender.first();
        if !medium.extend(0, room) {
            return None;
        }
        let blocks = tender.ring_blocks();
        let mut writer = Writer::new(blocks, room, tender.most());
        form::put_head(&*medium, blocks, text);
        writer.open(&*medium, clock.now_us());
        Some(Recording {
            medium,
            clock,
            is_due: AtomicBool::new(false),
            writer: Lock::new(writer),
            tender: Mutex::new(tender),
            known: Mutex::new(Known::default()),
            arenas: Mutex::new(Vec::new()),
        })
    }

    /// The clock of its events.
    pub(crate) fn clock(&self) -> EventClock {
        self.clock
    }

    /// A new arena, of which this JSON object says what it is. The number by which its
    /// events name it.
    pub fn arena(&self, text: &str) -> u32 {
        let mut arenas = locked(&self.arenas);
        let arena = u32::try_from(arenas.len()).unwrap_or(u32::MAX);
        arenas.push(text.to_owned());
        drop(arenas);
        let text = text.to_owned();
        self.mark(Some(arena), &Mark::Arena { arena, text });
        arena
    }

    /// Something happened in an arena.
    #[inline]
    pub(crate) fn event(&self, arena: u32, event: &Event) {
        self.event_or_told(arena, event, None);
    }

    /// A block or a segment is there already: what [`Medium::tell_all`] is for.
    /// `waits`: the program has freed it.
    pub(crate) fn told(&self, arena: u32, event: &Event, waits: bool) {
        self.event_or_told(arena, event, Some(waits));
    }

    #[inline]
    fn event_or_told(&self, arena: u32, event: &Event, told: Option<bool>) {
        let whence = (Some(arena), clock::thread(), event.time_us);
        let is_due = {
            let mut writer = self.writer.lock();
            writer.event(&*self.medium, whence, event, told);
            writer.is_due()
        };
        if is_due {
            self.is_due.store(true, Ordering::Relaxed);
        }
    }

    /// Something happened that is no event of a block: in an arena, or anywhere.
    pub fn mark(&self, arena: Option<u32>, mark: &Mark) {
        self.mark_at(arena, self.clock.now_us(), mark);
    }

    /// The same at this time.
    pub(crate) fn mark_at(&self, arena: Option<u32>, time_us: u64, mark: &Mark) {
        let mut said = Out::new();
        let code = mark.write(&mut said);
        let whence = (arena, clock::thread(), time_us);
        let is_due = {
            let mut writer = self.writer.lock();
            writer.mark(&*self.medium, whence, code, said.bytes());
            writer.is_due()
        };
        if is_due {
            self.is_due.store(true, Ordering::Relaxed);
        }
    }

    /// Makes sure that the recording knows a call stack before an event names it. The
    /// caller holds nothing.
    pub fn know(&self, stack: StackId) {
        let Some(number) = stack.number() else {
            return;
        };
        let telling = self.writer.lock().telling;
        if locked(&self.known).is_known(telling, number) {
            return;
        }
        // Not under the lock: it may take a while.
        let places = self.medium.stack(stack);
        let mut known = locked(&self.known);
        for mark in known.define(stack, places) {
            self.mark(None, &mark);
        }
    }

    /// Makes room, and seals what is complete, where that is due. The caller holds
    /// nothing.
    #[inline]
    pub fn tend(&self) {
        if self.is_due.load(Ordering::Relaxed) {
            self.tend_now();
        }
    }
}
