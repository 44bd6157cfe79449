//! The stack of our last work at the end of the process.
//!
//! Who ends the process may have little of his own: a signal handler has eight
//! kilobytes (`SIGSTKSZ`), a thread as few as the program gave it, and bare that is
//! enough for `exit`. The statistics take some forty. Owns a stack for them, which is
//! there from the beginning, since the end may come because there is no more memory.
//! Invariant: one thread is on it. Cost: its pages, when they are used.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

use super::cancel;

/// As many as a thread of ours has.
const SIZE: usize = 256 << 10;

#[repr(C, align(16))]
struct Room {
    stack: UnsafeCell<[u8; SIZE]>,
    caller: UnsafeCell<MaybeUninit<libc::ucontext_t>>,
    work: UnsafeCell<MaybeUninit<libc::ucontext_t>>,
}

// SAFETY: used by the one thread that has set `TAKEN`.
unsafe impl Sync for Room {}

static ROOM: Room = Room {
    stack: UnsafeCell::new([0; SIZE]),
    caller: UnsafeCell::new(MaybeUninit::uninit()),
    work: UnsafeCell::new(MaybeUninit::uninit()),
};

static TAKEN: AtomicBool = AtomicBool::new(false);

/// Runs `work` there, or where the caller is if another thread has it.
pub(crate) fn run(work: extern "C" fn()) {
    let _held = cancel::Held::back();
    // Acquire: pairs with the Release below.
    if TAKEN.swap(true, Ordering::Acquire) {
        work();
        return;
    }
    let (caller, there) = (ROOM.caller.get(), ROOM.work.get());
    // SAFETY: this thread has the room. The context is complete once `getcontext` has
    // filled it and it has a stack, where it returns to, and a function without
    // arguments. It is left when that returns, to the one that `swapcontext` fills.
    unsafe {
        if libc::getcontext(there.cast()) == 0 {
            let context = (*there).assume_init_mut();
            context.uc_stack.ss_sp = ROOM.stack.get().cast();
            context.uc_stack.ss_size = SIZE;
            context.uc_link = caller.cast();
            libc::makecontext(context, work, 0);
            libc::swapcontext(caller.cast(), context);
        } else {
            work();
        }
    }
    // Release: pairs with the Acquire above.
    TAKEN.store(false, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr;
    use std::sync::atomic::AtomicUsize;

    static WHERE: AtomicUsize = AtomicUsize::new(0);

    extern "C" fn note_where() {
        let local = 0_u8;
        WHERE.store(ptr::from_ref(&local).addr(), Ordering::Relaxed);
    }

    extern "C" fn run_within() {
        run(note_where);
    }

    fn is_there() -> bool {
        let start = ROOM.stack.get().addr();
        (start..start + SIZE).contains(&WHERE.load(Ordering::Relaxed))
    }

    #[test]
    fn work_is_done_there_and_beside_it_where_that_is_in_use() {
        for _ in 0..3 {
            run(note_where);
            assert!(is_there());
        }
        run(run_within);
        assert!(is_there());
        TAKEN.store(true, Ordering::Relaxed);
        run(note_where);
        TAKEN.store(false, Ordering::Relaxed);
        assert!(!is_there());
    }
}
