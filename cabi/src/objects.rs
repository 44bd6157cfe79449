//! The program and the libraries that are loaded, as the linker knows them.
//!
//! Owns nothing: what is asked is asked of the linker. Cost: a walk over its
//! list, or a search through the symbols of one library.

use std::ffi::{CStr, CString, c_int, c_void};
use std::ops::Range;
use std::{ptr, slice};

/// The program or a library.
pub(crate) struct Object {
    /// Its path; the program's own is empty.
    pub(crate) path: CString,
    /// What its addresses in memory have more than those in its file.
    pub(crate) bias: usize,
    /// Where it lies in memory.
    pub(crate) range: Range<usize>,
}

/// Everything that is loaded, in the linker's order.
pub(crate) fn loaded() -> Vec<Object> {
    unsafe extern "C" fn visit(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        data: *mut c_void,
    ) -> c_int {
        // SAFETY: the linker passes a valid entry, and our list, which only
        // this callback touches while the walk goes on.
        let (info, objects) = unsafe { (&*info, &mut *data.cast::<Vec<Object>>()) };
        if info.dlpi_phdr.is_null() || info.dlpi_name.is_null() {
            return 0;
        }
        // SAFETY: the linker's table of as many headers as it says.
        let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let parts = headers.iter().filter(|h| h.p_type == libc::PT_LOAD);
        let at = |offset: u64| usize::try_from(info.dlpi_addr.wrapping_add(offset)).unwrap_or(0);
        let start = parts.clone().map(|h| at(h.p_vaddr)).min();
        let end = parts.map(|h| at(h.p_vaddr + h.p_memsz)).max();
        objects.push(Object {
            // SAFETY: the linker's names end in zero.
            path: unsafe { CStr::from_ptr(info.dlpi_name) }.to_owned(),
            bias: at(0),
            range: start.unwrap_or(0)..end.unwrap_or(0),
        });
        0
    }
    let mut objects: Vec<Object> = Vec::new();
    // SAFETY: the callback has the prototype asked for, and the list lives
    // until the walk is over.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut objects).cast()) };
    objects
}

/// What lies around an address.
pub(crate) fn around(address: usize) -> Option<Object> {
    loaded()
        .into_iter()
        .find(|object| object.range.contains(&address))
}

/// What the linker says of an address in something that is loaded.
pub(crate) fn info(address: usize) -> Option<libc::Dl_info> {
    let mut info = libc::Dl_info {
        dli_fname: ptr::null(),
        dli_fbase: ptr::null_mut(),
        dli_sname: ptr::null(),
        dli_saddr: ptr::null_mut(),
    };
    // SAFETY: dladdr takes any address and fills the record where it answers
    // other than 0.
    let known = unsafe { libc::dladdr(ptr::without_provenance(address), &raw mut info) } != 0;
    known.then_some(info)
}

/// The exported function that an address lies in.
pub(crate) fn function_around(address: usize) -> Option<String> {
    let name = info(address)?.dli_sname;
    if name.is_null() {
        return None;
    }
    // SAFETY: a name in the tables of a library that was there a moment ago;
    // nobody closes libraries at the end of a process.
    let name = unsafe { CStr::from_ptr(name) };
    Some(name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_placed() {
        let here = an_address_is_placed as *const () as usize;
        let own = around(here).unwrap();
        assert!(own.path.is_empty() && here > own.bias);
        let there = libc::getpid as *const () as usize;
        assert!(around(there).unwrap().path.to_bytes().ends_with(b".so.6"));
        // By one of its names.
        assert!(function_around(there).unwrap().ends_with("getpid"));
        assert!(around(8).is_none() && function_around(8).is_none());
    }
}
