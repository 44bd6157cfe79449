//! `mapped`: how large units are.
//!
//! Pure functions. A unit costs four calls of the driver over its life, and at the edges
//! of blocks a part of one is lost; so its size follows from the device's: some 16 to 32
//! thousand units fill it.

use crate::address::Bytes;

/// So many units, or up to twice as many, fill a device.
const UNITS: u64 = 16 << 10;

/// The largest unit.
const MOST: Bytes = Bytes::mib(16);

/// The size of a unit on a device of `total` bytes whose memory is handed out in
/// multiples of `granule`, a power of two.
pub(crate) fn unit(total: Bytes, granule: Bytes) -> Bytes {
    let share = (total.get() / UNITS).max(1);
    let power = Bytes::new(1 << share.ilog2());
    power.min(MOST).max(granule)
}

/// How many units hold a request.
pub(crate) fn units_of(request: Bytes, unit: Bytes) -> usize {
    usize::try_from(request.get().div_ceil(unit.get().max(1))).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_larger_device_has_larger_units() {
        let granule = Bytes::mib(2);
        for (total, expected) in [(0, 2), (1, 2), (8, 2), (24, 2), (48, 2), (80, 4), (141, 8)] {
            let found = unit(Bytes::gib(total), granule);
            assert_eq!(found, Bytes::mib(expected), "{total} GiB");
        }
        assert_eq!(unit(Bytes::gib(10_000), granule), MOST);
        assert_eq!(unit(Bytes::gib(8), Bytes::mib(32)), Bytes::mib(32));
    }

    #[test]
    fn a_request_takes_whole_units() {
        let unit = Bytes::mib(2);
        for (request, units) in [(1, 1), (2 << 20, 1), ((2 << 20) + 512, 2)] {
            assert_eq!(units_of(Bytes::new(request), unit), units);
        }
    }
}
