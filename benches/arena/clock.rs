//! Time: of many calls together, and of single calls.
//!
//! A mean is that of a loop between two readings of the clock. Percentiles need
//! a reading around every call; that is the processor's time-stamp counter,
//! whose own cost is measured with nothing in between and subtracted.
//! (Criterion would give means of batches and their spread, but no p99 of
//! single calls, and no repetition in fresh processes.)

use std::time::Instant;

use quanta::Clock;

/// Empty measurements, to know the cost of a reading.
const EMPTY: usize = 10_001;

/// Nanoseconds that each of `count` calls took on average.
#[allow(clippy::cast_precision_loss, reason = "a mean")]
pub(crate) fn mean(count: usize, mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..count {
        call();
    }
    start.elapsed().as_secs_f64() * 1e9 / count as f64
}

/// The times of single calls, in nanoseconds.
pub(crate) struct Spread {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
}

/// Times each of `count` calls.
#[allow(clippy::cast_precision_loss, reason = "nanoseconds")]
pub(crate) fn spread(count: usize, mut call: impl FnMut()) -> Spread {
    let clock = Clock::new();
    let time = |count: usize, call: &mut dyn FnMut()| {
        let mut ticks: Vec<u64> = Vec::with_capacity(count);
        for _ in 0..count {
            let start = clock.raw();
            call();
            ticks.push(clock.raw() - start);
        }
        ticks.sort_unstable();
        ticks
    };
    let reading = time(EMPTY, &mut || ())[EMPTY / 2];
    let ticks = time(count, &mut call);
    let ns = |share: f64| {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an index"
        )]
        let at = ((count as f64 * share) as usize).min(count - 1);
        clock.delta_as_nanos(0, ticks[at].saturating_sub(reading)) as f64
    };
    Spread {
        p50: ns(0.5),
        p99: ns(0.99),
        p999: ns(0.999),
    }
}
