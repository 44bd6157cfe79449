//! Steps at which a test stops the process: `CONTROL_STOPPED_AT=N`, the N-th.
//! Only the debug build has them.

use std::io;

/// A step of the work on a page.
#[cfg(not(debug_assertions))]
pub(super) fn step() {}

/// A step of the work on a page.
#[cfg(debug_assertions)]
pub(super) fn step() {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static AT: OnceLock<Option<u64>> = OnceLock::new();
    static DONE: AtomicU64 = AtomicU64::new(0);
    let at = AT.get_or_init(|| std::env::var("CONTROL_STOPPED_AT").ok()?.parse().ok());
    if *at == Some(DONE.fetch_add(1, Ordering::Relaxed) + 1) {
        // SAFETY: has no conditions; the process stops in it.
        unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) };
    }
}

/// Writes words by `store`, from which one on; in the debug build each is a step.
pub(super) fn store(
    words: &[u64],
    store: impl Fn(usize, &[u64]) -> io::Result<()>,
) -> io::Result<()> {
    if !cfg!(debug_assertions) {
        return store(0, words);
    }
    for (at, word) in words.chunks(1).enumerate() {
        step();
        store(at, word)?;
    }
    Ok(())
}
