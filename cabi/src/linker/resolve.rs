//! Finds the real functions without loading a CUDA library: the program loads
//! them, unless its first request is for device memory from the C API.
//!
//! A plain `dlsym` inside this library would be our own export, so every
//! look-up here goes through the real one. Invariant: no function found here is
//! one of ours. The driver and a runtime that were found stay loaded for the
//! life of the process; a library that calls us is never held. Cost: one
//! look-up per function, then one atomic load.
//!
//! A look-up takes the linker's lock, which is held while constructors run, and
//! a constructor may wait for a thread that calls us. So all functions are
//! found as soon as the first context is seen ([`crate::real::find_all`]).

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::callers;
use super::objects::{self, file_name};
use crate::types::CudaResult;

/// Which library a function belongs to.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Library {
    /// `libcuda.so`: also swapped in `dlsym` and `cuGetProcAddress`.
    Driver,
    /// `libcudart.so`: reached by its exported name alone.
    Runtime,
}

/// The result of a function that is missing: "not supported", as both the
/// driver and the runtime name it.
pub(crate) const MISSING: CudaResult = 801;

/// Stands for the address of a function that the driver lacks.
const ABSENT: usize = 1;

/// The versions under which glibc exports its `dlsym`, the newest first.
const DLSYM_VERSIONS: [&CStr; 3] = [c"GLIBC_2.34", c"GLIBC_2.17", c"GLIBC_2.2.5"];

/// How the file names of drivers begin.
pub(crate) const DRIVER_FILE: &[u8] = b"libcuda.so";

/// How the file names of NVML begin.
const NVML_FILE: &[u8] = b"libnvidia-ml.so";

/// The prototype of `dlsym`.
pub(crate) type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// A function of a real library, found when it is first wanted. `F` is its
/// prototype, a function pointer.
pub(crate) struct Real<F> {
    library: Library,
    name: &'static CStr,
    // 0: not found yet; or `ABSENT`. Relaxed throughout: it is the address of
    // code, which was there before it could be found.
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

    /// The function, if it was found before.
    #[inline(always)]
    pub(crate) fn known(&self) -> Option<F> {
        let address = self.address.load(Ordering::Relaxed);
        if address <= ABSENT {
            return None;
        }
        // SAFETY: found under the function's name.
        Some(unsafe { Self::at(address) })
    }

    /// The function, which was found before.
    ///
    /// # Safety
    /// It was, and whoever found it has told the calling thread since.
    #[inline(always)]
    pub(crate) unsafe fn found(&self) -> F {
        // SAFETY: found under the function's name, so it has been noted.
        unsafe { Self::at(self.address.load(Ordering::Relaxed)) }
    }

    /// The function, if its library is loaded and has it.
    pub(crate) fn get(&self) -> Option<F> {
        let address = self.address.load(Ordering::Relaxed);
        if address <= ABSENT {
            return self.find();
        }
        // SAFETY: found under the function's name.
        Some(unsafe { Self::at(address) })
    }

    #[cold]
    fn find(&self) -> Option<F> {
        if self.address.load(Ordering::Relaxed) == ABSENT {
            return None;
        }
        let found = match self.library {
            Library::Driver => {
                // A function that the driver lacks now it will not have later.
                let driver = driver()?;
                Some(look_up(driver, self.name).unwrap_or(ABSENT))
            }
            Library::Runtime => runtime_function(self.name),
        };
        let address = found?;
        self.address.store(address, Ordering::Relaxed);
        // SAFETY: found under the function's name.
        (address != ABSENT).then(|| unsafe { Self::at(address) })
    }

    /// Returns the function of the caller's own runtime if it has one, else
    /// that of [`get`](Self::get).
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

/// The real `dlsym`, that of libc. A look-up by version passes over any `dlsym`
/// of other preloaded libraries.
pub(crate) fn real_dlsym() -> Option<Dlsym> {
    static FOUND: AtomicUsize = AtomicUsize::new(0);
    let address = found_once(&FOUND, || of_libc(c"dlsym"))?;
    // SAFETY: a function named dlsym.
    Some(unsafe { std::mem::transmute::<usize, Dlsym>(address) })
}

/// The C library's own function of a name that we export too.
fn of_libc(name: &CStr) -> Option<usize> {
    DLSYM_VERSIONS
        .iter()
        .map(|version| {
            // SAFETY: both strings end in zero; dlvsym is not intercepted.
            unsafe { libc::dlvsym(libc::RTLD_NEXT, name.as_ptr(), version.as_ptr()) }.addr()
        })
        .find(|&found| found != 0)
}

/// The address in `place`, found by `find` the first time: by several threads at once,
/// if need be, as the linker's lock may be held by one that waits for another.
pub(in crate::linker) fn found_once(
    place: &AtomicUsize,
    find: impl FnOnce() -> Option<usize>,
) -> Option<usize> {
    let mut address = place.load(Ordering::Relaxed);
    if address == 0 {
        address = find()?;
        place.store(address, Ordering::Relaxed);
    }
    (address != 0).then_some(address)
}

/// The next `dlsym` after ours, which the program would reach without us:
/// another preloaded library's, or else the real one.
pub(crate) fn next_dlsym() -> Option<Dlsym> {
    static FOUND: AtomicUsize = AtomicUsize::new(0);
    let address = found_once(&FOUND, || {
        // SAFETY: a pseudo handle and a name ending in zero.
        Some(unsafe { real_dlsym()?(libc::RTLD_NEXT, c"dlsym".as_ptr()) }.addr())
    })?;
    // SAFETY: a function named dlsym.
    Some(unsafe { std::mem::transmute::<usize, Dlsym>(address) })
}

/// Looks `name` up in the library of `handle`, or after this library for
/// `RTLD_NEXT`. Returns `None` instead of a function of ours.
pub(crate) fn look_up(handle: *mut c_void, name: &CStr) -> Option<usize> {
    let dlsym = real_dlsym()?;
    // SAFETY: the handle is a pseudo handle or one that dlopen returned and
    // nothing closes; the name ends in zero.
    let found = unsafe { dlsym(handle, name.as_ptr()) }.addr();
    (found != 0 && !objects::is_own(found)).then_some(found)
}

/// The prototype of `dlopen`.
type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

/// The real `dlopen`, that of libc: one of another preloaded library may look
/// functions up, and so come back to us.
fn real_dlopen() -> Dlopen {
    static FOUND: AtomicUsize = AtomicUsize::new(0);
    let address = found_once(&FOUND, || of_libc(c"dlopen"));
    // SAFETY: a function named dlopen.
    let found = address.map(|address| unsafe { std::mem::transmute::<usize, Dlopen>(address) });
    found.unwrap_or(libc::dlopen)
}

/// The handle of the library at `path`, if it is loaded; it then stays open.
fn loaded(path: &CStr) -> Option<*mut c_void> {
    // SAFETY: the path ends in zero; RTLD_NOLOAD runs no constructor.
    let handle = unsafe { real_dlopen()(path.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    (!handle.is_null()).then_some(handle)
}

/// The handle of the driver that the program finds, once it is loaded.
fn driver() -> Option<*mut c_void> {
    static DRIVER: AtomicUsize = AtomicUsize::new(0);
    let mut handle = DRIVER.load(Ordering::Relaxed);
    if handle == 0 {
        handle = loaded(c"libcuda.so.1")
            .or_else(|| {
                loaded_files(DRIVER_FILE)
                    .iter()
                    .find_map(|path| loaded(path))
            })?
            .expose_provenance();
        DRIVER.store(handle, Ordering::Relaxed);
    }
    Some(ptr::with_exposed_provenance_mut(handle))
}

/// A function of the loaded driver.
pub(crate) fn driver_function(name: &CStr) -> Option<usize> {
    look_up(driver()?, name)
}

/// What `find` returns for a name in the loaded driver.
pub(crate) fn driver_function_by(find: Dlsym, name: &CStr) -> Option<usize> {
    // SAFETY: a handle that nothing closes and a name ending in zero.
    Some(unsafe { find(driver()?, name.as_ptr()) }.addr())
}

/// Whether a driver is loaded.
pub(crate) fn driver_is_loaded() -> bool {
    driver_function(c"cuInit").is_some()
}

/// Loads the driver, for a program that asks for device memory before any other
/// use of CUDA. Returns false if there is no driver.
pub(crate) fn load_driver() -> bool {
    // SAFETY: the name ends in zero; what is loaded stays.
    let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    !handle.is_null()
}

/// The handle of NVML; if it is not loaded, `may_load` says whether to.
pub(crate) fn nvml(may_load: bool) -> Option<*mut c_void> {
    const FILE: &CStr = c"libnvidia-ml.so.1";
    loaded(FILE).or_else(|| {
        let flags = libc::RTLD_LAZY | libc::RTLD_LOCAL;
        // SAFETY: the name ends in zero; what is loaded stays.
        let handle = may_load.then(|| unsafe { real_dlopen()(FILE.as_ptr(), flags) })?;
        (!handle.is_null()).then_some(handle)
    })
}

/// A function of a loaded runtime: the next one in the linker's order, or else
/// one that was loaded for some library alone. Tools that make wheels may have
/// renamed that or put it inside another library, so in the end every object is
/// searched: the call came from one of them.
fn runtime_function(name: &CStr) -> Option<usize> {
    look_up(libc::RTLD_NEXT, name)
        .and_then(|found| held(&objects::around(found)?.path, name))
        .or_else(|| function_of(b"libcudart", name))
        .or_else(|| function_of(b"", name))
}

/// A function of a loaded library whose file name starts with `prefix`. The
/// library stays open.
pub(crate) fn function_of(prefix: &[u8], name: &CStr) -> Option<usize> {
    held(&objects::exporting(prefix, name)?, name)
}

/// Returns the function that the object at `path` exports, and keeps the object
/// open. An empty path is the program.
fn held(path: &CStr, name: &CStr) -> Option<usize> {
    let handle = if path.is_empty() {
        libc::RTLD_DEFAULT
    } else {
        loaded(path)?
    };
    look_up(handle, name)
}

/// Paths of the loaded libraries whose file name starts with `prefix`.
pub(crate) fn loaded_files(prefix: &[u8]) -> Vec<CString> {
    let paths = objects::loaded().into_iter().map(|object| object.path);
    paths
        .filter(|path| file_name(path).starts_with(prefix))
        .collect()
}

/// Whether an address lies in a driver: the one that the program finds, or
/// one that stands behind it.
pub(crate) fn is_in_driver(address: usize) -> bool {
    library_around(address).is_some_and(|path| file_name(path).starts_with(DRIVER_FILE))
}

/// Whether an address lies in NVIDIA's library for management, NVML.
pub(crate) fn is_in_nvml(address: usize) -> bool {
    library_around(address).is_some_and(|path| file_name(path).starts_with(NVML_FILE))
}

fn library_around(address: usize) -> Option<&'static CStr> {
    let info = objects::info(address)?;
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the linker's name of a loaded library ends in zero. The caller
    // holds an address inside that library, so it stays loaded meanwhile.
    Some(unsafe { CStr::from_ptr(info.dli_fname) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_real_dlsym_is_found_and_is_not_ours() {
        let dlsym = real_dlsym().unwrap();
        assert_ne!(
            dlsym as usize,
            crate::doors::dlsym::dlsym as *const () as usize
        );
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
        assert!(!is_in_driver(libc::getpid as *const () as usize));
        assert!(!is_in_driver(8));
        assert_eq!(file_name(c"/a/b.so"), b"b.so");
        assert_eq!(file_name(c"b.so"), b"b.so");
    }

    #[test]
    fn a_function_is_found_in_whoever_exports_it() {
        let getpid = libc::getpid as *const () as usize;
        assert_eq!(function_of(b"libc.so", c"getpid"), Some(getpid));
        assert_eq!(function_of(b"", c"getpid"), Some(getpid));
        assert_eq!(function_of(b"", c"no_such_name"), None);
    }
}
