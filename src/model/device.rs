//! The memory of one device: which pages are used, by which allocation.
//!
//! Owns the device's address space and the count of bytes in use, by family.
//! Invariant: small allocations (up to half a page) are packed at 512 bytes
//! into pages that they share with others of the same context; larger ones take
//! whole pages; a page is used as long as any allocation lies in it. Addresses
//! can be taken without memory, and memory without addresses. Cost: O(log n).

use std::collections::BTreeMap;

use crate::family::{Amount, Family};
use crate::ids::ContextId;
use crate::runs::Runs;
use vramalloc_core::address::{Address, Bytes};

/// Alignment and granularity of small allocations.
const fn grain(family: Family) -> u64 {
    match family {
        Family::Array => 64 << 10,
        _ => 512,
    }
}

/// What an allocation gives back when it ends.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Holds {
    /// Its pages, which it may share with others of the family.
    Pages(Family),
    /// The span of addresses that begins with it.
    Span,
    /// Nothing: its memory belongs to a pool, or to another process.
    Nothing,
    /// Nothing; and it is mapped, so that work may run on into the mapped
    /// memory behind it.
    Mapped,
}

/// A live allocation of the model.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// Its first address.
    pub base: Address,
    /// How many bytes were asked for.
    pub size: Bytes,
    /// The device that it lies on.
    pub device: u32,
    /// The context that it ends with, if any.
    pub context: Option<ContextId>,
    /// What it gives back when it ends.
    pub holds: Holds,
}

#[derive(Debug)]
pub(crate) struct DeviceMemory {
    pub(crate) total: u64,
    page: u64,
    used: Amount,
    families: [Amount; Family::ALL.len()],
    /// Bytes that another process uses.
    pub(crate) occupied: u64,
    /// How much this process may use, without its managed memory.
    pub(crate) limit: u64,
    pages: Runs,
    /// The addresses from here on are for what is to have room behind it.
    roomy_from: u64,
    roomy: Runs,
    /// The pages that small ones share, of each context and family.
    small: BTreeMap<(ContextId, Family), Runs>,
}

impl DeviceMemory {
    pub(crate) fn new(base: u64, span: u64, total: u64, page: u64) -> DeviceMemory {
        let mut pages = Runs::default();
        pages.put(base, span);
        DeviceMemory {
            total,
            page,
            used: Amount::default(),
            families: Default::default(),
            occupied: 0,
            limit: u64::MAX,
            pages,
            roomy_from: u64::MAX,
            roomy: Runs::default(),
            small: BTreeMap::new(),
        }
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        let there = self.total.saturating_sub(self.used.now);
        let there = there.saturating_sub(self.occupied);
        let limited = self.used.now - self.amount(Family::Managed).now;
        there.min(self.limit.saturating_sub(limited))
    }

    /// Bytes in use.
    pub(crate) fn used(&self) -> Amount {
        self.used
    }

    /// Bytes in use by a family.
    pub(crate) fn amount(&self, family: Family) -> Amount {
        self.families[family as usize]
    }

    /// Takes memory without addresses; returns false if there is not so much.
    pub(crate) fn charge(&mut self, family: Family, bytes: u64) -> bool {
        if bytes > self.free_bytes() {
            return false;
        }
        self.used.add(bytes);
        self.families[family as usize].add(bytes);
        true
    }

    pub(crate) fn uncharge(&mut self, family: Family, bytes: u64) {
        self.used.subtract(bytes);
        self.families[family as usize].subtract(bytes);
    }

    /// Takes whole pages of addresses without memory.
    pub(crate) fn take_addresses(&mut self, length: u64) -> Option<u64> {
        self.pages.take(length)
    }

    /// Takes these pages of addresses, if nobody has any of them.
    pub(crate) fn take_addresses_at(&mut self, start: u64, length: u64) -> Option<u64> {
        let taken = self.roomy.take_at(start, length) || self.pages.take_at(start, length);
        taken.then_some(start)
    }

    /// Takes whole pages of addresses with room behind them, as far as there is any.
    pub(crate) fn take_roomy_addresses(&mut self, length: u64) -> Option<u64> {
        let found = self.roomy.take_middle(length, self.page);
        found.or_else(|| self.take_addresses(length))
    }

    /// Keeps the last addresses for what is to have room behind it.
    pub(crate) fn keep_room(&mut self, start: u64, length: u64) {
        if self.pages.take_at(start, length) {
            self.roomy_from = start;
            self.roomy.put(start, length);
        }
    }

    /// Takes whole pages of addresses without memory, at a multiple of so many.
    pub(crate) fn take_addresses_at_multiple(&mut self, length: u64, multiple: u64) -> Option<u64> {
        self.pages.take_at_multiple(length, multiple)
    }

    pub(crate) fn put_addresses(&mut self, start: u64, length: u64) {
        let runs = match start >= self.roomy_from {
            true => &mut self.roomy,
            false => &mut self.pages,
        };
        runs.put(start, length);
    }

    /// Takes a range of `size` bytes (above 0); `None` if the device has none.
    pub(crate) fn take(&mut self, context: ContextId, family: Family, size: u64) -> Option<u64> {
        if size > self.page / 2 {
            return self.take_pages(family, size.checked_next_multiple_of(self.page)?);
        }
        let length = size.next_multiple_of(grain(family));
        let page = self.page;
        if let Some(start) = self.small_of(context, family).take(length) {
            return Some(start);
        }
        let fresh = self.take_pages(family, page)?;
        let small = self.small_of(context, family);
        small.put(fresh, page);
        small.take(length)
    }

    /// Returns a range that `take` gave for `size`. The result is the run of
    /// pages that are unused from now on, as start and length.
    pub(crate) fn put(
        &mut self,
        context: ContextId,
        family: Family,
        start: u64,
        size: u64,
    ) -> Option<(u64, u64)> {
        let page = self.page;
        if size > page / 2 {
            let length = size.checked_next_multiple_of(page)?;
            self.put_pages(family, start, length);
            return Some((start, length));
        }
        let small = self.small_of(context, family);
        let (from, length) = small.put(start, size.next_multiple_of(grain(family)));
        if length < page {
            return None;
        }
        small.remove(from, length);
        self.put_pages(family, from, length);
        Some((from, length))
    }

    fn small_of(&mut self, context: ContextId, family: Family) -> &mut Runs {
        let page = self.page;
        self.small
            .entry((context, family))
            .or_insert_with(|| Runs::with_edge(Some(page)))
    }

    fn take_pages(&mut self, family: Family, length: u64) -> Option<u64> {
        if length > self.free_bytes() {
            return None;
        }
        let start = self.take_addresses(length)?;
        self.charge(family, length);
        Some(start)
    }

    fn put_pages(&mut self, family: Family, start: u64, length: u64) {
        self.put_addresses(start, length);
        self.uncharge(family, length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 2 << 20;
    const PLAIN: Family = Family::Plain;
    const A: ContextId = ContextId::numbered(0);
    const B: ContextId = ContextId::numbered(1);

    fn device(pages: u64) -> DeviceMemory {
        DeviceMemory::new(0x7f00_0000_0000, 64 * PAGE, pages * PAGE, PAGE)
    }

    #[test]
    fn small_allocations_share_a_page_and_large_ones_take_whole_pages() {
        let mut d = device(8);
        let first = d.take(A, PLAIN, 1).unwrap();
        let second = d.take(A, PLAIN, 513).unwrap();
        assert_eq!(second, first + 512);
        assert_eq!(d.used().now, PAGE);
        d.take(A, PLAIN, PAGE / 2 + 1).unwrap();
        assert_eq!(d.used().now, 2 * PAGE);
        d.take(A, PLAIN, PAGE + 1).unwrap();
        assert_eq!(d.used().now, 4 * PAGE);
        d.take(B, PLAIN, 1).unwrap();
        assert_eq!(d.used().now, 5 * PAGE, "contexts do not share pages");
    }

    #[test]
    fn families_share_no_page_and_have_their_own_grain() {
        let mut d = device(8);
        let plain = d.take(A, PLAIN, 1).unwrap();
        let arrays = [0; 2].map(|_| d.take(A, Family::Array, 16 << 10).unwrap());
        assert_eq!(arrays[1], arrays[0] + (64 << 10));
        assert_eq!(d.used().now, 2 * PAGE);
        assert_eq!(d.amount(Family::Array).now, PAGE);
        assert_eq!(d.put(A, Family::Array, arrays[0], 16 << 10), None);
        assert!(d.put(A, Family::Array, arrays[1], 16 << 10).is_some());
        assert_eq!(d.amount(Family::Array).now, 0);
        assert!(d.put(A, PLAIN, plain, 1).is_some());
        assert_eq!(d.used().now, 0);
    }

    #[test]
    fn a_page_is_free_when_its_last_allocation_is() {
        let mut d = device(1);
        let first = d.take(A, PLAIN, 1000).unwrap();
        let second = d.take(A, PLAIN, PAGE / 2).unwrap();
        assert_eq!(d.take(A, PLAIN, PAGE), None);
        assert_eq!(d.put(A, PLAIN, first, 1000), None);
        assert_eq!(d.put(A, PLAIN, second, PAGE / 2), Some((first, PAGE)));
        assert_eq!(d.used().now, 0);
        assert_eq!(d.take(B, PLAIN, PAGE), Some(first));
        assert_eq!(d.used().peak, PAGE);
    }

    #[test]
    fn what_somebody_else_uses_is_not_there() {
        let mut d = device(4);
        d.occupied = 3 * PAGE;
        assert_eq!(d.free_bytes(), PAGE);
        assert_eq!(d.take(A, PLAIN, 2 * PAGE), None);
        assert_eq!(d.take(A, PLAIN, u64::MAX), None);
        assert!(d.take(A, PLAIN, PAGE).is_some());
    }
}
