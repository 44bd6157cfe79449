//! Finding the real functions, without loading a CUDA library: the program
//! does that, unless it asks the C API for a device's memory first.
//!
//! A plain `dlsym` inside this library would be our own export, so every
//! look-up here goes through the real one. Invariant: what is found is never
//! one of our doors. Cost: one look-up per function, then one atomic load;
//! the libraries that are found are held open for the life of the process.

use std::ffi::{CStr, CString, c_char, c_void};
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::callers;
use crate::objects::{self, Object};
use crate::symbols::{self, Library};
use crate::types::CudaResult;

/// What a function answers that is not there: "not supported", as the driver
/// and the runtime both name it.
pub(crate) const MISSING: CudaResult = 801;

/// The names that glibc gives the version of its `dlsym`, the newest first.
const DLSYM_VERSIONS: [&CStr; 3] = [c"GLIBC_2.34", c"GLIBC_2.17", c"GLIBC_2.2.5"];

/// The prototype of `dlsym`.
pub(crate) type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// A function of a real library, found when it is first wanted. `F` is its
/// prototype, a function pointer.
pub(crate) struct Real<F> {
    library: Library,
    name: &'static CStr,
    // 0: not found yet. Relaxed throughout: it is the address of code, which
    // was there before it could be found.
    address: AtomicUsize,
    prototype: PhantomData<F>,
}

impl<F: Copy> Real<F> {
    pub(crate) const fn new(library: Library, name: &'static CStr) -> Real<F> {
        const { assert!(size_of::<F>() == size_of::<usize>()) };
        Real {
            library,
            name,
            address: AtomicUsize::new(0),
            prototype: PhantomData,
        }
    }

    /// The function, if its library is loaded and has it.
    pub(crate) fn get(&self) -> Option<F> {
        let mut address = self.address.load(Ordering::Relaxed);
        if address == 0 {
            address = match self.library {
                Library::Driver => driver_function(self.name)?,
                Library::Runtime => runtime_function(self.name)?,
            };
            self.address.store(address, Ordering::Relaxed);
        }
        // SAFETY: found under the function's name.
        Some(unsafe { Self::at(address) })
    }

    /// The same; of the runtimes in the process, that of the library which
    /// called the door.
    pub(crate) fn of_caller(&self) -> Option<F> {
        if self.library == Library::Runtime
            && let Some(address) = callers::function(self.name)
        {
            // SAFETY: found under the function's name.
            return Some(unsafe { Self::at(address) });
        }
        self.get()
    }

    /// The function at an address.
    ///
    /// # Safety
    /// It was found under the function's name, to which the symbol table gives
    /// this prototype.
    unsafe fn at(address: usize) -> F {
        // SAFETY: F is a function pointer of one word (asserted above), and
        // the address is not zero; the rest is the caller's promise.
        unsafe { std::mem::transmute_copy::<usize, F>(&address) }
    }
}

/// The real `dlsym`, that of libc: a look-up of its version passes over those
/// that other preloaded libraries may export.
pub(crate) fn real_dlsym() -> Option<Dlsym> {
    static FOUND: AtomicUsize = AtomicUsize::new(0);
    dlsym_at(&FOUND, || {
        DLSYM_VERSIONS
            .iter()
            .map(|version| {
                // SAFETY: both strings end in zero; dlvsym is not intercepted.
                unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) }
            })
            .find(|found| !found.is_null())
    })
}

/// The next `dlsym` after ours, which the program would reach without us:
/// another preloaded library's, or else the real one.
pub(crate) fn next_dlsym() -> Option<Dlsym> {
    static FOUND: AtomicUsize = AtomicUsize::new(0);
    dlsym_at(&FOUND, || {
        // SAFETY: a pseudo handle and a name ending in zero.
        Some(unsafe { real_dlsym()?(libc::RTLD_NEXT, c"dlsym".as_ptr()) })
    })
}

/// The `dlsym` whose address is in `place`, found by `find` the first time.
fn dlsym_at(place: &AtomicUsize, find: impl FnOnce() -> Option<*mut c_void>) -> Option<Dlsym> {
    let mut address = place.load(Ordering::Relaxed);
    if address == 0 {
        address = find()?.addr();
        place.store(address, Ordering::Relaxed);
    }
    // SAFETY: the address is null or that of a function named dlsym; a
    // function pointer has a niche for null.
    unsafe { std::mem::transmute::<usize, Option<Dlsym>>(address) }
}

/// Looks `name` up in the library of `handle`, or after ourselves for
/// `RTLD_NEXT`; never finds one of our doors.
pub(crate) fn look_up(handle: *mut c_void, name: &CStr) -> Option<usize> {
    let dlsym = real_dlsym()?;
    // SAFETY: the handle is a pseudo handle or one that dlopen returned and
    // nothing closes; the name ends in zero.
    let found = unsafe { dlsym(handle, name.as_ptr()) }.addr();
    (found != 0 && !symbols::is_door(found)).then_some(found)
}

/// The handle of the library at `path`, if it is loaded; it stays open.
fn loaded(path: &CStr) -> Option<*mut c_void> {
    // SAFETY: the path ends in zero; RTLD_NOLOAD runs no constructor.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    (!handle.is_null()).then_some(handle)
}

/// A function of the loaded driver.
pub(crate) fn driver_function(name: &CStr) -> Option<usize> {
    static DRIVER: AtomicUsize = AtomicUsize::new(0);
    let mut handle = DRIVER.load(Ordering::Relaxed);
    if handle == 0 {
        handle = loaded(c"libcuda.so.1")
            .or_else(|| {
                loaded_files(b"libcuda.so")
                    .iter()
                    .find_map(|path| loaded(path))
            })?
            .expose_provenance();
        DRIVER.store(handle, Ordering::Relaxed);
    }
    look_up(ptr::with_exposed_provenance_mut(handle), name)
}

/// Whether there is a driver.
pub(crate) fn driver_is_loaded() -> bool {
    driver_function(c"cuInit").is_some()
}

/// Loads the driver for a program that has asked for a device's memory before
/// anything else of CUDA; false where there is none.
pub(crate) fn load_driver() -> bool {
    // SAFETY: the name ends in zero; what is loaded stays.
    let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    !handle.is_null()
}

/// A function of a loaded runtime: the next one in the order of the linker,
/// or else that of a runtime which was loaded for some library alone. Whoever
/// makes a wheel may have renamed it or put it inside another library, so in
/// the end every library is asked: the call came from somewhere.
fn runtime_function(name: &CStr) -> Option<usize> {
    look_up(libc::RTLD_NEXT, name)
        .or_else(|| function_of(b"libcudart", name))
        .or_else(|| function_of(b"", name))
}

/// A function of a loaded library whose file name starts with `prefix`.
pub(crate) fn function_of(prefix: &[u8], name: &CStr) -> Option<usize> {
    let paths = loaded_files(prefix);
    let mut handles = paths.iter().filter_map(|path| loaded(path));
    handles.find_map(|handle| look_up(handle, name))
}

/// Paths of the loaded libraries whose file name starts with `prefix`.
pub(crate) fn loaded_files(prefix: &[u8]) -> Vec<CString> {
    let paths = objects::loaded().into_iter().map(|object| object.path);
    paths
        .filter(|path| file_name(path).starts_with(prefix))
        .collect()
}

/// What lies around an address: its range, and its handle if it is a library.
pub(crate) fn object_around(address: usize) -> Option<(Range<usize>, Option<*mut c_void>)> {
    let Object { path, range, .. } = objects::around(address)?;
    // The program's own name is empty.
    let handle = (!path.is_empty()).then(|| loaded(&path)).flatten();
    Some((range, handle))
}

/// What follows the last slash of a path.
fn file_name(path: &CStr) -> &[u8] {
    let path = path.to_bytes();
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

/// The driver library as an address lies in it: where it was loaded, if the
/// address belongs to a file named like the driver.
pub(crate) fn driver_around(address: usize) -> Option<usize> {
    let (base, path) = library_around(address)?;
    file_name(path).starts_with(b"libcuda.so").then_some(base)
}

/// Where the library around an address was loaded.
pub(crate) fn base_around(address: usize) -> Option<usize> {
    library_around(address).map(|(base, _)| base)
}

fn library_around(address: usize) -> Option<(usize, &'static CStr)> {
    let info = objects::info(address)?;
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the linker's name of a loaded library, which ends in zero. The
    // caller holds an address inside that library, so it stays loaded while
    // the caller looks at the name.
    let path = unsafe { CStr::from_ptr(info.dli_fname) };
    Some((info.dli_fbase.addr(), path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_real_dlsym_is_found_and_is_not_ours() {
        let dlsym = real_dlsym().unwrap();
        assert_ne!(dlsym as usize, crate::dlsym::dlsym as *const () as usize);
        assert!(look_up(libc::RTLD_DEFAULT, c"getpid").is_some());
    }

    #[test]
    fn without_cuda_nothing_is_found_and_nothing_is_loaded() {
        assert_eq!(driver_function(c"cuInit"), None);
        assert_eq!(runtime_function(c"cudaMalloc"), None);
        assert!(loaded_files(b"libcuda").is_empty());
        assert!(!loaded_files(b"libc.so").is_empty());
    }

    #[test]
    fn an_address_is_placed_in_its_library() {
        assert_eq!(driver_around(libc::getpid as *const () as usize), None);
        assert!(base_around(libc::getpid as *const () as usize).is_some());
        assert_eq!(base_around(8), None);
        assert_eq!(file_name(c"/a/b.so"), b"b.so");
        assert_eq!(file_name(c"b.so"), b"b.so");
    }
}
