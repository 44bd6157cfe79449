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
        let before = self.segments.len() + self.events.len();
        self.segments.sort_by_key(|segment| segment.address);
        let mut end = 0;
        self.segments.retain(|segment| {
            let apart = segment.address.get() >= end;
            end = if apart { segment.end() } else { end };
            apart
        });
        self.events.sort_by_key(|&(time, _)| time);
        let mut memory = Memory::new(&self.segments);
        let mut kept: Vec<bool> = (self.events.iter().rev())
            .map(|(_, event)| memory.undo(event))
            .collect();
        self.events.retain(|_| kept.pop().unwrap_or(false));
        before - self.segments.len() - self.events.len()
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
        blocks.chain([event(Action::SegmentFree, segment.address, segment.size)])
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
    blocks: BTreeMap<u64, Active>,
}

impl Memory {
    fn new(segments: &[Segment]) -> Memory {
        let active = segments.iter().flat_map(|segment| &segment.blocks);
        Memory {
            segments: (segments.iter())
                .map(|segment| (segment.address.get(), segment.end()))
                .collect(),
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
                let segment = self.segments.range(..=start).next_back();
                let inside = segment.is_some_and(|(_, &bound)| end <= bound);
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
                let last = self.segments.range(..end).next_back();
                let apart = last.is_none_or(|(_, &bound)| bound <= start);
                if apart {
                    self.segments.insert(start, end);
                }
                apart
            }
        }
    }

    /// A block that is not free and overlaps these addresses.
    fn block_in(&self, start: u64, end: u64) -> Option<&Active> {
        let (_, block) = self.blocks.range(..end).next_back()?;
        (block.end > start).then_some(block)
    }
}
