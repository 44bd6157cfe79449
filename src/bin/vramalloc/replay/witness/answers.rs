//! What a recording says that the driver of an arena answered.

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

/// The answers that an arena's driver gave.
#[derive(Default)]
pub(super) struct Answers {
    pub(super) taken: Lane,
    pub(super) given_back: Lane,
    pub(super) created: Lane,
    pub(super) mapped: Lane,
    pub(super) unmapped: Lane,
    pub(super) memory: Lane,
    pub(super) mapping: Lane,
    pub(super) reserved: Lane,
    pub(super) quiet: Lane,
    pub(super) fences: Lane,
    /// The epochs whose fences were seen to be reached, where and how.
    pub(super) reached: Vec<(u64, usize, Option<FenceSeen>)>,
    /// How the next is.
    pub(super) seen: Option<FenceSeen>,
    /// How much of the answer in front is used: what is mapped and unmapped in one call
    /// may have been told in parts, and the other way round.
    pub(super) of_mapped: u64,
    pub(super) of_unmapped: u64,
    /// Units that are created before the refusal in front.
    pub(super) units_left: Option<u64>,
    pub(super) units: u64,
    pub(super) difference: Option<String>,
}

impl Answers {
    pub(super) fn differs(&mut self, what: impl FnOnce() -> String) {
        if self.difference.is_none() {
            self.difference = Some(what());
        }
    }

    /// Uses up what the recording says of memory that was mapped, or unmapped.
    pub(super) fn consume(&mut self, at: u64, size: u64, maps: bool) {
        let word = if maps { "mapped" } else { "unmapped" };
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
                    let told = other.map(|(_, what)| what);
                    return self.differs(|| {
                        format!(
                            "{left} bytes at {at:#x} are {word}; recorded is {}",
                            said(told)
                        )
                    });
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
    }

    /// Whether the epoch's fence is seen to be reached now, in a call that ends before
    /// this place: not before all that the call did until then is done again.
    pub(super) fn is_reached(&self, epoch: u64, ends: usize, how: Asking) -> bool {
        let first = self.reached.partition_point(|&(number, ..)| number < epoch);
        let Some(&(_, seen, told)) = self.reached.get(first) else {
            return false;
        };
        let is_so = match (how, told) {
            (Asking::Waits, told) => told == Some(FenceSeen::ByWaiting),
            (Asking::Frees, told) => told == Some(FenceSeen::InFree),
            (Asking::Needs, told) => told.is_none(),
        };
        if !is_so {
            return false;
        }
        let lanes = [
            &self.taken,
            &self.given_back,
            &self.created,
            &self.mapped,
            &self.unmapped,
            &self.memory,
            &self.quiet,
            &self.fences,
        ];
        let comes_before = |lane: &&Lane| lane.next().is_some_and(|(at, _)| at < seen);
        seen < ends && !lanes.iter().any(comes_before)
    }
}

/// A code as it was recorded.
pub(super) fn refusal(code: u32) -> Code {
    Code::check(code).err().unwrap_or(Code::OUT_OF_MEMORY)
}

/// Whether a driver allocation that counts as so much was one of this size: it takes
/// whole pages from the device.
pub(super) fn is_taken_for(counted: u64, size: Bytes) -> bool {
    (size.get()..size.get().saturating_add(PAGE.get())).contains(&counted)
}

pub(super) fn said(what: Option<What>) -> String {
    what.map_or_else(|| "nothing more".to_owned(), |what| format!("{what:?}"))
}
