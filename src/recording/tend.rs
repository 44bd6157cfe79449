//! What a recording needs besides its events: room, checksums, and what there is
//! told anew where older events are lost.
//!
//! Invariant: nothing of it happens while a lock of an arena is held. One thread does
//! it at a time; another waits for it only where there is hardly any room left.
//! Cost: a few system calls for each 4 MiB, and a checksum for each block.

use std::sync::TryLockError;

use super::form::{BLOCK, BYTES, head};
use super::mark::Mark;
use super::{RecordBound, Recording, locked, writer};
use crate::sync::MutexGuard;
use crate::sync::atomic::Ordering;

/// So much is added to the file at a time.
const STEP: u64 = 64 * BLOCK;

/// Where less is left, more is added.
const LOW: u64 = STEP / 2;

/// Where less is left, a thread waits for the one that makes room.
const LEAST: u64 = 4 * BLOCK;

/// How a recording stands.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Standing {
    /// Events are written. Where the process is gone, it was killed.
    Running = 0,
    /// The process came to its end.
    Ended = 1,
    /// Its bound was reached: what came later is not in it.
    Full = 2,
    /// The system gave no more room: what came later is not in it.
    Failed = 3,
}

impl Standing {
    /// The word in the statistics.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Standing::Running => "running",
            Standing::Ended => "ended",
            Standing::Full => "full",
            Standing::Failed => "failed",
        }
    }

    /// What a file says.
    pub(super) fn of(word: u32) -> Option<Standing> {
        let all = [
            Standing::Running,
            Standing::Ended,
            Standing::Full,
            Standing::Failed,
        ];
        all.into_iter().find(|standing| *standing as u32 == word)
    }
}

/// What was recorded so far.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Recorded {
    /// How it stands.
    pub standing: Standing,
    /// Events of blocks and segments.
    pub events: u64,
    /// Bytes of events and marks.
    pub bytes: u64,
    /// Events that found no room.
    pub lost: u64,
    /// Whether older events have made room for new ones.
    pub came_round: bool,
}

/// See the module.
pub(super) struct Tender {
    /// Whole blocks, the head among them.
    most: u64,
    ring: bool,
    /// All complete blocks before this one are sealed.
    next_seal: u64,
    /// Its bound was told of.
    said: bool,
}

impl Tender {
    pub(super) fn new(bound: RecordBound) -> Tender {
        // A ring is told anew by quarters.
        const FEWEST: u64 = 9;
        Tender {
            most: (bound.most.get() / BLOCK).max(FEWEST) * BLOCK,
            ring: bound.ring,
            next_seal: 1,
            said: false,
        }
    }

    /// The most bytes of the file.
    pub(super) fn most(&self) -> u64 {
        self.most
    }

    /// The bytes that it begins with.
    pub(super) fn first(&self) -> u64 {
        STEP.min(self.most)
    }

    /// Blocks of a ring; none where the file only grows.
    pub(super) fn ring_blocks(&self) -> u32 {
        let blocks = self.most / BLOCK - 1;
        if self.ring {
            u32::try_from(blocks).unwrap_or(u32::MAX)
        } else {
            0
        }
    }
}

impl Recording {
    #[cold]
    #[inline(never)]
    pub(super) fn tend_now(&self) {
        let is_short = self.writer.lock().ahead() < LEAST;
        let tender = match self.tender.try_lock() {
            Ok(tender) => Some(tender),
            Err(TryLockError::Poisoned(tender)) => Some(tender.into_inner()),
            Err(TryLockError::WouldBlock) if is_short => self.tender.lock().ok(),
            Err(TryLockError::WouldBlock) => None,
        };
        let Some(mut tender) = tender else {
            return;
        };
        // Before the look: what is due from now on is seen by the next.
        self.is_due.store(false, Ordering::Relaxed);
        self.make_room(&tender);
        self.seal_complete(&mut tender);
        let is_full = {
            let writer = self.writer.lock();
            let is_full = writer.standing == Standing::Full && !tender.said;
            tender.said |= is_full;
            is_full
        };
        drop(tender);
        if is_full {
            self.medium.is_full();
        }
        self.tell();
    }

    fn make_room(&self, tender: &MutexGuard<'_, Tender>) {
        let (room, ahead, waiting, is_last) = {
            let writer = self.writer.lock();
            let (ahead, waiting) = (writer.ahead(), writer.waiting());
            (writer.room, ahead, waiting, writer.is_last_room)
        };
        let low = LOW.saturating_add(waiting);
        if ahead >= low || room >= tender.most || is_last {
            return;
        }
        let lacks = (low - ahead).next_multiple_of(BLOCK);
        let to = room.saturating_add(lacks.max(STEP)).min(tender.most);
        let made = self.medium.extend(room, to);
        let mut writer = self.writer.lock();
        if made {
            writer.room = to;
        } else {
            writer.is_last_room = true;
        }
    }

    fn seal_complete(&self, tender: &mut MutexGuard<'_, Tender>) {
        let mut bytes = Vec::new();
        loop {
            let sequence = tender.next_seal;
            let (at, newest) = {
                let writer = self.writer.lock();
                (writer.place_of(sequence), writer.sequence)
            };
            if sequence >= newest {
                return;
            }
            tender.next_seal += 1;
            let Some(at) = at else {
                continue;
            };
            bytes.resize(BYTES, 0);
            self.medium.get(at, &mut bytes);
            // Nobody writes a complete block, unless the ring has come round.
            let writer = self.writer.lock();
            if writer.place_of(sequence) == Some(at) {
                writer::seal(&*self.medium, at, &bytes);
            }
            drop(writer);
            self.medium.leave(at, at + BLOCK);
        }
    }

    /// Has told what there is, where that is to be told anew.
    fn tell(&self) {
        let began = {
            let mut writer = self.writer.lock();
            if !std::mem::take(&mut writer.tells) {
                return;
            }
            writer.telling = writer.telling.wrapping_add(1);
            writer.sequence
        };
        self.mark(None, &Mark::Telling { begins: true });
        let arenas = locked(&self.arenas).clone();
        for (arena, text) in (0..).zip(arenas) {
            self.mark(Some(arena), &Mark::Arena { arena, text });
        }
        self.medium.tell_all();
        self.mark(None, &Mark::Telling { begins: false });
        self.writer.lock().told_since(began);
    }

    /// Nothing is recorded any more: the file ends behind the newest event.
    pub fn end(&self) {
        let mut tender = locked(&self.tender);
        let Some((newest, length)) = self.writer.lock().end(&*self.medium) else {
            return;
        };
        self.seal_complete(&mut tender);
        let mut bytes = vec![0; BYTES];
        self.medium.get(newest, &mut bytes);
        writer::seal(&*self.medium, newest, &bytes);
        let blocks = u32::try_from(length / BLOCK - 1).unwrap_or(u32::MAX);
        self.medium.publish(head::BLOCKS as u64, blocks);
        self.medium.end(length);
    }

    /// What was recorded so far.
    #[must_use]
    pub fn recorded(&self) -> Recorded {
        let writer = self.writer.lock();
        Recorded {
            standing: writer.standing,
            events: writer.events,
            bytes: writer.bytes,
            lost: writer.lost,
            came_round: writer.has_come_round(),
        }
    }
}
