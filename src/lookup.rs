//! Tables that threads read without a lock.
//!
//! Both are of a fixed size, a power of two. Cost: two loads from one cache line
//! where a key is in its place.

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Numbers that stay. Invariant: a key that is found has its number; a number is
/// never changed or removed.
pub struct Numbers<const SLOTS: usize> {
    slots: [Slot; SLOTS],
}

struct Slot {
    /// Zero where there is none.
    key: AtomicU64,
    number: AtomicU32,
}

impl<const SLOTS: usize> Numbers<SLOTS> {
    /// None yet.
    #[cfg(not(loom))]
    #[must_use]
    #[allow(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> Numbers<SLOTS> {
        Numbers {
            slots: [const {
                Slot {
                    key: AtomicU64::new(0),
                    number: AtomicU32::new(0),
                }
            }; SLOTS],
        }
    }

    /// The number of a key; zero is none.
    #[inline(always)]
    pub fn get(&self, key: u64) -> Option<u32> {
        let mut at = key;
        for _ in 0..SLOTS {
            let slot = self.slots.get(place(at, SLOTS))?;
            // Acquire: pairs with the release in `put`, so the number is there.
            match slot.key.load(Ordering::Acquire) {
                found if found == key => return Some(slot.number.load(Ordering::Relaxed)),
                0 => return None,
                _ => at = at.wrapping_add(1),
            }
        }
        None
    }

    /// Enters a number for a key that has none. False where there is no room.
    /// Callers exclude each other.
    pub fn put(&self, key: u64, number: u32) -> bool {
        let places = (0..SLOTS as u64).map(|by| place(key.wrapping_add(by), SLOTS));
        let mut slots = places.filter_map(|at| self.slots.get(at));
        let free = slots.find(|slot| slot.key.load(Ordering::Relaxed) == 0);
        let Some(slot) = free else {
            return false;
        };
        slot.number.store(number, Ordering::Relaxed);
        // Release: see `get`.
        slot.key.store(key, Ordering::Release);
        true
    }
}

/// Words that are lost when another key comes to their place. Invariant: a word
/// that is found was put there for its key: the two words of a pair are the key
/// only together, so that what is left of two others is none.
pub struct Pairs<const SLOTS: usize> {
    slots: [Pair; SLOTS],
}

struct Pair {
    /// The key, changed by the word.
    mixed: AtomicU64,
    word: AtomicU64,
}

impl<const SLOTS: usize> Pairs<SLOTS> {
    /// None yet.
    #[cfg(not(loom))]
    #[must_use]
    #[allow(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> Pairs<SLOTS> {
        Pairs {
            slots: [const {
                Pair {
                    mixed: AtomicU64::new(0),
                    word: AtomicU64::new(0),
                }
            }; SLOTS],
        }
    }

    /// What was put there last for this key; zero is nothing.
    #[inline(always)]
    pub fn get(&self, key: u64) -> Option<u64> {
        let pair = self.slots.get(place(key ^ key >> 14, SLOTS))?;
        // Relaxed: what belongs together is known by its value, and refers to
        // nothing else.
        let word = pair.word.load(Ordering::Relaxed);
        let is_it = pair.mixed.load(Ordering::Relaxed) ^ word == spread(key);
        (is_it && word != 0).then_some(word)
    }

    /// Enters a word, not zero.
    pub fn put(&self, key: u64, word: u64) {
        if let Some(pair) = self.slots.get(place(key ^ key >> 14, SLOTS)) {
            pair.word.store(word, Ordering::Relaxed);
            pair.mixed.store(spread(key) ^ word, Ordering::Relaxed);
        }
    }
}

/// A key so that two of them, changed by two words, are no third. Whoever only
/// wants the word does not wait for it.
#[inline(always)]
fn spread(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Where a key belongs, by its lowest bits.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "less than the slots")]
fn place(key: u64, slots: usize) -> usize {
    const { assert!(usize::BITS == 64) };
    key as usize & (slots - 1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_until_all_slots_are_taken() {
        let numbers = Numbers::<8>::new();
        // All but one of one place.
        let keys: Vec<u64> = (1..9).map(|n| n << 3 | u64::from(n == 8)).collect();
        for (number, &key) in (0..).zip(&keys) {
            assert_eq!(numbers.get(key), None);
            assert!(numbers.put(key, number));
            assert_eq!(numbers.get(key), Some(number));
        }
        assert!(!numbers.put(800, 9));
        assert_eq!(numbers.get(800), None);
        assert!(
            (0..)
                .zip(&keys)
                .all(|(number, &key)| numbers.get(key) == Some(number))
        );
    }

    #[test]
    fn the_last_of_a_place_is_there() {
        let pairs = Pairs::<8>::new();
        pairs.put(8, 7);
        assert_eq!((pairs.get(8), pairs.get(16)), (Some(7), None));
        pairs.put(16, 8);
        assert_eq!((pairs.get(8), pairs.get(16)), (None, Some(8)));
        pairs.put(3, 1);
        assert_eq!((pairs.get(3), pairs.get(16)), (Some(1), Some(8)));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc;

    use loom::thread;

    use super::*;

    #[test]
    fn loom_a_number_that_is_found_is_that_of_its_key() {
        loom::model(|| {
            let slot = || Slot {
                key: AtomicU64::new(0),
                number: AtomicU32::new(0),
            };
            let numbers = Arc::new(Numbers::<2> {
                slots: [slot(), slot()],
            });
            let other = Arc::clone(&numbers);
            let writer = thread::spawn(move || {
                assert!(other.put(3, 30));
                assert!(other.put(4, 40));
            });
            let (four, three) = (numbers.get(4), numbers.get(3));
            assert!(four.is_none_or(|four| four == 40 && three.is_some()));
            assert!(three.is_none_or(|three| three == 30));
            writer.join().unwrap();
            assert_eq!((numbers.get(3), numbers.get(4)), (Some(30), Some(40)));
        });
    }

    #[test]
    fn loom_of_two_pairs_in_one_place_none_is_taken_for_another() {
        loom::model(|| {
            let pairs = Arc::new(Pairs::<1> {
                slots: [Pair {
                    mixed: AtomicU64::new(0),
                    word: AtomicU64::new(0),
                }],
            });
            let other = Arc::clone(&pairs);
            let writer = thread::spawn(move || other.put(0x11_0000, 5));
            pairs.put(0x22_0000, 6);
            for (key, word) in [(0x11_0000, 5), (0x22_0000, 6)] {
                assert!(pairs.get(key).is_none_or(|found| found == word));
            }
            writer.join().unwrap();
        });
    }
}
