//! Records by number, in segments of a fixed size.
//!
//! Owns the records. Invariant: a record never moves, so that the table grows
//! under the arena's lock without copying what is there; what has no record
//! yet in a segment is a vacant one. Cost: two dependent loads for a record,
//! and less than one segment of memory that is not used yet.

const SHIFT: u32 = 8;

/// Records of a segment: 12 KiB of blocks.
const SEGMENT: usize = 1 << SHIFT;

/// See the module.
pub(crate) struct Table<T> {
    segments: Vec<Box<[T; SEGMENT]>>,
    vacant: T,
    /// The next number.
    next: u32,
}

impl<T: Copy> Table<T> {
    /// None yet; this is a record of nothing.
    pub(crate) fn new(vacant: T) -> Table<T> {
        Table {
            segments: Vec::new(),
            vacant,
            next: 0,
        }
    }

    /// Enters a record; its number.
    #[cold]
    #[inline(never)]
    pub(crate) fn push(&mut self, record: T) -> u32 {
        let number = self.next;
        *self.make(number) = record;
        // 2^32 records do not fit into a host's memory.
        self.next = number.saturating_add(1);
        number
    }

    /// The place of a record that may not have been entered.
    pub(crate) fn make(&mut self, number: u32) -> &mut T {
        while self.segments.len() <= segment(number) {
            // By way of a vector, not of the stack, which may be short.
            let vacant = vec![self.vacant; SEGMENT].try_into();
            let vacant = vacant.unwrap_or_else(|_| Box::new([self.vacant; SEGMENT]));
            self.segments.push(vacant);
        }
        &mut self[number]
    }

    /// The record with this number; that or a vacant one or none where none
    /// was entered.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        Some(&self.segments.get(segment(number))?[place(number)])
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        Some(&mut self.segments.get_mut(segment(number))?[place(number)])
    }

    /// All records, by number; at the end some vacant ones.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.segments.iter().flat_map(|segment| segment.iter())
    }

    /// The same from this number.
    pub(crate) fn iter_from(&self, first: u32) -> impl Iterator<Item = &T> {
        let segments = self.segments.get(segment(first)..).unwrap_or_default();
        let records = segments.iter().flat_map(|segment| segment.iter());
        records.skip(place(first))
    }
}

fn segment(number: u32) -> usize {
    (number >> SHIFT) as usize
}

fn place(number: u32) -> usize {
    number as usize % SEGMENT
}

/// Of a record that was entered.
impl<T> std::ops::Index<u32> for Table<T> {
    type Output = T;

    #[inline]
    fn index(&self, number: u32) -> &T {
        &self.segments[segment(number)][place(number)]
    }
}

impl<T> std::ops::IndexMut<u32> for Table<T> {
    #[inline]
    fn index_mut(&mut self, number: u32) -> &mut T {
        &mut self.segments[segment(number)][place(number)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: u32 = 3 * 256 + 1;

    #[test]
    fn records_keep_their_numbers_and_their_places() {
        let mut table = Table::new(u32::MAX);
        assert_eq!(table.get(0), None);
        assert_eq!(table.push(0), 0);
        let place = std::ptr::from_ref(&table[0]);
        for number in 1..MANY {
            assert_eq!(table.push(number), number);
        }
        assert!(std::ptr::eq(place, &raw const table[0]), "it was copied");
        assert!((0..MANY).all(|number| table[number] == number));
        let entered = table.iter().filter(|&&record| record != u32::MAX);
        assert!(entered.copied().eq(0..MANY));
        *table.get_mut(256).unwrap() = 7;
        assert_eq!((table[255], table[256], table[257]), (255, 7, 257));
        assert_eq!(table.get(MANY), Some(&u32::MAX), "a vacant one");
        assert_eq!(table.get(4 * 256), None);
        assert_eq!(table.get_mut(u32::MAX), None);
    }

    #[test]
    fn less_than_a_segment_is_not_used_yet() {
        let mut table = Table::new(0_u64);
        for count in 1..10 * SEGMENT {
            table.push(1);
            let room = table.segments.len() * SEGMENT;
            assert!(room >= count && room - count < SEGMENT);
        }
    }
}
