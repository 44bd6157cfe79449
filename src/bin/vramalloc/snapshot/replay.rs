//! The events of a device in one sequence, as far as they can be undone.
//!
//! `PyTorch`'s viewer begins with the final segments and undoes event after
//! event, from the newest back; an event that does not fit makes it fail. The
//! events of one arena fit by themselves, however many older ones were lost.
//! But several arenas on one device are merged by the times of their events,
//! which may be equal, and a file may have been edited. So everything is undone
//! here first, and what does not fit is left out. If a context ended before
//! another began, events are added that free its memory. Cost: a search in a
//! tree for each event.

use std::collections::BTreeMap;

use super::read::{Action, ArenaSnapshot, Event, Exact, Segment, Snapshot, State};

/// The devices of a process, by number.
pub(super) struct Replayed {
    pub(super) devices: Vec<Device>,
    left_out: usize,
}

/// What is shown of a device.
#[derive(Default)]
pub(super) struct Device {
    /// By address.
    pub(super) segments: Vec<Segment>,
    /// The oldest first, each with the time by which it is ordered.
    pub(super) events: Vec<(u64, Event)>,
}

impl Replayed {
    pub(super) fn new(snapshot: &Snapshot) -> Replayed {
        let last = snapshot.arenas.iter().map(|arena| arena.device).max();
        let mut replayed = Replayed {
            devices: (0..=last.unwrap_or(0)).map(|_| Device::default()).collect(),
            left_out: 0,
        };
        for arena in &snapshot.arenas {
            let number = usize::try_from(arena.device).unwrap_or(usize::MAX);
            if let Some(device) = replayed.devices.get_mut(number) {
                // An arena's own order counts, even if its clock stood still.
                let mut latest = 0;
                device.events.extend(arena.events.iter().map(|&event| {
                    latest = event.time_us.get().max(latest);
                    (latest, event)
                }));
                match arena.ended_us.filter(|&end| snapshot.goes_on(arena, end)) {
                    Some(end) if !arena.events.is_empty() => {
                        let end = latest.max(end.get());
                        device.events.extend(ends(arena).map(|event| (end, event)));
                    }
                    Some(_) => {}
                    None => device.segments.extend_from_slice(&arena.segments),
                }
            }
        }
        replayed.left_out = replayed.devices.iter_mut().map(Device::order).sum();
        replayed
    }

    /// The summary line.
    pub(super) fn summary(&self) -> String {
        let segments: usize = self.devices.iter().map(|d| d.segments.len()).sum();
        let events: usize = self.devices.iter().map(|d| d.events.len()).sum();
        let left_out = match self.left_out {
            0 => String::new(),
            n => format!(", {n} more left out because they contradict the rest"),
        };
        format!("{segments} segments, {events} events{left_out}")
    }
}

impl Device {
    /// Sorts segments and events and leaves out those that do not fit. Returns
    /// how many were left out.
    fn order(&mut self) -> usize {
        let before = self.events.len();
        self.segments.sort_by_key(|segment| segment.address);
        let (mut end, mut left_out) = (0, 0);
        let segments = std::mem::take(&mut self.segments);
        for mut segment in segments {
            if segment.address.get() < end {
                left_out += 1;
                continue;
            }
            let is_next = segment.address.get() == end;
            end = segment.end();
            match self.segments.last_mut() {
                // To the viewer what is mapped side by side is one.
                Some(last) if is_next && last.mapped && segment.mapped => {
                    last.blocks.append(&mut segment.blocks);
                    last.size = last.size.and(segment.size);
                }
                _ => self.segments.push(segment),
            }
        }
        self.events.sort_by_key(|&(time, _)| time);
        let mut memory = Memory::new(&self.segments);
        let mut kept: Vec<bool> = (self.events.iter().rev())
            .map(|(_, event)| memory.undo(event))
            .collect();
        self.events.retain(|_| kept.pop().unwrap_or(false));
        left_out + before - self.events.len()
    }
}

impl Snapshot {
    /// Whether the device had another arena after the end of this one.
    fn goes_on(&self, arena: &ArenaSnapshot, end: Exact) -> bool {
        let mut others = self.arenas.iter();
        others.any(|other| other.device == arena.device && other.made_us >= end)
    }
}

/// The end of a context as events that free everything it held.
fn ends(arena: &ArenaSnapshot) -> impl Iterator<Item = Event> + '_ {
    let event = move |action, address, size| Event {
        action,
        address,
        device_free: Exact::default(),
        size,
        time_us: Exact::default(),
        stack: None,
    };
    arena.segments.iter().flat_map(move |segment| {
        let blocks = segment.blocks.iter().flat_map(move |block| {
            let end = |action| event(action, block.address, block.requested);
            let requested =
                (block.state == State::ActiveAllocated).then(|| end(Action::FreeRequested));
            let completed = (block.state != State::Inactive).then(|| end(Action::FreeCompleted));
            requested.into_iter().chain(completed)
        });
        let end = match segment.mapped {
            true => Action::SegmentUnmap,
            false => Action::SegmentFree,
        };
        blocks.chain([event(end, segment.address, segment.size)])
    })
}

/// A block that is not free.
struct Active {
    end: u64,
    pending: bool,
}

/// The memory of a device at a moment, going back in time.
struct Memory {
    /// The segments' ends, by their starts.
    segments: BTreeMap<u64, u64>,
    /// The same of what is mapped; what lies side by side is one.
    mapped: BTreeMap<u64, u64>,
    blocks: BTreeMap<u64, Active>,
}

impl Memory {
    fn new(segments: &[Segment]) -> Memory {
        let active = segments.iter().flat_map(|segment| &segment.blocks);
        let ends = |is_mapped| {
            let segments = (segments.iter()).filter(move |segment| segment.mapped == is_mapped);
            segments
                .map(|segment| (segment.address.get(), segment.end()))
                .collect()
        };
        Memory {
            segments: ends(false),
            mapped: ends(true),
            blocks: active
                .filter(|block| block.state != State::Inactive)
                .map(|block| {
                    let start = block.address.get();
                    let pending = block.state == State::ActivePendingFree;
                    let end = start + block.size.get();
                    (start, Active { end, pending })
                })
                .collect(),
        }
    }

    /// Undoes an event. Returns false, and changes nothing, if it cannot have
    /// been the last event.
    fn undo(&mut self, event: &Event) -> bool {
        let start = event.address.get();
        let end = start + event.size.get();
        match event.action {
            Action::Oom => true,
            _ if start == end => false,
            Action::Alloc => {
                let live = self.blocks.get(&start).is_some_and(|block| !block.pending);
                live && self.blocks.remove(&start).is_some()
            }
            Action::FreeRequested => match self.blocks.get_mut(&start) {
                Some(block) if block.pending => {
                    block.pending = false;
                    true
                }
                _ => false,
            },
            Action::FreeCompleted => {
                let in_one = |segments: &BTreeMap<u64, u64>| {
                    let segment = segments.range(..=start).next_back();
                    segment.is_some_and(|(_, &bound)| end <= bound)
                };
                let inside = in_one(&self.segments) || in_one(&self.mapped);
                let fits = inside && self.block_in(start, end).is_none();
                if fits {
                    self.blocks.insert(start, Active { end, pending: true });
                }
                fits
            }
            Action::SegmentAlloc => {
                let idle =
                    self.segments.get(&start) == Some(&end) && self.block_in(start, end).is_none();
                idle && self.segments.remove(&start).is_some()
            }
            Action::SegmentFree => {
                let apart = self.is_apart(start, end);
                if apart {
                    self.segments.insert(start, end);
                }
                apart
            }
            Action::SegmentMap => {
                let around = self.mapped.range(..=start).next_back();
                let around = around.map(|(&from, &to)| (from, to));
                let Some((from, to)) = around.filter(|&(_, to)| end <= to) else {
                    return false;
                };
                if self.block_in(start, end).is_some() {
                    return false;
                }
                self.mapped.remove(&from);
                for (from, to) in [(from, start), (end, to)] {
                    if from < to {
                        self.mapped.insert(from, to);
                    }
                }
                true
            }
            Action::SegmentUnmap => {
                let apart = self.is_apart(start, end);
                if apart {
                    let end = self.mapped.remove(&end).unwrap_or(end);
                    let before = self.mapped.range_mut(..start).next_back();
                    match before.filter(|(_, bound)| **bound == start) {
                        Some((_, bound)) => *bound = end,
                        None => drop(self.mapped.insert(start, end)),
                    }
                }
                apart
            }
        }
    }

    /// Whether no segment touches these addresses.
    fn is_apart(&self, start: u64, end: u64) -> bool {
        let is_apart = |segments: &BTreeMap<u64, u64>| {
            let last = segments.range(..end).next_back();
            last.is_none_or(|(_, &bound)| bound <= start)
        };
        is_apart(&self.segments) && is_apart(&self.mapped)
    }

    /// A block that is not free and overlaps these addresses.
    fn block_in(&self, start: u64, end: u64) -> Option<&Active> {
        let (_, block) = self.blocks.range(..end).next_back()?;
        (block.end > start).then_some(block)
    }
}
