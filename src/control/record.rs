//! Words that one writes and others read, without a lock: a seqlock.
//!
//! A record is its version, the number of its words, a check of both and of the
//! words, and the words. The version is odd while the words are written.
//! Invariant: a reader gets words as one writer wrote them, or none. A writer
//! that dies leaves an odd version, which its successor begins anew from. The
//! check is for readers of a file: the kernel copies to them, and does not
//! promise to copy whole words. Cost: the words, three more, and two fences; or
//! for a file one system call.

use std::io;

use crate::control::cells::Cells;
use crate::patience::Patience;
use crate::sync::atomic::{Ordering, fence};

/// How often a reader looks at a record that is being written: some 10 ms.
const TRIES: usize = if cfg!(loom) { 2 } else { 128 };

/// The words before the record's own.
pub(super) const HEAD: usize = 3;

/// Where a record lies, and how many words it may have.
pub struct Record {
    at: usize,
    most: usize,
}

/// What a reader finds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seen<T> {
    /// Nothing was written.
    Nothing,
    /// It is being written, its writer died, or it is no such record.
    Unfinished,
    /// What was written.
    Whole(T),
}

impl<T> Seen<T> {
    /// What was written, if that can be said.
    pub fn whole(self) -> Option<T> {
        match self {
            Seen::Whole(value) => Some(value),
            Seen::Nothing | Seen::Unfinished => None,
        }
    }

    /// Reads on; what does not read as it should counts as not there.
    pub fn and_then<U>(self, read: impl FnOnce(T) -> Option<U>) -> Seen<U> {
        match self {
            Seen::Nothing => Seen::Nothing,
            Seen::Unfinished => Seen::Unfinished,
            Seen::Whole(value) => read(value).map_or(Seen::Nothing, Seen::Whole),
        }
    }
}

/// Whether a record of this version is being written.
pub(super) fn is_odd(version: u64) -> bool {
    !version.is_multiple_of(2)
}

/// A word that hardly fits any other version or words.
fn check(version: u64, words: &[u64]) -> u64 {
    let start = version ^ (words.len() as u64).rotate_left(32);
    words.iter().fold(start, |sum, &word| {
        (sum ^ word)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
    })
}

impl Record {
    /// A record from a place on, of at most so many words.
    pub(super) const fn new(at: usize, most: usize) -> Record {
        Record { at, most }
    }

    /// The place after it.
    pub(super) const fn end(&self) -> usize {
        self.at + HEAD + self.most
    }

    /// Whether its version is there.
    #[cfg(all(test, loom))]
    pub(super) fn begins_at(&self, place: usize) -> bool {
        self.at == place
    }

    /// Its version: it changes with each writing, and is odd meanwhile.
    pub(super) fn version(&self, cells: &(impl Cells + ?Sized)) -> io::Result<u64> {
        let mut version = [0];
        cells.load(self.at, &mut version)?;
        Ok(version[0])
    }

    /// Writes the words. One writer at a time.
    pub(super) fn write(&self, cells: &(impl Cells + ?Sized), words: &[u64]) -> io::Result<()> {
        let last = self.version(cells)?;
        self.write_after(cells, last, words.to_vec()).map(drop)
    }

    /// The same for a writer who knows the version before; returns the new one.
    pub(super) fn write_after(
        &self,
        cells: &(impl Cells + ?Sized),
        last: u64,
        mut words: Vec<u64>,
    ) -> io::Result<u64> {
        if words.len() > self.most {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // The one after the next odd one, also after a writer that died. None
        // is 0: nothing would seem to be written.
        let version = match (last.wrapping_add(1) | 1).wrapping_add(1) {
            0 => 2,
            version => version,
        };
        let head = [version, words.len() as u64, check(version, &words)];
        words.splice(..0, head);
        cells.replace(self.at, &words)?;
        Ok(version)
    }

    /// One look at the words.
    pub(super) fn peek(&self, cells: &(impl Cells + ?Sized)) -> io::Result<Seen<Vec<u64>>> {
        let version = self.version(cells)?;
        if version == 0 {
            return Ok(Seen::Nothing);
        }
        if is_odd(version) {
            return Ok(Seen::Unfinished);
        }
        // Acquire: pairs with the second fence of `in_steps`.
        fence(Ordering::Acquire);
        let mut words = vec![0; HEAD + self.most];
        cells.load(self.at, &mut words)?;
        // Acquire: pairs with the first fence of `in_steps`.
        fence(Ordering::Acquire);
        if self.version(cells)? != version {
            return Ok(Seen::Unfinished);
        }
        let head: Vec<u64> = words.drain(..HEAD).collect();
        let length = head.get(1).and_then(|&length| usize::try_from(length).ok());
        words.truncate(length.unwrap_or(0));
        let is_whole = head == [version, words.len() as u64, check(version, &words)];
        Ok(if is_whole {
            Seen::Whole(words)
        } else {
            Seen::Unfinished
        })
    }

    /// The words; looks again for a while if they are being written.
    pub(super) fn read(&self, cells: &(impl Cells + ?Sized)) -> io::Result<Seen<Vec<u64>>> {
        let mut patience = Patience::new();
        for _ in 1..TRIES {
            match self.peek(cells)? {
                Seen::Unfinished => patience.pause(),
                seen => return Ok(seen),
            }
        }
        self.peek(cells)
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::atomic::AtomicU64;
    use loom::sync::Arc;
    use loom::thread;

    const RECORD: Record = Record::new(0, 2);

    fn cells() -> Arc<Vec<AtomicU64>> {
        Arc::new((0..RECORD.end()).map(|_| AtomicU64::new(0)).collect())
    }

    /// A reader gets the words of one writing, whenever it looks.
    #[test]
    fn loom_no_words_are_mixed() {
        loom::model(|| {
            let cells = cells();
            RECORD.write(&cells[..], &[1, 1]).unwrap();
            let writer = {
                let cells = Arc::clone(&cells);
                thread::spawn(move || RECORD.write(&cells[..], &[2, 2]).unwrap())
            };
            match RECORD.peek_unchecked(&cells[..]) {
                Some(words) => assert!(words == [1, 1] || words == [2, 2], "{words:?}"),
                None => {}
            }
            writer.join().unwrap();
            assert_eq!(RECORD.peek(&cells[..]).unwrap(), Seen::Whole(vec![2, 2]));
        });
    }

    impl Record {
        /// As `peek`, by the versions alone: these must do for memory.
        fn peek_unchecked(&self, cells: &[AtomicU64]) -> Option<[u64; 2]> {
            let version = self.version(cells).unwrap();
            if is_odd(version) {
                return None;
            }
            fence(Ordering::Acquire);
            let mut words = [0; 2];
            cells.load(self.at + HEAD, &mut words).unwrap();
            fence(Ordering::Acquire);
            (self.version(cells).unwrap() == version).then_some(words)
        }
    }
}
