//! Arrays: memory of textures, whose layout is the driver's secret.
//!
//! What an array takes of the device is not told; it is at least its elements, and
//! a third more for the levels of a mipmap: in whole pages of the device, or in
//! steps of 64 KiB where several may share a page (measured of 16 KiB and 1 MiB,
//! docs/gpu/h200.md). An
//! array whose memory is mapped later takes none. Cost: see
//! [`owned`](super::owned).

use std::ffi::c_uint;

use vramalloc_core::Bytes;
use vramalloc_core::stats::Family;

use super::{PAGE, current_device, owned};
use crate::process::guard::own_call;
use crate::types::{ArrayDescription, CudaResult};

const GRAIN: Bytes = Bytes::kib(64);

/// Flags of arrays that have no memory of their own: `CUDA_ARRAY3D_SPARSE` and
/// `CUDA_ARRAY3D_DEFERRED_MAPPING`.
const WITHOUT_MEMORY: c_uint = 0x40 | 0x80;
/// Makes an array by `call`; its handle is at `made`.
pub(crate) fn make(
    description: &ArrayDescription,
    is_mipmap: bool,
    call: impl FnMut() -> CudaResult,
    made: impl FnOnce() -> u64,
) -> CudaResult {
    let size = size_of(description, is_mipmap);
    match current_device() {
        Some(device) if !size.is_zero() => owned::make(device, Family::Arrays, size, call, made),
        _ => own_call(call),
    }
}

/// Destroys an array by `call`, if it counts.
pub(crate) fn destroy(handle: u64, call: impl FnOnce() -> CudaResult) -> Option<CudaResult> {
    owned::end_by([(Family::Arrays, handle)], call)
}

/// What an array takes of the device.
fn size_of(description: &ArrayDescription, is_mipmap: bool) -> Bytes {
    if description.flags & WITHOUT_MEMORY != 0 {
        return Bytes::ZERO;
    }
    let elements = [description.width, description.height, description.depth];
    // No rows, or no layers, are one.
    let elements = elements.into_iter().map(|count| (count as u64).max(1));
    let elements = elements.fold(1, u64::saturating_mul);
    let bits = u128::from(bits(description.format)) * u128::from(description.channels);
    let bytes = u128::from(elements).saturating_mul(bits).div_ceil(8);
    let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
    let levels = if is_mipmap { bytes / 3 } else { 0 };
    let size = Bytes::new(bytes.saturating_add(levels));
    let grains = size.round_up(GRAIN).unwrap_or(Bytes::MAX);
    match PAGE.get().checked_div(grains.get()) {
        // The driver will say what is wrong.
        None => Bytes::ZERO,
        Some(0 | 1) => size.round_up(PAGE).unwrap_or(Bytes::MAX),
        // Whether an array may lie in two pages is not known: what its page has no room for
        // another of counts with it.
        Some(together) => Bytes::new(PAGE.get() / together),
    }
}

/// The bits of one channel of an element, by `CUarray_format`. A compressed
/// one has 64 or 128 bits for 16 elements; they are spread over its channels.
fn bits(format: c_uint) -> u64 {
    match format {
        // HALF, and the 16-bit integers.
        0x02 | 0x09 | 0x10 | 0xc3..=0xc5 | 0xc9..=0xcb => 16,
        // FLOAT, and the 32-bit integers.
        0x03 | 0x0a | 0x20 => 32,
        // BC1 of 4 channels.
        0x91 | 0x92 => 1,
        // BC2, BC3 and BC7 of 4.
        0x93..=0x96 | 0x9d | 0x9e => 2,
        // BC6H of 3, which do not divide 8.
        0x9b | 0x9c => 3,
        // BC4 of 1, BC5 of 2, NV12 of 3.
        0x97..=0x9a | 0xb0 => 4,
        _ => 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description(sizes: [usize; 3], format: c_uint, channels: c_uint) -> ArrayDescription {
        let [width, height, depth] = sizes;
        ArrayDescription {
            width,
            height,
            depth,
            format,
            channels,
            flags: 0,
        }
    }

    #[test]
    fn an_array_takes_its_elements() {
        let size = |sizes, format, channels| size_of(&description(sizes, format, channels), false);
        assert_eq!(size([1024, 1024, 0], 0x20, 4), Bytes::mib(16));
        assert_eq!(size([1 << 20, 0, 0], 0x01, 1), Bytes::mib(1));
        assert_eq!(size([256, 256, 16], 0x10, 2), Bytes::mib(4));
        // Compressed: half a byte for each element.
        assert_eq!(size([2048, 2048, 0], 0x91, 4), Bytes::mib(2));
        assert_eq!(size([10, 10, 0], 0x01, 1), GRAIN);
        assert_eq!(size([700 << 10, 0, 0], 0x01, 1), Bytes::mib(1));
        assert_eq!(size([10, 10, 0], 0x01, 0), Bytes::ZERO);
        // Large ones share no page.
        assert_eq!(size([3 << 20, 0, 0], 0x01, 1), Bytes::mib(4));
        assert_eq!(size([(1 << 20) + 1, 0, 0], 0x01, 1), Bytes::mib(2));
        assert_eq!(size([usize::MAX, 2, 2], 0x20, 4), Bytes::MAX);
    }

    #[test]
    fn levels_take_a_third_more_and_what_is_mapped_later_nothing() {
        let mut of = description([1536, 1024, 0], 0x20, 4);
        assert_eq!(size_of(&of, true), Bytes::mib(32));
        of.flags = 0x40;
        assert_eq!(size_of(&of, false), Bytes::ZERO);
    }
}
