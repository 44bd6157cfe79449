//! Devices whose contexts were given access to a context's memory.
//!
//! That access covers what the driver allocated. Mapped memory is admitted to each
//! of these devices on its own, now and whenever more is mapped.
//!
//! Owns the list. Who is on it stays, also without the access: what was admitted is.
//! Cost: a look at a list of a few numbers for each mapping.

use spin::mutex::SpinMutex;
use vramalloc_core::patience::Brief;

use super::Context;
use crate::types::CUdevice;

/// See the module.
pub(super) struct Guests(SpinMutex<Vec<CUdevice>, Brief>);

impl Guests {
    pub(super) const fn new() -> Guests {
        Guests(SpinMutex::new(Vec::new()))
    }
}

impl Context {
    /// Notes that contexts of a device may use this context's memory; whether that is
    /// news.
    pub(crate) fn let_in(&self, device: CUdevice) -> bool {
        let mut guests = self.guests.0.lock();
        let is_new = !guests.contains(&device);
        if is_new {
            guests.push(device);
        }
        is_new
    }

    /// Forgets a device that could not be admitted: with it, nothing could be mapped
    /// from now on.
    pub(crate) fn keep_out(&self, device: CUdevice) {
        self.guests.0.lock().retain(|&guest| guest != device);
    }

    /// All of them.
    pub(crate) fn guests(&self) -> Vec<CUdevice> {
        self.guests.0.lock().clone()
    }
}
