//! Virtual memory: reserved addresses, physical memory, and mappings between
//! them.
//!
//! Owns the reservations. Invariant: physical memory uses its device's pages
//! while it has a reference or a mapping; a mapping lies inside one reservation
//! and overlaps no other; a device works on a mapping only if it was given
//! access. What a real device would punish later is a violation at once: whoever
//! unmaps, or sets the access of a device, while work uses the bytes, or gives
//! addresses back that are mapped. Cost: O(log n), and two mappings of the host
//! per mapping.

use std::collections::BTreeMap;

use vramalloc_core::{Address, Bytes, Code};
use vramalloc_model::{Allocation, Family, Holds, Violation};

use crate::descriptor::POSIX;
use crate::entry::{Call, driver};
use crate::env;
use crate::ffi::{Done, Handle, In, Out, code};
use crate::machine::Machine;
use crate::state::{
    Access, AllocationProps, Context, IN_DEVICE, Kind, Location, Mapping, ON_DEVICE, ON_HOST,
    ON_HOST_NODE, PAGE, PINNED, Physical,
};

/// The only kinds of handles that there are, besides POSIX descriptors.
const FABRIC: u32 = 8;

/// The version from which on memory can be asked for in a part of a device.
const WITH_PARTS: i32 = 13_040;

const NOT_PERMITTED: Code = crate::ffi::NOT_PERMITTED;

/// What WSL2 answers where access is set to memory for other hardware.
const UNKNOWN: Code = code(999);

/// Which of a memory's flags says that other hardware may use it.
const FOR_RDMA: usize = 1;

impl Machine {
    /// Ends physical memory that has neither references nor mappings.
    fn drop_physical(&mut self, handle: Handle) {
        let unused = |m: &Physical| m.references == 0 && m.mappings == 0;
        if !self.physicals.get(handle).is_some_and(unused) {
            return;
        }
        let Some(memory) = self.physicals.remove(handle) else {
            return;
        };
        match memory.span {
            Some(start) => {
                if let Some((start, size)) = self.model.drop_span(Address::new(start)) {
                    self.backing.discard(start, size);
                }
            }
            // SAFETY: the descriptor was opened for this memory alone.
            None => drop(unsafe { libc::close(memory.file) }),
        }
    }

    /// The mappings that make up a range exactly; `None` if they do not.
    fn mappings_in(&self, start: u64, size: u64) -> Option<Vec<u64>> {
        let end = start.checked_add(size)?;
        let mut at = start;
        let mut found = Vec::new();
        while at < end {
            let mapping = self.mappings.get(&at)?;
            found.push(at);
            at += mapping.size;
        }
        (at == end && !found.is_empty()).then_some(found)
    }

    /// Whether other hardware may use what is mapped here.
    pub(crate) fn is_for_rdma(&self, start: u64) -> bool {
        let mapping = self.mappings.get(&start);
        let memory = mapping.and_then(|m| self.physicals.get(m.memory));
        memory.is_some_and(|m| m.props.flags[FOR_RDMA] != 0)
    }

    /// The mapping that holds an address.
    pub(crate) fn mapping_at(&self, address: u64) -> Option<(u64, &Mapping)> {
        let (&start, mapping) = self.mappings.range(..=address).next_back()?;
        (address - start < mapping.size).then_some((start, mapping))
    }

    fn unmap(&mut self, start: u64) {
        let Some(mapping) = self.mappings.remove(&start) else {
            return;
        };
        let (from, size) = (Address::new(start), Bytes::new(mapping.size));
        if let Some(until) = self.model.used_until(from, size) {
            self.violate(Violation::FreedInUse { start: from, until });
        }
        self.model.vacate(from);
        self.model.forget_accesses(from, size);
        self.kinds.remove(&start);
        self.backing.unmap_range(start, mapping.size);
        if let Some(memory) = self.physicals.get_mut(mapping.memory) {
            memory.mappings -= 1;
        }
        self.drop_physical(mapping.memory);
    }
}

impl Machine {
    /// Device memory that outlives every context of its device is left over for
    /// good: a violation for each such device.
    pub(crate) fn check_units(&mut self) {
        // Whom the driver refused cannot help it.
        let is_refused = |name| !env::faults(name).is_empty();
        if is_refused("cuMemUnmap") || is_refused("cuMemRelease") {
            return;
        }
        for device in 0..self.environment.devices {
            let alive = |c: &Context| c.device == device && c.model.is_some();
            let own = |m: &&Physical| m.device == Some(device) && m.span.is_some();
            let left = self.physicals.values().filter(own).count();
            if left > 0 && !self.contexts.values().any(alive) {
                self.violate(Violation::Other(format!(
                    "{left} pieces of physical memory are left on device {device}, whose \
                     contexts have all ended"
                )));
            }
        }
    }
}

impl Call<'_> {
    /// Refuses a call where there is no virtual memory.
    fn has_virtual_memory(&self) -> Done {
        if self.sim.environment.no_vmm {
            return Err(Code::NOT_SUPPORTED);
        }
        Ok(())
    }

    /// The unit of physical memory and of mappings.
    fn granularity(&self) -> u64 {
        self.sim.model.settings().page.get()
    }

    fn whole(&self, number: u64) -> bool {
        number.is_multiple_of(self.granularity())
    }

    /// The device of a location, if it is one; `None` for the host.
    pub(crate) fn location(&self, location: Location) -> Result<Option<u32>, Code> {
        match location.kind {
            ON_DEVICE => self.device(location.id).map(Some),
            // The low byte is the device, the next one its part.
            IN_DEVICE if self.sim.environment.version >= WITH_PARTS && location.id < 0x100 => {
                self.device(location.id).map(Some)
            }
            ON_HOST => Ok(None),
            ON_HOST_NODE if location.id == 0 => Ok(None),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Checks the properties of physical memory. Returns its device.
    fn check_props(&self, props: &AllocationProps) -> Result<Option<u32>, Code> {
        if props.kind != PINNED || props.security != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let device = self.location(props.location)?;
        match props.handles {
            0 => Ok(device),
            _ if props.location.kind == ON_HOST => Err(Code::INVALID_VALUE),
            POSIX => Ok(device),
            FABRIC => Err(NOT_PERMITTED),
            _ => Err(Code::NOT_SUPPORTED),
        }
    }

    fn reserve_addresses(
        &mut self,
        to: &Out<u64>,
        size: u64,
        alignment: u64,
        hint: u64,
        flags: u64,
    ) -> Done {
        to.required()?;
        self.has_virtual_memory()?;
        let whole = |n: u64| n.is_multiple_of(PAGE);
        let aligned = alignment == 0 || alignment.is_power_of_two();
        if size == 0 || !whole(size) || !whole(hint) || !aligned || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let alignment = alignment.max(self.granularity());
        to.set(self.sim.backing.reserve_range(size, alignment, hint)?)
    }

    /// Creating, mapping and letting in during a capture: a strict driver's rule.
    fn mapping_in_capture(&mut self) -> Done {
        if self.sim.environment.strict_mapping {
            self.unsafe_in_capture()?;
        }
        Ok(())
    }

    fn create_physical(
        &mut self,
        to: &Out<Handle>,
        size: u64,
        props: &In<AllocationProps>,
        flags: u64,
    ) -> Done {
        to.required()?;
        self.has_virtual_memory()?;
        self.mapping_in_capture()?;
        let props = props.get()?;
        let device = self.check_props(&props)?;
        if size == 0 || !self.whole(size) || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let (file, offset, span) = match device {
            None => (crate::backing::create(size)?, 0, None),
            Some(device) => {
                let length = Bytes::new(size);
                let start = (self.sim.model).take_span(device, Family::Virtual, length, length)?;
                let place = self.sim.backing.file_at(start.get());
                let (file, offset) = place.ok_or(Code::UNKNOWN)?;
                let page = Bytes::new(self.granularity());
                self.sim.backing.spoil(start, length, page);
                (file, offset, Some(start.get()))
            }
        };
        to.set(self.sim.physicals.insert(Physical {
            size,
            props,
            device,
            file,
            offset,
            span,
            references: 1,
            mappings: 0,
        }))
    }

    /// Physical memory that can still be named by its handle.
    pub(crate) fn physical(&mut self, handle: Handle) -> Result<&mut Physical, Code> {
        let memory = self.sim.physicals.get_mut(handle);
        let memory = memory.filter(|m| m.references > 0);
        memory.ok_or(Code::INVALID_VALUE)
    }

    fn map_physical(
        &mut self,
        start: u64,
        size: u64,
        offset: u64,
        handle: Handle,
        flags: u64,
    ) -> Done {
        self.mapping_in_capture()?;
        let memory = self.physical(handle)?;
        let (device, all) = (memory.device.unwrap_or(0), memory.size);
        let (file, at) = (memory.file, memory.offset + offset);
        let aligned = self.whole(start) && self.whole(size) && self.whole(offset);
        let inside = offset.checked_add(size).is_some_and(|end| end <= all);
        if size == 0 || !inside || !aligned || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if offset != 0 && !self.sim.environment.map_offsets {
            return Err(Code::NOT_SUPPORTED);
        }
        let end = start.checked_add(size).ok_or(Code::INVALID_VALUE)?;
        let (from, length) = (self.sim.backing.range_at(start)).ok_or(Code::INVALID_VALUE)?;
        let below = self.sim.mappings.range(..end).next_back();
        let taken = below.is_some_and(|(&other, m)| other + m.size > start);
        if end > from + length || taken {
            return Err(Code::INVALID_VALUE);
        }
        if self.sim.mappings.len() >= self.sim.environment.mappings {
            return Err(Code::OUT_OF_MEMORY);
        }
        self.sim.backing.map_range(start, size, file, at)?;
        self.physical(handle)?.mappings += 1;
        self.sim.model.place(Allocation {
            base: Address::new(start),
            size: Bytes::new(size),
            device,
            context: None,
            holds: Holds::Mapped,
        });
        self.sim.kinds.insert(start, Kind::Mapped);
        let mapping = Mapping {
            size,
            memory: handle,
            access: BTreeMap::new(),
            host_access: 0,
        };
        self.sim.mappings.insert(start, mapping);
        Ok(())
    }

    fn set_access(&mut self, start: u64, size: u64, list: &In<Access>, count: u64) -> Done {
        self.mapping_in_capture()?;
        let found = self.sim.mappings_in(start, size);
        let found = found.ok_or(Code::INVALID_VALUE)?;
        if self.sim.environment.wsl && found.iter().any(|&at| self.sim.is_for_rdma(at)) {
            return Err(UNKNOWN);
        }
        let count = usize::try_from(count).map_err(|_| Code::INVALID_VALUE)?;
        for i in 0..count {
            let access = list.at(i)?;
            if ![0, 1, 3].contains(&access.flags) {
                return Err(Code::INVALID_VALUE);
            }
            let device = self.location(access.location)?;
            if let Some(device) = device
                && let Some(until) = self.sim.mapped_until(device, start, size)
            {
                self.sim.violate(Violation::Other(format!(
                    "the access of device {device} to {start:#x} is set while its work uses \
                     that until {until} ns"
                )));
            }
            found
                .iter()
                .try_for_each(|&at| self.give_access(at, device, access.flags))?;
        }
        Ok(())
    }

    fn give_access(&mut self, start: u64, device: Option<u32>, flags: u32) -> Done {
        let mapping = self.sim.mappings.get_mut(&start);
        let mapping = mapping.ok_or(Code::INVALID_VALUE)?;
        let Some(device) = device else {
            // The host can touch its own memory only.
            let memory = self.sim.physicals.get(mapping.memory);
            if memory.is_none_or(|m| m.device.is_some()) {
                return Err(Code::NOT_SUPPORTED);
            }
            mapping.host_access = flags;
            let (from, size) = (Address::new(start), Bytes::new(mapping.size));
            self.sim.backing.expose(from, size, flags != 0);
            return Ok(());
        };
        mapping.access.insert(device, flags);
        Ok(())
    }

    fn access_at(&self, location: &In<Location>, address: u64) -> Result<u32, Code> {
        let device = self.location(location.get()?)?;
        let (_, mapping) = self.sim.mapping_at(address).ok_or(Code::INVALID_VALUE)?;
        Ok(match device {
            Some(device) => mapping.access.get(&device).copied().unwrap_or(0),
            None => mapping.host_access,
        })
    }
}

driver! {
    fn cuMemAddressReserve(
        call, to: Out<u64>, size: u64, alignment: u64, hint: u64, flags: u64,
    ) {
        call.reserve_addresses(&to, size, alignment, hint, flags)
    }

    fn cuMemAddressFree(call, start: u64, size: u64) {
        if call.sim.backing.range_at(start) != Some((start, size)) {
            return Err(Code::INVALID_VALUE);
        }
        if call.sim.mappings.range(start..start + size).next().is_some() {
            let text = format!("addresses are freed at {start:#x} where memory is mapped");
            call.sim.violate(Violation::Other(text));
            return Err(Code::INVALID_VALUE);
        }
        call.sim.backing.free_range(start);
        Ok(())
    }

    fn cuMemCreate(
        call, to: Out<Handle>, size: u64, props: In<AllocationProps>, flags: u64,
    ) {
        call.create_physical(&to, size, &props, flags)
    }

    fn cuMemRelease(call, handle: Handle) {
        call.physical(handle)?.references -= 1;
        call.sim.drop_physical(handle);
        Ok(())
    }

    fn cuMemMap(call, start: u64, size: u64, offset: u64, handle: Handle, flags: u64) {
        call.map_physical(start, size, offset, handle, flags)
    }

    fn cuMemUnmap(call, start: u64, size: u64) {
        if call.sim.environment.no_unmap_in_capture {
            let refused = call.sim.model.refuse(call.name, |_| true);
            call.sim.announce();
            refused?;
        }
        let found = call.sim.mappings_in(start, size).ok_or(Code::INVALID_VALUE)?;
        if call.sim.environment.unmap_one && found.len() > 1 {
            return Err(Code::INVALID_VALUE);
        }
        found.into_iter().for_each(|at| call.sim.unmap(at));
        Ok(())
    }

    fn cuMemSetAccess(call, start: u64, size: u64, list: In<Access>, count: u64) {
        call.set_access(start, size, &list, count)
    }

    fn cuMemGetAccess(call, flags: Out<u64>, location: In<Location>, address: u64) {
        flags.required()?;
        flags.set(u64::from(call.access_at(&location, address)?))
    }

    fn cuMemGetAllocationGranularity(
        call, to: Out<u64>, props: In<AllocationProps>, option: u32,
    ) {
        to.required()?;
        call.has_virtual_memory()?;
        call.check_props(&props.get()?)?;
        if option > 1 {
            return Err(Code::INVALID_VALUE);
        }
        to.set(call.granularity())
    }

    fn cuMemGetAllocationPropertiesFromHandle(
        call, to: Out<AllocationProps>, handle: Handle,
    ) {
        to.set(call.physical(handle)?.props)
    }

    fn cuMemRetainAllocationHandle(call, to: Out<Handle>, address: u64) {
        to.required()?;
        let (_, mapping) = call.sim.mapping_at(address).ok_or(Code::INVALID_VALUE)?;
        let handle = mapping.memory;
        if let Some(memory) = call.sim.physicals.get_mut(handle) {
            memory.references += 1;
        }
        to.set(handle)
    }
}
