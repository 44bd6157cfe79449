//! Arrays, and what they are made of.

use crate::ffi::Handle;

/// The flags of an array that matter here.
pub(crate) const LAYERED: u32 = 0x1;
pub(crate) const CUBEMAP: u32 = 0x4;
pub(crate) const SPARSE: u32 = 0x40;
pub(crate) const DEFERRED: u32 = 0x80;
pub(crate) const ALL_FLAGS: u32 = 0x1ff;

/// `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Shape2D {
    pub(crate) width: u64,
    pub(crate) height: u64,
    pub(crate) format: u32,
    pub(crate) channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    pub(crate) width: u64,
    pub(crate) height: u64,
    pub(crate) depth: u64,
    pub(crate) format: u32,
    pub(crate) channels: u32,
    pub(crate) flags: u32,
}

impl Shape {
    /// Bytes of one element; `None` for a format that is not modelled.
    pub(crate) fn element(&self) -> Option<u64> {
        let (bytes, channels) = match self.format {
            0x01 | 0x08 => (1, None),
            0x02 | 0x09 | 0x10 => (2, None),
            0x03 | 0x0a | 0x20 => (4, None),
            // Normalised integers, whose format says how many channels.
            0xc0 | 0xc6 => (1, Some(1)),
            0xc1 | 0xc7 => (1, Some(2)),
            0xc2 | 0xc8 => (1, Some(4)),
            0xc3 | 0xc9 => (2, Some(1)),
            0xc4 | 0xca => (2, Some(2)),
            0xc5 | 0xcb => (2, Some(4)),
            _ => return None,
        };
        let right = channels.is_none_or(|n| n == self.channels);
        right.then_some(bytes * u64::from(self.channels))
    }

    /// Bytes of a row.
    pub(crate) fn row(&self) -> Option<u64> {
        self.width.checked_mul(self.element()?)
    }

    /// Bytes of all rows.
    pub(crate) fn bytes(&self) -> Option<u64> {
        let rows = self.height.max(1).checked_mul(self.depth.max(1))?;
        self.row()?.checked_mul(rows)
    }

    /// The shape of a mipmap's level. Layers are no extent that shrinks.
    pub(crate) fn level(&self, level: u32) -> Shape {
        let half = |n: u64| match n {
            0 => 0,
            n => (n >> level).max(1),
        };
        let depth = match self.flags & (LAYERED | CUBEMAP) {
            0 => half(self.depth),
            _ => self.depth,
        };
        Shape {
            width: half(self.width),
            height: half(self.height),
            depth,
            ..*self
        }
    }

    /// How many levels a mipmap of this shape can have.
    pub(crate) fn levels(&self) -> u32 {
        let layered = self.flags & (LAYERED | CUBEMAP) != 0;
        let depth = if layered { 0 } else { self.depth };
        self.width.max(self.height).max(depth).max(1).ilog2() + 1
    }
}

#[derive(Debug)]
pub(crate) struct Array {
    pub(crate) shape: Shape,
    /// Where its bytes lie; 0: nowhere yet, since memory is mapped to it later.
    pub(crate) base: u64,
    pub(crate) device: u32,
    /// The mipmap that it is a level of.
    pub(crate) part_of: Option<Handle>,
}

#[derive(Debug)]
pub(crate) struct Mipmap {
    pub(crate) shape: Shape,
    pub(crate) base: u64,
    pub(crate) device: u32,
    pub(crate) levels: Vec<Handle>,
}
