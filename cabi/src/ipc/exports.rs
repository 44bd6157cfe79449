//! The blocks that this process lets others use, and what others let us.
//!
//! Owns the list of exported blocks and their files in the user's [`Folder`].
//! Invariant: a token opens exactly while its block is live: the block is
//! taken off the list before it is freed. Cost: a file per exported block; for
//! a free one atomic load while nothing is exported, else a look at the list.
//!
//! A process first makes a *seat*: a file of its own whose lock it holds while
//! it lives. Its blocks' files bear the seat's name in front. Who makes a seat
//! removes the files of all seats that nobody holds: what a crash leaves
//! behind is gone after the next run.
//!
//! Lock order: `SEAT` and `EXPORTS` each alone; no file is touched under them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use core_arena::page_map::Owner;
use core_arena::patience::Brief;
use spin::mutex::SpinMutex;

use crate::ipc::folder::{self, Folder};
use crate::ipc::token::{Key, Record, Token};
use crate::{cancel, context, life};

/// The place of a process among those that export.
struct Seat {
    key: Key,
    /// Open for its lock, and never read or written again.
    _lock: File,
}

static SEAT: SpinMutex<Option<Seat>, Brief> = SpinMutex::new(None);

/// The exported blocks, by where they start.
static EXPORTS: SpinMutex<BTreeMap<u64, Key>, Brief> = SpinMutex::new(BTreeMap::new());
/// How many there are. Relaxed: a thread that frees a block which another
/// exported learned of that from the other, and so sees it counted.
static COUNT: AtomicUsize = AtomicUsize::new(0);

const NO_RANDOMNESS: &str = "the system gives no random numbers";

/// What the option `ipc_dir` says.
pub(super) fn parent() -> PathBuf {
    life::options(|loaded| loaded.settings.ipc_dir.clone())
}

/// The token of the block at `block`, if it has one.
pub(crate) fn token(block: u64) -> Option<Token> {
    let block = EXPORTS.lock().get(&block).copied()?;
    let process = SEAT.lock().as_ref()?.key;
    Some(Token { process, block })
}

/// Lets others use the block at `block`, where `record` says.
///
/// # Errors
/// What the system answers where the record cannot be left for them.
pub(crate) fn add(block: u64, record: &Record) -> io::Result<Token> {
    let (folder, process) = sit_down(&parent())?;
    let block_key = Key::random().ok_or_else(|| io::Error::other(NO_RANDOMNESS))?;
    let new = Token {
        process,
        block: block_key,
    };
    folder.write_new(&new.file(), &record.bytes(new))?;
    let known = {
        let mut exports = EXPORTS.lock();
        let known = exports.get(&block).copied();
        if known.is_none() {
            exports.insert(block, new.block);
            COUNT.store(exports.len(), Ordering::Relaxed);
        }
        known
    };
    // Another thread was faster: a block has one token.
    Ok(known.map_or(new, |block| {
        folder.remove(&new.file());
        Token { process, block }
    }))
}

/// The block at `block` is about to be freed: its token opens no more.
pub(crate) fn forget(block: u64) {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    let Some(token) = token(block) else {
        return;
    };
    let _held = cancel::Held::back();
    let gone = {
        let mut exports = EXPORTS.lock();
        let gone = exports.remove(&block);
        COUNT.store(exports.len(), Ordering::Relaxed);
        gone
    };
    if gone.is_some()
        && let Ok(folder) = Folder::open(&parent())
    {
        folder.remove(&token.file());
    }
}

/// A context is gone: so are its blocks.
pub(crate) fn forget_dead() {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    let all: Vec<u64> = EXPORTS.lock().keys().copied().collect();
    let dead = |block: &u64| context::owner(*block) == Owner::Foreign;
    all.into_iter().filter(dead).for_each(forget);
}

/// The process ends: nothing of it stays.
pub(crate) fn end() {
    let Some(seat) = SEAT.lock().take() else {
        return;
    };
    let exports = std::mem::take(&mut *EXPORTS.lock());
    if let Ok(folder) = Folder::open(&parent()) {
        for block in exports.into_values() {
            let process = seat.key;
            folder.remove(&Token { process, block }.file());
        }
        folder.remove(&seat.key.text());
        Folder::remove_empty(&parent());
    }
}

/// What another process left for the token.
///
/// # Errors
/// What the system answers, or that nothing sane is there.
pub(crate) fn read(token: Token) -> io::Result<Record> {
    let bytes = Folder::open(&parent())?.read(&token.file(), Record::LENGTH)?;
    Record::read(&bytes, token).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The folder, and the process's seat in it, made the first time.
fn sit_down(parent: &Path) -> io::Result<(Folder, Key)> {
    if let Some(seat) = SEAT.lock().as_ref() {
        return Ok((Folder::open(parent)?, seat.key));
    }
    let (folder, new) = take_seat(parent)?;
    sweep(&folder, new.key);
    let mut seat = SEAT.lock();
    match &*seat {
        None => {
            let key = new.key;
            *seat = Some(new);
            Ok((folder, key))
        }
        Some(other) => {
            let key = other.key;
            drop(seat);
            folder.remove(&new.key.text());
            Ok((folder, key))
        }
    }
}

/// Makes a seat. Others may remove the empty folder, or take a seat that is
/// not locked yet for one left behind; then it is tried again.
fn take_seat(parent: &Path) -> io::Result<(Folder, Seat)> {
    const TRIES: usize = 8;
    let mut last = io::Error::from(io::ErrorKind::WouldBlock);
    for _ in 0..TRIES {
        let folder = Folder::make(parent)?;
        let Some(key) = Key::random() else {
            return Err(io::Error::other(NO_RANDOMNESS));
        };
        match folder.write_new(&key.text(), &[]) {
            Ok(file) => {
                if folder::lock(&file) && file.metadata()?.nlink() > 0 {
                    return Ok((folder, Seat { key, _lock: file }));
                }
                folder.remove(&key.text());
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

/// Removes what processes left behind that ended without a word. Files with
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
        // Held until its files are gone, so that nobody takes it for new.
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
        let (folder, own) = take_seat(&parent).unwrap();
        let (_, alive) = take_seat(&parent).unwrap();
        let (_, dead) = take_seat(&parent).unwrap();
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
