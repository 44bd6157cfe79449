//! Memory of the host that holds what the device's held, piece by piece.
//!
//! Owns what lies where. Invariant: no two stretches that are saved share a byte of a
//! piece. Cost: a step for each stretch and each piece.

use crate::address::Bytes;
use crate::driver::mapping::Backup;
use crate::heap::Span;
use crate::heap::ranges::paused::common;

/// A backup is no larger than this: host memory is page-locked piece by piece.
pub(super) const PIECE: Bytes = Bytes::mib(256);

/// Nor is it smaller, where less is wanted, than this.
pub(super) const LEAST_PIECE: Bytes = Bytes::mib(2);

/// A stretch that was saved, and where.
#[derive(Copy, Clone)]
pub(super) struct Saved {
    pub(super) span: Span,
    pub(super) to: Backup,
    pub(super) offset: Bytes,
}

/// Memory of the host, and what of the device's it holds.
#[derive(Default)]
pub(crate) struct Backups {
    pub(in crate::arena) pieces: Vec<(Backup, Bytes)>,
    pub(super) saved: Vec<Saved>,
}

impl Backups {
    pub(super) fn size(&self) -> Bytes {
        let sizes = self.pieces.iter().map(|(_, size)| *size);
        sizes.fold(Bytes::ZERO, Bytes::saturating_add)
    }

    /// Where each stretch is to be saved. There is room for all of them.
    pub(super) fn lay_out(&self, spans: &[Span]) -> Vec<Saved> {
        let mut laid = Vec::new();
        let mut pieces = self.pieces.iter().copied();
        let mut room = pieces.next();
        let mut used = Bytes::ZERO;
        for &whole in spans {
            let mut left = whole;
            while !left.size.is_zero() {
                let Some((to, size)) = room else {
                    return laid;
                };
                let part = left.size.min(size.saturating_sub(used));
                if part.is_zero() {
                    (room, used) = (pieces.next(), Bytes::ZERO);
                    continue;
                }
                let span = Span { size: part, ..left };
                let offset = used;
                laid.push(Saved { span, to, offset });
                used = used.saturating_add(part);
                left = Span {
                    address: left.address.checked_add(part).unwrap_or(left.address),
                    size: left.size.saturating_sub(part),
                };
            }
        }
        laid
    }

    /// What of the stretches was saved, and where.
    pub(super) fn parts_of(&self, spans: &[Span]) -> Vec<Saved> {
        let mut parts = Vec::new();
        for saved in &self.saved {
            for span in common(&[saved.span], spans) {
                let within = span.address.offset_from(saved.span.address);
                parts.push(Saved {
                    span,
                    to: saved.to,
                    offset: saved.offset.saturating_add(within),
                });
            }
        }
        parts
    }
}

pub(super) fn sum_of(spans: &[Span]) -> Bytes {
    let sizes = spans.iter().map(|span| span.size);
    sizes.fold(Bytes::ZERO, Bytes::saturating_add)
}
