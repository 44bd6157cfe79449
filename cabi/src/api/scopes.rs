//! Scopes of a thread.

use vramalloc_core::FreeError;
use vramalloc_core::recording::Mark;

use super::{Failure, VRAMALLOC_WRONG_SCOPE, answer, given, vramalloc_result};
use crate::pools::background;
use crate::pools::holdings::{self, free_item};
use crate::process;
use crate::recording;

/// A scope, by its number; 0 is none.
pub type vramalloc_scope = u64;

/// Begins a scope of the calling thread, inside the one that it is in, and
/// writes its number to `*scope`.
///
/// What the thread gets from then on from `vramalloc_malloc`,
/// `vramalloc_malloc_on_stream` and `vramalloc_group_malloc`, until it ends the
/// scope or begins another inside it, belongs to the scope. Any thread may free
/// it before, one by one, also by CUDA's functions if the library stands in
/// front of them; what is left is freed with the scope. Other threads are not
/// affected. What CUDA's functions give belongs to no scope.
///
/// A scope that its thread has not ended when the thread ends is never ended,
/// and its memory stays live.
///
/// May be called before CUDA is initialised, during a capture and by any
/// thread; not in a forked child and not from a signal handler.
///
/// Errors: `VRAMALLOC_INVALID_ARGUMENT` for a null `scope`.
///
/// The caller promises that `scope`, if it is not null, may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramalloc_scope_begin(scope: *mut vramalloc_scope) -> vramalloc_result {
    answer(|| {
        let scope = given(scope)?;
        // SAFETY: the caller's promise.
        unsafe { *scope = holdings::begin_scope() };
        recording::mark(|| Some(Mark::Scope { begins: true }));
        Ok(())
    })
}

/// Ends the calling thread's innermost scope, which must be `scope`, and frees
/// all that belongs to it, as `vramalloc_free` would: before it returns or,
/// with the option `eager_delete_scope` off, by a thread of the library.
/// `vramalloc_empty_cache`, the control `trim` and a request that finds no
/// memory wait for that thread.
///
/// May be called when `vramalloc_scope_begin` may.
///
/// Errors: `VRAMALLOC_WRONG_SCOPE`, and nothing is changed; or the code of the
/// first free that failed, after all others were tried.
///
/// The caller promises that nothing which comes after the call uses the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramalloc_scope_end(scope: vramalloc_scope) -> vramalloc_result {
    answer(|| {
        let ended = holdings::end_scope(scope);
        let mut items = ended.ok_or(Failure(VRAMALLOC_WRONG_SCOPE))?;
        recording::mark(|| Some(Mark::Scope { begins: false }));
        let inline = process::options(|loaded| loaded.settings.scopes_end_inline);
        if !inline {
            items = match background::free_later(items) {
                Ok(()) => return Ok(()),
                Err(items) => items,
            };
        }
        let mut result: Result<(), FreeError> = Ok(());
        for item in items {
            result = result.and(free_item(item));
        }
        Ok(result?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::memory::{VRAMALLOC_PAGEABLE, vramalloc_free, vramalloc_malloc};
    use crate::api::{
        VRAMALLOC_INVALID_ARGUMENT, VRAMALLOC_NOT_OURS, VRAMALLOC_SUCCESS, VRAMALLOC_WRONG_SCOPE,
    };
    use crate::process::guard;
    use std::ffi::c_void;
    use std::{ptr, thread};

    fn begin() -> vramalloc_scope {
        let mut scope = 0;
        // SAFETY: writes the answer to a local.
        let result = unsafe { vramalloc_scope_begin(&raw mut scope) };
        assert_eq!(result, VRAMALLOC_SUCCESS);
        scope
    }

    fn end(scope: vramalloc_scope) -> vramalloc_result {
        // SAFETY: these tests touch no memory.
        unsafe { vramalloc_scope_end(scope) }
    }

    fn malloc() -> *mut c_void {
        let mut address = ptr::null_mut();
        // SAFETY: writes the answer to a local.
        let result = unsafe { vramalloc_malloc(1000, VRAMALLOC_PAGEABLE, &raw mut address) };
        assert_eq!(result, VRAMALLOC_SUCCESS);
        address
    }

    fn free(address: *mut c_void) -> vramalloc_result {
        // SAFETY: these tests touch no memory.
        unsafe { vramalloc_free(address) }
    }

    #[test]
    fn a_scope_frees_what_is_left_in_it() {
        let _turn = guard::turn();
        let before = malloc();
        let outer = begin();
        let early = malloc();
        let inner = begin();
        let [gone, left] = [malloc(), malloc()];
        assert_eq!(free(gone), VRAMALLOC_SUCCESS);
        assert_eq!(end(outer), VRAMALLOC_WRONG_SCOPE);
        assert_eq!(end(inner), VRAMALLOC_SUCCESS);
        assert_eq!(end(inner), VRAMALLOC_WRONG_SCOPE);
        assert_eq!(free(left), VRAMALLOC_NOT_OURS);
        // Freed by another thread, and not again at the end.
        let address = early.expose_provenance();
        let other = thread::spawn(move || free(ptr::with_exposed_provenance_mut(address)));
        assert_eq!(other.join().unwrap(), VRAMALLOC_SUCCESS);
        assert_eq!(end(outer), VRAMALLOC_SUCCESS);
        assert_eq!(free(before), VRAMALLOC_SUCCESS);
        // SAFETY: null is allowed.
        let nowhere = unsafe { vramalloc_scope_begin(ptr::null_mut()) };
        assert_eq!(nowhere, VRAMALLOC_INVALID_ARGUMENT);
    }

    #[test]
    fn scopes_are_their_threads() {
        let _turn = guard::turn();
        let scope = begin();
        thread::spawn(move || {
            let other = malloc();
            assert_eq!(end(scope), VRAMALLOC_WRONG_SCOPE);
            assert_eq!(free(other), VRAMALLOC_SUCCESS);
        })
        .join()
        .unwrap();
        assert_eq!(end(scope), VRAMALLOC_SUCCESS);
        assert_eq!(end(0), VRAMALLOC_WRONG_SCOPE);
    }
}
