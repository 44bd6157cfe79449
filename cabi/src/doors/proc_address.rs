//! `cuGetProcAddress`: the runtime's way to every driver function.
//!
//! The real one is called first, so versions, flags, "not found" and the status
//! stay exactly its own. Then its answer is swapped by a map from real address
//! to door. The map holds the resolver itself, because the runtime asks for it
//! and uses that pointer from then on.
//!
//! What a driver asks for itself is not swapped. Only a driver that stands
//! before another comes through here, so only then the caller is looked at.
//!
//! Owns the map, made once the driver answers for the first time. Cost: a
//! binary search per look-up.

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use crate::doors::table::{Symbol, TABLE};
use crate::linker::resolve::{DRIVER_FILE, Library, driver_function, is_in_driver, loaded_files};
use crate::linker::unwind;
use crate::real;
use crate::types::{CudaResult, PROC_PER_THREAD_STREAM, Text};

/// Ends the names of twins that work on the per-thread default stream.
const PER_THREAD: &str = "_ptsz";

pub(crate) unsafe fn cuGetProcAddress(
    name: Text,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> Option<CudaResult> {
    // SAFETY: the caller's own arguments.
    let result = unsafe { real::cuGetProcAddress(name, function, version, flags) };
    // SAFETY: as above; the real function took `function` for writable.
    unsafe { swap(result, name, function) };
    Some(result)
}

pub(crate) unsafe fn cuGetProcAddress_v2(
    name: Text,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> Option<CudaResult> {
    // SAFETY: the caller's own arguments.
    let result = unsafe { real::cuGetProcAddress_v2(name, function, version, flags, status) };
    // SAFETY: as above; the real function took `function` for writable.
    unsafe { swap(result, name, function) };
    Some(result)
}

/// Puts the door in place of the real function that was found.
///
/// # Safety
/// If `result` is success, `name` was read and `function` is null or was
/// written to.
unsafe fn swap(result: CudaResult, name: Text, function: *mut *mut c_void) {
    if result != 0 || name.is_null() || function.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    let (name, found) = unsafe { (CStr::from_ptr(name), (*function).addr()) };
    if found == 0 {
        return;
    }
    let map = map();
    let Some(door) = map.door(found) else {
        return;
    };
    if map.is_chained && unwind::caller().is_some_and(is_in_driver) {
        return;
    }
    // SAFETY: as above.
    unsafe { *function = ptr::with_exposed_provenance_mut(door) };
    if name == c"cuGetProcAddress" {
        // A runtime that starts asks for this first.
        real::find_runtime();
    }
}

fn map() -> &'static Map {
    static MAP: OnceLock<Map> = OnceLock::new();
    // Made before it is put in place: no lock spans a driver call. If several
    // threads make one, one stays; they are equal.
    match MAP.get() {
        Some(map) => map,
        None => {
            let map = Map::of_driver();
            MAP.get_or_init(|| map)
        }
    }
}

/// Real addresses and their doors.
struct Map {
    /// Sorted by the first.
    pairs: Vec<(usize, usize)>,
    /// The driver that the program finds stands before another.
    is_chained: bool,
}

impl Map {
    /// The map of the loaded driver. A function is entered under its exported
    /// address, and under the one that the resolver gives for the same ABI, in
    /// case that one is not exported.
    fn of_driver() -> Map {
        let drivers = || {
            TABLE
                .iter()
                .filter(|symbol| symbol.library == Library::Driver)
        };
        let entered = |find: fn(&Symbol) -> Option<usize>| {
            drivers().filter_map(move |symbol| Some((find(symbol)?, symbol.door.address())))
        };
        let mut map = Map::new(entered(exported).chain(entered(resolved)));
        map.is_chained = loaded_files(DRIVER_FILE).len() > 1;
        map
    }

    /// A map in which the first of several pairs with one address stays.
    fn new(pairs: impl Iterator<Item = (usize, usize)>) -> Map {
        let mut pairs: Vec<_> = pairs.collect();
        pairs.sort_by_key(|pair| pair.0);
        pairs.dedup_by_key(|pair| pair.0);
        Map {
            pairs,
            is_chained: false,
        }
    }

    fn door(&self, address: usize) -> Option<usize> {
        let index = self.pairs.binary_search_by_key(&address, |pair| pair.0);
        self.pairs.get(index.ok()?).map(|pair| pair.1)
    }
}

/// The address at which the driver exports the symbol.
fn exported(symbol: &Symbol) -> Option<usize> {
    driver_function(&CString::new(symbol.name).ok()?)
}

/// The address that the driver's resolver gives for the symbol.
fn resolved(symbol: &Symbol) -> Option<usize> {
    let (base, flags) = request(symbol.name);
    let base = CString::new(base).ok()?;
    let mut found = ptr::null_mut();
    let mut status = 0;
    // SAFETY: a name ending in zero and places for the answers.
    let mut result = unsafe {
        real::cuGetProcAddress_v2(
            base.as_ptr(),
            &raw mut found,
            symbol.since,
            flags,
            &raw mut status,
        )
    };
    if result == crate::linker::resolve::MISSING {
        // SAFETY: as above.
        result =
            unsafe { real::cuGetProcAddress(base.as_ptr(), &raw mut found, symbol.since, flags) };
    }
    (result == 0 && !found.is_null()).then(|| found.addr())
}

/// The base name and the flags by which the resolver knows an ABI name.
fn request(name: &str) -> (&str, u64) {
    let (plain, flags) = match name.strip_suffix(PER_THREAD) {
        Some(plain) => (plain, PROC_PER_THREAD_STREAM),
        None => (name, 0),
    };
    let (base, version) = plain.rsplit_once("_v").unwrap_or((plain, ""));
    let is_version = !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit());
    (if is_version { base } else { plain }, flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abi_names_become_requests() {
        assert_eq!(request("cuMemAlloc_v2"), ("cuMemAlloc", 0));
        assert_eq!(request("cuMemFreeAsync_ptsz"), ("cuMemFreeAsync", 2));
        assert_eq!(
            request("cuStreamBeginCapture_v2_ptsz"),
            ("cuStreamBeginCapture", 2)
        );
        assert_eq!(request("cuGetProcAddress"), ("cuGetProcAddress", 0));
        assert_eq!(request("cuCtxCreate_v4"), ("cuCtxCreate", 0));
        assert_eq!(request("cuEvent_vendor"), ("cuEvent_vendor", 0));
    }

    #[test]
    fn the_map_answers_for_its_addresses_alone() {
        let map = Map::new([(30, 3), (10, 1), (20, 2), (10, 0)].into_iter());
        assert_eq!(map.door(10), Some(1));
        assert_eq!(map.door(30), Some(3));
        assert_eq!(map.door(15), None);
    }
}
