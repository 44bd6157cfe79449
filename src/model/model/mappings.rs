//! Units of memory, mapped to reserved addresses.
//!
//! Owns the units and what each is mapped to. Invariant: a unit uses memory until it
//! is neither mapped nor held; a mapping lies in one reservation and overlaps no
//! other; work may touch it only where its device was given access. Cost: O(log n).

use std::collections::BTreeMap;

use super::Model;
use crate::device::{Allocation, Holds};
use crate::family::Family;
use crate::faults::Violation;
use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::driver::mapping::RESERVED_AT;
use vramalloc_core::error::Code;

/// Memory of a device that was created in one call.
#[derive(Debug)]
struct Unit {
    device: u32,
    size: Bytes,
    is_held: bool,
    is_mapped: bool,
}

#[derive(Debug)]
struct Mapped {
    unit: u64,
    size: Bytes,
    /// Its device has access.
    is_admitted: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Mappings {
    units: BTreeMap<u64, Unit>,
    made: u64,
    mapped: BTreeMap<u64, Mapped>,
    reserved: BTreeMap<u64, Bytes>,
}

impl<E> Model<E> {
    fn is_whole(&self, number: u64) -> bool {
        number.is_multiple_of(self.settings.page.get())
    }

    /// Reserves addresses of a device, at a multiple of [`RESERVED_AT`], as the allocator's
    /// drivers do.
    ///
    /// # Errors
    /// [`Code::INVALID_VALUE`] where the size is not in whole pages;
    /// [`Code::OUT_OF_MEMORY`] where there are not so many addresses.
    pub fn reserve(&mut self, device: u32, size: Bytes) -> Result<Address, Code> {
        if size.is_zero() || !self.is_whole(size.get()) {
            return Err(Code::INVALID_VALUE);
        }
        let at = self.take_span_at_multiple(device, Family::Virtual, size, RESERVED_AT)?;
        self.mappings.reserved.insert(at.get(), size);
        Ok(at)
    }

    /// Gives a reservation back.
    ///
    /// # Errors
    /// [`Code::INVALID_VALUE`], a violation, where there is none, or something is mapped.
    pub fn unreserve(&mut self, at: Address, size: Bytes) -> Result<(), Code> {
        let end = at.get().saturating_add(size.get());
        let is_one = self.mappings.reserved.get(&at.get()) == Some(&size);
        let is_used = self.mappings.mapped.range(at.get()..end).next().is_some();
        if !is_one || is_used {
            self.violate(Violation::Other(format!("{at:?} cannot be unreserved")));
            return Err(Code::INVALID_VALUE);
        }
        self.mappings.reserved.remove(&at.get());
        self.drop_span(at);
        Ok(())
    }

    /// Creates a unit.
    ///
    /// # Errors
    /// [`Code::INVALID_VALUE`] where the size is not in whole pages;
    /// [`Code::OUT_OF_MEMORY`].
    pub fn create_unit(&mut self, device: u32, size: Bytes) -> Result<u64, Code> {
        if size.is_zero() || !self.is_whole(size.get()) {
            return Err(Code::INVALID_VALUE);
        }
        self.charge(device, Family::Virtual, size)?;
        self.mappings.made += 1;
        let unit = Unit {
            device,
            size,
            is_held: true,
            is_mapped: false,
        };
        self.mappings.units.insert(self.mappings.made, unit);
        Ok(self.mappings.made)
    }

    /// Gives a unit back; its memory is free once it is not mapped either.
    ///
    /// # Errors
    /// [`Code::INVALID_VALUE`], a violation, where nobody holds it.
    pub fn release_unit(&mut self, number: u64) -> Result<(), Code> {
        let held = self.mappings.units.get_mut(&number);
        let Some(unit) = held.filter(|unit| unit.is_held) else {
            self.violate(Violation::Other(format!("unit {number} is not held")));
            return Err(Code::INVALID_VALUE);
        };
        unit.is_held = false;
        self.drop_unit(number);
        Ok(())
    }

    fn drop_unit(&mut self, number: u64) {
        let unit = self.mappings.units.get(&number);
        let Some(unit) = unit.filter(|unit| !unit.is_held && !unit.is_mapped) else {
            return;
        };
        let (device, size) = (unit.device, unit.size);
        self.mappings.units.remove(&number);
        self.uncharge(device, Family::Virtual, size);
    }

    /// Maps a unit to reserved addresses.
    ///
    /// # Errors
    /// [`Code::INVALID_VALUE`], a violation, where the unit is mapped or not of this
    /// size, or the addresses are not reserved, or taken.
    pub fn map_unit(&mut self, at: Address, size: Bytes, number: u64) -> Result<(), Code> {
        let end = at.get().saturating_add(size.get());
        let unit = self.mappings.units.get(&number);
        let is_free = unit.is_some_and(|unit| unit.is_held && !unit.is_mapped && unit.size == size);
        let reserved = self.mappings.reserved.range(..=at.get()).next_back();
        let is_reserved = reserved.is_some_and(|(&from, whole)| end <= from + whole.get());
        let below = self.mappings.mapped.range(..end).next_back();
        let is_taken = below.is_some_and(|(&from, other)| from + other.size.get() > at.get());
        if !is_free || !is_reserved || is_taken || !self.is_whole(at.get()) {
            self.violate(Violation::Other(format!(
                "unit {number} cannot be mapped to {at:?}"
            )));
            return Err(Code::INVALID_VALUE);
        }
        let Some(unit) = self.mappings.units.get_mut(&number) else {
            return Err(Code::INVALID_VALUE);
        };
        unit.is_mapped = true;
        let device = unit.device;
        let mapped = Mapped {
            unit: number,
            size,
            is_admitted: false,
        };
        self.mappings.mapped.insert(at.get(), mapped);
        self.place(Allocation {
            base: at,
            size,
            device,
            context: None,
            holds: Holds::Mapped,
        });
        Ok(())
    }

    /// The mappings that make up a range exactly.
    fn whole_mappings(&self, at: Address, size: Bytes) -> Option<Vec<u64>> {
        let end = at.get().checked_add(size.get())?;
        let mut found = Vec::new();
        let mut from = at.get();
        while from < end {
            found.push(from);
            from += self.mappings.mapped.get(&from)?.size.get();
        }
        (from == end && !found.is_empty()).then_some(found)
    }

    /// Gives the device access to whole mappings.
    ///
    /// # Errors
    /// [`Code::INVALID_VALUE`], a violation, where that is not what there is.
    pub fn admit_units(&mut self, at: Address, size: Bytes) -> Result<(), Code> {
        let Some(found) = self.whole_mappings(at, size) else {
            self.violate(Violation::Other(format!("no whole units at {at:?}")));
            return Err(Code::INVALID_VALUE);
        };
        for from in found {
            if let Some(mapped) = self.mappings.mapped.get_mut(&from) {
                mapped.is_admitted = true;
            }
        }
        Ok(())
    }

    /// Unmaps whole mappings, without waiting; a violation where work in flight
    /// touches them.
    ///
    /// # Errors
    /// [`Code::INVALID_VALUE`], a violation, where that is not what there is.
    pub fn unmap_units(&mut self, at: Address, size: Bytes) -> Result<(), Code> {
        let Some(found) = self.whole_mappings(at, size) else {
            self.violate(Violation::Other(format!("no whole units at {at:?}")));
            return Err(Code::INVALID_VALUE);
        };
        for from in found {
            let Some(mapped) = self.mappings.mapped.remove(&from) else {
                continue;
            };
            let start = Address::new(from);
            if let Some(until) = self.used_until(start, mapped.size) {
                self.violate(Violation::FreedInUse { start, until });
            }
            self.vacate(start);
            self.forget_accesses(start, mapped.size);
            self.contents.clear(start, mapped.size);
            if let Some(unit) = self.mappings.units.get_mut(&mapped.unit) {
                unit.is_mapped = false;
            }
            self.drop_unit(mapped.unit);
        }
        Ok(())
    }

    /// The size of the mapping that begins there; none where none does.
    pub fn mapped_size(&self, at: Address) -> Bytes {
        let mapped = self.mappings.mapped.get(&at.get());
        mapped.map_or(Bytes::ZERO, |mapped| mapped.size)
    }

    /// Whether all of these bytes that are mapped may be touched.
    pub(super) fn is_admitted(&self, start: Address, size: Bytes) -> bool {
        let end = start.get().saturating_add(size.get());
        let below = self.mappings.mapped.range(..=start.get()).next_back();
        let first = below.map_or(start.get(), |(&from, _)| from);
        let touched = self.mappings.mapped.range(first..end);
        touched
            .filter(|(from, mapped)| **from + mapped.size.get() > start.get())
            .all(|(_, mapped)| mapped.is_admitted)
    }

    /// How many units there are, and how many reservations.
    pub fn units_and_reservations(&self) -> (usize, usize) {
        (self.mappings.units.len(), self.mappings.reserved.len())
    }
}
