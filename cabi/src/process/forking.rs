//! Forks, and what a child can be.
//!
//! CUDA does not survive a fork, so the child of a process that has used it, or
//! memory of ours, is served nothing. The child of one that has used neither is a
//! process of its own, if nobody was inside the C API when it was made: it would
//! have that thread's locks, and not the thread.
//!
//! Owns whether the process has used CUDA, and a gate that early calls of the C API
//! pass and a fork closes. Invariant: who forks does not wait for ever. Cost: one
//! atomic load for a call once CUDA is used.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use vramalloc_core::gate::Gate;
use vramalloc_core::patience::wait_within;

/// Whether the process has used CUDA, or memory of ours. Relaxed: a child has
/// what its parent's forking thread had seen.
static USED: AtomicBool = AtomicBool::new(false);

/// The process uses CUDA, or memory of ours, from now on.
pub(crate) fn use_begins() {
    USED.store(true, Ordering::Relaxed);
}

/// Whether it does: then a child has no use of its copy.
pub(crate) fn is_used() -> bool {
    USED.load(Ordering::Relaxed)
}

/// Passed by functions of the C API until then: a child would have their locks,
/// and not their threads. Closed by whoever forks.
static EARLY: Gate = Gate::new();

/// Functions that did not wait for a fork: who forks may be waiting for a lock of
/// the program's that their thread holds. SeqCst: before they do anything, so
/// that a child in which they have done something sees it.
static HURRIED: AtomicUsize = AtomicUsize::new(0);

/// How often a child was made, from the first process on. Relaxed: it changes
/// where there is one thread.
static CHILDREN: AtomicUsize = AtomicUsize::new(0);

/// The forks that a thread is in: handlers of forks and of signals may fork, too,
/// and the child of such a fork is in the others as its parent is.
#[derive(Copy, Clone)]
struct Forks {
    count: usize,
    /// Whether all found nobody in [`EARLY`].
    are_alone: bool,
}

thread_local! {
    static FORKS: Cell<Forks> = const { Cell::new(Forks { count: 0, are_alone: true }) };
}

/// Closes or opens [`EARLY`] and counts that, unless a signal comes between the
/// two and this is the child that its handler has made.
fn count(change: impl FnOnce(Forks) -> Forks) {
    let children = CHILDREN.load(Ordering::Relaxed);
    let forks = change(FORKS.get());
    FORKS.set(forks);
    if CHILDREN.load(Ordering::Relaxed) != children {
        EARLY.reset(forks.count);
    }
}

/// Before the process forks: waits for functions of the C API, but not for ever, and
/// not if the thread `is_serving` one itself.
pub(crate) fn before_fork(is_serving: bool) {
    let most = if is_used() || is_serving {
        Duration::ZERO
    } else {
        Duration::from_secs(1)
    };
    count(|forks| Forks {
        count: forks.count + 1,
        are_alone: EARLY.close_within(most) && forks.are_alone,
    });
}

/// Afterwards, in the parent.
pub(crate) fn after_fork() {
    count(|forks| {
        let count = forks.count.saturating_sub(1);
        EARLY.open(forks.count - count);
        Forks {
            count,
            are_alone: forks.are_alone || count == 0,
        }
    });
}

/// Afterwards, in the child. Whether it can be a process of its own.
pub(crate) fn in_child() -> bool {
    CHILDREN.fetch_add(1, Ordering::Relaxed);
    let forks = FORKS.get();
    let count = forks.count.saturating_sub(1);
    FORKS.set(Forks { count, ..forks });
    EARLY.reset(count);
    let is_alone = forks.count > 0 && forks.are_alone;
    is_alone && HURRIED.load(Ordering::SeqCst) == 0 && !is_used()
}

/// Runs a function of the C API by `run`, while nobody forks if that is early;
/// `None` where neither can be.
pub(crate) fn early<F, R>(call: F, run: impl Fn(F) -> R) -> Option<R> {
    if is_used() {
        return Some(run(call));
    }
    let mut call = Some(call);
    let mut answer = None;
    // Most forks take less than a millisecond; on a busy machine some take tens.
    const MOST: Duration = Duration::from_millis(100);
    wait_within(MOST, || {
        if !is_used() && !EARLY.is_closed() {
            answer = EARLY.pass(|| call.take().map(&run)).flatten();
        }
        answer.is_some() || is_used()
    });
    answer.or_else(|| {
        HURRIED.fetch_add(1, Ordering::SeqCst);
        let answer = call.map(run);
        HURRIED.fetch_sub(1, Ordering::SeqCst);
        answer
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::guard::turn;

    /// However deep they are, what they close is opened.
    #[test]
    fn forks_within_forks_are_counted() {
        const DEEP: usize = 40;
        let _turn = turn();
        (0..DEEP).for_each(|_| before_fork(false));
        assert_eq!(FORKS.get().count, DEEP);
        (0..DEEP).for_each(|_| after_fork());
        assert!(!EARLY.is_closed());
        assert!(FORKS.get().are_alone);
    }
}
