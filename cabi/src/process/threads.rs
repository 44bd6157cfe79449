//! Threads of the library. They take no signal: the program's signals are for
//! its own threads.

use std::cell::Cell;
use std::thread::{Builder, Scope, Thread};
use std::{fs, io};

use crate::process::outside::with_signals_blocked;

/// Bytes of stack for each.
const STACK: usize = 256 << 10;

thread_local! {
    static IS_OURS: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is one of the library.
pub(crate) fn is_ours() -> bool {
    IS_OURS.get()
}

/// Whether all threads of the program have ended: then the process would end.
pub(crate) fn are_alone() -> bool {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else {
        return false;
    };
    let mut ours = 0;
    for task in tasks.flatten() {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let name = stat.split_once('(').map_or("", |(_, name)| name);
        let state = stat.rsplit_once(") ").map_or("", |(_, state)| state);
        if name.starts_with(NAMED) {
            ours += 1;
        } else if !state.starts_with(['Z', 'X']) {
            return false;
        }
    }
    // Where this thread is not seen, nothing is known of others.
    ours > 0
}

/// What names of ours begin with.
const NAMED: &str = "vramalloc-";

fn builder(name: &str) -> Builder {
    Builder::new()
        .name(format!("{NAMED}{name}"))
        .stack_size(STACK)
}

/// Starts a thread, which is left where it stands at the end of the process.
///
/// # Errors
/// What the system answers.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    let work = || {
        IS_OURS.set(true);
        work();
    };
    let spawned = with_signals_blocked(|| builder(name).spawn(work))?;
    Ok(spawned.thread().clone())
}

/// Starts a thread of a scope.
///
/// # Errors
/// What the system answers.
pub(crate) fn spawn_in<'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() + Send + 'scope,
) -> io::Result<()> {
    with_signals_blocked(|| builder(name).spawn_scoped(scope, work)).map(|_| ())
}
