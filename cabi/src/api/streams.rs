//! Memory of streams.

use std::ffi::{c_int, c_void};
use std::ptr;

use vramalloc_core::Bytes;

use super::memory::{Place, vramalloc_place};
use super::{Failure, VRAMALLOC_INVALID_ARGUMENT, answer, given, pointer, vramalloc_result};
use crate::pools::holdings;
use crate::pools::lanes::{self, Uses};
use crate::pools::places;
use crate::types::put;

/// What CUDA's stream handles point to.
pub struct CUstream_st {
    _opaque: [u8; 0],
}

/// A stream: a cudaStream_t or a CUstream. Null is the legacy default stream;
/// a thread's own default stream is cudaStreamPerThread.
pub type vramalloc_stream = *mut CUstream_st;

/// Allocates `size` bytes on a device for one stream and writes their address
/// to `*address`.
///
/// The block is used on `stream`. If other streams use it too,
/// `vramalloc_record_stream` must be called for each before the block is freed.
/// In return the stream can get it again at once after `vramalloc_free`,
/// without any waiting: its own order protects the block. Other streams get the
/// memory only after its stream, and the recorded ones, are done with it.
/// Memory is pooled for each stream and taken as it is needed, whatever the
/// strategy (under `passthrough` each call is the driver's); if the driver has
/// no more, idle memory of other pools goes back to it.
///
/// While the stream captures a graph the block becomes part of the graph. Once
/// freed it serves the same stream in the same capture, and after that no
/// request until `vramalloc_release_captures`.
///
/// Place, alignment, ownership and errors are those of `vramalloc_malloc`;
/// places of the host are invalid. The block belongs to the calling thread's
/// scope, if it is in one. May be called when `vramalloc_malloc` may.
///
/// The caller promises that `address`, if it is not null, may be written to,
/// and that the stream is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramalloc_malloc_on_stream(
    size: usize,
    place: vramalloc_place,
    stream: vramalloc_stream,
    address: *mut *mut c_void,
) -> vramalloc_result {
    answer(|| {
        let address = given(address)?;
        // SAFETY: the caller's promise.
        unsafe { *address = ptr::null_mut() };
        let device = device(place)?;
        if size == 0 {
            return Ok(());
        }
        let size = Bytes::new(size as u64);
        let pool = places::pool(device)?;
        let block = lanes::allocate(pool, stream.cast(), size, Uses::Recorded, None)?;
        holdings::enter_block(block);
        // SAFETY: the caller's promise.
        unsafe { *address = pointer(block)? };
        Ok(())
    })
}

/// The device that a place names.
fn device(place: vramalloc_place) -> Result<Option<c_int>, Failure> {
    match Place::read(place)? {
        Place::Device(device) => Ok(device),
        Place::Pinned | Place::Pageable => Err(Failure(VRAMALLOC_INVALID_ARGUMENT)),
    }
}

/// Tells the library that work on `stream` uses the block at `address`, which
/// `vramalloc_malloc_on_stream` gave for another stream: once freed, the block
/// waits for all work that `stream` was given until then. For other memory of
/// this library it does nothing, as its free waits for every stream.
///
/// If the library was preloaded or linked with, the stream may be destroyed
/// before the block is freed; if it was loaded by dlopen, it may not.
///
/// May be called during a capture and by any thread; not in a forked child and
/// not from a signal handler.
///
/// Errors: `VRAMALLOC_NOT_OURS` if no block of this library begins there.
///
/// The caller promises that the stream is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramalloc_record_stream(
    address: *mut c_void,
    stream: vramalloc_stream,
) -> vramalloc_result {
    answer(|| Ok(lanes::record(address.addr() as u64, stream.cast())?))
}

/// Tells the library that no graph which was captured so far on the device will
/// be launched again: memory that was allocated in these captures and is free
/// can be used for anything. Writes how many bytes went back to CUDA to
/// `*released`, if that is not null.
///
/// May be called by any thread; not in a forked child, not from a signal
/// handler and not while the device's streams capture.
///
/// Errors: `VRAMALLOC_INVALID_ARGUMENT` for an unknown place or one of the
/// host.
///
/// The caller promises what it says, and that `released`, if it is not null,
/// may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramalloc_release_captures(
    place: vramalloc_place,
    released: *mut u64,
) -> vramalloc_result {
    answer(|| {
        let device = device(place)?.or_else(places::current_device);
        let bytes = device.map_or(0, |device| lanes::release_captures(device, |_| true).get());
        // SAFETY: the caller's promise.
        unsafe { put(released, bytes) };
        Ok(())
    })
}
