//! Decides whether we serve a call, and catches failures of our own code.
//!
//! Owns one word per thread (what the thread is doing) and one per process
//! (whether we still serve). Invariant: a panic never crosses a door, and after
//! one we serve no more requests; our memory never reaches a real free,
//! whatever the thread is doing. Cost: one thread-local read and one atomic
//! load per call.
//!
//! A driver may call the program back from inside a call of ours (profilers ask
//! it to), and the program may free memory there. Such a free is only recorded
//! and makes no driver call: the thread may be growing an arena, or be inside a
//! gate, and another driver call could wait for that. See [`is_called_back`].

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use vramalloc_core::Code;

use super::fast_local::{Zeroed, fast_local};
use super::{cancel, ending, forking, say, shortcut};
use crate::types::CudaResult;

/// When a door calls our function rather than the real one.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[allow(non_camel_case_types, reason = "words of the symbol table")]
pub(crate) enum Entry {
    /// Not while a call of ours to the real function is under way.
    serve,
    /// Whatever the thread is doing, for memory of ours: our function asks the
    /// page map first and leaves all else to the real one. Memory that a call
    /// of ours gives back has left the page map before.
    free,
    /// As `free`, but a failure of ours refuses the call: the real function
    /// would answer for more than the program's memory.
    share,
    /// As `serve`, but while [`failing_with`] is under way the real function is
    /// called, not answered for: these calls change what we must know of.
    watch,
    /// Always.
    always,
}

/// Whether the program has come through a door. Written once: later threads
/// share its cache line. Relaxed: it guards no other memory.
pub(crate) struct Passed(AtomicBool);

impl Passed {
    pub(crate) const fn new() -> Passed {
        Passed(AtomicBool::new(false))
    }

    /// One that is not to be noted: who comes through it need not have used CUDA.
    pub(crate) const fn unnoted() -> Passed {
        Passed(AtomicBool::new(true))
    }

    pub(crate) fn note(&self) {
        if !self.get() {
            forking::use_begins();
            self.0.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What the thread is doing.
#[derive(Copy, Clone, PartialEq, Eq)]
#[repr(u32)]
enum Inside {
    /// Code of the program. The first: it is all zeros.
    Program,
    /// Our function behind a door.
    Serving,
    /// A call of ours to a real function: doors below it pass it through.
    OwnCall,
    /// A call of ours to a real runtime function whose driver call is to fail
    /// with this code, so that the runtime notes the failure as its own.
    Failing(Code),
    /// Our function behind a door, called from inside a call of ours.
    CalledBack,
}

// SAFETY: in a cell; zeros are the first of the values, by its representation.
unsafe impl Zeroed for Cell<Inside> {}

fast_local! {
    /// What the calling thread is doing.
    fn inside() -> Cell<Inside> = INSIDE to CALLER;
}

/// What we still serve in this process.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Service {
    /// Everything.
    Full = 0,
    /// No requests, as our code panicked; blocks that come back are kept.
    Broken = 1,
    /// Nothing: this is a forked child, and the arenas are its parent's.
    Inherited = 2,
}

static SERVICE: AtomicU8 = AtomicU8::new(Service::Full as u8);

/// What we still serve in this process.
// Relaxed: it guards no other memory.
pub(crate) fn service() -> Service {
    match SERVICE.load(Ordering::Relaxed) {
        0 => Service::Full,
        1 => Service::Broken,
        _ => Service::Inherited,
    }
}

/// Ends full service. Safe in a forked child and in a panic hook.
pub(crate) fn end_service(service: Service) {
    // Any state but full service is one reason against the shortcut.
    shortcut::close();
    let before = SERVICE.swap(service as u8, Ordering::Relaxed);
    if before != Service::Full as u8 {
        shortcut::open();
    }
    if service == Service::Full {
        shortcut::open();
    }
}

/// Runs `serve` if the state of the thread and the process allow it. Returns
/// `None` if the door has to call the real function. A call that comes from the
/// program sets `passed`.
pub(crate) fn enter(
    entry: Entry,
    passed: &Passed,
    serve: impl FnOnce() -> Option<CudaResult>,
) -> Option<CudaResult> {
    let within = inside().get();
    let of_ours = matches!(entry, Entry::free | Entry::share);
    match within {
        Inside::Failing(code) if entry == Entry::serve => return Some(code.get()),
        Inside::Failing(_) | Inside::OwnCall if !of_ours && entry != Entry::always => return None,
        _ => {}
    }
    let open = match service() {
        Service::Full => true,
        Service::Broken => of_ours || entry == Entry::always,
        Service::Inherited => entry == Entry::always,
    };
    if !open {
        return None;
    }
    let _serving = match within {
        Inside::Program => {
            ending::let_it_end();
            passed.note();
            Some(Restore(inside().replace(Inside::Serving)))
        }
        Inside::OwnCall | Inside::Failing(_) if of_ours => {
            Some(Restore(inside().replace(Inside::CalledBack)))
        }
        // Other doors inside a call leave its state as it is.
        _ => None,
    };
    // All other doors lead to driver calls; a hit and a free do not.
    let _held = (!matches!(entry, Entry::serve | Entry::free)).then(cancel::Held::back);
    // After a panic all shared state behind the doors counts as broken, so no
    // half-made change is looked at again.
    let answer = catch_unwind(AssertUnwindSafe(serve)).unwrap_or_else(|payload| {
        give_up(payload);
        match entry {
            // The block may be ours, so it is kept.
            Entry::free => Some(0),
            Entry::share => Some(Code::NOT_SUPPORTED.get()),
            Entry::serve | Entry::watch | Entry::always => None,
        }
    });
    match (within, answer) {
        (Inside::Failing(code), None) if entry == Entry::free => Some(code.get()),
        (_, answer) => answer,
    }
}

/// A thread of the program that is behind a door for a moment, in which nothing
/// can panic.
pub(crate) struct ServingShortly(&'static Cell<Inside>);

impl ServingShortly {
    /// `None` where the thread is in other than the program's own code.
    #[inline(always)]
    pub(crate) fn begin() -> Option<ServingShortly> {
        let inside = inside();
        if inside.get() != Inside::Program {
            return None;
        }
        inside.set(Inside::Serving);
        Some(ServingShortly(inside))
    }
}

impl Drop for ServingShortly {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.set(Inside::Program);
    }
}

/// Why a function of the C API is not served.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Shut {
    /// The thread is inside another call of ours: this is a signal handler, or
    /// a callback of the driver.
    Inside,
    /// Our code panicked, now or before.
    Broken,
    /// The process is a forked child.
    Forked,
}

/// Runs a function of the C API, which has no real function behind it.
///
/// # Errors
/// Why it was not run, or not to its end.
pub(crate) fn serve<R, F: FnOnce() -> R>(call: F) -> Result<R, Shut> {
    if is_serving() {
        return Err(Shut::Inside);
    }
    match service() {
        Service::Full => {}
        Service::Broken => return Err(Shut::Broken),
        Service::Inherited => return Err(Shut::Forked),
    }
    ending::let_it_end();
    // Files are read and locks made on the way, where a thread could be cancelled.
    let _held = cancel::Held::back();
    let run = |call: F| {
        let _serving = Restore(inside().replace(Inside::Serving));
        catch_unwind(AssertUnwindSafe(call)).map_err(|payload| {
            give_up(payload);
            Shut::Broken
        })
    };
    forking::early(call, run).unwrap_or(Err(Shut::Broken))
}

/// Called after a panic: nothing that is shared is looked at again.
fn give_up(payload: Box<dyn Any + Send>) {
    end_service(Service::Broken);
    // Dropping a panic's payload may panic in turn; leaking it cannot.
    let _leaked = Box::leak(payload);
}

/// Whether this thread is behind a door: a signal handler that runs now must
/// not wait for what the thread may be holding.
pub(crate) fn is_serving() -> bool {
    inside().get() != Inside::Program
}

/// Whether this thread may wait for what another one does behind a door: only
/// if it is behind one itself and in no driver call.
pub(crate) fn may_wait() -> bool {
    inside().get() == Inside::Serving
}

/// Whether the driver has called the program back from inside a call of ours
/// and the program has called us: then no driver call may be made.
pub(crate) fn is_called_back() -> bool {
    inside().get() == Inside::CalledBack
}

/// Puts the thread's state back, also when unwinding.
struct Restore(Inside);

impl Drop for Restore {
    fn drop(&mut self) {
        inside().set(self.0);
    }
}

fn while_inside<R>(state: Inside, call: impl FnOnce() -> R) -> R {
    let _held = cancel::Held::back();
    let _restore = Restore(inside().replace(state));
    call()
}

/// Makes a call of ours to a real function: the doors below pass it through.
pub(crate) fn own_call<R>(call: impl FnOnce() -> R) -> R {
    while_inside(Inside::OwnCall, call)
}

/// Makes a call of ours to a real runtime function, whose driver call is
/// answered with `code` and not made.
pub(crate) fn failing_with<R>(code: Code, call: impl FnOnce() -> R) -> R {
    while_inside(Inside::Failing(code), call)
}

/// Makes a panic print one line instead of the usual report. Every panic of
/// this library is caught at a door.
pub(crate) fn quiet_panics() {
    std::panic::set_hook(Box::new(|info| {
        let place = info
            .location()
            .map_or_else(String::new, |at| format!(" at {}:{}", at.file(), at.line()));
        say::warn(&format!(
            "internal error{place}; CUDA's own allocator serves from now on"
        ));
    }));
}

/// Service belongs to the process: tests that end or need it take turns.
#[cfg(test)]
pub(crate) fn turn() -> std::sync::MutexGuard<'static, ()> {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    TURN.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVED: Option<CudaResult> = Some(0);

    fn come(entry: Entry, serve: impl FnOnce() -> Option<CudaResult>) -> Option<CudaResult> {
        enter(entry, &Passed::new(), serve)
    }

    // One test, because service belongs to the process.
    #[test]
    fn doors_open_as_the_state_allows() {
        let _turn = turn();
        own_calls_pass_through();
        failing_calls_are_answered();
        a_panic_ends_service();
        the_api_is_served_from_outside_alone();
    }

    fn own_calls_pass_through() {
        assert!(!is_serving());
        assert_eq!(come(Entry::serve, || is_serving().then_some(0)), SERVED);
        assert!(!is_serving());
        own_call(|| {
            for entry in [Entry::serve, Entry::watch] {
                assert_eq!(come(entry, || SERVED), None);
            }
            // Our memory is served here too, the rest by the real function.
            for entry in [Entry::free, Entry::share] {
                assert!(!is_called_back());
                assert_eq!(come(entry, || is_called_back().then_some(0)), SERVED);
                assert_eq!(come(entry, || None), None);
            }
            assert_eq!(come(Entry::always, || SERVED), SERVED);
            own_call(|| ());
            assert_eq!(come(Entry::serve, || SERVED), None);
        });
        assert_eq!(come(Entry::serve, || SERVED), SERVED);
    }

    fn failing_calls_are_answered() {
        failing_with(Code::OUT_OF_MEMORY, || {
            assert_eq!(come(Entry::serve, || SERVED), Some(2));
            assert_eq!(come(Entry::watch, || SERVED), None);
            assert_eq!(come(Entry::free, || SERVED), SERVED);
            assert_eq!(come(Entry::free, || None), Some(2));
        });
        assert_eq!(come(Entry::serve, || SERVED), SERVED);
    }

    fn a_panic_ends_service() {
        let served = come(Entry::serve, || own_call(|| panic!("on purpose")));
        assert_eq!((served, service()), (None, Service::Broken));
        assert!(inside().get() == Inside::Program);
        assert_eq!(come(Entry::serve, || SERVED), None);
        // A block of ours is not handed to the real free then or later.
        assert_eq!(come(Entry::free, || SERVED), SERVED);
        assert_eq!(come(Entry::free, || panic!("again")), Some(0));
        end_service(Service::Inherited);
        assert_eq!(come(Entry::free, || SERVED), None);
        end_service(Service::Full);
    }

    fn the_api_is_served_from_outside_alone() {
        assert_eq!(serve(is_serving), Ok(true));
        assert_eq!(serve(|| serve(|| ())), Ok(Err(Shut::Inside)));
        assert_eq!(own_call(|| serve(|| ())), Err(Shut::Inside));
        assert_eq!(serve(|| panic!("on purpose")), Err::<(), _>(Shut::Broken));
        assert_eq!(serve(|| ()), Err(Shut::Broken));
        end_service(Service::Inherited);
        assert_eq!(serve(|| ()), Err(Shut::Forked));
        end_service(Service::Full);
        assert!(!is_serving());
    }
}
