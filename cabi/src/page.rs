//! This process's page in the user's folder: its figures, which others of the
//! user read, and the place where they leave orders.
//!
//! Owns the page, from the end of the first call that took device memory until
//! the process ends. Invariant: no thread waits here for another, nor for a
//! reader; what cannot be had (the folder, room on the disk) is told in the
//! statistics and costs nothing more. Cost: for a call that is no hit, a clock,
//! a lock of each arena and some 20 stores for each device, about a microsecond.

mod figures;
mod mapping;
mod steps;

use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, io};

use vramalloc_core::control::{ControlPage, Desk, Order, Outcome, PageOwner, file_name, layout_of};
use vramalloc_core::stats::Process;

use crate::process::folder::{self, Folder, User};
use crate::process::key::Key;
use crate::process::{self, cancel};

use mapping::Mapping;

/// See the module.
pub(crate) struct Page {
    page: ControlPage<Mapping>,
    /// Where the file lies.
    parent: PathBuf,
    user: User,
    name: String,
    desk: Desk,
    /// A thread is writing figures.
    publishing: Busy,
    /// Another had some to write meanwhile.
    missed: AtomicBool,
    /// A thread serves an order.
    serving: Busy,
}

/// The page, or why there is none.
static PAGE: OnceLock<Result<Page, String>> = OnceLock::new();

/// What one thread does at a time; the others go on without.
struct Busy(AtomicBool);

/// Until it is dropped, no other thread does it.
pub(crate) struct Turn<'a>(&'a Busy);

impl Busy {
    const fn new() -> Busy {
        Busy(AtomicBool::new(false))
    }

    fn turn(&self) -> Option<Turn<'_>> {
        // Acquire: pairs with the Release of the thread whose turn it was.
        (!self.0.swap(true, Ordering::Acquire)).then_some(Turn(self))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `turn`.
        self.0.0.store(false, Ordering::Release);
    }
}

/// Whether others can reach this process, for the statistics.
pub(crate) fn mode() -> String {
    match PAGE.get() {
        None => "unused".to_owned(),
        Some(Ok(_)) => "on".to_owned(),
        Some(Err(why)) => format!("off: {why}"),
    }
}

/// Whether there will be no page.
pub(crate) fn is_off() -> bool {
    PAGE.get().is_some_and(Result::is_err)
}

/// The page, if it was made and is this process's: a forked child has none of
/// its words. Nobody comes to them but by this.
pub(crate) fn made() -> Option<&'static Page> {
    let page = PAGE.get()?.as_ref().ok()?;
    page.page.cells().is_here().then_some(page)
}

/// The page; the first caller makes it.
pub(crate) fn ready() -> Option<&'static Page> {
    static MAKING: Busy = Busy::new();
    if PAGE.get().is_none() {
        let _turn = MAKING.turn()?;
        if PAGE.get().is_none() {
            let _again = PAGE.set(make());
        }
    }
    made()
}

fn make() -> Result<Page, String> {
    let _held = cancel::Held::back();
    let (on, parent) = process::options(|loaded| {
        let settings = &loaded.settings;
        (settings.control, settings.ipc_dir.clone())
    });
    if !on {
        return Err("the option control".to_owned());
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
            desk: Desk::new(),
            publishing: Busy::new(),
            missed: AtomicBool::new(false),
            serving: Busy::new(),
        }),
        Err(error) => Err(format!("{}: {error}", parent.display())),
    }
}

/// Makes the file, after it has removed those of processes that were killed.
/// Others may remove the empty folder, or the file before it is locked; then it
/// is tried again.
fn make_file(parent: &std::path::Path, user: User) -> io::Result<(String, Mapping)> {
    const TRIES: usize = 8;
    let mut last = io::Error::from(io::ErrorKind::WouldBlock);
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
    let began = process::started().map_or_else(SystemTime::now, |start| start.began);
    let process = Process::current(began);
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
    steps::step();
    if let Ok(folder) = Folder::open(&page.parent, page.user) {
        folder.remove(&page.name);
        steps::step();
        Folder::remove_empty(&page.parent, page.user);
    }
}

impl Page {
    /// Writes the figures. If another thread does so, it does it again.
    pub(crate) fn publish(&self) {
        // Others that come meanwhile are not waited for for ever.
        const ROUNDS: usize = 3;
        for _ in 0..ROUNDS {
            let Some(_turn) = self.publishing.turn() else {
                self.missed.store(true, Ordering::Relaxed);
                return;
            };
            let now = unix_ms(SystemTime::now());
            // Nothing can go wrong with memory.
            let _ = self.page.publish(&figures::take(now));
            if !self.missed.swap(false, Ordering::Relaxed) {
                return;
            }
        }
    }

    /// Takes an order that is there, to be served until the turn is dropped.
    pub(crate) fn take_order(&self) -> Option<(Order, Turn<'_>)> {
        if !self.page.has_post(&self.desk).unwrap_or(false) {
            return None;
        }
        let turn = self.serving.turn()?;
        let order = self.page.take(&self.desk, unix_ms(SystemTime::now()));
        Some((order.ok()??, turn))
    }

    /// Says what became of an order.
    pub(crate) fn reply(&self, order: &Order, outcome: Outcome, text: &str) {
        // Nothing can go wrong with memory.
        let _ = self.page.reply(order, outcome, text);
    }
}
