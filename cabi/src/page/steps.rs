//! Steps at which a test stops the process: `CONTROL_STOPPED_AT=N`, the N-th.
//! Only the debug build has them.

use std::io;
use std::sync::atomic::AtomicU64;

use vramalloc_core::control::cells::Cells;

/// A step of the work on a page.
#[cfg(not(debug_assertions))]
pub(super) fn step() {}

/// A step of the work on a page.
#[cfg(debug_assertions)]
pub(super) fn step() {
    use std::sync::OnceLock;
    use std::sync::atomic::Ordering;

    static AT: OnceLock<Option<u64>> = OnceLock::new();
    static DONE: AtomicU64 = AtomicU64::new(0);
    let at = AT.get_or_init(|| std::env::var("CONTROL_STOPPED_AT").ok()?.parse().ok());
    if *at == Some(DONE.fetch_add(1, Ordering::Relaxed) + 1) {
        // SAFETY: has no conditions; the process stops in it.
        unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) };
    }
}

/// Writes words; in the debug build each is a step.
pub(super) fn store(cells: &[AtomicU64], place: usize, words: &[u64]) -> io::Result<()> {
    if !cfg!(debug_assertions) {
        return cells.store(place, words);
    }
    for (at, &word) in words.iter().enumerate() {
        step();
        cells.store(place + at, &[word])?;
    }
    Ok(())
}
