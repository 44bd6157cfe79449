//! From an address to the arena and the block that it belongs to.
//!
//! Owns a radix tree over the [`ADDRESS_BITS`] of a device address: *regions* of
//! 4 GiB, in them *pages* of 2 MiB, in them *subpages* of 64 KiB, in them one
//! slot for each 512 bytes. Where few blocks start in a page of one chunk, the
//! page tells of them itself ([`inline`]). One map serves all arenas of a process, so that a
//! pointer is found whatever device is current when it is freed.
//!
//! Addresses are *held* by an arena in one of two ways. What lies in a chunk
//! is held whole, by pages, and by subpages where the chunk does not fill a
//! page: any address in it is ours, live or not, and must never reach the real
//! free. A subpage in which direct allocations start is shared by the arenas
//! that made them and whatever else the driver put there: only the exact
//! addresses are ours, and each slot says whose.
//!
//! Invariant: a slot is non-zero exactly while a live block starts there, and
//! only the arena of that block, under its lock, empties it. A page or subpage
//! is held whole or counts the direct allocations in it, never both: one word
//! decides, so that of two arenas that race for it one is told that it lost.
//!
//! Cost: whose an address is takes two dependent loads where it lies in a
//! chunk, and the block the same where the page tells of it, else four; no
//! lock. To hold a chunk is one store per page. Host memory: a cache line for
//! each page of a touched region (128 KiB for 4 GiB), and where direct
//! allocations or more than four blocks ever started in a page, 768 bytes for it
//! and 1 KiB for each such subpage: at the most 1.6 % of the addresses that
//! arenas ever held, and none of it is given back.

mod around;
mod inline;
mod recent;
mod slot_ref;
mod slot_table;
mod slot_word;
mod tenure;

use crate::address::{Address, Bytes};
use crate::sync::OnceLock;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use inline::Inline;
pub(crate) use recent::RecentSubpages;
pub(crate) use slot_ref::{CacheableSlot, SlotRef};
use slot_table::SlotTable;
pub(crate) use slot_word::{MOST_CACHEABLE, SlotWord};
use tenure::{Holder, Tenure};

/// Blocks and direct allocations start at multiples of this.
pub(crate) const SLOT: Bytes = Bytes::new(1 << SLOT_SHIFT);

/// Addresses have so many bits.
pub(crate) const ADDRESS_BITS: u32 = 48;

const SLOT_SHIFT: u32 = 9;
#[cfg(not(loom))]
const BITS: Bits = Bits {
    slots: 7,
    subpages: 5,
    pages: 11,
    regions: 16,
};
// The checker explores every interleaving: a tree of a few cells is enough.
#[cfg(loom)]
const BITS: Bits = Bits {
    slots: 1,
    subpages: 1,
    pages: 1,
    regions: 1,
};

struct Bits {
    slots: u32,
    subpages: u32,
    pages: u32,
    regions: u32,
}

const SLOTS: usize = 1 << BITS.slots;
const SUBPAGES: usize = 1 << BITS.subpages;
const PAGES: usize = 1 << BITS.pages;
const REGIONS: usize = 1 << BITS.regions;
const SUBPAGE_SHIFT: u32 = SLOT_SHIFT + BITS.slots;
const PAGE_SHIFT: u32 = SUBPAGE_SHIFT + BITS.subpages;
const REGION_SHIFT: u32 = PAGE_SHIFT + BITS.pages;
const PAGE: Bytes = Bytes::new(1 << PAGE_SHIFT);
const SUBPAGE: Bytes = Bytes::new(1 << SUBPAGE_SHIFT);

const _: () = assert!(REGION_SHIFT + BITS.regions <= ADDRESS_BITS);

/// Names an arena in a process; the doors' registry gives them out, from 0 and
/// below 2^30.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
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

/// A [`SlotWord`].
type Slot = AtomicU64;

struct Subpage {
    tenure: Tenure,
    slots: OnceLock<SlotTable>,
}

/// One cache line.
#[repr(align(64))]
struct Page {
    tenure: Tenure,
    /// How many blocks start in the subpages, if one arena holds the whole page.
    /// Only that arena reads and writes it, under its lock: plain loads and
    /// stores will do, and who holds the page next sees them by way of the
    /// tenure.
    starts: AtomicU32,
    /// The blocks, if one arena holds the whole page and it has no subpages.
    inline: Inline,
    subpages: OnceLock<Box<[Subpage; SUBPAGES]>>,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Page>() == 64);

impl Subpage {
    fn new() -> Subpage {
        Subpage {
            tenure: Tenure::new(),
            slots: OnceLock::new(),
        }
    }

    #[inline]
    fn slot(&self, address: Address) -> Option<&'static Slot> {
        Some(&self.slots.get()?.all()[index(address, SLOT_SHIFT, SLOTS)])
    }

    fn slot_made(&self, address: Address) -> &'static Slot {
        &self.slots.get_or_init(SlotTable::new).all()[index(address, SLOT_SHIFT, SLOTS)]
    }
}

impl Page {
    fn new() -> Page {
        Page {
            tenure: Tenure::new(),
            starts: AtomicU32::new(0),
            inline: Inline::new(),
            subpages: OnceLock::new(),
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

    fn subpage(&self, address: Address) -> Option<&Subpage> {
        Some(&self.subpages.get()?[index(address, SUBPAGE_SHIFT, SUBPAGES)])
    }

    fn subpage_made(&self, address: Address) -> &Subpage {
        let made = || Box::new(std::array::from_fn(|_| Subpage::new()));
        &self.subpages.get_or_init(made)[index(address, SUBPAGE_SHIFT, SUBPAGES)]
    }

    /// Where it is said of a block that it starts there; none where none ever
    /// did.
    #[inline]
    fn spot(&self, address: Address) -> Option<SlotRef<'_>> {
        let (slot, inline) = if let Some(subpages) = self.subpages.get() {
            let subpage = &subpages[index(address, SUBPAGE_SHIFT, SUBPAGES)];
            (subpage.slot(address)?, None)
        } else {
            let (slot, at) = self.inline.slot(number(address))?;
            (slot, Some(at))
        };
        Some(SlotRef::new(self, slot, inline))
    }

    /// Enters a block of the chunk that fills the page, or has a part of it.
    /// None starts there.
    #[inline]
    fn set(&self, address: Address, entry: SlotWord) {
        debug_assert!(
            self.spot(address)
                .is_none_or(|spot| spot.word() == SlotWord::NONE)
        );
        let is_inline = self.subpages.get().is_none() && self.tenure.is_whole();
        if !is_inline || entry.is_cacheable() || !self.inline.set(number(address), entry) {
            self.set_in_table(address, entry, is_inline);
        }
    }

    #[inline(never)]
    fn set_in_table(&self, address: Address, entry: SlotWord, is_inline: bool) {
        if is_inline {
            self.make_table(address);
        }
        self.count(1);
        let slot = self.subpage_made(address).slot_made(address);
        // Release: pairs with the Acquire in `SlotRef::word`.
        slot.store(entry.word(), Ordering::Release);
    }

    /// Has subpages tell of all blocks from now on. Who looks for one meanwhile
    /// finds it in one or the other.
    #[cold]
    fn make_table(&self, within: Address) {
        let subpages: Box<[Subpage; SUBPAGES]> = Box::new(std::array::from_fn(|_| Subpage::new()));
        let start = round_down(within, PAGE_SHIFT);
        for (number, entry) in self.inline.all() {
            let address = Address::new(start.get() | (number as u64) << SLOT_SHIFT);
            let subpage = &subpages[index(address, SUBPAGE_SHIFT, SUBPAGES)];
            let slot = subpage.slot_made(address);
            slot.store(entry.word(), Ordering::Relaxed);
            self.count(1);
        }
        // The lock of the page's arena is held: no other thread makes them.
        let _made = self.subpages.set(subpages);
        self.inline.clear_all();
    }
}

/// The number of an address's slot in its page.
fn number(address: Address) -> usize {
    index(address, SLOT_SHIFT, SLOTS * SUBPAGES)
}

/// The part of an address above `shift`, as an index below `count`, a power of
/// two.
#[allow(clippy::cast_possible_truncation, reason = "masked to a few bits")]
fn index(address: Address, shift: u32, count: usize) -> usize {
    (address.get() >> shift) as usize & (count - 1)
}

/// The beginning of what lies around an address and has `1 << shift` bytes.
fn round_down(address: Address, shift: u32) -> Address {
    Address::new(address.get() >> shift << shift)
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
            Holder::Shared => page.subpage(address).map(|subpage| subpage.tenure.holder()),
        };
        let arena = match holder {
            Some(Holder::Whole(arena)) => Some(arena),
            Some(Holder::Shared) => self.spot(address).and_then(|spot| spot.word().direct()),
            None => None,
        };
        arena.map_or(Owner::Foreign, Owner::Arena)
    }

    /// What is said of the live block of this arena that starts exactly here.
    #[inline]
    pub(crate) fn live(&self, arena: ArenaId, address: Address) -> Option<SlotWord> {
        self.spot(address)?.live(arena)
    }

    /// Where blocks start that threads may keep; none where none ever did.
    pub(crate) fn cacheable(&self, address: Address) -> Option<CacheableSlot> {
        let slots = self.slots_around(address)?;
        Some(CacheableSlot::new(
            &slots[index(address, SLOT_SHIFT, SLOTS)],
        ))
    }

    /// The table of the subpage in which a block may start at this address.
    #[inline(never)]
    fn slots_around(&self, address: Address) -> Option<&'static [Slot; SLOTS]> {
        if !address.is_aligned(SLOT) {
            return None;
        }
        let subpage = self.page(address)?.subpage(address)?;
        Some(subpage.slots.get()?.all())
    }

    /// Where that is said; none where no block ever started.
    #[inline]
    pub(crate) fn spot(&self, address: Address) -> Option<SlotRef<'_>> {
        if !address.is_aligned(SLOT) {
            return None;
        }
        self.page(address)?.spot(address)
    }

    /// Holds all of a chunk. Fails, changing nothing, where the addresses are
    /// beyond what the map can hold, somebody holds one of them, or the chunk
    /// does not fill its subpages: then others' addresses would be taken for
    /// ours.
    pub(crate) fn hold_chunk(&self, arena: ArenaId, address: Address, size: Bytes) -> bool {
        self.hold_part_of_chunk(arena, address, size, true)
    }

    /// The same of a part of one, which may begin it.
    pub(crate) fn hold_part_of_chunk(
        &self,
        arena: ArenaId,
        address: Address,
        size: Bytes,
        begins: bool,
    ) -> bool {
        if !address.is_aligned(SUBPAGE) || size.round_down(SUBPAGE) != size {
            return false;
        }
        let mut held = Bytes::ZERO;
        for part in parts(address, size) {
            if !self.hold_part(&part, arena, begins && held.is_zero()) {
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
        let held = page.subpage_made(part.start).tenure.hold(arena, begins);
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
            } else if let Some(subpage) = page.subpage(part.start) {
                subpage.tenure.release();
                page.tenure.unshare();
            }
        }
    }

    /// Enters the block of a chunk that this arena holds; none starts there.
    #[inline]
    pub(crate) fn set_block(&self, address: Address, block: SlotWord) {
        if let Some(page) = self.page(address) {
            page.set(address, block);
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
        let subpage = page.subpage_made(address);
        if !subpage.tenure.share() {
            page.tenure.unshare();
            return false;
        }
        let entry = SlotWord::direct_of(arena, block).word();
        // Release: pairs with the Acquire in `SlotRef::word`.
        let exchange = subpage.slot_made(address).compare_exchange(
            SlotWord::NONE.word(),
            entry,
            Ordering::Release,
            Ordering::Relaxed,
        );
        let entered = exchange.is_ok();
        if !entered {
            subpage.tenure.unshare();
            page.tenure.unshare();
        }
        entered
    }

    /// Takes out a direct allocation that this arena entered.
    pub(crate) fn release_direct(&self, address: Address) {
        let page = self.page(address);
        if let Some((page, subpage)) = page.and_then(|page| Some((page, page.subpage(address)?))) {
            if let Some(slot) = subpage.slot(address) {
                // Release: pairs with the Acquire in `SlotRef::word`.
                slot.store(SlotWord::NONE.word(), Ordering::Release);
            }
            subpage.tenure.unshare();
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

/// A page or a subpage of a chunk.
struct Part {
    start: Address,
    size: Bytes,
}

/// A chunk as whole pages, and subpages where it does not fill a page.
fn parts(address: Address, size: Bytes) -> impl Iterator<Item = Part> {
    let mut start = address;
    let mut left = size;
    std::iter::from_fn(move || {
        let page = start.is_aligned(PAGE) && left >= PAGE;
        let part = Part {
            start,
            size: if page { PAGE } else { SUBPAGE },
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
