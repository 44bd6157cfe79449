//! Addresses and sizes of device memory, as types that cannot be mixed up.
//!
//! All arithmetic is checked or saturating. A device address is a number and is
//! never dereferenced in this crate.

use std::fmt;

/// A number of bytes.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(u64);

/// Bytes in a kibibyte, mebibyte and gibibyte.
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

impl Bytes {
    /// Zero bytes.
    pub const ZERO: Bytes = Bytes(0);
    /// More than any device has.
    pub const MAX: Bytes = Bytes(u64::MAX);

    /// `n` bytes.
    #[must_use]
    pub const fn new(n: u64) -> Bytes {
        Bytes(n)
    }

    /// `n` KiB, or the largest size where that overflows.
    #[must_use]
    pub const fn kib(n: u64) -> Bytes {
        Bytes(n.saturating_mul(KIB))
    }

    /// `n` MiB, or the largest size where that overflows.
    #[must_use]
    pub const fn mib(n: u64) -> Bytes {
        Bytes(n.saturating_mul(MIB))
    }

    /// `n` GiB, or the largest size where that overflows.
    #[must_use]
    pub const fn gib(n: u64) -> Bytes {
        Bytes(n.saturating_mul(GIB))
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whether the size is zero.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// `self + other`; `None` if that overflows.
    #[must_use]
    pub const fn checked_add(self, other: Bytes) -> Option<Bytes> {
        match self.0.checked_add(other.0) {
            Some(n) => Some(Bytes(n)),
            None => None,
        }
    }

    /// `self + other`, or the largest size if that overflows.
    #[must_use]
    pub const fn saturating_add(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }

    /// `self - other`, or zero if `other` is larger.
    #[must_use]
    pub const fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }

    /// Rounded up to a multiple of `unit` (a power of two); `None` if that
    /// overflows.
    #[must_use]
    pub const fn round_up(self, unit: Bytes) -> Option<Bytes> {
        match self.0.checked_add(unit.0 - 1) {
            Some(n) => Some(Bytes(n & !(unit.0 - 1))),
            None => None,
        }
    }

    /// Rounded down to a multiple of `unit` (a power of two).
    #[must_use]
    pub const fn round_down(self, unit: Bytes) -> Bytes {
        Bytes(self.0 & !(unit.0 - 1))
    }

    /// `fraction` of the bytes, rounded down; zero if `fraction` is negative or
    /// NaN.
    #[must_use]
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "float to integer casts saturate; 53 bits of size are 8 PiB"
    )]
    pub fn scaled(self, fraction: f64) -> Bytes {
        Bytes((self.0 as f64 * fraction) as u64)
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Bytes {
    /// Writes the size in the largest unit that divides it: `512 B`, `20 MiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, name) in [(GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")] {
            if self.0 >= unit && self.0.is_multiple_of(unit) {
                return write!(f, "{} {name}", self.0 / unit);
            }
        }
        write!(f, "{} B", self.0)
    }
}

/// An address in a device's memory.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(u64);

impl Address {
    /// The address with this number.
    #[must_use]
    pub const fn new(n: u64) -> Address {
        Address(n)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The address `offset` bytes above this one; `None` if that overflows.
    #[must_use]
    pub const fn checked_add(self, offset: Bytes) -> Option<Address> {
        match self.0.checked_add(offset.0) {
            Some(n) => Some(Address(n)),
            None => None,
        }
    }

    /// The distance of this address above `base`; zero if it lies below `base`.
    #[must_use]
    pub const fn offset_from(self, base: Address) -> Bytes {
        Bytes(self.0.saturating_sub(base.0))
    }

    /// Whether the address is a multiple of `unit` (a power of two).
    #[must_use]
    pub const fn is_aligned(self, unit: Bytes) -> bool {
        self.0 & (unit.0 - 1) == 0
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding() {
        let page = Bytes::mib(2);
        assert_eq!(Bytes::new(1).round_up(page), Some(page));
        assert_eq!(page.round_up(page), Some(page));
        assert_eq!(Bytes::MAX.round_up(page), None);
        assert_eq!(Bytes::mib(3).round_down(page), page);
    }

    #[test]
    fn shares_never_go_wrong() {
        assert_eq!(Bytes::gib(2).scaled(0.5), Bytes::gib(1));
        assert_eq!(Bytes::gib(2).scaled(-1.0), Bytes::ZERO);
        assert_eq!(Bytes::gib(2).scaled(f64::NAN), Bytes::ZERO);
    }

    #[test]
    fn display_takes_the_largest_exact_unit() {
        assert_eq!(Bytes::new(512).to_string(), "512 B");
        assert_eq!(Bytes::mib(20).to_string(), "20 MiB");
        assert_eq!(Bytes::gib(1).to_string(), "1 GiB");
        assert_eq!(Bytes::new((1 << 20) + 1).to_string(), "1048577 B");
    }
}
