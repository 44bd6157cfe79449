//! Fragmentation, as one figure: which share of what is reserved is free in
//! pieces that serve none of the program's largest requests.
//!
//! The largest requests are those of the largest size class that had live blocks
//! when the most was live. A piece of the bound of the class below, or smaller,
//! is too small for every one of them; of larger pieces it is not known, so they
//! count as large enough. Read from the blocks of the file's snapshot; `None`
//! where it has none.

use std::mem;

use serde::Deserialize;

use super::super::stacks::{FrameList, OldFrame, OldStacks};
use super::file::{Arena, Class, File};

/// What is read of the snapshot in a file. Its events are skipped.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Pieces {
    arenas: Vec<ArenaPieces>,
    frames: Vec<OldFrame>,
    stacks: Vec<FrameList>,
}

impl Pieces {
    /// The call stacks in files of older libraries; none afterwards.
    pub(super) fn take_stacks(&mut self) -> OldStacks {
        OldStacks {
            frames: mem::take(&mut self.frames),
            stacks: mem::take(&mut self.stacks),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ArenaPieces {
    device: u64,
    segments: Vec<Whole>,
}

/// A segment: a region of the driver.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Whole {
    size: u64,
    blocks: Vec<Piece>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Piece {
    size: u64,
    state: Use,
}

#[derive(Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Use {
    Inactive,
    #[default]
    #[serde(other)]
    Active,
}

/// See the module.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Spread {
    /// What is free in pieces that are too small.
    pub(super) useless: u64,
    pub(super) reserved: u64,
    /// All the largest requests are above this.
    pub(super) above: u64,
}

/// The figure of an arena of a file, as it was when the file was written.
pub(super) fn spread(file: &File, arena: &Arena) -> Option<Spread> {
    let alike = |device| device == arena.device;
    let mut arenas = file.arenas.iter().filter(|other| alike(other.device));
    let pieces = file.snapshot.as_ref()?.arenas.iter();
    let pieces: Vec<&ArenaPieces> = pieces.filter(|other| alike(other.device)).collect();
    let place = arenas.position(|other| std::ptr::eq(other, arena))?;
    if arenas.count() + place + 1 != pieces.len() {
        return None;
    }
    let largest = arena.classes.iter().filter(|class| class.peak_blocks > 0);
    let above = largest.filter_map(|class: &Class| class.up_to).max()? / 2;
    let segments = &pieces.get(place)?.segments;
    let sizes = segments.iter().map(|segment| segment.size);
    let reserved = sizes.fold(0, u64::saturating_add);
    let blocks = segments.iter().flat_map(|segment| &segment.blocks);
    let small = blocks.filter(|block| block.state == Use::Inactive && block.size <= above);
    let useless = small.fold(0, |sum: u64, block| sum.saturating_add(block.size));
    // An arena that is not the one of the snapshot is not described by it.
    (reserved == arena.reserved.current && reserved > 0).then_some(Spread {
        useless,
        reserved,
        above,
    })
}
