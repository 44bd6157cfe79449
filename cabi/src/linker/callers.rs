//! Finds the CUDA runtime of the library that called a runtime's door.
//!
//! Several runtimes can be in one process, each brought by a library for its
//! own use. Since the doors have the runtime's names, all these libraries call
//! the same doors. A call that is handed on, and the last error after a
//! failure, belong to the caller's own runtime: the one that the linker would
//! have found for it without us.
//!
//! Results are kept for each calling library until the linker unloads anything.
//! No library is held: the one that calls is loaded anyway, with all that it
//! needs. Cost: a look at the stack, and never the linker's lock; nothing on the path of a request that is served.

use std::ffi::CStr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use spin::mutex::SpinMutex;
use vramalloc_core::patience::Brief;

use super::{objects, unwind};

/// What a library finds under a name.
struct Known {
    library: Range<usize>,
    name: &'static CStr,
    /// `None` if it has no such function of its own.
    address: Option<usize>,
}

/// What was found while the linker had unloaded this many objects.
struct Book {
    unloads: u64,
    known: Vec<Known>,
}

static BOOK: SpinMutex<Book, Brief> = SpinMutex::new(Book {
    unloads: 0,
    known: Vec::new(),
});

/// Whether a thread that has the book is not in this process, a child.
static IS_LOST: AtomicBool = AtomicBool::new(false);

/// Called in a child, by its one thread.
pub(crate) fn forked() {
    IS_LOST.store(BOOK.is_locked(), Ordering::Relaxed);
}

/// Returns the address of `name` as seen by the library that called the current
/// door, or `None` if it has no runtime of its own.
pub(crate) fn function(name: &'static CStr) -> Option<usize> {
    found_by(unwind::caller()?, name)
}

/// Returns the function as the library around the address `caller` finds it.
fn found_by(caller: usize, name: &'static CStr) -> Option<usize> {
    if IS_LOST.load(Ordering::Relaxed) {
        return objects::in_scope_of(caller, name)?.address;
    }
    // An unload voids what is known: another library may lie where the old one
    // lay. The calling library is not unloaded meanwhile.
    let unloads = objects::unloads();
    let known = |book: &Book| {
        let mut known = book.known.iter();
        let known = known.find(|known| known.library.contains(&caller) && known.name == name)?;
        (book.unloads == unloads).then_some(known.address)
    };
    if let Some(address) = known(&BOOK.lock()) {
        return address;
    }
    let found = objects::in_scope_of(caller, name)?;
    let mut book = BOOK.lock();
    if book.unloads != unloads {
        book.unloads = unloads;
        book.known.clear();
    }
    book.known.push(Known {
        library: found.of,
        name,
        address: found.address,
    });
    found.address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_itself_finds_nothing_of_its_own() {
        // A unit test is the program: all of its stack but the end is its own.
        assert_eq!(found_by(function as *const () as usize, c"getpid"), None);
        let getpid = libc::getpid as *const () as usize;
        for _ in 0..2 {
            assert_eq!(found_by(getpid, c"getpid"), Some(getpid));
            assert_eq!(found_by(getpid, c"cudaMalloc"), None);
        }
        assert_eq!(found_by(8, c"getpid"), None);
    }
}
