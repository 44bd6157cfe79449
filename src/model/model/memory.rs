//! The model's allocations: the live ones by address, over the devices' pages.
//!
//! Invariant: live allocations do not overlap. Cost: O(log n).

use super::Model;
use crate::device::{Allocation, DeviceMemory, Holds};
use crate::family::Family;
use crate::faults::Violation;
use crate::flight::Touch;
use crate::ids::ContextId;
use crate::settings::Nanos;
use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::driver::MemInfo;
use vramalloc_core::error::Code;

impl<E> Model<E> {
    /// When the last work in flight that touches these bytes ends; `None` if no
    /// work does.
    pub fn used_until(&self, start: Address, size: Bytes) -> Option<Nanos> {
        let using = self.flight.overlapping(Touch::read(start, size));
        using.map(|u| u.ends).filter(|&t| t > self.now()).max()
    }

    /// Allocates `size` bytes for a context.
    ///
    /// # Errors
    /// [`Code::OUT_OF_MEMORY`]; [`Code::INVALID_VALUE`] for 0 bytes;
    /// [`Code::INVALID_CONTEXT`] if the context is not alive.
    pub fn allocate(&mut self, context: ContextId, size: Bytes) -> Result<Address, Code> {
        self.allocate_as(context, Family::Plain, size)
    }

    /// As [`allocate`](Self::allocate), for a family.
    ///
    /// # Errors
    /// Those of `allocate`.
    pub fn allocate_as(
        &mut self,
        context: ContextId,
        family: Family,
        size: Bytes,
    ) -> Result<Address, Code> {
        if !self.is_alive(context) {
            return Err(Code::INVALID_CONTEXT);
        }
        if size.is_zero() {
            return Err(Code::INVALID_VALUE);
        }
        let device = self.device_of(context).ok_or(Code::INVALID_CONTEXT)?;
        let memory = self.devices.get_mut(device as usize);
        let base = memory
            .and_then(|m| m.take(context, family, size.get()))
            .map(Address::new)
            .ok_or(Code::OUT_OF_MEMORY)?;
        self.place(Allocation {
            base,
            size,
            device,
            context: Some(context),
            holds: Holds::Pages(family),
        });
        Ok(base)
    }

    /// Adds an allocation whose memory is there already.
    pub fn place(&mut self, allocation: Allocation) {
        self.live.insert(allocation.base.get(), allocation);
    }

    /// Frees an allocation as the driver does: waits for the work of its
    /// context and for all other work that touches it. Returns the pages that
    /// are unused now.
    ///
    /// # Errors
    /// [`Code::INVALID_VALUE`] if no allocation begins there, which is also a
    /// violation.
    pub fn free(&mut self, base: Address) -> Result<Option<(Address, Bytes)>, Code> {
        let Some(a) = self.live.get(&base.get()).copied() else {
            self.violations.push(Violation::UnknownFree(base));
            return Err(Code::INVALID_VALUE);
        };
        let used = self.used_until(base, a.size).unwrap_or(0);
        if let Some(context) = a.context {
            self.wait(&self.context_mark(context));
        }
        self.advance_to(used);
        self.release(base)
    }

    /// Frees an allocation without waiting; a violation if work in flight
    /// touches it.
    ///
    /// # Errors
    /// [`Code::INVALID_VALUE`] if no allocation begins there.
    pub fn release(&mut self, base: Address) -> Result<Option<(Address, Bytes)>, Code> {
        let Some(a) = self.live.get(&base.get()).copied() else {
            return Err(Code::INVALID_VALUE);
        };
        if let Some(until) = self.used_until(base, a.size) {
            let start = base;
            self.violate(Violation::FreedInUse { start, until });
        }
        Ok(self.drop_live(base.get()))
    }

    pub(crate) fn drop_live(&mut self, base: u64) -> Option<(Address, Bytes)> {
        let a = self.live.remove(&base)?;
        self.forget_accesses(a.base, a.size);
        match a.holds {
            Holds::Nothing | Holds::Mapped => None,
            Holds::Span => self.drop_span(a.base),
            Holds::Pages(family) => {
                let memory = self.devices.get_mut(a.device as usize)?;
                let (start, length) = memory.put(a.context?, family, base, a.size.get())?;
                Some((Address::new(start), Bytes::new(length)))
            }
        }
    }

    /// Ends an allocation that holds nothing, whatever work still does with it.
    pub fn vacate(&mut self, base: Address) -> Option<Allocation> {
        self.live.remove(&base.get())
    }

    /// Whatever is done with these bytes from now on is ordered after what was
    /// done with them so far.
    pub fn forget_accesses(&mut self, start: Address, size: Bytes) {
        if let Some(order) = &mut self.order {
            order.forget(Touch::write(start, size));
        }
    }

    /// The live allocation that holds the byte at `address`.
    pub fn find(&self, address: Address) -> Option<Allocation> {
        let (_, &a) = self.live.range(..=address.get()).next_back()?;
        (address.offset_from(a.base) < a.size).then_some(a)
    }

    /// Whether these bytes lie in one live allocation, in mapped ones that
    /// follow each other, or in one piece of host memory that devices can
    /// access.
    pub fn covers(&self, start: Address, size: Bytes) -> bool {
        let inside = |base: Address, whole: Bytes| {
            let end = start.offset_from(base).checked_add(size);
            end.is_some_and(|end| end <= whole)
        };
        match self.find(start) {
            Some(a) if a.holds == Holds::Mapped => self.is_mapped(start, size),
            Some(a) => inside(a.base, a.size),
            None => {
                let below = self.host.range(..=start.get()).next_back();
                below.is_some_and(|(&base, &whole)| inside(Address::new(base), whole))
            }
        }
    }

    /// Whether memory is mapped to all of these bytes.
    pub(super) fn is_mapped(&self, start: Address, size: Bytes) -> bool {
        let end = start.get().saturating_add(size.get());
        let mut at = start;
        while let Some(a) = self.find(at).filter(|a| a.holds == Holds::Mapped) {
            at = Address::new(a.base.get() + a.size.get());
            if at.get() >= end {
                return true;
            }
        }
        false
    }

    /// Adds host memory that devices can access.
    pub fn note_host(&mut self, start: Address, size: Bytes) {
        self.host.insert(start.get(), size);
    }

    /// Removes host memory that `note_host` added; a violation if work in
    /// flight touches it.
    pub fn forget_host(&mut self, start: Address) {
        let Some(size) = self.host.remove(&start.get()) else {
            return;
        };
        if let Some(until) = self.used_until(start, size) {
            self.violate(Violation::FreedInUse { start, until });
        }
        if let Some(order) = &mut self.order {
            order.forget(Touch::write(start, size));
        }
    }

    /// The number of live allocations.
    pub fn live_count(&self) -> usize {
        self.live.len()
    }

    /// Free and total memory of a device; `None` if there is no such device.
    pub fn mem_info(&self, device: u32) -> Option<MemInfo> {
        let memory = self.devices.get(device as usize)?;
        Some(MemInfo {
            free: Bytes::new(memory.free_bytes()),
            total: Bytes::new(memory.total.min(memory.limit)),
        })
    }

    /// Bytes in use on a device: now, and the most so far.
    pub fn used_and_peak(&self, device: u32) -> (Bytes, Bytes) {
        let used = self.devices.get(device as usize).map(DeviceMemory::used);
        let used = used.unwrap_or_default();
        (Bytes::new(used.now), Bytes::new(used.peak))
    }

    /// Bytes in use on a device by a family: now, and the most so far.
    pub fn family(&self, device: u32, family: Family) -> (Bytes, Bytes) {
        let memory = self.devices.get(device as usize);
        let amount = memory.map(|m| m.amount(family)).unwrap_or_default();
        (Bytes::new(amount.now), Bytes::new(amount.peak))
    }

    /// Limits what this process may use of a device, managed memory apart.
    pub fn limit(&mut self, device: u32, limit: Bytes) {
        if let Some(memory) = self.devices.get_mut(device as usize) {
            memory.limit = limit.get();
        }
    }

    /// Sets how much of a device's memory another process uses, in whole pages.
    pub fn occupy(&mut self, device: u32, size: Bytes) {
        let pages = size.round_up(self.settings.page).unwrap_or(size);
        if let Some(memory) = self.devices.get_mut(device as usize) {
            memory.occupied = pages.get();
        }
    }
}
