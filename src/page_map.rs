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
//! free. A frame in which direct allocations start is shared by the arenas
//! that made them and whatever else the driver put there: only the exact
//! addresses are ours, and each slot says whose.
//!
//! Invariant: a slot is non-zero exactly while a live block starts there, and
//! only the arena of that block, under its lock, empties it. A page or frame
//! is held whole or counts the direct allocations in it, never both: one word
//! decides, so that of two arenas that race for it one is told that it lost.
//!
//! Cost: whose an address is takes two dependent loads where it lies in a
//! chunk, the block four, and no lock. To hold a chunk is one store per page.
//! Host memory: 24 bytes for each page of a touched region (48 KiB for 4 GiB),
//! 768 bytes for each page and 1 KiB for each frame in which blocks ever
//! started: at the most 1.6 % of the addresses that arenas ever held, and none
//! of it is given back.

mod around;
mod entry;
mod tenure;

use crate::address::{Address, Bytes};
use crate::sync::OnceLock;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use entry::Entry;
use tenure::{Holder, Tenure};

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

/// Names an arena in a process; the doors' registry gives them out, from 0 and
/// below 2^30.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct ArenaId(pub u32);

/// What an address is to us.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Owner {
    /// Nothing: the real function must deal with it.
    Foreign,
    /// It lies in memory of this arena, live block or not: it must never
    /// reach the real function.
    Arena(ArenaId),
}

/// An [`Entry`].
type Slot = AtomicU64;

/// The place of an address at which blocks start, for those who look at it
/// more than once.
#[derive(Copy, Clone)]
pub(crate) struct Spot<'a> {
    page: &'a Page,
    slot: &'a Slot,
}

impl Spot<'_> {
    /// What is said of the block.
    #[inline]
    fn entry(self) -> Entry {
        // Acquire: pairs with the Release of whoever entered the block. The
        // thread that frees got the pointer from the one that allocated, so it
        // sees at least that store.
        Entry::from_word(self.slot.load(Ordering::Acquire))
    }

    /// The live block of this arena that starts here, as the arena numbers it.
    #[inline]
    pub(crate) fn block(self, arena: ArenaId) -> Option<u32> {
        let entry = self.entry();
        let own = entry.direct().is_none_or(|other| other == arena);
        entry.number().filter(|_| own)
    }

    /// Takes out the block of a chunk.
    #[inline]
    pub(crate) fn clear(self) {
        if self.slot.load(Ordering::Relaxed) != Entry::NONE.word() {
            self.page.count(-1);
        }
        // Release: pairs with the Acquire in `entry`.
        self.slot.store(Entry::NONE.word(), Ordering::Release);
    }
}

struct Frame {
    tenure: Tenure,
    slots: OnceLock<Box<[Slot; SLOTS]>>,
}

struct Page {
    tenure: Tenure,
    /// Of a page that is held whole, the blocks that start in it. The holder
    /// alone reads and writes it, under its lock: plain loads and stores will
    /// do, and who holds the page next sees them by way of the tenure.
    starts: AtomicU32,
    frames: OnceLock<Box<[Frame; FRAMES]>>,
}

impl Frame {
    fn new() -> Frame {
        Frame {
            tenure: Tenure::new(),
            slots: OnceLock::new(),
        }
    }

    fn slot(&self, address: Address) -> Option<&Slot> {
        Some(&self.slots.get()?[index(address, SLOT_SHIFT, SLOTS)])
    }

    fn slot_made(&self, address: Address) -> &Slot {
        let made = || Box::new(std::array::from_fn(|_| Slot::new(0)));
        &self.slots.get_or_init(made)[index(address, SLOT_SHIFT, SLOTS)]
    }
}

impl Page {
    fn new() -> Page {
        Page {
            tenure: Tenure::new(),
            starts: AtomicU32::new(0),
            frames: OnceLock::new(),
        }
    }

    /// Counts a block that starts in the page: one more, or (-1) one less.
    #[inline]
    fn count(&self, change: i32) {
        if self.tenure.is_whole() {
            let starts = self.starts.load(Ordering::Relaxed);
            self.starts
                .store(starts.wrapping_add_signed(change), Ordering::Relaxed);
        }
    }

    fn frame(&self, address: Address) -> Option<&Frame> {
        Some(&self.frames.get()?[index(address, FRAME_SHIFT, FRAMES)])
    }

    fn frame_made(&self, address: Address) -> &Frame {
        let made = || Box::new(std::array::from_fn(|_| Frame::new()));
        &self.frames.get_or_init(made)[index(address, FRAME_SHIFT, FRAMES)]
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
        let holder = match page.tenure.holder() {
            Holder::Whole(arena) => return Owner::Arena(arena),
            Holder::Shared => page.frame(address).map(|frame| frame.tenure.holder()),
        };
        let arena = match holder {
            Some(Holder::Whole(arena)) => Some(arena),
            Some(Holder::Shared) => self.spot(address).and_then(|spot| spot.entry().direct()),
            None => None,
        };
        arena.map_or(Owner::Foreign, Owner::Arena)
    }

    /// The live block of this arena that starts exactly here.
    #[inline]
    pub(crate) fn block(&self, arena: ArenaId, address: Address) -> Option<u32> {
        self.spot(address)?.block(arena)
    }

    /// Where that is said; none where no block ever started.
    #[inline]
    pub(crate) fn spot(&self, address: Address) -> Option<Spot<'_>> {
        if !address.is_aligned(SLOT) {
            return None;
        }
        let page = self.page(address)?;
        let slot = page.frame(address)?.slot(address)?;
        Some(Spot { page, slot })
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
            if !self.hold_part(&part, arena, held.is_zero()) {
                self.release_chunk(address, held);
                return false;
            }
            held = held.saturating_add(part.size);
        }
        true
    }

    fn hold_part(&self, part: &Part, arena: ArenaId, begins: bool) -> bool {
        let Some(page) = self.page_made(part.start) else {
            return false;
        };
        if part.size == PAGE {
            return page.tenure.hold(arena, begins);
        }
        if !page.tenure.share() {
            return false;
        }
        let held = page.frame_made(part.start).tenure.hold(arena, begins);
        if !held {
            page.tenure.unshare();
        }
        held
    }

    /// Gives up a chunk, whose slots are all empty.
    pub(crate) fn release_chunk(&self, address: Address, size: Bytes) {
        for part in parts(address, size) {
            let Some(page) = self.page(part.start) else {
                continue;
            };
            if part.size == PAGE {
                page.tenure.release();
            } else if let Some(frame) = page.frame(part.start) {
                frame.tenure.release();
                page.tenure.unshare();
            }
        }
    }

    /// Enters the block of a chunk that this arena holds.
    pub(crate) fn set_block(&self, address: Address, block: u32) {
        if let Some(page) = self.page(address) {
            let slot = page.frame_made(address).slot_made(address);
            if slot.load(Ordering::Relaxed) == Entry::NONE.word() {
                page.count(1);
            }
            // Release: pairs with the Acquire in `entry`.
            slot.store(Entry::in_chunk(block).word(), Ordering::Release);
        }
    }

    /// Takes that block out.
    pub(crate) fn clear_block(&self, address: Address) {
        if let Some(spot) = self.spot(address) {
            spot.clear();
        }
    }

    /// Enters a direct allocation. Fails, changing nothing, where its start
    /// cannot be told from a neighbour's: not a multiple of 512, in a chunk, or
    /// where another starts.
    pub(crate) fn hold_direct(&self, arena: ArenaId, address: Address, block: u32) -> bool {
        let page = self.page_made(address);
        let Some(page) = page.filter(|_| address.is_aligned(SLOT)) else {
            return false;
        };
        if !page.tenure.share() {
            return false;
        }
        let frame = page.frame_made(address);
        if !frame.tenure.share() {
            page.tenure.unshare();
            return false;
        }
        let entry = Entry::direct_of(arena, block).word();
        // Release: pairs with the Acquire in `entry`.
        let exchange = frame.slot_made(address).compare_exchange(
            Entry::NONE.word(),
            entry,
            Ordering::Release,
            Ordering::Relaxed,
        );
        let entered = exchange.is_ok();
        if !entered {
            frame.tenure.unshare();
            page.tenure.unshare();
        }
        entered
    }

    /// Takes out a direct allocation that this arena entered.
    pub(crate) fn release_direct(&self, address: Address) {
        let page = self.page(address);
        if let Some((page, frame)) = page.and_then(|page| Some((page, page.frame(address)?))) {
            if let Some(slot) = frame.slot(address) {
                // Release: pairs with the Acquire in `entry`.
                slot.store(Entry::NONE.word(), Ordering::Release);
            }
            frame.tenure.unshare();
            page.tenure.unshare();
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
mod around_tests;

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests;
