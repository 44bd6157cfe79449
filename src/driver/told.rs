//! Counting driver calls that an implementation of `Driver` makes inside
//! another call.
//!
//! The call of an arena may take several driver calls, or calls of another
//! kind; the implementation reports each of them here. Owns the counts of the
//! thread since the arena's call began. Invariant: a call counts for the arena
//! whose call is under way on the thread, or for no arena. Cost: two readings
//! of the clock per call.

use std::cell::Cell;
use std::time::Instant;

use crate::error::Code;
use crate::stats::CallCount;

/// Driver calls that were reported, by kind.
#[derive(Copy, Clone)]
pub(crate) struct Told {
    pub(crate) alloc: CallCount,
    pub(crate) free: CallCount,
}

impl Told {
    const NOTHING: Told = Told {
        alloc: CallCount::NONE,
        free: CallCount::NONE,
    };

    pub(crate) fn is_nothing(&self) -> bool {
        self.alloc.calls == 0 && self.free.calls == 0
    }
}

thread_local! {
    static TOLD: Cell<Told> = const { Cell::new(Told::NOTHING) };
}

/// Makes and counts a call that takes memory.
///
/// # Errors
/// Those of the call.
pub fn alloc<T>(call: impl FnOnce() -> Result<T, Code>) -> Result<T, Code> {
    tell(|told| &mut told.alloc, call)
}

/// Makes and counts a call that gives memory back.
///
/// # Errors
/// Those of the call.
pub fn free(call: impl FnOnce() -> Result<(), Code>) -> Result<(), Code> {
    tell(|told| &mut told.free, call)
}

fn tell<T>(
    of: fn(&mut Told) -> &mut CallCount,
    call: impl FnOnce() -> Result<T, Code>,
) -> Result<T, Code> {
    let start = Instant::now();
    let result = call();
    let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let mut told = TOLD.get();
    of(&mut told).add(CallCount::one(ns, result.is_err()));
    TOLD.set(told);
    result
}

/// Runs an arena's call to its driver. Returns also what was reported during
/// it.
pub(crate) fn during<T>(call: impl FnOnce() -> T) -> (T, Told) {
    let before = TOLD.replace(Told::NOTHING);
    let result = call();
    (result, TOLD.replace(before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_belongs_to_the_call_under_way() {
        let _ = alloc(|| Ok(()));
        let (inner, told) = during(|| {
            let _ = free(|| Err(Code::INVALID_VALUE));
            let (_, inner) = during(|| alloc(|| Ok(())));
            inner
        });
        assert_eq!((inner.alloc.calls, inner.free.calls), (1, 0));
        assert_eq!((told.alloc.calls, told.free.calls), (0, 1));
        assert_eq!(told.free.failures, 1);
        assert!(during(|| ()).1.is_nothing());
    }
}
