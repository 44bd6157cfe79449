//! The life of the library in a process: its start, its end, its forks, and
//! the few lines it may say.
//!
//! Until the first request for device memory nothing here has run but one
//! look-up of a symbol. Owns the options in force. Invariant: no CUDA call at
//! the end of the process; one file, written by the process that allocated.
//! Cost: the environment is read once.

use std::panic::catch_unwind;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use core_arena::Bytes;
use core_arena::config::{self, Host, Loaded};
use core_arena::stats::{ArenaReport, Process, Report};

use crate::context::{self, Arena};
use crate::guard::{self, Service};
use crate::{resolve, symbols};

/// What the process started with.
pub(crate) struct Start {
    /// The options in force.
    pub(crate) loaded: Loaded,
    /// When counting began.
    began: SystemTime,
    /// The process that counts; a child that was made by other means than
    /// `fork` is told apart by it.
    process: u32,
}

static START: OnceLock<Start> = OnceLock::new();

/// Things that are said at most once.
#[derive(Copy, Clone)]
#[repr(u32)]
pub(crate) enum Once {
    /// A request failed for want of memory.
    OutOfMemory = 1,
    /// A memory handle for a part of an allocation was refused.
    IpcInside = 2,
}

ctor::declarative::ctor! {
    /// Finds the next `dlsym` while nothing else goes on. A look-up that comes
    /// earlier finds it itself.
    #[ctor(unsafe)]
    fn loaded() {
        resolve::next_dlsym();
    }
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = ended;

/// What the process started with; the first caller reads the options.
pub(crate) fn start() -> &'static Start {
    if let Some(start) = START.get() {
        return start;
    }
    let start = Start {
        loaded: config::load(std::env::vars_os(), host()),
        began: SystemTime::now(),
        process: std::process::id(),
    };
    // Of several threads that come together one wins; only it has effects.
    let mut won = false;
    let start = START.get_or_init(|| {
        won = true;
        start
    });
    if won {
        guard::quiet_panics();
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        for warning in &start.loaded.warnings {
            warn(warning);
        }
    }
    start
}

/// Which framework the process is, as far as options depend on it.
fn host() -> Host {
    let loaded = |prefix: &[u8]| !resolve::loaded_files(prefix).is_empty();
    Host {
        paddle: loaded(b"libpaddle"),
        torch_caching: loaded(b"libc10_cuda")
            && std::env::var_os("PYTORCH_NO_CUDA_MEMORY_CACHING").is_none(),
    }
}

/// In a forked child: CUDA does not survive a fork, and the arenas are the
/// parent's.
unsafe extern "C" fn forked() {
    guard::end_service(Service::Inherited);
}

/// At the end of the process: writes the statistics.
#[cfg_attr(test, allow(dead_code))]
extern "C" fn ended() {
    let Some(start) = START.get() else {
        return;
    };
    if guard::service() == Service::Inherited || start.process != std::process::id() {
        return;
    }
    if guard::is_serving() {
        // A signal handler ends the process from inside one of our calls,
        // which may hold what the statistics would wait for.
        warn("no statistics: the process was ended from inside an allocation");
        return;
    }
    // A panic must not leave a function of C; it has said its line.
    let _caught = catch_unwind(|| write(start));
}

fn write(start: &Start) {
    let mut arenas = context::reports();
    arenas.retain(has_allocated);
    if arenas.is_empty() {
        return;
    }
    let process = Process::current(start.began);
    let report = Report {
        process: &process,
        loaded: &start.loaded,
        doors: &symbols::passed(),
        arenas: &arenas,
    };
    if let Err(error) = start.loaded.stats.deliver(&process, &report.to_text()) {
        warn(&format!("cannot write the statistics: {error}"));
    }
}

/// Whether anything was asked of an arena.
fn has_allocated(arena: &ArenaReport) -> bool {
    let stats = &arena.stats;
    stats.hits + stats.misses + stats.direct + stats.ooms > 0
}

/// Says once that memory ran out, why, and how the arena stands.
pub(crate) fn out_of_memory(arena: &Arena, request: Bytes, why: &str) {
    if !first(Once::OutOfMemory) {
        return;
    }
    let stats = arena.stats();
    warn(&format!(
        "out of memory: {request} asked for and {why}; {} reserved, of it {} live, {} cached \
         (largest block {}), {} still in use by the GPU; said once, the statistics count the rest",
        stats.reserved.current,
        stats.live.current,
        stats.cached.current,
        stats.largest_cached,
        stats.limbo.current,
    ));
}

/// Says a line, the first time that this happens.
pub(crate) fn warn_once(what: Once, text: &str) {
    if first(what) {
        warn(text);
    }
}

fn first(what: Once) -> bool {
    static SAID: AtomicU32 = AtomicU32::new(0);
    let bit = what as u32;
    SAID.fetch_or(bit, Ordering::Relaxed) & bit == 0
}

/// Says one line on standard error, in one piece.
pub(crate) fn warn(text: &str) {
    let line = format!("vramalloc: {text}\n");
    // SAFETY: as many bytes as the line has. What cannot be said is not.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}
