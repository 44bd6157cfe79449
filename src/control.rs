//! A process's page: what others of its user read of it and ask of it.
//!
//! A page is some 8 KiB of words in a file that the process maps and others
//! read and write. It has four [`record`]s, each with one writer at a time:
//! whose the page is (written once), its figures (by the process), one order
//! (by whoever sends it, who holds a lock of the file meanwhile that ends with
//! him), and the reply to an order (by the process).
//!
//! Invariant: nobody waits for another here. A record that is being written,
//! or whose writer died in it, is seen as such and never taken for whole; its
//! next writer writes it anew. An order is served at most once, and one that
//! was withdrawn before the process had begun it, or whose sender is gone by
//! then, is not served. Cost: of figures, some 20 stores for each device.

pub mod cells;
pub mod record;
mod told;
mod words;

use std::io;

use crate::sync::atomic::{AtomicU64, Ordering, fence};

use cells::Cells;
use record::{HEAD, Record, Seen};
use words::pack;

pub use told::{DeviceFigures, Figures, Order, OrderKind, Outcome, PageOwner, Reply};
use told::{read_figures, read_order, read_owner, read_reply, write_device};

/// Begins what a page says of its owner: the bytes `vramallc`.
const MAGIC: u64 = u64::from_le_bytes(*b"vramallc");

/// Version of the layout. It is part of the file's name, so that nobody reads a
/// page that he does not know.
pub const LAYOUT: u32 = 1;

/// Begins the name of a page's file.
const PREFIX: &str = "page.";

/// The name of a page's file, by a text that no other has.
#[must_use]
pub fn file_name(key: &str) -> String {
    format!("{PREFIX}{LAYOUT}.{key}")
}

/// The version of the page in a file of this name, if it is one.
#[must_use]
pub fn layout_of(name: &str) -> Option<u32> {
    let (layout, _) = name.strip_prefix(PREFIX)?.split_once('.')?;
    layout.parse().ok()
}

/// The name of a user's folder.
#[must_use]
pub fn folder_name(user: u32) -> String {
    format!("vramalloc-{user}")
}

/// The number that a user of this process's has outside of its namespace, by
/// which the folder is named: two containers that share a file system may both
/// have a user 0. `map` is `/proc/self/uid_map`, see `user_namespaces(7)`; a user
/// that it does not have keeps the number.
#[must_use]
pub fn user_outside(user: u32, map: &str) -> u32 {
    let outside = |line: &str| {
        let mut numbers = line.split_whitespace().map(str::parse);
        let mut next = || numbers.next()?.ok();
        let (first, there, count): (u32, u32, u32) = (next()?, next()?, next()?);
        let at = user.checked_sub(first).filter(|at| *at < count)?;
        there.checked_add(at)
    };
    map.lines().find_map(outside).unwrap_or(user)
}

/// The most devices that figures tell of.
pub const MOST_DEVICES: usize = 16;

/// Words of text. (The model checker goes through all that is read.)
const PROGRAM: usize = 8;
const VERSION: usize = 4;
const NAME: usize = 6;
const ARGUMENT: usize = if cfg!(loom) { 0 } else { 8 };
const ANSWER: usize = if cfg!(loom) { 0 } else { 512 };

/// Words of a device in the first version. Whoever reads takes what came later from its
/// place, if it is there, and skips what later versions add.
const FIRST_OF_DEVICE: usize = 18;
/// Words of a device now: what is paused and what is in limbo too.
const OF_DEVICE: usize = FIRST_OF_DEVICE + 2;
/// Room for these of each.
const ROOM_OF_DEVICE: usize = 24;

const OWNER: Record = Record::new(0, 29);
const FIGURES: Record = Record::new(OWNER.end(), 4 + MOST_DEVICES * ROOM_OF_DEVICE);
const ORDER: Record = Record::new(FIGURES.end(), 4 + ARGUMENT);
const REPLY: Record = Record::new(ORDER.end(), 3 + ANSWER);

/// Words of a page; the last ones are left for later versions.
pub const WORDS: usize = 1024;
const _: () = assert!(REPLY.end() <= WORDS, "the records overlap the end");

/// Length of the file.
pub const LENGTH: u64 = 8 * WORDS as u64;

/// The most bytes of an order's argument.
pub const MOST_ARGUMENT: usize = 8 * ARGUMENT;

/// In the place of an order's kind: it was withdrawn.
const WITHDRAWN: u64 = 0;

/// A page, as its owner and everybody else has it.
pub struct ControlPage<C> {
    cells: C,
    /// The version of the figures that were written here; 0 before that.
    /// Relaxed: it is of the one thread that writes figures.
    told: AtomicU64,
}

impl<C: Cells> ControlPage<C> {
    /// The page in these cells.
    pub fn new(cells: C) -> ControlPage<C> {
        ControlPage {
            cells,
            told: AtomicU64::new(0),
        }
    }

    /// What it is written to.
    pub fn cells(&self) -> &C {
        &self.cells
    }

    /// Says whose the page is. Until then it is nobody's.
    ///
    /// # Errors
    /// Those of the cells; as everywhere here.
    pub fn sign(&self, owner: &PageOwner) -> io::Result<()> {
        let mut words = vec![MAGIC, owner.pid, owner.namespace, owner.started_ms];
        pack(&mut words, &owner.program, PROGRAM);
        pack(&mut words, &owner.version, VERSION);
        OWNER.write(&self.cells, &words)
    }

    /// Whose the page is.
    ///
    /// # Errors
    /// Those of the cells.
    pub fn owner(&self) -> io::Result<Seen<PageOwner>> {
        OWNER
            .read(&self.cells)
            .map(|seen| seen.and_then(read_owner))
    }

    /// Writes the figures. One thread at a time.
    ///
    /// # Errors
    /// Those of the cells.
    pub fn publish(&self, figures: &Figures) -> io::Result<()> {
        let devices = figures.devices.iter().take(MOST_DEVICES);
        let count = devices.len() as u64;
        let mut words = Vec::with_capacity(HEAD + 4 + devices.len() * OF_DEVICE);
        words.extend([figures.at_ms, figures.driver_calls, count, OF_DEVICE as u64]);
        for (n, device) in devices.enumerate() {
            write_device(&mut words, device);
            words.resize(4 + (n + 1) * OF_DEVICE, 0);
        }
        let last = match self.told.load(Ordering::Relaxed) {
            0 => FIGURES.version(&self.cells)?,
            told => told,
        };
        let told = FIGURES.write_after(&self.cells, last, words)?;
        self.told.store(told, Ordering::Relaxed);
        Ok(())
    }

    /// The figures, as they were written last.
    ///
    /// # Errors
    /// Those of the cells.
    pub fn figures(&self) -> io::Result<Seen<Figures>> {
        FIGURES
            .read(&self.cells)
            .map(|seen| seen.and_then(read_figures))
    }

    /// Leaves an order, in place of one that is there, and returns its number.
    /// One sender at a time: who sends holds a lock that ends with him.
    ///
    /// # Errors
    /// Those of the cells.
    pub fn post(&self, kind: OrderKind, argument: &str, until_ms: u64) -> io::Result<u64> {
        let number_in = |record: &Record| {
            let seen = record.read(&self.cells)?;
            io::Result::Ok(seen.whole().and_then(|words| words.first().copied()))
        };
        // An order that its sender died in was never whole, so nobody has its
        // number.
        let known = [number_in(&ORDER)?, number_in(&REPLY)?];
        let last = known[0].max(known[1]).unwrap_or(0);
        // The next that is neither of them, whatever they are, and not 0.
        let is_other = |number: &u64| *number != 0 && !known.contains(&Some(*number));
        let next = (1..=4).map(|n| last.wrapping_add(n)).find(is_other);
        let number = next.unwrap_or(1);
        let mut words = vec![number, until_ms, kind as u64];
        pack(&mut words, argument, ARGUMENT);
        ORDER.write(&self.cells, &words)?;
        Ok(number)
    }

    /// What became of an order; nothing if it was not looked at yet.
    ///
    /// # Errors
    /// Those of the cells.
    pub fn reply_to(&self, number: u64) -> io::Result<Seen<Reply>> {
        let seen = REPLY.read(&self.cells)?;
        Ok(seen.and_then(|words| read_reply(words, number)))
    }

    /// Withdraws the order that the caller has left. With nothing for an
    /// answer, it is not served; else what comes has to be waited for.
    ///
    /// # Errors
    /// Those of the cells.
    pub fn withdraw(&self, number: u64) -> io::Result<Seen<Reply>> {
        ORDER.write(&self.cells, &[number, 0, WITHDRAWN])?;
        // Either this thread sees that the order was begun, or the one that
        // begins it sees that it was withdrawn: pairs with the fence in `take`.
        fence(Ordering::SeqCst);
        self.reply_to(number)
    }

    /// Whether there may be an order that the desk has not seen.
    ///
    /// # Errors
    /// Those of the cells.
    pub fn has_post(&self, desk: &Desk) -> io::Result<bool> {
        let version = ORDER.version(&self.cells)?;
        Ok(!record::is_odd(version) && version != desk.seen.load(Ordering::Relaxed))
    }

    /// Takes the order that is there, if it is `awaited` by its sender, and says
    /// that it is begun. One thread at a time, until it has replied.
    ///
    /// # Errors
    /// Those of the cells.
    pub fn take(
        &self,
        desk: &Desk,
        awaited: impl FnOnce(&Order) -> bool,
    ) -> io::Result<Option<Order>> {
        let version = ORDER.version(&self.cells)?;
        // What is being written is looked at when it is whole.
        let Seen::Whole(words) = ORDER.peek(&self.cells)? else {
            return Ok(None);
        };
        desk.seen.store(version, Ordering::Relaxed);
        let Some(order) = read_order(words) else {
            return Ok(None);
        };
        // Not by which is greater: a number may be the greatest there is.
        let is_new = order.number != desk.taken.load(Ordering::Relaxed);
        if !is_new || !awaited(&order) {
            return Ok(None);
        }
        desk.taken.store(order.number, Ordering::Relaxed);
        self.reply(&order, Outcome::Begun, "")?;
        // Pairs with the fence in `withdraw`.
        fence(Ordering::SeqCst);
        let now = ORDER.peek(&self.cells)?.and_then(read_order);
        if now != Seen::Whole(order.clone()) {
            self.reply(&order, Outcome::Withdrawn, "")?;
            return Ok(None);
        }
        Ok(Some(order))
    }

    /// Says what became of an order. A long text is cut.
    ///
    /// # Errors
    /// Those of the cells.
    pub fn reply(&self, order: &Order, outcome: Outcome, text: &str) -> io::Result<()> {
        let mut words = vec![order.number, outcome as u64];
        pack(&mut words, text, ANSWER);
        REPLY.write(&self.cells, &words)
    }
}

/// What a process knows of its orders. Relaxed: both words are of the thread
/// that takes orders, but for a look that only saves work.
#[derive(Default)]
pub struct Desk {
    /// The version of the order that was looked at last.
    seen: AtomicU64,
    /// Number of the order that was taken last.
    taken: AtomicU64,
}

impl Desk {
    /// Forgets the orders of a page that is made anew: their numbers and versions
    /// begin again.
    pub fn forget(&self) {
        self.seen.store(0, Ordering::Relaxed);
        self.taken.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
