//! What others may have mapped as well: it stays where it is while its block is live.
//!
//! The program names bytes; of them, what blocks lie in is exported, each byte until its
//! block is freed. Who had them may still map them then, as after a free of CUDA's.
//!
//! Owns the exported spans, by address. Invariant: they lie apart, each in a range. Cost: a look at each of them at each free while there are any.

use crate::heap::ranges::paused::common;
use crate::heap::ranges::{Range, end};
use crate::heap::{Heap, Span};

impl Heap {
    /// Others may map what lies in these addresses of a range. Addresses behind the range
    /// are not its.
    pub(crate) fn note_exported(&mut self, span: Span) {
        let is_there = |range: &&Range| {
            let from = range.span.address;
            from <= span.address && span.address < end(range.span)
        };
        let Some(range) = self.ranges.all.iter().find(is_there) else {
            return;
        };
        let most = end(range.span).offset_from(span.address);
        let named = Span {
            address: span.address,
            size: span.size.min(most),
        };
        let used = common(&self.used_in(range), &[named]);
        for part in &used {
            self.end_exports(*part);
        }
        self.ranges.exported.extend(used);
        self.ranges.exported.sort_by_key(|span| span.address);
    }

    /// Whether a free may end an export.
    #[inline]
    pub(crate) fn has_exports(&self) -> bool {
        !self.ranges.exported.is_empty()
    }

    /// Nothing of this is exported any more.
    #[cold]
    pub(crate) fn end_exports(&mut self, freed: Span) {
        let parts = |span: Span| {
            let before = Span {
                address: span.address,
                size: freed.address.min(end(span)).offset_from(span.address),
            };
            let from = end(freed).max(span.address);
            let behind = Span {
                address: from,
                size: end(span).offset_from(from),
            };
            [before, behind]
                .into_iter()
                .filter(|part| !part.size.is_zero())
        };
        let exported = std::mem::take(&mut self.ranges.exported);
        self.ranges.exported = exported.into_iter().flat_map(parts).collect();
    }
}
