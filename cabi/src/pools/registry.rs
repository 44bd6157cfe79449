//! Values that are made one after the other, have a number and stay until the
//! process ends, so that a reference to one never dangles.
//!
//! Invariant: every number below the count has its value. Cost: three loads to
//! find one; a lock only to make one, and 8 KiB for each 1024 of them.

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use spin::mutex::SpinMutex;
use vramalloc_core::patience::Brief;

use crate::process::forking;

const SHIFT: u32 = 10;
/// Values in a segment.
pub(crate) const SEGMENT: usize = 1 << SHIFT;

type Segment<T> = Box<[AtomicPtr<T>; SEGMENT]>;

/// See the module. There can be `SEGMENTS` times [`SEGMENT`] values.
pub(crate) struct Registry<T: 'static, const SEGMENTS: usize> {
    segments: [OnceLock<Segment<T>>; SEGMENTS],
    /// Numbers given out. Stored with Release when the value is in place; pairs
    /// with the Acquire in `count`.
    count: AtomicUsize,
    making: SpinMutex<(), Brief>,
}

impl<T: Send + Sync + 'static, const SEGMENTS: usize> Registry<T, SEGMENTS> {
    pub(crate) const fn new() -> Registry<T, SEGMENTS> {
        Registry {
            segments: [const { OnceLock::new() }; SEGMENTS],
            count: AtomicUsize::new(0),
            making: SpinMutex::new(()),
        }
    }

    /// Makes the value of the next number, from 0; `None` if there are as many
    /// as there can be. `make` runs under a lock: it must not wait.
    pub(crate) fn add(&self, make: impl FnOnce(u32) -> T) -> Option<&'static T> {
        forking::use_begins();
        let _making = self.making.lock();
        let number = self.count.load(Ordering::Relaxed);
        let nothing = || Box::new([const { AtomicPtr::new(ptr::null_mut()) }; SEGMENT]);
        let segment = self.segments.get(number >> SHIFT)?.get_or_init(nothing);
        let place = segment.get(number % SEGMENT)?;
        let thing: &'static T = Box::leak(Box::new(make(u32::try_from(number).ok()?)));
        place.store(ptr::from_ref(thing).cast_mut(), Ordering::Relaxed);
        self.count.store(number + 1, Ordering::Release);
        Some(thing)
    }

    /// The value with this number.
    pub(crate) fn get(&self, number: u32) -> Option<&'static T> {
        let number = usize::try_from(number).ok()?;
        if number >= self.count() {
            return None;
        }
        let segment = self.segments.get(number >> SHIFT)?.get()?;
        let thing = segment.get(number % SEGMENT)?.load(Ordering::Relaxed);
        // SAFETY: numbers below the count have a value, which is never dropped.
        unsafe { thing.as_ref() }
    }

    /// All values so far, by their numbers.
    pub(crate) fn all(&self) -> impl Iterator<Item = &'static T> {
        (0..self.count()).filter_map(|number| self.get(u32::try_from(number).ok()?))
    }

    fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_are_found_by_their_numbers() {
        static WORDS: Registry<String, 2> = Registry::new();
        let most = 2 * SEGMENT;
        assert!(WORDS.get(0).is_none());
        for expected in 0..most {
            let word = WORDS.add(|number| number.to_string());
            assert_eq!(word, Some(&expected.to_string()));
        }
        assert!(WORDS.add(|number| number.to_string()).is_none());
        for number in [0, 1, SEGMENT - 1, SEGMENT, most - 1] {
            let found = WORDS.get(u32::try_from(number).unwrap());
            assert_eq!(found, Some(&number.to_string()));
        }
        assert_eq!(WORDS.get(u32::try_from(most).unwrap()), None);
        assert_eq!(WORDS.all().count(), most);
    }
}
