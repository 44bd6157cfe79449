//! Work that was submitted and is not finished, and the memory that it touches.
//!
//! Owns the pieces of work in flight. Invariant: a piece is here until the
//! clock has passed its end; effects come out in the order of the ends, and in
//! the order of submission if the ends are equal. Cost: O(log n) per piece and
//! touched range; a range query also looks at every range that begins within
//! the longest touched length below it.

use std::collections::BTreeMap;

use crate::settings::Nanos;
use vramalloc_core::address::{Address, Bytes};

/// Memory that a piece of work reads or writes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Touch {
    /// The first byte.
    pub start: Address,
    /// How many bytes; 0: the touch is void.
    pub size: Bytes,
    /// Whether the work writes them.
    pub writes: bool,
}

impl Touch {
    /// A write of this memory.
    #[must_use]
    pub const fn write(start: Address, size: Bytes) -> Touch {
        Touch {
            start,
            size,
            writes: true,
        }
    }

    /// A read of this memory.
    #[must_use]
    pub const fn read(start: Address, size: Bytes) -> Touch {
        Touch {
            start,
            size,
            writes: false,
        }
    }

    pub(crate) fn end(&self) -> u64 {
        self.start.get().saturating_add(self.size.get())
    }
}

/// A piece of work to be done on a stream.
#[derive(Clone, Debug)]
pub struct Work<E> {
    /// The time from its beginning to its end.
    pub duration: Nanos,
    /// The memory that it touches.
    pub touches: Vec<Touch>,
    /// The effect of its end;
    /// [`Model::take_effects`](crate::Model::take_effects) returns it.
    pub effect: Option<E>,
}

impl<E> Work<E> {
    /// Work that takes `duration` and touches no memory.
    #[must_use]
    pub fn lasting(duration: Nanos) -> Work<E> {
        Work {
            duration,
            touches: Vec::new(),
            effect: None,
        }
    }
}

/// One touched range in flight.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Using {
    pub(crate) touch: Touch,
    pub(crate) ends: Nanos,
}

#[derive(Debug)]
pub(crate) struct Flight<E> {
    by_end: BTreeMap<(Nanos, u64), (Vec<u64>, Option<E>)>,
    by_start: BTreeMap<(u64, u64), Using>,
    /// The length of the longest touched range in flight.
    longest: u64,
    submitted: u64,
}

impl<E> Flight<E> {
    pub(crate) fn new() -> Flight<E> {
        Flight {
            by_end: BTreeMap::new(),
            by_start: BTreeMap::new(),
            longest: 0,
            submitted: 0,
        }
    }

    pub(crate) fn submit(&mut self, ends: Nanos, work: Work<E>) {
        let mut starts = Vec::with_capacity(work.touches.len());
        for touch in work.touches {
            self.submitted += 1;
            let key = (touch.start.get(), self.submitted);
            self.longest = self.longest.max(touch.size.get());
            let using = Using { touch, ends };
            self.by_start.insert(key, using);
            starts.push(self.submitted);
            starts.push(touch.start.get());
        }
        self.submitted += 1;
        self.by_end
            .insert((ends, self.submitted), (starts, work.effect));
    }

    /// Removes all work that ends at `now` or before.
    pub(crate) fn retire(&mut self, now: Nanos, effects: &mut Vec<E>) {
        while let Some(first) = self.by_end.first_entry() {
            if first.key().0 > now {
                return;
            }
            let (touched, effect) = first.remove();
            for pair in touched.chunks_exact(2) {
                self.by_start.remove(&(pair[1], pair[0]));
            }
            effects.extend(effect);
        }
        self.longest = 0;
    }

    /// The ranges in flight that share a byte with `touch`.
    pub(crate) fn overlapping(&self, touch: Touch) -> impl Iterator<Item = &Using> {
        let (start, end) = (touch.start.get(), touch.end());
        let from = start.saturating_sub(self.longest);
        self.by_start
            .range((from, 0)..(end.max(from), 0))
            .map(|(_, using)| using)
            .filter(move |using| using.touch.end() > start)
    }

    /// How many pieces of work are in flight.
    pub(crate) fn len(&self) -> usize {
        self.by_end.len()
    }
}
