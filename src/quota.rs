//! The option `limit`: how much may be reserved on one device, by all its
//! arenas together; and which memory is between an arena and the driver.
//!
//! Invariant: the sum of what arenas hold never exceeds the limit; bytes are
//! taken from the quota before the driver is asked. Memory that the driver is
//! being asked for, or is getting back, is in no arena's books. A *flight*
//! stands for it until it has landed, with the driver or in the books, so that
//! no thread takes memory on its way for memory that does not exist. Cost: a
//! lock of its own twice per driver allocation, none on a hit.

mod room;

use std::cell::Cell;
use std::time::Duration;

use crate::address::Bytes;
use crate::patience::wait_within;
use crate::sync::Lock;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::waiters::Waiters;
use room::DeviceRoom;

/// What all arenas of a device may reserve together.
pub struct Quota {
    limit: AtomicU64,
    soft: AtomicU64,
    /// Bytes that are reserved; changed under the next lock alone.
    reserved: AtomicU64,
    /// The sum of all that was put back, which wraps.
    put_back: Lock<u64>,
    flights: Lock<Flights>,
    landed: AtomicU64,
    refused: AtomicU64,
    waiters: Waiters,
    /// What the driver says of the device.
    pub(crate) room: DeviceRoom,
}

/// How many generations of flights are told apart.
const GENERATIONS: usize = 16;

/// The number of flights under way, by generation. A new generation begins when
/// a thread is going to wait for the flights so far, and only if the generation
/// whose slot it takes has no flight left: a generation is never mistaken for a
/// later one.
struct Flights {
    generation: u64,
    under_way: [u64; GENERATIONS],
}

impl Flights {
    fn place(generation: u64) -> usize {
        #[allow(clippy::cast_possible_truncation, reason = "below GENERATIONS")]
        let place = (generation % GENERATIONS as u64) as usize;
        place
    }

    /// Ends the current generation, if the next one's slot is free, and returns
    /// its number.
    fn end_generation(&mut self) -> u64 {
        let ended = self.generation;
        let next = ended.wrapping_add(1);
        if self.under_way[Flights::place(next)] == 0 {
            self.generation = next;
        }
        ended
    }

    /// How many flights of this generation and of earlier ones are under way.
    fn until(&self, generation: u64) -> u64 {
        let oldest = self.generation.saturating_sub(GENERATIONS as u64 - 1);
        (oldest..=generation.min(self.generation))
            .map(|generation| self.under_way[Flights::place(generation)])
            .sum()
    }
}

/// The flights that had begun at a moment.
#[derive(Copy, Clone)]
pub(crate) struct TakenOff(u64);

/// How often a flight landed that may serve other requests, and how often the
/// driver gave less than it was asked for.
#[derive(Copy, Clone, PartialEq, Eq, Default)]
pub struct Landings {
    landed: u64,
    refused: u64,
}

impl Landings {
    /// Whether a request that failed `before` may be served now. What was
    /// refused to others is left of the limit, but not of the device.
    pub(crate) fn may_serve(self, before: Landings, at_limit: bool) -> bool {
        self.landed != before.landed || (at_limit && self.refused != before.refused)
    }
}

/// What the calling thread did itself: it does not wait for that.
#[derive(Copy, Clone)]
struct Own {
    flights: u64,
    landings: Landings,
}

impl Own {
    const NOTHING: Own = Own {
        flights: 0,
        landings: Landings {
            landed: 0,
            refused: 0,
        },
    };
}

#[cfg(not(loom))]
thread_local! {
    static OWN: Cell<Own> = const { Cell::new(Own::NOTHING) };
}

#[cfg(loom)]
loom::thread_local! {
    static OWN: Cell<Own> = Cell::new(Own::NOTHING);
}

/// Changes what the calling thread did, and returns the new value.
fn own(change: impl FnOnce(&mut Own)) -> Own {
    OWN.with(|place| {
        let mut own = place.get();
        change(&mut own);
        place.set(own);
        own
    })
}

/// Memory on its way between the driver and the books of an arena.
pub(crate) struct Flight<'a> {
    quota: &'a Quota,
    generation: u64,
}

impl Flight<'_> {
    /// Some of the memory is where other threads may have it.
    pub(crate) fn lands(&self) {
        own(|own| own.landings.landed = own.landings.landed.wrapping_add(1));
        // Release: pairs with the Acquire in `landings`.
        self.quota.landed.fetch_add(1, Ordering::Release);
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        own(|own| own.flights = own.flights.saturating_sub(1));
        self.quota.flights.lock().under_way[Flights::place(self.generation)] -= 1;
    }
}

/// Bytes that the driver is being asked for. When the value is dropped, those
/// that the driver did not give return to the quota.
pub struct Asked<'a> {
    flight: Flight<'a>,
    size: Bytes,
    taken: Bytes,
}

impl Asked<'_> {
    /// The driver gave `taken` bytes: they stay reserved.
    pub fn got(&mut self, taken: Bytes) {
        self.taken = taken;
    }

    /// As [`Asked::got`], for as many of `bytes` as were asked for; returns how
    /// many that are.
    pub(crate) fn got_of(&mut self, bytes: Bytes) -> Bytes {
        self.taken = bytes.min(self.size);
        self.taken
    }

    /// The memory is in the books, and other requests may have what this one
    /// leaves.
    pub(crate) fn lands(&self) {
        self.flight.lands();
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let rest = self.size.saturating_sub(self.taken);
        if !rest.is_zero() {
            self.flight.quota.put_back(rest);
            own(|own| own.landings.refused = own.landings.refused.wrapping_add(1));
            // Release: pairs with the Acquire in `landings`.
            self.flight.quota.refused.fetch_add(1, Ordering::Release);
        }
    }
}

impl Quota {
    /// A quota of `limit` bytes; [`Bytes::MAX`] means no limit.
    #[must_use]
    pub fn new(limit: Bytes) -> Quota {
        Quota {
            limit: AtomicU64::new(limit.get()),
            soft: AtomicU64::new(u64::MAX),
            reserved: AtomicU64::new(0),
            put_back: Lock::new(0),
            flights: Lock::new(Flights {
                generation: 0,
                under_way: [0; GENERATIONS],
            }),
            landed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            waiters: Waiters::new(),
            room: DeviceRoom::new(),
        }
    }

    /// The limit, or `None` if there is none.
    #[must_use]
    pub fn limit(&self) -> Option<Bytes> {
        let limit = Bytes::new(self.limit.load(Ordering::Relaxed));
        (limit != Bytes::MAX).then_some(limit)
    }

    /// Whether more is reserved than the limit allows.
    #[must_use]
    pub fn is_beyond_limit(&self) -> bool {
        // Relaxed: as below.
        self.reserved().get() > self.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit. What is reserved beyond it stays until it lies idle; nothing is
    /// added until enough was put back.
    // Relaxed: a request at this moment obeys the old limit or the new one.
    pub fn set_limit(&self, limit: Bytes) {
        self.limit.store(limit.get(), Ordering::Relaxed);
    }

    /// Sets the mark above which idle memory goes back before more is taken.
    // Relaxed, here and below: a hint, which guards no other memory.
    pub fn set_soft(&self, mark: Bytes) {
        self.soft.store(mark.get(), Ordering::Relaxed);
    }

    /// How far `size` bytes more would go beyond that mark.
    #[must_use]
    pub fn beyond_soft(&self, size: Bytes) -> Bytes {
        let mark = self.soft.load(Ordering::Relaxed);
        if mark == u64::MAX {
            return Bytes::ZERO;
        }
        (self.reserved().saturating_add(size)).saturating_sub(Bytes::new(mark))
    }

    /// Bytes reserved on the device.
    #[must_use]
    pub fn reserved(&self) -> Bytes {
        // Acquire: pairs with the Release of `change`, so that who learned of a change
        // sees it here too.
        Bytes::new(self.reserved.load(Ordering::Acquire))
    }

    /// Changes what is reserved, which the caller read under the lock that it still holds.
    fn change(&self, reserved: Bytes) {
        self.reserved.store(reserved.get(), Ordering::Release);
    }

    /// The sum of all bytes that were put back, for
    /// [`Quota::most_reserved_since`].
    pub(crate) fn put_back_so_far(&self) -> u64 {
        *self.put_back.lock()
    }

    /// An upper bound of what was reserved at any moment since `put_back` was
    /// read: memory that was reserved for a part of the time counts as well.
    pub(crate) fn most_reserved_since(&self, put_back: u64) -> Bytes {
        let so_far = self.put_back.lock();
        let since = so_far.wrapping_sub(put_back);
        self.reserved().saturating_add(Bytes::new(since))
    }

    /// Takes `size` bytes out of the quota, for as long as the driver is asked
    /// for them. Returns `None` if they exceed the limit; without a limit the
    /// driver decides.
    #[must_use]
    pub fn ask(&self, size: Bytes) -> Option<Asked<'_>> {
        /// More than any device has: the driver refuses it, and meanwhile the sum is to have
        /// room for what others ask for.
        const ABSURD: Bytes = Bytes::new(1 << 62);
        let _changing = self.put_back.lock();
        let before = self.reserved();
        let sum = before.get().checked_add(size.get());
        let limit = self.limit.load(Ordering::Relaxed);
        if limit != u64::MAX && sum.is_none_or(|sum| sum > limit) {
            return None;
        }
        let size = if size < ABSURD { size } else { Bytes::ZERO };
        self.change(before.saturating_add(size));
        // Under the lock, so that a request that fails because of these bytes
        // sees the flight.
        let (flight, taken) = (self.fly(), Bytes::ZERO);
        Some(Asked {
            flight,
            size,
            taken,
        })
    }

    /// Takes `size` bytes out of the quota; false if they exceed the limit.
    #[must_use]
    pub fn take(&self, size: Bytes) -> bool {
        self.ask(size).is_some_and(|mut asked| {
            asked.got(size);
            true
        })
    }

    /// Takes `size` bytes, also beyond the limit: the real function has handed
    /// the memory out already.
    pub fn take_anyway(&self, size: Bytes) {
        let _changing = self.put_back.lock();
        self.change(self.reserved().saturating_add(size));
    }

    /// Puts `size` bytes back.
    pub fn put_back(&self, size: Bytes) {
        let mut put_back = self.put_back.lock();
        let before = self.reserved();
        let size = size.min(before);
        self.change(before.saturating_sub(size));
        *put_back = put_back.wrapping_add(size.get());
    }

    /// Something was put back that may serve requests which failed before.
    pub fn landed(&self) {
        // Release: pairs with the Acquire of who looks.
        self.landed.fetch_add(1, Ordering::Release);
        self.waiters.notify();
    }

    /// The threads that wait for a free on the device.
    pub(crate) fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    /// Begins a flight. Called before other threads can see that the memory
    /// left the books, so that they find it in one or the other.
    pub(crate) fn fly(&self) -> Flight<'_> {
        own(|own| own.flights += 1);
        let mut flights = self.flights.lock();
        let generation = flights.generation;
        flights.under_way[Flights::place(generation)] += 1;
        Flight {
            quota: self,
            generation,
        }
    }

    /// The flights that have begun so far.
    pub(crate) fn taken_off(&self) -> TakenOff {
        TakenOff(self.flights.lock().end_generation())
    }

    /// Whether any of these flights is under way and another thread's. Later
    /// flights are not waited for: where threads ask the driver without a pause
    /// there is always one.
    pub(crate) fn others_fly(&self, TakenOff(generation): TakenOff) -> bool {
        self.flights.lock().until(generation) > own(|_| {}).flights
    }

    /// How often a flight landed that may serve other requests, whichever
    /// thread's it was.
    pub(crate) fn moves(&self) -> u64 {
        // Acquire: pairs with the Release where something lands.
        self.landed.load(Ordering::Acquire)
    }

    /// Waits for the flights of other threads, until one lands for a request that
    /// failed since `before`, and for `most` at the longest; for all of them, if
    /// that is not known. Returns whether the request may be served now.
    pub fn lands(&self, before: Option<Landings>, at_limit: bool, most: Duration) -> bool {
        let taken_off = self.taken_off();
        let Some(before) = before else {
            wait_within(most, || !self.others_fly(taken_off));
            return true;
        };
        let mut landed = false;
        wait_within(most, || {
            // Read first: what flew then, and does not any more, has landed.
            let flies = self.others_fly(taken_off);
            landed = self.landings().may_serve(before, at_limit);
            landed || !flies
        });
        landed
    }

    /// What the flights of other threads have come to.
    pub fn landings(&self) -> Landings {
        let own = own(|_| {}).landings;
        // Acquire: both pair with the Release where something lands.
        let of = |counter: &AtomicU64| counter.load(Ordering::Acquire);
        Landings {
            landed: of(&self.landed).wrapping_sub(own.landed),
            refused: of(&self.refused).wrapping_sub(own.refused),
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Of two arenas that together ask for more than is left, one gets it.
    #[test]
    fn loom_the_limit_holds() {
        loom::model(|| {
            let quota = Arc::new(Quota::new(Bytes::new(10)));
            let other = {
                let quota = Arc::clone(&quota);
                thread::spawn(move || quota.take(Bytes::new(6)))
            };
            let got = quota.take(Bytes::new(6));
            assert_ne!(other.join().unwrap(), got);
            assert_eq!(quota.reserved(), Bytes::new(6));
        });
    }

    /// Memory goes from the books of one arena to the driver. A thread that
    /// finds it in neither sees the flight, or that it landed.
    #[test]
    fn loom_what_is_nowhere_is_on_its_way() {
        loom::model(|| {
            let device = Arc::new((Quota::new(Bytes::MAX), Lock::new(true), Lock::new(false)));
            let giving_back = {
                let device = Arc::clone(&device);
                thread::spawn(move || {
                    let (quota, books, driver) = &*device;
                    let flight = quota.fly();
                    *books.lock() = false;
                    *driver.lock() = true;
                    flight.lands();
                })
            };
            let (quota, books, driver) = &*device;
            let before = quota.landings();
            let found = *books.lock() || *driver.lock();
            let flies = quota.others_fly(quota.taken_off());
            let landed = quota.landings().may_serve(before, false);
            assert!(found || flies || landed);
            giving_back.join().unwrap();
        });
    }

    /// One arena asks the driver for memory and is refused. Another arena,
    /// whose request failed at the limit because of it, sees that.
    #[test]
    fn loom_what_is_refused_to_another_is_seen() {
        loom::model(|| {
            let quota = Arc::new(Quota::new(Bytes::new(10)));
            let refused = {
                let quota = Arc::clone(&quota);
                thread::spawn(move || drop(quota.ask(Bytes::new(6))))
            };
            let before = quota.landings();
            let got = quota.take(Bytes::new(6));
            let flies = quota.others_fly(quota.taken_off());
            let landed = quota.landings().may_serve(before, true);
            assert!(got || flies || landed);
            refused.join().unwrap();
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
