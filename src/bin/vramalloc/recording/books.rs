//! What is held at each moment of a recording.
//!
//! Invariant: after each event, what is held is what the program held then, as far as
//! the recording tells. Where older events are lost it is exact once all was told anew.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use vramalloc_core::recording::{Entry, Found, Mark};
use vramalloc_core::stats::{Action, Event, StackId};

/// An arena, as the recording tells of it.
#[derive(Clone, Debug, Default, Deserialize)]
struct ArenaTold {
    #[serde(default)]
    place: String,
    device: Option<u32>,
    device_name: Option<String>,
}

/// A block that the program holds or has freed while the device may use it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Held {
    pub(super) size: u64,
    pub(super) stack: StackId,
    /// The program has freed it.
    pub(super) waits: bool,
}

/// What arenas of one place and device hold together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Sum {
    pub(super) name: Option<String>,
    pub(super) live: u64,
    pub(super) blocks: u64,
    /// Freed by the program while the device may use it.
    pub(super) limbo: u64,
    pub(super) reserved: u64,
    pub(super) allocations: u64,
    pub(super) frees: u64,
    pub(super) ooms: u64,
    pub(super) peak: u64,
    pub(super) peak_blocks: u64,
    /// When, in microseconds since 1970, and after how many entries.
    pub(super) peak_us: u64,
    pub(super) peak_entry: u64,
    pub(super) reserved_peak: u64,
}

/// The place of an arena whose memory is a device's.
pub(super) const DEVICE: &str = "device";

/// More devices than a machine has.
const MOST_DEVICES: u32 = 1024;

/// A place and the number of a device.
pub(super) type Where = (String, Option<u32>);

/// See the module.
#[derive(Default)]
pub(super) struct Books {
    arenas: BTreeMap<u32, ArenaTold>,
    pub(super) sums: BTreeMap<Where, Sum>,
    /// By arena and address.
    pub(super) blocks: HashMap<(u32, u64), Held>,
    pub(super) segments: HashMap<(u32, u64), u64>,
    pub(super) entries: u64,
    pub(super) first_us: Option<u64>,
    pub(super) last_us: u64,
    pub(super) threads: u32,
    pub(super) stacks: u64,
    pub(super) gaps: u64,
    /// Where the arena of the entry before counts.
    recent: Option<(u32, Where)>,
}

impl Books {
    /// Enters what happened.
    pub(super) fn enter(&mut self, entry: &Entry) {
        self.entries += 1;
        self.first_us.get_or_insert(entry.time_us);
        self.last_us = entry.time_us;
        self.threads = self.threads.max(entry.thread);
        let arena = entry.arena.unwrap_or(u32::MAX);
        match &entry.found {
            Found::Event { event, told } => self.event(arena, event, *told),
            Found::Mark(mark) => self.mark(arena, mark),
        }
    }

    fn mark(&mut self, arena: u32, mark: &Mark) {
        match mark {
            Mark::Arena { arena, text } => {
                let told = serde_json::from_str(text).unwrap_or_default();
                self.arenas.insert(*arena, told);
                self.recent = None;
            }
            Mark::Stack { .. } => self.stacks += 1,
            Mark::Gap(lost) => self.gaps = self.gaps.saturating_add(*lost),
            Mark::Oom { .. } => self.sum(arena).ooms += 1,
            Mark::Ended => {
                let gone = self.blocks.extract_if(|(of, _), _| *of == arena);
                let gone: Vec<Held> = gone.map(|(_, held)| held).collect();
                let segments = self.segments.extract_if(|(of, _), _| *of == arena);
                let reserved: u64 = segments.map(|(_, size)| size).fold(0, u64::saturating_add);
                let sum = self.sum(arena);
                sum.reserved = sum.reserved.saturating_sub(reserved);
                gone.iter().for_each(|held| sum.lower(held));
            }
            _ => {}
        }
    }

    fn event(&mut self, arena: u32, event: &Event, told: Option<bool>) {
        let size = event.size.get();
        match event.action {
            Action::Alloc(address) => {
                let held = Held {
                    size,
                    stack: event.stack,
                    waits: told == Some(true),
                };
                let before = self.blocks.insert((arena, address.get()), held);
                let (time_us, entries) = (event.time_us, self.entries);
                let sum = self.sum(arena);
                before.iter().for_each(|before| sum.lower(before));
                sum.allocations += u64::from(told.is_none());
                sum.raise(&held);
                if sum.live > sum.peak {
                    (sum.peak, sum.peak_blocks) = (sum.live, sum.blocks);
                    (sum.peak_us, sum.peak_entry) = (time_us, entries);
                }
            }
            Action::FreeRequested(address) => {
                let mut change = None;
                if let Some(held) = self.blocks.get_mut(&(arena, address.get())) {
                    let was = *held;
                    held.waits = true;
                    change = Some((was, *held));
                }
                let sum = self.sum(arena);
                sum.frees += 1;
                if let Some((was, held)) = &change {
                    sum.lower(was);
                    sum.raise(held);
                }
            }
            Action::FreeCompleted(address) => {
                let key = (arena, address.get());
                // One that is live is another that was lost in between.
                if self.blocks.get(&key).is_some_and(|held| held.waits) {
                    let gone = self.blocks.remove(&key);
                    gone.iter().for_each(|gone| self.sum(arena).lower(gone));
                }
            }
            Action::SegmentAlloc(address) => {
                let before = self.segments.insert((arena, address.get()), size);
                let sum = self.sum(arena);
                sum.reserved = sum.reserved.saturating_sub(before.unwrap_or(0));
                sum.reserved = sum.reserved.saturating_add(size);
                sum.reserved_peak = sum.reserved_peak.max(sum.reserved);
            }
            Action::SegmentFree(address) => {
                let gone = self.segments.remove(&(arena, address.get()));
                let sum = self.sum(arena);
                sum.reserved = sum.reserved.saturating_sub(gone.unwrap_or(0));
            }
            Action::Oom { .. } => {}
        }
    }

    fn sum(&mut self, arena: u32) -> &mut Sum {
        let at = match self.recent.take() {
            Some((of, at)) if of == arena => at,
            _ => self.place(arena),
        };
        self.recent = Some((arena, at.clone()));
        let name = self
            .arenas
            .get(&arena)
            .and_then(|told| told.device_name.as_ref());
        self.sums.entry(at).or_insert_with(|| Sum {
            name: name.cloned(),
            ..Sum::default()
        })
    }

    /// What devices hold together.
    pub(super) fn live_on_devices(&self) -> u64 {
        let sums = self.sums.iter().filter(|((place, _), _)| place == DEVICE);
        sums.fold(0, |all, (_, sum)| all.saturating_add(sum.live))
    }

    /// The device of an arena, if it is one's and its number can be one.
    pub(super) fn device(&self, arena: u32) -> Option<u32> {
        let told = self
            .arenas
            .get(&arena)
            .filter(|told| told.place == DEVICE)?;
        told.device.filter(|&device| device < MOST_DEVICES)
    }

    /// Where an arena is.
    pub(super) fn place(&self, arena: u32) -> Where {
        match self.arenas.get(&arena) {
            Some(told) => (told.place.clone(), told.device),
            None => (String::new(), None),
        }
    }
}

impl Sum {
    /// A block is held.
    fn raise(&mut self, held: &Held) {
        if held.waits {
            self.limbo = self.limbo.saturating_add(held.size);
        } else {
            self.blocks += 1;
            self.live = self.live.saturating_add(held.size);
        }
    }

    /// A block is held no more.
    fn lower(&mut self, held: &Held) {
        if held.waits {
            self.limbo = self.limbo.saturating_sub(held.size);
        } else {
            self.blocks = self.blocks.saturating_sub(1);
            self.live = self.live.saturating_sub(held.size);
        }
    }
}
