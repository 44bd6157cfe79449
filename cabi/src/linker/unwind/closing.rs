//! The exported `dlclose`.
//!
//! Where a library was, another may be loaded at once, even of the same length and
//! with the linker's entry in the same place, so that nothing tells the two apart
//! later. So what was unloaded is forgotten before the program goes on. Where no code
//! was looked for there is nothing to forget, and this is the next `dlclose` alone.

use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicUsize;

use super::super::resolve;
use super::modules;

type Close = unsafe extern "C" fn(*mut c_void) -> c_int;

/// The next `dlclose` after ours, which the program would reach without us.
pub(super) fn next() -> Option<Close> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let find = || resolve::look_up(libc::RTLD_NEXT, c"dlclose");
    let address = resolve::found_once(&NEXT, find)?;
    // SAFETY: the function of this name has this prototype.
    Some(unsafe { std::mem::transmute::<usize, Close>(address) })
}

/// `dlclose` for the whole process.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn dlclose(handle: *mut c_void) -> c_int {
    let Some(next) = next() else {
        return -1;
    };
    // SAFETY: the caller's promise.
    let code = unsafe { next(handle) };
    modules::check();
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_closes_as_the_next_does() {
        // SAFETY: a name that ends in zero; and what it opens is closed once.
        unsafe {
            let handle = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY);
            assert!(!handle.is_null());
            assert_eq!(dlclose(handle), 0);
        }
    }
}
