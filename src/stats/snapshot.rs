//! What an arena holds block by block, and its newest events.
//!
//! Plain values, taken under the arena's lock at once and written outside of
//! it. Invariant: the blocks of a segment are in address order and tile it
//! exactly; the events end in the state that the segments show, so that undoing
//! them one by one, from the newest back, leads through states that existed.
//! Cost: 40 bytes per block and 40 per event.

mod text;

use std::io::{self, Write};

use crate::address::{Address, Bytes};
use crate::stats::{StackId, Stacks};

/// The state of a block.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum BlockState {
    /// The program holds it.
    Live,
    /// The program freed it and the device may still use it.
    Limbo,
    /// It could be handed out.
    Free,
}

impl BlockState {
    /// `PyTorch`'s word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            BlockState::Live => "active_allocated",
            BlockState::Limbo => "active_pending_free",
            BlockState::Free => "inactive",
        }
    }
}

/// A block of a segment.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct BlockPicture {
    /// Where it starts.
    pub address: Address,
    /// Its size in whole slots.
    pub size: Bytes,
    /// The requested size; zero for a free block.
    pub requested: Bytes,
    /// Its state.
    pub state: BlockState,
    /// The call stack of the request, if call stacks are taken.
    pub stack: StackId,
}

/// The requests that a segment serves.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum SegmentKind {
    /// A chunk of the pool for small requests.
    Small,
    /// A chunk of another pool.
    Large,
    /// A direct allocation.
    Direct,
}

impl SegmentKind {
    /// The word in the statistics.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            SegmentKind::Small => "small",
            SegmentKind::Large => "large",
            SegmentKind::Direct => "direct",
        }
    }
}

/// Memory that the driver gave in one call: a chunk or a direct allocation; or what is
/// mapped side by side in a range.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Where it starts.
    pub address: Address,
    /// Its size.
    pub size: Bytes,
    /// The requests that it serves.
    pub kind: SegmentKind,
    /// It is a part of a range, whose memory is mapped in units.
    pub is_mapped: bool,
    /// The index of its first block in [`Snapshot::blocks`].
    pub first_block: usize,
    /// How many blocks it has.
    pub block_count: usize,
}

/// What happened.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// A block was handed out.
    Alloc(Address),
    /// The program freed a block.
    FreeRequested(Address),
    /// The device is done with a freed block.
    FreeCompleted(Address),
    /// The driver gave a segment.
    SegmentAlloc(Address),
    /// A segment goes back to the driver.
    SegmentFree(Address),
    /// Memory was mapped here, in a range.
    SegmentMap(Address),
    /// It was unmapped.
    SegmentUnmap(Address),
    /// A request failed for want of memory.
    Oom {
        /// Free memory of the device; zero if the driver did not say.
        device_free: Bytes,
    },
}

impl Action {
    /// `PyTorch`'s word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Action::Alloc(_) => "alloc",
            Action::FreeRequested(_) => "free_requested",
            Action::FreeCompleted(_) => "free_completed",
            Action::SegmentAlloc(_) => "segment_alloc",
            Action::SegmentFree(_) => "segment_free",
            Action::SegmentMap(_) => "segment_map",
            Action::SegmentUnmap(_) => "segment_unmap",
            Action::Oom { .. } => "oom",
        }
    }

    /// Where it happened; none of a request that failed.
    #[must_use]
    pub const fn address(self) -> Option<Address> {
        match self {
            Action::Alloc(at)
            | Action::FreeRequested(at)
            | Action::FreeCompleted(at)
            | Action::SegmentAlloc(at)
            | Action::SegmentFree(at)
            | Action::SegmentMap(at)
            | Action::SegmentUnmap(at) => Some(at),
            Action::Oom { .. } => None,
        }
    }
}

/// An event of an arena's history.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// What happened.
    pub action: Action,
    /// For a block the requested size; for a segment its size; for a failed
    /// request its size in whole slots.
    pub size: Bytes,
    /// When, in microseconds since 1970.
    pub time_us: u64,
    /// The call stack, if call stacks are taken.
    pub stack: StackId,
}

/// A consistent picture of an arena's memory, with its newest events.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Snapshot {
    /// All memory that the driver gave, by address.
    pub segments: Vec<Segment>,
    /// The blocks of all segments, each segment's in a row.
    pub blocks: Vec<BlockPicture>,
    /// The newest events, the oldest of them first.
    pub events: Vec<Event>,
    /// The number of older events.
    pub events_lost: u64,
    /// When the arena was made, in microseconds since 1970.
    pub made_us: u64,
    /// When its context ended, if it has. The snapshot is as of then.
    pub ended_us: Option<u64>,
    /// Whether the context has ended and its blocks were not kept.
    pub forgotten: bool,
}

impl Snapshot {
    /// A copy; `None` if the host has no memory for it.
    #[must_use]
    pub fn copy(&self) -> Option<Snapshot> {
        let mut copy = Snapshot {
            events_lost: self.events_lost,
            made_us: self.made_us,
            ended_us: self.ended_us,
            forgotten: self.forgotten,
            ..Snapshot::default()
        };
        copy.segments.try_reserve_exact(self.segments.len()).ok()?;
        copy.blocks.try_reserve_exact(self.blocks.len()).ok()?;
        copy.events.try_reserve_exact(self.events.len()).ok()?;
        copy.segments.extend_from_slice(&self.segments);
        copy.blocks.extend_from_slice(&self.blocks);
        copy.events.extend_from_slice(&self.events);
        Some(copy)
    }

    /// The blocks of a segment of this snapshot, by address.
    #[must_use]
    pub fn blocks_of(&self, segment: &Segment) -> &[BlockPicture] {
        let end = segment.first_block.saturating_add(segment.block_count);
        self.blocks
            .get(segment.first_block..end)
            .unwrap_or_default()
    }

    /// The call stacks that blocks and events name; one may come several times.
    pub fn stacks(&self) -> impl Iterator<Item = StackId> + '_ {
        let blocks = self.blocks.iter().map(|block| block.stack);
        blocks.chain(self.events.iter().map(|event| event.stack))
    }
}

/// The most blocks that are written for a process: 2^17. The text of a block is
/// about 100 bytes. If there are more, all are left out, since an incomplete
/// list would not tile its segments.
pub const MOST_BLOCKS: u64 = 1 << 17;

/// The snapshots of a process's arenas.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Snapshots {
    /// The number of blocks.
    pub blocks: u64,
    /// Whether the segments are left out because there are more than
    /// [`MOST_BLOCKS`] blocks.
    pub left_out: bool,
    /// Each arena's device and snapshot, in the order of the arenas.
    pub arenas: Vec<(u32, Snapshot)>,
}

impl Snapshots {
    /// Writes the snapshots as a JSON object, indented as a member of the
    /// top-level object of a file, with the call stacks in the form that they had
    /// before there was more to say of them.
    ///
    /// # Errors
    /// What `out` answers.
    pub(super) fn write(&self, stacks: Option<&Stacks>, out: &mut dyn Write) -> io::Result<()> {
        text::write(self, stacks.unwrap_or(&Stacks::default()), out)
    }
}
