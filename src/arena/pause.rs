//! Pause and resume: all mapped memory goes to the device, and comes back to the same
//! addresses with what it held.
//!
//! A pause waits for the work of all contexts, saves what live blocks hold, and only
//! then unmaps: a failure before that changes nothing. One that comes later is
//! undone by what ends a pause, from what was saved; where that fails as well, the arena
//! is paused, with some units still in their places. The end of a pause takes all units
//! from the driver first, and undoes what it did where any later step fails: the arena
//! is paused as before. So it runs or is paused, and never half.
//!
//! While an arena is paused nothing is handed out of its ranges, no unit of it is moved,
//! and requests that the cache cannot serve fail. Blocks can be freed; what they held
//! is not restored.
//!
//! Owns what is saved, which is kept for the next pause. Invariant: one thread at a time
//! pauses or resumes; what it has in its hands is in nobody's books, and the ranges do not
//! go with their context meanwhile. Cost: that of the driver's calls: one copy for each
//! stretch of blocks, some four calls for each unit.

mod again;
mod backups;

use std::time::Instant;

use crate::address::{Address, Bytes};
use crate::arena::Arena;
use crate::arena::fences::Extent;
use crate::arena::state::ArenaState;
use crate::driver::mapping::{Backup, Mapping};
use crate::driver::{Driver, Whose};
use crate::error::{AllocError, Code};
use crate::heap::Span;
use crate::heap::ranges::Run;
use crate::heap::ranges::paused::{Dropped, PausePlan};
use crate::patience::Patience;
use crate::stats::{Moved, PauseStats, StackId, Stays};

pub(super) use backups::Backups;
use backups::{LEAST_PIECE, PIECE, sum_of};

/// What becomes of the contents of live blocks.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Contents {
    /// They are as before when the pause ends.
    Keep,
    /// They are lost.
    Drop,
}

/// Held by the thread that pauses or resumes.
struct Transition<'a, D: Driver> {
    arena: &'a Arena<D>,
    /// The ranges, which stay meanwhile.
    kept: Vec<Span>,
}

impl<D: Driver> Drop for Transition<'_, D> {
    fn drop(&mut self) {
        let (left, unit) = {
            let mut state = self.arena.state.lock();
            state.moves = false;
            if !state.retired {
                state.heap.let_ranges_go(&self.kept);
                return;
            }
            let left = std::mem::take(&mut state.left);
            (left, state.heap.ranges.unit())
        };
        self.arena.give_remains_back(left, unit);
        for span in &self.kept {
            let _lost = self.arena.driver.unreserve(span.address, span.size);
        }
    }
}

impl<D: Driver> Arena<D> {
    /// Whether it is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.state.lock().heap.is_paused()
    }

    /// Refuses a request while the arena is paused.
    pub(super) fn refuse_if_paused(&self) -> Result<(), AllocError> {
        if self.is_paused() {
            return Err(AllocError::Paused);
        }
        Ok(())
    }

    /// Gives all mapped memory to the device, and keeps the addresses; what live blocks
    /// hold is saved, or lost. Waits for the work of all contexts. Pausing what is
    /// paused does nothing. The program promises that no work uses the memory until it
    /// is resumed.
    ///
    /// # Errors
    /// [`Code::CAPTURE_UNSUPPORTED`] while a stream captures a graph;
    /// [`Code::NOT_SUPPORTED`] where no memory is mapped by the strategy in force; or
    /// what the driver or the host answers: `is_paused` says what came of it.
    pub fn pause(&self, contents: Contents) -> Result<Moved, Code> {
        let Some(mut transition) = self.begin(true)? else {
            return Ok(Moved::default());
        };
        let start = Instant::now();
        let result = self.counted(|| self.pause_now(contents, &mut transition));
        self.note_pause(&result, start, |stats| {
            stats.last = result.unwrap_or(stats.last);
            (&mut stats.pauses, &mut stats.pause_ns)
        });
        result
    }

    /// Waits for all work that was given so far, so that a pause that comes next waits
    /// only for what is given later; nothing where there is nothing to pause.
    ///
    /// # Errors
    /// As `pause`.
    pub fn await_work_before_pause(&self) -> Result<(), Code> {
        let is_meant = {
            let state = self.state.lock();
            state.heap.has_ranges() && !state.retired && !state.heap.is_paused()
        };
        if is_meant {
            self.counted(|| self.wait_for_everybody())?;
        }
        Ok(())
    }

    /// Takes the memory from the device again, for the same addresses, with what live
    /// blocks held. Resuming what runs does nothing.
    ///
    /// # Errors
    /// [`Code::OUT_OF_MEMORY`] where the device has not enough;
    /// [`Code::CAPTURE_UNSUPPORTED`] while a stream captures a graph; or what the driver
    /// answers. The arena is paused as before.
    pub fn resume(&self) -> Result<Moved, Code> {
        let Some(mut transition) = self.begin(false)? else {
            return Ok(Moved::default());
        };
        let start = Instant::now();
        let result = self.counted(|| {
            if !self.driver.may_fence() {
                return Err(Code::CAPTURE_UNSUPPORTED);
            }
            self.close_and_poll(Extent::All);
            transition.kept = self.state.lock().heap.keep_ranges();
            self.with_backups(|backups| self.bring_back(backups))
        });
        self.note_pause(&result, start, |stats| {
            (&mut stats.resumes, &mut stats.resume_ns)
        });
        result
    }

    /// Gives the host memory back that is kept for the next pause; nothing while the
    /// arena is paused.
    pub fn drop_backups(&self) {
        if let Ok(Some(_transition)) = self.begin(true) {
            let backups = std::mem::take(&mut self.state.lock().backups);
            self.give_backups_back(backups.pieces);
            self.state.lock().counters.pause_stats().backups = Bytes::ZERO;
        }
    }

    pub(super) fn give_backups_back(&self, pieces: Vec<(Backup, Bytes)>) {
        for (backup, _) in pieces {
            self.driver.drop_backup(backup);
        }
    }

    /// Waits until no other thread pauses or resumes; none where there is nothing left
    /// to do.
    fn begin(&self, pauses: bool) -> Result<Option<Transition<'_, D>>, Code> {
        let mut patience = Patience::new();
        loop {
            {
                let mut state = self.state.lock();
                if state.retired {
                    return Err(Code::INVALID_CONTEXT);
                }
                if !state.moves {
                    if state.heap.is_paused() == pauses {
                        return Ok(None);
                    }
                    state.moves = true;
                    break;
                }
            }
            patience.pause();
        }
        Ok(Some(Transition {
            arena: self,
            kept: Vec::new(),
        }))
    }

    /// Counts what came of a transition.
    fn note_pause(
        &self,
        result: &Result<Moved, Code>,
        start: Instant,
        which: impl FnOnce(&mut PauseStats) -> (&mut u64, &mut u64),
    ) {
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut state = self.state.lock();
        let stats = state.counters.pause_stats();
        let (count, sum) = which(stats);
        *sum = sum.saturating_add(ns);
        *count += u64::from(result.is_ok());
        stats.failures += u64::from(result.is_err());
    }

    /// Calls `work` with the backups, which no other thread has meanwhile.
    fn with_backups<R>(&self, work: impl FnOnce(&mut Backups) -> R) -> R {
        let mut backups = std::mem::take(&mut self.state.lock().backups);
        let result = work(&mut backups);
        let mut state = self.state.lock();
        if state.retired {
            drop(state);
            self.give_backups_back(backups.pieces);
        } else {
            state.counters.pause_stats().backups = backups.size();
            state.backups = backups;
        }
        result
    }

    fn pause_now(
        &self,
        contents: Contents,
        transition: &mut Transition<'_, D>,
    ) -> Result<Moved, Code> {
        if self.mapping().is_none() && !self.state.lock().heap.has_ranges() {
            return Err(Code::NOT_SUPPORTED);
        }
        // What has the driver's own address goes back by the waits.
        let direct = self.state.lock().limbo.direct();
        // Once before requests are refused, so that they are not refused for long.
        self.wait_for_everybody()?;
        let mut patience = Patience::new();
        while !self.state.lock().stop() {
            if self.state.lock().retired {
                return Err(Code::INVALID_CONTEXT);
            }
            patience.pause();
        }
        transition.kept = self.state.lock().heap.keep_ranges();
        let waited = self.wait_for_everybody();
        self.with_backups(|backups| {
            let had = backups.pieces.len();
            let saved = waited.and_then(|()| self.save_used(contents, backups));
            let plan = saved.inspect_err(|_| {
                self.state.lock().run();
                // The host may be short of it.
                self.give_backups_back(backups.pieces.split_off(had));
            })?;
            let copied = sum_of(&backups.saved.iter().map(|s| s.span).collect::<Vec<_>>());
            let before = self.state.lock().heap.in_units();
            if let Err(code) = self.take_away(plan.runs) {
                // What cannot be brought back stays away.
                let _paused = self.bring_back(backups);
                return Err(code);
            }
            self.release_loose();
            let idle = self.release_idle_chunks();
            let (after, waits, stays) = {
                let mut state = self.state.lock();
                state.drop_gone();
                let stays = state.stays(plan.exported);
                (state.heap.in_units(), state.limbo.direct(), stays)
            };
            let plain = idle.saturating_add(direct.saturating_sub(waits));
            Ok(Moved {
                bytes: before.saturating_sub(after).saturating_add(plain),
                copied,
                stays,
            })
        })
    }

    /// Waits for all work that was given so far, of whatever context, and for limbo.
    fn wait_for_everybody(&self) -> Result<(), Code> {
        if !self.driver.may_fence() {
            return Err(Code::CAPTURE_UNSUPPORTED);
        }
        let fence = self.driver.fence()?;
        if !self.driver.wait(&fence, Whose::All)? {
            return Err(Code::NOT_READY);
        }
        self.wait_for_all(Whose::All);
        Ok(())
    }

    /// Saves what blocks hold that are not free; what is to go then.
    fn save_used(&self, contents: Contents, backups: &mut Backups) -> Result<PausePlan, Code> {
        let plan = {
            let mut state = self.state.lock();
            if state.retired {
                return Err(Code::INVALID_CONTEXT);
            }
            state.put_back_reclaimable();
            state.end_empty_slabs();
            state.heap.pause_plan()
        };
        backups.saved.clear();
        if contents == Contents::Drop {
            return Ok(plan);
        }
        let mut lacks = sum_of(&plan.used).saturating_sub(backups.size());
        while !lacks.is_zero() {
            let size = lacks.round_up(LEAST_PIECE).unwrap_or(lacks).min(PIECE);
            backups
                .pieces
                .push((self.driver.take_backup(size, lacks)?, size));
            lacks = lacks.saturating_sub(size);
        }
        let saved = backups.lay_out(&plan.used);
        for part in &saved {
            let Span { address, size } = part.span;
            self.driver.save(address, size, part.to, part.offset)?;
        }
        backups.saved = saved;
        Ok(plan)
    }

    /// Unmaps runs, whose units are loose then.
    ///
    /// # Errors
    /// What the driver answers: the rest is mapped as before.
    fn take_away(&self, runs: Vec<Run>) -> Result<(), Code> {
        let unit = self.state.lock().heap.ranges.unit();
        for run in runs {
            {
                let mut state = self.state.lock();
                if state.retired {
                    return Err(Code::INVALID_CONTEXT);
                }
                state.take_away(&run);
            }
            let mut failed = None;
            let (gone, stays) = self.unmap_run(run, &mut failed);
            let mut state = self.state.lock();
            if state.retired {
                drop(state);
                self.forget_units(gone.into_iter().flat_map(|gone| gone.units));
                if let Some(stays) = stays {
                    let _lost = self.drop_run(stays, unit);
                }
                return Err(Code::INVALID_CONTEXT);
            }
            if let Some(stays) = stays {
                state.bring(&stays, false);
            }
            if let Some(gone) = gone {
                state.heap.ranges.put_loose(gone.units);
            }
            if let Some(code) = failed {
                return Err(code);
            }
        }
        Ok(())
    }

    /// Gives all units that are mapped nowhere to the driver; what that does not take
    /// stays.
    fn release_loose(&self) {
        let flight = self.quota.fly();
        let (units, unit) = {
            let mut state = self.state.lock();
            let units = state.heap.ranges.take_loose(usize::MAX);
            (units, state.heap.ranges.unit())
        };
        let mut refused = Vec::new();
        for one in units {
            if self.driver.release(one).is_err() {
                refused.push(one);
                continue;
            }
            let mut state = self.state.lock();
            if !state.retired {
                state.heap.ranges.let_go(1);
                state.counters.units_released(1, unit);
                drop(state);
                self.quota.put_back(unit);
                flight.lands();
            }
        }
        let mut state = self.state.lock();
        if !state.retired {
            state.heap.ranges.put_loose(refused);
        }
    }
}

impl<F: Clone> ArenaState<F> {
    /// Nothing is handed out from now on, and threads keep nothing; false, and nothing
    /// done, where units are on their way, or a thread relies on the memory of a block.
    fn stop(&mut self) -> bool {
        if self.retired || self.relied_on > 0 || !self.heap.begin_pause() {
            return false;
        }
        self.counters.pause_stats().is_paused = true;
        self.recall();
        self.put_back_reclaimable();
        true
    }

    /// Whether the memory around an address is there, and no pause is taking it away.
    pub(super) fn stays_put(&self, address: Address) -> bool {
        let around = self.heap.locate(address).filter(|(_, at)| at.is_mapped);
        let Some((id, _)) = around.filter(|_| self.heap.is_paused()) else {
            return true;
        };
        !self.moves && !self.heap.has_gone(self.heap.blocks.get(id))
    }

    /// Makes holes of what is gone and was freed since.
    pub(super) fn forget_gone(&mut self) {
        if self.heap.is_paused() && !self.moves {
            self.end_empty_slabs();
            self.drop_gone();
        }
    }

    /// Everything is as before the pause.
    fn run(&mut self) {
        self.heap.end_pause();
        let stats = self.counters.pause_stats();
        stats.is_paused = false;
        stats.stays = Stays::default();
    }

    /// Counts what stays.
    fn stays(&mut self, exported: Bytes) -> Stays {
        let units = self.heap.in_units();
        let stays = Stays {
            plain: self.counters.reserved().saturating_sub(units),
            exported,
            refused: units.saturating_sub(exported),
        };
        self.counters.pause_stats().stays = stays;
        stays
    }

    fn take_away(&mut self, run: &Run) {
        let slabs = self.heap.take_away(run);
        let span = self.heap.span_of(run);
        self.counters.units_displaced(span);
        let unit = self.heap.ranges.unit();
        self.counters.units_gone(span.size, slabs, unit);
    }

    fn bring(&mut self, run: &Run, is_new: bool) {
        let slabs = self.heap.bring(run, is_new);
        let span = self.heap.span_of(run);
        self.counters.units_placed(span, StackId::NONE);
        let unit = self.heap.ranges.unit();
        self.counters.units_back(span.size, slabs, unit);
    }

    /// What is gone and has become free needs no memory.
    fn drop_gone(&mut self) {
        for Dropped {
            splits,
            free,
            bytes,
        } in self.heap.drop_gone()
        {
            self.counters.claimed(splits);
            self.counters.units_dropped(bytes);
            self.counters.ended_claim(&free);
        }
    }
}
