//! Stream-ordered allocation, and the pools that it comes from.
//!
//! Owns the pools. Invariant: a pool reserves whole grains of its device's
//! memory, one behind the other, and keeps them when its blocks are freed; when the host waits, what
//! is free as a whole goes back, down to the pool's threshold. Memory that a
//! stream freed is used again by that stream at once, and by others as the
//! pool's attributes allow. A destroyed pool lives on until its last block is
//! free. Cost: linear in a pool's free blocks.

use vramalloc_core::{Address, Bytes, Code};
use vramalloc_model::{
    Allocation, ContextId, Family, Holds, Pending, Place, StreamId, Violation, Work,
};

use crate::effect::Effect;
use crate::entry::{Call, driver};
use crate::ffi::{Done, Handle, INVALID_DEVICE, INVALID_HANDLE, In, Out};
use crate::machine::Machine;
use crate::state::{Kind, Location, ON_DEVICE, PINNED, Pool};

/// `CUmemPoolProps`.
#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct PoolProps {
    pub(crate) kind: u32,
    pub(crate) handles: u32,
    pub(crate) location: Location,
    pub(crate) security: u64,
    pub(crate) most: u64,
    pub(crate) rest: [u8; 56],
}

impl PoolProps {
    /// Those of a plain pool of a device.
    pub(crate) fn of(device: u32) -> PoolProps {
        PoolProps {
            kind: PINNED,
            handles: 0,
            location: Location {
                kind: ON_DEVICE,
                id: i32::try_from(device).unwrap_or(-1),
            },
            security: 0,
            most: 0,
            rest: [0; 56],
        }
    }
}

impl Machine {
    /// The stream's capture, which must be valid.
    fn open_capture(&mut self, stream: StreamId) -> Result<Option<u64>, Code> {
        self.check_implicit(stream)?;
        match self.model.capture_of(stream) {
            Some(c) if c.invalidated => Err(crate::ffi::CAPTURE_INVALIDATED),
            capture => Ok(capture.map(|c| c.id)),
        }
    }

    /// Reserves more memory for a pool, enough for `size` bytes: at its end, or
    /// elsewhere if others have the addresses there.
    fn grow_pool(&mut self, handle: Handle, size: u64) -> Done {
        let pool = self.pools.get(handle).ok_or(Code::INVALID_VALUE)?;
        let (end, behind) = (pool.memory.end(), pool.memory.growth(size));
        let elsewhere = pool.memory.growth_elsewhere(size);
        let at_end = end.zip(behind).map(|(end, growth)| {
            let place = Place::At(Address::new(end));
            self.grow_pool_at(place, handle, growth)
        });
        if at_end == Some(Ok(())) {
            return Ok(());
        }
        let growth = elsewhere.ok_or(Code::OUT_OF_MEMORY)?;
        self.grow_pool_at(Place::WithRoomBehind, handle, growth)
    }

    fn grow_pool_at(&mut self, place: Place, handle: Handle, growth: u64) -> Done {
        let pool = self.pools.get_mut(handle).ok_or(Code::INVALID_VALUE)?;
        let after = pool.memory.reserved().0.saturating_add(growth);
        if pool.most != 0 && after > pool.most {
            return Err(Code::OUT_OF_MEMORY);
        }
        let length = Bytes::new(growth);
        let start = (self.model).take_span_at(place, pool.device, Family::Pool, length, length)?;
        self.model.divide_span(start, self.environment.pool_grain);
        pool.memory.grow(start.get(), growth);
        Ok(())
    }

    /// Takes a block that is known to be free.
    fn take_settled(&mut self, handle: Handle, size: u64) -> Option<(u64, Option<Pending>)> {
        let pool = self.pools.get_mut(handle)?;
        pool.memory.take(size, |_| false)
    }

    /// Finds a free block, and makes the stream wait for it if it must. Memory
    /// for which it would have to wait is the last resort of a pool.
    fn find_in_pool(&mut self, handle: Handle, stream: StreamId, size: u64) -> Result<u64, Code> {
        let (tail, now) = (self.model.stream_tail(stream), self.model.now());
        let pool = self.pools.get_mut(handle).ok_or(Code::INVALID_VALUE)?;
        let (device, [follows, takes, waits]) = (pool.device, pool.reuse);
        let at_once = |p: &Pending| {
            let time = p.mark.time();
            p.stream == stream || (follows && time <= tail) || (takes && time <= now)
        };
        let mut found = pool.memory.take(size, at_once);
        if found.is_none() {
            let grown = self.grow_pool(handle, size).is_ok();
            let pool = self.pools.get_mut(handle).ok_or(Code::INVALID_VALUE)?;
            found = (pool.memory).take(size, |p| at_once(p) || (waits && !grown));
        }
        if found.is_none() {
            self.wait_for_device(device);
            self.settle_pool(handle, 0);
            found = self.take_settled(handle, size);
        }
        if found.is_none() {
            self.grow_pool(handle, size)?;
            found = self.take_settled(handle, size);
        }
        let (start, pending) = found.ok_or(Code::OUT_OF_MEMORY)?;
        match pending {
            Some(p) if p.stream == stream => {}
            Some(p) if p.mark.time() > now => self.model.hold(stream, &p.mark),
            _ => (self.model).forget_accesses(Address::new(start), Bytes::new(size)),
        }
        Ok(start)
    }

    /// Takes a block for a stream.
    fn take_from_pool(
        &mut self,
        handle: Handle,
        stream: StreamId,
        context: ContextId,
        size: u64,
    ) -> Result<u64, Code> {
        let start = self.find_in_pool(handle, stream, size)?;
        let device = self.pools.get(handle).map_or(0, |pool| pool.device);
        self.model.place(Allocation {
            base: Address::new(start),
            size: Bytes::new(size),
            device,
            context: Some(context),
            holds: Holds::Nothing,
        });
        self.kinds.insert(start, Kind::Pool(handle));
        Ok(start)
    }

    /// Frees a block of a pool: now, or when a stream is there. Work that still
    /// uses it then is a violation.
    pub(crate) fn give_to_pool(&mut self, address: u64, handle: Handle, pending: Option<Pending>) {
        let start = Address::new(address);
        let Some(freed) = self.model.vacate(start) else {
            return;
        };
        self.kinds.remove(&address);
        let free_at = (pending.as_ref()).map_or(self.model.now(), |p| p.mark.time());
        if let Some(until) = self.model.used_until(start, freed.size)
            && until > free_at
        {
            self.violate(Violation::FreedInUse { start, until });
        }
        if let Some(pool) = self.pools.get_mut(handle) {
            pool.memory.give(address, pending);
        }
        self.bury_pools();
    }

    /// Takes note of the frees that are reached, and gives back what is free,
    /// as long as `keep` bytes stay reserved.
    fn settle_pool(&mut self, handle: Handle, keep: u64) {
        let now = self.model.now();
        let released = self.pools.get_mut(handle).map(|pool| {
            pool.memory.settle(now);
            pool.memory.release(keep)
        });
        for grain in released.into_iter().flatten() {
            if let Some((start, size)) = self.model.drop_span(Address::new(grain)) {
                self.backing.discard(start, size);
            }
        }
    }

    /// The host has waited: pools give back what is above their thresholds.
    pub(crate) fn settle_pools(&mut self) {
        let all: Vec<(Handle, u64)> = (self.pools.iter())
            .map(|(handle, pool)| (handle, pool.threshold))
            .collect();
        for (handle, threshold) in all {
            self.settle_pool(handle, threshold);
        }
        self.bury_pools();
    }

    /// Ends the destroyed pools of which nothing is in use any more.
    pub(crate) fn bury_pools(&mut self) {
        if self.dying_pools.is_empty() {
            return;
        }
        let now = self.model.now();
        for handle in std::mem::take(&mut self.dying_pools) {
            let idle = self.pools.get_mut(handle).is_none_or(|pool| {
                pool.memory.settle(now);
                pool.memory.is_idle()
            });
            if idle {
                self.settle_pool(handle, 0);
                self.pools.remove(handle);
            } else {
                self.dying_pools.push(handle);
            }
        }
    }

    /// Frees the blocks that a context took, whose work is done.
    pub(crate) fn drop_pool_memory_of(&mut self, context: ContextId) {
        let own: Vec<(u64, Handle)> = (self.kinds.iter())
            .filter_map(|(&base, kind)| match kind {
                Kind::Pool(pool) => Some((base, *pool)),
                _ => None,
            })
            .filter(|&(base, _)| {
                let found = self.model.find(Address::new(base));
                found.is_some_and(|a| a.context == Some(context))
            })
            .collect();
        for (base, pool) in own {
            self.give_to_pool(base, pool, None);
        }
        self.settle_pools();
    }
}

impl Call<'_> {
    /// A pool that was not destroyed.
    pub(crate) fn pool(&mut self, handle: Handle) -> Result<&mut Pool, Code> {
        let pool = self.sim.pools.get_mut(handle).filter(|p| !p.destroyed);
        pool.ok_or(Code::INVALID_VALUE)
    }

    fn pool_of(&self, device: u32) -> Result<Handle, Code> {
        let pool = self.sim.current_pools.get(device as usize).copied();
        pool.ok_or(INVALID_DEVICE)
    }

    fn default_pool_of(&self, device: i32) -> Result<Handle, Code> {
        let device = self.device(device)?;
        let pool = self.sim.default_pools.get(device as usize).copied();
        pool.ok_or(INVALID_DEVICE)
    }

    fn take_ordered(
        &mut self,
        to: &Out<u64>,
        size: u64,
        pool: Option<Handle>,
        stream: Handle,
    ) -> Done {
        to.required()?;
        let stream = self.stream(stream)?;
        let context = self.sim.model.context_of(stream).ok_or(INVALID_HANDLE)?;
        let device = self.sim.model.device_of(context).ok_or(INVALID_HANDLE)?;
        let pool = match pool {
            Some(pool) => pool,
            None => self.pool_of(device)?,
        };
        if size == 0 || self.pool(pool)?.imported.is_some() {
            return Err(Code::INVALID_VALUE);
        }
        if let Some(id) = self.sim.open_capture(stream)? {
            let device = self.pool(pool)?.device;
            let mut graph = self.sim.captured.remove(&id).unwrap_or_default();
            let taken = self.sim.add_take(&mut graph, device, size);
            self.sim.captured.insert(id, graph);
            return to.set(taken?);
        }
        to.set(self.sim.take_from_pool(pool, stream, context, size)?)
    }

    fn give_back_ordered(&mut self, address: u64, stream: Handle) -> Done {
        let stream = self.stream(stream)?;
        if address == 0 {
            return Ok(());
        }
        if let Some(id) = self.sim.open_capture(stream)? {
            let mut graph = self.sim.captured.remove(&id).unwrap_or_default();
            let given = self.sim.add_give(&mut graph, address);
            self.sim.captured.insert(id, graph);
            return given;
        }
        let found = self.sim.model.find(Address::new(address));
        let base = found.ok_or(Code::INVALID_VALUE)?.base.get();
        let kind = self.sim.kinds.get(&base).copied();
        if base != address
            || matches!(
                kind,
                Some(Kind::Leaving | Kind::Foreign | Kind::Mapped | Kind::Array)
            )
        {
            return Err(Code::INVALID_VALUE);
        }
        if kind == Some(Kind::Graph) {
            return self.free_block(address, Some(stream));
        }
        if let Some(Kind::Pool(pool)) = kind {
            self.sim.submit(stream, Work::lasting(0))?;
            let mark = self.sim.model.stream_mark(stream);
            let pending = Some(Pending { stream, mark });
            self.sim.give_to_pool(address, pool, pending);
            return Ok(());
        }
        let work = Work {
            effect: Some(Effect::Release(address)),
            ..Work::lasting(0)
        };
        // The free may be reached at once.
        self.sim.kinds.insert(address, Kind::Leaving);
        self.sim.submit(stream, work)
    }

    fn create_pool(&mut self, to: &Out<Handle>, props: &In<PoolProps>) -> Done {
        to.required()?;
        let props = props.get()?;
        if props.kind != PINNED || props.security != 0 || props.location.kind > 6 {
            return Err(Code::INVALID_VALUE);
        }
        if props.location.kind != ON_DEVICE || props.handles & !crate::descriptor::POSIX != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let device = self.device(props.location.id)?;
        let grain = self.sim.environment.pool_grain;
        let most = Bytes::new(props.most).round_up(grain);
        let mut pool = Pool::new(device, grain.get());
        pool.most = most.ok_or(Code::INVALID_VALUE)?.get();
        pool.handle_types = props.handles;
        to.set(self.sim.pools.insert(pool))
    }

    fn destroy_pool(&mut self, handle: Handle) -> Done {
        let pool = self.pool(handle)?;
        let device = pool.device as usize;
        if self.sim.default_pools.contains(&handle) {
            return Err(Code::INVALID_VALUE);
        }
        self.pool(handle)?.destroyed = true;
        self.sim.dying_pools.push(handle);
        let first = self.sim.default_pools.get(device).copied();
        let current = self.sim.current_pools.get_mut(device);
        if let (Some(current), Some(first)) = (current, first)
            && *current == handle
        {
            *current = first;
        }
        self.sim.bury_pools();
        Ok(())
    }

    fn set_pool_of(&mut self, device: i32, handle: Handle) -> Done {
        let device = self.device(device)?;
        let pool = self.pool(handle)?;
        if pool.device != device || pool.imported.is_some() {
            return Err(Code::INVALID_VALUE);
        }
        if let Some(current) = self.sim.current_pools.get_mut(device as usize) {
            *current = handle;
        }
        Ok(())
    }

    /// The device of a location that has pools.
    fn place_of_pools(&self, location: &In<Location>, kind: u32) -> Result<i32, Code> {
        let location = location.get()?;
        match (location.kind, kind) {
            (ON_DEVICE, PINNED) => Ok(location.id),
            (0 | 4.., _) | (_, 0 | 3..) => Err(Code::INVALID_VALUE),
            _ => Err(Code::NOT_SUPPORTED),
        }
    }
}

driver! {
    fn cuMemAllocAsync / cuMemAllocAsync_ptsz(call, to: Out<u64>, size: u64, stream: Handle) {
        call.take_ordered(&to, size, None, stream)
    }

    fn cuMemAllocFromPoolAsync / cuMemAllocFromPoolAsync_ptsz(
        call, to: Out<u64>, size: u64, pool: Handle, stream: Handle,
    ) {
        call.take_ordered(&to, size, Some(pool), stream)
    }

    fn cuMemFreeAsync / cuMemFreeAsync_ptsz(call, address: u64, stream: Handle) {
        call.give_back_ordered(address, stream)
    }

    fn cuMemPoolCreate(call, to: Out<Handle>, props: In<PoolProps>) {
        call.create_pool(&to, &props)
    }

    fn cuMemPoolDestroy(call, pool: Handle) {
        call.destroy_pool(pool)
    }

    fn cuMemPoolTrimTo(call, pool: Handle, keep: u64) {
        call.pool(pool)?;
        call.sim.settle_pool(pool, keep);
        Ok(())
    }

    fn cuDeviceGetDefaultMemPool(call, to: Out<Handle>, device: i32) {
        to.set(call.default_pool_of(device)?)
    }

    fn cuDeviceGetMemPool(call, to: Out<Handle>, device: i32) {
        let device = call.device(device)?;
        to.set(call.pool_of(device)?)
    }

    fn cuDeviceSetMemPool(call, device: i32, pool: Handle) {
        call.set_pool_of(device, pool)
    }

    fn cuMemGetDefaultMemPool(call, to: Out<Handle>, location: In<Location>, kind: u32) {
        let device = call.place_of_pools(&location, kind)?;
        to.set(call.default_pool_of(device)?)
    }

    fn cuMemGetMemPool(call, to: Out<Handle>, location: In<Location>, kind: u32) {
        let device = call.place_of_pools(&location, kind)?;
        let device = call.device(device)?;
        to.set(call.pool_of(device)?)
    }

    fn cuMemSetMemPool(call, location: In<Location>, kind: u32, pool: Handle) {
        let device = call.place_of_pools(&location, kind)?;
        call.set_pool_of(device, pool)
    }
}
