//! Device memory: allocation, free, queries.
//!
//! The model has the allocations, and the machine their kinds. Invariant: a
//! free waits for everything on the device. Cost: O(log n), and the unmapping
//! of whole pages.

use vramalloc_core::{Address, Bytes, Code};

use crate::entry::{Call, driver};
use crate::ffi::{Done, Out};
use crate::state::Kind;

/// Rows of a pitched allocation begin at multiples of this.
const PITCH: u64 = 512;

impl Call<'_> {
    /// Takes device memory for the current context.
    pub(crate) fn take(&mut self, to: &Out<u64>, size: u64) -> Result<u64, Code> {
        to.required()?;
        let context = self.model_context()?;
        if size == 0 {
            return Err(Code::INVALID_VALUE);
        }
        self.unsafe_in_capture()?;
        let address = self.sim.model.allocate(context, Bytes::new(size))?.get();
        self.sim.note_taken(Bytes::new(size), 1);
        to.maybe(address);
        Ok(address)
    }

    /// What is there can be freed without a context, by whoever knows of it.
    fn give_back(&mut self, address: u64) -> Done {
        let found = self.sim.model.find(Address::new(address));
        if found.is_none_or(|a| a.base.get() != address) {
            self.context()?;
        }
        if address == 0 {
            return Ok(());
        }
        self.unsafe_in_capture()?;
        match self.sim.kinds.get(&address).copied() {
            Some(Kind::Foreign | Kind::Leaving | Kind::Mapped | Kind::Array) => {
                return Err(Code::INVALID_VALUE);
            }
            Some(Kind::Pool(pool)) => {
                self.sim.give_to_pool(address, pool, None);
                return Ok(());
            }
            Some(Kind::Graph) => return self.free_block(address, None),
            _ => {}
        }
        if let Some(a) = self.sim.model.find(Address::new(address)) {
            self.sim.wait_for_device(a.device);
            if self.sim.environment.narrow_frees {
                return self.give_back_narrowly(address);
            }
            let used = self.sim.model.used_until(a.base, a.size).unwrap_or(0);
            self.sim.model.advance_to(used);
            self.sim.settle();
        }
        let size = self.sim.model.find(Address::new(address)).map(|a| a.size);
        let freed = self.sim.model.free(Address::new(address));
        if let (Ok(_), Some(size)) = (&freed, size) {
            self.sim.note_taken(size, -1);
        }
        self.sim.settle();
        self.sim.announce();
        let pages = freed?;
        self.sim.forget(address, pages);
        Ok(())
    }

    /// Completes a free that waits for no copy between devices except those of
    /// the current context. Whether CUDA's free waits for them is documented
    /// nowhere.
    fn give_back_narrowly(&mut self, address: u64) -> Done {
        if let Ok(context) = self.model_context() {
            let mark = self.sim.model.context_mark(context);
            self.sim.wait(&mark);
        }
        let freed = self.sim.model.release(Address::new(address));
        self.sim.announce();
        self.sim.forget(address, freed?);
        Ok(())
    }
}

driver! {
    fn cuMemAlloc_v2(call, to: Out<u64>, size: u64) {
        call.take(&to, size).map(|_| ())
    }

    fn cuMemFree_v2(call, address: u64) {
        call.give_back(address)
    }

    fn cuMemGetInfo_v2(call, free: Out<u64>, total: Out<u64>) {
        let context = call.model_context()?;
        let device = call.sim.model.device_of(context);
        let info = device.and_then(|d| call.sim.model.mem_info(d));
        let info = info.ok_or(Code::INVALID_CONTEXT)?;
        free.maybe(info.free.get());
        total.maybe(info.total.get());
        Ok(())
    }

    fn cuMemAllocPitch_v2(
        call, to: Out<u64>, pitch: Out<u64>, width: u64, height: u64, element: u32,
    ) {
        pitch.required()?;
        if ![4, 8, 16].contains(&element) || width == 0 || height == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let row = width.checked_next_multiple_of(PITCH).ok_or(Code::INVALID_VALUE)?;
        let size = row.checked_mul(height).ok_or(Code::OUT_OF_MEMORY)?;
        call.take(&to, size)?;
        pitch.set(row)
    }

    fn cuMemGetAddressRange_v2(call, base: Out<u64>, size: Out<u64>, address: u64) {
        call.context()?;
        if base.is_null() && size.is_null() {
            // The driver looks for nothing then.
            return Ok(());
        }
        let found = call.sim.model.find(Address::new(address));
        let on_host = || call.sim.host.at(address).filter(|(_, block)| !block.registered);
        let (start, length) = match found {
            Some(found) => (found.base.get(), found.size.get()),
            None => on_host().map(|(start, block)| (start, block.size)).ok_or(crate::ffi::NOT_FOUND)?,
        };
        base.maybe(start);
        size.maybe(length);
        Ok(())
    }
}
