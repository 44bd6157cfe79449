//! `trait Mapping` over the real driver: addresses and memory of a device apart.
//!
//! The driver's calls for it belong to a device and need no context, so they are
//! made past the context's gate, whatever is current: what an arena gives back when
//! its context has ended goes the same way. What reads and writes the memory, to
//! save it and to put it back, is work of the context.
//!
//! The program makes the same calls for memory of its own, and a family counts them
//! behind their doors. These here go to the real functions and are not counted
//! there: an arena's memory is in its own books.
//!
//! Owns what is known of the device's abilities, which [`trial`] finds out, and the
//! memory that takes backups. Invariant: no capture is open or begins while
//! something is unmapped or copied; memory is admitted to the own device and to
//! each whose contexts were given access to this context. Cost: two cheap driver
//! calls around each.

mod backup;
mod trial;

use std::cell::Cell;
use std::ptr;
use std::sync::{Arc, OnceLock};

use vramalloc_core::config::StrategyKind;
use vramalloc_core::driver::PAGE;
use vramalloc_core::driver::mapping::{Backup, Mapping, MappingTraits, RESERVED_AT, Unit};
use vramalloc_core::{Address, Bytes, Code};

use crate::driver::context::Context;
use crate::driver::devices::{self, Device};
use crate::driver::real_driver::RealDriver;
use crate::driver::{capture, leavings, reserve, reserved, whose};
use crate::process;
use crate::real;
use crate::types::{AccessOf, CUdevice, CUdeviceptr, CudaResult, MemHandle, UnitProperties};

pub(crate) use backup::Backups;
use trial::Obstacle;

/// What a device's virtual memory can do, and how it is asked for.
#[derive(Copy, Clone)]
pub(crate) struct Able {
    granule: Bytes,
    unmaps_runs: bool,
    /// Units are made so that other hardware may use them.
    for_rdma: bool,
}

/// What a driver has found out of its device's virtual memory, once it was asked.
pub(crate) type Ability = OnceLock<Option<Able>>;

/// What memory of a device is asked for with.
fn properties(device: CUdevice, for_rdma: bool) -> UnitProperties {
    use crate::types::MemProperties;
    UnitProperties {
        begin: MemProperties::of_device(device),
        security: ptr::null_mut(),
        compression: 0,
        for_rdma: u8::from(for_rdma),
        usage: 0,
        rest: [0; 4],
    }
}

/// Reserves addresses at a multiple of [`RESERVED_AT`] and of the granule.
fn reserve_addresses(size: usize, granule: Bytes, at: &mut CUdeviceptr) -> CudaResult {
    let aligned = granule.max(RESERVED_AT);
    let Ok(alignment) = usize::try_from(aligned.get()) else {
        return Code::INVALID_VALUE.get();
    };
    // SAFETY: writes the answer to a local's place.
    let result = unsafe { real::cuMemAddressReserve(at, size, alignment, 0, 0) };
    if result != 0 || Address::new(*at).is_aligned(aligned) {
        return result;
    }
    // SAFETY: what the driver has just given. No unit could be placed there.
    unsafe { real::cuMemAddressFree(std::mem::take(at), size) };
    Code::NOT_SUPPORTED.get()
}

/// Creates memory; the caller's thread disturbs no capture.
fn create(device: CUdevice, for_rdma: bool, size: usize, unit: &mut MemHandle) -> CudaResult {
    let properties = properties(device, for_rdma);
    let begin = (&raw const properties).cast();
    // SAFETY: reads the properties, which are whole, and writes to a local's place.
    unsafe { real::cuMemCreate(unit, size, begin, 0) }
}

/// Gives devices access to whole units.
fn let_in(at: CUdeviceptr, size: usize, devices: &[CUdevice]) -> CudaResult {
    let access: Vec<AccessOf> = devices.iter().copied().map(AccessOf::all_of).collect();
    // SAFETY: reads so many descriptions; the driver checks the numbers.
    unsafe { real::cuMemSetAccess(at, size, access.as_ptr().cast(), access.len()) }
}

thread_local! {
    /// The one device that this thread admits.
    static GUEST: Cell<Option<CUdevice>> = const { Cell::new(None) };
}

/// Whatever `work` admits on this thread, it admits to this device alone: the own one,
/// which may be working on it, keeps the access that it has.
pub(crate) fn for_guest<R>(guest: CUdevice, work: impl FnOnce() -> R) -> R {
    GUEST.set(Some(guest));
    let worked = work();
    GUEST.set(None);
    worked
}

fn bytes(size: Bytes) -> Result<usize, Code> {
    usize::try_from(size.get()).map_err(|_| Code::INVALID_VALUE)
}

impl RealDriver {
    /// The device, and what it can do.
    fn able(&self) -> Result<(&'static Device, Able), Code> {
        let able = self.ability().get().copied().flatten();
        self.device().zip(able).ok_or(Code::NOT_SUPPORTED)
    }

    /// Copies by `copy`, which is work of the legacy stream, and waits for that and
    /// for nothing else.
    fn copied(&self, copy: impl FnOnce() -> CudaResult) -> Result<(), Code> {
        let context = self.context();
        let copied = capture::outside(|| {
            context.call_now(copy)?;
            // The driver may have taken the bytes and not have brought them yet.
            context.record_in(ptr::null_mut())
        });
        let mark = copied.unwrap_or(Err(Code::CAPTURE_UNSUPPORTED))?;
        mark.wait()?.then_some(()).ok_or(Code::NOT_READY)
    }
}

impl Mapping for RealDriver {
    fn mapping_traits(&self) -> Result<Option<MappingTraits>, Code> {
        if self.ability().get().is_none() {
            let device = self.device();
            let found = device.map(|device| find(self.context(), device));
            // Another thread may have been faster: its answer stands.
            let _ = self.ability().set(found.transpose()?.flatten());
        }
        let able = self.able().ok();
        Ok(able.map(|(_, able)| MappingTraits {
            granule: able.granule,
            unmaps_runs: able.unmaps_runs,
        }))
    }

    fn reserve(&self, size: Bytes) -> Result<Address, Code> {
        let (_, able) = self.able()?;
        leavings::tend();
        let length = bytes(size)?;
        let mut at: CUdeviceptr = 0;
        Context::beside(|| reserve_addresses(length, able.granule, &mut at))?;
        whose::took(Address::new(at), size, self.known());
        reserved::add(at, size.get());
        Ok(Address::new(at))
    }

    fn unreserve(&self, at: Address, size: Bytes) -> Result<(), Code> {
        let length = bytes(size)?;
        if leavings::keeps(at.get(), length) {
            return Ok(());
        }
        // Before the call: after it, the addresses may be another's.
        reserved::remove(at.get());
        // SAFETY: numbers that the driver checks.
        let free = || unsafe { real::cuMemAddressFree(at.get(), length) };
        Context::beside(free).inspect_err(|_| reserved::add(at.get(), size.get()))
    }

    fn create(&self, size: Bytes) -> Result<Unit, Code> {
        let (device, able) = self.able()?;
        let length = bytes(size)?;
        leavings::tend();
        let mut unit: MemHandle = 0;
        Context::beside(|| {
            let ask = || create(device.handle, able.for_rdma, length, &mut unit);
            reserve::asking_in(self.context(), ask)
        })?;
        Ok(Unit(unit))
    }

    fn release(&self, unit: Unit) -> Result<(), Code> {
        // SAFETY: a number that the driver checks.
        Context::beside(|| unsafe { real::cuMemRelease(unit.0) })
    }

    fn map(&self, at: Address, size: Bytes, unit: Unit) -> Result<(), Code> {
        let length = bytes(size)?;
        // SAFETY: numbers that the driver checks.
        Context::beside(|| unsafe { real::cuMemMap(at.get(), length, 0, unit.0, 0) })
    }

    fn admit(&self, at: Address, size: Bytes) -> Result<(), Code> {
        let (device, _) = self.able()?;
        let length = bytes(size)?;
        if let Some(guest) = GUEST.get() {
            return Context::beside(|| let_in(at.get(), length, &[guest]));
        }
        let mut devices = self.context().guests();
        devices.push(device.handle);
        Context::beside(|| let_in(at.get(), length, &devices))
    }

    fn unmap(&self, at: Address, size: Bytes) -> Result<(), Code> {
        let length = bytes(size)?;
        // SAFETY: numbers that the driver checks; nobody uses what is mapped there,
        // which is the caller's promise.
        let unmap = || Context::beside(|| unsafe { real::cuMemUnmap(at.get(), length) });
        match capture::outside(unmap) {
            Some(unmapped) => unmapped,
            None if self.context().has_ended() => {
                // It is not asked again.
                leavings::leave(at.get(), length, self.device());
                Ok(())
            }
            None => Err(Code::CAPTURE_UNSUPPORTED),
        }
    }

    fn take_backup(&self, size: Bytes, wanted: Bytes) -> Result<Backup, Code> {
        self.backups().take(self.context(), bytes(size)?, wanted)
    }

    fn drop_backup(&self, backup: Backup) {
        self.backups().give_back(self.context(), backup);
    }

    fn save(&self, from: Address, size: Bytes, to: Backup, offset: Bytes) -> Result<(), Code> {
        let to = self.backups().part(to, offset, size)?;
        let size = bytes(size)?;
        // SAFETY: a part of a backup, which nobody gives back meanwhile; the driver
        // checks the device's address.
        self.copied(|| unsafe { real::cuMemcpyDtoH_v2(to, from.get(), size) })
    }

    fn restore(&self, to: Address, size: Bytes, from: Backup, offset: Bytes) -> Result<(), Code> {
        let from = self.backups().part(from, offset, size)?;
        let size = bytes(size)?;
        // SAFETY: as above.
        self.copied(|| unsafe { real::cuMemcpyHtoD_v2(to.get(), from, size) })
    }
}

/// What the device's virtual memory can do. `None` is told to the user.
///
/// # Errors
/// [`Code::NOT_READY`] where it can be found out later.
fn find(context: &Arc<Context>, device: &'static Device) -> Result<Option<Able>, Code> {
    match find_out(context, device) {
        Ok(found) => Ok(found),
        Err(Obstacle::Untimely) => Err(Code::NOT_READY),
        Err(obstacle) => {
            obstacle.say(device);
            Ok(None)
        }
    }
}

/// As it was found for the device before, or by a trial now.
///
/// # Errors
/// What stands in the way only now: the next context asks again.
fn find_out(context: &Arc<Context>, device: &'static Device) -> Result<Option<Able>, Obstacle> {
    if let Some(&known) = device.ability.get() {
        return Ok(known);
    }
    let found = match trial::make(context, device.handle) {
        Ok(able) => Some(able),
        Err(obstacle) if obstacle.lasts() => {
            obstacle.say(device);
            None
        }
        Err(obstacle) => return Err(obstacle),
    };
    // Another thread may have been faster: the answers are the same.
    let _ = device.ability.set(found);
    Ok(found)
}

/// Called before a capture begins, during which nothing can be tried out: finds out
/// what the devices of all contexts can do, if the options want to know.
pub(super) fn prepare_capture(contexts: impl FnOnce() -> Vec<Arc<Context>>) {
    let strategy = process::options(|loaded| loaded.settings.config.strategy);
    if strategy != StrategyKind::Mapped || capture::any() {
        return;
    }
    for context in contexts() {
        let mut device: CUdevice = 0;
        // SAFETY: writes the answer to a local.
        let told = context.call_now(|| unsafe { real::cuCtxGetDevice(&raw mut device) });
        if told.is_ok() {
            // What is in the way now is told where memory is asked for.
            let _ = find_out(&context, devices::device(device));
        }
    }
}

/// A granule that the driver names: a power of two, and no less than a page.
fn granule_of(named: usize) -> Option<Bytes> {
    let named = named.is_power_of_two().then_some(named as u64)?;
    Some(Bytes::new(named).max(PAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_granule_is_a_power_of_two_and_a_page_at_least() {
        assert_eq!(granule_of(0), None);
        assert_eq!(granule_of(3 << 20), None);
        assert_eq!(granule_of(64 << 10), Some(PAGE));
        assert_eq!(granule_of(2 << 20), Some(PAGE));
        assert_eq!(granule_of(32 << 20), Some(Bytes::mib(32)));
    }
}
