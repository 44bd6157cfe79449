//! Which sizes requests come for: for one alone, or for such as the program has asked for
//! before.
//!
//! Owns a bit for each of [`CLASSES`] classes of sizes, since what is asked is a guess: that a
//! program repeats. Cost: a comparison for each request that is not small, and a bit where
//! it is for another size than the one before.

use crate::address::Bytes;

/// So many in a row are.
pub(super) const RUN: u32 = 16;

/// Sizes that share a class are taken for one. A program has some hundred at the most.
const CLASSES: usize = 64 * WORDS;
const WORDS: usize = 32;

/// What the program has done, so far as it says what it will ask for.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// The size that was asked for last, and how many requests for it came in a row before.
    size: Bytes,
    run: u32,
    /// Made with the first size: most arenas of a process with many serve none.
    sizes: Option<Box<Sizes>>,
    has_lately: bool,
    /// What was live at the last turn: the most while it rises, the least while it falls.
    turn: Bytes,
    falls: bool,
    /// Requests that were refused, and how often it is to come down before any size is known
    /// again.
    failures: u32,
    careful: u32,
}

/// The classes of sizes that were asked for since the program came down last, and before
/// that.
#[derive(Debug, Default)]
struct Sizes {
    lately: [u64; WORDS],
    before: [u64; WORDS],
}

/// After a request that was refused all sizes are new until the program came down so often,
/// after each further one twice as often, up to this many times.
const CAREFUL: u32 = 4;
const MOST_FAILURES: u32 = 7;

/// It turns where what is live differs by a quarter.
fn three_quarters(of: Bytes) -> Bytes {
    of.saturating_sub(Bytes::new(of.get() / 4))
}

/// The class of a size: a word, and a bit of it.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "masked to a few bits")]
fn class(size: Bytes) -> (usize, u64) {
    // The slots by a multiplication (Knuth, volume 3, 6.4): bits of its upper half.
    let hash = (size.get() / 512).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let number = hash as usize % CLASSES;
    (number / 64, 1 << (number % 64))
}

impl Requests {
    #[inline]
    pub(super) fn serves(&mut self, size: Bytes) {
        let goes_on = size == self.size;
        self.run = if goes_on {
            self.run.saturating_add(1)
        } else {
            let (word, bit) = class(size);
            self.sizes.get_or_insert_default().lately[word] |= bit;
            self.has_lately = true;
            0
        };
        self.size = size;
    }

    /// Whether they come for this size alone.
    pub(super) fn are_all_for(&self, size: Bytes) -> bool {
        self.run >= RUN && size == self.size
    }

    /// So much is live now.
    #[inline]
    pub(super) fn moved(&mut self, live: Bytes) {
        if self.falls {
            if live < self.turn {
                self.turn = live;
            } else if three_quarters(live) > self.turn {
                (self.falls, self.turn) = (false, live);
            }
        } else if live > self.turn {
            self.turn = live;
        } else if live < three_quarters(self.turn) {
            (self.falls, self.turn) = (true, live);
            self.come_down();
        }
    }

    /// What it asks for from now on may be for something else.
    fn come_down(&mut self) {
        self.careful = self.careful.saturating_sub(1);
        if std::mem::take(&mut self.has_lately)
            && let Some(sizes) = &mut self.sizes
        {
            for (before, lately) in sizes.before.iter_mut().zip(&mut sizes.lately) {
                *before |= std::mem::take(lately);
            }
        }
    }

    /// A request was refused for which there was memory, in pieces.
    pub(super) fn failed(&mut self) {
        self.careful = CAREFUL << self.failures.min(MOST_FAILURES);
        self.failures = self.failures.saturating_add(1);
    }

    /// The program holds clearly more than ever: what was refused before says nothing.
    pub(super) fn rose_higher(&mut self) {
        self.failures = 0;
    }

    /// Whether it has asked for this size before it came down last.
    pub(super) fn has_asked(&self, size: Bytes) -> bool {
        let (word, bit) = class(size);
        let asked = |sizes: &Sizes| sizes.before[word] & bit != 0;
        self.sizes.as_deref().is_some_and(asked)
    }

    /// Whether it has not, or all sizes are new.
    pub(super) fn is_new(&self, size: Bytes) -> bool {
        self.is_careful() || !self.has_asked(size)
    }

    /// Whether all sizes are.
    pub(super) fn is_careful(&self) -> bool {
        self.careful > 0
    }
}
