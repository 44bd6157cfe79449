//! The words of a page: memory of the process that owns it, or a file.

use std::io;

use crate::sync::atomic::{AtomicU64, Ordering, fence};

/// Words that others read and write too. A single word is read and written
/// whole in memory; of a file nothing is promised that a record does not check.
pub trait Cells {
    /// Reads the words from a place on.
    ///
    /// # Errors
    /// That there are none, or what the system answers.
    fn load(&self, place: usize, to: &mut [u64]) -> io::Result<()>;

    /// Writes words to a place on.
    ///
    /// # Errors
    /// As `load`.
    fn store(&self, place: usize, words: &[u64]) -> io::Result<()>;

    /// Writes a record from a place on: its version, the number of its words,
    /// their check, and the words. Readers of memory need the steps; cells that
    /// nobody reads but as a file, by the check, may take all at once.
    ///
    /// # Errors
    /// As `load`.
    fn replace(&self, place: usize, record: &[u64]) -> io::Result<()> {
        in_steps(self, place, record)
    }
}

/// Writes a record so that its version is odd meanwhile.
///
/// # Errors
/// Those of the cells.
pub fn in_steps(cells: &(impl Cells + ?Sized), place: usize, record: &[u64]) -> io::Result<()> {
    let Some((&[version, length, check], words)) = record.split_first_chunk() else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    cells.store(place, &[version.wrapping_sub(1)])?;
    // Release: a reader of any of the words that follow sees the odd version.
    // Pairs with the second fence of `peek`.
    fence(Ordering::Release);
    cells.store(place + 3, words)?;
    cells.store(place + 1, &[length, check])?;
    // Release: who sees this version sees the words. Pairs with the first fence
    // of `peek`.
    fence(Ordering::Release);
    cells.store(place, &[version])
}

/// Memory. Relaxed throughout: the fences of a record order its words.
impl Cells for [AtomicU64] {
    fn load(&self, place: usize, to: &mut [u64]) -> io::Result<()> {
        let from = self.get(place..).unwrap_or_default();
        if from.len() < to.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.load(Ordering::Relaxed);
        }
        Ok(())
    }

    fn store(&self, place: usize, words: &[u64]) -> io::Result<()> {
        let to = self.get(place..).unwrap_or_default();
        if to.len() < words.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (to, word) in to.iter().zip(words) {
            to.store(*word, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl<C: Cells + ?Sized> Cells for &C {
    fn load(&self, place: usize, to: &mut [u64]) -> io::Result<()> {
        (**self).load(place, to)
    }

    fn store(&self, place: usize, words: &[u64]) -> io::Result<()> {
        (**self).store(place, words)
    }

    fn replace(&self, place: usize, record: &[u64]) -> io::Result<()> {
        (**self).replace(place, record)
    }
}
