//! The form of a recording's file: what its head and its blocks begin with, and
//! how numbers are written. docs/recording.md tells it in words.

use super::Medium;

/// Bytes of the head and of each block.
pub(super) const BLOCK: u64 = SIZE as u64;

/// The same.
pub(super) const BYTES: usize = SIZE as usize;

const SIZE: u32 = 64 << 10;

/// Of the form.
pub(super) const VERSION: u32 = 1;

/// The first bytes of a file.
pub(super) const MAGIC: [u8; 8] = *b"vramrec\n";

/// Where things are in the head.
pub(super) mod head {
    pub(in crate::recording) const VERSION: usize = 8;
    pub(in crate::recording) const BLOCK: usize = 12;
    /// Blocks of a ring; none where the file only grows.
    pub(in crate::recording) const RING: usize = 16;
    /// How it stands, published.
    pub(in crate::recording) const STANDING: usize = 20;
    /// Events that found no room, published.
    pub(in crate::recording) const LOST: usize = 24;
    /// Bytes of the text, and their checksum.
    pub(in crate::recording) const LENGTH: usize = 28;
    pub(in crate::recording) const SUM: usize = 32;
    /// Blocks that follow, published at the end; none before.
    pub(in crate::recording) const BLOCKS: usize = 36;
    pub(in crate::recording) const TEXT: usize = 64;
}

/// Where things are in a block.
pub(super) mod block {
    /// From 1; none in a block that was never used.
    pub(in crate::recording) const SEQUENCE: usize = 0;
    /// Bytes of events, published; with `SEALED`.
    pub(in crate::recording) const LENGTH: usize = 8;
    pub(in crate::recording) const SUM: usize = 12;
    /// The time at its begin, in microseconds since 1970.
    pub(in crate::recording) const TIME: usize = 16;
    /// Allocations and frees before it, modulo 2^32.
    pub(in crate::recording) const ALLOCATIONS: usize = 24;
    pub(in crate::recording) const FREES: usize = 28;
    pub(in crate::recording) const EVENTS: usize = 32;
}

/// Of a block's length: the block is complete, and its checksum valid.
pub(super) const SEALED: u32 = 1 << 31;

/// The most bytes of events in a block.
pub(super) const ROOM: usize = BYTES - block::EVENTS;

/// What an event is, in its first byte.
pub(super) mod kind {
    pub(in crate::recording) const MASK: u8 = 7;
    pub(in crate::recording) const MARK: u8 = 0;
    pub(in crate::recording) const ALLOC: u8 = 1;
    pub(in crate::recording) const FREE: u8 = 2;
    pub(in crate::recording) const COMPLETED: u8 = 3;
    pub(in crate::recording) const SEGMENT_ALLOC: u8 = 4;
    pub(in crate::recording) const SEGMENT_FREE: u8 = 5;
    /// What follows is of this arena, or of this thread.
    pub(in crate::recording) const ARENA: u8 = 6;
    pub(in crate::recording) const THREAD: u8 = 7;
}

/// The rest of the first byte.
pub(super) mod flag {
    /// The time since the event before follows.
    pub(in crate::recording) const TIMED: u8 = 1 << 3;
    /// A call stack follows.
    pub(in crate::recording) const STACK: u8 = 1 << 4;
    /// Of a free: the block by its number. Of an allocation: it is there already.
    pub(in crate::recording) const KNOWN: u8 = 1 << 5;
    /// Of an allocation: the address itself. Of a completed free: the next one. Of a
    /// segment: it was mapped or unmapped.
    pub(in crate::recording) const PLAIN: u8 = 1 << 6;
    /// Of what is there already: the program has freed it.
    pub(in crate::recording) const WAITS: u8 = 1 << 7;
}

/// How many of the newest allocations and of the newest frees are known by number.
pub(super) const WINDOW: u32 = 1 << 16;

/// The most sizes that a block numbers.
pub(super) const SIZES: usize = 2048;

/// Addresses of blocks are multiples of this.
pub(super) const UNIT: u64 = 512;

/// Which arena, or which thread, before any was named.
pub(super) const NONE: u32 = u32::MAX;

/// A signed difference as a number that is small where it is.
pub(super) fn zigzag(difference: i64) -> u64 {
    ((difference << 1) ^ (difference >> 63)).cast_unsigned()
}

pub(super) fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

/// Bytes that are put together, few of them as a rule.
pub(super) struct Out {
    few: [u8; 64],
    length: usize,
    /// All of them, once they are more.
    many: Vec<u8>,
}

impl Out {
    pub(super) fn new() -> Out {
        Out {
            few: [0; 64],
            length: 0,
            many: Vec::new(),
        }
    }

    /// Nothing is put together yet.
    #[inline(always)]
    pub(super) fn clear(&mut self) {
        self.length = 0;
        if !self.many.is_empty() {
            self.many.clear();
        }
    }

    #[inline(always)]
    pub(super) fn byte(&mut self, byte: u8) {
        match self.few.get_mut(self.length) {
            Some(place) => *place = byte,
            None => self.spill(byte),
        }
        self.length += 1;
    }

    #[cold]
    fn spill(&mut self, byte: u8) {
        if self.many.is_empty() {
            self.many.extend_from_slice(&self.few);
        }
        self.many.push(byte);
    }

    /// Seven bits a byte, the lowest first; the last has no eighth.
    #[inline(always)]
    pub(super) fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.byte((number & 0x7f) as u8 | 0x80);
            number >>= 7;
        }
        self.byte((number & 0x7f) as u8);
    }

    pub(super) fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        text.bytes().for_each(|byte| self.byte(byte));
    }

    pub(super) fn bytes(&self) -> &[u8] {
        if self.many.is_empty() {
            self.few.get(..self.length).unwrap_or_default()
        } else {
            &self.many
        }
    }
}

/// Bytes that are taken apart.
#[derive(Copy, Clone)]
pub(super) struct In<'a> {
    pub(super) rest: &'a [u8],
}

impl<'a> In<'a> {
    #[inline(always)]
    pub(super) fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(byte)
    }

    /// A number; none where it is cut off, or too large.
    #[inline(always)]
    pub(super) fn number(&mut self) -> Option<u64> {
        let first = self.byte()?;
        if first < 0x80 {
            return Some(u64::from(first));
        }
        let mut number = u64::from(first & 0x7f);
        for shift in (7..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    pub(super) fn small(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    pub(super) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    pub(super) fn text(&mut self) -> Option<String> {
        let length = usize::try_from(self.number()?).ok()?;
        Some(String::from_utf8_lossy(self.take(length)?).into_owned())
    }
}

/// The number at a place of a head; 0 beyond its end.
pub(super) fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
    word.copied().map_or(0, u32::from_le_bytes)
}

pub(super) fn long(bytes: &[u8], at: usize) -> u64 {
    let long = bytes.get(at..).and_then(|rest| rest.first_chunk());
    long.copied().map_or(0, u64::from_le_bytes)
}

/// Writes the head of a file.
pub(super) fn put_head(medium: &dyn Medium, ring: u32, text: &str) {
    // Options and arguments take some 20 KiB at the most; a text that is longer is
    // left out rather than cut.
    let text = if text.len() > BYTES - head::TEXT {
        "{}"
    } else {
        text
    };
    let length = u32::try_from(text.len()).unwrap_or(0);
    let words = [
        (head::VERSION, VERSION),
        (head::BLOCK, SIZE),
        (head::RING, ring),
        (head::LENGTH, length),
        (head::SUM, crc32fast::hash(text.as_bytes())),
    ];
    medium.put(0, &MAGIC);
    for (at, word) in words {
        medium.put(at as u64, &word.to_le_bytes());
    }
    medium.put(head::TEXT as u64, text.as_bytes());
    medium.publish(head::STANDING as u64, 0);
}

/// The checksum of a block: of its number, of what it begins with and of its
/// events.
pub(super) fn sum_of(block: &[u8], length: usize) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    for part in [
        block::SEQUENCE..block::LENGTH,
        block::TIME..block::EVENTS,
        block::EVENTS..block::EVENTS.saturating_add(length),
    ] {
        sum.update(block.get(part).unwrap_or_default());
    }
    sum.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_were_written() {
        for number in [0, 1, 127, 128, 16383, 16384, u64::from(u32::MAX), u64::MAX] {
            let mut out = Out::new();
            (0..12).for_each(|_| out.number(number));
            let mut read = In { rest: out.bytes() };
            assert!((0..12).all(|_| read.number() == Some(number)));
            assert_eq!(read.number(), None);
            let signed = number.cast_signed();
            assert_eq!(unzigzag(zigzag(signed)), signed);
        }
        assert_eq!(zigzag(-1), 1);
        let too_large = [0xff; 9].into_iter().chain([2]).collect::<Vec<u8>>();
        assert_eq!(In { rest: &too_large }.number(), None);
    }
}
