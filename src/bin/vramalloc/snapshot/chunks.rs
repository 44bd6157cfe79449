//! The chunks of devices as statistics have them, with what lies in them, for the page of
//! `vramalloc report --html`.

use super::super::html::map::{PartState, WholeChunk, WholePart};
use super::read::{Block, Segment, State, Statistics};
use super::replay::Replayed;
use super::steps::{DeviceSteps, Steps};

/// What a file of statistics has of a device.
pub(crate) struct DeviceSnapshot {
    pub(crate) chunks: Vec<WholeChunk>,
    /// The newest events; none without the option `trace`.
    pub(crate) steps: DeviceSteps,
}

/// The devices, by number. Holders of blocks are call stacks.
///
/// # Errors
/// What is wrong with the file, or that it has no snapshot.
pub(crate) fn devices(bytes: &[u8]) -> Result<Vec<DeviceSnapshot>, String> {
    let statistics = Statistics::parse(bytes)?;
    let replayed = Replayed::new(&statistics.snapshot);
    // Without events there are no steps.
    let steps = Steps::of(bytes).map(|steps| steps.devices);
    let mut steps = steps.unwrap_or_default().into_iter();
    let devices = replayed.devices.iter().map(|device| DeviceSnapshot {
        chunks: device.segments.iter().map(chunk).collect(),
        steps: steps.next().unwrap_or_default(),
    });
    Ok(devices.collect())
}

fn chunk(segment: &Segment) -> WholeChunk {
    WholeChunk {
        start: segment.address.get(),
        size: segment.size.get(),
        is_mapped: segment.mapped,
        parts: segment.blocks.iter().map(part).collect(),
    }
}

fn part(block: &Block) -> WholePart {
    WholePart {
        address: block.address.get(),
        size: block.size.get(),
        state: match block.state {
            State::ActiveAllocated => PartState::Live,
            State::ActivePendingFree => PartState::Limbo,
            State::Inactive => PartState::Free,
        },
        asked: block.requested.get(),
        since: None,
        holder: block.stack,
    }
}
