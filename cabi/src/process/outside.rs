//! Writes to descriptors of the program: standard error, and a pipe or a device
//! that the option `stats` names.
//!
//! Owns what descriptors 1 and 2 were when the library was loaded. Invariant:
//! no signal is raised and no flag of a descriptor is changed; nothing is
//! written to either of them after it was closed or came to stand for something
//! else; a line never waits for its reader longer than [`PATIENCE`], and not at all
//! after one that has waited in vain. Cost: some
//! system calls for each line.

use std::cell::Cell;
use std::ffi::c_int;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use vramalloc_core::stats::There;

/// How long a line waits for a slow reader.
const PATIENCE: Duration = Duration::from_millis(100);

/// Bytes that a pipe takes in one piece; if it takes any, it takes these
/// without waiting.
const PIECE: usize = libc::PIPE_BUF;

const NO_TIME: libc::timespec = libc::timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// What a descriptor stands for: device, inode, type, number of a device.
type Identity = (libc::dev_t, libc::ino_t, libc::mode_t, libc::dev_t);

/// What descriptors 1 and 2 were, if they were open.
static STANDARD: OnceLock<[Option<Identity>; 2]> = OnceLock::new();

/// Records what standard output and standard error are, the first time.
pub(crate) fn remember() -> [Option<Identity>; 2] {
    *STANDARD.get_or_init(|| [libc::STDOUT_FILENO, libc::STDERR_FILENO].map(identity))
}

fn identity(descriptor: RawFd) -> Option<Identity> {
    let mut found = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: fstat fills a local.
    if unsafe { libc::fstat(descriptor, found.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: fstat has filled it.
    let found = unsafe { found.assume_init() };
    let kind = found.st_mode & libc::S_IFMT;
    Some((found.st_dev, found.st_ino, kind, found.st_rdev))
}

/// Whether a descriptor still stands for what it did. Those above 2 were not
/// recorded: the user who names one in an option has to know.
fn is_as_before(descriptor: RawFd) -> bool {
    let [output, error] = remember();
    match descriptor {
        libc::STDOUT_FILENO => output.is_some() && identity(descriptor) == output,
        libc::STDERR_FILENO => error.is_some() && identity(descriptor) == error,
        _ => true,
    }
}

fn standard_error() -> Option<RawFd> {
    is_as_before(libc::STDERR_FILENO).then_some(libc::STDERR_FILENO)
}

/// Whether nobody has read the last line in time: then the next one does not wait.
/// Relaxed: it stands for itself.
static UNREAD: AtomicBool = AtomicBool::new(false);

/// Prints a line on standard error, in one piece, if that is still open.
pub(crate) fn say(mut line: String) {
    while line.len() >= PIECE {
        line.pop();
    }
    line.push('\n');
    let Some(descriptor) = standard_error() else {
        return;
    };
    let patience = if UNREAD.load(Ordering::Relaxed) {
        Duration::ZERO
    } else {
        PATIENCE
    };
    let until = Some(Instant::now() + patience);
    // A line that cannot be written is dropped.
    let written = quietly(|| Outlet::Borrowed(descriptor, until).write_all(line.as_bytes()));
    let is_unread = written.is_err_and(|error| error.kind() == ErrorKind::TimedOut);
    UNREAD.store(is_unread, Ordering::Relaxed);
}

/// A writer that raises no signal, if used inside [`quietly`].
pub(crate) enum Outlet {
    /// A descriptor of the program, and until when to wait for it.
    Borrowed(RawFd, Option<Instant>),
    /// A file that the options name; it is waited for as long as it takes.
    Opened(File),
}

impl Outlet {
    /// Opens a target as it is, without waiting for a reader.
    ///
    /// # Errors
    /// What the system returns.
    pub(crate) fn open(there: There<'_>) -> io::Result<Outlet> {
        match there {
            There::StandardError => standard_error()
                .map(|descriptor| Outlet::Borrowed(descriptor, None))
                .ok_or_else(|| io::Error::other("standard error was closed")),
            // Not opened anew: the program goes on writing where this ends, and
            // a socket has no name to be opened by.
            There::Open(_, descriptor) if is_as_before(descriptor) => {
                Ok(Outlet::Borrowed(descriptor, None))
            }
            There::Open(..) => Err(io::Error::other("it was closed")),
            There::At(path) => OpenOptions::new()
                .append(true)
                .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
                .open(path)
                .map(Outlet::Opened),
        }
    }
}

impl Write for Outlet {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (descriptor, until) = match self {
            Outlet::Borrowed(descriptor, until) => (*descriptor, *until),
            Outlet::Opened(file) => (file.as_raw_fd(), None),
        };
        let piece = bytes.get(..PIECE).unwrap_or(bytes);
        loop {
            ready(descriptor, until)?;
            // SAFETY: as many bytes as the piece has.
            let n = unsafe { libc::write(descriptor, piece.as_ptr().cast(), piece.len()) };
            if let Ok(n) = usize::try_from(n) {
                return Ok(n);
            }
            let error = io::Error::last_os_error();
            if !matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) {
                return Err(error);
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Waits until a write would not block.
fn ready(descriptor: RawFd, until: Option<Instant>) -> io::Result<()> {
    let mut asked = libc::pollfd {
        fd: descriptor,
        events: libc::POLLOUT,
        revents: 0,
    };
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.map_or(-1, |left| c_int::try_from(left.as_millis()).unwrap_or(0));
        let found = match BEFORE.get() {
            // SAFETY: one entry, a local, and a set that lives as long as the call.
            Some(mask) if left < 0 => unsafe {
                libc::ppoll(&raw mut asked, 1, ptr::null(), &raw const mask)
            },
            // SAFETY: as above.
            _ => unsafe { libc::poll(&raw mut asked, 1, left) },
        };
        match found {
            0 => return Err(ErrorKind::TimedOut.into()),
            1 => return Ok(()),
            _ => {}
        }
        let error = io::Error::last_os_error();
        if error.kind() != ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Runs `work` so that its writes raise no signal: neither if nothing reads a
/// pipe, nor if a file may not grow, nor if a terminal stops writers in the
/// background.
pub(crate) fn quietly<R>(work: impl FnOnce() -> R) -> R {
    let signals = set([libc::SIGPIPE, libc::SIGXFSZ, libc::SIGTTOU]);
    let before = masked(libc::SIG_BLOCK, &signals);
    let was_pending = pending();
    let result = work();
    for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
        if !holds(&was_pending, signal) && holds(&pending(), signal) {
            let (raised, now) = (set([signal]), NO_TIME);
            // SAFETY: a set and a time of this function; it does not wait.
            unsafe { libc::sigtimedwait(&raw const raised, ptr::null_mut(), &raw const now) };
        }
    }
    masked(libc::SIG_SETMASK, &before);
    result
}

/// Runs `work` with all signals blocked for this thread and those it starts.
pub(crate) fn with_signals_blocked<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: a set is plain data.
    let mut all = unsafe { zeroed() };
    // SAFETY: fills a local.
    unsafe { libc::sigfillset(&raw mut all) };
    let before = masked(libc::SIG_SETMASK, &all);
    let result = work();
    masked(libc::SIG_SETMASK, &before);
    result
}

thread_local! {
    /// Which signals the thread does not take where [`with_handlers_held`] is not at work.
    static BEFORE: Cell<Option<libc::sigset_t>> = const { Cell::new(None) };
}

/// Runs `work` while no signal handler of the program's runs on this thread, but for where
/// it waits for a reader: one that calls `exit` would leave the rest of the work out, or
/// wait for its own thread. What ends the process goes on doing so.
pub(crate) fn with_handlers_held<R>(work: impl FnOnce() -> R) -> R {
    let handled = (1..=libc::SIGRTMAX()).filter(|&signal| is_handled(signal));
    let before = masked(libc::SIG_BLOCK, &set(handled));
    BEFORE.set(Some(before));
    let result = work();
    BEFORE.set(None);
    masked(libc::SIG_SETMASK, &before);
    result
}

/// Whether the program has a handler for a signal.
fn is_handled(signal: c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: asks, and fills a local.
    if unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: sigaction has filled it.
    let handler = unsafe { action.assume_init() }.sa_sigaction;
    handler != libc::SIG_DFL && handler != libc::SIG_IGN
}

/// The signals that the calling thread does not take.
pub(crate) fn signal_mask() -> libc::sigset_t {
    masked(libc::SIG_BLOCK, &set([]))
}

/// Has the thread take all signals but these.
pub(crate) fn set_signal_mask(mask: &libc::sigset_t) {
    masked(libc::SIG_SETMASK, mask);
}

/// Changes the thread's signal mask and returns the old one.
fn masked(how: c_int, signals: &libc::sigset_t) -> libc::sigset_t {
    // SAFETY: a set is plain data; it is filled below.
    let mut before = unsafe { zeroed() };
    // SAFETY: two sets that live as long as the call.
    unsafe { libc::pthread_sigmask(how, ptr::from_ref(signals), &raw mut before) };
    before
}

fn set(signals: impl IntoIterator<Item = c_int>) -> libc::sigset_t {
    // SAFETY: a set is plain data.
    let mut set = unsafe { zeroed() };
    // SAFETY: fills a local.
    unsafe { libc::sigemptyset(&raw mut set) };
    for signal in signals {
        // SAFETY: a local, and a signal that exists.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    set
}

fn pending() -> libc::sigset_t {
    // SAFETY: a set is plain data.
    let mut pending = unsafe { zeroed() };
    // SAFETY: fills a local.
    unsafe { libc::sigpending(&raw mut pending) };
    pending
}

fn holds(set: &libc::sigset_t, signal: c_int) -> bool {
    // SAFETY: a filled set, and a signal that exists.
    unsafe { libc::sigismember(ptr::from_ref(set), signal) == 1 }
}
