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
pub(super) struct ArenaTold {
    #[serde(default)]
    pub(super) place: String,
    pub(super) device: Option<u32>,
    pub(super) device_name: Option<String>,
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

    /// What an arena is.
    pub(super) fn arena(&self, number: u32) -> Option<&ArenaTold> {
        self.arenas.get(&number)
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
                if !held.waits {
                    sum.blocks += 1;
                    sum.live = sum.live.saturating_add(size);
                }
                if sum.live > sum.peak {
                    (sum.peak, sum.peak_blocks) = (sum.live, sum.blocks);
                    (sum.peak_us, sum.peak_entry) = (time_us, entries);
                }
            }
            Action::FreeRequested(address) => {
                let mut was = None;
                if let Some(held) = self.blocks.get_mut(&(arena, address.get())) {
                    was = Some(*held);
                    held.waits = true;
                }
                let sum = self.sum(arena);
                sum.frees += 1;
                was.iter().for_each(|was| sum.lower(was));
            }
            Action::FreeCompleted(address) => {
                let key = (arena, address.get());
                // One that is live is another that was lost in between.
                if self.blocks.get(&key).is_some_and(|held| held.waits) {
                    self.blocks.remove(&key);
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

    /// Where an arena is.
    pub(super) fn place(&self, arena: u32) -> Where {
        match self.arenas.get(&arena) {
            Some(told) => (told.place.clone(), told.device),
            None => (String::new(), None),
        }
    }
}

impl Sum {
    /// A block is held no more.
    fn lower(&mut self, held: &Held) {
        if !held.waits {
            self.blocks = self.blocks.saturating_sub(1);
            self.live = self.live.saturating_sub(held.size);
        }
    }
}
