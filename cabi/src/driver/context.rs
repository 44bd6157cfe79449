//! Marks in the work of one context.
//!
//! Owns the context's events, which are recycled and never destroyed (they
//! end with the context). Invariant: every call finds the context current and
//! alive, disturbs no stream capture, passes our own doors, and leaves the
//! thread as it was; a context does not end while a call is made in it. A
//! thread that asks for nothing in a context does not wait for its end: marks
//! are made and asked by [`Context::call_now`], which is answered at once. Cost:
//! three cheap driver calls and the passing of a gate around each; nothing of
//! this is on the path of a hit.

mod current;
mod stay;

use std::collections::VecDeque;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use spin::mutex::SpinMutex;
use vramalloc_core::Code;
use vramalloc_core::driver::IfEnding;
use vramalloc_core::gate::Gate;
use vramalloc_core::patience::{Brief, Patience, wait_within};

use crate::driver::fence::{Events, all_reached};
use crate::driver::reserve::Reserve;
use crate::process::guard;
use crate::real;
use crate::types::{CUcontext, CUevent, CUstream, CudaResult, EVENT_DISABLE_TIMING};

use current::{Relaxed, ask_current};

/// Makes calls in a context, and marks in its work.
pub(crate) struct Context {
    /// A `CUcontext`, as a number: it is handed back to the driver and never
    /// looked into.
    handle: usize,
    /// Events that mark nothing at present.
    idle: SpinMutex<Vec<usize>, Brief>,
    /// Marks that were made here for others' fences and that nobody has found
    /// reached yet, the oldest first.
    queued: SpinMutex<VecDeque<Events>, Brief>,
    /// Every call in the context passes it. Closed while the context may be
    /// ending, and for good when it has ended.
    calls: Gate,
    /// Threads whose call is held back.
    waiting: AtomicUsize,
    /// When its latest end began, or was over. Its lock is taken alone.
    since: SpinMutex<Instant, Brief>,
    /// The context is gone, with its work and its events.
    ended: AtomicBool,
    /// And nothing of ours knows its memory any more.
    forgotten: AtomicBool,
    /// How often it turned out that the context had not ended.
    survived: AtomicUsize,
    /// How many ends are under way that began when all work was done.
    // Relaxed: it stands for itself.
    quiet: AtomicUsize,
    /// Memory of it that is there to be waited with.
    reserve: Reserve,
    /// The error that has ended its work, where a call met one; else 0.
    // Relaxed: it stands for itself.
    error: AtomicU32,
}

/// Marks for others' fences that stand in a context's queue. Devices have room
/// for some thousand things; programs rarely run as far ahead as to feel these.
const MOST_QUEUED: usize = 64;

/// An end is waited for so long after it began, by whomever and however often:
/// what it takes for it to end may be something that one of them does next.
const MOST_OPEN: Duration = Duration::from_secs(5);

/// What is known of a context that was perhaps ending.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Decision {
    /// It has not ended.
    Lives,
    /// It is gone, and forgotten.
    Ended,
    /// Nothing yet.
    Open,
}

/// Whether an error stays: all work of the context has ended by it.
pub(crate) fn lasts(code: Code) -> bool {
    matches!(code.get(), 214 | 700 | 702 | 710 | 714..=719)
}

impl Context {
    pub(crate) fn new(handle: CUcontext) -> Arc<Context> {
        Arc::new(Context {
            handle: handle.expose_provenance(),
            idle: SpinMutex::new(Vec::new()),
            queued: SpinMutex::new(VecDeque::new()),
            calls: Gate::new(),
            waiting: AtomicUsize::new(0),
            since: SpinMutex::new(Instant::now()),
            ended: AtomicBool::new(false),
            forgotten: AtomicBool::new(false),
            survived: AtomicUsize::new(0),
            quiet: AtomicUsize::new(0),
            reserve: Reserve::new(),
            error: AtomicU32::new(0),
        })
    }

    /// The last error that a call has met of those that stay.
    pub(crate) fn lasting_error(&self) -> Option<Code> {
        Code::check(self.error.load(Ordering::Relaxed)).err()
    }

    pub(crate) fn reserve(&self) -> &Reserve {
        &self.reserve
    }

    pub(crate) fn handle(&self) -> CUcontext {
        ptr::with_exposed_provenance_mut(self.handle)
    }

    /// The context has ended: what was marked in it counts as done. False
    /// where that was known.
    // Relaxed, here and where it is read: who reads an old value finds the
    // gate closed and reads again.
    pub(crate) fn end(&self) -> bool {
        let is_new = !self.ended.swap(true, Ordering::Relaxed);
        if is_new {
            *self.since.lock() = Instant::now();
            self.calls.close();
            // They hold the context in turn.
            let queued = std::mem::take(&mut *self.queued.lock());
            drop(queued);
            self.reserve.forget();
        }
        is_new
    }

    /// The context may end: waits for the calls that other threads are making
    /// in it, and holds back further ones until `resume`, or for good after
    /// `end`. Those that were held back before come first: a thread that asks
    /// for the end again and again must not keep them out for ever. `quiet`: it
    /// surely ends, and all its work is done.
    pub(crate) fn pause(&self, quiet: bool) {
        let mut patience = Patience::new();
        // Relaxed: it stands for itself.
        while self.waiting.load(Ordering::Relaxed) > 0 && !self.calls.is_closed() {
            patience.pause();
        }
        self.quiet.fetch_add(usize::from(quiet), Ordering::Relaxed);
        *self.since.lock() = Instant::now();
        self.calls.close();
    }

    /// Takes one `pause` back.
    pub(crate) fn resume(&self, quiet: bool) {
        self.quiet.fetch_sub(usize::from(quiet), Ordering::Relaxed);
        if !self.has_ended() {
            // Relaxed: it stands for itself.
            self.survived.fetch_add(1, Ordering::Relaxed);
        }
        self.calls.open(1);
    }

    /// Waits until it is known whether the context, which may be ending, has
    /// ended. Its end waits for no thread that waits here, unless the driver
    /// makes it wait: for work whose callbacks ask for something, say, which
    /// they must not. So the wait has an end.
    pub(crate) fn await_decision(&self) -> Decision {
        let before = self.survived.load(Ordering::Relaxed);
        if !self.is_paused() {
            return Decision::Lives;
        }
        if !guard::may_wait() {
            return Decision::Open;
        }
        let decided = || {
            if self.is_forgotten() {
                return Some(Decision::Ended);
            }
            let lives = self.survived.load(Ordering::Relaxed) != before || !self.is_paused();
            lives.then_some(Decision::Lives)
        };
        self.while_open(|| decided().is_some());
        decided().unwrap_or(Decision::Open)
    }

    /// Waits until `done` says yes, for as long as an end is waited for.
    fn while_open(&self, done: impl FnMut() -> bool) {
        let left = MOST_OPEN.saturating_sub(self.since.lock().elapsed());
        wait_within(left, done);
    }

    /// Whether the context may be ending, or has ended.
    pub(crate) fn is_paused(&self) -> bool {
        self.calls.is_closed()
    }

    /// Whether it is ending with all its work done: nobody gives it any more.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet.load(Ordering::Relaxed) > 0
    }

    /// All is forgotten that was known of the context, which has ended.
    pub(crate) fn is_forgotten(&self) -> bool {
        // Acquire: pairs with the Release in `forgot`.
        self.forgotten.load(Ordering::Acquire)
    }

    /// Notes that.
    pub(crate) fn forgot(&self) {
        // Release: pairs with the Acquire in `is_forgotten`.
        self.forgotten.store(true, Ordering::Release);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Makes `call` in the context, with the thread's calls disturbing no
    /// capture.
    ///
    /// # Errors
    /// What the driver answers; [`Code::INVALID_CONTEXT`] where the context is
    /// gone, [`Code::NOT_READY`] where nobody can tell for too long.
    pub(crate) fn call(&self, call: impl FnOnce() -> CudaResult) -> Result<(), Code> {
        let made = self.stay(IfEnding::Wait, |within| within.call(call));
        made.unwrap_or_else(|| Err(self.not_made()))
    }

    /// The same from whatever context is current, and at once: for memory of
    /// this context that the program itself gives back from there.
    ///
    /// # Errors
    /// As `call_now`.
    pub(crate) fn call_from_here(&self, call: impl FnOnce() -> CudaResult) -> Result<(), Code> {
        let made = self.stay(IfEnding::Leave, |within| {
            within.make(|| {
                ask_current()?;
                let _relaxed = Relaxed::enter();
                Code::check(call())
            })
        });
        made.unwrap_or_else(|| Err(self.not_made()))
    }

    /// As `call`, for a thread that need not have asked for anything in the
    /// context: it does not wait where that may be ending.
    ///
    /// # Errors
    /// As `call`; [`Code::NOT_READY`] where the context may be ending, and the
    /// call was not made.
    pub(crate) fn call_now(&self, call: impl FnOnce() -> CudaResult) -> Result<(), Code> {
        self.within_now(|| Code::check(call()))
    }

    /// The same for several calls.
    ///
    /// # Errors
    /// As `call_now`.
    pub(crate) fn within_now(&self, calls: impl FnOnce() -> Result<(), Code>) -> Result<(), Code> {
        let made = self.stay(IfEnding::Leave, |within| within.calls(calls));
        made.unwrap_or_else(|| Err(self.not_made()))
    }

    /// Why a call was not made.
    fn not_made(&self) -> Code {
        if self.has_ended() {
            Code::INVALID_CONTEXT
        } else {
            Code::NOT_READY
        }
    }

    /// Notes an error that stays.
    fn noted(&self, result: Result<(), Code>) -> Result<(), Code> {
        if let Err(code) = result
            && lasts(code)
        {
            self.error.store(code.get(), Ordering::Relaxed);
        }
        result
    }

    /// Whether another context's fence may mark this one: few such marks are
    /// standing in its queue.
    pub(crate) fn has_room(&self) -> bool {
        loop {
            let oldest = {
                let queued = self.queued.lock();
                let count: usize = queued.iter().map(|marks| marks.len()).sum();
                match queued.front() {
                    Some(oldest) if count >= MOST_QUEUED => Arc::clone(oldest),
                    _ => return true,
                }
            };
            if all_reached(&oldest) == Ok(false) {
                return false;
            }
            let mut queued = self.queued.lock();
            if queued
                .front()
                .is_some_and(|front| Arc::ptr_eq(front, &oldest))
            {
                queued.pop_front();
            }
        }
    }

    /// These marks were made here for another context's fence.
    pub(crate) fn stands_in_queue(&self, marks: &Events) {
        if !marks.is_empty() {
            self.queued.lock().push_back(Arc::clone(marks));
        }
    }

    /// Marks the whole context with one event.
    pub(crate) fn record(self: &Arc<Context>) -> Result<Arc<Event>, Code> {
        let mark = self.blank()?;
        // SAFETY: the context, and an event of it.
        self.call_now(|| unsafe { real::cuCtxRecordEvent(self.handle(), mark.event()) })?;
        Ok(mark)
    }

    /// Marks one stream of the context, which must stay alive meanwhile.
    pub(crate) fn record_in(self: &Arc<Context>, stream: CUstream) -> Result<Arc<Event>, Code> {
        let mark = self.blank()?;
        // SAFETY: an event of the context; the stream is the caller's promise.
        self.call_now(|| unsafe { real::cuEventRecord(mark.event(), stream) })?;
        Ok(mark)
    }

    /// Waits for the whole context: the last resort where no mark can be
    /// made.
    pub(crate) fn synchronize(&self) -> Result<(), Code> {
        // SAFETY: no arguments.
        self.call_now(|| unsafe { real::cuCtxSynchronize() })
    }

    /// An event of this context, to be recorded.
    fn blank(self: &Arc<Context>) -> Result<Arc<Event>, Code> {
        Ok(Arc::new(Event {
            event: self.event()?,
            context: Arc::clone(self),
        }))
    }

    fn event(&self) -> Result<usize, Code> {
        let idle = self.idle.lock().pop();
        if let Some(event) = idle {
            return Ok(event);
        }
        let mut event: CUevent = ptr::null_mut();
        // SAFETY: a place for the answer.
        self.call_now(|| unsafe { real::cuEventCreate(&raw mut event, EVENT_DISABLE_TIMING) })?;
        Ok(event.expose_provenance())
    }
}

/// An event that was recorded. Back to its context with the value.
pub(crate) struct Event {
    event: usize,
    context: Arc<Context>,
}

impl Drop for Event {
    fn drop(&mut self) {
        self.context.idle.lock().push(self.event);
    }
}

impl Event {
    fn event(&self) -> CUevent {
        ptr::with_exposed_provenance_mut(self.event)
    }

    /// Whether the work before the mark is done, as far as that can be told now.
    pub(crate) fn reached(&self) -> Result<bool, Code> {
        // SAFETY: an event of the context that is never destroyed.
        self.ask(|| unsafe { real::cuEventQuery(self.event()) })
    }

    /// Waits until the work before the mark is done; false where nobody can
    /// tell, because the context is ending and does not come to its end.
    pub(crate) fn wait(&self) -> Result<bool, Code> {
        // SAFETY: an event of the context that is never destroyed.
        let wait = || self.ask(|| unsafe { real::cuEventSynchronize(self.event()) });
        loop {
            if wait()? {
                return Ok(true);
            }
            if self.context.await_decision() == Decision::Open {
                return Ok(false);
            }
        }
    }

    fn ask(&self, call: impl FnOnce() -> CudaResult) -> Result<bool, Code> {
        match self.context.call_now(call) {
            Ok(()) => Ok(true),
            Err(_) if self.context.has_ended() => Ok(true),
            Err(Code::NOT_READY) => Ok(self.context.is_quiet()),
            Err(code) => Err(code),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::process::guard::own_call;

    fn wait(context: &Context) -> Decision {
        guard::serve(|| context.await_decision()).unwrap_or(Decision::Open)
    }

    #[test]
    fn a_decision_is_waited_for_where_it_may_be() {
        let _turn = guard::turn();
        let context = Context::new(ptr::null_mut());
        assert_eq!(wait(&context), Decision::Lives);
        context.pause(false);
        // From inside a call to the driver nobody waits.
        let asked = guard::serve(|| own_call(|| context.await_decision()));
        assert_eq!(asked, Ok(Decision::Open));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| wait(&context));
            // It misses no end that was none, however soon the next begins.
            while !waiting.is_finished() {
                context.resume(false);
                context.pause(false);
            }
            assert_eq!(waiting.join().unwrap(), Decision::Lives);
            let waiting = scope.spawn(|| wait(&context));
            assert!(context.end());
            context.forgot();
            assert_eq!(waiting.join().unwrap(), Decision::Ended);
        });
        context.resume(false);
        assert_eq!(wait(&context), Decision::Ended);
    }

    #[test]
    fn an_end_that_takes_long_is_waited_for_once() {
        let _turn = guard::turn();
        let context = Context::new(ptr::null_mut());
        context.pause(false);
        // At once: the thread asked for nothing there.
        assert_eq!(context.call_now(|| 0), Err(Code::NOT_READY));
        assert_eq!(context.call_from_here(|| 0), Err(Code::NOT_READY));
        *context.since.lock() -= MOST_OPEN;
        let start = Instant::now();
        for _ in 0..10 {
            assert_eq!(wait(&context), Decision::Open);
            assert_eq!(context.call(|| 0), Err(Code::NOT_READY));
            assert_eq!(context.stay(IfEnding::Wait, |_| ()), None);
        }
        assert!(start.elapsed() < MOST_OPEN);
        context.resume(false);
        assert_eq!(context.stay(IfEnding::Leave, |_| 7), Some(7));
    }
}
