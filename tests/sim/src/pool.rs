//! Stream-ordered allocation, and the pools that it comes from.
//!
//! Owns the pools' attributes. Invariant: a pool's memory is device memory like
//! any other, allocated when requested and freed when the stream reaches the
//! free; pools keep nothing.

use vramalloc_core::{Address, Bytes, Code};
use vramalloc_model::Work;

use crate::effect::Effect;
use crate::entry::{Call, driver};
use crate::ffi::{Done, Handle, INVALID_HANDLE, In, Out};
use crate::state::{Kind, Pool};

const ALL: std::ops::RangeInclusive<u32> = 1..=8;
const FIRST_COUNTER: u32 = 5;

/// The part of `CUmemPoolProps` that is read: where the pool lies.
#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct PoolProps {
    kind: u32,
    handles: u32,
    location_kind: u32,
    location: i32,
}

impl Call<'_> {
    fn pool(&mut self, handle: Handle) -> Result<&mut Pool, Code> {
        self.sim.pools.get_mut(handle).ok_or(INVALID_HANDLE)
    }

    fn pool_of(&self, device: u32) -> Result<Handle, Code> {
        let pool = self.sim.current_pools.get(device as usize).copied();
        pool.ok_or(crate::ffi::INVALID_DEVICE)
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
        self.pool(pool)?;
        let size = Bytes::new(size);
        let address = match self.sim.model.allocate(context, size) {
            Err(Code::OUT_OF_MEMORY) => {
                // Memory that streams are going to free counts as well.
                self.sim.wait_for_device(device);
                self.sim.model.allocate(context, size)?
            }
            answer => answer?,
        };
        self.sim.kinds.insert(address.get(), Kind::Pool(pool));
        to.set(address.get())
    }

    fn give_back_ordered(&mut self, address: u64, stream: Handle) -> Done {
        let stream = self.stream(stream)?;
        let found = self.sim.model.find(Address::new(address));
        let base = found.ok_or(Code::INVALID_VALUE)?.base.get();
        let kind = self.sim.kinds.get(&base).copied();
        if base != address || matches!(kind, Some(Kind::Leaving | Kind::Foreign)) {
            return Err(Code::INVALID_VALUE);
        }
        self.sim.kinds.insert(address, Kind::Leaving);
        let work = Work {
            effect: Some(Effect::Release(address)),
            ..Work::lasting(0)
        };
        self.sim.submit(stream, work)
    }

    /// Bytes of the live memory that came from a pool.
    fn used(&self, pool: Handle) -> u64 {
        let own = (self.sim.kinds.iter()).filter(|(_, k)| **k == Kind::Pool(pool));
        own.filter_map(|(&base, _)| self.sim.model.find(Address::new(base)))
            .map(|a| a.size.get())
            .sum()
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
        to.required()?;
        const ON_DEVICE: u32 = 1;
        let props = props.get()?;
        if props.location_kind != ON_DEVICE {
            return Err(Code::NOT_SUPPORTED);
        }
        let device = call.device(props.location)?;
        to.set(call.sim.pools.insert(Pool::new(device)))
    }

    fn cuMemPoolDestroy(call, pool: Handle) {
        if call.sim.default_pools.contains(&pool) {
            return Err(Code::INVALID_VALUE);
        }
        call.sim.pools.remove(pool).map(|_| ()).ok_or(INVALID_HANDLE)
    }

    fn cuMemPoolTrimTo(call, pool: Handle, _keep: u64) {
        call.pool(pool).map(|_| ())
    }

    fn cuMemPoolGetAttribute(call, pool: Handle, attribute: u32, value: Out<u64>) {
        if !ALL.contains(&attribute) {
            return Err(Code::INVALID_VALUE);
        }
        let set = call.pool(pool)?.attributes.get(&attribute).copied();
        let now = if attribute >= FIRST_COUNTER { call.used(pool) } else { 0 };
        let answer = set.unwrap_or(0).max(now);
        if Pool::NARROW.contains(&attribute) {
            return value.cast::<u32>().set(u32::from(answer != 0));
        }
        value.set(answer)
    }

    fn cuMemPoolSetAttribute(call, pool: Handle, attribute: u32, value: Out<u64>) {
        if !ALL.contains(&attribute) {
            return Err(Code::INVALID_VALUE);
        }
        let wanted = if Pool::NARROW.contains(&attribute) {
            u64::from(value.cast::<u32>().get()?)
        } else {
            value.get()?
        };
        call.pool(pool)?.attributes.insert(attribute, wanted);
        Ok(())
    }

    fn cuMemPoolSetAccess(call, pool: Handle, _list: In<u64>, _count: u64) {
        call.pool(pool).map(|_| ())
    }

    fn cuMemPoolGetAccess(call, flags: Out<u32>, pool: Handle, _location: In<u64>) {
        const READ_WRITE: u32 = 3;
        call.pool(pool)?;
        flags.set(READ_WRITE)
    }

    fn cuDeviceGetDefaultMemPool(call, to: Out<Handle>, device: i32) {
        let device = call.device(device)?;
        let pool = call.sim.default_pools.get(device as usize).copied();
        to.set(pool.ok_or(Code::INVALID_VALUE)?)
    }

    fn cuDeviceGetMemPool(call, to: Out<Handle>, device: i32) {
        let device = call.device(device)?;
        to.set(call.pool_of(device)?)
    }

    fn cuDeviceSetMemPool(call, device: i32, pool: Handle) {
        let device = call.device(device)?;
        if call.pool(pool)?.device != device {
            return Err(Code::INVALID_VALUE);
        }
        if let Some(current) = call.sim.current_pools.get_mut(device as usize) {
            *current = pool;
        }
        Ok(())
    }
}
