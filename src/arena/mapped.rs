//! A miss under `mapped`: memory for a window of a range.
//!
//! What the window lacks comes from the driver while that stays within a little of the
//! most that was live (the bound of `strategy::packing`). Beyond it, what the program
//! freed is waited for as in `pack`, and then whole units of free blocks elsewhere are
//! *stolen*: unmapped there and mapped here. No block ever moves, and a unit with a live
//! byte stays where it is.
//!
//! An unmapping does not wait, so only free blocks give units: the reuse rule has seen a
//! fence behind their last use, in all contexts. While a stream captures nothing is
//! unmapped, so nothing is stolen.
//!
//! Owns nothing; what a thread has in its hands between two looks at the state, the
//! heap has claimed for it. Invariant: one thread at a time makes a window, and waits
//! for nothing meanwhile; where a call fails, what there is goes to the loose units, and
//! every claim ends. Cost: for each unit that the driver gives or that is stolen up to
//! four calls.

use crate::address::{Address, Bytes};
use crate::arena::Arena;
use crate::arena::hit::Want;
use crate::arena::shortage::{Need, is_shortage};
use crate::arena::state::ArenaState;
use crate::config::StrategyKind;
use crate::driver::mapping::{Mapping, MappingTraits, Unit};
use crate::driver::{Driver, PAGE};
use crate::error::{AllocError, Code};
use crate::heap::Span;
use crate::heap::block::BlockId;
use crate::heap::fit::Search;
use crate::heap::ranges::Claim;
use crate::heap::ranges::window::Window;
use crate::recording::{ArenaOrder, Mark};
use crate::strategy::packing::{Packing, Room};
use crate::strategy::{Pool, Strategy, mapped};
use crate::sync::atomic::{AtomicBool, Ordering};

/// Where the units of a window come from, beside those that are mapped nowhere.
#[derive(Copy, Clone, Debug)]
pub(super) struct Supply {
    /// How many the driver gives before any is stolen.
    pub(super) first: usize,
    /// Whether the next are stolen from free blocks.
    pub(super) steals: bool,
    /// How many the driver has in all; what is still missing comes from it.
    pub(super) most: usize,
}

/// What a window would take.
struct Plan {
    /// There is so little room that what was freed is waited for first.
    is_tight: bool,
    /// Units that have to come from somewhere.
    lacks: usize,
    /// How many of them the driver may give at once.
    allowed: usize,
    /// How many the driver has.
    available: usize,
}

/// A window on its way.
pub(super) struct Making {
    pub(super) claim: Claim,
    /// Where the request's block is to begin.
    pub(super) at: Address,
    pub(super) units: Vec<Unit>,
    /// How many of its units the driver gave for it.
    pub(super) created: u64,
    /// Why there are not as many as are wanted.
    pub(super) short: Option<AllocError>,
}

/// So many units that fit into these bytes.
fn whole_units(bytes: Bytes, unit: Bytes) -> usize {
    usize::try_from(bytes.get() / unit.get().max(1)).unwrap_or(usize::MAX)
}

impl<D: Driver> Arena<D> {
    /// What there is of virtual memory, where misses are to be served by it; none while
    /// that cannot be found out.
    pub(super) fn mapping(&self) -> Option<MappingTraits> {
        // Relaxed: it stands for itself.
        if !matches!(self.strategy, Strategy::Mapped(_)) || self.plain.load(Ordering::Relaxed) {
            return None;
        }
        if let Some(known) = self.mapping.get() {
            return *known;
        }
        // No driver call is made while others wait for the answer.
        let traits = self.driver.mapping_traits().ok()?;
        self.tell(&Mark::Mapping {
            granule: traits.map_or(Bytes::ZERO, |traits| traits.granule),
            unmaps_runs: traits.is_some_and(|traits| traits.unmaps_runs),
        });
        *self.mapping.get_or_init(|| traits)
    }

    /// The strategy that chunks are taken by: that of the options, unless the device
    /// cannot do it, or something happened since that does not go with it.
    #[must_use]
    pub fn strategy_in_force(&self) -> StrategyKind {
        self.strategy.kind(self.not_mapped().is_some())
    }

    /// Why memory is not mapped, by the strategy and the options, by the device, or by
    /// what happened since; none where it is. In a few words or an option's name.
    pub fn not_mapped(&self) -> Option<&'static str> {
        let device = || {
            let cannot = self.mapping.get().is_some_and(Option::is_none);
            cannot.then_some("the device")
        };
        // Relaxed: they stand for themselves.
        let is = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        let asked = || is(&self.plain).then_some("an IPC handle was asked for");
        let lacks = || is(&self.lacks_addresses).then_some("no addresses");
        let by_options = self.strategy.not_mapped();
        by_options.or_else(device).or_else(lacks).or_else(asked)
    }

    /// From now on chunks are taken as under `auto_growth`: memory that is mapped cannot
    /// be shared by CUDA's old handles. What is mapped stays.
    pub fn grow_plainly(&self) {
        // Relaxed: it stands for itself.
        if !self.plain.swap(true, Ordering::Relaxed) {
            self.tell(&Mark::Order(ArenaOrder::GrowPlainly));
        }
    }

    /// Serves a request that the cache could not, by a window.
    pub(super) fn serve_by_window(&self, want: Want, need: &Need) -> Result<Address, AllocError> {
        let may_wait = self.driver.may_fence() && !self.holds();
        let available = self.available().unwrap_or(Bytes::MAX);
        let plan = self.plan(want, available);
        let waits_first = plan.is_tight && may_wait;
        if !waits_first && let Some(address) = self.state.lock().take_by_slabs(want) {
            return Ok(address);
        }
        let all_new = Supply {
            first: plan.lacks,
            steals: false,
            most: plan.available,
        };
        if !may_wait || !plan.is_tight && plan.lacks <= plan.allowed {
            return self.window_or_last_resort(want, need, all_new);
        }
        self.state.lock().recall();
        let newest = self.settle_soon();
        loop {
            if let Some(address) = self.take(&want) {
                return Ok(address);
            }
            if !newest.is_some_and(|newest| self.is_patient() && self.wait_briefly(newest)) {
                break;
            }
        }
        if waits_first && let Some(address) = self.state.lock().take_by_slabs(want) {
            return Ok(address);
        }
        let supply = Supply {
            first: plan.allowed,
            steals: true,
            most: plan.available,
        };
        self.window_or_last_resort(want, need, supply)
    }

    fn window_or_last_resort(
        &self,
        want: Want,
        need: &Need,
        supply: Supply,
    ) -> Result<Address, AllocError> {
        match self.make_window(want, supply) {
            Err(error) if is_shortage(error) => {
                self.state.lock().recall();
                let opened = self.open(want);
                opened.map_or_else(|| self.last_resort(want, need, error), Ok)
            }
            // What cannot be mapped may be had plainly, as without us.
            Err(AllocError::Driver(code)) if code != Code::INVALID_CONTEXT => {
                self.release_what_is_not_mapped(want.fit.request);
                self.grow(want, need)
            }
            ended => ended,
        }
    }

    fn is_patient(&self) -> bool {
        let state = self.state.lock();
        state.packing.as_ref().is_none_or(Packing::is_patient)
    }

    /// What a window would take, and what of it may come from the driver at once.
    fn plan(&self, want: Want, available: Bytes) -> Plan {
        let unit = self.unit_size();
        let mut state = self.state.lock();
        let most = state.units(whole_units(available, unit));
        let missing = match want.fit.pool {
            Pool::Small => 1,
            Pool::Large | Pool::Oversize => {
                let window = state.heap.window(want.fit.size, most);
                let all = || mapped::units_of(want.fit.size, unit);
                window.map_or_else(all, |window| window.missing)
            }
        };
        let lacks = missing.saturating_sub(state.heap.ranges.loose());
        let (live, reserved) = (state.live_at_most(), state.counters.reserved());
        let (pieces, lacking) = (state.in_pieces(), state.heap.ranges.bytes(lacks));
        let packing = state.packing.as_mut().filter(|packing| packing.is_on());
        let left = packing.as_ref().map_or(Bytes::MAX, |packing| {
            // The window's own edges are no reason to wait.
            let bound = packing.bound(live, want.fit.size).saturating_add(unit);
            bound.saturating_sub(reserved)
        });
        // A unit that is taken, or divided by a slab, while the device lags behind is not
        // whole again before what lies in it is freed.
        let is_tight = packing.is_some_and(|packing| {
            let capacity = reserved.saturating_add(available);
            packing.room(None, reserved.saturating_add(lacking), capacity, pieces) != Room::Ample
        });
        Plan {
            is_tight,
            lacks,
            allowed: whole_units(available.min(left), unit),
            available: whole_units(available, unit),
        }
    }

    /// Units from anywhere: memory is short.
    pub(super) fn any_supply(&self) -> Supply {
        let available = self.available().unwrap_or(Bytes::MAX);
        let available = whole_units(available, self.unit_size());
        Supply {
            first: available,
            steals: true,
            most: available,
        }
    }

    /// The size of the units, which the first range decides about.
    pub(super) fn unit_size(&self) -> Bytes {
        let known = self.state.lock().heap.ranges.unit();
        if !known.is_zero() {
            return known;
        }
        let granule = self.mapping().map_or(PAGE, |traits| traits.granule);
        let limit = self.quota.limit().unwrap_or(Bytes::MAX);
        mapped::unit(self.device_total().min(limit), granule)
    }

    /// Makes a window for a request, and serves it; where another thread has made
    /// something that fits meanwhile, serves it by that.
    pub(super) fn make_window(&self, want: Want, supply: Supply) -> Result<Address, AllocError> {
        let _turn = match self.take_or_await_growth(want) {
            Ok(address) => return Ok(address),
            Err(turn) => turn,
        };
        let flight = self.quota.fly();
        let mut making = self.claim_window(want, supply)?;
        let lacks = |state: &ArenaState<D::Fence>, making: &Making| {
            let missing = state.heap.missing(&making.claim);
            let unit = state.heap.ranges.unit().get().max(1);
            let missing: u64 = missing.iter().map(|run| run.size.get() / unit).sum();
            usize::try_from(missing)
                .unwrap_or(usize::MAX)
                .saturating_sub(making.units.len())
        };
        let missing = {
            let mut state = self.state.lock();
            let missing = lacks(&state, &making);
            let idle = if supply.steals && self.driver.may_fence() {
                whole_units(state.heap.idle_units(), state.heap.ranges.unit())
            } else {
                state.heap.ranges.loose()
            };
            // What will not be enough is left where it is.
            if missing > idle.saturating_add(supply.most) {
                let bytes = state.heap.ranges.bytes(missing.saturating_sub(idle));
                drop(state);
                let short = Err(self.shortage_of(bytes));
                return self.end_window(want, making, short);
            }
            making.units = state.heap.ranges.take_loose(missing);
            missing - making.units.len()
        };
        self.create_units(missing.min(supply.first), &mut making);
        let rest = lacks(&self.state.lock(), &making);
        if rest > 0 && supply.steals {
            self.steal(rest, &mut making);
            // Relaxed: it stands for itself.
            self.scattered.store(true, Ordering::Relaxed);
        }
        let rest = lacks(&self.state.lock(), &making);
        if rest > 0 {
            self.create_units(rest.min(supply.most), &mut making);
        }
        let rest = lacks(&self.state.lock(), &making);
        let served = if rest > 0 {
            Err(making
                .short
                .unwrap_or(AllocError::Driver(Code::OUT_OF_MEMORY)))
        } else {
            self.map_units(want.origin.stack, &mut making)
        };
        let served = self.end_window(want, making, served);
        flight.lands();
        served
    }

    /// Why so many bytes cannot be had.
    fn shortage_of(&self, bytes: Bytes) -> AllocError {
        let after = self.quota.reserved().saturating_add(bytes);
        match self.quota.limit() {
            Some(limit) if after > limit => AllocError::Limit,
            _ => AllocError::Driver(Code::OUT_OF_MEMORY),
        }
    }

    /// Claims the cheapest window; where there is none, reserves a range more.
    fn claim_window(&self, want: Want, supply: Supply) -> Result<Making, AllocError> {
        let is_small = want.fit.pool == Pool::Small;
        let find = |state: &ArenaState<D::Fence>, most: usize| match is_small {
            true => state.heap.unit_window(),
            false => state.heap.window(want.fit.size, most),
        };
        let claim = |state: &mut ArenaState<D::Fence>, window: &Window| {
            let (claim, splits) = state.heap.claim_window(window);
            state.counters.claimed(splits);
            Making {
                claim,
                at: window.at,
                units: Vec::new(),
                created: 0,
                short: None,
            }
        };
        {
            let mut state = self.state.lock();
            if state.retired {
                return Err(AllocError::Driver(Code::INVALID_CONTEXT));
            }
            if state.heap.is_paused() {
                return Err(AllocError::Paused);
            }
            state.end_empty_slabs();
            let most = state.units(supply.most);
            if let Some(window) = find(&state, most) {
                return Ok(claim(&mut state, &window));
            }
        }
        let span = self.reserve_range(want.fit.size);
        let span = span.map_err(AllocError::Driver)?;
        let unit = self.unit_size();
        let mut state = self.state.lock();
        let is_paused = state.heap.is_paused();
        if !state.retired
            && !is_paused
            && state.heap.insert_range(span, unit)
            && let Some(window) = find(&state, usize::MAX)
        {
            return Ok(claim(&mut state, &window));
        }
        drop(state);
        // The error that matters is the one returned.
        let _lost = self.driver.unreserve(span.address, span.size);
        if is_paused {
            return Err(AllocError::Paused);
        }
        // Relaxed: it stands for itself.
        self.lacks_addresses.store(true, Ordering::Relaxed);
        self.grow_plainly();
        Err(AllocError::Driver(Code::OUT_OF_MEMORY))
    }

    /// Reserves as many addresses as the device has memory, fewer where there are not
    /// so many, down to what the request takes.
    fn reserve_range(&self, request: Bytes) -> Result<Span, Code> {
        let unit = self.unit_size();
        let least = request.round_up(unit).ok_or(Code::OUT_OF_MEMORY)?;
        let mut size = self
            .device_total()
            .round_up(unit)
            .unwrap_or(least)
            .max(least);
        loop {
            match self.driver.reserve(size) {
                Ok(address) => {
                    let at = address.get();
                    self.tell(&Mark::Reserved { address: at, size });
                    return Ok(Span { address, size });
                }
                Err(Code::OUT_OF_MEMORY) if size > least => {
                    size = Bytes::new(size.get() / 2).round_down(unit).max(least);
                }
                Err(code) => return Err(code),
            }
        }
    }

    /// Ends the window's claim, and serves the request where it was made whole.
    fn end_window(
        &self,
        want: Want,
        making: Making,
        made: Result<(), AllocError>,
    ) -> Result<Address, AllocError> {
        let mut state = self.state.lock();
        if state.retired {
            drop(state);
            self.forget_units(making.units);
            return Err(AllocError::Driver(Code::INVALID_CONTEXT));
        }
        state.heap.ranges.put_loose(making.units);
        if let Err(error) = made {
            state.end_claim(&making.claim);
            return Err(error);
        }
        let unit = state.heap.ranges.unit();
        let (address, more) = if want.fit.pool == Pool::Small {
            let id = state.heap.end_as_slab(&making.claim);
            (state.take_of_slab(id, want), unit)
        } else {
            let made = (state.heap).end_window(&making.claim, making.at, want.fit.size);
            state.counters.ended_claim(&made.free);
            let created = Bytes::new(unit.get() * making.created);
            (state.hand_out(&made.cut, &want), created)
        };
        (state.counters).missed(want.fit.pool, want.fit.size, more);
        Ok(address)
    }
}

impl<F: Clone> ArenaState<F> {
    /// Serves a small request by a slab of a free unit, and a large one by the units of
    /// slabs that are empty: neither calls the driver.
    pub(super) fn take_by_slabs(&mut self, want: Want) -> Option<Address> {
        if want.fit.pool == Pool::Small {
            let (id, splits) = self.heap.carve_slab()?;
            self.counters.claimed(splits);
            self.counters.hit();
            return Some(self.take_of_slab(id, want));
        }
        self.end_empty_slabs();
        self.take(&want, Search::Opening)
    }

    /// Serves a small request by a new slab, of which this is the block.
    fn take_of_slab(&mut self, id: BlockId, want: Want) -> Address {
        self.counters.slab_made(self.heap.ranges.unit());
        let cut = self.heap.cut(id, want.fit);
        self.hand_out(&cut, &want)
    }

    /// Makes the units of empty slabs free for everything.
    pub(super) fn end_empty_slabs(&mut self) {
        let gone = self.heap.empty_gone_slabs();
        let free = self.heap.end_empty_slabs();
        let unit = self.heap.ranges.unit();
        self.counters.slabs_ended(unit, gone, &free);
    }

    /// How many units there are that no live block touches, with so many more.
    fn units(&self, more: usize) -> usize {
        let unit = self.heap.ranges.unit();
        more.saturating_add(whole_units(self.heap.idle_units(), unit))
    }

    /// Ends a claim.
    pub(super) fn end_claim(&mut self, claim: &Claim) {
        let free = self.heap.end_claim(claim);
        self.counters.ended_claim(&free);
    }
}
