//! The end of the process, as its other threads see it.
//!
//! Once the driver has ended, threads that still ask for memory are told so. Bare, the
//! process is gone some microseconds later. The statistics take milliseconds, in which
//! many more calls would fail, and what a program does about that (it aborts, or
//! prints) would be our doing. So the last work is done before the driver ends, where
//! that is possible, and while it is done other threads wait at the doors.
//!
//! Owns whether they do, and who has called since. Invariant: who waits has nothing of
//! ours, and waits [`MOST`] at the longest, since the last work may need what it holds:
//! the linker's lock, or the end of a pipe. Cost: a load for each call that is not
//! served by what a thread keeps.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use vramalloc_core::patience::wait_within;

use super::{cancel, heap, shortcut};

/// How long a thread waits.
const MOST: Duration = Duration::from_secs(1);

/// How long it then waits still: it would otherwise come to the driver just when that
/// ends. Most processes are gone before.
const AFTER: Duration = Duration::from_millis(5);

/// How long a thread that was waited for may still be counted: who joins one goes on
/// before the system has forgotten it.
const FORGOTTEN: Duration = Duration::from_millis(5);

/// Whether the end has begun, and the last work is under way. Relaxed, as all of
/// this: they stand for themselves.
static BEGUN: AtomicBool = AtomicBool::new(false);
static AT_WORK: AtomicBool = AtomicBool::new(false);

/// Who has called since the last work was done: the thread that ends the process,
/// and others.
static LAST_HAS_CALLED: AtomicBool = AtomicBool::new(false);
static OTHERS_HAVE_CALLED: AtomicBool = AtomicBool::new(false);

/// The threads of the process at the last work.
static THREADS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static IS_LAST: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, its thread does our last work.
pub(crate) struct ProcessEnd {
    _allocates: heap::LastWork,
}

impl ProcessEnd {
    /// From then on no call takes the shortcut, which leads past the wait.
    pub(crate) fn begin() -> ProcessEnd {
        let allocates = heap::LastWork::begin();
        IS_LAST.set(true);
        AT_WORK.store(true, Ordering::Relaxed);
        if !BEGUN.swap(true, Ordering::Relaxed) {
            shortcut::close();
        }
        ProcessEnd {
            _allocates: allocates,
        }
    }

    /// Notes who is there. Returns whether others are.
    pub(crate) fn count_threads(&self) -> bool {
        let threads = threads();
        THREADS.store(threads, Ordering::Relaxed);
        LAST_HAS_CALLED.store(false, Ordering::Relaxed);
        OTHERS_HAVE_CALLED.store(false, Ordering::Relaxed);
        threads > 1
    }

    /// Whether nothing has happened since that the last words must tell: no call of
    /// the program's own handlers, nor of a thread that they have waited for. Of
    /// threads that the end of the process interrupts, the last calls are left out.
    pub(crate) fn is_as_before(&self) -> bool {
        !LAST_HAS_CALLED.load(Ordering::Relaxed)
            && (!OTHERS_HAVE_CALLED.load(Ordering::Relaxed) || !one_has_ended())
    }
}

impl Drop for ProcessEnd {
    fn drop(&mut self) {
        AT_WORK.store(false, Ordering::Relaxed);
    }
}

/// Whether there are fewer threads than at the last work, or will be in a moment.
fn one_has_ended() -> bool {
    let mut has_ended = false;
    wait_within(FORGOTTEN, || {
        has_ended = threads() != THREADS.load(Ordering::Relaxed);
        has_ended
    });
    has_ended
}

/// How many threads the process has: its folder of them has two links more. 0 where
/// that cannot be known.
fn threads() -> u64 {
    let folder = fs::metadata("/proc/self/task");
    folder.map_or(0, |found| found.nlink().saturating_sub(2))
}

/// A call of the program's comes: it waits until our last work is done, unless that is
/// this thread's.
#[inline]
pub(crate) fn let_it_end() {
    if BEGUN.load(Ordering::Relaxed) {
        wait();
    }
}

#[cold]
#[inline(never)]
fn wait() {
    if IS_LAST.get() {
        LAST_HAS_CALLED.store(true, Ordering::Relaxed);
        return;
    }
    if AT_WORK.load(Ordering::Relaxed) {
        let _held = cancel::Held::back();
        wait_within(MOST, || !AT_WORK.load(Ordering::Relaxed));
        wait_within(AFTER, || false);
    }
    OTHERS_HAVE_CALLED.store(true, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    /// In a thread of its own, which ends no process.
    #[test]
    fn others_wait_for_the_last_work_and_its_thread_does_not() {
        static STEP: AtomicUsize = AtomicUsize::new(0);
        thread::scope(|scope| {
            let last = scope.spawn(|| {
                let ending = ProcessEnd::begin();
                let_it_end();
                STEP.store(1, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(20));
                STEP.store(2, Ordering::Relaxed);
                let (among_others, as_before) = (ending.count_threads(), ending.is_as_before());
                drop(ending);
                let_it_end();
                (among_others, as_before, ProcessEnd::begin().is_as_before())
            });
            while STEP.load(Ordering::Relaxed) == 0 {
                thread::yield_now();
            }
            let_it_end();
            assert_eq!(STEP.load(Ordering::Relaxed), 2);
            assert_eq!(last.join().unwrap(), (true, true, false));
        });
        BEGUN.store(false, Ordering::Relaxed);
        shortcut::open();
    }
}
