//! The libraries of a program that ask for memory, and how much each has.
//!
//! The code that knows which library called numbers them; the arena only passes
//! the numbers on and adds up. A package whose code in Python asks has a number as a
//! library has.

use crate::address::Bytes;

/// The numbers that there are. What more libraries have counts under
/// [`LibraryId::OTHERS`].
pub const MOST_LIBRARIES: usize = NUMBERS as usize;

const NUMBERS: u8 = 32;

/// The number of a library, the same for all arenas of a process.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LibraryId(u8);

impl LibraryId {
    /// It is not known which one asked.
    pub const UNKNOWN: LibraryId = LibraryId(0);

    /// One of those that got no number of their own.
    pub const OTHERS: LibraryId = LibraryId(NUMBERS - 1);

    /// The library with this number; of numbers from 32 on, what remains after a
    /// division by 32.
    #[must_use]
    #[inline(always)]
    pub const fn new(number: u8) -> LibraryId {
        LibraryId(number % NUMBERS)
    }

    /// The number, below 32.
    #[must_use]
    #[inline(always)]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// All of them.
    pub fn all() -> impl Iterator<Item = LibraryId> {
        (0..=LibraryId::OTHERS.0).map(LibraryId)
    }
}

/// What each library has in units of some size, or how many more or (wrapped) fewer
/// than before.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct LibraryUnits([u64; MOST_LIBRARIES]);

impl LibraryUnits {
    /// A library got so many.
    #[inline(always)]
    pub(crate) fn add(&mut self, library: LibraryId, units: u64) {
        let all = self.of_mut(library);
        *all = all.wrapping_add(units);
    }

    /// So many that a library got were freed.
    #[inline(always)]
    pub(crate) fn sub(&mut self, library: LibraryId, units: u64) {
        let all = self.of_mut(library);
        *all = all.wrapping_sub(units);
    }

    /// The same in bytes, of which each unit has so many.
    pub(crate) fn bytes(&self, unit: Bytes) -> LibraryBytes {
        let bytes = self.0.map(|units| units.wrapping_mul(unit.get()));
        LibraryBytes(LibraryUnits(bytes))
    }

    #[inline(always)]
    fn of_mut(&mut self, library: LibraryId) -> &mut u64 {
        // So that the compiler sees that it is below 32.
        &mut self.0[usize::from(library.0) % MOST_LIBRARIES]
    }
}

/// Bytes that each library has, or how many more or (wrapped) fewer than before.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct LibraryBytes(LibraryUnits);

impl LibraryBytes {
    /// What a library has.
    #[must_use]
    pub fn of(&self, library: LibraryId) -> Bytes {
        Bytes::new(self.0.0[usize::from(library.0)])
    }

    /// A library got memory.
    pub fn add(&mut self, library: LibraryId, size: Bytes) {
        self.0.add(library, size.get());
    }

    /// What a library got was freed.
    pub fn sub(&mut self, library: LibraryId, size: Bytes) {
        self.0.sub(library, size.get());
    }

    /// Adds what others count.
    pub(crate) fn add_all(&mut self, other: &LibraryBytes) {
        for (library, units) in LibraryId::all().zip(other.0.0) {
            self.0.add(library, units);
        }
    }

    /// Takes off what others count.
    pub(crate) fn sub_all(&mut self, other: &LibraryBytes) {
        for (library, units) in LibraryId::all().zip(other.0.0) {
            self.0.sub(library, units);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_has_what_it_got_and_did_not_free() {
        let (mut all, mut change) = (LibraryBytes::default(), LibraryBytes::default());
        all.add(LibraryId::new(3), Bytes::new(700));
        change.sub(LibraryId::new(3), Bytes::new(200));
        change.add(LibraryId::OTHERS, Bytes::new(1));
        all.add_all(&change);
        let of = |number| all.of(LibraryId::new(number)).get();
        assert_eq!((of(3), of(31), of(0)), (500, 1, 0));
        assert_eq!(LibraryId::new(32), LibraryId::UNKNOWN);
        assert_eq!(LibraryId::all().count(), MOST_LIBRARIES);
    }
}
