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
const GRAIN: u64 = 512;

/// What an allocation gives back when it ends.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Holds {
    /// Its pages, which it may share with others.
    Pages,
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
    small: BTreeMap<ContextId, Runs>,
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

    pub(crate) fn put_addresses(&mut self, start: u64, length: u64) {
        self.pages.put(start, length);
    }

    /// Takes a range of `size` bytes (above 0); `None` if the device has none.
    pub(crate) fn take(&mut self, context: ContextId, size: u64) -> Option<u64> {
        if size > self.page / 2 {
            return self.take_pages(size.checked_next_multiple_of(self.page)?);
        }
        let length = size.next_multiple_of(GRAIN);
        let page = self.page;
        if let Some(start) = self.small_of(context).take(length) {
            return Some(start);
        }
        let fresh = self.take_pages(page)?;
        let small = self.small_of(context);
        small.put(fresh, page);
        small.take(length)
    }

    /// Returns a range that `take` gave for `size`. The result is the run of
    /// pages that are unused from now on, as start and length.
    pub(crate) fn put(&mut self, context: ContextId, start: u64, size: u64) -> Option<(u64, u64)> {
        let page = self.page;
        if size > page / 2 {
            let length = size.checked_next_multiple_of(page)?;
            self.put_pages(start, length);
            return Some((start, length));
        }
        let small = self.small_of(context);
        let (from, length) = small.put(start, size.next_multiple_of(GRAIN));
        if length < page {
            return None;
        }
        small.remove(from, length);
        self.put_pages(from, length);
        Some((from, length))
    }

    fn small_of(&mut self, context: ContextId) -> &mut Runs {
        let page = self.page;
        self.small
            .entry(context)
            .or_insert_with(|| Runs::with_edge(Some(page)))
    }

    fn take_pages(&mut self, length: u64) -> Option<u64> {
        if length > self.free_bytes() {
            return None;
        }
        let start = self.take_addresses(length)?;
        self.charge(Family::Plain, length);
        Some(start)
    }

    fn put_pages(&mut self, start: u64, length: u64) {
        self.put_addresses(start, length);
        self.uncharge(Family::Plain, length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 2 << 20;
    const A: ContextId = ContextId::numbered(0);
    const B: ContextId = ContextId::numbered(1);

    fn device(pages: u64) -> DeviceMemory {
        DeviceMemory::new(0x7f00_0000_0000, 64 * PAGE, pages * PAGE, PAGE)
    }

    #[test]
    fn small_allocations_share_a_page_and_large_ones_take_whole_pages() {
        let mut d = device(8);
        let first = d.take(A, 1).unwrap();
        let second = d.take(A, 513).unwrap();
        assert_eq!(second, first + 512);
        assert_eq!(d.used().now, PAGE);
        d.take(A, PAGE / 2 + 1).unwrap();
        assert_eq!(d.used().now, 2 * PAGE);
        d.take(A, PAGE + 1).unwrap();
        assert_eq!(d.used().now, 4 * PAGE);
        d.take(B, 1).unwrap();
        assert_eq!(d.used().now, 5 * PAGE, "contexts do not share pages");
    }

    #[test]
    fn a_page_is_free_when_its_last_allocation_is() {
        let mut d = device(1);
        let first = d.take(A, 1000).unwrap();
        let second = d.take(A, PAGE / 2).unwrap();
        assert_eq!(d.take(A, PAGE), None);
        assert_eq!(d.put(A, first, 1000), None);
        assert_eq!(d.put(A, second, PAGE / 2), Some((first, PAGE)));
        assert_eq!(d.used().now, 0);
        assert_eq!(d.take(B, PAGE), Some(first));
        assert_eq!(d.used().peak, PAGE);
    }

    #[test]
    fn what_somebody_else_uses_is_not_there() {
        let mut d = device(4);
        d.occupied = 3 * PAGE;
        assert_eq!(d.free_bytes(), PAGE);
        assert_eq!(d.take(A, 2 * PAGE), None);
        assert_eq!(d.take(A, u64::MAX), None);
        assert!(d.take(A, PAGE).is_some());
    }
}
