//! How the memory of a paused arena comes back.
//!
//! Invariant: all units are there before the first is mapped; where a step fails, what
//! was mapped is unmapped and what was taken goes back. Cost: up to three calls of the
//! driver for each unit, and one for each stretch that is restored.

use crate::address::Bytes;
use crate::arena::Arena;
use crate::arena::shortage::is_shortage;
use crate::driver::Driver;
use crate::driver::mapping::{Mapping, Unit};
use crate::error::{AllocError, Code};
use crate::heap::Span;
use crate::heap::ranges::Run;
use crate::stats::{Moved, Stays};

use super::backups::{Backups, sum_of};

impl<D: Driver> Arena<D> {
    /// Ends a pause, from whatever state it is in.
    ///
    /// # Errors
    /// As `resume`.
    pub(super) fn bring_back(&self, backups: &mut Backups) -> Result<Moved, Code> {
        let (gone, used) = {
            let mut state = self.state.lock();
            if state.retired {
                return Err(Code::INVALID_CONTEXT);
            }
            state.put_back_reclaimable();
            state.end_empty_slabs();
            state.drop_gone();
            (state.heap.gone_runs(), state.heap.used())
        };
        let unit = self.state.lock().heap.ranges.unit();
        let wanted = sum_of(&gone).get() / unit.get().max(1);
        let before = self.state.lock().heap.in_units();
        let mut came = Vec::new();
        let copied = self
            .units_for(usize::try_from(wanted).unwrap_or(usize::MAX))
            .and_then(|units| self.map_again(&gone, units, &mut came))
            .and_then(|()| self.admit_again())
            .and_then(|()| self.restore(backups, &used));
        let copied = copied.inspect_err(|_| {
            // Where a unit does not go it stays in its place until the next time.
            let _stays = self.take_away(came);
            self.release_loose();
        })?;
        let mut state = self.state.lock();
        if state.retired {
            return Err(Code::INVALID_CONTEXT);
        }
        state.run();
        backups.saved.clear();
        Ok(Moved {
            bytes: state.heap.in_units().saturating_sub(before),
            copied,
            stays: Stays::default(),
        })
    }

    /// So many units, from the driver where there are not enough. They are loose, and
    /// other requests get none while the arena is paused.
    fn units_for(&self, wanted: usize) -> Result<Vec<Unit>, Code> {
        let (mut units, unit) = {
            let mut state = self.state.lock();
            let units = state.heap.ranges.take_loose(wanted);
            (units, state.heap.ranges.unit())
        };
        let (mut failed, mut is_relieved) = (None, false);
        while units.len() < wanted {
            match self.create_one(unit) {
                Ok(one) => units.push(one),
                Err(error) if is_shortage(error) && !is_relieved && self.give_idle_back() => {
                    is_relieved = true;
                }
                Err(error) => {
                    failed = Some(match error {
                        AllocError::Driver(code) => code,
                        _ => Code::OUT_OF_MEMORY,
                    });
                    break;
                }
            }
        }
        let Some(code) = failed else {
            return Ok(units);
        };
        let mut state = self.state.lock();
        if state.retired {
            drop(state);
            self.forget_units(units);
            return Err(Code::INVALID_CONTEXT);
        }
        state.heap.ranges.put_loose(units);
        Err(code)
    }

    /// Gives back what is idle here, of plain memory, and beside it on the device; whether
    /// it is worth asking again.
    fn give_idle_back(&self) -> bool {
        let own = self.release_idle_chunks();
        self.relieve() || !own.is_zero()
    }

    /// Maps units where others are gone; `came` says where, also where it fails.
    fn map_again(
        &self,
        gone: &[Span],
        mut units: Vec<Unit>,
        came: &mut Vec<Run>,
    ) -> Result<(), Code> {
        let unit = self.state.lock().heap.ranges.unit();
        let mut failed = None;
        for span in gone {
            let count = usize::try_from(span.size.get() / unit.get()).unwrap_or(0);
            let rest = units.split_off(count.min(units.len()));
            let run = Run {
                at: span.address,
                units: std::mem::replace(&mut units, rest),
            };
            let mut mapped = 0;
            for &one in &run.units {
                if failed.is_some() {
                    break;
                }
                let below = Bytes::new(unit.get() * mapped as u64);
                let at = run.at.checked_add(below).unwrap_or(run.at);
                failed = self.driver.map(at, unit, one).err();
                mapped += usize::from(failed.is_none());
            }
            let (there, kept) = run.split_at(mapped, unit);
            let mut state = self.state.lock();
            if state.retired {
                drop(state);
                if let Some(there) = there {
                    let _lost = self.drop_run(there, unit);
                }
                let kept = kept.into_iter().flat_map(|kept| kept.units);
                self.forget_units(kept.chain(units));
                return Err(Code::INVALID_CONTEXT);
            }
            if let Some(there) = there {
                state.bring(&there, true);
                came.push(there);
            }
            if let Some(kept) = kept {
                state.heap.ranges.put_loose(kept.units);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Gives devices access to what was mapped since the pause.
    fn admit_again(&self) -> Result<(), Code> {
        let spans = {
            let state = self.state.lock();
            if state.retired {
                return Err(Code::INVALID_CONTEXT);
            }
            state.heap.unsure_runs()
        };
        let admit = |span: &Span| self.driver.admit(span.address, span.size);
        spans.iter().try_for_each(admit)
    }

    /// Copies back what was saved of these stretches; how many bytes that are.
    fn restore(&self, backups: &Backups, used: &[Span]) -> Result<Bytes, Code> {
        let mut copied = Bytes::ZERO;
        for part in backups.parts_of(used) {
            let Span { address, size } = part.span;
            self.driver.restore(address, size, part.to, part.offset)?;
            copied = copied.saturating_add(size);
        }
        Ok(copied)
    }
}
