//! Counting and timing of driver calls, as one more stage in the pipe.
//!
//! Owns the counters of [`DriverCalls`]. Invariant: every call of an arena to its
//! driver goes through here, so none is missed and the arena's own code counts
//! nothing. Where the driver tells of calls that it makes for one of these
//! ([`told`]), they are counted in its place. Cost: that of a meter, see there.

mod meters;

use std::time::Duration;

use crate::address::{Address, Bytes};
use crate::driver::mapping::{Backup, Mapping, MappingTraits, Unit};
use crate::driver::program_call::{add_to_call, call_moves};
use crate::driver::told::{self, Told};
use crate::driver::{Driver, IfEnding, MemInfo, OwnCaches, Whose};
use crate::error::Code;
use crate::stats::{CallCount, DriverCalls, MappingCalls};
use crate::sync::OnceLock;
use crate::thread_cache::SEATS;

use meters::{FenceMeters, MappingMeters, Meter, clocked};

/// A driver's free that takes longer has waited for the device: it does so
/// without a word. What it costs by itself is less.
const FREE: u64 = 100_000;

/// Those of a seat. Processors fetch lines by pairs.
#[repr(align(128))]
struct OfSeat(FenceMeters);

/// A driver whose calls are counted.
pub(crate) struct Metered<D> {
    driver: D,
    alloc: Meter,
    free: Meter,
    mem_info: Meter,
    fences: FenceMeters,
    /// Those of threads in seats, made at the first call of one: most contexts have none.
    of_seats: OnceLock<Box<[OfSeat; SEATS as usize]>>,
    wait: Meter,
    /// Made at the first of these calls: most drivers never see one.
    mapping: OnceLock<Box<MappingMeters>>,
}

impl<D: Driver> Metered<D> {
    pub(crate) fn new(driver: D) -> Metered<D> {
        Metered {
            driver,
            alloc: Meter::new(),
            free: Meter::new(),
            mem_info: Meter::new(),
            fences: FenceMeters::new(),
            of_seats: OnceLock::new(),
            wait: Meter::new(),
            mapping: OnceLock::new(),
        }
    }

    /// A free by this call, which waits for nobody.
    pub(crate) fn free_by(&self, free: impl FnOnce() -> Result<(), Code>) -> Result<(), Code> {
        call_moves();
        self.free.time(free)
    }

    /// The driver below.
    pub(crate) fn inner(&self) -> &D {
        &self.driver
    }

    /// Counts a call for memory that is made past the driver below.
    pub(crate) fn alloc_past<T>(&self, call: impl FnOnce() -> Result<T, Code>) -> Result<T, Code> {
        let (result, ns, told) = self.with_told(call);
        if told.is_nothing() {
            self.alloc.count(CallCount::one(ns, result.is_err()));
        }
        // To take memory can be to give some back first.
        if told.free.longest_ns >= FREE {
            add_to_call(told.free.ns);
        }
        result
    }

    /// The same for one that gives memory back, and waits as the driver does.
    pub(crate) fn free_past(&self, call: impl FnOnce() -> Result<(), Code>) -> Result<(), Code> {
        let (result, ns, told) = self.with_told(call);
        if told.is_nothing() {
            self.free.count(CallCount::one(ns, result.is_err()));
        }
        if ns >= FREE {
            add_to_call(ns);
        }
        result
    }

    /// Counts what the driver tells of during a call; what the call took in ns.
    fn with_told<T>(&self, call: impl FnOnce() -> T) -> (T, u64, Told) {
        call_moves();
        let ((result, told), ns) = clocked(|| told::during(call));
        self.alloc.count(told.alloc);
        self.free.count(told.free);
        (result, ns, told)
    }

    /// A fence, unless the device is done, for a thread in this seat: threads that make
    /// many at the same time count them apart.
    pub(crate) fn fence_unless_done_from(
        &self,
        seat: Option<u8>,
    ) -> Result<Option<D::Fence>, Code> {
        let make = || Box::new(std::array::from_fn(|_| OfSeat(FenceMeters::new())));
        let of_seat = |seat| &self.of_seats.get_or_init(make)[usize::from(seat % SEATS)].0;
        seat.map_or(&self.fences, of_seat)
            .fence_unless_done(&self.driver)
    }

    fn all_fences(&self) -> impl Iterator<Item = &FenceMeters> {
        let of_seats = self.of_seats.get().into_iter();
        let of_seats = of_seats.flat_map(|seats| seats.iter().map(|seat| &seat.0));
        of_seats.chain([&self.fences])
    }

    /// What is counted of calls that make a fence, and of those that ask for one.
    fn read_fences(&self) -> (CallCount, CallCount) {
        let (mut fence, mut reached) = (CallCount::default(), CallCount::default());
        for (made, asked) in self.all_fences().map(FenceMeters::read) {
            fence.add(made);
            reached.add(asked);
        }
        (fence, reached)
    }

    fn mapping(&self) -> &MappingMeters {
        self.mapping.get_or_init(|| Box::new(MappingMeters::new()))
    }

    /// How many calls there were.
    pub(crate) fn calls(&self) -> u64 {
        let meters = [&self.alloc, &self.free, &self.mem_info, &self.wait];
        let mapping = self.mapping.get().map(|meters| meters.all());
        let meters = meters.into_iter().chain(mapping.into_iter().flatten());
        let calls = meters.map(Meter::calls);
        calls.chain(self.all_fences().map(FenceMeters::calls)).sum()
    }

    /// The counts so far.
    pub(crate) fn read(&self) -> DriverCalls {
        let (fence, reached) = self.read_fences();
        DriverCalls {
            alloc: self.alloc.read(),
            free: self.free.read(),
            mem_info: self.mem_info.read(),
            fence,
            reached,
            wait: self.wait.read(),
            mapping: (self.mapping.get())
                .map_or_else(MappingCalls::default, |meters| meters.read()),
        }
    }
}

/// What is copied is a wait for the device.
impl<D: Driver> Mapping for Metered<D> {
    fn mapping_traits(&self) -> Result<Option<MappingTraits>, Code> {
        self.driver.mapping_traits()
    }

    fn reserve(&self, size: Bytes) -> Result<Address, Code> {
        self.mapping().reserve.time(|| self.driver.reserve(size))
    }

    fn unreserve(&self, at: Address, size: Bytes) -> Result<(), Code> {
        (self.mapping().reserve).time(|| self.driver.unreserve(at, size))
    }

    fn create(&self, size: Bytes) -> Result<Unit, Code> {
        call_moves();
        self.mapping().create.time(|| self.driver.create(size))
    }

    fn release(&self, unit: Unit) -> Result<(), Code> {
        call_moves();
        self.mapping().release.time(|| self.driver.release(unit))
    }

    fn map(&self, at: Address, size: Bytes, unit: Unit) -> Result<(), Code> {
        call_moves();
        self.mapping().map.time(|| self.driver.map(at, size, unit))
    }

    fn admit(&self, at: Address, size: Bytes) -> Result<(), Code> {
        self.mapping()
            .set_access
            .time(|| self.driver.admit(at, size))
    }

    fn unmap(&self, at: Address, size: Bytes) -> Result<(), Code> {
        call_moves();
        self.mapping().unmap.time(|| self.driver.unmap(at, size))
    }

    fn take_backup(&self, size: Bytes, wanted: Bytes) -> Result<Backup, Code> {
        self.driver.take_backup(size, wanted)
    }

    fn drop_backup(&self, backup: Backup) {
        self.driver.drop_backup(backup);
    }

    fn save(&self, from: Address, size: Bytes, to: Backup, offset: Bytes) -> Result<(), Code> {
        (self.wait).time_wait(|| self.driver.save(from, size, to, offset))
    }

    fn restore(&self, to: Address, size: Bytes, from: Backup, offset: Bytes) -> Result<(), Code> {
        (self.wait).time_wait(|| self.driver.restore(to, size, from, offset))
    }
}

impl<D: Driver> Driver for Metered<D> {
    type Fence = D::Fence;

    fn alloc(&self, size: Bytes) -> Result<Address, Code> {
        self.alloc_past(|| self.driver.alloc(size))
    }

    #[inline(always)]
    fn with_own_caches<R>(with: impl FnOnce(&OwnCaches) -> R) -> R {
        D::with_own_caches(with)
    }

    fn may_make_barriers() -> bool {
        D::may_make_barriers()
    }

    fn alloc_chunk(&self, size: Bytes) -> Result<Address, Code> {
        self.alloc_past(|| self.driver.alloc_chunk(size))
    }

    fn free(&self, address: Address) -> Result<(), Code> {
        self.free_past(|| self.driver.free(address))
    }

    fn giving_back<R>(
        &self,
        ending: IfEnding,
        work: impl FnOnce(&dyn Fn(Address) -> Result<(), Code>) -> R,
    ) -> Option<R> {
        self.driver.giving_back(ending, |free| {
            work(&|address| self.free_past(|| free(address)))
        })
    }

    fn free_from_here(&self, address: Address) -> Result<(), Code> {
        self.free_past(|| self.driver.free_from_here(address))
    }

    #[inline]
    fn is_elsewhere(&self) -> bool {
        self.driver.is_elsewhere()
    }

    fn mem_info(&self) -> Result<MemInfo, Code> {
        self.mem_info.time(|| self.driver.mem_info())
    }

    #[inline]
    fn may_fence(&self) -> bool {
        self.driver.may_fence()
    }

    #[inline]
    fn may_give_back(&self) -> bool {
        self.driver.may_give_back()
    }

    fn is_alone(&self) -> bool {
        self.driver.is_alone()
    }

    fn may_wait_in_free(&self) -> bool {
        self.driver.may_wait_in_free()
    }

    fn fence(&self) -> Result<D::Fence, Code> {
        self.fences.fence(&self.driver)
    }

    fn fence_after_own(&self) -> Result<D::Fence, Code> {
        let (result, ns, told) = self.with_told(|| self.driver.fence_after_own());
        if told.is_nothing() {
            (self.fences.fence).count(CallCount::one(ns, result.is_err()));
        } else {
            add_to_call(ns);
        }
        result
    }

    fn fence_unless_done(&self) -> Result<Option<D::Fence>, Code> {
        self.fences.fence_unless_done(&self.driver)
    }

    fn reached(&self, fence: &D::Fence) -> Result<bool, Code> {
        self.fences.reached(&self.driver, fence)
    }

    fn wait(&self, fence: &D::Fence, whose: Whose) -> Result<bool, Code> {
        self.wait.time_wait(|| self.driver.wait(fence, whose))
    }

    fn wait_within(&self, fence: &D::Fence, most: Duration) -> Result<bool, Code> {
        self.wait.time_wait(|| self.driver.wait_within(fence, most))
    }

    fn fill(&self, address: Address, size: Bytes, byte: u8) -> Result<(), Code> {
        self.wait
            .time_wait(|| self.driver.fill(address, size, byte))
    }

    fn synchronize(&self) -> Result<(), Code> {
        self.wait.time_wait(|| self.driver.synchronize())
    }

    fn prepare_to_settle(&self, is_first: bool) {
        let ((), _, _) = self.with_told(|| self.driver.prepare_to_settle(is_first));
    }

    fn wait_by_free(&self, whose: Whose) -> Result<bool, Code> {
        let (result, ns, told) = self.with_told(|| self.driver.wait_by_free(whose));
        if told.is_nothing() {
            self.wait.count(CallCount::one(ns, result.is_err()));
        }
        add_to_call(ns);
        result
    }
}
