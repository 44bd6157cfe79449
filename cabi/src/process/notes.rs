//! Tells `vramalloc run` of this process: that it used CUDA memory, where its
//! statistics are or why there are none, and that it ended. A process that ends
//! by `_exit` leaves no statistics, and the command could not tell it from one
//! that used no CUDA. The process that the command started also ends with it.
//!
//! The variable names a file in the command's memory by way of `/proc`. So no
//! descriptor is inherited, and a name that is no such file (the command is
//! gone, another process has its id) is not opened. Cost: nothing without the
//! variable, else a few system calls for each of at most three notes.

use std::env;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

use vramalloc_core::config::NOTES;
use vramalloc_core::stats::{NOTES_FILE, Note};

use super::outside::quietly;

/// Where the notes of this process go.
pub(crate) fn place() -> Option<PathBuf> {
    let noted = env::var_os(NOTES).filter(|_| !super::is_privileged());
    noted.map(PathBuf::from)
}

/// Has the system kill this process where the command is killed that started it: nobody
/// can pass that signal on, and the program would go on with its memory.
pub(super) fn end_with_command() {
    let Some(place) = place() else {
        return;
    };
    // SAFETY: asks for a number.
    let parent = unsafe { libc::getppid() };
    if place.starts_with(format!("/proc/{parent}/fd")) {
        // SAFETY: no pointer is given.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    }
}

/// Writes a note, if `vramalloc run` asked for notes.
pub(crate) fn note(note: Note<'_>) {
    let place = super::started().and_then(|start| start.notes.as_ref());
    let Some(place) = place.filter(|place| {
        let stands_for = fs::read_link(place).unwrap_or_default();
        stands_for.to_string_lossy().starts_with(NOTES_FILE)
    }) else {
        return;
    };
    // In one write: other processes write there as well.
    let _ = (OpenOptions::new().append(true).open(place))
        .and_then(|mut file| quietly(|| file.write_all(note.line().as_bytes())));
}
