//! What the page shows: the numbers and words that its scripts read.
//!
//! Invariant: every list is bounded by the [`PageRoom`] that it was made with, whatever a
//! file holds, so that the page stays small. Times are microseconds since the process's
//! first event, sizes bytes; addresses are text, since a script's numbers are not exact
//! above 2^53.

use serde::Serialize;

use crate::lines::TextPart;

/// How much of a process has room in the page.
#[derive(Copy, Clone, Debug)]
pub(crate) struct PageRoom {
    /// Steps over time, of all places together.
    pub(crate) steps: usize,
    /// Changes of who held how much, from step to step.
    pub(crate) changes: usize,
    /// Pieces of chunks.
    pub(crate) pieces: usize,
    /// Bytes of the names of functions.
    pub(crate) names: usize,
}

impl PageRoom {
    /// The room of one process on a page that shows several.
    pub(crate) fn of_each(processes: usize) -> PageRoom {
        let share = |all: usize| all / processes.max(1);
        // Some ten bytes each.
        let changes = processes.saturating_mul(200_000).saturating_add(400_000);
        PageRoom {
            steps: share(24_000),
            changes: share(changes.min(1_200_000)),
            pieces: share(60_000),
            names: share(3 << 20),
        }
    }
}

/// The whole page.
#[derive(Serialize)]
pub(crate) struct PageShown {
    pub(crate) version: &'static str,
    pub(crate) processes: Vec<ProcessShown>,
}

/// A process, of which there are statistics, a recording or both.
#[derive(Default, Serialize)]
pub(crate) struct ProcessShown {
    /// By which another file of the same process is known: program, process id, host.
    #[serde(skip)]
    pub(crate) identity: (String, u64, String),
    pub(crate) is_recorded: bool,
    pub(crate) label: String,
    pub(crate) title: String,
    pub(crate) files: Vec<String>,
    /// What is to be known of what is shown: what is missing, and why.
    pub(crate) notes: Vec<String>,
    /// The text of the reports.
    pub(crate) said: Vec<TextPart>,
    /// When it began, in microseconds since 1970.
    pub(crate) began_us: u64,
    pub(crate) places: Vec<PlaceShown>,
    /// Who held memory at single moments, of all devices together.
    pub(crate) moments: Vec<HeldAt>,
    pub(crate) holders: HolderNames,
}

impl ProcessShown {
    /// Adds what statistics of the same process say to what was recorded.
    pub(crate) fn join(&mut self, statistics: ProcessShown) {
        let first = self.holders.add(statistics.holders);
        let moments = statistics.moments.into_iter().map(|mut moment| {
            for (holder, _) in &mut moment.held {
                *holder = holder.saturating_add(first);
            }
            moment
        });
        self.moments.extend(moments);
        self.files.extend(statistics.files);
        self.said = [statistics.said, std::mem::take(&mut self.said)].concat();
        for place in &mut self.places {
            let same = statistics.places.iter();
            let mut same = same.filter(|other| other.device == place.device);
            if let Some(other) = same.next().filter(|_| place.device.is_some()) {
                place.total = place.total.or(other.total);
                place.peaks.past = place.peaks.past.max(other.peaks.past);
            }
        }
    }
}

/// Those who held memory: call stacks, or what stands for them.
#[derive(Default, Serialize)]
pub(crate) struct HolderNames {
    /// What they are: `call stack`, or `size class` where there are none.
    pub(crate) are: &'static str,
    /// The names of all places of call stacks.
    pub(crate) names: Vec<String>,
    /// The places of each holder by their names' numbers, the outermost first.
    pub(crate) stacks: Vec<Vec<u32>>,
}

impl HolderNames {
    /// Adds others behind these. The number of the first of them.
    fn add(&mut self, others: HolderNames) -> u32 {
        let number = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        let (names, first) = (number(self.names.len()), number(self.stacks.len()));
        self.names.extend(others.names);
        let stacks = others.stacks.into_iter();
        self.stacks.extend(stacks.map(|places| {
            let places = places.into_iter().map(|name| name.saturating_add(names));
            places.collect()
        }));
        first
    }
}

/// Memory of a device, or page-locked or pageable memory of the host.
#[derive(Default, Serialize)]
pub(crate) struct PlaceShown {
    pub(crate) name: String,
    /// The device's number; `None`: memory of the host.
    pub(crate) device: Option<u64>,
    /// The device's memory.
    pub(crate) total: Option<u64>,
    /// Since when there is which limit.
    pub(crate) limits: Vec<(u64, Option<u64>)>,
    pub(crate) timeline: Option<Timeline>,
    pub(crate) failures: Vec<Failure>,
    pub(crate) failures_left_out: u64,
    pub(crate) map: Option<MapShown>,
    pub(crate) largest: Vec<LargeBlock>,
    /// What the largest blocks are of.
    pub(crate) largest_when: String,
    /// The most that was live, reserved and past the pool.
    pub(crate) peaks: Peak,
}

impl PlaceShown {
    /// Changes the number of each holder but those in chunks; to none only where it may be
    /// missing.
    pub(crate) fn each_holder_of_lists(&mut self, mut change: impl FnMut(u32) -> Option<u32>) {
        let timeline = self.timeline.iter_mut();
        for pair in timeline
            .flat_map(|timeline| &mut timeline.held)
            .flat_map(|step| step.chunks_exact_mut(2))
        {
            if let [holder, _] = pair
                && let Some(new) = u32::try_from(*holder).ok().and_then(&mut change)
            {
                *holder = i64::from(new);
            }
        }
        let failures = self.failures.iter_mut().map(|failure| &mut failure.holder);
        let largest = self.largest.iter_mut().map(|block| &mut block.holder);
        for holder in failures.chain(largest) {
            *holder = holder.and_then(&mut change);
        }
    }

    /// The same for those in chunks.
    pub(crate) fn each_holder_of_chunks(&mut self, mut change: impl FnMut(u32) -> Option<u32>) {
        let chunks = self.map.iter_mut().flat_map(|map| &mut map.chunks);
        for piece in chunks.flat_map(|chunk| &mut chunk.pieces) {
            piece.4 = piece.4.and_then(&mut change);
        }
    }
}

/// Each the most that there was, not all at one moment.
#[derive(Copy, Clone, Default, Serialize)]
pub(crate) struct Peak {
    pub(crate) live: u64,
    pub(crate) reserved: u64,
    pub(crate) past: u64,
    pub(crate) failures: u64,
}

/// Memory over time, in columns.
#[derive(Default, Serialize)]
pub(crate) struct Timeline {
    /// How many changes each step stands for; 1: none is left out.
    pub(crate) per_step: u64,
    /// How many there were.
    pub(crate) changes: u64,
    pub(crate) time: Vec<u64>,
    pub(crate) live: Vec<u64>,
    pub(crate) limbo: Vec<u64>,
    pub(crate) reserved: Vec<u64>,
    pub(crate) past: Vec<u64>,
    /// Whether the file tells what went past the pool.
    pub(crate) tells_past: bool,
    /// The moments at which who held memory is known: where in the columns, and what
    /// changed since the one before, as pairs of a holder and bytes.
    pub(crate) at: Vec<usize>,
    pub(crate) held: Vec<Vec<i64>>,
}

/// A request that failed for want of memory.
#[derive(Copy, Clone, Serialize)]
pub(crate) struct Failure {
    pub(crate) time: u64,
    pub(crate) size: u64,
    pub(crate) holder: Option<u32>,
}

/// Who held how much at a moment.
#[derive(Serialize)]
pub(crate) struct HeldAt {
    pub(crate) when: String,
    /// A holder, and its bytes.
    pub(crate) held: Vec<(u32, u64)>,
}

/// The chunks of a place.
#[derive(Default, Serialize)]
pub(crate) struct MapShown {
    pub(crate) when: String,
    pub(crate) chunks: Vec<ChunkShown>,
    /// Chunks that are not listed, and their bytes.
    pub(crate) left_out: u64,
    pub(crate) left_out_bytes: u64,
}

/// A chunk.
#[derive(Serialize)]
pub(crate) struct ChunkShown {
    pub(crate) address: String,
    pub(crate) size: u64,
    pub(crate) mapped: bool,
    /// Blocks that are live.
    pub(crate) blocks: u64,
    /// In the order of their addresses, without a gap.
    pub(crate) pieces: Vec<Piece>,
}

/// A block, what is free between blocks, or several of these: size, what of it is live
/// and in limbo, and how many live blocks there are; the holder of a single one.
#[derive(Copy, Clone, Serialize)]
pub(crate) struct Piece(
    pub(crate) u64,
    pub(crate) u64,
    pub(crate) u64,
    pub(crate) u64,
    #[serde(skip_serializing_if = "Option::is_none")] pub(crate) Option<u32>,
);

/// One of the largest blocks.
#[derive(Serialize)]
pub(crate) struct LargeBlock {
    pub(crate) size: u64,
    pub(crate) address: String,
    /// When it was asked for, if that is known.
    pub(crate) since: Option<u64>,
    pub(crate) holder: Option<u32>,
}
