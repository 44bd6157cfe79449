//! The file of a recording, mapped.
//!
//! Owns the mapping, which stays until the process is gone: what is stored there is in
//! the file even if the process is killed. Invariant: nothing is stored where the file
//! has no room on its disk, since a store into a hole of a full disk would end the
//! process; room is made by `fallocate` first, or by writing where a file system has
//! none. There is no descriptor, so no program closes it: the file is opened again by
//! its name, and looked at whether it still is the one. Whoever cuts the file off while
//! the process runs ends the process: docs/recording.md says so. Cost: the addresses of
//! the largest recording; some system calls for each 4 MiB.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::{ptr, slice};

use vramalloc_core::recording::{Medium, Place, RecordBound};
use vramalloc_core::stats::{StackId, beside};

use crate::process::cancel;
use crate::process::folder::StandardTaken;
use crate::process::outside::quietly;
use crate::process::say::{Once, warn_once};
use crate::stacks;

/// How many names beside the one that was asked for are tried.
const MOST_NAMES: u32 = 10_000;

/// Why a recording has ended early, once it has.
#[derive(Debug, Default)]
pub(super) struct Ended(OnceLock<String>);

impl Ended {
    pub(super) fn for_this(&self, why: &str) {
        let _first = self.0.set(why.to_owned());
    }

    pub(super) fn why(&self) -> Option<String> {
        self.0.get().cloned()
    }
}

/// See the module.
pub(super) struct MappedFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
    bound: RecordBound,
    start: *mut u8,
    /// Up to here the file has room. Release, when there is; pairs with the Acquire of
    /// whoever stores there.
    room: AtomicU64,
    ended: Arc<Ended>,
    tell_all: fn(),
}

// SAFETY: the mapping belongs to the process; the recording says who stores where.
unsafe impl Send for MappedFile {}
// SAFETY: the same.
unsafe impl Sync for MappedFile {}

/// Makes the file, or one beside it where there is one of its name.
fn make_new(asked: &Path) -> io::Result<(PathBuf, File)> {
    // Beside a device there is no place for it.
    if fs::symlink_metadata(asked).is_ok_and(|found| !found.is_file()) {
        return Err(io::Error::other("it is there already, and no regular file"));
    }
    // What the program prints to a number that it has closed is not for the file.
    let _taken = StandardTaken::now()?;
    for number in 0..MOST_NAMES {
        let path = beside(asked, number);
        let made = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path);
        match made {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => return made.map(|file| (path, file)),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

/// Removes a file that was made and holds nothing.
pub(super) fn remove_empty(path: &Path) {
    if fs::metadata(path).is_ok_and(|found| found.len() == 0) {
        // An empty file harms nobody.
        let _ = fs::remove_file(path);
    }
}

impl MappedFile {
    /// Makes the file, and maps as much of it as there will ever be.
    ///
    /// # Errors
    /// What the system returns.
    pub(super) fn make(
        asked: &Path,
        bound: RecordBound,
        ended: Arc<Ended>,
        tell_all: fn(),
    ) -> io::Result<MappedFile> {
        let (path, file) = make_new(asked)?;
        let mapped = || {
            let found = file.metadata()?;
            let length = usize::try_from(bound.most.get()).map_err(io::Error::other)?;
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a new mapping of an open file, at a place that the system picks.
            let start = unsafe {
                libc::mmap(
                    ptr::null_mut(),
                    length,
                    access,
                    libc::MAP_SHARED,
                    file.as_raw_fd(),
                    0,
                )
            };
            if start == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            Ok((start.cast(), (found.dev(), found.ino())))
        };
        match mapped() {
            Ok((start, identity)) => Ok(MappedFile {
                path,
                identity,
                bound,
                start,
                room: AtomicU64::new(0),
                ended,
                tell_all,
            }),
            Err(error) => {
                remove_empty(&path);
                Err(error)
            }
        }
    }

    /// Its name.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file, if it is still there under its name.
    fn open(&self) -> io::Result<File> {
        let _taken = StandardTaken::now()?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&self.path)?;
        let found = file.metadata()?;
        if (found.dev(), found.ino()) != self.identity {
            return Err(io::Error::other("another file has its name now"));
        }
        Ok(file)
    }

    /// The address of so many bytes at a place, if the file has them.
    fn place(&self, at: u64, length: usize) -> Option<*mut u8> {
        // Acquire: pairs with the Release in `extend`.
        let room = self.room.load(Ordering::Acquire);
        let end = at.checked_add(length as u64)?;
        let at = usize::try_from(at).ok()?;
        // SAFETY: within the mapping, which is longer than the room.
        (end <= room).then(|| unsafe { self.start.add(at) })
    }

    /// The kernel's advice on a part of the mapping, which it may ignore.
    fn advise(&self, from: u64, to: u64, advice: libc::c_int) {
        let length = usize::try_from(to.saturating_sub(from)).unwrap_or(0);
        if let Some(start) = self.place(from, length) {
            // SAFETY: a part of the mapping, of which this changes no contents.
            unsafe { libc::madvise(start.cast(), length, advice) };
        }
    }

    /// Something ends the recording early.
    fn ends(&self, why: &str) {
        self.ended.for_this(why);
        let file = self.path.display();
        let text = format!("record: {file}: {why}; what happens from now on is not recorded");
        warn_once(Once::Recording, &text);
    }
}

/// Has the disk keep room for a part of a file.
fn allocate(file: &File, from: u64, to: u64) -> io::Result<()> {
    let offset = |at| libc::off_t::try_from(at).map_err(io::Error::other);
    let (start, length) = (offset(from)?, offset(to - from)?);
    loop {
        // SAFETY: an open file.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, start, length) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => return write_zeros(file, from, to),
            _ => return Err(error),
        }
    }
}

/// The same on a file system that does not know how to.
fn write_zeros(file: &File, from: u64, to: u64) -> io::Result<()> {
    const ZEROS: &[u8] = &[0; 64 << 10];
    let mut at = from;
    while at < to {
        let length = usize::try_from(to - at).unwrap_or(ZEROS.len());
        let zeros = ZEROS.get(..length).unwrap_or(ZEROS);
        file.write_all_at(zeros, at)?;
        at += zeros.len() as u64;
    }
    Ok(())
}

impl Medium for MappedFile {
    fn put(&self, at: u64, bytes: &[u8]) {
        if let Some(to) = self.place(at, bytes.len()) {
            // SAFETY: so many bytes of the mapping, which no reference leads to and
            // which the recording's lock lets one thread write.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        }
    }

    fn publish(&self, at: u64, value: u32) {
        if let Some(to) = self.place(at, size_of::<u32>())
            && to.addr().is_multiple_of(align_of::<u32>())
        {
            // SAFETY: a word of the mapping, aligned.
            let word = unsafe { AtomicU32::from_ptr(to.cast()) };
            // Release: pairs with whatever reads the file, also after the end of this
            // process: what was put before is there.
            word.store(value.to_le(), Ordering::Release);
        }
    }

    #[inline]
    fn append(&self, at: u64, bytes: &[u8], number_at: u64, value: u32) {
        self.put(at, bytes);
        self.publish(number_at, value);
    }

    fn get(&self, at: u64, bytes: &mut [u8]) {
        if let Some(from) = self.place(at, bytes.len()) {
            // SAFETY: bytes of the mapping that nobody writes meanwhile, except for
            // words that are published, which the recording reads by itself.
            bytes.copy_from_slice(unsafe { slice::from_raw_parts(from, bytes.len()) });
        }
    }

    fn extend(&self, from: u64, to: u64) -> bool {
        let _held = cancel::Held::back();
        let made = self.open().and_then(|file| {
            // A program may have a bound for the size of its files.
            quietly(|| allocate(&file, from, to))
        });
        if let Err(error) = made {
            self.ends(&error.to_string());
            return false;
        }
        // Release: pairs with the Acquire in `place`.
        self.room.store(to, Ordering::Release);
        // So that nobody has to wait for a page later, under a lock.
        self.advise(from, to, libc::MADV_POPULATE_WRITE);
        true
    }

    fn leave(&self, from: u64, to: u64) {
        if !self.bound.ring {
            self.advise(from, to, libc::MADV_DONTNEED);
        }
    }

    fn end(&self, length: u64) {
        let _held = cancel::Held::back();
        // Release: pairs with the Acquire in `place`.
        self.room.store(length, Ordering::Release);
        // A file that stays too long is read all the same.
        let _ = self.open().and_then(|file| file.set_len(length));
    }

    fn is_full(&self) {
        let most = self.bound.most;
        self.ends(&format!("it has reached record_size, {most}"));
    }

    fn stack(&self, stack: StackId) -> Vec<Place> {
        stacks::places(stack)
    }

    fn tell_all(&self) {
        (self.tell_all)();
    }
}
