//! The end of the process, and versions of the statistics before it.
//!
//! There are two places for the last work: before the driver ends, and after all code
//! of the program (`process::ending` says why).
//!
//! A process that ends without running handlers leaves what was written last:
//! with the option `stats_interval_s` a thread writes the statistics in
//! between: soon after the start, and then less and less often, up to the
//! interval that the option says. Cost: nothing until the end; with the option, a
//! sleeping thread, and a write of some milliseconds at each interval.

use std::panic::catch_unwind;
use std::thread;
use std::time::{Duration, Instant};

use vramalloc_core::config::StatsTarget;
use vramalloc_core::stats::Note;

use crate::pools::background;
use crate::process::ending::ProcessEnd;
use crate::process::outside::with_handlers_held;
use crate::process::say::warn;
use crate::process::{self, Start, guard, last_stack, notes, threads};
use crate::report::{dump, orders};
use crate::{families, ipc, page, recording};

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = ended;

/// Runs when the process begins to end, while the driver is there: it was there before
/// the first request, and handlers run in the opposite order. Where other threads may
/// ask for memory up to the end, the last version is written now.
extern "C" fn ends() {
    if dump::may_write_last() {
        with_handlers_held(|| last_stack::run(end_early));
    }
}

extern "C" fn end_early() {
    let ending = ProcessEnd::begin();
    if process::started().is_none() || !process::is_own_process() {
        return;
    }
    if ending.count_threads() && !guard::is_serving() {
        // As in `end`.
        let _caught = catch_unwind(dump::write_early);
    }
}

/// Runs at the end of the process: removes what others could open, and writes
/// the last version, if it is not written.
#[cfg_attr(test, allow(dead_code))]
extern "C" fn ended() {
    if dump::may_write_last() {
        with_handlers_held(|| last_stack::run(end));
    }
}

extern "C" fn end() {
    let ending = ProcessEnd::begin();
    let is_written = ending.is_as_before();
    background::stop();
    if process::started().is_none() || !process::is_own_process() {
        return;
    }
    page::remove();
    if guard::is_serving() {
        // A signal handler ends the process from inside one of our calls,
        // which may hold what the statistics would wait for.
        let why = "the process was ended from inside an allocation";
        warn(&format!("no statistics: {why}"));
        notes::note(Note::Failed(why));
        return;
    }
    // A panic must not leave a C function; it has printed its line.
    let _caught = catch_unwind(|| {
        ipc::end_process();
        families::tell_used();
        recording::end();
        dump::write_last(is_written);
        notes::note(Note::Ended);
    });
}

ctor::declarative::ctor! {
    #[ctor(unsafe)]
    fn loaded() {
        process::when_started(keep_writing);
    }
}

/// When the first version is written, at the latest: who has just begun is killed
/// most often.
const FIRST: Duration = Duration::from_secs(1);

/// Sleeps for so long, and looks for orders meanwhile.
fn sleep(interval: Duration) {
    let start = Instant::now();
    loop {
        let left = interval.saturating_sub(start.elapsed());
        if left.is_zero() {
            return;
        }
        orders::look_from_outside();
        thread::sleep(left.min(threads::LONGEST_WAIT));
        threads::end_with_the_last();
    }
}

/// Has orders looked for, and starts the thread that writes in between, if the
/// options ask for one.
fn keep_writing(start: &'static Start) {
    // SAFETY: a function of this library, which stays loaded.
    unsafe { libc::atexit(ends) };
    orders::begin(start);
    // The thread below has the rank that is read here, or later by one of the program's.
    process::rank();
    let (interval, to_file) = process::options(|loaded| {
        let settings = &loaded.settings;
        let to_file = matches!(settings.stats, StatsTarget::File(_));
        (settings.stats_interval, to_file)
    });
    if interval.is_zero() || !to_file {
        return;
    }
    let write = move || {
        let mut pause = FIRST.min(interval);
        loop {
            sleep(pause);
            if !dump::write_between() {
                return;
            }
            pause = pause.saturating_mul(2).min(interval);
        }
    };
    if let Err(error) = threads::spawn("stats", write) {
        warn(&format!(
            "stats_interval_s: no thread could be started: {error}"
        ));
    }
}
