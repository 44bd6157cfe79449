//! From an address to the arena and the block that it belongs to.
//!
//! Owns a radix tree over the 48 bits of a device address: *regions* of
//! 4 GiB, in them *pages* of 2 MiB, in them *frames* of 64 KiB, in them one
//! slot for each 512 bytes. One map serves all arenas of a process, so that a
//! pointer is found whatever device is current when it is freed.
//!
//! Addresses are *held* by an arena in one of two ways. What lies in a chunk
//! is held whole, by pages, and by frames where the chunk does not fill a
//! page: any address in it is ours, live or not, and must never reach the real
//! free. A frame in which a direct allocation starts is shared with whatever
//! else the driver put there: only the exact addresses are ours.
//!
//! Invariant: a slot is non-zero exactly while a live block starts there, and
//! only the arena that holds a page or frame, under its lock, writes the slots
//! and gives it up. So an arena can lose a race for a free one only, and then
//! it is told.
//!
//! Cost: whose an address is takes two dependent loads where it lies in a
//! chunk, the block four, and no lock. To hold a chunk is one store per page.
//! Host memory: 40 bytes for each page of a touched region (80 KiB for 4 GiB),
//! 1 KiB for each page and 512 bytes for each frame in which blocks start.

use crate::address::{Address, Bytes};
use crate::sync::OnceLock;
use crate::sync::atomic::{AtomicU32, Ordering};

/// Blocks and direct allocations start at multiples of this.
pub(crate) const SLOT: Bytes = Bytes::new(1 << SLOT_SHIFT);

const SLOT_SHIFT: u32 = 9;
#[cfg(not(loom))]
const BITS: Bits = Bits {
    slots: 7,
    frames: 5,
    pages: 11,
    regions: 16,
};
// The checker explores every interleaving: a tree of a few cells is enough.
#[cfg(loom)]
const BITS: Bits = Bits {
    slots: 1,
    frames: 1,
    pages: 1,
    regions: 1,
};

struct Bits {
    slots: u32,
    frames: u32,
    pages: u32,
    regions: u32,
}

const SLOTS: usize = 1 << BITS.slots;
const FRAMES: usize = 1 << BITS.frames;
const PAGES: usize = 1 << BITS.pages;
const REGIONS: usize = 1 << BITS.regions;
const FRAME_SHIFT: u32 = SLOT_SHIFT + BITS.slots;
const PAGE_SHIFT: u32 = FRAME_SHIFT + BITS.frames;
const REGION_SHIFT: u32 = PAGE_SHIFT + BITS.pages;
const PAGE: Bytes = Bytes::new(1 << PAGE_SHIFT);
const FRAME: Bytes = Bytes::new(1 << FRAME_SHIFT);

/// Names an arena in a process; the doors' registry gives them out, from 0.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct ArenaId(pub u32);

impl ArenaId {
    /// Numbers from here on cannot be written down as a holder.
    pub const LIMIT: u32 = WHOLE - 1;
}

/// What an address is to us.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Owner {
    /// Nothing: the real function must deal with it.
    Foreign,
    /// It lies in memory of this arena, live block or not: it must never
    /// reach the real function.
    Arena(ArenaId),
}

/// 0, or the number of the arena that holds it plus one, with `WHOLE` or
/// without.
type Holder = AtomicU32;

/// Set in a holder where all addresses are ours. A page is held in no other
/// way.
const WHOLE: u32 = 1 << 31;

/// The block that starts at an address, in the arena that holds it, plus one.
/// Zero is no block.
type Slot = AtomicU32;

struct Frame {
    holder: Holder,
    slots: OnceLock<Box<[Slot]>>,
}

struct Page {
    holder: Holder,
    frames: OnceLock<Box<[Frame]>>,
}

impl Frame {
    fn new() -> Frame {
        Frame {
            holder: Holder::new(0),
            slots: OnceLock::new(),
        }
    }

    fn slot(&self, address: Address) -> Option<&Slot> {
        self.slots.get()?.get(index(address, SLOT_SHIFT, SLOTS))
    }

    fn slot_made(&self, address: Address) -> Option<&Slot> {
        let slots = self
            .slots
            .get_or_init(|| (0..SLOTS).map(|_| Slot::new(0)).collect());
        slots.get(index(address, SLOT_SHIFT, SLOTS))
    }

    fn is_empty(&self) -> bool {
        let slots = self.slots.get().into_iter().flatten();
        // Relaxed: only the holder writes, and the holder asks.
        slots
            .into_iter()
            .all(|slot| slot.load(Ordering::Relaxed) == 0)
    }
}

impl Page {
    fn new() -> Page {
        Page {
            holder: Holder::new(0),
            frames: OnceLock::new(),
        }
    }

    fn frame(&self, address: Address) -> Option<&Frame> {
        self.frames.get()?.get(index(address, FRAME_SHIFT, FRAMES))
    }

    fn frame_made(&self, address: Address) -> Option<&Frame> {
        let frames = self
            .frames
            .get_or_init(|| (0..FRAMES).map(|_| Frame::new()).collect());
        frames.get(index(address, FRAME_SHIFT, FRAMES))
    }
}

/// The part of an address above `shift`, as an index below `count`, a power of
/// two.
#[allow(clippy::cast_possible_truncation, reason = "masked to a few bits")]
fn index(address: Address, shift: u32, count: usize) -> usize {
    (address.get() >> shift) as usize & (count - 1)
}

/// The map of all arenas of a process.
pub struct PageMap {
    regions: Box<[OnceLock<Box<[Page]>>]>,
}

impl PageMap {
    /// An empty map.
    #[must_use]
    pub fn new() -> PageMap {
        PageMap {
            regions: (0..REGIONS).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Whose the address is. Takes no lock.
    #[must_use]
    pub fn owner(&self, address: Address) -> Owner {
        let Some(page) = self.page(address) else {
            return Owner::Foreign;
        };
        // Acquire, here and below: pairs with the Release of `hold_*`, so that
        // what the holder wrote before is seen.
        let mut holder = page.holder.load(Ordering::Acquire);
        if holder == 0 {
            holder = page
                .frame(address)
                .map_or(0, |frame| frame.holder.load(Ordering::Acquire));
        }
        let whole = holder & WHOLE != 0;
        match holder & !WHOLE {
            0 => Owner::Foreign,
            number if whole || self.block(address).is_some() => Owner::Arena(ArenaId(number - 1)),
            _ => Owner::Foreign,
        }
    }

    /// The live block that starts exactly here, as its arena numbers it.
    pub(crate) fn block(&self, address: Address) -> Option<u32> {
        if !address.is_aligned(SLOT) {
            return None;
        }
        let slot = self.page(address)?.frame(address)?.slot(address)?;
        // Acquire: pairs with the Release of `set_block`. The thread that
        // frees got the pointer from the one that allocated, so it sees at
        // least that store.
        slot.load(Ordering::Acquire).checked_sub(1)
    }

    /// Holds all of a chunk. Fails, changing nothing, where the addresses are
    /// beyond what the map can hold, somebody holds one of them, or the chunk
    /// does not fill its frames: then others' addresses would be taken for
    /// ours.
    pub(crate) fn hold_chunk(&self, arena: ArenaId, address: Address, size: Bytes) -> bool {
        if !address.is_aligned(FRAME) || size.round_down(FRAME) != size {
            return false;
        }
        let mut held = Bytes::ZERO;
        for part in parts(address, size) {
            if !self.hold_part(&part, (arena.0 + 1) | WHOLE) {
                self.release_chunk(address, held);
                return false;
            }
            held = held.saturating_add(part.size);
        }
        true
    }

    fn hold_part(&self, part: &Part, holder: u32) -> bool {
        let Some(page) = self.page_made(part.start) else {
            return false;
        };
        let place = if part.size == PAGE {
            // Relaxed: whoever holds a frame of memory that the driver has
            // given to us holds it no more.
            let frames = page.frames.get().into_iter().flatten();
            let free = |frame: &Frame| frame.holder.load(Ordering::Relaxed) == 0;
            frames.into_iter().all(free).then_some(&page.holder)
        } else {
            let whole = page.holder.load(Ordering::Relaxed) != 0;
            let frame = page.frame_made(part.start).filter(|_| !whole);
            frame.map(|frame| &frame.holder)
        };
        // Release: pairs with the Acquire in `owner`.
        place.is_some_and(|place| {
            place
                .compare_exchange(0, holder, Ordering::Release, Ordering::Relaxed)
                .is_ok()
        })
    }

    /// Gives up a chunk, whose slots are all empty.
    pub(crate) fn release_chunk(&self, address: Address, size: Bytes) {
        for part in parts(address, size) {
            let Some(page) = self.page(part.start) else {
                continue;
            };
            // Release: whoever holds it next sees empty slots.
            if part.size == PAGE {
                page.holder.store(0, Ordering::Release);
            } else if let Some(frame) = page.frame(part.start) {
                frame.holder.store(0, Ordering::Release);
            }
        }
    }

    /// Enters the block of a chunk that this arena holds.
    pub(crate) fn set_block(&self, address: Address, block: u32) {
        let frame = self.page(address).and_then(|page| page.frame_made(address));
        if let Some(slot) = frame.and_then(|frame| frame.slot_made(address)) {
            // Release: pairs with the Acquire in `block`.
            slot.store(block + 1, Ordering::Release);
        }
    }

    /// Takes the block at this address out.
    pub(crate) fn clear_block(&self, address: Address) {
        let frame = self.page(address).and_then(|page| page.frame(address));
        if let Some(slot) = frame.and_then(|frame| frame.slot(address)) {
            // Release: pairs with the Acquire in `block`.
            slot.store(0, Ordering::Release);
        }
    }

    /// Enters a direct allocation. Fails, changing nothing, where its start
    /// cannot be told from a neighbour's: not a multiple of 512, or in a frame
    /// that another arena holds.
    pub(crate) fn hold_direct(&self, arena: ArenaId, address: Address, block: u32) -> bool {
        let mine = arena.0 + 1;
        let page = self.page_made(address).filter(|page| {
            // Relaxed: the page of a chunk, in which the driver gives nothing
            // else away.
            address.is_aligned(SLOT) && page.holder.load(Ordering::Relaxed) == 0
        });
        let Some(frame) = page.and_then(|page| page.frame_made(address)) else {
            return false;
        };
        let Some(slot) = frame.slot_made(address) else {
            return false;
        };
        // AcqRel: Acquire pairs with the Release of a former holder, Release
        // with the Acquire in `owner`.
        let held = frame
            .holder
            .compare_exchange(0, mine, Ordering::AcqRel, Ordering::Acquire);
        if held.is_err_and(|holder| holder != mine) || slot.load(Ordering::Relaxed) != 0 {
            return false;
        }
        slot.store(block + 1, Ordering::Release);
        true
    }

    /// Takes a direct allocation out, and gives up the frame with the last.
    pub(crate) fn release_direct(&self, address: Address) {
        self.clear_block(address);
        let frame = self.page(address).and_then(|page| page.frame(address));
        if let Some(frame) = frame.filter(|frame| frame.is_empty()) {
            // Release: whoever takes the frame next sees empty slots.
            frame.holder.store(0, Ordering::Release);
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "48 bits of address")]
    fn region_index(address: Address) -> usize {
        (address.get() >> REGION_SHIFT) as usize
    }

    fn page(&self, address: Address) -> Option<&Page> {
        let region = self.regions.get(Self::region_index(address))?.get()?;
        region.get(index(address, PAGE_SHIFT, PAGES))
    }

    fn page_made(&self, address: Address) -> Option<&Page> {
        let region = self.regions.get(Self::region_index(address))?;
        let pages = region.get_or_init(|| (0..PAGES).map(|_| Page::new()).collect());
        pages.get(index(address, PAGE_SHIFT, PAGES))
    }
}

impl Default for PageMap {
    fn default() -> PageMap {
        PageMap::new()
    }
}

/// A page or a frame of a chunk.
struct Part {
    start: Address,
    size: Bytes,
}

/// A chunk as whole pages, and frames where it does not fill a page.
fn parts(address: Address, size: Bytes) -> impl Iterator<Item = Part> {
    let mut start = address;
    let mut left = size;
    std::iter::from_fn(move || {
        let page = start.is_aligned(PAGE) && left >= PAGE;
        let part = Part {
            start,
            size: if page { PAGE } else { FRAME },
        };
        if left.is_zero() {
            return None;
        }
        left = left.saturating_sub(part.size);
        start = start.checked_add(part.size)?;
        Some(part)
    })
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests;
