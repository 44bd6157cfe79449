//! Writing the statistics.
//!
//! Invariant: one file, replaced as a whole by the process that allocated;
//! nothing is written after the last version; no CUDA call is made.

use std::fs;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{self, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use vramalloc_core::config::{Loaded, StatsTarget};
use vramalloc_core::patience::wait_within;
use vramalloc_core::stats::{self, ArenaReport, NOT_SERVED, Note, Own, Report, Snapshots};

use crate::driver::devices;
use crate::families;
use crate::owners;
use crate::page;
use crate::pools::{device, lanes, pageable};
use crate::process::forking;
use crate::process::guard::{self, Service};
use crate::process::outside::{Outlet, quietly};
use crate::process::say::{Once, warn, warn_once};
use crate::process::{self, cancel, notes};
use crate::real::{passed, reach};
use crate::recording;
use crate::report::snapshots;
use crate::stacks;

/// Held by the thread that writes.
static WRITER: Mutex<Writer> = Mutex::new(Writer {
    last: false,
    early: None,
    own: Own::new(),
});

struct Writer {
    /// Whether the last version was, or is being, written.
    last: bool,
    /// The file that has the last version, if it was written early and nothing was
    /// written since.
    early: Option<PathBuf>,
    own: Own,
}

fn writer() -> MutexGuard<'static, Writer> {
    WRITER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same at the end of the process. A thread that has it may wait for ever, for a reader
/// or for what the thread that ends the process holds.
fn writer_soon() -> Option<MutexGuard<'static, Writer>> {
    const MOST: Duration = Duration::from_secs(5);
    let mut writer = None;
    wait_within(MOST, || {
        writer = match WRITER.try_lock() {
            Ok(writer) => Some(writer),
            Err(TryLockError::Poisoned(writer)) => Some(writer.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        writer.is_some()
    });
    writer
}

/// Whether anything may be done at the end. A program that has filtered its system calls
/// may be ended by one that it does not make, so it is let be unless somebody has asked for
/// statistics.
pub(crate) fn may_write_last() -> bool {
    process::started().is_some() && (!process::has_sandboxed_itself() || is_asked_for())
}

/// Whether somebody has said where the statistics go.
fn is_asked_for() -> bool {
    let is_given = |loaded: &Loaded| {
        let mut echo = loaded.echo.iter();
        let is_given = echo.any(|option| option.key == "stats" && option.origin != "default");
        is_given && loaded.settings.stats != StatsTarget::Off
    };
    let is_by_run = process::started().is_some_and(|start| start.has_stats_by_run);
    !is_by_run && process::options(is_given)
}

/// Writes the last version before the end, to a file that can be replaced by another
/// one. If that fails, the end says it.
pub(crate) fn write_early() {
    let target = target();
    if !is_file(&target) {
        return;
    }
    let Some(mut writer) = writer_soon() else {
        return;
    };
    if !writer.last {
        writer.early = write(&target, &mut writer, true).ok().flatten();
    }
}

/// Whether what is written goes to a regular file of its own.
fn is_file(target: &StatsTarget) -> bool {
    let StatsTarget::File(pattern) = target else {
        return false;
    };
    let file = stats::file_of(pattern, &process::this());
    fs::metadata(&file).map_or(true, |found| found.is_file())
}

/// Writes the last version, after which nothing is written any more; `is_written` if
/// the early one still tells all.
pub(crate) fn write_last(is_written: bool) {
    let Some(mut writer) = writer_soon() else {
        let why = "another thread was writing them and did not come to an end";
        warn(&format!("no statistics: {why}"));
        notes::note(Note::Failed(why));
        return;
    };
    writer.last = true;
    let written = match writer.early.take() {
        Some(path) if is_written => Some(path),
        _ => write_or_say(&mut writer),
    };
    if let Some(path) = written {
        let path = path::absolute(path).unwrap_or_default();
        notes::note(Note::Wrote(&path.to_string_lossy()));
    }
}

/// Writes a version in between; returns whether there may be another.
pub(crate) fn write_between() -> bool {
    // Nothing is there to be written, and a child would have the lock; or a file that is
    // opened may be the end of the process, as the end of the thread may.
    let may_write = || !process::is_sandboxed() || is_asked_for();
    if !forking::is_used() || !may_write() {
        return true;
    }
    let mut writer = writer();
    if writer.last || guard::service() != Service::Full {
        return false;
    }
    catch_unwind(AssertUnwindSafe(|| write_or_say(&mut writer))).is_ok()
}

/// Writes a version, or says why it cannot be written. Returns the file.
fn write_or_say(writer: &mut Writer) -> Option<PathBuf> {
    let last = writer.last;
    write(&target(), writer, last).unwrap_or_else(|error| {
        warn_once(
            Once::Statistics,
            &format!("cannot write the statistics: {error}"),
        );
        notes::note(Note::Failed(&error.to_string()));
        None
    })
}

/// Writes a version, if there is anything to be told.
fn write(target: &StatsTarget, writer: &mut Writer, last: bool) -> io::Result<Option<PathBuf>> {
    if *target == StatsTarget::Off {
        return Ok(None);
    }
    let arenas = used_arenas();
    let is_past_us = reach::handed_on() || families::any();
    if arenas.is_empty() && !is_past_us {
        return Ok(None);
    }
    deliver(target, writer, last, &arenas)
}

/// The target of the option `stats`, wherever the program has gone since.
pub(crate) fn target() -> StatsTarget {
    let said = process::options(|loaded| loaded.settings.stats.clone());
    match &said {
        // The folder is looked for only where it matters.
        StatsTarget::File(name) if !name.starts_with('/') => said.within(process::first_folder()),
        _ => said,
    }
}

/// Writes everything to the target, and returns which file that is.
fn deliver(
    target: &StatsTarget,
    writer: &mut Writer,
    last: bool,
    arenas: &[ArenaReport],
) -> io::Result<Option<PathBuf>> {
    let _held = cancel::Held::back();
    writer.early = None;
    let snapshots = snapshots::take();
    report(last, arenas, Some(&snapshots), |report| {
        let write = |out: &mut dyn Write| report.write(out);
        quietly(|| stats::deliver(target, report.process, &mut writer.own, Outlet::open, write))
    })
}

/// Makes the report of this process and passes it to `then`.
fn report<R>(
    last: bool,
    arenas: &[ArenaReport],
    snapshots: Option<&Snapshots>,
    then: impl FnOnce(&Report<'_>) -> R,
) -> R {
    let process = process::this();
    let mut loaded = process::options(Loaded::clone);
    if reach::handed_on() {
        loaded.warnings.push(NOT_SERVED.to_owned());
    }
    let control = page::mode();
    let stacks = snapshots.and_then(|snapshots| {
        let in_snapshots = snapshots
            .arenas
            .iter()
            .flat_map(|(_, snapshot)| snapshot.stacks());
        let in_ooms = arenas.iter().flat_map(|report| report.ooms.stacks());
        stacks::report(in_snapshots.chain(in_ooms).collect())
    });
    then(&Report {
        process: &process,
        loaded: &loaded,
        last,
        doors: &passed::names(),
        lanes: lanes::mode(),
        control: &control,
        recording: recording::report(last).as_ref(),
        arenas,
        families: &families::reports(),
        libraries: &owners::paths(),
        elsewhere: &devices::elsewhere(),
        imports: &families::imports(),
        snapshots,
        stacks: stacks.as_ref(),
    })
}

/// The statistics as they are now, without single blocks: a program that asks
/// often wants numbers.
pub(crate) fn text() -> String {
    report(false, &used_arenas(), None, |report| report.to_text())
}

/// Writes the statistics as they are now.
///
/// # Errors
/// What the system returns.
pub(crate) fn write_now(target: &StatsTarget) -> io::Result<()> {
    let arenas = used_arenas();
    let mut writer = writer();
    let last = writer.last;
    deliver(target, &mut writer, last, &arenas).map(|_| ())
}

/// Writes the statistics as they are now to the file that the option `stats`
/// names, and returns it. Nothing that a reader could keep waiting is written to.
///
/// # Errors
/// In words.
pub(crate) fn write_file() -> Result<PathBuf, String> {
    let target = target();
    let StatsTarget::File(pattern) = &target else {
        return Err(format!("the option stats is {target} there"));
    };
    let file = stats::file_of(pattern, &process::this());
    if fs::metadata(&file).is_ok_and(|found| !found.is_file()) {
        return Err(format!("{} is no regular file", file.display()));
    }
    // Another thread may be writing them to a reader who takes his time.
    let mut writer = match WRITER.try_lock() {
        Ok(writer) => writer,
        Err(TryLockError::Poisoned(writer)) => writer.into_inner(),
        Err(TryLockError::WouldBlock) => {
            return Err("another thread is writing the statistics there".to_owned());
        }
    };
    if writer.last {
        return Err("its last statistics are written: it ends".to_owned());
    }
    let delivered = deliver(&target, &mut writer, false, &used_arenas());
    let file = delivered
        .map_err(|error| error.to_string())?
        .unwrap_or(file);
    Ok(path::absolute(&file).unwrap_or(file))
}

fn used_arenas() -> Vec<ArenaReport> {
    let mut arenas = device::reports();
    arenas.extend(pageable::report().filter(ArenaReport::has_allocated));
    arenas
}
