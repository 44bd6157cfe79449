//! Events as bytes.
//!
//! Owns what the bytes of an event refer to: the event before, the sizes of the
//! block so far, and the newest allocations and frees by their addresses. A
//! reader keeps the same (`block`). Invariant: a block can be read without those
//! before it, except that a free may name an allocation of an older block by its
//! number. Cost: a look-up in a table of 1 MiB for each allocation and each free;
//! no memory is taken.

use super::form::{NONE, Out, SIZES, UNIT, WINDOW, flag, kind, zigzag};
use super::mark::stack_number;
use crate::stats::{Action, Event};

/// Who did something, and when.
pub(super) type Whence = (Option<u32>, u32, u64);

/// The slots of the table of sizes: at most half of them are used.
const SLOTS: usize = 2 * SIZES;

/// Rows of the table of recent blocks, which is small enough to stay in the
/// processor's cache. A block that has found no place in it is freed by its address.
const ROW_BITS: u32 = 11;

/// Blocks of a row: a line of the processor's cache.
const WAYS: usize = 8;

/// A size that has a number in its block.
#[derive(Copy, Clone, Default)]
struct Size {
    size: u64,
    /// Of which block.
    block: u32,
    number: u16,
}

/// A block that was allocated or freed not long ago.
#[derive(Copy, Clone, Default)]
struct Recent {
    /// What its row does not say of its address, twice, and one more where it was
    /// freed; both one more. Nothing is there where it is 0.
    tag: u32,
    number: u32,
}

/// Blocks whose addresses fall on one row.
#[derive(Copy, Clone, Default)]
#[repr(align(64))]
struct Row([Recent; WAYS]);

/// See the module.
pub(super) struct Encoder {
    time_us: u64,
    address: u64,
    arena: u32,
    thread: u32,
    pub(super) allocations: u32,
    pub(super) frees: u32,
    /// Of those the ones that are not completed: that may be told at once.
    pub(super) waiting: u64,
    /// The free that is expected to be completed next.
    next: u32,
    block: u32,
    sizes: Vec<Size>,
    size_count: u16,
    recent: Vec<Row>,
}

impl Encoder {
    pub(super) fn new() -> Encoder {
        Encoder {
            time_us: 0,
            address: 0,
            arena: NONE,
            thread: NONE,
            allocations: 0,
            frees: 0,
            waiting: 0,
            next: 0,
            block: 0,
            sizes: vec![Size::default(); SLOTS],
            size_count: 0,
            recent: vec![Row::default(); 1 << ROW_BITS],
        }
    }

    /// A block begins.
    pub(super) fn restart(&mut self, time_us: u64) {
        self.time_us = time_us;
        self.address = 0;
        (self.arena, self.thread) = (NONE, NONE);
        self.next = self.frees;
        self.block = self.block.wrapping_add(1);
        self.size_count = 0;
    }

    /// The time of the newest event.
    pub(super) fn time_us(&self) -> u64 {
        self.time_us
    }

    /// Writes an event. `told`: the block or the segment is there already, and
    /// whether the program has freed it.
    #[inline]
    pub(super) fn event(
        &mut self,
        out: &mut Out,
        (arena, thread, time_us): Whence,
        event: &Event,
        told: Option<bool>,
    ) {
        self.place(out, arena, thread);
        let (tag, passed) = self.passed(time_us);
        let stack = stack_number(event.stack);
        let with_stack = if stack == 0 { tag } else { tag | flag::STACK };
        let with_stack = with_stack
            | match told {
                None => 0,
                Some(false) => flag::KNOWN,
                Some(true) => flag::KNOWN | flag::WAITS,
            };
        let size = event.size.get();
        match event.action {
            Action::Alloc(address) => {
                let address = address.get();
                self.allocation(out, with_stack, passed, (address, size));
            }
            Action::FreeRequested(address) => {
                let address = address.get();
                let known = self.recent_mut(address, false).copied();
                let known = known.map(|known| self.allocations.wrapping_sub(known.number));
                let distance = known.filter(|&distance| distance <= WINDOW);
                match distance {
                    Some(distance) => {
                        timed(out, kind::FREE | flag::KNOWN | tag, passed);
                        out.number(u64::from(distance.wrapping_sub(1)));
                    }
                    None => whole(out, kind::FREE | tag, passed, (address, size)),
                }
                self.remember(address, true, self.frees);
                self.frees = self.frees.wrapping_add(1);
                self.waiting += 1;
                return;
            }
            Action::FreeCompleted(address) => {
                self.waiting = self.waiting.saturating_sub(1);
                return self.completed(out, (tag, passed), (address.get(), size));
            }
            Action::SegmentAlloc(address) => {
                let tag = kind::SEGMENT_ALLOC | with_stack;
                whole(out, tag, passed, (address.get(), size));
            }
            Action::SegmentFree(address) => {
                let tag = kind::SEGMENT_FREE | with_stack;
                whole(out, tag, passed, (address.get(), size));
            }
            Action::SegmentMap(address) => {
                let tag = kind::SEGMENT_ALLOC | flag::PLAIN | with_stack;
                whole(out, tag, passed, (address.get(), size));
            }
            Action::SegmentUnmap(address) => {
                let tag = kind::SEGMENT_FREE | flag::PLAIN | with_stack;
                whole(out, tag, passed, (address.get(), size));
            }
            // A mark: see `History`.
            Action::Oom { .. } => {}
        }
        if stack != 0 {
            out.number(stack);
        }
    }

    #[inline(always)]
    fn allocation(&mut self, out: &mut Out, tag: u8, passed: u64, (address, size): (u64, u64)) {
        let is_whole = address.is_multiple_of(UNIT);
        if is_whole {
            timed(out, kind::ALLOC | tag, passed);
            self.size(out, size);
            let difference = (address / UNIT).wrapping_sub(self.address);
            out.number(zigzag(difference.cast_signed()));
            self.address = address / UNIT;
        } else {
            timed(out, kind::ALLOC | flag::PLAIN | tag, passed);
            self.size(out, size);
            out.number(address);
        }
        self.remember(address, false, self.allocations);
        self.allocations = self.allocations.wrapping_add(1);
    }

    #[inline(always)]
    fn completed(&mut self, out: &mut Out, (tag, passed): (u8, u64), (address, size): (u64, u64)) {
        let oldest = self.frees.wrapping_sub(WINDOW);
        let known = self.recent_mut(address, true);
        let known = known.map(|recent| {
            recent.tag = 0;
            recent.number
        });
        let is_recent = |number: &u32| number.wrapping_sub(oldest) < WINDOW;
        let Some(number) = known.filter(is_recent) else {
            return whole(out, kind::COMPLETED | tag, passed, (address, size));
        };
        let tag = kind::COMPLETED | flag::KNOWN | tag;
        if number == self.next {
            timed(out, tag | flag::PLAIN, passed);
        } else {
            timed(out, tag, passed);
            let difference = number.wrapping_sub(self.next).cast_signed();
            out.number(zigzag(i64::from(difference)));
        }
        self.next = number.wrapping_add(1);
    }

    /// Writes a mark of this number, which says this.
    pub(super) fn mark(
        &mut self,
        out: &mut Out,
        (arena, thread, time_us): Whence,
        code: u8,
        said: &[u8],
    ) {
        self.place(out, arena, thread);
        let (tag, passed) = self.passed(time_us);
        timed(out, kind::MARK | tag, passed);
        out.byte(code);
        out.number(said.len() as u64);
        said.iter().for_each(|&byte| out.byte(byte));
    }

    /// Says which arena and which thread, where they are others than before.
    #[inline(always)]
    fn place(&mut self, out: &mut Out, arena: Option<u32>, thread: u32) {
        let arena = arena.unwrap_or(self.arena);
        if arena != self.arena {
            out.byte(kind::ARENA);
            out.number(u64::from(arena));
            self.arena = arena;
        }
        if thread != self.thread {
            out.byte(kind::THREAD);
            out.number(u64::from(thread));
            self.thread = thread;
        }
    }

    /// The time since the event before, and the flag for it.
    #[inline(always)]
    fn passed(&mut self, time_us: u64) -> (u8, u64) {
        let passed = time_us.saturating_sub(self.time_us);
        self.time_us += passed;
        (if passed == 0 { 0 } else { flag::TIMED }, passed)
    }

    /// A size by its number in this block, which it gets where it has none.
    #[inline(always)]
    fn size(&mut self, out: &mut Out, size: u64) {
        let mut at = hash(size) % SLOTS;
        loop {
            let Some(slot) = self.sizes.get_mut(at) else {
                return;
            };
            if slot.block == self.block && slot.size == size {
                return out.number(u64::from(slot.number));
            }
            if slot.block != self.block {
                // One more than there are says that it follows.
                out.number(u64::from(self.size_count));
                if usize::from(self.size_count) < SIZES {
                    let (block, number) = (self.block, self.size_count);
                    *slot = Size {
                        size,
                        block,
                        number,
                    };
                    self.size_count += 1;
                }
                return out.number(size);
            }
            at = (at + 1) % SLOTS;
        }
    }

    #[inline(always)]
    fn remember(&mut self, address: u64, freed: bool, number: u32) {
        let Some((row, tag)) = self.row_mut(address) else {
            return;
        };
        let is_it = |recent: &Recent| recent.tag == tag || recent.tag == tag + 1;
        let there = row.iter().position(is_it);
        let there = there.or_else(|| row.iter().position(|recent| recent.tag == 0));
        // Which of them goes matters little.
        let there = there.unwrap_or(number as usize % WAYS);
        if let Some(recent) = row.get_mut(there) {
            let tag = tag + u32::from(freed);
            *recent = Recent { tag, number };
        }
    }

    #[inline(always)]
    fn recent_mut(&mut self, address: u64, freed: bool) -> Option<&mut Recent> {
        let (row, tag) = self.row_mut(address)?;
        let tag = tag + u32::from(freed);
        row.iter_mut().find(|recent| recent.tag == tag)
    }

    /// The row of an address, and the tag of it where it is allocated; none for an
    /// address that blocks do not have as a rule.
    #[inline(always)]
    fn row_mut(&mut self, address: u64) -> Option<(&mut [Recent; WAYS], u32)> {
        let unit = address / UNIT;
        let high = u32::try_from(unit >> ROW_BITS).ok()?;
        if high >= 1 << 30 || !address.is_multiple_of(UNIT) {
            return None;
        }
        // The row has the low bits, mixed with the high ones, which the tag has.
        let mixed = u64::from(high.wrapping_mul(0x9e37_79b1) >> (32 - ROW_BITS));
        let row = usize::try_from((unit ^ mixed) % (1 << ROW_BITS)).ok()?;
        let row = self.recent.get_mut(row)?;
        Some((&mut row.0, (high << 1) + 1))
    }
}

fn hash(number: u64) -> usize {
    let [.., high, higher, highest] = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    usize::from(high) | usize::from(higher) << 8 | usize::from(highest) << 16
}

#[inline(always)]
fn timed(out: &mut Out, tag: u8, passed: u64) {
    out.byte(tag);
    if tag & flag::TIMED != 0 {
        out.number(passed);
    }
}

fn whole(out: &mut Out, tag: u8, passed: u64, (address, size): (u64, u64)) {
    timed(out, tag, passed);
    out.number(address);
    out.number(size);
}
