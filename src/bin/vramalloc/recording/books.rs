//! What is held at each moment of a recording.
//!
//! Invariant: after each event, what is held is what the program held then, as far as
//! the recording tells. Where events are lost, it is exact once all was told anew: what
//! was not told then, and did not come since, is not there. What an arena did before the
//! recording told what it is counts where it is.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use vramalloc_core::recording::{Entry, Found, Mark};
use vramalloc_core::stats::{Action, Event, StackId};

/// An arena, as the recording tells of it.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct ArenaTold {
    #[serde(default)]
    place: String,
    device: Option<u32>,
    device_name: Option<String>,
    #[serde(rename = "device_total_bytes")]
    pub(super) total: Option<u64>,
    #[serde(rename = "limit_bytes")]
    pub(super) limit: Option<u64>,
}

/// A block that the program holds or has freed while the device may use it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Held {
    pub(super) size: u64,
    pub(super) stack: StackId,
    /// The program has freed it.
    pub(super) waits: bool,
    /// When it was told or came, in microseconds since 1970, and after how many entries.
    pub(super) time_us: u64,
    entry: u64,
}

impl Held {
    /// A block that was asked for and is not there.
    pub(super) fn asked(size: u64, stack: StackId) -> Held {
        Held {
            size,
            stack,
            waits: false,
            time_us: 0,
            entry: 0,
        }
    }
}

/// A segment.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct SegmentHeld {
    pub(super) size: u64,
    /// It is a part of a range: what is mapped at a time may be unmapped in parts, and
    /// with what was mapped beside it.
    pub(super) is_mapped: bool,
    entry: u64,
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
pub(crate) const DEVICE: &str = "device";

/// More devices than a machine has.
const MOST_DEVICES: u32 = 1024;

/// A place and the number of a device; of an arena that was not told of, no place and
/// its own number.
pub(super) type Where = (String, Option<u32>);

/// All that is held is being told, by one thread; another may do the same meanwhile.
struct Telling {
    thread: u32,
    /// After how many entries it began.
    began: u64,
}

/// See the module.
#[derive(Default)]
pub(super) struct Books {
    pub(super) arenas: BTreeMap<u32, ArenaTold>,
    pub(super) sums: BTreeMap<Where, Sum>,
    /// By arena and address.
    pub(super) blocks: HashMap<(u32, u64), Held>,
    pub(super) segments: BTreeMap<(u32, u64), SegmentHeld>,
    telling: Option<Telling>,
    /// All that is held was told anew, from the first to the last of it.
    pub(super) is_told: bool,
    pub(super) entries: u64,
    pub(super) first_us: Option<u64>,
    pub(super) last_us: u64,
    pub(super) threads: u32,
    pub(super) stacks: u64,
    /// Where the arena of the entry before counts.
    recent: Option<(u32, Where)>,
}

impl Books {
    /// Empty ones, which know of each arena what it is.
    pub(super) fn knowing(arenas: BTreeMap<u32, ArenaTold>) -> Books {
        Books {
            arenas,
            ..Books::default()
        }
    }

    /// Enters what happened.
    pub(super) fn enter(&mut self, entry: &Entry) {
        self.entries += 1;
        self.first_us.get_or_insert(entry.time_us);
        self.last_us = entry.time_us;
        self.threads = self.threads.max(entry.thread);
        let arena = entry.arena.unwrap_or(u32::MAX);
        match &entry.found {
            Found::Event { event, told } => self.event(arena, event, *told),
            Found::Mark(mark) => self.mark(entry.thread, arena, mark),
        }
    }

    fn mark(&mut self, thread: u32, arena: u32, mark: &Mark) {
        match mark {
            Mark::Arena { arena, text } => {
                let told = serde_json::from_str(text).unwrap_or_default();
                let before = self.place(*arena);
                let is_new = self.arenas.insert(*arena, told).is_none();
                self.recent = None;
                if is_new && let Some(counted) = self.sums.remove(&before) {
                    self.sum(*arena).join(&counted);
                }
            }
            Mark::Stack { .. } => self.stacks += 1,
            // What was lost may have been told; all is told once more after it.
            Mark::Gap(_) => self.telling = None,
            Mark::Telling { begins } => self.tells(thread, *begins),
            Mark::Oom { .. } => self.sum(arena).ooms += 1,
            Mark::Ended => {
                self.lose(|of, _| of == arena);
            }
            _ => {}
        }
    }

    /// All that is held is told from here on, or was told up to here.
    fn tells(&mut self, thread: u32, begins: bool) {
        let began = self.entries;
        if begins {
            self.telling.get_or_insert(Telling { thread, began });
        } else if let Some(telling) = self.telling.take_if(|telling| telling.thread == thread) {
            self.lose(|_, entry| entry < telling.began);
            self.is_told = true;
        }
    }

    /// The blocks and segments of these arenas, told or made after so many entries, are
    /// not there any more.
    fn lose(&mut self, is_lost: impl Fn(u32, u64) -> bool) {
        let gone = self
            .blocks
            .extract_if(|(arena, _), held| is_lost(*arena, held.entry));
        let gone: Vec<(u32, Held)> = gone.map(|((arena, _), held)| (arena, held)).collect();
        for (arena, held) in gone {
            self.sum(arena).lower(&held);
        }
        let mut gone = Vec::new();
        self.segments.retain(|(arena, _), taken| {
            let is_lost = is_lost(*arena, taken.entry);
            gone.extend(is_lost.then_some((*arena, taken.size)));
            !is_lost
        });
        for (arena, size) in gone {
            self.lower_reserved(arena, size);
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
                    time_us: event.time_us,
                    entry: self.entries,
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
            Action::SegmentAlloc(address) => self.take(arena, address.get(), size, false),
            Action::SegmentMap(address) => self.take(arena, address.get(), size, true),
            Action::SegmentFree(address) => {
                let gone = self.segments.remove(&(arena, address.get()));
                self.lower_reserved(arena, gone.map_or(0, |taken| taken.size));
            }
            Action::SegmentUnmap(address) => self.unmap(arena, address.get(), size),
            Action::Oom { .. } => {}
        }
    }

    /// A segment is held from now on.
    fn take(&mut self, arena: u32, address: u64, size: u64, is_mapped: bool) {
        if is_mapped {
            // What was told of before is told of again.
            self.unmap(arena, address, size);
        }
        let taken = SegmentHeld {
            size,
            is_mapped,
            entry: self.entries,
        };
        let before = self.segments.insert((arena, address), taken);
        self.lower_reserved(arena, before.map_or(0, |taken| taken.size));
        let sum = self.sum(arena);
        sum.reserved = sum.reserved.saturating_add(size);
        sum.reserved_peak = sum.reserved_peak.max(sum.reserved);
    }

    /// What is mapped at these addresses is not any more; what is beside it stays.
    fn unmap(&mut self, arena: u32, address: u64, size: u64) {
        let end = address.saturating_add(size);
        let before = self.segments.range((arena, 0)..(arena, end)).rev();
        let reaches = |at: u64, held: &SegmentHeld| at.saturating_add(held.size) > address;
        let touched: Vec<(u64, SegmentHeld)> = before
            .take_while(|((_, at), held)| reaches(*at, held))
            .filter(|(_, held)| held.is_mapped)
            .map(|((_, at), held)| (*at, *held))
            .collect();
        for (at, held) in touched {
            self.segments.remove(&(arena, at));
            let held_end = at.saturating_add(held.size);
            for (from, to) in [(at, address.max(at)), (end.min(held_end), held_end)] {
                if from < to {
                    let size = to - from;
                    self.segments
                        .insert((arena, from), SegmentHeld { size, ..held });
                }
            }
            self.lower_reserved(arena, end.min(held_end) - address.max(at));
        }
    }

    fn lower_reserved(&mut self, arena: u32, bytes: u64) {
        let sum = self.sum(arena);
        sum.reserved = sum.reserved.saturating_sub(bytes);
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

    /// What was most so far was not: it may have been counted with what was lost.
    pub(super) fn forget_peaks(&mut self) {
        for sum in self.sums.values_mut() {
            (sum.peak, sum.peak_blocks) = (sum.live, sum.blocks);
            (sum.peak_us, sum.peak_entry) = (self.last_us, self.entries);
            sum.reserved_peak = sum.reserved;
        }
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
            None => (String::new(), Some(arena)),
        }
    }
}

impl Sum {
    /// With what was counted elsewhere so far.
    fn join(&mut self, other: &Sum) {
        let join = |one: &mut u64, other: u64| *one = one.saturating_add(other);
        join(&mut self.live, other.live);
        join(&mut self.blocks, other.blocks);
        join(&mut self.limbo, other.limbo);
        join(&mut self.reserved, other.reserved);
        join(&mut self.allocations, other.allocations);
        join(&mut self.frees, other.frees);
        join(&mut self.ooms, other.ooms);
        if other.peak > self.peak {
            (self.peak, self.peak_blocks) = (other.peak, other.peak_blocks);
            (self.peak_us, self.peak_entry) = (other.peak_us, other.peak_entry);
        }
        if self.live > self.peak {
            (self.peak, self.peak_blocks) = (self.live, self.blocks);
        }
        self.reserved_peak = self
            .reserved_peak
            .max(other.reserved_peak)
            .max(self.reserved);
    }

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
