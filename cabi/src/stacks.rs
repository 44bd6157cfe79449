//! Call stacks of the threads that ask for memory, for the options `stacks` and
//! `oom_report:full`; and whose Python code asks.
//!
//! The native places up to the first in a Python interpreter, then Python's, so
//! that what a Python programmer knows comes after what the libraries made of it.
//! Owns which requests are in the sample, and what is counted of stacks. Invariant:
//! the number of a stack never changes; no file is read, no name is looked up and
//! none of the linker's locks is taken for a stack, and it is taken outside of an
//! arena's lock. Cost: none without an option that asks for stacks; with one, some
//! 0.6 us for 60 native and 10 places of Python, most of them as in the last stack.

mod python;
mod table;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::slice;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use vramalloc_core::Bytes;
use vramalloc_core::arena::StackWatch;
use vramalloc_core::config::{OomReport, Settings, StackChoice};
use vramalloc_core::ledger::{Ledger, Sampler};
use vramalloc_core::recording::Place;
use vramalloc_core::stats::{Frame, StackId, StackReport, Stacks};

use crate::linker::unwind::{self, CodePlace, End};
use crate::process;

pub(crate) use table::Taken;

/// The most places kept of a stack, native ones and Python's: the innermost.
const MOST_NATIVE: usize = 80;
const MOST_PYTHON: usize = 48;
const MOST: usize = MOST_NATIVE + MOST_PYTHON;

/// What the options ask for, as of the first arena.
struct Asked {
    mode: &'static str,
    distance: Bytes,
    ledger: Ledger,
}

static ASKED: OnceLock<Asked> = OnceLock::new();

/// Stacks that were taken, those of them that are cut, and requests that have none:
/// because the thread was on a stack of the program's own, and because there was no
/// number left. Relaxed: they stand for themselves.
static TAKEN: AtomicU64 = AtomicU64::new(0);
static CUT: AtomicU64 = AtomicU64::new(0);
static UNTAKEN: AtomicU64 = AtomicU64::new(0);
static DROPPED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static SAMPLER: Cell<Sampler> = const { Cell::new(Sampler::new()) };
}

/// The option that asks for stacks, if any does.
fn asked_by(settings: &Settings) -> Option<&'static str> {
    match (settings.stacks, settings.oom_report) {
        (StackChoice::All, _) => Some("stacks:all"),
        (_, OomReport::Full) => Some("oom_report:full"),
        (StackChoice::Sampled, _) => Some("stacks:sampled"),
        (StackChoice::Off, _) => None,
    }
}

/// How an arena takes stacks, if the options ask for them.
pub(crate) fn watch(settings: &Settings) -> Option<StackWatch> {
    let asked_by = asked_by(settings)?;
    let is_sampled = asked_by == "stacks:sampled";
    let asked = ASKED.get_or_init(|| {
        let distance = if is_sampled {
            settings.stack_distance
        } else {
            Bytes::ZERO
        };
        Asked {
            mode: match settings.stacks {
                StackChoice::Off => "off",
                StackChoice::Sampled => "sampled",
                StackChoice::All => "all",
            },
            distance,
            ledger: Ledger::new(distance),
        }
    });
    Some(StackWatch {
        take,
        samples: is_sampled.then_some(samples),
        ledger: &asked.ledger,
        asked_by,
    })
}

/// Finds out what taking stacks needs to know of the linker, before the first is
/// taken, if any will be.
pub(crate) fn prepare() {
    if are_asked_for() {
        unwind::prepare();
    }
}

fn are_asked_for() -> bool {
    process::options(|loaded| asked_by(&loaded.settings)).is_some()
}

/// The call stack of this thread, without our own places.
fn take() -> StackId {
    let mut captured = Captured::new();
    captured.fill();
    captured.number()
}

/// Passes the file of each place of Python of this thread to `visit`, the innermost
/// first, as long as it returns true: a number that tells the file from others, and a way
/// to read its name. `address`, of a call on this thread's stack, is in an interpreter.
/// None where the places cannot be read.
pub(crate) fn files_of_python(
    address: usize,
    visit: impl FnMut(u64, &dyn Fn() -> Option<String>) -> bool,
) {
    python::files(address, visit);
}

/// Whether places of Python are not read in this process, whatever comes.
pub(crate) fn python_is_refused() -> bool {
    python::is_refused()
}

/// Whether a request of this thread is in the sample.
fn samples(request: Bytes) -> bool {
    let distance = ASKED.get().map_or(Bytes::ZERO, |asked| asked.distance);
    let mut sampler = SAMPLER.get();
    let is_in = sampler.takes(request, distance);
    SAMPLER.set(sampler);
    is_in
}

/// The places of a stack: return addresses, and places of Python by their number.
struct Captured {
    words: [MaybeUninit<u64>; MOST],
    count: usize,
    is_cut: bool,
}

impl Captured {
    #[inline(always)]
    fn new() -> Captured {
        Captured {
            words: [const { MaybeUninit::uninit() }; MOST],
            count: 0,
            is_cut: false,
        }
    }

    /// With the places of this thread.
    #[inline(never)]
    fn fill(&mut self) {
        let mut is_asked = false;
        let end = unwind::places(|CodePlace { address, is_python }| {
            if is_python && !is_asked {
                is_asked = true;
                if self.push_python(address) {
                    return false;
                }
            }
            self.push(address as u64);
            self.count < MOST_NATIVE
        });
        let is_lost = matches!(end, End::Cut | End::Elsewhere) && !is_asked;
        let goes_on = is_lost && python::known_places(|word| self.push(word));
        self.is_cut = end == End::Cut && !goes_on;
    }

    /// Those of Python, if there are any; `address` is in an interpreter. Not inlined,
    /// so that what each native place goes through is short.
    #[inline(never)]
    fn push_python(&mut self, address: usize) -> bool {
        python::places(address, |word| self.push(word))
    }

    #[inline(always)]
    fn push(&mut self, word: u64) {
        if let Some(place) = self.words.get_mut(self.count) {
            place.write(word);
            self.count += 1;
        }
    }

    /// The number of the stack; [`StackId::NONE`] if it could not be taken, or there are
    /// too many.
    fn number(&self) -> StackId {
        if self.count == 0 {
            UNTAKEN.fetch_add(1, Ordering::Relaxed);
            return StackId::NONE;
        }
        TAKEN.fetch_add(1, Ordering::Relaxed);
        if self.is_cut {
            CUT.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: so many were written, one after the other.
        let words = unsafe { slice::from_raw_parts(self.words.as_ptr().cast(), self.count) };
        table::number(words, unwind::epoch()).unwrap_or_else(|| {
            DROPPED.fetch_add(1, Ordering::Relaxed);
            StackId::NONE
        })
    }
}

/// The stack with this number.
pub(crate) fn taken(id: StackId) -> Option<Taken> {
    table::taken(id)
}

/// The places of a stack, for a recording, the innermost first.
pub(crate) fn places(id: StackId) -> Vec<Place> {
    let Stacks {
        objects,
        frames,
        stacks,
    } = table::described(&BTreeSet::from([id]));
    let place = |at: &usize| match frames.get(*at)? {
        Frame::Native { object, offset } => {
            let Some(object) = object.and_then(|number| objects.get(number)) else {
                return Some(Place::Address(*offset));
            };
            Some(Place::Object {
                file: object.file.clone(),
                build_id: object.build_id.clone().unwrap_or_default(),
                offset: *offset,
            })
        }
        Frame::Python {
            file,
            line,
            function,
        } => Some(Place::Python {
            file: file.clone(),
            line: line.unwrap_or(0),
            function: function.clone(),
        }),
    };
    let stack = stacks.into_iter().next();
    stack.map_or_else(Vec::new, |(_, places)| {
        places.iter().filter_map(place).collect()
    })
}

/// The place of Python that holds most, where stacks are taken, and how much.
pub(crate) fn largest_of_python() -> Option<(String, Bytes)> {
    table::largest_of_python(&ASKED.get()?.ledger.sums().live)
}

/// What is reported of stacks, with those that the rest of the report refers to;
/// nothing where none were asked for.
pub(crate) fn report(numbers: BTreeSet<StackId>) -> Option<StackReport> {
    let asked = ASKED.get()?;
    let sums = asked.ledger.sums();
    let mut numbers = numbers;
    numbers.extend(sums.stacks());
    let (python, unread) = python::told();
    Some(StackReport {
        mode: asked.mode,
        distance: asked.distance,
        taken: TAKEN.load(Ordering::Relaxed),
        cut: CUT.load(Ordering::Relaxed),
        untaken: UNTAKEN.load(Ordering::Relaxed),
        dropped: DROPPED.load(Ordering::Relaxed),
        python,
        unread,
        sums,
        stacks: table::described(&numbers),
    })
}
