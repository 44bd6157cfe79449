//! What others may have mapped as well: it stays where it is while its block is live.
//!
//! The program names bytes; of them, what blocks lie in is exported, each byte until its
//! block is freed. Who had them may still map them then, as after a free of CUDA's.
//!
//! Owns the exported spans of each range, by address. Invariant: they lie apart. Cost: a
//! look at each of them at each free while there are any.

use crate::heap::ranges::end;
use crate::heap::ranges::paused::common;
use crate::heap::{Heap, Span};

impl Heap {
    /// Others may map what lies in these addresses of a range. Addresses behind the range
    /// are not its.
    pub(crate) fn note_exported(&mut self, span: Span) {
        let chunk = self.range_at(span.address).map(|range| range.chunk);
        let Some(range) = chunk.and_then(|chunk| self.range_of(chunk)) else {
            return;
        };
        let most = end(range.span).offset_from(span.address);
        let size = span.size.min(most);
        for part in common(&self.used_in(range), &[Span { size, ..span }]) {
            self.end_exports(part);
            if let Some(range) = self.range_at(part.address) {
                range.exported.push(part);
                range.exported.sort_by_key(|span| span.address);
                self.ranges.has_exports = true;
            }
        }
    }

    /// Whether a free may end an export.
    #[inline]
    pub(crate) fn has_exports(&self) -> bool {
        self.ranges.has_exports
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
        if let Some(range) = self.range_at(freed.address) {
            let exported = std::mem::take(&mut range.exported);
            range.exported = exported.into_iter().flat_map(parts).collect();
        }
        let mut ranges = self.ranges.all.iter();
        self.ranges.has_exports = ranges.any(|range| !range.exported.is_empty());
    }
}
