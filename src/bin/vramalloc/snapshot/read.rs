//! The part of a statistics file that a snapshot is made from.
//!
//! Checks the rules of the file's own form: the blocks of a segment tile it, a
//! call stack's places exist, and every number is exact in floating point.
//! Cost: about the size of the file in memory.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::super::stacks::{self, CallStacks, FrameList, OldFrame, OldStacks, Stacks};
use super::super::statistics::{self, Setting};
use super::super::symbols::Symbols;

/// The largest number that `JavaScript`, and so a snapshot, holds exactly.
const LARGEST: u64 = (1 << 53) - 1;

/// More devices than a machine has; the lists of a snapshot are by device.
const MOST_DEVICES: u32 = 1024;

/// A number below 2^53.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Deserialize)]
#[serde(try_from = "u64")]
pub(super) struct Exact(u64);

impl Exact {
    pub(super) fn get(self) -> u64 {
        self.0
    }

    /// The sum of two sizes that lie side by side, whose end is exact.
    pub(super) fn and(self, other: Exact) -> Exact {
        Exact(self.0.saturating_add(other.0).min(LARGEST))
    }
}

impl TryFrom<u64> for Exact {
    type Error = String;

    fn try_from(number: u64) -> Result<Exact, String> {
        if number > LARGEST {
            return Err(format!("{number} is above {LARGEST}"));
        }
        Ok(Exact(number))
    }
}

/// The contents of a file.
#[derive(Debug, Deserialize)]
pub(super) struct Statistics {
    #[serde(default)]
    pub(super) options: BTreeMap<String, Setting>,
    #[serde(default)]
    pub(super) program: String,
    #[serde(default)]
    pub(super) pid: u64,
    #[serde(default)]
    pub(super) started_unix_ms: u64,
    call_stacks: Option<CallStacks>,
    #[serde(default)]
    pub(super) snapshot: Snapshot,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Snapshot {
    blocks: Option<u64>,
    #[serde(default)]
    left_out: bool,
    #[serde(default)]
    pub(super) arenas: Vec<ArenaSnapshot>,
    #[serde(default)]
    frames: Vec<OldFrame>,
    #[serde(default)]
    stacks: Vec<FrameList>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ArenaSnapshot {
    pub(super) device: u32,
    #[serde(default)]
    pub(super) made_us: Exact,
    /// `None` if its context had not ended, and in files of older libraries.
    pub(super) ended_us: Option<Exact>,
    pub(super) segments: Vec<Segment>,
    pub(super) events: Vec<Event>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Segment {
    pub(super) address: Exact,
    pub(super) size: Exact,
    pub(super) kind: Kind,
    /// Whether it is a part of a range, whose memory is mapped in units; not in files of
    /// older libraries.
    #[serde(default)]
    pub(super) mapped: bool,
    pub(super) blocks: Vec<Block>,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    Small,
    Large,
    Direct,
}

#[derive(Copy, Clone, Debug, Deserialize)]
pub(super) struct Block {
    pub(super) address: Exact,
    pub(super) size: Exact,
    pub(super) requested: Exact,
    pub(super) state: State,
    pub(super) stack: Option<u32>,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    ActiveAllocated,
    ActivePendingFree,
    Inactive,
}

#[derive(Copy, Clone, Debug, Deserialize)]
pub(super) struct Event {
    pub(super) action: Action,
    #[serde(default)]
    pub(super) address: Exact,
    #[serde(default)]
    pub(super) device_free: Exact,
    pub(super) size: Exact,
    pub(super) time_us: Exact,
    pub(super) stack: Option<u32>,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Action {
    Alloc,
    FreeRequested,
    FreeCompleted,
    SegmentAlloc,
    SegmentFree,
    SegmentMap,
    SegmentUnmap,
    Oom,
}

impl Statistics {
    /// # Errors
    /// One line that says what is wrong with the file.
    pub(super) fn parse(bytes: &[u8]) -> Result<Statistics, String> {
        let statistics: Statistics = statistics::read(bytes)?;
        statistics.snapshot.check()?;
        let said = statistics.call_stacks.as_ref();
        said.map_or(Ok(()), CallStacks::check)?;
        Ok(statistics)
    }

    /// The call stacks, with their names; the file has none afterwards.
    pub(super) fn take_stacks(&mut self, symbols: &mut Symbols) -> Stacks {
        let old = OldStacks {
            frames: std::mem::take(&mut self.snapshot.frames),
            stacks: std::mem::take(&mut self.snapshot.stacks),
        };
        let (said, began) = (self.call_stacks.take(), self.started_unix_ms / 1000);
        Stacks::new(said, Some(old), began, symbols)
    }
}

impl Snapshot {
    fn check(&self) -> Result<(), String> {
        let Some(blocks) = self.blocks else {
            return Err("it holds no snapshot; a newer version of the library writes one".into());
        };
        if self.left_out {
            return Err(format!(
                "it holds no snapshot: with {blocks} blocks it was too large to be written"
            ));
        }
        for arena in &self.arenas {
            if arena.device >= MOST_DEVICES {
                return Err(format!("there is no device {}", arena.device));
            }
            arena.segments.iter().try_for_each(Segment::check)?;
        }
        stacks::check(self.frames.len(), &self.stacks)
    }
}

impl Segment {
    /// The address after its last byte.
    pub(super) fn end(&self) -> u64 {
        self.address.get() + self.size.get()
    }

    fn check(&self) -> Result<(), String> {
        let mut at = self.address.get();
        for block in &self.blocks {
            let fits = block.address.get() == at && block.requested <= block.size;
            if !fits || block.size.get() == 0 {
                return Err(format!(
                    "the block at {} does not fit into its segment at {}",
                    block.address.get(),
                    self.address.get()
                ));
            }
            at += block.size.get();
        }
        if at != self.end() || self.size.get() == 0 {
            return Err(format!(
                "the blocks of the segment at {} do not fill it",
                self.address.get()
            ));
        }
        Ok(())
    }
}
