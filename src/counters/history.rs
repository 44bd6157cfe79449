//! The events of an arena, and where its blocks were asked for.
//!
//! Owns a ring of the newest events, whose memory is taken once when the arena is
//! made, and passes each event on to the process's recording, if there is one: nothing
//! is allocated under the arena's lock on its account. Invariant: the events are those
//! of the heap, in the order in which it changed, so that the ring and the blocks of
//! one moment belong together. Cost: without the options one comparison an event; with
//! them a reading of the clock, 40 bytes in the ring until the arena's context ends,
//! and what the recording takes.

use crate::address::Bytes;
use crate::heap::block::BlockId;
use crate::heap::table::Table;
use crate::recording::{EventClock, Mark, Recording};
use crate::stats::{Action, Event, StackId};

/// Says that programs come here with an option only. What is called there is compiled
/// for speed all the same.
#[cold]
fn seldom() {}

/// See the module.
pub(crate) struct History {
    clock: EventClock,
    made_us: u64,
    /// The time of the newest event.
    latest_us: u64,
    /// Whether events are noted at all.
    notes: bool,
    /// The process's recording, and the arena's number in it.
    recording: Option<(&'static Recording, u32)>,
    ring: Vec<Event>,
    capacity: usize,
    /// Where the oldest event stands, once the ring is full.
    oldest: usize,
    lost: u64,
    /// By the number of the block; as long as there was a block with one.
    stacks: Table<StackId>,
}

impl History {
    /// Keeps the newest `events` events, none where the host has no memory for
    /// them; all go to the recording, under this number of the arena.
    pub(crate) fn new(events: usize, recording: Option<(&'static Recording, u32)>) -> History {
        let mut ring = Vec::new();
        let capacity = ring.try_reserve_exact(events).map_or(0, |()| events);
        let clock = recording.map_or_else(EventClock::new, |(recording, _)| recording.clock());
        let now = clock.now_us();
        History {
            clock,
            made_us: now,
            latest_us: now,
            notes: capacity > 0 || recording.is_some(),
            recording,
            ring,
            capacity,
            oldest: 0,
            lost: 0,
            stacks: Table::new(StackId::NONE),
        }
    }

    /// Microseconds since 1970, by the clock of the events.
    pub(crate) fn now_us(&self) -> u64 {
        self.clock.now_us()
    }

    /// When the arena was made.
    pub(crate) fn made_us(&self) -> u64 {
        self.made_us
    }

    /// Nothing more happens: what was kept is no longer needed.
    pub(crate) fn end(&mut self) {
        self.mark(|| Mark::Ended);
        (self.ring, self.capacity, self.oldest) = (Vec::new(), 0, 0);
        (self.recording, self.notes) = (None, false);
        self.stacks = Table::new(StackId::NONE);
    }

    /// How many events are there to be read.
    pub(crate) fn len(&self) -> usize {
        self.ring.len()
    }

    /// How many events are kept.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Something happened.
    #[inline(always)]
    pub(crate) fn note(&mut self, action: Action, size: Bytes, stack: StackId) {
        if self.notes {
            seldom();
            self.keep(action, size, stack);
        }
    }

    /// Something happened that only a recording tells of.
    #[inline(always)]
    pub(crate) fn mark(&mut self, mark: impl FnOnce() -> Mark) {
        if self.notes {
            seldom();
            self.keep_mark(&mark());
        }
    }

    #[inline(never)]
    fn keep_mark(&mut self, mark: &Mark) {
        self.latest_us = self.clock.now_us();
        if let Some((recording, arena)) = self.recording {
            recording.mark_at(Some(arena), self.latest_us, mark);
        }
    }

    /// A block or a segment that is there already, for the recording alone; `waits`:
    /// the program has freed the block.
    pub(crate) fn tell(&self, action: Action, size: Bytes, stack: StackId, waits: bool) {
        if let Some((recording, arena)) = self.recording {
            let event = Event {
                action,
                size,
                time_us: self.clock.now_us(),
                stack,
            };
            recording.told(arena, &event, waits);
        }
    }

    // Not cold: a recording has each event come here.
    #[inline(never)]
    fn keep(&mut self, action: Action, size: Bytes, stack: StackId) {
        // The device was done with a block when its fence was asked for, which was
        // just now.
        if !matches!(action, Action::FreeCompleted(_)) {
            self.latest_us = self.clock.now_us();
        }
        let event = Event {
            action,
            size,
            time_us: self.latest_us,
            stack,
        };
        match (self.recording, action) {
            (None, _) => {}
            (Some((recording, arena)), Action::Oom { device_free }) => {
                let mark = Mark::Oom {
                    size,
                    device_free,
                    stack,
                };
                recording.mark_at(Some(arena), event.time_us, &mark);
            }
            (Some((recording, arena)), _) => recording.event(arena, &event),
        }
        if self.capacity > 0 {
            self.keep_newest(event);
        }
    }

    fn keep_newest(&mut self, event: Event) {
        if self.ring.len() < self.capacity {
            return self.ring.push(event);
        }
        if let Some(place) = self.ring.get_mut(self.oldest) {
            *place = event;
        }
        self.oldest += 1;
        if self.oldest == self.capacity {
            self.oldest = 0;
        }
        self.lost += 1;
    }

    /// Appends the events to `events`, the oldest first, and returns how many
    /// there were before them.
    pub(crate) fn read(&self, events: &mut Vec<Event>) -> u64 {
        let (newer, older) = self.ring.split_at(self.oldest);
        events.extend_from_slice(older);
        events.extend_from_slice(newer);
        self.lost
    }

    /// Notes where a block was asked for.
    #[inline(always)]
    pub(crate) fn remember(&mut self, block: BlockId, stack: StackId) {
        if let Some(place) = self.stacks.get_mut(block.0) {
            *place = stack;
        } else if stack != StackId::NONE {
            *self.stacks.make(block.0) = stack;
        }
    }

    /// Where a block that is not free was asked for.
    pub(crate) fn stack_of(&self, block: BlockId) -> StackId {
        self.stacks.get(block.0).copied().unwrap_or(StackId::NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Address;

    fn note(history: &mut History, number: u64) {
        let action = Action::Alloc(Address::new(number));
        history.note(action, Bytes::new(number), StackId::NONE);
    }

    fn kept(history: &History) -> (u64, Vec<u64>) {
        let mut events = Vec::new();
        let lost = history.read(&mut events);
        assert!(events.is_sorted_by_key(|event| event.time_us));
        (lost, events.iter().map(|event| event.size.get()).collect())
    }

    #[test]
    fn the_newest_are_kept_in_their_order() {
        let mut history = History::new(3, None);
        for (number, expected) in [
            (1, (0, vec![1])),
            (2, (0, vec![1, 2])),
            (3, (0, vec![1, 2, 3])),
            (4, (1, vec![2, 3, 4])),
            (5, (2, vec![3, 4, 5])),
            (6, (3, vec![4, 5, 6])),
            (7, (4, vec![5, 6, 7])),
        ] {
            note(&mut history, number);
            assert_eq!(kept(&history), expected);
        }
        assert_eq!(history.ring.capacity(), 3, "no memory was taken later");
    }

    #[test]
    fn without_the_option_nothing_is_kept() {
        let mut history = History::new(0, None);
        note(&mut history, 1);
        assert_eq!(kept(&history), (0, Vec::new()));
    }

    #[test]
    fn without_memory_for_it_nothing_is_kept() {
        let mut history = History::new(usize::MAX, None);
        assert_eq!(history.capacity(), 0);
        note(&mut history, 1);
        assert_eq!(kept(&history), (0, Vec::new()));
    }

    #[test]
    fn a_block_has_the_stack_of_its_last_request() {
        let mut history = History::new(0, None);
        history.remember(BlockId(7), StackId::NONE);
        assert!(
            history.stacks.get(7).is_none(),
            "nothing is kept without stacks"
        );
        history.remember(BlockId(2), StackId::new(5));
        assert_eq!(history.stack_of(BlockId(1)), StackId::NONE);
        assert_eq!(history.stack_of(BlockId(2)), StackId::new(5));
        assert_eq!(history.stack_of(BlockId(3)), StackId::NONE);
        history.remember(BlockId(2), StackId::NONE);
        assert_eq!(history.stack_of(BlockId(2)), StackId::NONE);
    }
}
