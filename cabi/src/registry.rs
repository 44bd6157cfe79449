//! Things that are made one after the other, go by a number and stay until the
//! process ends, so that a reference to one never dangles.
//!
//! Owns them. Invariant: every number below the count has its thing. Cost: two
//! loads to find one; no lock but for making one.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use spin::mutex::SpinMutex;
use spin::relax::Yield;

/// See the module; `MOST` is how many there can be.
pub(crate) struct Registry<T: 'static, const MOST: usize> {
    things: [AtomicPtr<T>; MOST],
    /// Numbers given out. Release on a store, with the thing in place before
    /// it; pairs with the Acquire in `count`.
    count: AtomicUsize,
    making: SpinMutex<(), Yield>,
}

impl<T: Send + Sync + 'static, const MOST: usize> Registry<T, MOST> {
    pub(crate) const fn new() -> Registry<T, MOST> {
        Registry {
            things: [const { AtomicPtr::new(ptr::null_mut()) }; MOST],
            count: AtomicUsize::new(0),
            making: SpinMutex::new(()),
        }
    }

    /// Makes the thing of the next number, from 0; none where there are as many
    /// as there can be. `make` calls nobody.
    pub(crate) fn add(&self, make: impl FnOnce(u32) -> T) -> Option<&'static T> {
        let _making = self.making.lock();
        let number = self.count.load(Ordering::Relaxed);
        let place = self.things.get(number)?;
        let thing: &'static T = Box::leak(Box::new(make(u32::try_from(number).ok()?)));
        place.store(ptr::from_ref(thing).cast_mut(), Ordering::Relaxed);
        self.count.store(number + 1, Ordering::Release);
        Some(thing)
    }

    /// The thing with this number.
    pub(crate) fn get(&self, number: u32) -> Option<&'static T> {
        let number = usize::try_from(number).ok()?;
        if number >= self.count() {
            return None;
        }
        let thing = self.things.get(number)?.load(Ordering::Relaxed);
        // SAFETY: numbers below the count have a thing, which is never dropped.
        unsafe { thing.as_ref() }
    }

    /// All things so far, by their numbers.
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
        assert!(WORDS.get(0).is_none());
        for expected in ["0", "1"] {
            let word = WORDS.add(|number| number.to_string());
            assert_eq!(word.map(String::as_str), Some(expected));
        }
        assert!(WORDS.add(|number| number.to_string()).is_none());
        assert_eq!(WORDS.get(1).map(String::as_str), Some("1"));
        assert!(WORDS.get(2).is_none());
        assert_eq!(WORDS.all().count(), 2);
    }
}
