//! Bringing together what stealing has scattered over a range.
//!
//! Invariant: only units of free blocks move, one thread at a time moves them, and a call
//! that fails leaves them mapped nowhere. Cost: four calls of the driver for each unit
//! that moves.

use crate::arena::Arena;
use crate::arena::mapped::Making;
use crate::arena::state::ArenaState;
use crate::arena::units::Claimed;
use crate::driver::Driver;
use crate::error::AllocError;
use crate::stats::StackId;
use crate::strategy::packing::Packing;
use crate::sync::atomic::Ordering;

impl<D: Driver> Arena<D> {
    /// In a free of a program that holds hardly anything: brings together what stealing
    /// has scattered, from the highest addresses to the lowest holes. What a program
    /// that repeats does next then finds its memory in one piece, and steals nothing.
    /// One that steals each time all the same is left alone after some.
    pub(super) fn bring_together(&self) {
        if !self.lies_scattered() || !self.driver.may_fence() {
            return;
        }
        let is_due = self.may_bring_together(&self.state.lock());
        let turn = is_due.then(|| self.try_enter_growth()).flatten();
        if self.holds() || turn.is_none() {
            return;
        }
        {
            let mut state = self.state.lock();
            state.put_back_reclaimable();
            state.end_empty_slabs();
            state.packing.iter_mut().for_each(Packing::brought_together);
        }
        let flight = self.quota.fly();
        while self.move_units() == Some(()) {}
        flight.lands();
    }

    /// Whether the program holds nothing any more, and something may be brought together:
    /// nobody keeps anything then.
    pub(super) fn ends_scattered(&self, state: &mut ArenaState<D::Fence>) -> bool {
        let ends = self.may_bring_together(state) && state.live().is_zero();
        if ends {
            state.recall();
        }
        ends
    }

    fn may_bring_together(&self, state: &ArenaState<D::Fence>) -> bool {
        let live = state.live_at_most();
        let may = |packing: &Packing| packing.may_bring_together(live);
        self.lies_scattered() && state.packing.as_ref().is_some_and(may)
    }

    fn lies_scattered(&self) -> bool {
        // Relaxed: it stands for itself.
        self.scattered.load(Ordering::Relaxed)
    }

    /// Moves free units from the highest addresses to the lowest hole; none where there
    /// are none to be moved, or a call failed.
    fn move_units(&self) -> Option<()> {
        let (mut making, from) = self.state.lock().claim_move()?;
        let moved = self.unmap_claim(from).map_err(AllocError::Driver);
        let moved = moved.and_then(|units| {
            making.units = units;
            self.map_units(StackId::NONE, &mut making)
        });
        let mut state = self.state.lock();
        if state.retired {
            drop(state);
            self.forget_units(making.units);
            return None;
        }
        state.heap.ranges.put_loose(making.units);
        state.end_claim(&making.claim);
        moved.ok()
    }
}

impl<F: Clone> ArenaState<F> {
    /// Claims the lowest hole, or a part of it, and units that fill it.
    fn claim_move(&mut self) -> Option<(Making, Claimed)> {
        let ((hole, to), (id, units)) = self.heap.scattered()?;
        let (claim, _) = self.heap.claim(hole, to);
        let from = self.claim_units(id, units);
        let making = Making {
            claim,
            at: to.address,
            units: Vec::new(),
            created: 0,
            short: None,
        };
        Some((making, from))
    }
}
