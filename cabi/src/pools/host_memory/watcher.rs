//! A thread that looks after freed page-locked memory, if the option
//! `pinned_use_background_threads` asks for it: blocks become available when
//! the device is done with them, and not only at the next request.
//!
//! Owns the thread. Invariant: it begins with the first free; it takes no
//! signals and waits for no device; before the driver shuts down it has left
//! the driver for good. Cost: nothing if the option is off; else a poll every
//! 100 microseconds while the device may be using freed memory, less often the
//! longer that takes.

use std::panic::catch_unwind;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::{self, Thread};
use std::time::Duration;

use vramalloc_core::Bytes;
use vramalloc_core::gate::Gate;

use crate::pools::host_memory::pools;
use crate::process::guard::{self, Service};
use crate::process::{self, threads};

/// How long the thread sleeps: at first as PyTorch's own does, then longer.
const INTERVAL: Duration = Duration::from_micros(100);
const LONGEST: Duration = Duration::from_millis(10);

/// How long the end of the process waits for the thread.
const MOST: Duration = Duration::from_secs(1);

static THREAD: OnceLock<Option<Thread>> = OnceLock::new();
/// Whether the thread sleeps until it is woken. It stores this before it looks
/// for work a last time, and a thread that frees looks here after the free,
/// each with a fence between the two: at least one sees the other, even if the
/// arena is new to the thread.
static ASLEEP: AtomicBool = AtomicBool::new(false);
/// The thread passes it to work; closed for good at the end of the process.
static WORK: Gate = Gate::new();

/// Wakes the thread after a free.
pub(crate) fn notice() {
    if !process::options(|loaded| loaded.settings.pinned.background_threads) {
        return;
    }
    // SeqCst: pairs with the one in `sleep_until_told`.
    fence(Ordering::SeqCst);
    if let Some(thread) = THREAD.get_or_init(start)
        && ASLEEP.swap(false, Ordering::Relaxed)
    {
        thread.unpark();
    }
}

/// Starts the thread. `stop` is registered later than any handler that the
/// driver has for the end of the process, and so runs earlier.
fn start() -> Option<Thread> {
    // SAFETY: the handler takes nothing and lives as long as the process.
    if unsafe { libc::atexit(stop) } != 0 {
        return None;
    }
    threads::spawn("pinned", watch).ok()
}

extern "C" fn stop() {
    // A signal handler may end the process inside a call of ours, which may hold what the
    // thread waits for.
    let most = if guard::is_serving() {
        Duration::ZERO
    } else {
        MOST
    };
    if process::is_own_process() {
        WORK.close_within(most);
    }
}

fn watch() {
    let (mut before, mut pause) = (Bytes::ZERO, INTERVAL);
    loop {
        let Some(Ok(left)) = WORK.pass(|| catch_unwind(look_after)) else {
            break;
        };
        if guard::service() != Service::Full {
            return;
        }
        if left.is_zero() {
            sleep_until_told();
        } else {
            // Memory that does not come back soon may be waiting for a long
            // kernel, for a capture, or for a context that is broken.
            pause = if left < before { INTERVAL } else { pause };
            thread::sleep(pause);
            threads::end_with_the_last();
            pause = (pause * 2).min(LONGEST);
        }
        before = left;
    }
    if !WORK.is_closed() {
        // As after a panic behind a door.
        guard::end_service(Service::Broken);
    }
}

fn sleep_until_told() {
    ASLEEP.store(true, Ordering::Relaxed);
    // SeqCst: pairs with the one in `notice`.
    fence(Ordering::SeqCst);
    if !in_limbo().is_zero() {
        ASLEEP.store(false, Ordering::Relaxed);
    }
    while ASLEEP.load(Ordering::Relaxed) {
        thread::park_timeout(threads::LONGEST_WAIT);
        threads::end_with_the_last();
    }
}

/// Makes memory available that the device is done with; returns what is left.
fn look_after() -> Bytes {
    for arena in pools::all().filter(|arena| !arena.limbo().is_zero()) {
        arena.flush();
    }
    in_limbo()
}

fn in_limbo() -> Bytes {
    let all = pools::all().map(vramalloc_core::Arena::limbo);
    all.fold(Bytes::ZERO, Bytes::saturating_add)
}
