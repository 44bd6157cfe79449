//! Units between the driver and the heap: created, mapped, unmapped and given back.
//!
//! Invariant: what a thread has in its hands the heap has claimed for it, and counts as
//! reserved; where the context ends meanwhile, the thread gives it back itself. A call
//! that fails leaves a unit mapped, or mapped nowhere, or, where it cannot be unmapped
//! without having been admitted, out of reach until the context ends. Cost: a call of
//! the driver for each unit that is created, mapped or released, and one for each run
//! that is admitted or unmapped.

use crate::address::{Address, Bytes};
use crate::arena::Arena;
use crate::arena::mapped::Making;
use crate::arena::state::ArenaState;
use crate::driver::Driver;
use crate::driver::mapping::{Mapping, Unit};
use crate::error::{AllocError, Code};
use crate::heap::Span;
use crate::heap::block::BlockId;
use crate::heap::ranges::{Claim, Remains, Run};
use crate::recording::Mark;
use crate::stats::StackId;

/// Whole units that were claimed to be unmapped. They are known from that moment on: when
/// the context ends, they are the claiming thread's to give back.
pub(super) struct Claimed {
    claim: Claim,
    runs: Vec<Run>,
}

impl<D: Driver> Arena<D> {
    /// Gives every device that may use the memory access to all of it, after one was
    /// added. What refuses once is asked again, unit by unit.
    ///
    /// # Errors
    /// What the driver answers then for something that is mapped; the rest is as it was.
    pub fn admit_all(&self) -> Result<(), Code> {
        // What is being mapped was admitted without it: not before that is in the heap.
        let _turn = self.enter_growth();
        let runs = self.state.lock().heap.all_mapped();
        let unit = self.state.lock().heap.ranges.unit();
        for run in runs {
            let size = Bytes::new(unit.get() * run.units.len() as u64);
            if self.driver.admit(run.at, size).is_ok() {
                continue;
            }
            // A part of it may be on its way elsewhere.
            for n in 0..run.units.len() as u64 {
                let at = run.at.checked_add(Bytes::new(n * unit.get()));
                match self.driver.admit(at.unwrap_or(run.at), unit) {
                    Ok(()) | Err(Code::INVALID_VALUE) => {}
                    refused => return refused,
                }
            }
        }
        Ok(())
    }

    /// The program is about to ask for a handle of the memory behind this address, which
    /// it can give to others. No pause begins before `end_export` is called. False, and
    /// `end_export` is not to be called, where a pause has taken that memory or is
    /// running.
    pub fn begin_export(&self, address: Address) -> bool {
        let mut state = self.state.lock();
        let may = state.stays_put(address);
        state.relied_on += u32::from(may);
        may
    }

    /// Follows `begin_export`: others may now map this many bytes from the address on.
    /// Zero where the program got no handle.
    pub fn end_export(&self, address: Address, size: Bytes) {
        let mut state = self.state.lock();
        state.relied_on -= 1;
        let located = state.heap.locate(address).map(|(_, located)| located);
        if located.is_some_and(|located| located.is_mapped) {
            state.heap.note_exported(Span { address, size });
        }
    }

    /// Takes units from the driver, up to so many.
    pub(super) fn create_units(&self, most: usize, making: &mut Making) {
        let unit = self.state.lock().heap.ranges.unit();
        for created in 0..most as u64 {
            match self.create_one(unit) {
                Ok(one) => making.units.push(one),
                Err(error) => {
                    if let AllocError::Driver(code) = error {
                        self.tell(&Mark::Created(created));
                        self.tell(&Mark::Refused {
                            size: unit,
                            code: code.get(),
                        });
                    }
                    making.short = Some(error);
                    return;
                }
            }
            making.created += 1;
        }
    }

    /// Takes a unit from the driver into the caller's hands.
    pub(super) fn create_one(&self, unit: Bytes) -> Result<Unit, AllocError> {
        let mut asked = self.quota.ask(unit).ok_or(AllocError::Limit)?;
        let created = self.driver.create(unit).map_err(AllocError::Driver)?;
        let mut state = self.state.lock();
        if state.retired {
            drop(state);
            let _lost = self.driver.release(created);
            return Err(AllocError::Driver(Code::INVALID_CONTEXT));
        }
        asked.got(unit);
        state.counters.units_taken(1, unit);
        state.heap.ranges.hold(1);
        Ok(created)
    }

    /// Takes whole units of free blocks, up to so many.
    pub(super) fn steal(&self, most: usize, making: &mut Making) {
        let mut left = most;
        while left > 0 && self.driver.may_fence() {
            let Some(claimed) = self.state.lock().claim_idle(left) else {
                return;
            };
            let Ok(units) = self.unmap_claim(claimed) else {
                return;
            };
            left -= units.len().min(left);
            making.units.extend(units);
        }
    }

    /// Unmaps a claim of whole units; they are in the caller's hands then.
    ///
    /// # Errors
    /// Where nothing more should be unmapped now. What the driver did unmap is
    /// mapped nowhere.
    pub(super) fn unmap_claim(&self, claimed: Claimed) -> Result<Vec<Unit>, Code> {
        let Claimed { claim, runs } = claimed;
        let mut failed = None;
        let mut units = Vec::new();
        for run in runs {
            let (gone, stays) = match failed {
                None => self.unmap_run(run, &mut failed),
                Some(_) => (None, Some(run)),
            };
            let mut state = self.state.lock();
            if state.retired {
                drop(state);
                self.forget_units(gone.into_iter().chain(stays).flat_map(|run| run.units));
                continue;
            }
            if let Some(stays) = stays {
                state.heap.stays(&claim, &stays);
            }
            if let Some(gone) = gone {
                state.displaced(&claim, &gone);
                units.extend(gone.units);
            }
        }
        let mut state = self.state.lock();
        if state.retired {
            drop(state);
            self.forget_units(units);
            return Err(Code::INVALID_CONTEXT);
        }
        state.end_claim(&claim);
        match failed {
            None => Ok(units),
            Some(code) => {
                state.heap.ranges.put_loose(units);
                Err(code)
            }
        }
    }

    /// Unmaps a run; what was, and what could not be.
    pub(super) fn unmap_run(
        &self,
        run: Run,
        failed: &mut Option<Code>,
    ) -> (Option<Run>, Option<Run>) {
        let unit = self.unit_size();
        let runs = self.mapping().is_some_and(|traits| traits.unmaps_runs);
        let step = if runs { run.units.len() } else { 1 };
        let mut done = 0;
        while done < run.units.len() {
            let at = run.at.checked_add(Bytes::new(unit.get() * done as u64));
            let size = Bytes::new(unit.get() * step as u64);
            match self.driver.unmap(at.unwrap_or(run.at), size) {
                Ok(()) => done += step,
                Err(code) => {
                    *failed = Some(code);
                    break;
                }
            }
        }
        run.split_at(done, unit)
    }

    /// Maps the units to the places of the window that have none, and gives devices
    /// access to them.
    pub(super) fn map_units(&self, stack: StackId, making: &mut Making) -> Result<(), AllocError> {
        let holes = self.state.lock().heap.missing(&making.claim);
        let unit = self.state.lock().heap.ranges.unit();
        for hole in holes {
            let count = usize::try_from(hole.size.get() / unit.get()).unwrap_or(0);
            let rest = making.units.split_off(count.min(making.units.len()));
            let run = Run {
                at: hole.address,
                units: std::mem::replace(&mut making.units, rest),
            };
            let (placed, mapped) = self.map_run(run, unit, making);
            let Some(run) = placed else {
                return mapped;
            };
            let mut state = self.state.lock();
            if state.retired {
                drop(state);
                let _lost = self.drop_run(run, unit);
                return Err(AllocError::Driver(Code::INVALID_CONTEXT));
            }
            state.placed(&making.claim, run, stack);
            drop(state);
            mapped?;
        }
        Ok(())
    }

    /// Maps a run and admits it; what of it can be used then, and how that went. Where
    /// a unit cannot be mapped, those before it stay: nothing may be unmapped while a
    /// stream captures. The units that are mapped nowhere are in the caller's hands again.
    fn map_run(
        &self,
        run: Run,
        unit: Bytes,
        making: &mut Making,
    ) -> (Option<Run>, Result<(), AllocError>) {
        let size = |units: usize| Bytes::new(unit.get() * units as u64);
        let mut mapped = 0;
        let mut failed = None;
        for one in &run.units {
            let at = run.at.checked_add(size(mapped)).unwrap_or(run.at);
            if let Err(code) = self.driver.map(at, unit, *one) {
                failed = Some(code);
                break;
            }
            mapped += 1;
        }
        let (there, rest) = run.split_at(mapped, unit);
        making
            .units
            .extend(rest.into_iter().flat_map(|run| run.units));
        let admitted = there
            .as_ref()
            .map_or(Ok(()), |run| self.driver.admit(run.at, size(mapped)));
        let there = match admitted {
            Ok(()) => there,
            Err(code) => {
                failed = failed.or(Some(code));
                there.into_iter().for_each(|run| self.take_off(run, making));
                None
            }
        };
        (
            there,
            failed.map_or(Ok(()), |code| Err(AllocError::Driver(code))),
        )
    }

    /// Unmaps a run that could not be admitted. Nobody has touched it: it can go
    /// whatever the device does.
    fn take_off(&self, run: Run, making: &mut Making) {
        let unit = self.unit_size();
        for (n, one) in run.units.into_iter().enumerate().rev() {
            let at = run.at.checked_add(Bytes::new(unit.get() * n as u64));
            let at = at.unwrap_or(run.at);
            if self.driver.may_fence() && self.driver.unmap(at, unit).is_ok() {
                making.units.push(one);
                continue;
            }
            // It stays there, out of reach, until the context ends.
            let mut state = self.state.lock();
            if state.retired {
                making.units.push(one);
            } else {
                state.heap.stuck(&making.claim, at, one);
            }
        }
    }

    /// Gives units back that are in nobody's books any more.
    pub(super) fn forget_units(&self, units: impl IntoIterator<Item = Unit>) {
        for unit in units {
            let _lost = self.driver.release(unit);
        }
    }

    /// Gives whole units that are free back to the driver, up to `most` bytes or a
    /// little more, and the ranges that are empty then; returns how many bytes that
    /// were.
    pub(super) fn release_units(&self, most: Bytes) -> Bytes {
        let mut released = Bytes::ZERO;
        let is_idle = || {
            let state = self.state.lock();
            state.heap.is_paused() || state.heap.ranges.unit().is_zero()
        };
        if self.holds() || is_idle() {
            return released;
        }
        let flight = self.quota.fly();
        self.state.lock().end_empty_slabs();
        while released < most {
            let unit = self.unit_size();
            let left = most.saturating_sub(released).get().div_ceil(unit.get());
            let left = usize::try_from(left).unwrap_or(usize::MAX);
            let loose = self.state.lock().heap.ranges.take_loose(left);
            let units = if loose.is_empty() {
                let claimed = self.driver.may_fence().then(|| {
                    let mut state = self.state.lock();
                    state.claim_idle(left)
                });
                let Some(claimed) = claimed.flatten() else {
                    break;
                };
                let Ok(units) = self.unmap_claim(claimed) else {
                    break;
                };
                units
            } else {
                loose
            };
            let bytes = Bytes::new(unit.get().saturating_mul(units.len() as u64));
            self.give_units_back(units, unit);
            released = released.saturating_add(bytes);
            flight.lands();
        }
        let empty = self.state.lock().heap.take_empty_ranges();
        for span in empty {
            let _lost = self.driver.unreserve(span.address, span.size);
        }
        released
    }

    /// Before plain memory is the last that is left for a request: gives back the units
    /// that hold it up, where they could not be mapped.
    pub(super) fn release_what_is_not_mapped(&self, request: Bytes) {
        let idle = self.state.lock().heap.idle_units();
        if idle.is_zero() {
            return;
        }
        let Ok(available) = self.available() else {
            return;
        };
        let lacks = request.saturating_sub(available);
        if !lacks.is_zero() && lacks <= idle {
            self.release_units(lacks);
        }
    }

    /// Gives units back that the caller has in its hands.
    pub(super) fn give_units_back(&self, units: Vec<Unit>, size: Bytes) {
        for unit in units {
            let counts = {
                let mut state = self.state.lock();
                if !state.retired {
                    state.heap.ranges.let_go(1);
                    state.counters.units_released(1, size);
                }
                !state.retired
            };
            let result = self.driver.release(unit);
            // The end of the context has put it back already, if that came first.
            if counts && (result.is_ok() || !self.state.lock().loses(size)) {
                self.quota.put_back(size);
            }
        }
    }

    /// Gives back what was mapped when the context ended. No work uses it any more.
    pub(super) fn give_remains_back(&self, remains: Remains, unit: Bytes) {
        let Remains {
            runs,
            loose,
            ranges,
        } = remains;
        let mut stuck = Vec::new();
        for run in runs {
            let at = run.at;
            stuck.extend(self.drop_run(run, unit).err().map(|_| at));
        }
        self.forget_units(loose);
        for span in ranges {
            let is_in =
                |at: &Address| *at >= span.address && at.offset_from(span.address) < span.size;
            // Addresses that memory is still mapped to stay reserved.
            if !stuck.iter().any(is_in) {
                let _lost = self.driver.unreserve(span.address, span.size);
            }
        }
    }

    /// Unmaps a run unit by unit, and gives its units back whatever comes of that.
    ///
    /// # Errors
    /// What the driver answers where it does not unmap one.
    pub(super) fn drop_run(&self, run: Run, unit: Bytes) -> Result<(), Code> {
        let mut unmapped = Ok(());
        for n in 0..run.units.len() as u64 {
            let at = run.at.checked_add(Bytes::new(unit.get() * n));
            let result = self.driver.unmap(at.unwrap_or(run.at), unit);
            unmapped = unmapped.and(result);
        }
        self.forget_units(run.units);
        unmapped
    }
}

impl<F: Clone> ArenaState<F> {
    /// Claims whole units of one free block, up to so many.
    fn claim_idle(&mut self, most: usize) -> Option<Claimed> {
        let (id, whole) = self.heap.idle_part(most)?;
        Some(self.claim_units(id, whole))
    }

    /// Claims whole units of a free block.
    pub(super) fn claim_units(&mut self, id: BlockId, whole: Span) -> Claimed {
        let (claim, splits) = self.heap.claim_units(id, whole);
        self.counters.claimed(splits);
        let runs = self.heap.mapped_runs(&claim);
        Claimed { claim, runs }
    }

    /// Units are mapped in a claim.
    fn placed(&mut self, claim: &Claim, run: Run, stack: StackId) {
        let span = self.heap.span_of(&run);
        self.heap.placed(claim, run);
        self.counters.units_placed(span, stack);
    }

    /// Units were unmapped in a claim.
    fn displaced(&mut self, claim: &Claim, run: &Run) {
        self.heap.displaced(claim, run);
        self.counters.units_displaced(self.heap.span_of(run));
    }
}
