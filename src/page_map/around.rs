//! Where the block around an address starts.
//!
//! Owns nothing. The map knows starts alone: the block around an address is
//! the one that starts next below it, if it reaches so far, and that is for the
//! arena to say. Cost: a step for each 2 MiB between the two, and one for each
//! slot of the two pages at the ends, 4096 in each at the most; whatever number
//! of blocks and chunks there are. It never leaves the chunk.

use crate::address::Address;
use crate::page_map::tenure::Holder;
use crate::page_map::{
    ArenaId, PAGE, PAGE_SHIFT, Page, PageMap, SLOT_SHIFT, SLOTS, SUBPAGE_SHIFT, Subpage, index,
    number, round_down,
};
use crate::sync::atomic::Ordering;

impl PageMap {
    /// Where the next block starts, at the address or below it, in the chunk
    /// of this arena that the address lies in. Under the arena's lock.
    pub(crate) fn start_below(&self, arena: ArenaId, address: Address) -> Option<Address> {
        let mut last = address;
        loop {
            let page = self.page(last)?;
            let whole = match page.tenure.holder() {
                Holder::Whole(holder) if holder != arena => return None,
                Holder::Whole(_) => true,
                Holder::Shared => false,
            };
            let is_inline = whole && page.subpages.get().is_none();
            let is_empty = whole && page.starts.load(Ordering::Relaxed) == 0;
            let (start, begins) = if is_inline || is_empty {
                if let Some(found) = page.inline_below(last) {
                    return Some(found);
                }
                (round_down(last, PAGE_SHIFT), page.tenure.is_begin())
            } else {
                let subpage = page.subpage(last)?;
                if !whole && subpage.tenure.holder() != Holder::Whole(arena) {
                    return None;
                }
                if let Some(found) = subpage.start_below(last) {
                    return Some(found);
                }
                let start = round_down(last, SUBPAGE_SHIFT);
                let is_first = start.is_aligned(PAGE) && page.tenure.is_begin();
                (start, is_first || subpage.tenure.is_begin())
            };
            if begins {
                return None;
            }
            last = Address::new(start.get().checked_sub(1)?);
        }
    }
}

impl Page {
    /// As [`PageMap::start_below`], where the page tells of its blocks itself.
    fn inline_below(&self, last: Address) -> Option<Address> {
        let numbers = self.inline.all().map(|(at, _)| at);
        let at = numbers.filter(|&at| at <= number(last)).max()?;
        let page = round_down(last, PAGE_SHIFT).get();
        Some(Address::new(page | (at as u64) << SLOT_SHIFT))
    }
}

impl Subpage {
    fn start_below(&self, last: Address) -> Option<Address> {
        let slots = self
            .slots
            .get()?
            .all()
            .get(..=index(last, SLOT_SHIFT, SLOTS))?;
        let is_start = |slot: &super::Slot| slot.load(Ordering::Relaxed) != 0;
        let at = slots.iter().rposition(is_start)?;
        let subpage = round_down(last, SUBPAGE_SHIFT).get();
        Some(Address::new(subpage | (at as u64) << SLOT_SHIFT))
    }
}
