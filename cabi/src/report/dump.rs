//! Writing the statistics: at the end of the process and, where the option
//! `stats_interval_s` asks for it, in between, so that something is there after
//! an end that runs no handlers.
//!
//! Owns the right to write. Invariant: one file, replaced as a whole by the
//! process that allocated; nothing is written after the last version; no CUDA
//! call is made. Cost: nothing until the end, and with the option a thread that
//! sleeps.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{self, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use core_arena::config::Loaded;
use core_arena::stats::{
    ArenaReport, NOT_SERVED, Note, Own, Process, Report, Snapshots, StatsTarget,
};

use crate::api::background;
use crate::doors::runtime;
use crate::doors::symbols;
use crate::ipc;
use crate::pools::context;
use crate::pools::pageable;
use crate::process::guard::{self, Service};
use crate::process::outside::{Outlet, quietly, with_signals_blocked};
use crate::process::say::{Once, warn, warn_once};
use crate::process::{self, Start, cancel, notes};
use crate::report::snapshots;

/// Bytes of stack for the thread that writes in between.
const STACK: usize = 256 << 10;

/// Whoever holds it writes.
static WRITER: Mutex<Writer> = Mutex::new(Writer {
    last: false,
    own: Own::new(),
});

struct Writer {
    /// Whether the last version was, or is being, written.
    last: bool,
    own: Own,
}

fn writer() -> MutexGuard<'static, Writer> {
    WRITER.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = ended;

/// At the end of the process: takes back what others could open, and writes
/// the last version.
#[cfg_attr(test, allow(dead_code))]
extern "C" fn ended() {
    background::stop();
    let Some(start) = process::started().filter(|_| process::is_own_process()) else {
        return;
    };
    if guard::is_serving() {
        // A signal handler ends the process from inside one of our calls,
        // which may hold what the statistics would wait for.
        let why = "the process was ended from inside an allocation";
        warn(&format!("no statistics: {why}"));
        notes::note(Note::Failed(why));
        return;
    }
    // A panic must not leave a function of C; it has said its line.
    let _caught = catch_unwind(|| {
        ipc::end_process();
        let mut writer = writer();
        writer.last = true;
        write(start, &mut writer);
        notes::note(Note::Ended);
    });
}

ctor::declarative::ctor! {
    #[ctor(unsafe)]
    fn loaded() {
        process::when_started(keep_writing);
    }
}

/// Starts the thread that writes in between, if the options ask for one.
fn keep_writing(start: &'static Start) {
    let (interval, to_file) = process::options(|loaded| {
        let settings = &loaded.settings;
        let to_file = matches!(settings.stats, StatsTarget::File(_));
        (settings.stats_interval, to_file)
    });
    if interval.is_zero() || !to_file {
        return;
    }
    let builder = thread::Builder::new()
        .name("vramalloc-stats".to_owned())
        .stack_size(STACK);
    // The program's signals are for its own threads.
    let spawned = with_signals_blocked(|| builder.spawn(move || write_each(interval, start)));
    if let Err(error) = spawned {
        warn(&format!(
            "stats_interval_s: no thread could be started: {error}"
        ));
    }
}

fn write_each(interval: Duration, start: &Start) {
    loop {
        thread::sleep(interval);
        let mut writer = writer();
        if writer.last || guard::service() != Service::Full {
            return;
        }
        if catch_unwind(AssertUnwindSafe(|| write(start, &mut writer))).is_err() {
            return;
        }
    }
}

fn write(start: &Start, writer: &mut Writer) {
    let arenas = used_arenas();
    if arenas.is_empty() && !runtime::handed_on() {
        return;
    }
    let snapshots = snapshots::take(&arenas);
    let delivered = deliver(&target(), start, writer, &arenas, &snapshots);
    if let (true, Ok(Some(path))) = (writer.last, &delivered) {
        let path = path::absolute(path).unwrap_or_default();
        notes::note(Note::Wrote(&path.to_string_lossy()));
    }
    if let Err(error) = delivered {
        warn_once(
            Once::Statistics,
            &format!("cannot write the statistics: {error}"),
        );
        notes::note(Note::Failed(&error.to_string()));
    }
}

/// What the option `stats` says, wherever the program has gone since.
pub(crate) fn target() -> StatsTarget {
    let said = process::options(|loaded| loaded.settings.stats.clone());
    said.within(process::first_folder())
}

/// Writes everything there is to where it belongs, and says which file that is.
fn deliver(
    target: &StatsTarget,
    start: &Start,
    writer: &mut Writer,
    arenas: &[ArenaReport],
    snapshots: &Snapshots,
) -> io::Result<Option<PathBuf>> {
    let _held = cancel::Held::back();
    report(start, writer.last, arenas, Some(snapshots), |report| {
        let write = |out: &mut dyn Write| report.write(out);
        quietly(|| target.deliver(report.process, &mut writer.own, Outlet::open, write))
    })
}

/// What is done with the report of this process.
fn report<R>(
    start: &Start,
    last: bool,
    arenas: &[ArenaReport],
    snapshots: Option<&Snapshots>,
    then: impl FnOnce(&Report<'_>) -> R,
) -> R {
    let process = Process::current(start.began);
    let mut loaded = process::options(Loaded::clone);
    if runtime::handed_on() {
        loaded.warnings.push(NOT_SERVED.to_owned());
    }
    then(&Report {
        process: &process,
        loaded: &loaded,
        last,
        doors: &symbols::passed(),
        arenas,
        snapshots,
    })
}

/// The statistics as they are now, without every block: whoever asks often
/// wants numbers.
pub(crate) fn text() -> String {
    report(process::start(), false, &used_arenas(), None, |report| {
        report.to_text()
    })
}

/// Writes the statistics as they are now.
///
/// # Errors
/// What the system answers.
pub(crate) fn write_now(target: &StatsTarget) -> io::Result<()> {
    let arenas = used_arenas();
    let snapshots = snapshots::take(&arenas);
    deliver(target, process::start(), &mut writer(), &arenas, &snapshots).map(|_| ())
}

fn used_arenas() -> Vec<ArenaReport> {
    let mut arenas = context::reports();
    arenas.extend(pageable::report().filter(ArenaReport::has_allocated));
    arenas
}
