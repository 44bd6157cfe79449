//! The life of the library in a process: its start, its forks, and the few
//! lines it may say.
//!
//! Until the first request for device memory nothing here has run but one
//! look-up of a symbol. Owns the options in force. Cost: the environment is read
//! once.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use core_arena::Bytes;
use core_arena::config::{self, Host, Loaded, OomReport, StrategyKind};
use core_arena::patience::Brief;
use core_arena::stats::{Note, OomEvent};
use spin::rwlock::RwLock;

use crate::context::Arena;
use crate::guard::{self, Service};
use crate::linker::resolve;
use crate::{cancel, dump, notes, outside};

/// What the process started with.
pub(crate) struct Start {
    /// The options that were in force then.
    loaded: Loaded,
    /// When counting began.
    pub(crate) began: SystemTime,
    /// The process that counts; a child that was made by other means than
    /// `fork` is told apart by it.
    pub(crate) process: u32,
    /// Where `vramalloc run` wants to be told of the process.
    pub(crate) notes: Option<PathBuf>,
}

static START: OnceLock<Start> = OnceLock::new();

/// Things that are said at most once.
#[derive(Copy, Clone)]
#[repr(u32)]
pub(crate) enum Once {
    /// A request failed for want of memory.
    OutOfMemory = 1,
    /// A memory handle for another process could not be made.
    IpcRefused = 2,
    /// The statistics cannot be written.
    Statistics = 4,
    /// A memory handle of another process could not be read.
    IpcUnknown = 8,
    /// The events of an arena cannot be kept.
    Trace = 16,
    /// There are as many arenas as there can be.
    Arenas = 256,
}

ctor::declarative::ctor! {
    /// Finds the next `dlsym`, and what standard error and the working folder
    /// are, while nothing else goes on. Whoever comes earlier looks itself.
    #[ctor(unsafe)]
    fn loaded() {
        resolve::next_dlsym();
        outside::remember();
        start_folder();
    }
}

/// What tells a folder from others: device and inode.
type Identity = Option<(u64, u64)>;

fn identity(folder: &Path) -> Identity {
    let found = fs::metadata(folder).ok()?;
    Some((found.dev(), found.ino()))
}

/// Relative names of the options begin here, wherever the program goes.
static START_FOLDER: OnceLock<(PathBuf, Identity)> = OnceLock::new();

/// Where the program was started, and by what name.
fn start_folder() -> &'static (PathBuf, Identity) {
    START_FOLDER.get_or_init(|| {
        let name = std::env::current_dir().unwrap_or_default();
        (name, identity(Path::new(".")))
    })
}

/// The name of where the program was started; empty where it has none, or none
/// any more (it was renamed, or is no part of a new root) and the program is
/// there still. One that was removed holds no files: its name may, made anew.
pub(crate) fn first_folder() -> &'static Path {
    let (name, folder) = start_folder();
    let here = Path::new(".");
    let is_it = |at: &Path| identity(at) == *folder;
    let is_there = || fs::metadata(here).is_ok_and(|here| here.nlink() > 0);
    if !is_it(name) && is_it(here) && is_there() {
        return Path::new("");
    }
    name
}

/// What the process started with, if it has asked for device memory.
pub(crate) fn started() -> Option<&'static Start> {
    START.get()
}

/// The options in force, once the program has changed one.
static CHANGED: RwLock<Option<Box<Loaded>>, Brief> = RwLock::new(None);

/// What `read` finds in the options that are in force. It is quick, and calls
/// nothing that could come back here.
pub(crate) fn options<R>(read: impl FnOnce(&Loaded) -> R) -> R {
    let start = start();
    let changed = CHANGED.read();
    read(changed.as_deref().unwrap_or(&start.loaded))
}

/// Changes options; nothing where `change` fails.
///
/// # Errors
/// What `change` answers.
pub(crate) fn change_options<E>(
    change: impl FnOnce(&mut Loaded) -> Result<(), E>,
) -> Result<(), E> {
    let start = start();
    let mut changed = CHANGED.write();
    let mut next = match &*changed {
        Some(loaded) => loaded.clone(),
        None => Box::new(start.loaded.clone()),
    };
    change(&mut next)?;
    *changed = Some(next);
    Ok(())
}

/// What the process started with; the first caller reads the options.
pub(crate) fn start() -> &'static Start {
    if let Some(start) = START.get() {
        return start;
    }
    let _held = cancel::Held::back();
    let start = Start {
        loaded: config::load(std::env::vars_os(), host()),
        began: SystemTime::now(),
        process: std::process::id(),
        notes: notes::place(),
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
        notes::note(Note::Seen);
        dump::keep_writing(start);
    }
    start
}

/// Which framework the process is, as far as options depend on it.
fn host() -> Host {
    let loaded = |prefix: &[u8]| !resolve::loaded_files(prefix).is_empty();
    Host {
        paddle: loaded(b"libpaddle"),
        torch: loaded(b"libc10_cuda"),
    }
}

/// Whether this is the process that has asked for memory, and no child of it.
pub(crate) fn is_own_process() -> bool {
    let is_own = |start: &Start| start.process == std::process::id();
    guard::service() != Service::Inherited && started().is_some_and(is_own)
}

/// In a forked child: CUDA does not survive a fork, and the arenas are the
/// parent's.
unsafe extern "C" fn forked() {
    guard::end_service(Service::Inherited);
}

/// Says once that memory ran out, why, and how the arena stood, unless nothing
/// is to be told.
pub(crate) fn out_of_memory(arena: &Arena, request: Bytes, why: &str) {
    let wanted = options(|loaded| loaded.settings.oom_report != OomReport::Off);
    if !wanted || !first(Once::OutOfMemory) {
        return;
    }
    let ooms = arena.ooms();
    let event = ooms.events().rev().find(|event| event.request == request);
    let stood = event.map_or_else(String::new, stood);
    warn(&format!(
        "out of memory: {request} asked for and {why}{stood}; said once, the statistics tell \
         the rest"
    ));
}

/// What was there and could not serve the request.
fn stood(event: &OomEvent) -> String {
    let before = &event.before;
    let (free, enough) = (event.free_in_sum(), event.is_fragmented());
    let strategy = options(|loaded| loaded.settings.config.strategy);
    let stacked = enough && strategy == StrategyKind::NaiveBestFit;
    format!(
        "; {} reserved when it was asked for, of it {} live, {} cached (largest block {}), {} \
         still in use by the GPU; {free} free in the end, {}{}",
        before.reserved,
        before.live,
        before.cached,
        before.largest_cached,
        before.limbo,
        if enough {
            "enough but not in one piece"
        } else {
            "too little"
        },
        if stacked {
            " (naive_best_fit holds most of the device in one chunk, and a second pool of that \
             kind, the program's own, does not fit into it: set strategy:auto_growth)"
        } else {
            ""
        },
    )
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

/// Says one line on standard error.
pub(crate) fn warn(text: &str) {
    let _held = cancel::Held::back();
    let text = text.replace(char::is_control, "\u{fffd}");
    outside::say(format!("vramalloc: {text}"));
}
