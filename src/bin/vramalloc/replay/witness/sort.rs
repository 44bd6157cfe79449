//! Which answer of the driver is for which call: what a recording says, sorted before it
//! is replayed. Cost: one pass.

use std::collections::{BTreeMap, BTreeSet};

use vramalloc_core::address::Bytes;
use vramalloc_core::driver::PAGE;

use super::super::tape::{Item, Tape, What};
use super::answers::{Answers, EpochEnd, Lane, Lanes, is_taken_for};

/// The answers that each arena's driver gave.
pub(super) fn answers(tape: &Tape) -> Vec<Answers> {
    let mut sorting = Sorting {
        taken: BTreeMap::new(),
        pages: BTreeMap::new(),
        failed: BTreeMap::new(),
    };
    let mut all: Vec<Answers> = tape.arenas.iter().map(|_| Answers::default()).collect();
    let mut epochs: Vec<Epochs> = tape.arenas.iter().map(|_| Epochs::default()).collect();
    let mut before = None;
    for (at, item) in tape.items.iter().enumerate() {
        let place = item.arena as usize;
        let after = before.replace(item.what);
        let arena = tape.arenas.get(place);
        let (Some(arena), Some(answers), Some(epochs)) =
            (arena, all.get_mut(place), epochs.get_mut(place))
        else {
            continue;
        };
        if sorting.counts(item, arena.device) && !answers.keeps_page {
            answers.keeps_page = true;
            *sorting.pages.entry(arena.device).or_default() += 1;
        }
        if sorting.is_past(item) || epochs.takes(at, item, answers) {
            continue;
        }
        let is_created = matches!(after, Some(What::Created(_)));
        if let Some(lane) = lane(answers.of(item.thread), item.what, is_created) {
            lane.push(at, item.what);
        }
    }
    all
}

/// For each item of the program the next one of its thread in its arena.
pub(super) fn ends(items: &[Item]) -> Vec<u32> {
    let mut next = BTreeMap::new();
    let number = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
    let last = number(items.len());
    let mut ends = vec![last; items.len()];
    for (at, (item, end)) in items.iter().zip(&mut ends).enumerate().rev() {
        if item.what.is_of_program() {
            *end = next
                .insert((item.arena, item.thread), number(at))
                .unwrap_or(last);
        }
    }
    ends
}

/// What is known in the midst of it.
struct Sorting {
    /// What was taken of each device, as far as events say.
    taken: BTreeMap<u32, u64>,
    /// How many pages contexts keep of each device, of which no event tells.
    pages: BTreeMap<u32, u64>,
    /// Threads whose request in an arena has just failed, with its size.
    failed: BTreeMap<(u32, u32), u64>,
}

impl Sorting {
    /// Counts what is taken; whether there is a page more that no event tells of.
    fn counts(&mut self, item: &Item, device: u32) -> bool {
        let pages = self.pages.get(&device).map_or(1, |pages| pages + 1);
        let taken = self.taken.entry(device).or_default();
        match item.what {
            What::Taken { size, .. } | What::Mapped { size, .. } => *taken += size,
            What::GivenBack { size, .. } | What::Unmapped { size, .. } => {
                *taken = taken.saturating_sub(size);
            }
            What::Memory { reserved, .. } => {
                return *taken > 0 && reserved >= *taken + pages * PAGE.get();
            }
            _ => {}
        }
        false
    }

    /// Whether the driver was asked past the arena. After a request has failed it is
    /// asked once more, for the answer that the program gets; so it is at once for what
    /// cannot be rounded to pages.
    fn is_past(&mut self, item: &Item) -> bool {
        let thread = (item.arena, item.thread);
        match item.what {
            What::Oom { size } => _ = self.failed.insert(thread, size),
            What::Refused { size, .. } => {
                let failed = self.failed.remove(&thread);
                return Bytes::new(size).round_up(PAGE).is_none()
                    || failed.is_some_and(|failed| is_taken_for(size, Bytes::new(failed)));
            }
            what if what.is_of_program() => _ = self.failed.remove(&thread),
            _ => {}
        }
        false
    }
}

/// The epochs of an arena.
#[derive(Default)]
struct Epochs {
    /// Those that have a fence and were not reached so far.
    fenced: BTreeSet<u64>,
    /// The first that was not reached so far.
    next: u64,
}

impl Epochs {
    /// Takes what an item says of epochs; false where it says nothing of them.
    fn takes(&mut self, at: usize, item: &Item, answers: &mut Answers) -> bool {
        match item.what {
            What::Seen(seen) => answers.of(item.thread).seen = Some(seen),
            What::Fence(number) => {
                self.fenced.insert(number);
                answers.push_fence(item.thread, at, item.what);
            }
            What::Reached(number) => {
                let how = answers.of(item.thread).seen.take();
                // Of two threads that wait for it, the second tells of it once more.
                if number >= self.next {
                    self.next = number + 1;
                    answers.reached.push(EpochEnd {
                        number,
                        at,
                        thread: item.thread,
                        how,
                    });
                    if !self.fenced.contains(&number) {
                        answers.push_fence(item.thread, at, item.what);
                    }
                    self.fenced = self.fenced.split_off(&(number + 1));
                }
            }
            _ => return false,
        }
        true
    }
}

/// Where an answer belongs. `is_created`: it follows on units that were created.
fn lane(lanes: &mut Lanes, what: What, is_created: bool) -> Option<&mut Lane> {
    Some(match what {
        What::Refused { .. } if is_created => &mut lanes.created,
        What::Taken { .. } | What::Refused { .. } => &mut lanes.taken,
        What::Created(_) => &mut lanes.created,
        What::GivenBack { .. } => &mut lanes.given_back,
        What::Mapped { .. } => &mut lanes.mapped,
        What::Unmapped { .. } => &mut lanes.unmapped,
        What::Memory { .. } => &mut lanes.memory,
        What::Mapping { .. } => &mut lanes.mapping,
        What::Reserved { .. } => &mut lanes.reserved,
        What::Quiet(_) => &mut lanes.quiet,
        _ => return None,
    })
}
