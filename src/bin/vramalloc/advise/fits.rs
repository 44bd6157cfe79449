//! Whether a program would run on a device of some size, by what was recorded of it.
//!
//! What was recorded needs between two sizes: those on which its replay completes where
//! the device is done at once, and where it is done when the program saw it. What comes
//! after the recording nobody knows. As far as a program repeats itself, the peaks of
//! its rounds say how much they vary: a *round* is a stretch between two valleys of what
//! is live. From a few rounds, the answer is yes only where the size leaves room for
//! what three times their spread is beyond the largest, and for as much growth as there
//! was from the first half to the second; it is no only where not even what was recorded
//! fits.

use vramalloc_core::Bytes;

use super::super::replay::PASSES;
use super::super::replay::tape::{Tape, What};
use super::super::replay::trial::{Lag, Room, Setup, peak_live, smallest};

/// Fewer rounds say nothing of those to come.
const FEWEST: usize = 3;

/// The least that is left for what differs from one run to the next, in per mille.
const LEAST: u64 = 10;

/// How far below the peak a valley lies, and how near to it a round comes: parts of what
/// lies between the lowest and the highest, in hundredths.
const VALLEY: u64 = 50;
const HILL: u64 = 75;

/// What is live is near the peak from this many hundredths of it on.
const NEAR: u64 = 90;

/// Peaks that rise by less than this part are as good as the same.
const STEADY: f64 = 0.002;

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

/// The answer, and what it rests on. Sizes are of memory that the program can use.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Verdict {
    pub(crate) fits: Fits,
    /// The smallest on which what was recorded runs, if the device is done at once, and
    /// if it is done as was seen.
    pub(crate) least: Option<Bytes>,
    pub(crate) most: Option<Bytes>,
    /// What later rounds may need beyond that, in per mille; nothing where there are too
    /// few.
    pub(crate) spread: Option<u64>,
    pub(crate) rounds: usize,
}

/// Whether a program fits on a device of which it can use so much, with these options.
pub(crate) fn fits(
    tape: &Tape,
    options: &vramalloc_core::config::Settings,
    usable: Bytes,
) -> Verdict {
    let setup = |lag| Setup {
        options,
        room: Room::Usable(usable),
        lag,
        passes: PASSES,
    };
    let live = peak_live(tape);
    let [least, most] = [Lag::None, Lag::AsSeen].map(|lag| smallest(tape, &setup(lag), live));
    let peaks = rounds(tape);
    let spread = spread(&peaks);
    let with_spread = most.zip(spread).and_then(|(most, spread)| {
        let more = most.get().checked_mul(spread)?.div_ceil(1000);
        most.checked_add(Bytes::new(more))
    });
    let single = least.is_none_or(|least| usable < least);
    let fits = if single {
        Fits::No
    } else if with_spread.is_some_and(|enough| usable >= enough) {
        Fits::Yes
    } else {
        Fits::CannotTell
    };
    Verdict {
        fits,
        least,
        most,
        spread,
        rounds: peaks.len(),
    }
}

/// The peaks of the rounds, in their order.
fn rounds(tape: &Tape) -> Vec<u64> {
    let levels = levels(tape);
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
    for level in levels {
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

/// What is live after each request and free, of all devices together.
fn levels(tape: &Tape) -> Vec<u64> {
    let mut sizes = vec![0; tape.blocks as usize];
    let mut live = 0u64;
    let mut levels = Vec::new();
    for item in &tape.items {
        match item.what {
            What::Alloc { block, size, .. } => {
                if let Some(place) = sizes.get_mut(block as usize) {
                    *place = size;
                }
                live += size;
            }
            What::Free { block, .. } => {
                live = live.saturating_sub(sizes.get(block as usize).copied().unwrap_or(0));
            }
            _ => continue,
        }
        levels.push(live);
    }
    levels
}

/// How much later rounds may need beyond the largest, in per mille of it.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share with three digits"
)]
fn spread(peaks: &[u64]) -> Option<u64> {
    if peaks.len() < FEWEST {
        return None;
    }
    let count = peaks.len() as f64;
    let mean = peaks.iter().map(|&peak| peak as f64).sum::<f64>() / count;
    let squares = peaks.iter().map(|&peak| (peak as f64 - mean).powi(2));
    let deviation = (squares.sum::<f64>() / (count - 1.0)).sqrt();
    let third = peaks.len() / 3;
    let newest = peaks.iter().rev().take(third).min();
    if newest > peaks.iter().take(third).max() && deviation > mean * STEADY {
        // It goes on growing: nobody knows how far.
        return None;
    }
    let (first, second) = peaks.split_at(peaks.len() / 2);
    let highest = |of: &[u64]| of.iter().copied().max().unwrap_or(0) as f64;
    let growth = (highest(second) - highest(first)).max(0.0);
    let largest = highest(peaks).max(1.0);
    let share = (3.0 * deviation + growth) / largest * 1000.0;
    Some((share.ceil() as u64).max(LEAST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_repeats_itself_varies_little() {
        assert_eq!(spread(&[100, 100]), None);
        assert_eq!(spread(&[100, 100, 100]), Some(LEAST));
        assert!(spread(&[100, 110, 90]) > Some(200));
        // Half of it is growth.
        assert!(spread(&[1000, 1010, 1030, 1000]) > Some(50));
        assert_eq!(spread(&[1000, 1010, 1020, 1030]), None);
    }
}
