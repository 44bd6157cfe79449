//! The memory of a page: a file that the process maps and never touches there.
//!
//! Invariant: the file is locked as long as its process maps it, and no longer,
//! however the process ends: the lock belongs to the open file, which the
//! mapping keeps open. There is no descriptor, so no program closes it and no
//! child inherits it, and a forked child has no mapping. The kernel reads and
//! writes the words for us (`process_vm_readv`): where somebody has cut the
//! file off it returns an error, while a load or a store of ours would end the
//! process by SIGBUS. Cost: a dozen system calls to make it, two pages of
//! memory; a system call, of one to four microseconds, for each record.

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::{io, ptr};

use vramalloc_core::control::cells::{Cells, in_steps};
use vramalloc_core::control::{LENGTH, WORDS};

use crate::process::folder::{self, Folder};
use crate::process::mark::Mark;
use crate::process::outside::quietly;

use super::steps;

const BYTES: usize = 8 * WORDS;

/// See the module.
pub(crate) struct Mapping {
    /// The address: nothing is read or written through it.
    start: usize,
    /// The process that made it.
    process: libc::pid_t,
    /// A forked child does not have this mark, nor the mapping.
    mark: Mark,
}

impl Mapping {
    /// Makes the file and maps it. Returns `None` if another process took it,
    /// not locked yet, for an abandoned one.
    ///
    /// # Errors
    /// What the system returns.
    pub(super) fn make(folder: &Folder, name: &str) -> io::Result<Option<Mapping>> {
        let Some(start) = make_at(None, folder, name)? else {
            return Ok(None);
        };
        Ok(Some(Mapping {
            start,
            // SAFETY: has no conditions.
            process: unsafe { libc::getpid() },
            mark: Mark::here(),
        }))
    }

    /// The same for a file that was removed; the new one takes its place, also
    /// for threads that are using it.
    ///
    /// # Errors
    /// What the system returns.
    pub(super) fn renew(&self, folder: &Folder, name: &str) -> io::Result<bool> {
        make_at(Some(self.start), folder, name).map(|made| made.is_some())
    }

    /// Whether this is still the process that has the mapping.
    pub(super) fn is_here(&self) -> bool {
        self.mark.is_here()
    }

    /// Has the kernel copy words from or to a place.
    fn copy(&self, place: usize, words: *mut u64, count: usize, copy: Transfer) -> io::Result<()> {
        if place.checked_add(count).is_none_or(|end| end > WORDS) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let piece = |start: *mut c_void| libc::iovec {
            iov_base: start,
            iov_len: 8 * count,
        };
        let ours = piece(words.cast());
        let there = piece(ptr::without_provenance_mut(self.start + 8 * place));
        // SAFETY: so many words of the caller's, and as many of the mapping,
        // which no reference leads to. What is not there is an error.
        let by = |id| unsafe { copy(id, &raw const ours, 1, &raw const there, 1, 0) };
        let outcome = |copied| match usize::try_from(copied) {
            Ok(copied) if copied == 8 * count => Ok(()),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(_) => Err(io::Error::last_os_error()),
        };
        match outcome(by(self.process)) {
            // The first thread has ended, and the process's number is its.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                // SAFETY: has no conditions.
                outcome(by(unsafe { libc::gettid() }))
            }
            outcome => outcome,
        }
    }
}

/// `process_vm_readv` or `process_vm_writev`.
type Transfer = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> libc::ssize_t;

/// Makes the file and maps it, in place of the mapping that is at `over`.
fn make_at(over: Option<usize>, folder: &Folder, name: &str) -> io::Result<Option<usize>> {
    steps::step();
    let file = folder.write_new(name, &[])?;
    steps::step();
    let mapped = || {
        if !folder::lock(&file) || file.metadata()?.nlink() == 0 {
            return Ok(None);
        }
        steps::step();
        fill(&file)?;
        steps::step();
        map(&file, over).map(Some)
    };
    let mapped = mapped();
    if !matches!(mapped, Ok(Some(_))) {
        folder.remove(name);
    }
    mapped
}

/// Gives the file its length, and room on the disk.
fn fill(file: &File) -> io::Result<()> {
    let length = libc::off_t::try_from(LENGTH).unwrap_or(libc::off_t::MAX);
    // SAFETY: an open file.
    let error = quietly(|| unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) });
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    Ok(())
}

fn map(file: &File, over: Option<usize>) -> io::Result<usize> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let how = libc::MAP_SHARED | over.map_or(0, |_| libc::MAP_FIXED);
    let place = over.map_or(ptr::null_mut(), ptr::without_provenance_mut);
    // SAFETY: a new mapping of an open file, at a place that the system picks or
    // in place of one of ours that nothing refers to.
    let start = unsafe { libc::mmap(place, BYTES, access, how, file.as_raw_fd(), 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping that was just made.
    if unsafe { libc::madvise(start, BYTES, libc::MADV_DONTFORK) } != 0 {
        let error = io::Error::last_os_error();
        if over.is_none() {
            // SAFETY: the mapping that was just made, which nothing refers to.
            unsafe { libc::munmap(start, BYTES) };
        }
        return Err(error);
    }
    Ok(start.addr())
}

impl Cells for Mapping {
    fn load(&self, place: usize, to: &mut [u64]) -> io::Result<()> {
        let words = to.as_mut_ptr();
        self.copy(place, words, to.len(), libc::process_vm_readv)
    }

    fn store(&self, place: usize, words: &[u64]) -> io::Result<()> {
        steps::store(words, |at, words| {
            let start = words.as_ptr().cast_mut();
            self.copy(place + at, start, words.len(), libc::process_vm_writev)
        })
    }

    fn replace(&self, place: usize, record: &[u64]) -> io::Result<()> {
        // The debug build is stopped at each word of it.
        if cfg!(debug_assertions) {
            return in_steps(self, place, record);
        }
        self.store(place, record)
    }
}
