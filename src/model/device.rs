//! The memory of one device: which pages are used, by which allocation.
//!
//! Owns the device's address space and its page count. Invariant: small
//! allocations (up to half a page) are packed at 512 bytes into pages that they
//! share with others of the same context; larger ones take whole pages; a page
//! is used as long as any allocation lies in it. Cost: O(log n).

use std::collections::BTreeMap;

use crate::ids::ContextId;
use crate::runs::Runs;
use vramalloc_core::address::{Address, Bytes};

/// Alignment and granularity of small allocations.
const GRAIN: u64 = 512;

/// A live allocation of the model.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// Its first address.
    pub base: Address,
    /// How many bytes were asked for.
    pub size: Bytes,
    /// The device that it lies on.
    pub device: u32,
    /// The context that owns it.
    pub context: ContextId,
    /// Whether it uses pages of this device; false for memory that was opened
    /// from another process.
    pub(crate) counted: bool,
}

#[derive(Debug)]
pub(crate) struct DeviceMemory {
    pub(crate) total: u64,
    page: u64,
    used: u64,
    peak: u64,
    /// Bytes that another process uses.
    pub(crate) occupied: u64,
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
            used: 0,
            peak: 0,
            occupied: 0,
            pages,
            small: BTreeMap::new(),
        }
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        self.total
            .saturating_sub(self.used)
            .saturating_sub(self.occupied)
    }

    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    pub(crate) fn peak(&self) -> u64 {
        self.peak
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
        let start = self.pages.take(length)?;
        self.used += length;
        self.peak = self.peak.max(self.used);
        Some(start)
    }

    fn put_pages(&mut self, start: u64, length: u64) {
        self.pages.put(start, length);
        self.used -= length;
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
        assert_eq!(d.used(), PAGE);
        d.take(A, PAGE / 2 + 1).unwrap();
        assert_eq!(d.used(), 2 * PAGE);
        d.take(A, PAGE + 1).unwrap();
        assert_eq!(d.used(), 4 * PAGE);
        d.take(B, 1).unwrap();
        assert_eq!(d.used(), 5 * PAGE, "contexts do not share pages");
    }

    #[test]
    fn a_page_is_free_when_its_last_allocation_is() {
        let mut d = device(1);
        let first = d.take(A, 1000).unwrap();
        let second = d.take(A, PAGE / 2).unwrap();
        assert_eq!(d.take(A, PAGE), None);
        assert_eq!(d.put(A, first, 1000), None);
        assert_eq!(d.put(A, second, PAGE / 2), Some((first, PAGE)));
        assert_eq!(d.used(), 0);
        assert_eq!(d.take(B, PAGE), Some(first));
        assert_eq!(d.peak(), PAGE);
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
