//! Which process this is: the one that began to use us, or a copy of it.
//!
//! Owns a word of memory that a child does not get: the kernel gives it zeros,
//! however it was made, and also where it has the number of its parent in a
//! namespace of its own. Cost: a page of memory; a load to ask.

use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// See the module.
pub(crate) enum Mark {
    /// Wiped in a child.
    Word(&'static AtomicU64),
    /// The process's number, where the kernel cannot wipe.
    Number(AtomicU32),
}

impl Mark {
    /// Marks this process.
    pub(crate) fn here() -> Mark {
        Mark::word().unwrap_or_else(|| Mark::Number(AtomicU32::new(std::process::id())))
    }

    fn word() -> Option<Mark> {
        const LENGTH: usize = 4096;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new memory, at a place that the system picks.
        let start = unsafe { libc::mmap(ptr::null_mut(), LENGTH, access, how, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: the memory that was just mapped.
        if unsafe { libc::madvise(start, LENGTH, libc::MADV_WIPEONFORK) } != 0 {
            // SAFETY: the same, which nothing refers to.
            unsafe { libc::munmap(start, LENGTH) };
            return None;
        }
        // SAFETY: one word, aligned to a page, zero at first, never unmapped.
        let word: &'static AtomicU64 = unsafe { &*start.cast() };
        // Relaxed, as when it is read: it stands for itself.
        word.store(1, Ordering::Relaxed);
        Some(Mark::Word(word))
    }

    /// Marks a copy, which is a process of its own from now on.
    pub(crate) fn renew(&self) {
        match self {
            Mark::Word(word) => word.store(1, Ordering::Relaxed),
            Mark::Number(number) => number.store(std::process::id(), Ordering::Relaxed),
        }
    }

    /// Whether this is still the process that was marked.
    pub(crate) fn is_here(&self) -> bool {
        match self {
            Mark::Word(word) => word.load(Ordering::Relaxed) != 0,
            Mark::Number(number) => number.load(Ordering::Relaxed) == std::process::id(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The child has its parent's number where it is the first of a namespace;
    /// made by a bare system call it runs no handler of a fork.
    #[test]
    fn a_copy_is_not_the_process() {
        let mark = Mark::word().unwrap();
        assert!(mark.is_here());
        // SAFETY: the child makes no call but to end.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        if child == 0 {
            // SAFETY: has no conditions.
            unsafe { libc::_exit(i32::from(mark.is_here())) };
        }
        let mut status = -1;
        // SAFETY: a local; the child that was just made.
        unsafe { libc::waitpid(i32::try_from(child).unwrap(), &raw mut status, 0) };
        assert_eq!(status, 0);
        assert!(mark.is_here());
    }
}
