//! A driver that answers as recorded.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::driver::mapping::{Mapping, MappingTraits, Unit};
use vramalloc_core::driver::{Driver, MemInfo, PAGE, Whose};
use vramalloc_core::error::Code;
use vramalloc_core::quota::Quota;

use super::super::tape::What;
use super::answers::{Answers, Asking, is_taken_for, refusal, said};

/// What the drivers of a replay share.
pub(super) struct Cursor {
    /// Where on the tape the call that is being made begins, and where the next of its
    /// thread does.
    pub(super) begins: AtomicUsize,
    pub(super) ends: AtomicUsize,
    /// Whose call it is.
    pub(super) thread: AtomicU32,
    /// Captures that are open.
    pub(super) captures: AtomicUsize,
    /// The call is a free, whose options leave it at that.
    pub(super) is_free: AtomicBool,
}

impl Cursor {
    // All on one thread: the orderings are of no account.
    pub(super) fn thread(&self) -> u32 {
        self.thread.load(Ordering::Relaxed)
    }

    pub(super) fn window(&self) -> (usize, usize) {
        let begins = self.begins.load(Ordering::Relaxed);
        (begins, self.ends.load(Ordering::Relaxed))
    }
}

/// A mark in the work of a context, as recorded.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum RecordedFence {
    /// That of an epoch.
    Epoch(u64),
    /// Another, by which it was asked whether the device is quiet.
    Other { is_quiet: bool },
}

/// What the program had past the arenas counts towards the limit, too.
pub(super) fn reserve_as_told(quota: &Quota, told: Bytes) {
    let reserved = quota.reserved();
    if told > reserved {
        quota.take_anyway(told.saturating_sub(reserved));
    } else {
        quota.put_back(reserved.saturating_sub(told));
    }
}

/// A driver that answers as recorded.
pub(super) struct Witness {
    pub(super) answers: Arc<Mutex<Answers>>,
    pub(super) shared: Arc<Cursor>,
    pub(super) quota: Arc<Quota>,
}

impl Witness {
    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn thread(&self) -> u32 {
        self.shared.thread()
    }

    fn window(&self) -> (usize, usize) {
        self.shared.window()
    }
}

impl Mapping for Witness {
    fn mapping_traits(&self) -> Result<Option<MappingTraits>, Code> {
        match self.answers().of(self.thread()).mapping.take() {
            Some((
                _,
                What::Mapping {
                    granule,
                    unmaps_runs,
                },
            )) => Ok((granule > 0).then_some(MappingTraits {
                granule: Bytes::new(granule),
                unmaps_runs,
            })),
            _ => Ok(None),
        }
    }

    fn reserve(&self, size: Bytes) -> Result<Address, Code> {
        let answers = &mut *self.answers();
        let lane = &mut answers.of(self.thread()).reserved;
        match lane.next() {
            Some((
                _,
                What::Reserved {
                    address,
                    size: told,
                },
            )) if told == size.get() => {
                lane.used += 1;
                Ok(Address::new(address))
            }
            _ => Err(Code::OUT_OF_MEMORY),
        }
    }

    fn unreserve(&self, _at: Address, _size: Bytes) -> Result<(), Code> {
        Ok(())
    }

    fn create(&self, size: Bytes) -> Result<Unit, Code> {
        let (_, ends) = self.window();
        let answers = &mut *self.answers();
        let lanes = answers.of(self.thread());
        if lanes.units_left.is_none()
            && let Some((at, What::Created(units))) = lanes.created.next()
            && at < ends
        {
            lanes.created.used += 1;
            lanes.units_left = Some(units);
        }
        if lanes.units_left == Some(0) {
            lanes.units_left = None;
            return match lanes.created.take() {
                Some((_, What::Refused { size: told, code })) if told == size.get() => {
                    Err(refusal(code))
                }
                _ => Err(Code::OUT_OF_MEMORY),
            };
        }
        lanes.units_left = lanes.units_left.map(|left| left - 1);
        answers.units += 1;
        Ok(Unit(answers.units))
    }

    fn release(&self, _unit: Unit) -> Result<(), Code> {
        Ok(())
    }

    fn map(&self, at: Address, size: Bytes, _unit: Unit) -> Result<(), Code> {
        self.answers()
            .consume(self.thread(), at.get(), size.get(), true);
        Ok(())
    }

    fn admit(&self, _at: Address, _size: Bytes) -> Result<(), Code> {
        Ok(())
    }

    fn unmap(&self, at: Address, size: Bytes) -> Result<(), Code> {
        self.answers()
            .consume(self.thread(), at.get(), size.get(), false);
        Ok(())
    }
}

impl Driver for Witness {
    type Fence = RecordedFence;

    fn alloc(&self, size: Bytes) -> Result<Address, Code> {
        let answers = &mut *self.answers();
        let next = answers.of(self.thread()).taken.take().map(|(_, what)| what);
        match next {
            Some(What::Taken {
                address,
                size: told,
            }) if is_taken_for(told, size) => Ok(Address::new(address)),
            Some(What::Refused { size: told, code }) if is_taken_for(told, size) => {
                Err(refusal(code))
            }
            other => {
                let wanted = size.get();
                answers.differs(|| {
                    format!(
                        "the driver is asked for {wanted} bytes; recorded is {}",
                        said(other)
                    )
                });
                Err(Code::OUT_OF_MEMORY)
            }
        }
    }

    fn free(&self, address: Address) -> Result<(), Code> {
        let answers = &mut *self.answers();
        let at = address.get();
        match answers
            .of(self.thread())
            .given_back
            .take()
            .map(|(_, what)| what)
        {
            Some(What::GivenBack { address: told, .. }) if told == at => {}
            other => answers.differs(|| {
                format!(
                    "memory at {at:#x} goes back to the driver; recorded is {}",
                    said(other)
                )
            }),
        }
        Ok(())
    }

    fn mem_info(&self) -> Result<MemInfo, Code> {
        let (begins, _) = self.window();
        let answers = &mut *self.answers();
        // What was asked for by calls that are not made again is passed over.
        let lane = &mut answers.of(self.thread()).memory;
        while lane.next().is_some_and(|(at, _)| at < begins) {
            lane.used += 1;
        }
        match lane.take() {
            Some((
                _,
                What::Memory {
                    free,
                    total,
                    reserved,
                },
            )) => {
                reserve_as_told(&self.quota, Bytes::new(reserved));
                Ok(MemInfo {
                    free: Bytes::new(free),
                    total: Bytes::new(total),
                })
            }
            // Whether it is asked goes by a look at what waits for the device, which
            // another thread may have changed a moment before. What comes of it shows.
            _ => Err(Code::UNKNOWN),
        }
    }

    fn prepare_to_settle(&self, _is_first: bool) {
        if std::mem::take(&mut self.answers().keeps_page) {
            self.quota.take_anyway(PAGE);
        }
    }

    fn is_alone(&self) -> bool {
        let (_, ends) = self.window();
        let quiet = self.answers().of(self.thread()).quiet.next();
        quiet.is_some_and(|(at, _)| at < ends)
    }

    fn may_wait_in_free(&self) -> bool {
        let (begins, ends) = self.window();
        let thread = self.thread();
        self.answers().without_fence(thread, begins, ends).is_some()
    }

    fn may_fence(&self) -> bool {
        self.shared.captures.load(Ordering::Relaxed) == 0
    }

    fn fence(&self) -> Result<RecordedFence, Code> {
        let (_, ends) = self.window();
        let answers = &mut *self.answers();
        let fence = answers.next_fence(ends);
        let lane = &mut answers.of(self.thread()).quiet;
        let quiet = lane.next().filter(|&(at, _)| at < ends);
        // What comes first is what this fence is.
        match (fence, quiet) {
            (Some((at, What::Fence(number) | What::Reached(number))), quiet)
                if quiet.is_none_or(|(other, _)| at < other) =>
            {
                answers.take_fence();
                Ok(RecordedFence::Epoch(number))
            }
            (_, Some((_, What::Quiet(is_quiet)))) => {
                lane.used += 1;
                Ok(RecordedFence::Other { is_quiet })
            }
            _ => Ok(RecordedFence::Other { is_quiet: false }),
        }
    }

    fn fence_unless_done(&self) -> Result<Option<RecordedFence>, Code> {
        let is_done = {
            let answers = self.answers();
            matches!(answers.fences.next(), Some((_, What::Reached(_))))
        };
        let fence = self.fence()?;
        Ok((!is_done || !matches!(fence, RecordedFence::Epoch(_))).then_some(fence))
    }

    fn reached(&self, fence: &RecordedFence) -> Result<bool, Code> {
        match fence {
            RecordedFence::Epoch(number) => {
                let is_free = self.shared.is_free.load(Ordering::Relaxed);
                let how = if is_free {
                    Asking::Frees
                } else {
                    Asking::Needs
                };
                Ok(self
                    .answers()
                    .is_reached(*number, self.thread(), self.window(), how))
            }
            RecordedFence::Other { is_quiet } => Ok(*is_quiet),
        }
    }

    fn wait(&self, fence: &RecordedFence, _whose: Whose) -> Result<bool, Code> {
        match fence {
            RecordedFence::Epoch(number) => {
                Ok(self
                    .answers()
                    .is_reached(*number, self.thread(), self.window(), Asking::Waits))
            }
            RecordedFence::Other { is_quiet } => Ok(*is_quiet),
        }
    }

    fn wait_within(&self, fence: &RecordedFence, _most: Duration) -> Result<bool, Code> {
        self.wait(fence, Whose::Own)
    }

    fn synchronize(&self) -> Result<(), Code> {
        Ok(())
    }

    fn wait_by_free(&self, _whose: Whose) -> Result<bool, Code> {
        let (begins, ends) = self.window();
        let thread = self.thread();
        Ok(self.answers().ends_without_fence(thread, begins, ends))
    }
}
