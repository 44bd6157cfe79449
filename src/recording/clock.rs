//! The time of events, and the threads that they happen on.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Tells the time since 1970, without ever going back.
#[derive(Copy, Clone)]
pub(crate) struct EventClock {
    begun: Instant,
    begun_us: u64,
}

impl EventClock {
    pub(crate) fn new() -> EventClock {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let micros = since.ok().and_then(|d| u64::try_from(d.as_micros()).ok());
        EventClock {
            begun: Instant::now(),
            begun_us: micros.unwrap_or(0),
        }
    }

    pub(crate) fn now_us(&self) -> u64 {
        let passed = self.begun.elapsed();
        let micros = passed.as_secs().saturating_mul(1_000_000);
        self.begun_us
            .saturating_add(micros)
            .saturating_add(u64::from(passed.subsec_micros()))
    }
}

/// The number of the calling thread, from 1, in the order in which they asked first.
pub(super) fn thread() -> u32 {
    // Relaxed: it stands for itself. Not the model checker's: it orders nothing.
    static LAST: AtomicU32 = AtomicU32::new(0);
    thread_local! {
        static NUMBER: Cell<u32> = const { Cell::new(0) };
    }
    match NUMBER.get() {
        0 => {
            let number = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            NUMBER.set(number);
            number
        }
        number => number,
    }
}
