//! Pages of the device that small direct allocations lie in.
//!
//! The driver packs small allocations into pages that they share, and takes a
//! page for as long as anything lies in it. So it is the page that counts
//! towards the limit, once.
//!
//! Owns how many such allocations lie in each page. Invariant: an allocation is
//! entered before it is in the heap, and leaves before the driver has it back.
//! Cost: a search among the pages; nothing for allocations above [`SMALL`].

use std::collections::BTreeMap;

use crate::address::Bytes;
use crate::driver::PAGE;
use crate::heap::Span;
use crate::strategy::SMALL;

/// See the module.
#[derive(Default)]
pub(crate) struct SharedPages {
    /// How many lie in each.
    pages: BTreeMap<u64, u64>,
    /// How many bytes lie in all of them.
    filled: Bytes,
    /// It is memory of the host, where nothing is known of pages.
    is_host: bool,
}

impl SharedPages {
    /// None yet; `is_host`: there never will be.
    pub(super) fn new(is_host: bool) -> SharedPages {
        SharedPages {
            is_host,
            ..SharedPages::default()
        }
    }

    /// The page in which a small span begins; none of others.
    fn page_of(&self, span: Span) -> Option<u64> {
        let shares = !self.is_host && span.size <= SMALL;
        shares.then_some(span.address.get() / PAGE.get())
    }

    /// The driver gave a span; what that takes of the device.
    pub(crate) fn enter(&mut self, span: Span) -> Bytes {
        let Some(page) = self.page_of(span) else {
            return span.size;
        };
        self.filled = self.filled.saturating_add(span.size);
        let count = self.pages.entry(page).or_default();
        *count += 1;
        if *count == 1 { PAGE } else { Bytes::ZERO }
    }

    /// It is going to get the span back; what that gives the device.
    pub(crate) fn leave(&mut self, span: Span) -> Bytes {
        let Some(page) = self.page_of(span) else {
            return span.size;
        };
        let Some(count) = self.pages.get_mut(&page) else {
            // Gone with its context.
            return Bytes::ZERO;
        };
        self.filled = self.filled.saturating_sub(span.size);
        *count -= 1;
        if *count > 0 {
            return Bytes::ZERO;
        }
        self.pages.remove(&page);
        PAGE
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.pages.clear();
        self.filled = Bytes::ZERO;
    }

    /// What `reserved` bytes take of the device, these spans among them.
    pub(crate) fn charged(&self, reserved: Bytes) -> Bytes {
        let pages = Bytes::new(PAGE.get().saturating_mul(self.pages.len() as u64));
        reserved.saturating_sub(self.filled).saturating_add(pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Address;

    fn region(at: u64, size: u64) -> Span {
        Span {
            address: Address::new(at),
            size: Bytes::new(size),
        }
    }

    #[test]
    fn a_page_counts_once_for_all_that_lies_in_it() {
        let mut pages = SharedPages::default();
        let (first, second) = (
            region(PAGE.get(), 512),
            region(PAGE.get() + 512, SMALL.get()),
        );
        assert_eq!(pages.enter(first), PAGE);
        assert_eq!(pages.enter(second), Bytes::ZERO);
        assert_eq!(pages.enter(region(5 * PAGE.get(), 512)), PAGE);
        let reserved = Bytes::new(SMALL.get() + 1024);
        assert_eq!(pages.charged(reserved), Bytes::mib(4));
        assert_eq!(pages.leave(first), Bytes::ZERO);
        assert_eq!(pages.leave(second), PAGE);
        assert_eq!(pages.leave(second), Bytes::ZERO);
    }

    #[test]
    fn larger_regions_count_for_themselves() {
        let mut pages = SharedPages::default();
        let large = region(0, SMALL.get() + 512);
        assert_eq!(pages.enter(large), large.size);
        assert!(pages.pages.is_empty());
        assert_eq!(pages.charged(large.size), large.size);
        assert_eq!(pages.leave(large), large.size);
    }
}
