//! Where the next event goes.
//!
//! Owns the place in the file and the form of the block that is being written.
//! Invariant: a block's length is published after the events that it counts, so
//! whoever reads the file finds whole events alone; nothing is put where there is no
//! room.

use super::encode::{Encoder, Whence};
use super::form::{BLOCK, Out, ROOM, block, head};
use super::mark::Mark;
use super::tend::Standing;
use super::{Medium, form};
use crate::stats::Event;

/// The most bytes of an event of a block.
const EVENT: usize = 64;

/// The most bytes of one that says that a free is completed, of many in a row.
const COMPLETED: u64 = 16;

/// The most bytes of what a mark says; a longer one is left out.
const SAID: usize = ROOM / 2;

/// See the module.
pub(super) struct Writer {
    encoder: Encoder,
    /// The bytes of an event.
    out: Out,
    /// Where the block is that is being written.
    at: u64,
    /// Bytes of its events, and how many there may be: none where nothing is written
    /// any more.
    used: usize,
    usable: usize,
    /// Its number.
    pub(super) sequence: u64,
    /// Blocks of a ring; none where the file only grows.
    ring: u64,
    /// Where the file ends now.
    pub(super) room: u64,
    /// Where it may end.
    most: u64,
    pub(super) standing: Standing,
    /// The process came to its end.
    is_over: bool,
    /// No more room can be made.
    pub(super) is_last_room: bool,
    /// Events since the last one that was written.
    missed: u64,
    pub(super) lost: u64,
    pub(super) events: u64,
    pub(super) bytes: u64,
    /// What there is has to be told anew.
    pub(super) tells: bool,
    /// How often that was so.
    pub(super) telling: u32,
    /// It has to be from the block of this number on.
    tells_from: u64,
    is_due: bool,
}

impl Writer {
    /// Nothing is written yet: no block is open.
    pub(super) fn new(ring: u32, room: u64, most: u64) -> Writer {
        Writer {
            encoder: Encoder::new(),
            out: Out::new(),
            at: 0,
            used: ROOM,
            usable: ROOM,
            sequence: 0,
            ring: u64::from(ring),
            room,
            most,
            standing: Standing::Running,
            is_over: false,
            is_last_room: false,
            missed: 0,
            lost: 0,
            events: 0,
            bytes: 0,
            tells: false,
            telling: 0,
            tells_from: if ring == 0 {
                u64::MAX
            } else {
                1 + quarter(ring.into())
            },
            is_due: false,
        }
    }

    /// What there is was told since the block of this number. What takes much of a ring
    /// is told again when thrice as much came of other events, so that a program that
    /// holds more than its ring can tell of goes on.
    pub(super) fn told_since(&mut self, began: u64) {
        if self.ring > 0 {
            let took = self.sequence - began;
            self.tells_from = (began + quarter(self.ring)).max(self.sequence + 3 * took);
        }
    }

    /// Whether [`Recording::tend`](super::Recording::tend) has something to do since
    /// this was asked last.
    #[inline]
    pub(super) fn is_due(&mut self) -> bool {
        self.is_due && std::mem::take(&mut self.is_due)
    }

    /// Writes an event, or counts that there is no room for it. `told`: see
    /// [`Encoder::event`].
    #[inline]
    pub(super) fn event(
        &mut self,
        medium: &dyn Medium,
        whence: Whence,
        event: &Event,
        told: Option<bool>,
    ) {
        if self.has_room(medium, whence, EVENT) {
            self.events += u64::from(told.is_none());
            self.out.clear();
            self.encoder.event(&mut self.out, whence, event, told);
            self.put(medium);
        }
    }

    /// The same with the mark of this number, which says this.
    pub(super) fn mark(&mut self, medium: &dyn Medium, whence: Whence, code: u8, said: &[u8]) {
        if said.len() <= SAID && self.has_room(medium, whence, EVENT + said.len()) {
            self.out.clear();
            self.encoder.mark(&mut self.out, whence, code, said);
            self.put(medium);
        }
    }

    /// Makes sure that there is room for so many bytes; counts an event where there is
    /// none.
    #[inline]
    fn has_room(&mut self, medium: &dyn Medium, whence: Whence, bytes: usize) -> bool {
        if self.used + bytes > self.usable && !self.open(medium, whence.2) {
            self.loses(medium);
            return false;
        }
        if self.missed > 0 {
            self.tell_gap(medium, whence);
        }
        true
    }

    #[inline]
    fn put(&mut self, medium: &dyn Medium) {
        let bytes = self.out.bytes();
        let at = self.at + (block::EVENTS + self.used) as u64;
        self.used += bytes.len();
        self.bytes += bytes.len() as u64;
        // Never more than a block.
        let used = u32::try_from(self.used).unwrap_or(0);
        medium.append(at, bytes, self.at + block::LENGTH as u64, used);
    }

    #[cold]
    fn loses(&mut self, medium: &dyn Medium) {
        if self.is_over {
            return;
        }
        self.missed += 1;
        self.lost += 1;
        let lost = u32::try_from(self.lost).unwrap_or(u32::MAX);
        medium.publish(head::LOST as u64, lost);
    }

    #[cold]
    fn tell_gap(&mut self, medium: &dyn Medium, whence: Whence) {
        let mut said = Out::new();
        let code = Mark::Gap(std::mem::take(&mut self.missed)).write(&mut said);
        self.out.clear();
        self.encoder.mark(&mut self.out, whence, code, said.bytes());
        self.put(medium);
        (self.tells, self.is_due) = (true, true);
    }

    /// Begins the next block; false where there is no room.
    #[cold]
    #[inline(never)]
    pub(super) fn open(&mut self, medium: &dyn Medium, time_us: u64) -> bool {
        if self.is_over || self.standing != Standing::Running {
            return false;
        }
        self.is_due = true;
        let mut next = self.at + BLOCK;
        if self.ring > 0 && next == (self.ring + 1) * BLOCK {
            next = BLOCK;
        }
        if next + BLOCK > self.room {
            let stands = match (next + BLOCK > self.most, self.is_last_room) {
                (true, _) => Standing::Full,
                (false, true) => Standing::Failed,
                (false, false) => Standing::Running,
            };
            if stands != Standing::Running {
                self.stands(medium, stands);
            }
            return false;
        }
        self.at = next;
        self.used = 0;
        self.sequence += 1;
        // A reader that comes now finds the block empty, and not the rest of another.
        medium.publish(next + block::LENGTH as u64, 0);
        let time_us = time_us.max(self.encoder.time_us());
        self.encoder.restart(time_us);
        let (allocations, frees) = (self.encoder.allocations, self.encoder.frees);
        medium.put(next + block::TIME as u64, &time_us.to_le_bytes());
        medium.put(next + block::ALLOCATIONS as u64, &allocations.to_le_bytes());
        medium.put(next + block::FREES as u64, &frees.to_le_bytes());
        medium.put(next, &self.sequence.to_le_bytes());
        medium.publish(next + block::LENGTH as u64, 0);
        // A ring that has come round loses what was told at its begin: it is told
        // again for every quarter.
        if self.sequence >= self.tells_from {
            (self.tells, self.tells_from) = (true, u64::MAX);
        }
        true
    }

    /// It stands so from now on.
    fn stands(&mut self, medium: &dyn Medium, standing: Standing) {
        self.standing = standing;
        self.usable = 0;
        medium.publish(head::STANDING as u64, standing as u32);
    }

    /// Where a complete block of this number is; none where it is being written, or
    /// was overwritten.
    pub(super) fn place_of(&self, sequence: u64) -> Option<u64> {
        let ring = if self.ring == 0 { u64::MAX } else { self.ring };
        let is_there = sequence < self.sequence && self.sequence - sequence < ring;
        is_there.then(|| ((sequence - 1) % ring + 1) * BLOCK)
    }

    /// Nothing is written any more. Where the newest block is, and where the file
    /// ends.
    pub(super) fn end(&mut self, medium: &dyn Medium) -> Option<(u64, u64)> {
        if std::mem::replace(&mut self.is_over, true) {
            return None;
        }
        if self.standing == Standing::Running {
            self.stands(medium, Standing::Ended);
        }
        let end = if self.has_come_round() {
            self.room
        } else {
            self.at + BLOCK
        };
        Some((self.at, end.min(self.room)))
    }

    /// Whether older events have made room for new ones.
    pub(super) fn has_come_round(&self) -> bool {
        self.ring > 0 && self.sequence > self.ring
    }

    /// Bytes of the file that are not written yet.
    pub(super) fn ahead(&self) -> u64 {
        if self.ring > 0 && self.room >= self.most {
            return u64::MAX;
        }
        self.room.saturating_sub(self.at + BLOCK)
    }

    /// Bytes that it takes at the most to tell that all that waits for the device is
    /// completed: an arena may say so at once, while it is locked.
    pub(super) fn waiting(&self) -> u64 {
        self.encoder.waiting.saturating_mul(COMPLETED)
    }
}

/// How many blocks a quarter of a ring has.
fn quarter(ring: u64) -> u64 {
    (ring / 4).max(1)
}

/// Seals a complete block: its checksum counts from now on.
pub(super) fn seal(medium: &dyn Medium, at: u64, bytes: &[u8]) {
    let length = form::word(bytes, block::LENGTH) & !form::SEALED;
    let sum = form::sum_of(bytes, length as usize);
    medium.put(at + block::SUM as u64, &sum.to_le_bytes());
    medium.publish(at + block::LENGTH as u64, length | form::SEALED);
}
