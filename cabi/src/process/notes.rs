//! What `vramalloc run` is told of this process: that it came to CUDA memory,
//! where its statistics are or why they are nowhere, and that it came to its end. What
//! ends by `_exit` leaves no statistics, and the command cannot tell it from
//! what used no CUDA.
//!
//! Owns nothing. The variable names a file in the command's memory, by way of
//! `/proc`: no descriptor is inherited, and what is no such file (the command
//! is gone, another has its id) is not opened. Cost: nothing without the
//! variable, else a few calls to the system for each of at most three notes.

use std::env;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

use vramalloc_core::config::NOTES;
use vramalloc_core::stats::{NOTES_FILE, Note};

use super::outside::quietly;

/// Where the notes of this process go.
pub(crate) fn place() -> Option<PathBuf> {
    env::var_os(NOTES).map(PathBuf::from)
}

/// Notes something of this process, if somebody asked for it.
pub(crate) fn note(note: Note<'_>) {
    let place = super::started().and_then(|start| start.notes.as_ref());
    let Some(place) = place.filter(|place| {
        let stands_for = fs::read_link(place).unwrap_or_default();
        stands_for.to_string_lossy().starts_with(NOTES_FILE)
    }) else {
        return;
    };
    // In one piece: others write there as well.
    let _ = (OpenOptions::new().append(true).open(place))
        .and_then(|mut file| quietly(|| file.write_all(note.line().as_bytes())));
}
