//! What memory holds, as far as a test has written to it, and copies of that on the
//! host.
//!
//! A test writes a *tag* to a range, and asks later whether the range still holds it,
//! each byte at its place. What is unmapped is lost.
//!
//! Owns the tags and the backups. Invariant: tagged pieces do not overlap. Cost: O(log
//! n) and a step for each piece that is touched.

use std::collections::BTreeMap;

use super::Model;
use crate::faults::Violation;
use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::error::Code;

/// A part of what was written in one go.
#[derive(Copy, Clone, Debug)]
struct Piece {
    size: u64,
    tag: u64,
    /// Where it lies in what was written.
    from: u64,
}

/// Pieces by where they begin.
#[derive(Debug, Default)]
struct Pieces(BTreeMap<u64, Piece>);

impl Pieces {
    /// Cuts a piece that reaches over `at`.
    fn cut(&mut self, at: u64) {
        let below = self.0.range_mut(..at).next_back();
        let Some((&start, piece)) = below.filter(|(start, piece)| **start + piece.size > at) else {
            return;
        };
        let below = at - start;
        let above = Piece {
            size: piece.size - below,
            tag: piece.tag,
            from: piece.from + below,
        };
        piece.size = below;
        self.0.insert(at, above);
    }

    fn clear(&mut self, at: u64, size: u64) {
        self.cut(at);
        self.cut(at + size);
        let gone: Vec<u64> = self.0.range(at..at + size).map(|(&at, _)| at).collect();
        for at in gone {
            self.0.remove(&at);
        }
    }

    /// The pieces of a stretch, by where in it they begin.
    fn copy(&mut self, at: u64, size: u64) -> Vec<(u64, Piece)> {
        self.cut(at);
        self.cut(at + size);
        let inside = self.0.range(at..at + size);
        inside.map(|(&start, &piece)| (start - at, piece)).collect()
    }

    fn put(&mut self, at: u64, size: u64, pieces: Vec<(u64, Piece)>) {
        self.clear(at, size);
        self.0
            .extend(pieces.into_iter().map(|(n, piece)| (at + n, piece)));
    }

    /// Whether a stretch holds what was written there with this tag, and all of it.
    fn holds(&mut self, at: u64, size: u64, tag: u64) -> bool {
        let mut next = 0;
        for (start, piece) in self.copy(at, size) {
            if start != next || piece.from != start || piece.tag != tag {
                return false;
            }
            next += piece.size;
        }
        next == size
    }
}

#[derive(Debug)]
struct Backup {
    size: u64,
    pieces: Pieces,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    device: Pieces,
    backups: BTreeMap<u64, Backup>,
    made: u64,
}

impl Contents {
    /// What lies there is lost.
    pub(super) fn clear(&mut self, at: Address, size: Bytes) {
        self.device.clear(at.get(), size.get());
    }
}

impl<E> Model<E> {
    /// Writes a tag to memory.
    pub fn write_tag(&mut self, at: Address, size: Bytes, tag: u64) {
        let piece = Piece {
            size: size.get(),
            tag,
            from: 0,
        };
        let pieces = vec![(0, piece)];
        self.contents.device.put(at.get(), size.get(), pieces);
    }

    /// Whether memory holds what was written there with this tag, from its start on.
    pub fn holds_tag(&mut self, at: Address, size: Bytes, tag: u64) -> bool {
        self.contents.device.holds(at.get(), size.get(), tag)
    }

    /// Takes memory of the host for a copy.
    pub fn take_backup(&mut self, size: Bytes) -> u64 {
        self.contents.made += 1;
        let backup = Backup {
            size: size.get(),
            pieces: Pieces::default(),
        };
        self.contents.backups.insert(self.contents.made, backup);
        self.contents.made
    }

    /// Gives it back; a violation where there is none.
    pub fn drop_backup(&mut self, number: u64) {
        if self.contents.backups.remove(&number).is_none() {
            self.violate(Violation::Other(format!("there is no backup {number}")));
        }
    }

    /// How many backups there are, and their bytes.
    pub fn backups(&self) -> (usize, Bytes) {
        let all = self.contents.backups.values();
        let bytes = all.map(|backup| backup.size).sum();
        (self.contents.backups.len(), Bytes::new(bytes))
    }

    /// Copies memory into a backup, or with `back` out of it; a violation where either
    /// is not there, or may not be touched.
    ///
    /// # Errors
    /// [`Code::INVALID_VALUE`] then.
    pub fn copy_backup(
        &mut self,
        at: Address,
        size: Bytes,
        number: u64,
        offset: Bytes,
        back: bool,
    ) -> Result<(), Code> {
        let is_there = self.is_mapped(at, size) && self.is_admitted(at, size);
        let backup = self.contents.backups.get_mut(&number);
        let fits = |backup: &&mut Backup| offset.get() + size.get() <= backup.size;
        let Some(backup) = backup.filter(|backup| is_there && fits(backup)) else {
            let words = format!("{at:?} cannot be copied to or from backup {number}");
            self.violate(Violation::Other(words));
            return Err(Code::INVALID_VALUE);
        };
        let device = &mut self.contents.device;
        let (at, size, offset) = (at.get(), size.get(), offset.get());
        if back {
            device.put(at, size, backup.pieces.copy(offset, size));
        } else {
            backup.pieces.put(offset, size, device.copy(at, size));
        }
        Ok(())
    }
}
