//! A barrier of which one side is free: `heavy` has all threads of the process pass a
//! full barrier, between whatever they did before and what they do after it. So who
//! stands at `light` needs no more than that the compiler keeps the order.
//!
//! Owns whether the process may use the system's way to do that, `membarrier(2)` of Linux
//! 4.14 and later. Cost of `heavy`: 0.1 µs with one thread, some µs where others run.

#[cfg(loom)]
pub(crate) use modelled::{heavy, is_there, light};
#[cfg(not(loom))]
pub use real::prepare;
#[cfg(not(loom))]
pub(crate) use real::{heavy, is_there, light};

#[cfg(not(loom))]
mod real {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};
    use std::time::{Duration, Instant};

    use spin::RelaxStrategy;

    /// Relaxed: it stands for itself.
    static IS_THERE: AtomicBool = AtomicBool::new(false);

    /// Whether the system call may be made now.
    static MAY_CALL: OnceLock<fn() -> bool> = OnceLock::new();

    /// After so long a processor has shown what it had stored, many times over.
    const SHOWN: Duration = Duration::from_millis(20);

    /// Has the system know that the process will want barriers, if `may_call` says that
    /// system calls may be made; that is asked again before each. Before this no lock is
    /// biased. Where there are several threads already the system takes some 10 ms for it.
    pub fn prepare(may_call: fn() -> bool) {
        MAY_CALL.get_or_init(|| {
            IS_THERE.store(may_call() && register(), Ordering::Relaxed);
            may_call
        });
    }

    pub(crate) fn is_there() -> bool {
        IS_THERE.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn light() {
        compiler_fence(Ordering::SeqCst);
    }

    #[cold]
    pub(crate) fn heavy<R: RelaxStrategy>() {
        let make = || calls(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
        // The second try is for a process that the system does not know yet, since it is a
        // copy of the one that registered.
        if MAY_CALL.get().is_some_and(|may| may()) && (make() || register() && make()) {
            return;
        }
        // It was forbidden meanwhile. No lock is biased from now on; what a thread stored
        // that has entered by a bias is seen after a while.
        IS_THERE.store(false, Ordering::Relaxed);
        let start = Instant::now();
        while start.elapsed() < SHOWN {
            R::relax();
        }
    }

    fn register() -> bool {
        calls(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
    }

    /// The program's `errno` stays.
    fn calls(command: libc::c_int) -> bool {
        // SAFETY: the call reads and writes no memory; the place of errno is the thread's.
        unsafe {
            let errno = *libc::__errno_location();
            let result = libc::syscall(libc::SYS_membarrier, command, 0, 0);
            *libc::__errno_location() = errno;
            result == 0
        }
    }
}

#[cfg(loom)]
mod modelled {
    use loom::sync::atomic::{Ordering, fence};

    pub(crate) fn is_there() -> bool {
        true
    }

    pub(crate) fn light() {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn heavy<R>() {
        fence(Ordering::SeqCst);
    }
}
