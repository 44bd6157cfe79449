//! What the processes of a run said of their statistics.
//!
//! Owns a file in memory, which the processes reach by its place below `/proc`:
//! none inherits a descriptor, and no disk can be too full for it.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use rustix::fs::{MemfdFlags, memfd_create};
use vramalloc_core::stats::{NOTES_FILE, Note};

/// The most that is read of them, in bytes.
const MOST: u64 = 4 << 20;

/// See the module.
pub(super) struct Notes(File);

/// What was said.
#[derive(Default)]
pub(super) struct Said {
    /// Why statistics could not be written.
    pub(super) failures: Vec<String>,
    /// Files that hold statistics.
    pub(super) wrote: Vec<PathBuf>,
    /// Processes that came to CUDA memory and not, so far, to their end.
    pub(super) lost: BTreeSet<u32>,
}

impl Notes {
    /// None where the system has no room for a file in memory.
    pub(super) fn new() -> Option<Notes> {
        let name = NOTES_FILE.trim_start_matches("/memfd:");
        let file = memfd_create(name, MemfdFlags::CLOEXEC).ok()?;
        Some(Notes(file.into()))
    }

    /// Where they are written to, as long as this process runs.
    pub(super) fn place(&self) -> PathBuf {
        let (process, descriptor) = (std::process::id(), self.0.as_raw_fd());
        PathBuf::from(format!("/proc/{process}/fd/{descriptor}"))
    }

    /// What was said so far.
    pub(super) fn said(mut self) -> Said {
        let mut bytes = Vec::new();
        // What cannot be read was not said.
        let _ = (self.0.rewind()).and_then(|()| self.0.take(MOST).read_to_end(&mut bytes));
        let mut said = Said::default();
        for line in String::from_utf8_lossy(&bytes).lines() {
            match Note::read(line) {
                Some((process, Note::Seen)) => _ = said.lost.insert(process),
                Some((process, Note::Ended)) => _ = said.lost.remove(&process),
                Some((_, Note::Failed(why))) => said.failures.push(why.to_owned()),
                Some((_, Note::Wrote(path))) => said.wrote.push(path.into()),
                None => {}
            }
        }
        said
    }
}
