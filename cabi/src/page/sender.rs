//! Whether the sender of an order still waits for it.
//!
//! Invariant: a sender has a record lock of the page's file from before he
//! leaves his order until he has returned, and the lock ends with him. So an
//! order without that lock is nobody's any more. Cost: the file is opened and
//! closed, where there is an order.

use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::{io, mem};

use crate::process::folder::{Folder, User};

/// Whether somebody has the lock of this file.
///
/// # Errors
/// What the system returns: the process has another root or other rights now
/// than when it made its page.
pub(super) fn is_there(parent: &Path, user: User, name: &str) -> io::Result<bool> {
    let file = Folder::open(parent, user)?.open_file(name)?;
    // SAFETY: plain numbers; zeros are one of the values.
    let mut lock: libc::flock = unsafe { mem::zeroed() };
    lock.l_type = libc::c_short::try_from(libc::F_WRLCK).unwrap_or_default();
    // SAFETY: an open file, and a place for the answer.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock) };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

/// Milliseconds since the machine began. The kernel is asked, not the function
/// of the C library: programs replace that to live at another time.
pub(super) fn boot_ms() -> u64 {
    // SAFETY: plain numbers; zeros are one of the values.
    let mut now: libc::timespec = unsafe { mem::zeroed() };
    let clock = libc::CLOCK_BOOTTIME;
    // SAFETY: a clock and a place for its time.
    unsafe { libc::syscall(libc::SYS_clock_gettime, clock, &raw mut now) };
    let whole = |n: i64| u64::try_from(n).unwrap_or(0);
    whole(now.tv_sec)
        .saturating_mul(1000)
        .saturating_add(whole(now.tv_nsec) / 1_000_000)
}
