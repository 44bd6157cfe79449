//! The chunks of a place with what lies in them, in a bounded number of pieces.

use std::cmp::Reverse;

use super::model::{ChunkShown, LargeBlock, MapShown, Piece};

/// A chunk with all that lies in it.
pub(crate) struct WholeChunk {
    pub(crate) start: u64,
    pub(crate) size: u64,
    pub(crate) is_mapped: bool,
    /// In the order of their addresses, without a gap.
    pub(crate) parts: Vec<WholePart>,
}

/// A block, or what is free between two.
#[derive(Copy, Clone)]
pub(crate) struct WholePart {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) state: PartState,
    /// What was asked for.
    pub(crate) asked: u64,
    pub(crate) since: Option<u64>,
    pub(crate) holder: Option<u32>,
}

#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum PartState {
    Live,
    Limbo,
    Free,
}

/// The most chunks that are listed, and the most blocks.
const MOST_CHUNKS: usize = 2000;
const MOST_BLOCKS: usize = 100;

/// The fewest pieces that a chunk has room for.
const FEWEST: usize = 8;

/// An address as it is written.
fn written(address: u64) -> String {
    format!("{address:#x}")
}

/// The map of these chunks, with at most so many pieces: of chunks with many blocks,
/// those that lie side by side are told together; the smallest chunks are left out.
pub(crate) fn map(when: String, chunks: &[WholeChunk], room: usize) -> MapShown {
    let mut order: Vec<&WholeChunk> = chunks.iter().collect();
    order.sort_by_key(|chunk| (Reverse(chunk.size), chunk.start));
    let most = MOST_CHUNKS.min(room / FEWEST).max(1);
    let (listed, others) = order.split_at(order.len().min(most));
    let mut listed = listed.to_vec();
    // Those with few parts leave their room to the others.
    listed.sort_by_key(|chunk| chunk.parts.len());
    let (mut left, mut shown) = (room, Vec::new());
    for (n, chunk) in listed.iter().enumerate() {
        let share = (left / (listed.len() - n)).max(FEWEST);
        let pieces = pieces(&chunk.parts, share);
        left = left.saturating_sub(pieces.len());
        shown.push((chunk.start, shown_chunk(chunk, pieces)));
    }
    shown.sort_by_key(|(start, _)| *start);
    MapShown {
        when,
        chunks: shown.into_iter().map(|(_, chunk)| chunk).collect(),
        left_out: others.len() as u64,
        left_out_bytes: others
            .iter()
            .fold(0, |sum, chunk| sum.saturating_add(chunk.size)),
    }
}

fn shown_chunk(chunk: &WholeChunk, pieces: Vec<Piece>) -> ChunkShown {
    let live = chunk
        .parts
        .iter()
        .filter(|part| part.state == PartState::Live);
    ChunkShown {
        address: written(chunk.start),
        size: chunk.size,
        mapped: chunk.is_mapped,
        blocks: live.count() as u64,
        pieces,
    }
}

/// The parts, at most so many: as many neighbours together as that takes.
fn pieces(parts: &[WholePart], most: usize) -> Vec<Piece> {
    let together = parts.len().div_ceil(most.max(1)).max(1);
    let groups = parts.chunks(together);
    let one = |group: &[WholePart]| {
        let sum = |state: Option<PartState>| {
            let of_state = group
                .iter()
                .filter(|part| state.is_none_or(|state| part.state == state));
            of_state.fold(0u64, |sum, part| sum.saturating_add(part.size))
        };
        let live = group.iter().filter(|part| part.state == PartState::Live);
        let holder = match group {
            [part] => part.holder,
            _ => None,
        };
        Piece(
            sum(None),
            sum(Some(PartState::Live)),
            sum(Some(PartState::Limbo)),
            live.count() as u64,
            holder,
        )
    };
    groups.map(one).collect()
}

/// The largest live blocks.
pub(crate) fn largest(chunks: &[WholeChunk]) -> Vec<LargeBlock> {
    let parts = chunks.iter().flat_map(|chunk| &chunk.parts);
    let mut live: Vec<&WholePart> = parts.filter(|part| part.state == PartState::Live).collect();
    live.sort_by_key(|part| (Reverse(part.asked), part.address));
    let shown = live.iter().take(MOST_BLOCKS).map(|part| LargeBlock {
        size: part.asked,
        address: written(part.address),
        since: part.since,
        holder: part.holder,
    });
    shown.collect()
}
