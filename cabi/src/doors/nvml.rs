//! NVML's functions that tell how much memory a device has.
//!
//! Programs size what they take by NVML as well as by CUDA, so both have to
//! agree with the limit. NVML is reached by `dlopen` and `dlsym` (PyTorch,
//! llama.cpp, Python's ctypes), so our `dlsym` gives out the functions here in
//! place of NVML's own. They are not exported: a process without NVML finds
//! none, and one that is linked with NVML, which hardly any program is, hears
//! NVML's own answers.
//!
//! The real function is called first, and its answer is changed only where it
//! succeeded, a limit is in force on that device, and the option `nvml` says
//! so. Devices are told apart by their UUID, since NVML's order is not CUDA's;
//! that of a part of a device names the part. The lists of processes stay.
//!
//! Owns the addresses of the real functions, those of the library that was
//! looked in last: NVML may be unloaded and come back elsewhere. Cost: for a
//! name of NVML's that is swapped two more look-ups; for an answer, one more
//! call to NVML.

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use vramalloc_core::{Bytes, MemInfo};

use crate::linker::resolve::{is_in_driver, is_in_nvml, real_dlsym};
use crate::pools::device;
use crate::process;
use crate::process::guard::{self, Entry, Passed, own_call};
use crate::types::{CudaResult, Text};

/// NVML's answer where a function is missing.
const FUNCTION_NOT_FOUND: CudaResult = 13;

/// The space that NVML asks for a UUID, as text ending in zero.
const LONGEST: usize = 96;

/// NVML's handle of a device.
type Handle = *mut c_void;

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Copy, Clone)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`; `total` is the sum of the others.
#[repr(C)]
#[derive(Copy, Clone)]
struct Memory2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

type Asks<T> = unsafe extern "C" fn(Handle, *mut T) -> CudaResult;
type Names = unsafe extern "C" fn(Handle, *mut c_char, c_uint) -> CudaResult;

/// A function of NVML, or null. Relaxed throughout: it is the address of code,
/// which was there before it could be found.
struct Real(AtomicUsize);

impl Real {
    const fn new() -> Real {
        Real(AtomicUsize::new(0))
    }

    fn set(&self, address: usize) {
        self.0.store(address, Ordering::Relaxed);
    }

    /// # Safety
    /// `F` is a function pointer, to the prototype that NVML gives this name.
    unsafe fn get<F: Copy>(&self) -> Option<F> {
        const { assert!(size_of::<Option<F>>() == size_of::<usize>()) };
        let address = self.0.load(Ordering::Relaxed);
        // SAFETY: null, which is `None`, or found under the name; the rest is
        // the caller's promise.
        unsafe { std::mem::transmute_copy::<usize, Option<F>>(&address) }
    }
}

static INFO: Real = Real::new();
static INFO_2: Real = Real::new();
static UUID: Real = Real::new();
static PASSED: Passed = Passed::unnoted();

/// What `dlsym` gives in place of what it found for `caller`.
///
/// # Safety
/// The handle is one that `dlsym` takes.
pub(crate) unsafe fn replacement(handle: Handle, name: &CStr, caller: usize) -> Option<usize> {
    let (real, door) = match name.to_bytes() {
        b"nvmlDeviceGetMemoryInfo" => (&INFO, memory_info as *const () as usize),
        b"nvmlDeviceGetMemoryInfo_v2" => (&INFO_2, memory_info_2 as *const () as usize),
        _ => return None,
    };
    // Its answer depends on who asks.
    if handle == libc::RTLD_NEXT {
        return None;
    }
    let dlsym = real_dlsym()?;
    let find = |name: Text| {
        // SAFETY: the caller's handle and a name ending in zero.
        let found = unsafe { dlsym(handle, name) }.addr();
        (found != 0 && is_in_nvml(found)).then_some(found)
    };
    let found = find(name.as_ptr())?;
    if is_in_driver(caller) {
        return None;
    }
    UUID.set(find(c"nvmlDeviceGetUUID".as_ptr())?);
    real.set(found);
    Some(door)
}

/// `nvmlDeviceGetMemoryInfo`.
unsafe extern "C" fn memory_info(device: Handle, to: *mut Memory) -> CudaResult {
    // SAFETY: the caller's own arguments, for NVML's function.
    unsafe {
        ask(&INFO, device, to, |told| Memory {
            total: told.0.total.get(),
            free: told.0.free.get(),
            used: (told.0.total).saturating_sub(told.0.free).get(),
        })
    }
}

/// `nvmlDeviceGetMemoryInfo_v2`.
unsafe extern "C" fn memory_info_2(device: Handle, to: *mut Memory2) -> CudaResult {
    // SAFETY: as above.
    unsafe {
        ask(&INFO_2, device, to, |(MemInfo { free, total }, real)| {
            let taken = total.saturating_sub(free);
            let reserved = taken.min(Bytes::new(real.reserved));
            Memory2 {
                total: total.get(),
                reserved: reserved.get(),
                free: free.get(),
                used: taken.saturating_sub(reserved).get(),
                ..real
            }
        })
    }
}

/// What NVML's functions tell.
trait Told: Copy {
    fn info(self) -> MemInfo;
}

impl Told for Memory {
    fn info(self) -> MemInfo {
        info(self.free, self.total)
    }
}

impl Told for Memory2 {
    fn info(self) -> MemInfo {
        info(self.free, self.total)
    }
}

fn info(free: u64, total: u64) -> MemInfo {
    MemInfo {
        free: Bytes::new(free),
        total: Bytes::new(total),
    }
}

/// Calls the real function, and changes its answer to what the limit leaves.
///
/// # Safety
/// The arguments are those that NVML's function takes.
unsafe fn ask<T: Told>(
    real: &Real,
    device: Handle,
    to: *mut T,
    limited: impl FnOnce((MemInfo, T)) -> T,
) -> CudaResult {
    // SAFETY: both functions have this prototype.
    let Some(call) = (unsafe { real.get::<Asks<T>>() }) else {
        return FUNCTION_NOT_FOUND;
    };
    // SAFETY: the caller's promise.
    let result = own_call(|| unsafe { call(device, to) });
    if result != 0 {
        return result;
    }
    let _unchanged = guard::enter(Entry::serve, &PASSED, || {
        // SAFETY: NVML has just written there.
        let said = unsafe { *to };
        if process::options_unbegun(|loaded| loaded.settings.families.nvml) {
            let told = device::told(uuid(device)?, said.info())?;
            // SAFETY: as above.
            unsafe { *to = limited((told, said)) };
        }
        None
    });
    result
}

/// The number of a device, as CUDA has it.
fn uuid(device: Handle) -> Option<u128> {
    let mut text: [c_char; LONGEST] = [0; LONGEST];
    // SAFETY: NVML gives this name this prototype.
    let name: Names = unsafe { UUID.get() }?;
    let length = c_uint::try_from(LONGEST - 1).ok()?;
    // SAFETY: the buffer has more room than that; its last byte stays zero.
    let result = own_call(|| unsafe { name(device, text.as_mut_ptr(), length) });
    if result != 0 {
        return None;
    }
    // SAFETY: the text ends in zero at the latest in its last byte.
    number(unsafe { CStr::from_ptr(text.as_ptr()) }.to_str().ok()?)
}

/// The number behind `GPU-` or, of a part of a device, `MIG-`.
fn number(uuid: &str) -> Option<u128> {
    let (kind, digits) = uuid.split_once('-')?;
    let digits: String = digits.chars().filter(|&c| c != '-').collect();
    let is_one = matches!(kind, "GPU" | "MIG") && digits.len() == 32;
    (is_one && !digits.starts_with('+'))
        .then(|| u128::from_str_radix(&digits, 16).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_a_number() {
        let device = "GPU-73696d75-6c61-7465-642d-677000000001";
        assert_eq!(
            number(device).map(u128::to_be_bytes),
            Some(*b"simulated-gp\0\0\0\x01")
        );
        let part = device.replace("GPU", "MIG");
        assert_eq!(number(&part), number(device));
        // The old form names a part by its device's number, and two more.
        for other in [
            "",
            "GPU-",
            "MIG-GPU-73696d75-6c61-7465-642d-677000000001/1/0",
        ] {
            assert_eq!(number(other), None, "{other}");
        }
    }
}
