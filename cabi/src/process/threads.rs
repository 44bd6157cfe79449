//! Threads of the library. They take no signal: the program's signals are for
//! its own threads.
//!
//! A process ends with its last thread. Bare, that is one of the program's, which then
//! calls `exit`; ours must not keep the process alive beyond that. So while they wait they
//! look, once a second, whether they are all that is left.
//!
//! Owns how many there are. Cost: a read of a file for each second of a wait.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{Builder, Scope, Thread};
use std::time::{Duration, Instant};
use std::{fs, io, ptr};

use crate::linker::resolve;
use crate::process;
use crate::process::outside::{set_signal_mask, signal_mask, with_signals_blocked};

/// Bytes of stack for each, beside what the program has there for each thread.
const STACK: usize = 256 << 10;

/// The longest that a thread of ours may wait without a look.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(1);

thread_local! {
    /// When a thread of ours last looked; none for others.
    static LOOKED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The signals that the program's threads do not take, as far as one of them is known.
static MASK: OnceLock<libc::sigset_t> = OnceLock::new();

/// How many run.
static OWN: AtomicUsize = AtomicUsize::new(0);

/// One of them, as long as it runs.
struct Own;

impl Own {
    fn begin() -> Own {
        OWN.fetch_add(1, Ordering::SeqCst);
        LOOKED.set(Some(Instant::now()));
        Own
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        OWN.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Whether the calling thread is one of the library.
pub(crate) fn is_ours() -> bool {
    LOOKED.get().is_some()
}

/// Whether all threads of the program have ended: the first is left as a zombie, and all
/// others are ours. Where the program has filtered its calls of the system, nobody looks.
fn are_alone() -> bool {
    if process::is_sandboxed() {
        return false;
    }
    let own = OWN.load(Ordering::SeqCst);
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let told = |key: &str| {
        let mut lines = status.lines();
        lines.find_map(|line| Some(line.strip_prefix(key)?.trim_ascii()))
    };
    let is_first_gone = told("State:").is_some_and(|state| state.starts_with('Z'));
    let threads = told("Threads:").and_then(|threads| threads.parse().ok());
    is_first_gone && threads == Some(own + 1) && OWN.load(Ordering::SeqCst) == own
}

/// For a thread of ours that waits, at least every [`LONGEST_WAIT`]: ends the process if no
/// thread of the program is left.
pub(crate) fn end_with_the_last() {
    static ENDS: AtomicBool = AtomicBool::new(false);
    if LOOKED.get().is_none_or(|at| at.elapsed() < LONGEST_WAIT) {
        return;
    }
    LOOKED.set(Some(Instant::now()));
    // Relaxed: it stands for itself.
    if are_alone() && !ENDS.swap(true, Ordering::Relaxed) {
        let end = || {
            if let Some(mask) = MASK.get() {
                set_signal_mask(mask);
            }
            // SAFETY: takes a number.
            unsafe { libc::exit(0) }
        };
        // Handlers of the program's find the stack and the signals that a thread of its has.
        if builder("end").stack_size(usual_stack()).spawn(end).is_err() {
            end();
        }
    }
}

/// The size of a thread's stack where nothing else is asked for.
fn usual_stack() -> usize {
    const USUAL: usize = 8 << 20;
    let mut attributes = MaybeUninit::uninit();
    let mut size = 0;
    // SAFETY: fills a local, asks about it, and lets go of it.
    let told = unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr()) == 0
            && libc::pthread_attr_getstacksize(attributes.as_ptr(), &raw mut size) == 0
            && libc::pthread_attr_destroy(attributes.as_mut_ptr()) == 0
    };
    if told { size } else { USUAL }
}

fn builder(name: &str) -> Builder {
    Builder::new()
        .name(format!("vramalloc-{name}"))
        .stack_size(STACK + variables())
}

/// The bytes at the foot of each thread's stack in which the C library keeps the variables
/// that the program and its libraries have for each thread (static thread-local storage);
/// nothing where it does not tell.
fn variables() -> usize {
    type Least = unsafe extern "C" fn(*const libc::pthread_attr_t) -> usize;
    let Some(least) = resolve::look_up(libc::RTLD_DEFAULT, c"__pthread_get_minstack") else {
        return 0;
    };
    // SAFETY: the C library's function of that name has this type, and asks nothing of what it
    // is given, as the standard library relies on.
    let least = unsafe { std::mem::transmute::<usize, Least>(least)(ptr::null()) };
    least.saturating_sub(libc::PTHREAD_STACK_MIN)
}

/// Starts a thread, which is left where it stands at the end of the process. Where it
/// waits it [ends the process with its last thread](end_with_the_last).
///
/// # Errors
/// What the system answers.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    let work = || {
        let _own = Own::begin();
        work();
    };
    MASK.get_or_init(signal_mask);
    let spawned = with_signals_blocked(|| builder(name).spawn(work))?;
    Ok(spawned.thread().clone())
}

/// Starts a thread of a scope.
///
/// # Errors
/// What the system answers.
pub(crate) fn spawn_in<'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() + Send + 'scope,
) -> io::Result<()> {
    with_signals_blocked(|| builder(name).spawn_scoped(scope, work)).map(|_| ())
}
