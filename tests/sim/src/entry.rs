//! How every driver function begins and ends.
//!
//! Owns the count of each function's calls and its scripted faults. Invariant:
//! one call at a time is inside the machine; a call is counted even if it is
//! refused.

use std::ffi::{CString, c_char};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use vramalloc_core::Code;
use vramalloc_model::Violation;

use crate::env::{self, Fault};
use crate::ffi::{Done, Handle, NOT_PERMITTED};
use crate::machine::{self, Machine};
use crate::state::LastWord;
use crate::thread;

/// One exported function: its name, its calls, and its settings in the
/// environment.
pub(crate) struct Site {
    pub(crate) name: &'static str,
    calls: AtomicU64,
    plan: OnceLock<Plan>,
}

struct Plan {
    lacking: bool,
    faults: Vec<Fault>,
    slowness: Option<Duration>,
}

/// All functions that were called so far.
static SITES: Mutex<Vec<&'static Site>> = Mutex::new(Vec::new());

/// A function of the program that is called at the beginning of each driver
/// call, as profilers do; it may call the driver in turn. 0: none.
static WATCHER: AtomicUsize = AtomicUsize::new(0);

/// It gets the name of the call, NUL-terminated.
type Watcher = extern "C" fn(*const c_char);

/// Sets the function that is called; `None` ends the calls.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn sim_cuda_watch(watcher: Option<Watcher>) {
    let watcher = watcher.map_or(0, |watcher| watcher as usize);
    // Release: pairs with the Acquire in `tell_watcher`.
    WATCHER.store(watcher, Ordering::Release);
}

/// Calls the watcher. No lock is held here.
fn tell_watcher(name: &str) {
    // Acquire: pairs with the Release in `sim_cuda_watch`.
    let watcher = WATCHER.load(Ordering::Acquire);
    if watcher == 0 {
        return;
    }
    if let Ok(name) = CString::new(name) {
        // SAFETY: the address was that of such a function.
        let watcher = unsafe { std::mem::transmute::<usize, Watcher>(watcher) };
        watcher(name.as_ptr());
    }
}

/// Set in the child of a fork: the driver cannot be used there.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Set when the exit handlers of the process have reached the driver's. Not in the
/// machine: a signal handler may end the process from inside a call.
static SHUT_DOWN: AtomicBool = AtomicBool::new(false);

impl Site {
    pub(crate) const fn new(name: &'static str) -> Site {
        Site {
            name,
            calls: AtomicU64::new(0),
            plan: OnceLock::new(),
        }
    }

    /// Counts a call. Returns an error if the environment scripts one.
    fn count(&'static self) -> Done {
        if is_forked() {
            // Another thread may have held the lock below at the fork.
            return Ok(());
        }
        tell_watcher(self.name);
        let plan = self.plan.get_or_init(|| {
            let mut sites = SITES.lock().unwrap_or_else(PoisonError::into_inner);
            sites.push(self);
            Plan {
                lacking: env::lacks(self.name),
                faults: env::faults(self.name),
                slowness: env::slowness(self.name),
            }
        });
        let n = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        if plan.lacking {
            return Err(Code::NOT_SUPPORTED);
        }
        if let Some(slowness) = plan.slowness {
            std::thread::sleep(slowness);
        }
        let Some(fault) = plan.faults.iter().find(|fault| fault.n == n) else {
            return Ok(());
        };
        let code = Code::check(fault.code);
        if let (true, Err(code), Some(sim)) = (fault.sticky, code, machine::lock().as_mut()) {
            sim.break_current(code);
        }
        code
    }
}

/// The number of calls of each function, by name.
pub(crate) fn counts() -> Vec<(&'static str, u64)> {
    let sites = SITES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut counts: Vec<_> = (sites.iter())
        .map(|s| (s.name, s.calls.load(Ordering::Relaxed)))
        .collect();
    counts.sort_unstable();
    counts
}

/// One call inside the machine.
pub(crate) struct Call<'a> {
    pub(crate) sim: &'a mut Machine,
    /// The name under which it was made.
    pub(crate) name: &'static str,
    /// Whether stream 0 means the thread's own default stream.
    pub(crate) per_thread: bool,
}

impl Call<'_> {
    /// Refuses a call that an open capture forbids to this thread, and
    /// invalidates that capture.
    pub(crate) fn unsafe_in_capture(&mut self) -> Done {
        let refused = self
            .sim
            .model
            .unsafe_call(self.name, thread::mode(), thread::number());
        if refused.is_err() {
            self.sim.announce();
        }
        refused
    }
}

/// Called in the child of a fork.
pub(crate) extern "C" fn forked() {
    // Relaxed: a child has one thread.
    FORKED.store(true, Ordering::Relaxed);
}

/// Whether this process was forked from one that had initialised the driver.
pub(crate) fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// No call is served from now on.
pub(crate) fn shut_down() {
    // Release: pairs with the Acquire in `is_shut_down`.
    SHUT_DOWN.store(true, Ordering::Release);
}

pub(crate) fn is_shut_down() -> bool {
    // Acquire: pairs with the Release in `shut_down`.
    SHUT_DOWN.load(Ordering::Acquire)
}

fn number(done: Done) -> u32 {
    match done {
        Ok(()) => 0,
        Err(code) => code.get(),
    }
}

/// Runs a function that needs no initialised driver.
pub(crate) fn bare(site: &'static Site, body: impl FnOnce() -> Done) -> u32 {
    number(site.count().and_then(|()| body()))
}

/// Whether a function works although the current context is broken: functions
/// about the current context, about devices, and about the end of the context.
fn outlives_a_broken_context(name: &str) -> bool {
    const ABOUT_CONTEXTS: [&str; 8] = [
        "cuCtxGetCurrent",
        "cuCtxSetCurrent",
        "cuCtxPushCurrent_v2",
        "cuCtxPopCurrent_v2",
        "cuCtxGetDevice",
        "cuCtxDestroy_v2",
        "cuCtxDetach",
        "cuThreadExchangeStreamCaptureMode",
    ];
    name.starts_with("cuDevice") || ABOUT_CONTEXTS.contains(&name)
}

/// Runs a function of the initialised driver.
pub(crate) fn enter(
    site: &'static Site,
    per_thread: bool,
    body: impl FnOnce(&mut Call<'_>) -> Done,
) -> u32 {
    number(site.count().and_then(|()| inside(site, per_thread, body)))
}

/// Runs a function that ends a context. Before that, the destructors of the
/// values in the context's storage are called; they may call the driver.
pub(crate) fn enter_ending(
    site: &'static Site,
    ending: impl FnOnce(&mut Call<'_>) -> Result<Option<Handle>, Code>,
    body: impl FnOnce(&mut Call<'_>) -> Done,
) -> u32 {
    let mut words = Vec::new();
    let mut body = Some(body);
    let mut end = |call: &mut Call<'_>| body.take().map_or(Ok(()), |body| body(call));
    number(site.count().and_then(|()| {
        inside(site, false, |call| {
            if let Some(context) = ending(call)? {
                words = call.sim.last_words(context);
            }
            if words.is_empty() { end(call) } else { Ok(()) }
        })?;
        if words.is_empty() {
            return Ok(());
        }
        words.into_iter().for_each(LastWord::say);
        inside(site, false, end)
    }))
}

fn inside(site: &'static Site, per_thread: bool, body: impl FnOnce(&mut Call<'_>) -> Done) -> Done {
    if is_forked() {
        return Err(Code::NOT_INITIALIZED);
    }
    if thread::is_in_callback() {
        return Err(NOT_PERMITTED);
    }
    let mut lock = machine::lock();
    let sim = lock.as_mut().ok_or(Code::NOT_INITIALIZED)?;
    if is_shut_down() {
        let what = Violation::AfterShutdown(site.name.to_owned());
        sim.violate(what);
        return Err(Code::DEINITIALIZED);
    }
    sim.model.tick();
    sim.settle();
    if let (false, Some(code)) = (outlives_a_broken_context(site.name), sim.current_fault()) {
        return Err(code);
    }
    let mut call = Call {
        sim,
        name: site.name,
        per_thread,
    };
    body(&mut call)
}

/// Defines exported driver functions. `fn name(call, …)` is a function of the
/// initialised driver; `fn name / twin (call, …)` has a twin for which stream 0
/// is the thread's own default stream; `bare fn` needs no initialisation;
/// `ending fn` first names the context that it is going to end.
macro_rules! driver {
    () => {};
    (bare fn $name:ident ($($arg:ident : $ty:ty),* $(,)?) $body:block $($rest:tt)*) => {
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name($($arg: $ty),*) -> u32 {
            static SITE: $crate::entry::Site = $crate::entry::Site::new(stringify!($name));
            $crate::entry::bare(&SITE, || $body)
        }
        $crate::entry::driver! { $($rest)* }
    };
    (ending fn $name:ident ($call:ident $(, $arg:ident : $ty:ty)* $(,)?) $which:block $body:block
     $($rest:tt)*) => {
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name($($arg: $ty),*) -> u32 {
            static SITE: $crate::entry::Site = $crate::entry::Site::new(stringify!($name));
            $crate::entry::enter_ending(&SITE, |$call| $which, |$call| $body)
        }
        $crate::entry::driver! { $($rest)* }
    };
    (fn $name:ident / $twin:ident ($($args:tt)*) $body:block $($rest:tt)*) => {
        $crate::entry::driver! { @one $name, false, ($($args)*), $body }
        $crate::entry::driver! { @one $twin, true, ($($args)*), $body }
        $crate::entry::driver! { $($rest)* }
    };
    (fn $name:ident ($($args:tt)*) $body:block $($rest:tt)*) => {
        $crate::entry::driver! { @one $name, false, ($($args)*), $body }
        $crate::entry::driver! { $($rest)* }
    };
    (@one $name:ident, $per_thread:expr,
     ($call:pat $(, $arg:ident : $ty:ty)* $(,)?), $body:block) => {
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name($($arg: $ty),*) -> u32 {
            static SITE: $crate::entry::Site = $crate::entry::Site::new(stringify!($name));
            $crate::entry::enter(&SITE, $per_thread, |$call| $body)
        }
    };
}
pub(crate) use driver;
