//! Door 2: the driver's memory functions. Everything that allocates, whatever
//! runtime it uses and however that was linked, comes by here.
//!
//! Owns nothing. Cost: the current context, a thread-local look-up, and the
//! arena's own.
//!
//! Functions of the first interface (32-bit addresses: `cuMemAlloc`,
//! `cuMemFree`) have no door: what they could hand out does not fit our
//! addresses, and what they hand out is the driver's own.

use core_arena::page_map::Owner;
use core_arena::{Address, AllocError, Bytes, Code, FreeError, MemInfo};

use crate::api::holdings;
use crate::ipc;
use crate::pools::context::{self, Arena, Asking, Home, shortage};
use crate::pools::lanes;
use crate::process::guard::{Service, own_call, service};
use crate::real;
use crate::types::{CUdeviceptr, CUstream, CudaResult};

/// The unit of a pitch: the alignment that devices want of a texture's rows,
/// and what the driver rounds a pitch to.
const PITCH: Bytes = Bytes::new(512);

pub(crate) unsafe fn cuMemAlloc_v2(address: *mut CUdeviceptr, size: usize) -> Option<CudaResult> {
    if address.is_null() || size == 0 {
        return None;
    }
    let (arena, _) = context::current()?;
    let served = allocate(arena, Bytes::new(size as u64), || {
        let mut answer: CUdeviceptr = 0;
        // SAFETY: a place for the answer.
        let result = unsafe { real::cuMemAlloc_v2(&raw mut answer, size) };
        (result, answer)
    });
    match served {
        Ok(found) => {
            // SAFETY: the caller's place for the answer.
            unsafe { *address = found.get() };
            Some(0)
        }
        Err(Refusal::Limit) => Some(Code::OUT_OF_MEMORY.get()),
        Err(Refusal::Real(result)) => Some(result),
    }
}

/// Rows are padded as the driver pads them, and the whole is a request like
/// any other: passed through it would escape the limit and the statistics.
pub(crate) unsafe fn cuMemAllocPitch_v2(
    address: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: u32,
) -> Option<CudaResult> {
    if pitch.is_null() || width == 0 || !matches!(element, 4 | 8 | 16) {
        return None;
    }
    let padded = Bytes::new(width as u64).round_up(PITCH)?.get();
    let padded = usize::try_from(padded).ok()?;
    // SAFETY: the caller's place for the address; the size is not zero, or
    // the door below asks the real function.
    let result = unsafe { cuMemAlloc_v2(address, padded.checked_mul(height)?) }?;
    if result == 0 {
        // SAFETY: the caller's place for the pitch.
        unsafe { *pitch = padded };
    }
    Some(result)
}

/// We know whose the memory is; but where no context is current the driver
/// refuses, and programs may count on that.
pub(crate) unsafe fn cuMemFree_v2(address: CUdeviceptr) -> Option<CudaResult> {
    answer_to(free_if(address, context::check_current))
}

pub(crate) fn answer_to(freed: Freed) -> Option<CudaResult> {
    match freed {
        Freed::Foreign => None,
        Freed::Done => Some(0),
        Freed::Refused(code) => Some(code.get()),
    }
}

/// Limbo waits for the whole context, so also for the work on `stream`; a block
/// of another stream's waits for it besides; what is the driver's own allocation
/// goes back in the order of the stream.
pub(crate) unsafe fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) -> Option<CudaResult> {
    // SAFETY: the caller's own arguments.
    free_in_order(address, stream, || unsafe {
        real::cuMemFreeAsync(address, stream)
    })
}

pub(crate) unsafe fn cuMemFreeAsync_ptsz(
    address: CUdeviceptr,
    stream: CUstream,
) -> Option<CudaResult> {
    let named = if stream.is_null() {
        lanes::per_thread()
    } else {
        stream
    };
    // SAFETY: the caller's own arguments.
    free_in_order(address, named, || unsafe {
        real::cuMemFreeAsync_ptsz(address, stream)
    })
}

fn free_in_order(
    address: CUdeviceptr,
    stream: CUstream,
    call: impl FnOnce() -> CudaResult,
) -> Option<CudaResult> {
    let check = || context::check_current().and_then(|()| lanes::check(stream));
    answer_to(free_by(address, check, |home, address| {
        if home.is_lane() {
            lanes::record_in(home, address, stream)?;
        }
        let marker = home.arena().driver().marker();
        home.free_in_order(address, || marker.call_from_here(call))
    }))
}

pub(crate) unsafe fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Option<CudaResult> {
    if free.is_null() && total.is_null() {
        return None;
    }
    let info = mem_info()?;
    let size = |bytes: Bytes| usize::try_from(bytes.get()).unwrap_or(usize::MAX);
    // SAFETY: each is null or the caller's place for an answer.
    unsafe {
        answer(free, size(info.free));
        answer(total, size(info.total));
    }
    Some(0)
}

/// The first interface, with 32-bit sizes.
pub(crate) unsafe fn cuMemGetInfo(free: *mut u32, total: *mut u32) -> Option<CudaResult> {
    if free.is_null() && total.is_null() {
        return None;
    }
    let info = mem_info()?;
    let size = |bytes: Bytes| u32::try_from(bytes.get()).unwrap_or(u32::MAX);
    // SAFETY: each is null or the caller's place for an answer.
    unsafe {
        answer(free, size(info.free));
        answer(total, size(info.total));
    }
    Some(0)
}

/// Writes an answer where one is wanted.
///
/// # Safety
/// `place` is null or may be written to.
pub(crate) unsafe fn answer<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *place = value };
    }
}

/// What the current context has, as the program should see it; none where
/// the driver is to say what is wrong.
fn mem_info() -> Option<MemInfo> {
    context::current_home(Asking::Door)?.mem_info().ok()
}

/// Why a request was not served.
pub(crate) enum Refusal {
    /// It would pass the option `limit`.
    Limit,
    /// The real function failed too, with this result.
    Real(CudaResult),
}

/// Memory from the arena; where the driver has none left for it, from `last`,
/// the real function, so that the failure is CUDA's own.
pub(crate) fn allocate(
    arena: &Arena,
    size: Bytes,
    last: impl FnOnce() -> (CudaResult, CUdeviceptr),
) -> Result<Address, Refusal> {
    let served = match arena.allocate(size) {
        Err(AllocError::Driver(_)) => arena.take_past(size, || {
            let (result, address) = own_call(last);
            Code::check(result).map(|()| Address::new(address))
        }),
        served => served,
    };
    served.map_err(|error| match error {
        AllocError::Limit => {
            shortage::out_of_memory(arena, size, "the option limit was reached");
            Refusal::Limit
        }
        AllocError::Driver(code) => {
            if code == Code::OUT_OF_MEMORY {
                shortage::out_of_memory(arena, size, "the device has no more");
            }
            Refusal::Real(code.get())
        }
    })
}

/// What became of an address that was to be freed.
pub(crate) enum Freed {
    /// It is not ours: the real function's business.
    Foreign,
    /// It is free.
    Done,
    /// It is ours, and this is the answer: never the real function's business.
    Refused(Code),
}

impl Freed {
    /// What became of a block that an arena was told to free, in a context with
    /// this lasting error.
    pub(crate) fn by(result: Result<(), FreeError>, error: impl FnOnce() -> Option<Code>) -> Freed {
        match result {
            Ok(()) => error().map_or(Freed::Done, Freed::Refused),
            Err(FreeError::NotLive) => Freed::Refused(Code::INVALID_VALUE),
            Err(FreeError::Driver(code)) => Freed::Refused(code),
        }
    }
}

/// Whether an address lies in memory of ours.
pub(crate) fn is_ours(address: CUdeviceptr) -> bool {
    context::owner(address) != Owner::Foreign
}

/// Frees an address, whatever context is current.
pub(crate) fn free(address: CUdeviceptr) -> Freed {
    free_if(address, || Ok(()))
}

/// The same, if `check` lets it; asked for addresses of ours alone.
fn free_if(address: CUdeviceptr, check: impl FnOnce() -> Result<(), Code>) -> Freed {
    free_by(address, check, |home, address| home.free(address))
}

/// The same by this way of freeing.
fn free_by(
    address: CUdeviceptr,
    check: impl FnOnce() -> Result<(), Code>,
    free: impl FnOnce(&Home, Address) -> Result<(), FreeError>,
) -> Freed {
    let Owner::Arena(id) = context::owner(address) else {
        return Freed::Foreign;
    };
    if service() != Service::Full {
        return Freed::Done;
    }
    if let Err(code) = check() {
        return Freed::Refused(code);
    }
    let Some(home) = context::home_with(id) else {
        return Freed::Refused(Code::INVALID_VALUE);
    };
    let address = Address::new(address);
    let freed = holdings::free_by(address, || {
        // What others know of is a part of a chunk, which no driver refuses.
        ipc::forget(address.get());
        free(home, address)
    });
    Freed::by(freed, || home.arena().driver().lasting_error())
}
