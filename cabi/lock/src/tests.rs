//! The lock with real threads, and with a system that says no.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::*;

struct Yields;

impl RelaxStrategy for Yields {
    fn relax() {
        thread::yield_now();
    }
}

type Counter = BiasedLock<u64, Yields>;

fn made() -> &'static Counter {
    Box::leak(Box::new(BiasedLock::new(0)))
}

/// A key of the calling thread, towards which the lock is biased.
fn biased(lock: &'static Counter) -> Key<u64, Yields> {
    prepare(|| true);
    let key = Key::new(lock, 3);
    drop(key.stay(lock.lock()));
    assert!(key.enter().is_some());
    key
}

/// Runs it on another thread.
fn elsewhere<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    let joined = thread::scope(|scope| scope.spawn(work).join());
    joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[test]
fn what_all_have_counted_is_whole() {
    const EACH: u64 = 200_000;
    let (lock, ends, is_shared) = (made(), AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let owner = scope.spawn(|| {
            let key = biased(lock);
            let (mut by_bias, mut count) = (0, 0);
            // As long as it takes until others have come in between.
            while count < EACH || !is_shared.load(Ordering::Relaxed) {
                count += 1;
                let entered = key.enter().map(BiasedGuard::from);
                by_bias += u64::from(entered.is_some());
                let mut guard = entered.unwrap_or_else(|| key.stay(lock.lock()));
                *guard += 1;
            }
            (by_bias, count)
        });
        let others = [0, 1, 2].map(|which| {
            let (ends, is_shared) = (&ends, &is_shared);
            scope.spawn(move || {
                let mut count = 0;
                while !ends.load(Ordering::Relaxed) {
                    let mut held = match which {
                        0 => lock.try_lock().into_iter().collect(),
                        1 => vec![lock.lock()],
                        _ => BiasedLock::lock_all([lock, made()].into_iter()),
                    };
                    if let Some(guard) = held.first_mut() {
                        **guard += 1;
                        count += 1;
                        is_shared.store(true, Ordering::Relaxed);
                    }
                    thread::yield_now();
                }
                count
            })
        });
        let (by_bias, count) = owner.join().unwrap();
        ends.store(true, Ordering::Relaxed);
        let of_others: u64 = others.map(|other| other.join().unwrap()).iter().sum();
        assert_eq!(*lock.lock(), count + of_others);
        assert!(by_bias > 0 && of_others > 0, "{by_bias} {of_others}");
    });
}

#[test]
fn the_bias_comes_back_after_ever_more_entries() {
    let lock = made();
    let key = biased(lock);
    for entries in [ENTRIES, 2 * ENTRIES, 4 * ENTRIES] {
        elsewhere(|| drop(lock.lock()));
        for _ in 0..entries {
            assert!(key.enter().is_none());
            drop(key.stay(lock.try_lock().unwrap()));
        }
        assert!(key.enter().is_none());
        drop(key.stay(lock.try_lock().unwrap()));
        assert!(key.enter().is_some());
    }
    for _ in 0..20 {
        elsewhere(|| drop(lock.lock()));
        lock.entries_left.store(0, Ordering::Relaxed);
        drop(key.stay(lock.lock()));
    }
    assert_eq!(lock.entries.load(Ordering::Relaxed), MOST_ENTRIES);
}

#[test]
fn another_thread_gets_no_bias_of_a_lock_that_has_a_home() {
    let lock = made();
    assert!(elsewhere(|| lock.may_be_biased_here()));
    let key = biased(lock);
    elsewhere(|| {
        assert!(!lock.may_be_biased_here());
        let other = Key::new(lock, 0);
        lock.entries_left.store(0, Ordering::Relaxed);
        drop(other.stay(lock.lock()));
        assert!(other.enter().is_none());
    });
    assert!(lock.may_be_biased_here() && key.enter().is_none());
}

#[test]
fn who_is_inside_does_not_enter_again() {
    let lock = made();
    let key = biased(lock);
    let guard = key.enter();
    assert!(key.enter().is_none());
    drop(guard);
    // By its bias too, though it asks as others do.
    let guard = lock.lock();
    assert!(key.enter().is_none());
    assert!(elsewhere(|| lock.try_lock().is_none()));
    lock.unbias(&guard);
    drop(guard);
    assert!(key.enter().is_none());
    assert!(elsewhere(|| lock.try_lock().is_some()));
}

#[test]
fn whose_bias_it_is_can_be_seen_without_the_lock() {
    let lock = made();
    let seen = || elsewhere(|| lock.is_biased_elsewhere());
    assert!(!seen());
    let key = biased(lock);
    assert!(seen() && !lock.is_biased_elsewhere());
    // It was not ended by that.
    assert!(key.enter().is_some());
    elsewhere(|| drop(lock.lock()));
    assert!(!seen());
}

#[test]
fn a_number_has_its_tag() {
    let lock = made();
    let (first, second) = (Key::new(lock, 7), Key::new(lock, 7));
    assert_eq!(Key::<u64, Yields>::tag_of(first.number()), 7);
    assert_ne!(first.number(), second.number());
}

/// Forbids the system call in this process from now on; it fails with `EPERM`.
fn forbid_barriers() {
    const LOAD: u16 = 0x20;
    const IS_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let number = u32::try_from(libc::SYS_membarrier).unwrap_or(u32::MAX);
    let mut steps = [
        step(LOAD, 0, 0, 0),
        step(IS_EQUAL, 0, 1, number),
        step(
            RETURN,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs(),
        ),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog {
        len: 4,
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: the filter is read in the call.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(
            libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter),
            0
        );
    }
}

/// Runs it in a copy of the process; whether it came to its end.
fn in_a_copy(work: impl FnOnce()) -> bool {
    // SAFETY: the copy does what it is to do, and ends without what a process does at exit.
    unsafe {
        let copy = libc::fork();
        if copy == 0 {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            libc::_exit(i32::from(result.is_err()));
        }
        let mut status = 1;
        libc::waitpid(copy, &raw mut status, 0) == copy && status == 0
    }
}

#[test]
fn a_lock_whose_barrier_is_forbidden_goes_on_without_a_bias() {
    prepare(|| true);
    assert!(in_a_copy(|| {
        let lock = made();
        let key = biased(lock);
        forbid_barriers();
        elsewhere(|| *lock.lock() += 1);
        lock.entries_left.store(0, Ordering::Relaxed);
        drop(key.stay(lock.lock()));
        assert!(key.enter().is_none());
        assert_eq!(*lock.lock(), 1);
    }));
}

#[test]
fn the_errno_of_the_program_stays() {
    assert!(in_a_copy(|| {
        prepare(|| true);
        forbid_barriers();
        // SAFETY: the place is the thread's.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        unsafe { *errno = 77 };
        barrier::heavy::<Yields>();
        // SAFETY: as above.
        assert_eq!(unsafe { *errno }, 77);
    }));
}
