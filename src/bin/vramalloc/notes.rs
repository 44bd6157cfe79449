//! What the processes of a run said about their statistics.
//!
//! Owns a file in memory, which the processes open by its path below `/proc`:
//! no process inherits a descriptor, and no disk can be too full for it.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use rustix::fs::{MemfdFlags, memfd_create};
use vramalloc_core::stats::{NOTES_FILE, Note};

/// The most bytes that are read.
const MOST: u64 = 4 << 20;

/// See the module.
pub(super) struct Notes(File);

/// What was said.
#[derive(Default)]
pub(super) struct Said {
    /// Why statistics could not be written.
    pub(super) failures: Vec<String>,
    /// Files that hold a process's last statistics. Any may be there no more.
    pub(super) wrote: Vec<PathBuf>,
    /// Processes that used CUDA memory.
    pub(super) seen: BTreeSet<u32>,
    /// Those that have not come to their end so far.
    pub(super) lost: BTreeSet<u32>,
}

impl Notes {
    /// `None` if the system has no memory for the file.
    pub(super) fn new() -> Option<Notes> {
        let name = NOTES_FILE.trim_start_matches("/memfd:");
        let file = memfd_create(name, MemfdFlags::CLOEXEC).ok()?;
        Some(Notes(file.into()))
    }

    /// The path to which processes write, valid as long as this process runs.
    pub(super) fn place(&self) -> PathBuf {
        let (process, descriptor) = (std::process::id(), self.0.as_raw_fd());
        PathBuf::from(format!("/proc/{process}/fd/{descriptor}"))
    }

    /// Reads the notes so far.
    pub(super) fn said(mut self) -> Said {
        let mut bytes = Vec::new();
        // Notes that cannot be read are missing.
        let _ = (self.0.rewind()).and_then(|()| self.0.take(MOST).read_to_end(&mut bytes));
        let mut said = Said::default();
        for line in String::from_utf8_lossy(&bytes).lines() {
            match Note::read(line) {
                Some((process, Note::Seen)) => {
                    said.seen.insert(process);
                    said.lost.insert(process);
                }
                Some((process, Note::Ended)) => _ = said.lost.remove(&process),
                Some((_, Note::Failed(why))) => said.failures.push(why.to_owned()),
                Some((_, Note::Wrote(path))) => said.wrote.push(path.into()),
                None => {}
            }
        }
        said
    }
}
