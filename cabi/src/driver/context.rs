//! Calls in one context.
//!
//! Invariant: every call finds the context current and
//! alive, disturbs no stream capture, passes our own doors, and leaves the
//! thread as it was; a context does not end while a call is made in it. A
//! thread that asks for nothing in a context does not wait for its end, so
//! [`events`] are recorded and queried by [`Context::call_now`], which returns at
//! once. Cost: three cheap driver calls and the passing of a gate around each
//! call; none of it on the path of a hit.

mod current;
mod events;
mod guests;
mod stay;

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use spin::mutex::SpinMutex;
use vramalloc_core::Code;
use vramalloc_core::driver::IfEnding;
use vramalloc_core::gate::Gate;
use vramalloc_core::patience::{Brief, Patience, wait_within};

use crate::driver::own_stream::KeptStream;
use crate::driver::reserve::Reserve;
use crate::process::{guard, shortcut};
use crate::real;
use crate::types::{CUcontext, CudaResult};

use current::{Relaxed, ask_current};
pub(crate) use events::Event;
use events::EventPool;
use guests::Guests;

/// Makes calls in a context, and records events in its work.
pub(crate) struct Context {
    /// A `CUcontext`, as a number: it goes back to the driver and is never
    /// dereferenced.
    handle: usize,
    events: EventPool,
    /// Every call in the context passes it. Closed while the context may be
    /// ending, and for good when it has ended.
    calls: Gate,
    /// How many threads have a call that is held back.
    waiting: AtomicUsize,
    /// When its latest end began, or was over. Its lock is taken alone.
    since: SpinMutex<Instant, Brief>,
    /// The context is gone, with its work and its events.
    ended: AtomicBool,
    /// The context is gone, and nothing of ours refers to its memory any more.
    forgotten: AtomicBool,
    /// How often an end that was under way left the context alive.
    survived: AtomicUsize,
    /// How many ends are under way that began when all work was done.
    // Relaxed: it guards no other memory.
    quiet: AtomicUsize,
    /// Memory of the context that is kept back for waits.
    reserve: Reserve,
    own_stream: KeptStream,
    guests: Guests,
    /// The lasting error that has ended its work, if a call met one; else 0.
    // Relaxed: it guards no other memory.
    error: AtomicU32,
}

/// How long an end is waited for after it began, by all threads together: it
/// may depend on what one of them does next.
const MOST_OPEN: Duration = Duration::from_secs(5);

/// What is known of a context that may have been ending.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Decision {
    /// It has not ended.
    Lives,
    /// It is gone and forgotten.
    Ended,
    /// It is not decided yet.
    Open,
}

/// Whether an error lasts: it has ended all work of the context.
pub(crate) fn lasts(code: Code) -> bool {
    matches!(code.get(), 214 | 700 | 702 | 710 | 714..=719)
}

impl Context {
    pub(crate) fn new(handle: CUcontext) -> Arc<Context> {
        Arc::new(Context {
            handle: handle.expose_provenance(),
            events: EventPool::default(),
            calls: Gate::new(),
            waiting: AtomicUsize::new(0),
            since: SpinMutex::new(Instant::now()),
            ended: AtomicBool::new(false),
            forgotten: AtomicBool::new(false),
            survived: AtomicUsize::new(0),
            quiet: AtomicUsize::new(0),
            reserve: Reserve::new(),
            own_stream: KeptStream::default(),
            guests: Guests::new(),
            error: AtomicU32::new(0),
        })
    }

    /// The last lasting error that a call has met.
    pub(crate) fn lasting_error(&self) -> Option<Code> {
        Code::check(self.error.load(Ordering::Relaxed)).err()
    }

    /// Whether a lasting error has ended all of its work, as a call tells.
    pub(crate) fn is_broken(&self) -> bool {
        let (mut free, mut total) = (0, 0);
        // SAFETY: places for the answers.
        let asked =
            self.call_now(|| unsafe { real::cuMemGetInfo_v2(&raw mut free, &raw mut total) });
        asked.is_err_and(lasts)
    }

    pub(crate) fn own_stream(&self) -> &KeptStream {
        &self.own_stream
    }

    pub(crate) fn reserve(&self) -> &Reserve {
        &self.reserve
    }

    pub(crate) fn handle(&self) -> CUcontext {
        ptr::with_exposed_provenance_mut(self.handle)
    }

    /// Notes that the context has ended: what was recorded in it counts as
    /// done. Returns false if that was known.
    // Relaxed where it is read: a thread that reads an old value finds the gate
    // closed and reads again. SeqCst: see `noted`.
    pub(crate) fn end(&self) -> bool {
        let is_new = !self.ended.swap(true, Ordering::SeqCst);
        if is_new {
            self.forget_error();
            *self.since.lock() = Instant::now();
            self.calls.close();
            self.events.forget_queued();
            self.reserve.forget();
            self.own_stream.forget();
        }
        is_new
    }

    /// Called when the context may end. Waits for the calls that other threads
    /// make in it, and holds back further ones until `resume`, or for good
    /// after `end`. Calls that were held back before come first: a thread that
    /// tries to end the context again and again must not keep them out for
    /// ever. `quiet`: the context certainly ends, and all its work is done.
    pub(crate) fn pause(&self, quiet: bool) {
        let mut patience = Patience::new();
        // Relaxed: it guards no other memory.
        while self.waiting.load(Ordering::Relaxed) > 0 && !self.calls.is_closed() {
            patience.pause();
        }
        self.quiet.fetch_add(usize::from(quiet), Ordering::Relaxed);
        *self.since.lock() = Instant::now();
        self.calls.close();
    }

    /// Undoes one `pause`.
    pub(crate) fn resume(&self, quiet: bool) {
        self.quiet.fetch_sub(usize::from(quiet), Ordering::Relaxed);
        if !self.has_ended() {
            // Relaxed: it guards no other memory.
            self.survived.fetch_add(1, Ordering::Relaxed);
        }
        self.calls.open(1);
    }

    /// Waits until it is decided whether the context, which may be ending, has
    /// ended. The end itself waits for no thread that waits here, unless the
    /// driver makes it wait: for work whose callbacks ask for memory, say,
    /// which they must not. So the wait is bounded.
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

    /// Waits until `done` returns true, or [`MOST_OPEN`] after the end began.
    fn while_open(&self, done: impl FnMut() -> bool) {
        let left = MOST_OPEN.saturating_sub(self.since.lock().elapsed());
        wait_within(left, done);
    }

    /// Whether the context may be ending, or has ended.
    pub(crate) fn is_paused(&self) -> bool {
        self.calls.is_closed()
    }

    /// Whether it is ending with all its work done; none is added any more.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet.load(Ordering::Relaxed) > 0
    }

    /// Whether the context has ended and nothing is known of it any more.
    pub(crate) fn is_forgotten(&self) -> bool {
        // Acquire: pairs with the Release in `forgot`.
        self.forgotten.load(Ordering::Acquire)
    }

    /// Notes that nothing is known of the context any more.
    pub(crate) fn forgot(&self) {
        // Release: pairs with the Acquire in `is_forgotten`.
        self.forgotten.store(true, Ordering::Release);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Makes `call` in the context; the thread's calls disturb no capture.
    ///
    /// # Errors
    /// What the driver returns; [`Code::INVALID_CONTEXT`] if the context is
    /// gone; [`Code::NOT_READY`] if that stays undecided for too long.
    pub(crate) fn call(&self, call: impl FnOnce() -> CudaResult) -> Result<(), Code> {
        let made = self.stay(IfEnding::Wait, |within| within.call(call));
        made.unwrap_or_else(|| Err(self.not_made()))
    }

    /// Makes `call` from whatever context is current, without waiting: for
    /// memory of this context that the program itself frees from there.
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

    /// Makes `call` for a thread that need not have asked for anything in the
    /// context: it does not wait if the context may be ending.
    ///
    /// # Errors
    /// As `call`; [`Code::NOT_READY`] if the context may be ending, and the
    /// call was not made.
    pub(crate) fn call_now(&self, call: impl FnOnce() -> CudaResult) -> Result<(), Code> {
        self.within_now(|| Code::check(call()))
    }

    /// Makes several calls, as `call_now` makes one.
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

    /// Notes a lasting error.
    fn noted(&self, result: Result<(), Code>) -> Result<(), Code> {
        if let Err(code) = result
            && lasts(code)
        {
            // Frees say so from now on: one reason, however often it is met.
            shortcut::close();
            if self.error.swap(code.get(), Ordering::SeqCst) != 0 {
                shortcut::open();
            }
            // SeqCst: either this thread sees the end, or that of the end sees the error.
            if self.ended.load(Ordering::SeqCst) {
                self.forget_error();
            }
        }
        result
    }

    /// It went with the context.
    fn forget_error(&self) {
        if self.error.swap(0, Ordering::SeqCst) != 0 {
            shortcut::open();
        }
    }

    /// Waits for the whole context: the last resort without an event.
    pub(crate) fn synchronize(&self) -> Result<(), Code> {
        // SAFETY: no arguments.
        self.call_now(|| unsafe { real::cuCtxSynchronize() })
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
        // A thread inside a driver call does not wait.
        let asked = guard::serve(|| own_call(|| context.await_decision()));
        assert_eq!(asked, Ok(Decision::Open));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| wait(&context));
            // It sees that the context survived, however soon the next end
            // begins.
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
