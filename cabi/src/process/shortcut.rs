//! Whether the doors may take the shortest way past everything but a thread's
//! cache.
//!
//! Each thing that a request or a free has to look at besides is a reason against
//! that way, counted here by whoever owns the thing: so one load answers for all
//! of them. Owns that count. Invariant: a reason is counted before it is so.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Nothing is known of the driver at first.
static REASONS: AtomicUsize = AtomicUsize::new(1);

/// One more reason. The first one is that look-ups may not reach our doors.
pub(crate) fn close() {
    // Acquire and Release: pair with each other and with the load below.
    REASONS.fetch_add(1, Ordering::AcqRel);
}

/// One reason less.
pub(crate) fn open() {
    // As in `close`.
    REASONS.fetch_sub(1, Ordering::AcqRel);
}

/// Whether there is no reason against it.
#[inline(always)]
pub(crate) fn is_open() -> bool {
    // Acquire: a thread that learned of a reason, by way of the driver or of
    // another thread, sees that it is counted.
    REASONS.load(Ordering::Acquire) == 0
}
