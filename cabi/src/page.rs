//! This process's page in the user's folder: its figures, which others of the
//! user read, and the place where they leave orders.
//!
//! Owns the page, from the end of the first call that took device memory until
//! the process ends. Invariant: no thread waits here for another, nor for a
//! reader; nothing that others do to the file harms the process; what cannot be
//! had (the folder, room on the disk) is told in the statistics and tried again
//! [`LATER`]. Cost: for a call that took memory from the driver or gave some back,
//! a clock, a lock of each arena and two system calls; once in a millisecond
//! another. For one that only made a fence, a clock, and the same once in some
//! milliseconds ([`is_due`]).

mod figures;
mod mapping;
mod sender;
mod steps;

use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{fs, io};

use spin::mutex::SpinMutex;
use vramalloc_core::busy::{Busy, Shared, Turn};
use vramalloc_core::control::{
    ControlPage, Desk, Figures, LENGTH, Order, Outcome, PageOwner, file_name, layout_of,
};
use vramalloc_core::patience::Brief;

use crate::process::folder::{self, Folder, User};
use crate::process::key::Key;
use crate::process::{self, cancel, sandbox};

use mapping::Mapping;

/// When a page that could not be made is tried again, and how often one is
/// looked for that may have been removed.
const LATER: Duration = Duration::from_secs(10);

/// See the module.
pub(crate) struct Page {
    page: ControlPage<Mapping>,
    /// Where the file lies.
    parent: PathBuf,
    user: User,
    name: String,
    desk: Desk,
    publishing: Shared,
    /// What was written last.
    written: SpinMutex<Option<Figures>, Brief>,
    /// A thread serves an order.
    serving: Busy,
    /// When its file was last looked for, and when an order, in milliseconds
    /// since 1970. Relaxed, as the next one: they stand for themselves.
    found: AtomicU64,
    looked: AtomicU64,
    /// How many calls might have looked for an order. Relaxed: as above.
    calls: AtomicU64,
    /// The program has sandboxed itself since.
    left: AtomicBool,
}

/// The page, once it was made.
static PAGE: OnceLock<Page> = OnceLock::new();

/// Why there is no page.
struct Absent {
    why: String,
    /// When it is tried again, if ever.
    again: Option<Instant>,
}

static ABSENT: SpinMutex<Option<Absent>, Brief> = SpinMutex::new(None);

/// Why there is none in a program that has sandboxed itself.
const SANDBOXED: &str = "system calls are filtered (seccomp)";

/// Whether others can reach this process, for the statistics.
pub(crate) fn mode() -> String {
    let off = |why: &str| format!("off: {why}");
    match (PAGE.get(), &*ABSENT.lock()) {
        (Some(page), _) if page.left.load(Ordering::Relaxed) => off(SANDBOXED),
        (Some(_), _) => "on".to_owned(),
        (None, Some(absent)) => off(&absent.why),
        (None, None) => "unused".to_owned(),
    }
}

/// The page, if it was made and is this process's: a forked child has none of
/// its words. Nobody comes to them but by this.
pub(crate) fn made() -> Option<&'static Page> {
    PAGE.get().filter(|page| page.may_be_used())
}

/// The page; the first caller makes it.
pub(crate) fn ready() -> Option<&'static Page> {
    static MAKING: Busy = Busy::new();
    if PAGE.get().is_none() {
        let _turn = MAKING.turn()?;
        if PAGE.get().is_none() && is_time() {
            match make() {
                Ok(page) => _ = PAGE.set(page),
                Err(absent) => *ABSENT.lock() = Some(absent),
            }
        }
    }
    made()
}

/// Whether a call that changed nothing but what is live is to write figures, and to
/// look for an order: the first one in each tick of the kernel's coarse clock (1 to
/// 10 ms), which costs no system call, and now and then where the program's clock
/// stands still.
pub(crate) fn is_due() -> bool {
    const MOST: u64 = 64;
    // Relaxed: they stand for themselves. Of threads that come together some are
    // not counted, or all see the same tick.
    static TICK: AtomicU64 = AtomicU64::new(0);
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let calls = CALLS.load(Ordering::Relaxed);
    CALLS.store(calls.wrapping_add(1), Ordering::Relaxed);
    let now = tick();
    if TICK.load(Ordering::Relaxed) != now {
        TICK.store(now, Ordering::Relaxed);
        return true;
    }
    let is_due = calls.is_multiple_of(MOST);
    if is_due && let Some(page) = PAGE.get() {
        page.looked.store(0, Ordering::Relaxed);
    }
    is_due
}

/// A number that changes with each tick.
fn tick() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a clock and a place for its time.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    now.tv_sec.cast_unsigned().rotate_left(32) ^ now.tv_nsec.cast_unsigned()
}

/// Whether a page may be made now.
fn is_time() -> bool {
    let has_come = |again: Instant| again <= Instant::now();
    let absent = ABSENT.lock();
    absent
        .as_ref()
        .is_none_or(|absent| absent.again.is_some_and(has_come))
}

fn make() -> Result<Page, Absent> {
    let _held = cancel::Held::back();
    let (on, parent) = process::options(|loaded| {
        let settings = &loaded.settings;
        (settings.control, settings.ipc_dir.clone())
    });
    let never = |why: &str| Absent {
        why: why.to_owned(),
        again: None,
    };
    if !on {
        return Err(never("the option control"));
    }
    if sandbox::is_in_force() {
        return Err(never(SANDBOXED));
    }
    let user = User::now();
    let made = make_file(&parent, user).and_then(|(name, mapping)| {
        let page = ControlPage::new(mapping);
        page.sign(&owner())?;
        Ok((name, page))
    });
    match made {
        Ok((name, page)) => Ok(Page {
            page,
            parent,
            user,
            name,
            desk: Desk::default(),
            publishing: Shared::new(),
            written: SpinMutex::new(None),
            serving: Busy::new(),
            found: AtomicU64::new(unix_ms(SystemTime::now())),
            looked: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            left: AtomicBool::new(false),
        }),
        Err(error) => Err(Absent {
            why: format!("{}: {error}", parent.display()),
            again: Instant::now().checked_add(LATER),
        }),
    }
}

/// Makes the file, after it has removed those of processes that were killed.
/// Others may remove the empty folder, or the file before it is locked; then it
/// is tried again.
fn make_file(parent: &std::path::Path, user: User) -> io::Result<(String, Mapping)> {
    const TRIES: usize = 8;
    let mut last = io::Error::other("files cannot be locked there (flock)");
    for _ in 0..TRIES {
        let folder = Folder::make(parent, user)?;
        sweep(&folder);
        let key = Key::random().ok_or_else(|| io::Error::other(Key::NONE))?;
        let name = file_name(&key.text());
        match Mapping::make(&folder, &name) {
            Ok(Some(mapping)) => return Ok((name, mapping)),
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => last = error,
            Err(error) => {
                Folder::remove_empty(parent, user);
                return Err(error);
            }
        }
    }
    Err(last)
}

/// Removes the pages that no process has locked, of whatever version.
fn sweep(folder: &Folder) {
    let names = folder.names().unwrap_or_default();
    for name in names.iter().filter(|name| layout_of(name).is_some()) {
        if folder.open_file(name).is_ok_and(|file| folder::lock(&file)) {
            folder.remove(name);
        }
    }
}

fn owner() -> PageOwner {
    let process = process::this();
    PageOwner {
        pid: process.pid.into(),
        namespace: namespace().unwrap_or(0),
        started_ms: unix_ms(process.started),
        program: process.program,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// The namespace of process ids, by its number: `pid:[4026531836]`.
fn namespace() -> Option<u64> {
    let link = fs::read_link("/proc/self/ns/pid").ok()?;
    let number = link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?;
    number.parse().ok()
}

/// Milliseconds since 1970.
fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Removes the page: the process ends.
pub(crate) fn remove() {
    let Some(page) = made() else {
        return;
    };
    // What stays is removed by others.
    if sandbox::is_in_force() {
        return;
    }
    steps::step();
    if let Ok(folder) = Folder::open(&page.parent, page.user) {
        folder.remove(&page.name);
        steps::step();
        Folder::remove_empty(&page.parent, page.user);
    }
}

impl Page {
    fn may_be_used(&self) -> bool {
        // A filter may end the process at a call that was harmless before.
        if !self.left.load(Ordering::Relaxed) && process::has_sandboxed_itself() {
            self.left.store(true, Ordering::Relaxed);
        }
        !self.left.load(Ordering::Relaxed) && self.page.cells().is_here()
    }

    /// Writes the figures. If another thread does so, it does it again.
    pub(crate) fn publish(&self) {
        self.publishing.run(|| {
            let now = unix_ms(SystemTime::now());
            self.look_after_file(now);
            let figures = figures::take(now);
            if self.are_news(&figures) {
                // A file that was cut off is made anew later.
                let _ = self.page.publish(&figures);
                *self.written.lock() = Some(figures);
            }
        });
    }

    /// Whether they say of a device what was not written yet, or that they are
    /// young: a request that is refused changes nothing and costs no system call.
    fn are_news(&self, figures: &Figures) -> bool {
        const YOUNG_MS: u64 = 100;
        (self.written.lock().as_ref()).is_none_or(|written| {
            written.devices != figures.devices || figures.at_ms.abs_diff(written.at_ms) >= YOUNG_MS
        })
    }

    /// Makes the file anew if somebody has removed it or cut it off. One thread
    /// at a time.
    fn look_after_file(&self, now: u64) {
        // A clock may be set back.
        let since = now.abs_diff(self.found.load(Ordering::Relaxed));
        if u128::from(since) < LATER.as_millis() {
            return;
        }
        self.found.store(now, Ordering::Relaxed);
        let _held = cancel::Held::back();
        // What cannot be had now is tried again.
        let _ = self.renew();
    }

    fn renew(&self) -> io::Result<()> {
        let is_whole = |folder: &Folder| match folder.open_file(&self.name) {
            Ok(file) => file.metadata().is_ok_and(|found| found.len() >= LENGTH),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        };
        if Folder::open(&self.parent, self.user).is_ok_and(|folder| is_whole(&folder)) {
            return Ok(());
        }
        let folder = Folder::make(&self.parent, self.user)?;
        folder.remove(&self.name);
        if self.page.cells().renew(&folder, &self.name)? {
            self.desk.forget();
            *self.written.lock() = None;
            self.page.sign(&owner())?;
        }
        Ok(())
    }

    /// Takes an order that is there and that its sender waits for, to be served
    /// until the turn is dropped. Looks once in a millisecond.
    pub(crate) fn take_order(&self) -> Option<(Order, Turn<'_>)> {
        // And now and then where the program's clock stands still.
        const MOST: u64 = 64;
        let now = unix_ms(SystemTime::now());
        let calls = self.calls.fetch_add(1, Ordering::Relaxed);
        let is_same = self.looked.swap(now, Ordering::Relaxed) == now;
        if is_same && !calls.is_multiple_of(MOST) {
            return None;
        }
        if !self.page.has_post(&self.desk).unwrap_or(false) {
            return None;
        }
        let turn = self.serving.turn()?;
        let awaited = |order: &Order| {
            let _held = cancel::Held::back();
            let seen = sender::is_there(&self.parent, self.user, &self.name);
            seen.unwrap_or_else(|_| sender::boot_ms() <= order.until_ms)
        };
        let order = self.page.take(&self.desk, awaited);
        Some((order.ok()??, turn))
    }

    /// Says what became of an order.
    pub(crate) fn reply(&self, order: &Order, outcome: Outcome, text: &str) {
        // Who waits for an answer in a file that was cut off gets none.
        let _ = self.page.reply(order, outcome, text);
    }
}
