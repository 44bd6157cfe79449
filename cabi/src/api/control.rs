//! What a program may ask of the library and tell it.

use super::memory::{Place, vramalloc_place};
use super::{answer, vramalloc_result};
use crate::context::{self, Asking};
use crate::driver_api;
use crate::pageable;

/// Gives what is cached at `place` and no block lies in back to CUDA (or to
/// the system), and writes how many bytes that were to `*released`, where that
/// is not null. On a device it first waits until all that was freed there is
/// out of use, in all contexts of this process.
///
/// May be called before CUDA is initialised (0 bytes, and nothing is
/// initialised), by any thread, and during a capture, which it does not
/// disturb; not in a forked child and not from a signal handler.
///
/// Errors: `VRAMALLOC_INVALID_ARGUMENT` for an unknown place.
///
/// The caller promises that `released`, where it is not null, may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramalloc_empty_cache(
    place: vramalloc_place,
    released: *mut u64,
) -> vramalloc_result {
    answer(|| {
        let bytes = match Place::read(place)? {
            Place::Device(device) => {
                let current = || context::current_home(Asking::Api).map(|home| home.device());
                let device = device.or_else(current);
                context::homes_on(device.unwrap_or(-1))
                    .iter()
                    .map(|home| home.arena().trim().get())
                    .sum()
            }
            // Not cached: each is CUDA's own.
            Place::Pinned => 0,
            Place::Pageable => pageable::trim().get(),
        };
        // SAFETY: the caller's promise.
        unsafe { driver_api::answer(released, bytes) };
        Ok(())
    })
}
