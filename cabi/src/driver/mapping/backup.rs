//! Memory of the host that holds what a device's memory held.
//!
//! Page-locked by the driver, past our own pools: what is kept for long must not
//! count as cached. Where the driver has none, ordinary memory serves, more slowly.
//!
//! Owns this memory. Invariant: a backup is known by its first address as long as it
//! is there. Cost: a look at a short list for each call.

use std::ffi::{c_uint, c_void};
use std::ptr;

use spin::mutex::SpinMutex;
use vramalloc_core::driver::mapping::Backup;
use vramalloc_core::patience::Brief;
use vramalloc_core::{Bytes, Code, host};

use crate::driver::context::Context;
use crate::process;
use crate::real;

/// `CU_MEMHOSTALLOC_PORTABLE`: for all contexts.
const PORTABLE: c_uint = 1;

/// So much is left to the system and to all others.
const LEFT: Bytes = Bytes::mib(128);

/// One backup.
#[derive(Copy, Clone)]
struct Room {
    start: usize,
    size: usize,
    /// It is the driver's, and ends with the context at the latest.
    is_locked: bool,
}

/// The backups of one arena's memory.
pub(crate) struct Backups(SpinMutex<Vec<Room>, Brief>);

impl Backups {
    pub(crate) const fn new() -> Backups {
        Backups(SpinMutex::new(Vec::new()))
    }

    /// Takes memory for a backup, of so much that is wanted in all.
    ///
    /// # Errors
    /// [`Code::OUT_OF_MEMORY`] where the system has none either, or so little that it
    /// would end processes for it; [`Code::INVALID_CONTEXT`] where the context has ended.
    pub(super) fn take(
        &self,
        context: &Context,
        size: usize,
        wanted: Bytes,
    ) -> Result<Backup, Code> {
        // A filter of the program's may end it at a look into a file.
        let may_look = !process::has_sandboxed_itself();
        let available = may_look.then(host::available).flatten();
        self.take_of(available, context, size, wanted)
    }

    /// The same where the system says that it has so much.
    fn take_of(
        &self,
        available: Option<Bytes>,
        context: &Context,
        size: usize,
        wanted: Bytes,
    ) -> Result<Backup, Code> {
        // All that is wanted: what a pause takes before it fails others have to give up.
        let least = wanted.saturating_add(LEFT);
        if available.is_some_and(|available| available < least) {
            return Err(Code::OUT_OF_MEMORY);
        }
        let room = locked(context, size).or_else(|code| match code {
            Code::INVALID_CONTEXT => Err(code),
            _ => plain(size),
        })?;
        self.0.lock().push(room);
        Ok(Backup(room.start as u64))
    }

    /// Gives a backup back.
    pub(super) fn give_back(&self, context: &Context, backup: Backup) {
        let room = {
            let mut all = self.0.lock();
            let at = all.iter().position(|room| room.start as u64 == backup.0);
            at.map(|at| all.swap_remove(at))
        };
        let Some(room) = room else {
            return;
        };
        let start: *mut c_void = ptr::with_exposed_provenance_mut(room.start);
        if room.is_locked {
            // Where the context has ended it went with it.
            // SAFETY: what the driver gave for a backup; nobody uses it any more.
            let _ = context.call(|| unsafe { real::cuMemFreeHost(start) });
        } else {
            // SAFETY: what the system mapped for a backup.
            unsafe { libc::munmap(start, room.size) };
        }
    }

    /// A part of a backup.
    ///
    /// # Errors
    /// [`Code::INVALID_VALUE`] where there is no such part.
    pub(super) fn part(
        &self,
        backup: Backup,
        offset: Bytes,
        size: Bytes,
    ) -> Result<*mut c_void, Code> {
        let all = self.0.lock();
        let room = all.iter().find(|room| room.start as u64 == backup.0);
        let start = room.and_then(|room| room.part(offset, size));
        start
            .map(ptr::with_exposed_provenance_mut)
            .ok_or(Code::INVALID_VALUE)
    }
}

impl Room {
    /// Where `size` bytes begin that lie `offset` bytes behind the start.
    fn part(&self, offset: Bytes, size: Bytes) -> Option<usize> {
        let end = offset.checked_add(size)?;
        let offset = usize::try_from(offset.get()).ok()?;
        (end.get() <= self.size as u64).then(|| self.start + offset)
    }
}

/// Page-locked memory of the driver.
fn locked(context: &Context, size: usize) -> Result<Room, Code> {
    let mut start: *mut c_void = ptr::null_mut();
    // SAFETY: writes the answer to a local.
    context.call(|| unsafe { real::cuMemHostAlloc(&raw mut start, size, PORTABLE) })?;
    Ok(Room {
        start: start.expose_provenance(),
        size,
        is_locked: true,
    })
}

/// Memory of the system, all of which is there: the next look at what is left sees it.
fn plain(size: usize) -> Result<Room, Code> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at a place of the kernel's choice.
    let start = unsafe { libc::mmap(ptr::null_mut(), size, rights, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(Code::OUT_OF_MEMORY);
    }
    Ok(Room {
        start: start.expose_provenance(),
        size,
        is_locked: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_lies_inside() {
        let room = Room {
            start: 0x1000,
            size: 64,
            is_locked: false,
        };
        let part = |offset, size| room.part(Bytes::new(offset), Bytes::new(size));
        assert_eq!(part(0, 64), Some(0x1000));
        assert_eq!(part(60, 4), Some(0x103c));
        assert_eq!(part(60, 5), None);
        assert_eq!(part(u64::MAX, 2), None);
    }

    #[test]
    fn what_the_system_has_not_is_not_asked_for() {
        let context = Context::new(ptr::null_mut());
        let backups = Backups::new();
        let size = 1_usize << 20;
        let enough = LEFT.saturating_add(Bytes::mib(1));
        let little = enough.saturating_sub(Bytes::new(1));
        let wanted = Bytes::mib(1);
        let refused = backups.take_of(Some(little), &context, size, wanted);
        assert_eq!(refused, Err(Code::OUT_OF_MEMORY));
        let more = Bytes::mib(2);
        let refused = backups.take_of(Some(enough), &context, size, more);
        assert_eq!(refused, Err(Code::OUT_OF_MEMORY), "a part is of no use");
        for available in [None, Some(enough)] {
            let backup = backups.take_of(available, &context, size, wanted).unwrap();
            backups.give_back(&context, backup);
        }
    }

    #[test]
    fn without_the_driver_the_system_has_memory() {
        let context = Context::new(ptr::null_mut());
        let backups = Backups::new();
        let backup = backups.take(&context, 1 << 20, Bytes::mib(1)).unwrap();
        let part = backups
            .part(backup, Bytes::new(4096), Bytes::new(8))
            .unwrap();
        // SAFETY: eight bytes of the backup.
        unsafe {
            part.cast::<u64>().write(7);
            assert_eq!(part.cast::<u64>().read(), 7);
        }
        assert!(backups.part(Backup(1), Bytes::ZERO, Bytes::new(1)).is_err());
        backups.give_back(&context, backup);
        assert!(backups.part(backup, Bytes::ZERO, Bytes::new(1)).is_err());
    }
}
