//! The memory of a page: a file that the process maps.
//!
//! Invariant: the file is locked as long as its process maps it, and no longer,
//! however the process ends: the lock belongs to the open file, which the
//! mapping keeps open. There is no descriptor, so no program closes it and no
//! child inherits it, and a forked child has no mapping. Cost: a dozen system
//! calls to make it, two pages of memory.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::AtomicU64;
use std::{io, ptr, slice};

use vramalloc_core::control::cells::Cells;
use vramalloc_core::control::{LENGTH, WORDS};

use crate::process::folder::{self, Folder};
use crate::process::outside::quietly;

use super::steps;

/// See the module.
pub(crate) struct Mapping {
    words: &'static [AtomicU64],
    /// The process that has the mapping.
    process: u32,
}

impl Mapping {
    /// Makes the file and maps it. Returns `None` if another process took it,
    /// not locked yet, for an abandoned one.
    ///
    /// # Errors
    /// What the system returns.
    pub(super) fn make(folder: &Folder, name: &str) -> io::Result<Option<Mapping>> {
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
            map(&file).map(Some)
        };
        let mapped = mapped();
        if !matches!(mapped, Ok(Some(_))) {
            folder.remove(name);
        }
        mapped
    }

    /// Whether this is still the process that has the mapping.
    pub(super) fn is_here(&self) -> bool {
        self.process == std::process::id()
    }
}

/// Gives the file its length, and memory for it: a page that the system cannot
/// give later would end the process by a signal.
fn fill(file: &File) -> io::Result<()> {
    let length = libc::off_t::try_from(LENGTH).unwrap_or(libc::off_t::MAX);
    // SAFETY: an open file.
    let error = quietly(|| unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) });
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    Ok(())
}

fn map(file: &File) -> io::Result<Mapping> {
    const BYTES: usize = 8 * WORDS;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let (descriptor, shared) = (file.as_raw_fd(), libc::MAP_SHARED);
    // SAFETY: a new mapping of an open file, at a place that the system picks.
    let start = unsafe { libc::mmap(ptr::null_mut(), BYTES, access, shared, descriptor, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping that was just made.
    if unsafe { libc::madvise(start, BYTES, libc::MADV_DONTFORK) } != 0 {
        let error = io::Error::last_os_error();
        // SAFETY: the mapping that was just made, which nothing refers to.
        unsafe { libc::munmap(start, BYTES) };
        return Err(error);
    }
    // SAFETY: so many words, aligned to a page and never unmapped. Others write
    // to them too, so they are atomic. A forked child does not have them: who
    // wants the page asks `is_here` first.
    let words = unsafe { slice::from_raw_parts(start.cast::<AtomicU64>(), WORDS) };
    Ok(Mapping {
        words,
        process: std::process::id(),
    })
}

impl Cells for Mapping {
    fn load(&self, place: usize, to: &mut [u64]) -> io::Result<()> {
        self.words.load(place, to)
    }

    fn store(&self, place: usize, words: &[u64]) -> io::Result<()> {
        steps::store(self.words, place, words)
    }
}
