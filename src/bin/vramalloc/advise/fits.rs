//! Whether a program would run on a device of some size, by what was recorded of it.
//!
//! What was recorded needs between two sizes: those on which its replay completes where
//! the device is done at once, and where it is done when the program saw it. What comes
//! after the recording nobody knows. As far as a program repeats itself, the peaks of
//! its rounds say how much they vary: a *round* is a stretch between two valleys of what
//! is live. From a few rounds, the answer is yes only where the size leaves room for
//! what three times their spread is beyond the largest, and for as much growth as there
//! was from the first half to the second; it is no only where not even what was recorded
//! fits. Where the recording does not hold what decides, the answer is that it cannot be
//! told, and why.

#[cfg(test)]
mod tests;

use vramalloc_core::Bytes;
use vramalloc_core::config::Settings;
use vramalloc_core::recording::ArenaOrder;

use super::super::replay::PASSES;
use super::super::replay::live::{peak_live, walk};
use super::super::replay::tape::{Tape, What};
use super::super::replay::trial::{Lag, Room, Setup, smallest};
use super::super::units::{bytes, count};

/// Fewer rounds say nothing of those to come.
const FEWEST: usize = 3;

/// The least that is left for what differs from one run to the next, in per mille.
const LEAST: u64 = 10;

/// What is left for CUDA where nobody said what it takes.
pub(super) const FOR_CUDA: u64 = 1 << 30;

/// How far below the peak a valley lies, and how near to it a round comes: parts of what
/// lies between the lowest and the highest, in hundredths.
const VALLEY: u64 = 50;
const HILL: u64 = 75;

/// What is live is near the peak from this many hundredths of it on.
const NEAR: u64 = 90;

/// The answer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Fits {
    Yes,
    No,
    CannotTell,
}

impl Fits {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Fits::Yes => "yes",
            Fits::No => "no",
            Fits::CannotTell => "cannot tell",
        }
    }
}

/// What the rounds of a device say of later ones.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Later {
    /// There are too few.
    Few,
    /// They go on growing: nobody knows how far.
    Grow,
    /// They may need so much more, in per mille.
    Vary(u64),
}

/// The answer, and what it rests on. Sizes are of memory that the program can use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Verdict {
    pub(crate) fits: Fits,
    /// Why it cannot be told.
    pub(crate) why: Option<String>,
    /// The smallest on which what was recorded runs, if the device is done at once, and
    /// if it is done as was seen.
    pub(crate) least: Option<Bytes>,
    pub(crate) most: Option<Bytes>,
    /// What later rounds may need beyond that, in per mille; nothing where they do not
    /// say.
    pub(crate) spread: Option<u64>,
    /// How many rounds there are: of several devices, of the one that has the fewest.
    pub(crate) rounds: usize,
}

/// Whether a program fits on a device of this size, with these options.
pub(crate) fn fits(tape: &Tape, options: &Settings, device: Bytes) -> Verdict {
    let usable = |of_cuda: u64| device.saturating_sub(Bytes::new(of_cuda));
    let live = peak_live(tape);
    let needs = |lag, passes| {
        let room = Room::AsRecorded;
        let setup = Setup {
            options,
            room,
            lag,
            passes,
        };
        smallest(tape, &setup, live)
    };
    // It did once what was recorded; later rounds find what that left.
    let (least, most) = (needs(Lag::None, 1), needs(Lag::AsSeen, PASSES));
    let devices = devices(tape);
    let rounds = devices.iter().map(|device| device.peaks.len()).min();
    let (spread, unsure) = later(&devices);
    let with_spread = most.zip(spread).and_then(|(most, spread)| {
        let more = most.get().checked_mul(spread)?.div_ceil(1000);
        most.checked_add(Bytes::new(more))
    });
    let asks = devices.iter().any(|device| device.asks);
    let why = unknown(tape, asks).or(unsure);
    let ran_there = tape.total().is_some_and(|total| device.get() >= total);
    let is_short = least.is_none_or(|least| usable(tape.of_cuda().unwrap_or(0)) < least);
    let room = usable(tape.of_cuda().unwrap_or(FOR_CUDA));
    let fits = if is_short && !asks && !ran_there {
        Fits::No
    } else if why.is_none() && with_spread.is_some_and(|enough| room >= enough) {
        Fits::Yes
    } else {
        Fits::CannotTell
    };
    Verdict {
        fits,
        why: why.filter(|_| fits == Fits::CannotTell),
        least,
        most,
        spread,
        rounds: rounds.unwrap_or(0),
    }
}

/// What of the program's memory the recording does not tell.
fn unknown(tape: &Tape, asks: bool) -> Option<String> {
    if asks {
        return Some(
            "The program asked how much memory there is (cudaMemGetInfo) before it took more: on \
             another device it may take another amount."
                .to_owned(),
        );
    }
    let past: Vec<&str> = tape.past.iter().map(|family| family.taken_by()).collect();
    (!past.is_empty()).then(|| {
        format!(
            "The program had memory past the pool ({}), of which the recording does not say how \
             much.",
            past.join(", ")
        )
    })
}

/// How much later rounds may need, of the device where that is most; or why they do not
/// say.
fn later(devices: &[Held]) -> (Option<u64>, Option<String>) {
    let mut spread = None;
    for device in devices {
        match later_rounds(&device.peaks) {
            Later::Vary(more) => spread = spread.max(Some(more)),
            Later::Grow => {
                let why = "Its rounds grow: nobody knows how far later ones will.";
                return (None, Some(why.to_owned()));
            }
            Later::Few => {
                let rounds = count(device.peaks.len() as u64, "peak");
                let why = format!(
                    "With {rounds} of its rounds in it, the recording says nothing of later ones."
                );
                return (None, Some(why));
            }
        }
    }
    (spread, None)
}

/// What is said of a device of which it is not known what CUDA takes.
pub(super) fn left_for_cuda() -> String {
    format!(
        "What CUDA itself takes of a device is not told here; {} are left for it.",
        bytes(FOR_CUDA)
    )
}

/// What was held of a device.
#[derive(Clone, Default)]
struct Held {
    /// After each event.
    levels: Vec<u64>,
    /// One for each round, in the order of the rounds.
    peaks: Vec<u64>,
    most: u64,
    /// The program asked what there is.
    has_asked: bool,
    /// It asked, and held more then than before.
    asks: bool,
}

/// What was held of each device of which anything was.
fn devices(tape: &Tape) -> Vec<Held> {
    let mut devices = vec![Held::default(); tape.devices().len()];
    walk(tape, |place, item, live| {
        let Some(held) = devices.get_mut(place) else {
            return;
        };
        match item.what {
            What::Order(ArenaOrder::MemInfo) => held.has_asked = true,
            What::Alloc { .. } | What::Free { .. } | What::Ended => held.levels.push(live),
            _ => {}
        }
        held.asks |= held.has_asked && live > held.most;
        held.most = held.most.max(live);
    });
    devices.retain(|held| held.most > 0);
    for held in &mut devices {
        held.peaks = rounds(&std::mem::take(&mut held.levels));
    }
    devices
}

/// The peaks of the rounds, in their order.
fn rounds(levels: &[u64]) -> Vec<u64> {
    let peak = levels.iter().copied().max().unwrap_or(0);
    // What a program holds all the time it has between its first round and its last: not
    // while it begins and ends.
    let is_near = |level: &u64| *level >= peak / 100 * NEAR;
    let begun = levels.iter().position(is_near).unwrap_or(0);
    let ended = levels.iter().rposition(is_near).unwrap_or(0);
    let lowest = levels
        .get(begun..=ended)
        .and_then(|levels| levels.iter().min());
    let lowest = lowest.copied().unwrap_or(0);
    let at = |part: u64| lowest + (peak - lowest) / 100 * part;
    let (valley, hill) = (at(VALLEY), at(HILL));
    let mut peaks = Vec::new();
    let mut highest = 0;
    for &level in levels {
        highest = highest.max(level);
        if level <= valley {
            if highest >= hill {
                peaks.push(highest);
            }
            highest = 0;
        }
    }
    if highest >= hill {
        peaks.push(highest);
    }
    peaks
}

/// How much later rounds may need beyond the largest, in per mille of it.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share with three digits"
)]
fn later_rounds(peaks: &[u64]) -> Later {
    if peaks.len() < FEWEST {
        return Later::Few;
    }
    let count = peaks.len() as f64;
    let mean = peaks.iter().map(|&peak| peak as f64).sum::<f64>() / count;
    let squares = peaks.iter().map(|&peak| (peak as f64 - mean).powi(2));
    let deviation = (squares.sum::<f64>() / (count - 1.0)).sqrt();
    let third = peaks.len() / 3;
    let newest = peaks.iter().rev().take(third).min();
    if newest > peaks.iter().take(third).max() {
        return Later::Grow;
    }
    let (first, second) = peaks.split_at(peaks.len() / 2);
    let highest = |of: &[u64]| of.iter().copied().max().unwrap_or(0) as f64;
    let growth = (highest(second) - highest(first)).max(0.0);
    let largest = highest(peaks).max(1.0);
    let share = (3.0 * deviation + growth) / largest * 1000.0;
    Later::Vary((share.ceil() as u64).max(LEAST))
}
