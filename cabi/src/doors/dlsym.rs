//! The exported `dlsym`.
//!
//! All look-ups of the process pass here, so it takes no lock, allocates
//! nothing and reads no environment. It must also leave no trace: a look-up
//! relative to its caller (`RTLD_NEXT`, `RTLD_DEFAULT`) has to see the true
//! caller, and a failure has to leave `dlerror` as the real one leaves it. So
//! the export is a naked function that *tail-jumps* to the next `dlsym`. Only
//! if the answer is known to be a driver function that has a door does it
//! return that door instead.
//!
//! The next one is the real one, or another preloaded library's: the one that
//! the program would reach without us. A library that exports `dlsym` and
//! stands before us may hide the swap, and if we were opened late no look-ups
//! pass here: [`reach`](crate::real::reach) says so, and then the runtime's
//! doors hand everything on.
//!
//! Two functions of NVML are swapped as well ([`nvml`]).
//!
//! What a driver looks up for itself is never swapped. A driver that only
//! stands before another (a shim for virtual GPUs) fills its table in this way,
//! so functions of the other one are left alone, whoever asks.
//!
//! Cost: a few instructions for names that are not ours; a second real
//! look-up for those that are.
//!
//! On processors other than x86-64 the symbol is not exported: there the
//! runtime's doors and programs linked with the driver still reach us.

use std::ffi::{CStr, c_void};
use std::ptr;

use crate::doors::nvml;
use crate::doors::table::driver_symbol;
use crate::linker::resolve::{driver_function, is_in_driver, next_dlsym, real_dlsym};
use crate::types::Text;

/// What the naked function does next. Two words, so that it comes back in
/// two registers.
#[repr(C)]
pub(crate) struct Choice {
    /// Where to jump.
    next: usize,
    /// What to return instead; 0: jump.
    replacement: usize,
}

/// Used if there is no real `dlsym`.
unsafe extern "C" fn no_dlsym(_handle: *mut c_void, _name: Text) -> *mut c_void {
    ptr::null_mut()
}

/// Decides for the naked function. `caller` is its return address.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
unsafe extern "C" fn choose(handle: *mut c_void, name: Text, caller: usize) -> Choice {
    // SAFETY: the caller's promise to dlsym: a handle, and a name ending in
    // zero or null.
    let replacement = unsafe { replacement(handle, name, caller) };
    Choice {
        next: next_dlsym().unwrap_or(no_dlsym) as *const () as usize,
        replacement: replacement.unwrap_or(0),
    }
}

/// The door to return instead of what `dlsym` would.
unsafe fn replacement(handle: *mut c_void, name: Text, caller: usize) -> Option<usize> {
    if name.is_null() {
        return None;
    }
    // SAFETY: the name ends in zero.
    if unsafe { *name.cast::<u8>() } == b'n' {
        // SAFETY: as above, and the handle is the caller's.
        return unsafe { nvml::replacement(handle, CStr::from_ptr(name), caller) };
    }
    if handle == libc::RTLD_DEFAULT || handle == libc::RTLD_NEXT {
        return None;
    }
    // SAFETY: the name ends in zero; each byte is read only after those
    // before it were found not to be its end.
    let may_be_ours = unsafe {
        *name.cast::<u8>() == b'c'
            && *name.cast::<u8>().add(1) == b'u'
            && (*name.cast::<u8>().add(2)).is_ascii_uppercase()
    };
    if !may_be_ours {
        return None;
    }
    // SAFETY: the name ends in zero.
    let symbol = driver_symbol(unsafe { CStr::from_ptr(name) }.to_bytes())?;
    // SAFETY: the same arguments as the caller's. With a true handle the
    // answer does not depend on who asks.
    let found = unsafe { real_dlsym()?(handle, name) }.addr();
    if found == 0 || !is_in_driver(found) || is_in_driver(caller) {
        return None;
    }
    // SAFETY: as above.
    let own = driver_function(unsafe { CStr::from_ptr(name) });
    (own == Some(found)).then(|| symbol.door.address())
}

/// `dlsym` for the whole process.
// At entry the stack is 8 bytes off a multiple of 16; two pushes and 8 bytes
// more put it right for the call, and the return address 24 bytes up. The
// directives let debuggers and profilers unwind through it.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn dlsym(handle: *mut c_void, name: Text) -> *mut c_void {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "mov rdx, [rsp + 24]",
        "call {choose}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "test rdx, rdx",
        "jnz 2f",
        "jmp rax",
        "2:",
        "mov rax, rdx",
        "ret",
        ".cfi_endproc",
        choose = sym choose,
    )
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn it_finds_what_the_real_one_finds() {
        // SAFETY: the real dlsym's arguments.
        unsafe {
            let found = dlsym(libc::RTLD_DEFAULT, c"getpid".as_ptr());
            assert_eq!(found.addr(), libc::getpid as *const () as usize);
            assert!(dlsym(libc::RTLD_DEFAULT, c"no_such_name".as_ptr()).is_null());
            let own = libc::dlopen(ptr::null(), libc::RTLD_LAZY);
            for name in [c"c", c"cu", c"cuMemAlloc_v2", c"cudaMalloc", c""] {
                assert!(dlsym(own, name.as_ptr()).is_null(), "{name:?}");
            }
        }
    }

    #[test]
    fn a_failure_reads_as_the_real_ones() {
        let error_after = |look_up: &dyn Fn() -> *mut c_void| {
            assert!(look_up().is_null());
            // SAFETY: dlerror returns a string ending in zero, or null.
            let text = unsafe { libc::dlerror() };
            assert!(!text.is_null());
            // SAFETY: as above.
            unsafe { CStr::from_ptr(text) }.to_owned()
        };
        // SAFETY: a handle of the process itself, never closed.
        let own = unsafe { libc::dlopen(ptr::null(), libc::RTLD_LAZY) };
        for name in [c"no_such_name", c"cuMemAlloc_v2"] {
            // SAFETY: the arguments that dlsym wants.
            let ours = error_after(&|| unsafe { dlsym(own, name.as_ptr()) });
            // SAFETY: as above.
            let theirs = error_after(&|| unsafe { real_dlsym().unwrap()(own, name.as_ptr()) });
            assert_eq!(ours, theirs);
        }
    }
}
