//! Lets other devices use the memory that arenas have mapped. Cost: a driver call for
//! each run of it.

use vramalloc_core::Code;

use super::serving_pools;
use crate::driver::{contexts, mapping};
use crate::types::{CUcontext, CUdevice};

/// Called when contexts of a device were given access to a context's memory: what is
/// mapped there is admitted to the device too, now and from now on.
///
/// # Errors
/// What the driver answers where it refuses.
pub(crate) fn let_in(owner: CUcontext, guest: CUdevice) -> Result<(), Code> {
    let owner = contexts::of(owner);
    // Before the look at what is mapped: what is mapped later is admitted at once.
    let is_new = owner.let_in(guest);
    // Also while a release that may end it is under way.
    let mut pools = serving_pools();
    pools.retain(|pool| pool.is_of(&owner));
    let admit = |pool: &super::DevicePool| mapping::for_guest(guest, || pool.arena().admit_all());
    let admitted = pools.into_iter().try_for_each(admit);
    if is_new && admitted.is_err() {
        owner.keep_out(guest);
    }
    admitted
}
