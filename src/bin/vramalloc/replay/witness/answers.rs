//! What a recording says that the driver of an arena answered.

use std::collections::BTreeMap;

use vramalloc_core::address::Bytes;
use vramalloc_core::driver::PAGE;
use vramalloc_core::error::Code;
use vramalloc_core::recording::FenceSeen;

use super::super::tape::What;

/// Who asks whether a fence is reached.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Asking {
    Needs,
    Frees,
    Waits,
}

/// Answers of one kind, each with its place on the tape, and how many were used.
#[derive(Default)]
pub(super) struct Lane {
    pub(super) answers: Vec<(usize, What)>,
    pub(super) used: usize,
}

impl Lane {
    pub(super) fn push(&mut self, at: usize, what: What) {
        self.answers.push((at, what));
    }

    pub(super) fn next(&self) -> Option<(usize, What)> {
        self.answers.get(self.used).copied()
    }

    pub(super) fn take(&mut self) -> Option<(usize, What)> {
        let next = self.next()?;
        self.used += 1;
        Some(next)
    }
}

/// The answers that an arena's driver gave to one thread.
#[derive(Default)]
pub(super) struct Lanes {
    pub(super) taken: Lane,
    pub(super) given_back: Lane,
    pub(super) created: Lane,
    pub(super) mapped: Lane,
    pub(super) unmapped: Lane,
    pub(super) memory: Lane,
    pub(super) mapping: Lane,
    pub(super) reserved: Lane,
    pub(super) quiet: Lane,
    /// The places of the fences that it made.
    pub(super) fenced: Lane,
    /// How the next epoch is seen to be reached.
    pub(super) seen: Option<FenceSeen>,
    /// How much of the answer in front is used: what is mapped and unmapped in one call
    /// may have been told in parts, and the other way round.
    of_mapped: u64,
    of_unmapped: u64,
    /// Units that are created before the refusal in front.
    pub(super) units_left: Option<u64>,
}

/// An epoch was seen to be reached, or ended without a fence.
#[derive(Copy, Clone)]
pub(super) struct EpochEnd {
    pub(super) number: u64,
    pub(super) at: usize,
    pub(super) thread: u32,
    pub(super) how: Option<FenceSeen>,
}

/// The answers that an arena's driver gave. Threads take turns with each other in a
/// call: what one is answered is no answer to another.
#[derive(Default)]
pub(super) struct Answers {
    threads: BTreeMap<u32, Lanes>,
    /// The fences of epochs, which have their numbers in the order in which they close,
    /// whoever closes them.
    pub(super) fences: Lane,
    /// Whether its context keeps a page that is in no chunk, from the first chunk on.
    pub(super) keeps_page: bool,
    /// The epochs that ended.
    pub(super) reached: Vec<EpochEnd>,
    pub(super) units: u64,
    pub(super) difference: Option<String>,
}

impl Lanes {
    /// Uses up what the recording says of memory that was mapped, or unmapped.
    ///
    /// # Errors
    /// Where the recording says something else.
    fn consume(&mut self, at: u64, size: u64, maps: bool) -> Result<(), String> {
        let (mut at, mut left) = (at, size);
        while left > 0 {
            let (lane, of) = if maps {
                (&mut self.mapped, &mut self.of_mapped)
            } else {
                (&mut self.unmapped, &mut self.of_unmapped)
            };
            let part = match lane.next() {
                Some((_, What::Mapped { address, size } | What::Unmapped { address, size }))
                    if address + *of == at =>
                {
                    (size - *of).min(left)
                }
                other => {
                    let word = if maps { "mapped" } else { "unmapped" };
                    let told = said(other.map(|(_, what)| what));
                    return Err(format!(
                        "{left} bytes at {at:#x} are {word}; recorded is {told}"
                    ));
                }
            };
            *of += part;
            if let Some((_, What::Mapped { size, .. } | What::Unmapped { size, .. })) = lane.next()
                && *of == size
            {
                lane.used += 1;
                *of = 0;
            }
            at += part;
            left -= part;
        }
        Ok(())
    }

    /// Whether it got an answer before this place that was not used so far.
    fn owes_before(&self, place: usize) -> bool {
        let lanes = [
            &self.taken,
            &self.given_back,
            &self.created,
            &self.mapped,
            &self.unmapped,
            &self.memory,
            &self.quiet,
            &self.fenced,
        ];
        lanes
            .iter()
            .any(|lane| lane.next().is_some_and(|(at, _)| at < place))
    }
}

impl Answers {
    /// Those to a thread.
    pub(super) fn of(&mut self, thread: u32) -> &mut Lanes {
        self.threads.entry(thread).or_default()
    }

    /// Those to all threads.
    pub(super) fn all(&self) -> impl Iterator<Item = &Lanes> {
        self.threads.values()
    }

    pub(super) fn differs(&mut self, what: impl FnOnce() -> String) {
        if self.difference.is_none() {
            self.difference = Some(what());
        }
    }

    /// What the process has of the device when a thread's driver is asked next, if it is
    /// asked for nothing before, in a call that ends before this place.
    pub(super) fn reserved_next(&mut self, thread: u32, ends: usize) -> Option<Bytes> {
        let lanes = self.of(thread);
        let taken = lanes.taken.next().map_or(ends, |(at, _)| at.min(ends));
        match lanes.memory.next() {
            Some((at, What::Memory { reserved, .. })) if at < taken => Some(Bytes::new(reserved)),
            _ => None,
        }
    }

    /// Uses up what the recording says of memory that a thread mapped, or unmapped.
    pub(super) fn consume(&mut self, thread: u32, at: u64, size: u64, maps: bool) {
        if let Err(what) = self.of(thread).consume(at, size, maps) {
            self.differs(|| what);
        }
    }

    /// An epoch got its fence by this thread: perhaps later than those after it.
    pub(super) fn push_fence(&mut self, thread: u32, at: usize, what: What) {
        self.of(thread).fenced.push(at, what);
        self.fences.push(at, what);
        let fences = &mut self.fences.answers;
        let mut place = fences.len() - 1;
        while place > 0 && number_of(fences[place - 1].1) > number_of(fences[place].1) {
            fences.swap(place - 1, place);
            place -= 1;
        }
    }

    /// The fence of the next epoch, if it was made before this place.
    pub(super) fn next_fence(&self, ends: usize) -> Option<(usize, What)> {
        self.fences.next().filter(|&(at, _)| at < ends)
    }

    /// Uses the fence of the next epoch up.
    pub(super) fn take_fence(&mut self) {
        if let Some((place, _)) = self.fences.take() {
            for lanes in self.threads.values_mut() {
                if lanes.fenced.next().is_some_and(|(at, _)| at == place) {
                    lanes.fenced.used += 1;
                }
            }
        }
    }

    /// Where an epoch ended without a fence, or by one that was asked for because memory was
    /// needed, in a call of a thread between these places.
    pub(super) fn without_fence(&self, thread: u32, begins: usize, ends: usize) -> Option<usize> {
        let first = self.reached.partition_point(|end| end.at < begins);
        let mut ended = (self.reached.iter().skip(first)).take_while(|end| end.at < ends);
        let found = ended.find(|end| end.thread == thread && end.how.is_none());
        found.map(|end| end.at)
    }

    /// Whether a thread's wait without a fence ends an epoch now, in a call between these
    /// places; one that was closed for that has no fence.
    pub(super) fn ends_without_fence(&mut self, thread: u32, begins: usize, ends: usize) -> bool {
        let Some(at) = self.without_fence(thread, begins, ends) else {
            return false;
        };
        if self.of(thread).owes_before(at) {
            return false;
        }
        if self.next_fence(ends).is_some_and(|(fence, _)| fence == at) {
            self.take_fence();
        }
        true
    }

    /// Whether the epoch's fence is seen to be reached now, in a call of a thread between
    /// these places: not before all that the call did until then is done again.
    pub(super) fn is_reached(
        &self,
        epoch: u64,
        thread: u32,
        (begins, ends): (usize, usize),
        how: Asking,
    ) -> bool {
        let first = self.reached.partition_point(|end| end.number < epoch);
        let Some(end) = self.reached.get(first) else {
            return false;
        };
        if end.at < begins {
            // Another thread has seen it.
            return true;
        }
        let is_so = match how {
            Asking::Waits => end.how == Some(FenceSeen::ByWaiting),
            Asking::Frees => end.how == Some(FenceSeen::InFree),
            Asking::Needs => end.how.is_none(),
        };
        let owes = self.threads.get(&thread);
        let is_now = is_so && end.thread == thread && end.at < ends;
        is_now && !owes.is_some_and(|lanes| lanes.owes_before(end.at))
    }
}

/// The epoch that got a fence, or was reached as its fence was made.
fn number_of(what: What) -> u64 {
    match what {
        What::Fence(number) | What::Reached(number) => number,
        _ => 0,
    }
}

/// A code as it was recorded.
pub(super) fn refusal(code: u32) -> Code {
    Code::check(code).err().unwrap_or(Code::OUT_OF_MEMORY)
}

/// Whether a driver allocation that counts as so much was one of this size: it takes
/// whole pages from the device.
pub(super) fn is_taken_for(counted: u64, size: Bytes) -> bool {
    let rounded = counted.checked_sub(size.get());
    rounded.is_some_and(|rounded| rounded < PAGE.get())
}

/// An answer in words.
pub(super) fn said(what: Option<What>) -> String {
    match what {
        None => "nothing more".to_owned(),
        Some(What::Taken { address, size }) => format!("{size} bytes at {address:#x}"),
        Some(What::Refused { size, code }) => format!("{size} bytes refused with code {code}"),
        Some(What::GivenBack { address, size }) => {
            format!("{size} bytes at {address:#x} given back")
        }
        Some(What::Mapped { address, size }) => format!("{size} bytes mapped at {address:#x}"),
        Some(What::Unmapped { address, size }) => format!("{size} bytes unmapped at {address:#x}"),
        Some(_) => "something else".to_owned(),
    }
}
