//! The arenas of a replay that share a device: when one is short, the others give.
//!
//! Invariant: only those are there that have done something and have not ended.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use vramalloc_core::Arena;
use vramalloc_core::address::Bytes;
use vramalloc_core::arena::live_at;
use vramalloc_core::quota::Quota;

use super::answers::Answers;
use super::driver::{Cursor, Witness, reserve_as_told};

/// The arenas that there are so far.
pub(super) type Standing = Arc<Mutex<Vec<Stander>>>;

/// An arena that there is.
pub(super) struct Stander {
    pub(super) device: u32,
    pub(super) context: Option<u64>,
    pub(super) number: usize,
    pub(super) arena: Weak<Arena<Witness>>,
}

/// The arenas of a device that there are beside one.
#[derive(Clone)]
pub(super) struct Beside {
    pub(super) standing: Standing,
    pub(super) device: u32,
    pub(super) context: Option<u64>,
    pub(super) number: usize,
    pub(super) quota: Arc<Quota>,
    pub(super) answers: Arc<Mutex<Answers>>,
    pub(super) shared: Arc<Cursor>,
}

impl Beside {
    fn arenas(&self) -> Vec<Arc<Arena<Witness>>> {
        let standing = lock(&self.standing);
        let others = standing.iter().filter(|other| self.is_beside(other));
        others.filter_map(|other| other.arena.upgrade()).collect()
    }

    fn is_beside(&self, other: &Stander) -> bool {
        other.device == self.device && other.number != self.number
    }

    /// Whether one of another context is among them.
    pub(super) fn is_shared(&self) -> bool {
        let is_same = |other: &Stander| self.context.is_some() && other.context == self.context;
        let standing = lock(&self.standing);
        (standing.iter()).any(|other| self.is_beside(other) && !is_same(other))
    }

    pub(super) fn is_any(&self) -> bool {
        !self.arenas().is_empty()
    }

    /// They give back what is idle when this one is short; whether there are any. Their
    /// own events say so and come before this request's, so what remains is what the
    /// process has then.
    pub(super) fn gives(&self) -> bool {
        self.reserve_as_told();
        self.is_any()
    }

    /// What they gave in a call was played before the call.
    pub(super) fn reserve_as_told(&self) {
        let (thread, ends) = (self.shared.thread(), self.shared.window().1);
        let next = lock(&self.answers).reserved_next(thread, ends);
        if let Some(reserved) = next {
            reserve_as_told(&self.quota, reserved);
        }
    }

    /// What they hold. What the program has past the pools is not recorded, so that more
    /// is tried for a request that fails than was tried for it.
    pub(super) fn live(&self) -> Option<Bytes> {
        let arenas = self.arenas();
        let arenas: Vec<&Arena<Witness>> = arenas.iter().map(Arc::as_ref).collect();
        live_at(&arenas, || Some(()))
    }
}

/// All of a replay is on one thread, and panics nowhere.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
