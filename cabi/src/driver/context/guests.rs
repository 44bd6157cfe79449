//! Devices whose contexts were given access to a context's memory.
//!
//! That access covers what the driver allocated. Mapped memory is admitted to each
//! of these devices on its own, now and whenever more is mapped.
//!
//! Owns the list, which only grows: who lost the access keeps what was admitted.
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
    /// Notes that contexts of a device may use this context's memory.
    pub(crate) fn let_in(&self, device: CUdevice) {
        let mut guests = self.guests.0.lock();
        if !guests.contains(&device) {
            guests.push(device);
        }
    }

    /// All of them.
    pub(crate) fn guests(&self) -> Vec<CUdevice> {
        self.guests.0.lock().clone()
    }
}
