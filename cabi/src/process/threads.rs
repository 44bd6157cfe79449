//! Threads of the library. They take no signal: the program's signals are for
//! its own threads.

use std::io;
use std::thread::{Builder, Scope, Thread};

use crate::process::outside::with_signals_blocked;

/// Bytes of stack for each.
const STACK: usize = 256 << 10;

fn builder(name: &str) -> Builder {
    Builder::new()
        .name(format!("vramalloc-{name}"))
        .stack_size(STACK)
}

/// Starts a thread, which is left where it stands at the end of the process.
///
/// # Errors
/// What the system answers.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
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
