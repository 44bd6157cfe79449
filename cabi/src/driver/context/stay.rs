//! Staying in a context, which does not end meanwhile.
//!
//! Invariant: a thread that is inside has passed the gate, and does not pass it
//! again: a thread that ends the context waits for those inside, and those that
//! come later wait for that end. Cost: the passing of a gate.

use std::sync::atomic::{AtomicUsize, Ordering};

use vramalloc_core::Code;
use vramalloc_core::driver::IfEnding;

use super::Context;
use super::current::{Current, Relaxed};
use crate::process::guard::{self, own_call};
use crate::types::CudaResult;

impl Context {
    /// Makes `call`, which needs no context and so waits for none to end; the
    /// thread's calls disturb no capture.
    ///
    /// # Errors
    /// What the driver returns.
    pub(crate) fn beside(call: impl FnOnce() -> CudaResult) -> Result<(), Code> {
        own_call(|| {
            let _relaxed = Relaxed::enter();
            Code::check(call())
        })
    }

    /// Makes several calls, as [`Context::call`] makes one.
    ///
    /// # Errors
    /// As for one.
    pub(crate) fn several(&self, calls: impl FnOnce() -> Result<(), Code>) -> Result<(), Code> {
        let made = self.stay(IfEnding::Wait, |within| within.calls(calls));
        made.unwrap_or_else(|| Err(self.not_made()))
    }

    /// Runs `work` in the context, which does not end meanwhile. Returns `None`
    /// if the context has ended, or may be ending; `ending` says whether to
    /// wait for that to be decided.
    #[inline]
    pub(crate) fn stay<R>(
        &self,
        ending: IfEnding,
        work: impl FnOnce(&Within<'_>) -> R,
    ) -> Option<R> {
        let mut work = Some(work);
        let mut pass = || {
            let passed = self
                .calls
                .pass(|| work.take().map(|work| work(&Within(self))));
            passed.flatten()
        };
        let at_once = pass();
        if at_once.is_some() || ending == IfEnding::Leave {
            return at_once;
        }
        self.come_in(pass)
    }

    /// Passes the gate as soon as that is possible.
    #[cold]
    fn come_in<R>(&self, mut pass: impl FnMut() -> Option<R>) -> Option<R> {
        if guard::is_called_back() {
            return None;
        }
        let _waiting = Waiting::begin(&self.waiting);
        let mut done = None;
        self.while_open(|| {
            done = pass();
            done.is_some() || self.has_ended()
        });
        done
    }
}

/// The context, while it cannot end.
pub(crate) struct Within<'a>(&'a Context);

impl Within<'_> {
    /// Makes a call in the context, as [`Context::call`].
    ///
    /// # Errors
    /// What the driver returns.
    pub(crate) fn call(&self, call: impl FnOnce() -> CudaResult) -> Result<(), Code> {
        self.calls(|| Code::check(call()))
    }

    pub(super) fn calls(&self, calls: impl FnOnce() -> Result<(), Code>) -> Result<(), Code> {
        self.make(|| {
            let _current = Current::make(self.0.handle())?;
            let _relaxed = Relaxed::enter();
            calls()
        })
    }

    pub(super) fn make(&self, calls: impl FnOnce() -> Result<(), Code>) -> Result<(), Code> {
        self.0.noted(own_call(calls))
    }
}

/// Counts a thread whose call is held back, while it lives.
struct Waiting<'a>(&'a AtomicUsize);

impl Waiting<'_> {
    fn begin(waiting: &AtomicUsize) -> Waiting<'_> {
        waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
