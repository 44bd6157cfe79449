//! Removes functions from the library's symbol table, so that a driver which
//! lacks them lacks them for `dlsym` too.
//!
//! Invariant: it runs once, when the library is loaded, before any code has
//! looked up a symbol.

use std::ffi::{c_int, c_void};

use crate::table;

/// Asks for the symbol's own entry.
const SYMBOL: c_int = 1;

unsafe extern "C" {
    fn dladdr1(
        address: *const c_void,
        info: *mut libc::Dl_info,
        extra: *mut *mut c_void,
        flags: c_int,
    ) -> c_int;
}

extern "C" fn at_the_beginning() {
    for address in table::lacking() {
        hide(address);
    }
}

// SAFETY: the loader calls what stands in this section, with arguments that we
// do not read.
#[unsafe(link_section = ".init_array")]
#[used]
static AT_THE_BEGINNING: extern "C" fn() = at_the_beginning;

fn hide(address: *const c_void) {
    let mut entry: *mut c_void = std::ptr::null_mut();
    // SAFETY: all bytes of this plain struct may be zero.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: both results are ours; the address is one of our functions.
    let found = unsafe { dladdr1(address, &raw mut info, &raw mut entry, SYMBOL) };
    if found == 0 || entry.is_null() || info.dli_saddr.cast_const() != address {
        return;
    }
    const PAGE: usize = 4096;
    let start = entry as usize & !(PAGE - 1);
    let end = (entry as usize + size_of::<libc::Elf64_Sym>()).next_multiple_of(PAGE);
    let open = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the pages of our own symbol table, which is a private mapping.
    if unsafe { libc::mprotect(start as *mut c_void, end - start, open) } != 0 {
        return;
    }
    let symbol = entry.cast::<libc::Elf64_Sym>();
    // SAFETY: the loader gave us this entry, it can be written now, and no
    // other thread knows this library yet.
    unsafe {
        (*symbol).st_value = 0;
        (*symbol).st_shndx = 0;
        libc::mprotect(start as *mut c_void, end - start, libc::PROT_READ);
    }
}
