//! The few lines that the library prints on standard error.

use std::sync::atomic::{AtomicU32, Ordering};

use super::{cancel, outside};

/// Lines that are printed at most once, by what happened.
#[derive(Copy, Clone)]
#[repr(u32)]
pub(crate) enum Once {
    /// A request failed for want of memory.
    OutOfMemory = 1,
    /// A memory handle for another process could not be made.
    IpcRefused = 2,
    /// The statistics cannot be written.
    Statistics = 4,
    /// A memory handle of another process could not be read.
    IpcUnknown = 8,
    /// The events of an arena cannot be kept.
    Trace = 16,
    /// The places of Python cannot be read.
    Python = 32,
    /// Something is not recorded.
    Recording = 512,
    /// Memory cannot be mapped.
    Mapped = 64,
    /// A memory handle cannot be made of mapped memory.
    IpcMapped = 128,
    /// There are as many arenas as there can be.
    Arenas = 256,
    /// A limit is for a device that is not there.
    NoDevice = 1024,
    /// A block does not start where other hardware needs it.
    Unaligned = 2048,
}

/// Prints a line, the first time that this happens.
pub(crate) fn warn_once(what: Once, text: &str) {
    if first(what) {
        warn(text);
    }
}

/// Whether this happens for the first time.
pub(crate) fn first(what: Once) -> bool {
    static SAID: AtomicU32 = AtomicU32::new(0);
    let bit = what as u32;
    SAID.fetch_or(bit, Ordering::Relaxed) & bit == 0
}

/// Prints one line on standard error.
pub(crate) fn warn(text: &str) {
    let _held = cancel::Held::back();
    outside::say(format!("vramalloc: {}", one_line(text)));
}

/// A text without control characters.
pub(crate) fn one_line(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}
