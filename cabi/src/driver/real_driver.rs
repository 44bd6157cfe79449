//! `trait Driver` over the real libcuda, for one context.
//!
//! Invariant: a [`fence`](crate::driver::fence) covers every context of the
//! process ([`contexts`]), any of which can still be using a block. Cost: an
//! event for each of them per fence.

use std::cell::OnceCell;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vramalloc_core::driver::{IfEnding, OwnCaches, Whose, ask_until};
use vramalloc_core::{Address, Bytes, Code, Driver, MemInfo};

use crate::driver::context::{Context, Decision, lasts};
use crate::driver::devices::Device;
use crate::driver::fence::{Fence, runs_nothing, wait_for};
use crate::driver::mapping::{Ability, Backups};
use crate::driver::reserve::{Beyond, When};
use crate::driver::{capture, contexts, reserve, streams, whose};
use crate::process::fast_local::fast_local;
use crate::process::{self, cancel, guard};
use crate::real::{self, reach};
use crate::types::CudaResult;

/// One context of the real driver.
pub(crate) struct RealDriver {
    own: Arc<Context>,
    /// Hears how much is free of the device.
    device: Option<&'static Device>,
    /// Finds the context that an address belongs to, by what is known of memory
    /// that the driver gave before.
    known: fn(Address) -> Option<&'static Arc<Context>>,
    /// What the device's virtual memory can do.
    ability: Ability,
    backups: Backups,
}

impl RealDriver {
    /// The driver in a context; this device, if there is one, hears how much is free.
    pub(crate) fn new(
        own: Arc<Context>,
        device: Option<&'static Device>,
        known: fn(Address) -> Option<&'static Arc<Context>>,
    ) -> RealDriver {
        RealDriver {
            own,
            device,
            known,
            ability: Ability::new(),
            backups: Backups::new(),
        }
    }

    pub(super) fn device(&self) -> Option<&'static Device> {
        self.device
    }

    pub(super) fn known(&self) -> fn(Address) -> Option<&'static Arc<Context>> {
        self.known
    }

    pub(super) fn ability(&self) -> &Ability {
        &self.ability
    }

    pub(super) fn backups(&self) -> &Backups {
        &self.backups
    }

    /// The context in which calls are made.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.own
    }

    fn call(&self, call: impl FnOnce() -> CudaResult) -> Result<(), Code> {
        self.own.call(call)
    }

    /// Waits for all work of the context, including what `submit` adds. No
    /// capture begins before the events are recorded; during the wait, one may.
    fn own_work_after(&self, submit: impl FnOnce() -> Result<(), Code>) -> Result<(), Code> {
        let mark = || {
            submit()?;
            streams::mark(&self.own)
        };
        let marks = capture::outside(mark).unwrap_or(Err(Code::CAPTURE_UNSUPPORTED))?;
        wait_for(&marks)?.then_some(()).ok_or(Code::NOT_READY)
    }

    /// Waits for what `submit` adds to the legacy stream, where we do not hear of
    /// captures: unless that stream orders with one, this disturbs none.
    fn on_legacy_stream(&self, submit: impl FnOnce() -> Result<(), Code>) -> Result<(), Code> {
        let legacy = ptr::null_mut();
        let mut is_quiet = false;
        self.call(|| {
            is_quiet = capture::has_ended_on(legacy);
            0
        })?;
        if !is_quiet {
            return Err(Code::CAPTURE_UNSUPPORTED);
        }
        submit()?;
        let mark = Fence::of_stream(&self.own, legacy)?;
        mark.wait(Whose::Own)?.then_some(()).ok_or(Code::NOT_READY)
    }

    /// The error of an earlier launch that has ended all work of the context,
    /// and that every call returns from then on. Costs a driver call if a call
    /// of ours has met such an error, and none otherwise.
    pub(crate) fn lasting_error(&self) -> Option<Code> {
        self.own.lasting_error().filter(|_| self.may_give_back())?;
        // A reset of the device ends it.
        self.mem_info().err().filter(|&code| lasts(code))
    }

    fn others(&self) -> Vec<Arc<Context>> {
        contexts::others_than(self.own.handle())
    }
}

fast_local! {
    /// What the calling thread knows of its caches.
    fn own_caches() -> OwnCaches = OWN_CACHES to END;
}

impl Driver for RealDriver {
    type Fence = Fence;

    #[inline(always)]
    fn with_own_caches<R>(with: impl FnOnce(&OwnCaches) -> R) -> R {
        with(own_caches())
    }

    fn may_make_barriers() -> bool {
        process::may_make_rare_calls()
    }

    fn alloc(&self, size: Bytes) -> Result<Address, Code> {
        let address = reserve::alloc(&self.own, size)?;
        whose::took(address, size, self.known);
        Ok(address)
    }

    fn free(&self, address: Address) -> Result<(), Code> {
        // SAFETY: a number that the driver checks.
        self.own
            .call(|| unsafe { real::cuMemFree_v2(address.get()) })
    }

    fn giving_back<R>(
        &self,
        ending: IfEnding,
        work: impl FnOnce(&dyn Fn(Address) -> Result<(), Code>) -> R,
    ) -> Option<R> {
        let given = self.own.stay(ending, |within| {
            // In a host function nothing can be freed, and what left the heap would be lost.
            let refused = within.call(reserve::ask_driver) == Err(Code::NOT_PERMITTED);
            (!refused).then(|| {
                work(&|address| {
                    // SAFETY: a number that the driver checks.
                    within.call(|| unsafe { real::cuMemFree_v2(address.get()) })
                })
            })
        });
        given.flatten()
    }

    fn free_from_here(&self, address: Address) -> Result<(), Code> {
        // SAFETY: a number that the driver checks.
        let freed = (self.own).call_from_here(|| unsafe { real::cuMemFree_v2(address.get()) });
        match freed {
            // No context is current.
            Err(Code::INVALID_CONTEXT) => self.free(address),
            freed => freed,
        }
    }

    #[inline]
    fn is_elsewhere(&self) -> bool {
        contexts::are_several() && !contexts::is_current(self.own.handle())
    }

    fn mem_info(&self) -> Result<MemInfo, Code> {
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: writes both answers to locals.
        self.call(|| unsafe { real::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
        let info = MemInfo {
            free: Bytes::new(free as u64),
            total: Bytes::new(total as u64),
        };
        if let Some(device) = self.device {
            device.was_told(info);
        }
        Ok(info)
    }

    fn may_fence(&self) -> bool {
        !capture::any() && !self.own.is_paused() && !guard::is_called_back()
    }

    fn may_give_back(&self) -> bool {
        !guard::is_called_back()
    }

    fn is_alone(&self) -> bool {
        self.others().is_empty()
    }

    fn fence(&self) -> Result<Fence, Code> {
        let fence = || Fence::of_all(&self.own);
        capture::outside(fence).unwrap_or(Err(Code::CAPTURE_UNSUPPORTED))
    }

    fn fence_unless_done(&self) -> Result<Option<Fence>, Code> {
        let fence = || Fence::of_all_unless_done(&self.own);
        capture::outside(fence).unwrap_or(Err(Code::CAPTURE_UNSUPPORTED))
    }

    fn fence_after_own(&self) -> Result<Fence, Code> {
        if !streams::marks_order() {
            return self.fence();
        }
        let others = || Fence::of_others(&self.own);
        let fence = capture::outside(others).unwrap_or(Err(Code::CAPTURE_UNSUPPORTED))?;
        // Waits as CUDA's own free does, which orders no streams.
        match wait_by_free(&self.own, &self.own, Beyond::Refused) {
            Ok(()) => Ok(fence),
            // Nothing is left to wait with.
            Err(_) => self.fence(),
        }
    }

    fn reached(&self, fence: &Fence) -> Result<bool, Code> {
        fence.is_reached()
    }

    fn wait(&self, fence: &Fence, whose: Whose) -> Result<bool, Code> {
        fence.wait(whose)
    }

    fn wait_within(&self, fence: &Fence, most: Duration) -> Result<bool, Code> {
        // The thread sleeps here.
        let _held = cancel::Held::back();
        ask_until(most, || Ok(!self.may_fence() || fence.is_reached_by_own()?))?;
        Ok(self.may_fence() && fence.is_reached()?)
    }

    fn fill(&self, address: Address, size: Bytes, byte: u8) -> Result<(), Code> {
        let size = usize::try_from(size.get()).map_err(|_| Code::INVALID_VALUE)?;
        let write = || {
            // SAFETY: memory of the context that was not handed out yet. To the
            // driver it is work of the legacy stream.
            self.own
                .call_now(|| unsafe { real::cuMemsetD8_v2(address.get(), byte, size) })
        };
        if reach::hears_of_captures() {
            self.own_work_after(write)
        } else {
            self.on_legacy_stream(write)
        }
    }

    fn synchronize(&self) -> Result<(), Code> {
        if reach::hears_of_captures() {
            self.own_work_after(|| Ok(()))
        } else {
            reserve::wait_by_free(&self.own, Beyond::Allowed)
        }
    }

    fn prepare_to_settle(&self, is_first: bool) {
        let when = match (is_first, self.is_alone()) {
            (true, true) => When::Alone,
            (true, false) => When::Beside,
            (false, _) => When::Later,
        };
        reserve::keep_back(&self.own, when);
    }

    fn wait_by_free(&self, whose: Whose) -> Result<bool, Code> {
        wait_by_free(&self.own, &self.own, Beyond::Allowed)?;
        let others = self.others();
        if whose == Whose::Own && !others.is_empty() {
            // Nothing can be asked about the others now.
            return Ok(false);
        }
        for other in others.iter().filter(|other| !other.is_quiet()) {
            match wait_by_free(&self.own, other, Beyond::Allowed) {
                Err(code) if !runs_nothing(code) => return Err(code),
                _ => {}
            }
        }
        Ok(true)
    }
}

/// Waits for all work of a context, for an arena of the context `own`. If it may be ending,
/// its end is decided first. Where it has nothing to wait with, what the arena's own context
/// keeps does, whose work is waited for in any case; then a little beyond the limit; and what
/// another context keeps last, since that one's work is waited for too.
fn wait_by_free(own: &Context, context: &Context, beyond: Beyond) -> Result<(), Code> {
    let settle = || {
        let end = OnceCell::new();
        let until = || *end.get_or_init(|| Instant::now() + reserve::PATIENCE);
        let mut waited = reserve::wait_by_free(context, Beyond::Refused);
        let lacks = |waited| waited == Err(Code::OUT_OF_MEMORY) && beyond == Beyond::Allowed;
        if lacks(waited) && own.handle() != context.handle() {
            waited = reserve::wait_by_that_of(own, context, until());
        }
        if lacks(waited) {
            waited = reserve::wait_by_free(context, beyond);
        }
        let others = lacks(waited).then(|| contexts::others_than(context.handle()));
        for other in others.iter().flatten() {
            if lacks(waited) {
                waited = reserve::wait_by_that_of(other, context, until());
            }
        }
        waited
    };
    match settle() {
        Err(Code::NOT_READY) if context.await_decision() != Decision::Open => settle(),
        settled => settled,
    }
}
