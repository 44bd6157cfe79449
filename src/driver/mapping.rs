//! The part of the seam that is about virtual memory: addresses apart from the
//! memory behind them.
//!
//! Addresses are *reserved* in ranges, memory is *created* in units, and a unit
//! is *mapped* to addresses and *admitted*, which gives devices access to it.
//! None of these calls needs a context. Rules that the caller keeps, because the
//! driver does not check them all:
//!
//! * all of it is in multiples of the granule;
//! * a unit is mapped at one place at most, as a whole;
//! * what is mapped holds garbage, and nobody may touch it before it is admitted;
//! * an unmapping does not wait: no work uses the addresses any more, in whatever
//!   context, and none of these calls but `create`, `map` and `admit` is made while
//!   a stream captures a graph;
//! * memory is free again when it is neither mapped nor held as a unit.
//!
//! A driver that cannot do it has nothing to implement.

use crate::address::{Address, Bytes};
use crate::error::Code;

/// Reservations begin at multiples of this, or of the granule where that is more. No
/// unit is larger, so units can lie at multiples of their size.
pub const RESERVED_AT: Bytes = Bytes::mib(16);

/// Memory of the device that was created in one call, by the driver's number.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Unit(pub u64);

/// Page-locked memory of the host that takes what a device's memory holds, by the
/// driver's number.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Backup(pub u64);

/// What a device's virtual memory can do.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct MappingTraits {
    /// What sizes and addresses are multiples of; a power of two, 2 MiB at least.
    pub granule: Bytes,
    /// Whether one call unmaps several units that lie side by side.
    pub unmaps_runs: bool,
}

/// Virtual memory of the device of one context; see the module.
pub trait Mapping {
    /// What there is of it; `None`: nothing, and no other call is made. It is asked
    /// before the first memory is taken, and answers always the same. An
    /// implementation may try it out, with memory that it gives back.
    ///
    /// # Errors
    /// [`Code::NOT_READY`] where it can be tried later and not now: meanwhile no other
    /// call is made.
    fn mapping_traits(&self) -> Result<Option<MappingTraits>, Code> {
        Ok(None)
    }

    /// Reserves addresses, without memory, at a multiple of [`RESERVED_AT`].
    ///
    /// # Errors
    /// [`Code::OUT_OF_MEMORY`] where there are not so many, or whatever else the
    /// driver answers.
    fn reserve(&self, _size: Bytes) -> Result<Address, Code> {
        Err(Code::NOT_SUPPORTED)
    }

    /// Gives all addresses of a reservation back. Nothing is mapped there.
    ///
    /// # Errors
    /// What the driver answers.
    fn unreserve(&self, _at: Address, _size: Bytes) -> Result<(), Code> {
        Err(Code::NOT_SUPPORTED)
    }

    /// Takes memory, without addresses. Does not disturb a stream capture.
    ///
    /// # Errors
    /// [`Code::OUT_OF_MEMORY`], or whatever else the driver answers.
    fn create(&self, _size: Bytes) -> Result<Unit, Code> {
        Err(Code::NOT_SUPPORTED)
    }

    /// Gives a unit back, which is not mapped.
    ///
    /// # Errors
    /// What the driver answers.
    fn release(&self, _unit: Unit) -> Result<(), Code> {
        Err(Code::NOT_SUPPORTED)
    }

    /// Puts a unit of `size` bytes behind reserved addresses that have none. Does
    /// not disturb a stream capture.
    ///
    /// # Errors
    /// What the driver answers; nothing is mapped then.
    fn map(&self, _at: Address, _size: Bytes, _unit: Unit) -> Result<(), Code> {
        Err(Code::NOT_SUPPORTED)
    }

    /// Gives the context's device access to whole units that lie side by side, and
    /// each device that can use the context's memory. Does not disturb a stream
    /// capture.
    ///
    /// # Errors
    /// What the driver answers; who has access then is not known.
    fn admit(&self, _at: Address, _size: Bytes) -> Result<(), Code> {
        Err(Code::NOT_SUPPORTED)
    }

    /// Takes the units of these addresses away from them: one, or where
    /// [`MappingTraits::unmaps_runs`] says so, several that lie side by side.
    ///
    /// # Errors
    /// [`Code::CAPTURE_UNSUPPORTED`] where a stream captures; or what the driver
    /// answers. Nothing is unmapped then.
    fn unmap(&self, _at: Address, _size: Bytes) -> Result<(), Code> {
        Err(Code::NOT_SUPPORTED)
    }

    /// Takes page-locked memory of the host. `wanted` is how much is to be taken in all,
    /// with this: where the host has not so much, none of it is any use.
    ///
    /// # Errors
    /// [`Code::OUT_OF_MEMORY`] where the host has not so much, or what the driver answers.
    fn take_backup(&self, _size: Bytes, _wanted: Bytes) -> Result<Backup, Code> {
        Err(Code::NOT_SUPPORTED)
    }

    /// Gives it back.
    fn drop_backup(&self, _backup: Backup) {}

    /// Copies `size` bytes of the device's memory into a backup, from its byte
    /// number `offset` on, and waits until that is done.
    ///
    /// # Errors
    /// What the driver answers.
    fn save(&self, _from: Address, _size: Bytes, _to: Backup, _offset: Bytes) -> Result<(), Code> {
        Err(Code::NOT_SUPPORTED)
    }

    /// Copies them back, and waits until that is done.
    ///
    /// # Errors
    /// What the driver answers.
    fn restore(
        &self,
        _to: Address,
        _size: Bytes,
        _from: Backup,
        _offset: Bytes,
    ) -> Result<(), Code> {
        Err(Code::NOT_SUPPORTED)
    }
}
