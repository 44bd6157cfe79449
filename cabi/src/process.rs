//! The library in its process: the start, forks, and the options in force.
//!
//! Until the first request for device memory only `loaded` has run here. Cost:
//! the environment is read once.

pub(crate) mod cancel;
pub(crate) mod ending;
pub(crate) mod fast_local;
pub(crate) mod folder;
pub(crate) mod forking;
pub(crate) mod guard;
pub(crate) mod heap;
pub(crate) mod key;
pub(crate) mod last_stack;
pub(crate) mod mark;
pub(crate) mod notes;
pub(crate) mod outside;
pub(crate) mod sandbox;
pub(crate) mod say;
pub(crate) mod shortcut;
pub(crate) mod threads;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::SystemTime;

use spin::mutex::SpinMutex;
use spin::rwlock::RwLock;
use vramalloc_core::config::{self, Host, Loaded, STATS_BY_RUN};
use vramalloc_core::patience::Brief;
use vramalloc_core::stats::{self, Note, Process};

use crate::linker::unwind::modules;
use crate::linker::{callers, resolve, unwind};
use guard::Service;
use say::warn;

/// What is recorded when the process first asks for device memory.
pub(crate) struct Start {
    /// The options that were in force then.
    loaded: Loaded,
    /// When counting began.
    pub(crate) began: SystemTime,
    /// The process's id. A child that was made by other means than `fork` has
    /// another. Relaxed: it changes where there is one thread.
    process: AtomicU32,
    /// What a child does not get.
    mark: mark::Mark,
    /// Whether system calls were filtered already.
    was_filtered: bool,
    /// Whether it could gain no privileges already.
    had_given_up: bool,
    /// Nobody but `vramalloc run` has said where the statistics go.
    pub(crate) has_stats_by_run: bool,
    /// Where `vramalloc run` wants notes about the process.
    pub(crate) notes: Option<PathBuf>,
}

impl Start {
    /// Whether the program has filtered its system calls since.
    pub(crate) fn is_sandboxed(&self) -> bool {
        match self.was_filtered {
            // Who adds a filter gives up privileges before, but for the administrator.
            true => !self.had_given_up && sandbox::has_given_up_privileges(),
            false => sandbox::any(),
        }
    }
}

static START: OnceLock<Start> = OnceLock::new();

/// What to call when the process starts to use us.
static THEN: OnceLock<fn(&'static Start)> = OnceLock::new();

/// Has `then` called when the process first asks for memory. Registered when
/// the library is loaded; if the process was faster, called at once.
pub(crate) fn when_started(then: fn(&'static Start)) {
    let _again = THEN.set(then);
    if let Some(start) = START.get() {
        begin(start);
    }
}

/// Whether what was registered was called. Relaxed: it stands for itself.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// Calls what was registered, once: two threads may each find both there.
fn begin(start: &'static Start) {
    if let Some(then) = THEN.get()
        && !BEGUN.swap(true, Ordering::Relaxed)
    {
        then(start);
    }
}

ctor::declarative::ctor! {
    /// Finds the next `dlsym` and `dlclose`, and what standard error and the working folder
    /// are, before other code runs. Earlier calls find them themselves. What `vramalloc
    /// run` started ends with it from here on.
    #[ctor(unsafe)]
    fn loaded() {
        resolve::next_dlsym();
        unwind::prepare();
        outside::remember();
        start_folder();
        notes::end_with_command();
    }
}

/// A small text of the kernel's, read by no calls but those that open, read and
/// close.
///
/// # Errors
/// What the system returns.
fn text_of(name: &str) -> io::Result<String> {
    // Read to an end: the whole of a file would be asked for its size.
    const MOST: u64 = 1 << 20;
    let mut text = String::new();
    File::open(name)?.take(MOST).read_to_string(&mut text)?;
    Ok(text)
}

/// What identifies a folder: device and inode.
type Identity = Option<(u64, u64)>;

fn identity(folder: &Path) -> Identity {
    let found = fs::metadata(folder).ok()?;
    Some((found.dev(), found.ino()))
}

/// The folder that the program was started in, by its name then. Relative names
/// in options begin there, wherever the program goes.
static START_FOLDER: OnceLock<(PathBuf, Identity)> = OnceLock::new();

/// The folder that the program was started in, and its name.
fn start_folder() -> &'static (PathBuf, Identity) {
    START_FOLDER.get_or_init(|| {
        let name = std::env::current_dir().unwrap_or_default();
        (name, identity(Path::new(".")))
    })
}

/// The name of the folder that the program was started in. Empty if it has no
/// name, or the name no longer leads to it (it was renamed, or is no part of a
/// new root), and the program is still in it. If it was removed it holds no
/// files, but a new one of its name may: then that is returned.
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

/// This process, as the statistics name it.
pub(crate) fn this() -> Process {
    let began = started().map_or_else(SystemTime::now, |start| start.began);
    Process::current(began, rank())
}

/// The rank that a launcher set, or the program for itself. A thread of ours does not
/// read the environment, which the program may be changing: it has what was read last.
pub(crate) fn rank() -> String {
    static READ: SpinMutex<String, Brief> = SpinMutex::new(String::new());
    if threads::is_ours() {
        return READ.lock().clone();
    }
    let rank = stats::rank(|name| std::env::var(name).ok());
    if let Some(mut read) = READ.try_lock() {
        read.clone_from(&rank);
    }
    rank
}

/// The options in force, once the program has changed one.
static CHANGED: RwLock<Option<Box<Loaded>>, Brief> = RwLock::new(None);

/// Whether the program has filtered its calls of the system since its first request.
pub(crate) fn has_sandboxed_itself() -> bool {
    started().is_some_and(Start::is_sandboxed)
}

/// Whether the program may have forbidden calls of the system that it does not make
/// itself. What was so when this was asked first is remembered: later it may be forbidden
/// to look.
pub(crate) fn is_sandboxed() -> bool {
    static IS_BEFORE: OnceLock<bool> = OnceLock::new();
    has_sandboxed_itself() || *IS_BEFORE.get_or_init(sandbox::is_in_force_now)
}

/// Whether a call of the system may be made that the program would not make itself, also
/// where it has filtered its calls in a container that has a filter of its own.
pub(crate) fn may_make_rare_calls() -> bool {
    !is_sandboxed() && sandbox::none_came()
}

/// Runs `read` on the options in force. It must be quick, and call nothing that
/// could come back here.
pub(crate) fn options<R>(read: impl FnOnce(&Loaded) -> R) -> R {
    let start = start();
    let changed = CHANGED.read();
    read(changed.as_deref().unwrap_or(&start.loaded))
}

/// As [`options`], but for a process that may never ask for device memory: this
/// does not begin it, and says no warnings.
pub(crate) fn options_unbegun<R>(read: impl FnOnce(&Loaded) -> R) -> R {
    static UNBEGUN: OnceLock<Loaded> = OnceLock::new();
    if START.get().is_some() {
        return options(read);
    }
    match UNBEGUN.get() {
        Some(loaded) => read(loaded),
        // Read before it is put in place: no lock spans it.
        None => {
            let loaded = config::load(variables(), host());
            read(UNBEGUN.get_or_init(|| loaded))
        }
    }
}

/// Whether the program has rights that its user has not. What the user says is not for it
/// then: files would be written where only the program may.
pub(crate) fn is_privileged() -> bool {
    // SAFETY: a number that says what is asked for.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

fn variables() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter(|_| !is_privileged())
}

/// Changes options; changes none if `change` fails.
///
/// # Errors
/// What `change` returns.
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
        if !BEGUN.load(Ordering::Relaxed) {
            begin(start);
        }
        return start;
    }
    let _held = cancel::Held::back();
    let start = Start {
        loaded: config::load(variables(), host()),
        began: SystemTime::now(),
        process: AtomicU32::new(std::process::id()),
        mark: mark::Mark::here(),
        was_filtered: sandbox::any(),
        had_given_up: sandbox::has_given_up_privileges(),
        has_stats_by_run: std::env::var_os(STATS_BY_RUN).is_some(),
        notes: notes::place(),
    };
    // Of several threads that race here one wins; only it has effects.
    let mut won = false;
    let start = START.get_or_init(|| {
        won = true;
        start
    });
    if won {
        guard::quiet_panics();
        // SAFETY: the handlers allocate nothing and take no lock.
        unsafe { libc::pthread_atfork(Some(forks), Some(has_forked), Some(forked)) };
        for warning in &start.loaded.warnings {
            warn(warning);
        }
        notes::note(Note::Seen);
        begin(start);
    }
    start
}

/// Which frameworks are loaded, as far as options depend on them.
fn host() -> Host {
    let loaded = |prefix: &[u8]| !resolve::loaded_files(prefix).is_empty();
    Host {
        paddle: loaded(b"libpaddle"),
        torch: loaded(b"libc10_cuda"),
    }
}

/// Whether this is the process that asked for memory, and not a child of it that
/// was forked later.
pub(crate) fn is_own_process() -> bool {
    let is_own = |start: &Start| {
        start.process.load(Ordering::Relaxed) == std::process::id() && start.mark.is_here()
    };
    guard::service() != Service::Inherited && started().is_some_and(is_own)
}

unsafe extern "C" fn forks() {
    forking::before_fork(guard::is_serving());
}

unsafe extern "C" fn has_forked() {
    forking::after_fork();
}

/// In a forked child: CUDA does not survive a fork; arenas are the parent's. One
/// whose parent has used neither is a process of its own.
unsafe extern "C" fn forked() {
    callers::forked();
    modules::forked();
    match START.get() {
        Some(start) if forking::in_child() => {
            start.process.store(std::process::id(), Ordering::Relaxed);
            start.mark.renew();
            // Threads of ours are not there.
            BEGUN.store(false, Ordering::Relaxed);
        }
        _ => guard::end_service(Service::Inherited),
    }
}
