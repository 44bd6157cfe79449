//! The blocks that this process lets others use, and the records of theirs.
//!
//! Owns the list of exported blocks and their files in the user's [`Folder`].
//! Invariant: a token opens exactly while its block is live: the block is
//! taken off the list before it is freed. Cost: a file per exported block; for
//! a free one atomic load while nothing is exported, else a look at the list.
//!
//! A process first makes a *seat*: a file of its own whose lock it holds while
//! it lives. The names of its blocks' files begin with the seat's name. A
//! process that makes a seat removes the files of all seats that are not
//! locked: what a crash leaves behind is gone after the next run.
//!
//! A process that changes its user takes another seat, and may no longer be
//! allowed into the folder of the first. It can still write to the file that it
//! holds open: blocks whose files it cannot remove are named in the seat
//! itself, which every process reads before it opens a token.
//!
//! Lock order: `SEATS` and `EXPORTS` each alone; no file is touched under them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Write as _};
use std::mem::ManuallyDrop;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use spin::mutex::SpinMutex;
use vramalloc_core::page_map::Owner;
use vramalloc_core::patience::Brief;

use crate::ipc::token::{Record, Token};
use crate::pools::{device, memory};
use crate::process::folder::{self, Folder, User};
use crate::process::key::Key;
use crate::process::outside::quietly;
use crate::process::{self, cancel};

/// A process's seat in the folder of a user: see the module.
#[derive(Clone)]
struct Seat {
    key: Key,
    user: User,
    /// Open for its lock, and to name blocks that end while their files stay.
    file: Arc<File>,
    /// Device and inode of the file: programs close what they did not open.
    identity: (u64, u64),
}

/// The seats of the process, one for each user that it exported as.
static SEATS: SpinMutex<Vec<Seat>, Brief> = SpinMutex::new(Vec::new());

/// The exported blocks, by where they start.
static EXPORTS: SpinMutex<BTreeMap<u64, Token>, Brief> = SpinMutex::new(BTreeMap::new());
/// How many there are. Relaxed: a thread that frees a block which another
/// exported learned of that from the other, and so sees it counted.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// What the option `ipc_dir` says.
pub(super) fn parent() -> PathBuf {
    process::options(|loaded| loaded.settings.ipc_dir.clone())
}

/// The token of the block at `block`, if it has one.
pub(crate) fn token(block: u64) -> Option<Token> {
    EXPORTS.lock().get(&block).copied()
}

/// Lets others use the block at `block`, which lies where `record` says.
///
/// # Errors
/// What the system returns if the record cannot be left for them.
pub(crate) fn add(block: u64, record: &Record) -> io::Result<Token> {
    let (folder, process) = sit_down(&parent())?;
    let block_key = Key::random().ok_or_else(|| io::Error::other(Key::NONE))?;
    let new = Token {
        process,
        block: block_key,
    };
    memory::when_freed(forget);
    folder.write_new(&new.file(), &record.bytes(new))?;
    let known = {
        let mut exports = EXPORTS.lock();
        let known = exports.get(&block).copied();
        if known.is_none() {
            exports.insert(block, new);
            COUNT.store(exports.len(), Ordering::Relaxed);
        }
        known
    };
    // Another thread was faster: a block has one token.
    Ok(known.map_or(new, |known| {
        folder.remove(&new.file());
        known
    }))
}

/// Called before the block at `block` is freed: its token opens no more.
pub(crate) fn forget(block: u64) {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    let gone = {
        let mut exports = EXPORTS.lock();
        let gone = exports.remove(&block);
        COUNT.store(exports.len(), Ordering::Relaxed);
        gone
    };
    let Some(token) = gone else {
        return;
    };
    let _held = cancel::Held::back();
    let seats = seats();
    let Some(seat) = seats.iter().find(|seat| seat.key == token.process) else {
        return;
    };
    let folder = Folder::open(&parent(), seat.user);
    if !folder.is_ok_and(|folder| folder.remove(&token.file())) {
        seat.name_ended(token.block);
    }
}

fn seats() -> Vec<Seat> {
    SEATS.lock().clone()
}

impl Seat {
    /// Names a block that has ended, for processes that find its file.
    fn name_ended(&self, block: Key) {
        if identity(&self.file).is_ok_and(|found| found == self.identity) {
            // If the disk is full, nothing more can be done.
            let _ = quietly(|| (&*self.file).write_all(block.text().as_bytes()));
        }
    }
}

/// What identifies a file: device and inode.
fn identity(file: &File) -> io::Result<(u64, u64)> {
    file.metadata().map(|found| (found.dev(), found.ino()))
}

/// Whether a seat names a block as ended.
fn has_ended(named: &[u8], block: Key) -> bool {
    let name = block.text();
    (named.chunks(name.len())).any(|named| named == name.as_bytes())
}

/// Forgets the blocks of contexts that are gone.
pub(crate) fn forget_dead() {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    let all: Vec<u64> = EXPORTS.lock().keys().copied().collect();
    let dead = |block: &u64| device::in_map(*block) == Owner::Foreign;
    all.into_iter().filter(dead).for_each(forget);
}

/// Removes everything that the process, which ends, has left.
pub(crate) fn end() {
    let seats = std::mem::take(&mut *SEATS.lock());
    if seats.is_empty() {
        return;
    }
    let exports = std::mem::take(&mut *EXPORTS.lock());
    let parent = parent();
    for seat in seats {
        // What is in a folder that the process may not enter any more is
        // removed by the next process: the lock goes with this one.
        if let Ok(folder) = Folder::open(&parent, seat.user) {
            for token in exports.values().filter(|token| token.process == seat.key) {
                folder.remove(&token.file());
            }
            folder.remove(&seat.key.text());
            Folder::remove_empty(&parent, seat.user);
        }
        // It stays open: the program may have closed it, and its number may be
        // another file's.
        let _left_open = ManuallyDrop::new(seat.file);
    }
}

/// What another process left for the token.
///
/// # Errors
/// What the system returns, or that no valid record is there.
pub(crate) fn read(token: Token) -> io::Result<Record> {
    let folder = Folder::open(&parent(), User::now())?;
    let bytes = folder.read(&token.file(), Record::LENGTH)?;
    let named = folder.read(&token.process.text(), MOST_NAMED)?;
    if named.len() > MOST_NAMED || has_ended(&named, token.block) {
        return Err(io::ErrorKind::NotFound.into());
    }
    Record::read(&bytes, token).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// A seat that names more than this many bytes of blocks vouches for none.
const MOST_NAMED: usize = 1 << 20;

/// The folder, and the process's seat in it, made on first use.
fn sit_down(parent: &Path) -> io::Result<(Folder, Key)> {
    let user = User::now();
    let own = |seats: &[Seat]| {
        seats
            .iter()
            .find(|seat| seat.user == user)
            .map(|its| its.key)
    };
    let seated = own(&SEATS.lock());
    if let Some(key) = seated {
        return Ok((Folder::open(parent, user)?, key));
    }
    let (folder, new) = take_seat(parent, user)?;
    sweep(&folder, new.key);
    let key = new.key;
    let other = {
        let mut seats = SEATS.lock();
        let other = own(&seats);
        if other.is_none() {
            seats.push(new);
        }
        other
    };
    // Another thread was faster: a user has one seat.
    Ok(match other {
        None => (folder, key),
        Some(other) => {
            folder.remove(&key.text());
            (folder, other)
        }
    })
}

/// Makes a seat. Other processes may remove the empty folder, or take a seat
/// that is not locked yet for an abandoned one; then it is tried again.
fn take_seat(parent: &Path, user: User) -> io::Result<(Folder, Seat)> {
    const TRIES: usize = 8;
    let mut last = io::Error::from(io::ErrorKind::WouldBlock);
    for _ in 0..TRIES {
        let folder = Folder::make(parent, user)?;
        let Some(key) = Key::random() else {
            return Err(io::Error::other(Key::NONE));
        };
        match folder.write_new(&key.text(), &[]) {
            Ok(file) => {
                if folder::lock(&file) && file.metadata()?.nlink() > 0 {
                    let seat = Seat {
                        key,
                        user,
                        identity: identity(&file)?,
                        file: Arc::new(file),
                    };
                    return Ok((folder, seat));
                }
                folder.remove(&key.text());
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

/// Removes what processes left behind that ended without notice. Files with
/// other names than ours are left alone.
fn sweep(folder: &Folder, own: Key) {
    let Ok(names) = folder.names() else {
        return;
    };
    let seat = |name: &str| {
        let (process, block) = name.split_once('.').unwrap_or((name, name));
        Key::read(block)?;
        Key::read(process)
    };
    let seats: BTreeSet<Key> = names.iter().filter_map(|name| seat(name)).collect();
    for key in seats.into_iter().filter(|&key| key != own) {
        // Held until its files are gone: no process takes it for a new seat.
        let lock = match folder.open_file(&key.text()) {
            Ok(file) if folder::lock(&file) => Some(file),
            // A seat is made before its first file and removed after its
            // last: without one, these were left behind.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            _ => continue,
        };
        for name in names.iter().filter(|name| seat(name) == Some(key)) {
            if name.len() > key.text().len() {
                folder.remove(name);
            }
        }
        folder.remove(&key.text());
        drop(lock);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_seats_that_nobody_holds_are_swept() {
        let parent = std::env::temp_dir().join(format!("vramalloc.seats.{}", std::process::id()));
        fs::create_dir_all(&parent).unwrap();
        let seat = || take_seat(&parent, User::now()).unwrap();
        let ((folder, own), (_, alive), (_, dead)) = (seat(), seat(), seat());
        let gone = Key::random().unwrap();
        let mut kept = vec!["other".to_owned(), format!("{}.x", gone.text())];
        for name in &kept {
            folder.write_new(name, b"").unwrap();
        }
        for (seat, stays) in [
            (own.key, true),
            (alive.key, true),
            (dead.key, false),
            (gone, false),
        ] {
            let block = Key::random().unwrap();
            let process = seat;
            let name = Token { process, block }.file();
            folder.write_new(&name, b"").unwrap();
            if stays {
                kept.extend([name, seat.text()]);
            }
        }
        drop(dead);
        sweep(&folder, own.key);
        let mut found: Vec<String> = folder.names().unwrap();
        found.retain(|name| name != "." && name != "..");
        found.sort();
        kept.sort();
        assert_eq!(found, kept);
        fs::remove_dir_all(&parent).unwrap();
    }
}
