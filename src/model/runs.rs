//! Free address ranges, by address and by length.
//!
//! Invariant: runs do not overlap; two runs that touch are merged (except
//! across a multiple of `edge`); both indexes hold the same runs. Cost: O(log
//! n) each.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(crate) struct Runs {
    by_start: BTreeMap<u64, u64>,
    by_length: BTreeSet<(u64, u64)>,
    /// Runs do not merge across multiples of this; `None`: they always do.
    edge: Option<u64>,
}

impl Runs {
    pub(crate) fn with_edge(edge: Option<u64>) -> Runs {
        Runs {
            edge,
            ..Runs::default()
        }
    }

    /// Takes `length` from the shortest run that is long enough, the lowest of
    /// several.
    pub(crate) fn take(&mut self, length: u64) -> Option<u64> {
        let &(found, start) = self.by_length.range((length, 0)..).next()?;
        self.remove(start, found);
        if found > length {
            self.insert(start + length, found - length);
        }
        Some(start)
    }

    /// Takes `length` at `start`, if all of that is free.
    pub(crate) fn take_at(&mut self, start: u64, length: u64) -> bool {
        let below = self.by_start.range(..=start).next_back();
        let Some((&from, &size)) = below else {
            return false;
        };
        let (end, last) = (start + length, from + size);
        if end > last {
            return false;
        }
        self.remove(from, size);
        for (from, to) in [(from, start), (end, last)] {
            if from < to {
                self.insert(from, to - from);
            }
        }
        true
    }

    /// Takes `length` from the middle of the longest run, so that more can be taken
    /// behind it later.
    pub(crate) fn take_middle(&mut self, length: u64, unit: u64) -> Option<u64> {
        let &(size, start) = self.by_length.last()?;
        let middle = start + (size / 2).next_multiple_of(unit);
        self.take_at(middle, length).then_some(middle)
    }

    /// Takes `length` at a multiple of so many; the rest stays on both sides.
    pub(crate) fn take_at_multiple(&mut self, length: u64, multiple: u64) -> Option<u64> {
        let fits = |&&(found, start): &&(u64, u64)| {
            let at = start.next_multiple_of(multiple);
            at - start + length <= found
        };
        let &(found, start) = self.by_length.range((length, 0)..).find(fits)?;
        let at = start.next_multiple_of(multiple);
        self.remove(start, found);
        if at > start {
            self.insert(start, at - start);
        }
        let beyond = (start + found) - (at + length);
        if beyond > 0 {
            self.insert(at + length, beyond);
        }
        Some(at)
    }

    /// Adds a free range. Returns the run that it is now part of.
    pub(crate) fn put(&mut self, start: u64, length: u64) -> (u64, u64) {
        let (mut start, mut length) = (start, length);
        if !self.is_edge(start)
            && let Some((&before, &size)) = self.by_start.range(..start).next_back()
            && before + size == start
        {
            self.remove(before, size);
            start = before;
            length += size;
        }
        let end = start + length;
        if !self.is_edge(end)
            && let Some(&size) = self.by_start.get(&end)
        {
            self.remove(end, size);
            length += size;
        }
        self.insert(start, length);
        (start, length)
    }

    pub(crate) fn remove(&mut self, start: u64, length: u64) {
        self.by_start.remove(&start);
        self.by_length.remove(&(length, start));
    }

    fn insert(&mut self, start: u64, length: u64) {
        self.by_start.insert(start, length);
        self.by_length.insert((length, start));
    }

    fn is_edge(&self, at: u64) -> bool {
        self.edge.is_some_and(|edge| at.is_multiple_of(edge))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_run_that_fits_is_taken_and_the_rest_stays() {
        let mut runs = Runs::default();
        runs.put(0, 100);
        runs.put(1000, 10);
        assert_eq!(runs.take(8), Some(1000));
        assert_eq!(runs.take(8), Some(0));
        assert_eq!(runs.take(100), None);
        assert_eq!(runs.take(92), Some(8));
        assert_eq!(runs.take(2), Some(1008));
        assert_eq!(runs.take(1), None);
    }

    #[test]
    fn a_run_is_taken_at_its_place_or_where_there_is_room_behind() {
        let mut runs = Runs::default();
        runs.put(0, 100);
        assert!(runs.take_at(40, 20));
        assert!(!runs.take_at(30, 11), "a part is taken");
        assert!(!runs.take_at(59, 1));
        assert!(!runs.take_at(99, 2));
        runs.put(200, 50);
        assert_eq!(
            runs.take_middle(10, 8),
            Some(232),
            "in units from its start"
        );
        assert_eq!(runs.take_middle(40, 8), None, "not from there");
        assert_eq!(runs.take_middle(10, 8), Some(84));
        assert_eq!(runs.put(232, 10), (200, 50));
    }

    #[test]
    fn what_is_taken_at_a_multiple_leaves_both_sides() {
        let mut runs = Runs::default();
        runs.put(10, 95);
        runs.put(200, 30);
        // The shorter run has no multiple with so much behind it.
        assert_eq!(runs.take_at_multiple(20, 50), Some(200));
        assert_eq!(runs.take_at_multiple(20, 50), Some(50));
        assert_eq!(runs.take_at_multiple(40, 1), Some(10));
        assert_eq!(runs.take_at_multiple(35, 50), None);
        assert_eq!(runs.take(35), Some(70));
    }

    #[test]
    fn neighbours_merge_but_not_across_an_edge() {
        let mut runs = Runs::with_edge(Some(100));
        assert_eq!(runs.put(0, 40), (0, 40));
        assert_eq!(runs.put(60, 40), (60, 40));
        assert_eq!(runs.put(40, 20), (0, 100));
        assert_eq!(runs.put(100, 100), (100, 100));
        assert_eq!(runs.take(101), None);
        let mut joined = Runs::with_edge(None);
        joined.put(0, 100);
        assert_eq!(joined.put(100, 100), (0, 200));
    }
}
