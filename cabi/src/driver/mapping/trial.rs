//! Finds out whether a device's virtual memory can be used, by using some.
//!
//! What a driver says of it is not enough: under WSL2 the access to memory is
//! refused that other hardware may use, though the device says that there is such
//! memory, and some virtual devices have none of it at all. So two units go
//! through all calls, side by side, which also shows whether one call unmaps both.
//!
//! The trial's own work is on a stream that orders with no other, so it waits for
//! nothing of the program's. Cost: some twenty driver calls and four pages for a
//! moment, once for each device.

use std::ffi::{CStr, c_int};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use vramalloc_core::driver::ask_until;
use vramalloc_core::{Bytes, Code};

use super::{Able, create, granule_of, let_in, reserve_addresses};
use crate::driver::capture;
use crate::driver::context::{Context, lasts};
use crate::driver::devices::Device;
use crate::driver::own_stream::OwnStream;
use crate::process::say::{Once, warn_once};
use crate::real;
use crate::types::{CUdevice, CUdeviceptr, CudaResult, MemHandle};

/// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`.
const HAS_VIRTUAL_MEMORY: c_int = 102;
/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED`.
const HAS_IT_FOR_RDMA: c_int = 110;

/// Ask for the granularity that is best for speed, not the least one.
const RECOMMENDED: c_int = 1;

/// Units that are tried.
const UNITS: usize = 2;

/// How many bytes are written on either side of the edge between them.
const WRITTEN: u64 = 64;

/// The longest that this is waited for.
const MOST: Duration = Duration::from_secs(5);

/// Why virtual memory cannot be used.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Obstacle {
    /// The device has none.
    Absent,
    /// The driver names a granularity that is no power of two.
    Granule(usize),
    /// A stream captures a graph, or the context is ending.
    Untimely,
    /// The work did not end in time; nor would it for the next context soon.
    Slow,
    /// An earlier launch has ended all work of the context.
    Broken,
    /// This call failed.
    Failed(&'static str, Code),
}

impl Obstacle {
    /// Whether it will be there for the next context too.
    pub(super) fn lasts(&self) -> bool {
        !matches!(
            self,
            Obstacle::Untimely | Obstacle::Broken | Obstacle::Failed(_, Code::OUT_OF_MEMORY)
        )
    }

    /// Tells the user; nothing where that is no news.
    pub(super) fn say(self, device: &Device) {
        let why = match self {
            Obstacle::Absent => "the device has no virtual memory".to_owned(),
            Obstacle::Granule(size) => format!("its granularity is {size} bytes"),
            Obstacle::Untimely | Obstacle::Broken => return,
            Obstacle::Slow => "the device did not end the work of a trial".to_owned(),
            Obstacle::Failed(call, code) => format!("{call} answers {}", name(code)),
        };
        let named = device.name.as_deref().unwrap_or("unknown");
        warn_once(
            Once::Mapped,
            &format!(
                "strategy:mapped is not possible on device {} ({named}): {why}; \
                 strategy:auto_growth serves",
                device.handle
            ),
        );
    }
}

/// CUDA's name of a code.
fn name(code: Code) -> String {
    let mut name = ptr::null();
    // SAFETY: writes the answer to a local; the driver looks into a table.
    let told = unsafe { real::cuGetErrorName(code.get(), &raw mut name) };
    if told != 0 || name.is_null() {
        return format!("error {}", code.get());
    }
    // SAFETY: the driver's text, which ends in zero and stays.
    let name = unsafe { CStr::from_ptr(name) };
    format!("{} ({})", name.to_string_lossy(), code.get())
}

/// Tries a device out. No capture begins meanwhile, and the context does not end.
pub(super) fn make(context: &Arc<Context>, device: CUdevice) -> Result<Able, Obstacle> {
    let mut able = Err(Obstacle::Untimely);
    // Where the context has ended, or cannot be made current, the answer stays as it is.
    let _ = context.several(|| {
        if let Some(tried) = capture::outside(|| try_out(device)) {
            able = tried;
        }
        Ok(())
    });
    able
}

fn try_out(device: CUdevice) -> Result<Able, Obstacle> {
    if attribute(device, HAS_VIRTUAL_MEMORY) != Some(1) {
        return Err(Obstacle::Absent);
    }
    let granule = granule(device)?;
    let with = |for_rdma| {
        let unmaps_runs = Pages::of(device, granule, for_rdma)?.go_round()?;
        Ok(Able {
            granule,
            unmaps_runs,
            for_rdma,
        })
    };
    if attribute(device, HAS_IT_FOR_RDMA) != Some(1) {
        return with(false);
    }
    match with(true) {
        // It would be no faster without.
        tried @ (Ok(_) | Err(Obstacle::Slow)) => tried,
        Err(_) => with(false),
    }
}

fn attribute(device: CUdevice, attribute: c_int) -> Option<c_int> {
    let mut value = 0;
    // SAFETY: writes the answer to a local.
    let told = unsafe { real::cuDeviceGetAttribute(&raw mut value, attribute, device) } == 0;
    told.then_some(value)
}

fn granule(device: CUdevice) -> Result<Bytes, Obstacle> {
    let mut granule = 0;
    let properties = super::properties(device, false);
    let asked = &raw const properties;
    // SAFETY: reads the properties and writes the answer to a local.
    let told = unsafe { real::cuMemGetAllocationGranularity(&raw mut granule, asked, RECOMMENDED) };
    checked("cuMemGetAllocationGranularity", told)?;
    granule_of(granule).ok_or(Obstacle::Granule(granule))
}

fn checked(call: &'static str, result: CudaResult) -> Result<(), Obstacle> {
    Code::check(result).map_err(|code| failed(call, code))
}

fn failed(call: &'static str, code: Code) -> Obstacle {
    if lasts(code) {
        Obstacle::Broken
    } else {
        Obstacle::Failed(call, code)
    }
}

/// The addresses and the memory of a trial. What is left of them when it is dropped
/// goes back, as far as that is possible.
struct Pages {
    at: CUdeviceptr,
    /// The size of a unit.
    size: usize,
    units: [Option<MemHandle>; UNITS],
    is_mapped: [bool; UNITS],
    /// Work may still be using them.
    is_in_use: bool,
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.is_in_use {
            // They stay as they are: nothing may be unmapped under work.
            return;
        }
        for unit in 0..UNITS {
            if self.is_mapped[unit] {
                let _ = self.unmap(unit, 1);
            }
        }
        for unit in self.units.iter_mut().filter_map(Option::take) {
            // SAFETY: a handle of the trial's.
            unsafe { real::cuMemRelease(unit) };
        }
        // What is mapped keeps its addresses.
        if self.is_mapped == [false; UNITS] {
            let _ = self.unreserve();
        }
    }
}

impl Pages {
    /// Takes addresses and memory, and puts the one behind the other.
    fn of(device: CUdevice, granule: Bytes, for_rdma: bool) -> Result<Pages, Obstacle> {
        let size = usize::try_from(granule.get()).map_err(|_| Obstacle::Granule(0))?;
        let mut pages = Pages {
            at: 0,
            size,
            units: [None; UNITS],
            is_mapped: [false; UNITS],
            is_in_use: false,
        };
        let all = UNITS * size;
        let reserved = reserve_addresses(all, granule, &mut pages.at);
        checked("cuMemAddressReserve", reserved)?;
        for number in 0..UNITS {
            let mut unit: MemHandle = 0;
            checked("cuMemCreate", create(device, for_rdma, size, &mut unit))?;
            pages.units[number] = Some(unit);
            // SAFETY: numbers that the driver checks.
            let mapped = unsafe { real::cuMemMap(pages.start(number), size, 0, unit, 0) };
            checked("cuMemMap", mapped)?;
            pages.is_mapped[number] = true;
        }
        checked("cuMemSetAccess", let_in(pages.at, all, &[device]))?;
        Ok(pages)
    }

    fn start(&self, unit: usize) -> CUdeviceptr {
        self.at + (unit * self.size) as u64
    }

    /// Writes over the edge between the units, and gives all of it back. Returns
    /// whether one call unmaps both.
    fn go_round(mut self) -> Result<bool, Obstacle> {
        self.write()?;
        let at_once = self.unmap(0, UNITS).is_ok();
        if !at_once {
            for unit in 0..UNITS {
                checked("cuMemUnmap", self.unmap(unit, 1).err().map_or(0, Code::get))?;
            }
        }
        for unit in self.units.iter_mut().filter_map(Option::take) {
            // SAFETY: a handle of the trial's.
            checked("cuMemRelease", unsafe { real::cuMemRelease(unit) })?;
        }
        checked("cuMemAddressFree", self.unreserve())?;
        Ok(at_once)
    }

    fn write(&mut self) -> Result<(), Obstacle> {
        let stream = OwnStream::make().map_err(|code| failed("cuStreamCreate", code))?;
        let edge = self.start(1) - WRITTEN;
        let size = 2 * usize::try_from(WRITTEN).unwrap_or(0);
        // SAFETY: bytes of the trial's own, on a stream that is alive.
        let written = unsafe { real::cuMemsetD8Async(edge, 0, size, stream.handle()) };
        checked("cuMemsetD8Async", written)?;
        self.is_in_use = true;
        let mut is_done = false;
        let asked = ask_until(MOST, || {
            is_done = stream.is_done()?;
            Ok(is_done)
        });
        asked.map_err(|code| failed("cuMemsetD8Async", code))?;
        self.is_in_use = !is_done;
        is_done.then_some(()).ok_or(Obstacle::Slow)
    }

    /// Takes so many units away from their addresses.
    fn unmap(&mut self, unit: usize, count: usize) -> Result<(), Code> {
        // SAFETY: nothing uses them any more.
        Code::check(unsafe { real::cuMemUnmap(self.start(unit), count * self.size) })?;
        self.is_mapped[unit..unit + count].fill(false);
        Ok(())
    }

    fn unreserve(&mut self) -> CudaResult {
        let at = std::mem::take(&mut self.at);
        if at == 0 {
            return 0;
        }
        // SAFETY: addresses of the trial's, behind which nothing is mapped.
        unsafe { real::cuMemAddressFree(at, UNITS * self.size) }
    }
}
