//! The options that a replay is tried with, and how the best are found without trying
//! all of them together.
//!
//! A strategy of few combinations is tried whole. Under the others each option is tried
//! alone; then the best choice so far is tried with each further option, again and
//! again, as long as the bound on trials allows. An option that did badly alone is tried
//! with others all the same: under `auto_growth` any option about chunks ends their
//! packing, and what that costs hides what the option saves. Invariant: what is compared
//! is comparable: each trial is the whole recording on the same device.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use vramalloc_core::config::Settings;

use super::super::replay::tape::Tape;
use super::super::replay::trial::{Lag, Outcome, Room, Setup, trial};

/// A strategy, and the options that change what it reserves, each with the values that
/// are tried beside the recorded one. None of them can make a program wrong; under
/// `mapped` one that shares memory by handles gets an error, of which advice warns.
struct Axis {
    key: &'static str,
    values: &'static [&'static str],
}

const fn axis(key: &'static str, values: &'static [&'static str]) -> Axis {
    Axis { key, values }
}

const STRATEGIES: &[(&str, &[Axis])] = &[
    (
        "auto_growth",
        &[
            axis("auto_growth_chunk_size_in_mb", &["0", "16", "64"]),
            axis("dedicated_min", &["none", "64M"]),
            axis("limbo_budget", &["none", "64M"]),
            axis("max_split_size_mb", &["none", "128"]),
            axis("garbage_collection_threshold", &["none", "0.8"]),
            axis("free_idle_chunk", &["False", "True"]),
            axis("free_when_no_cache_hit", &["False", "True"]),
        ],
    ),
    (
        "mapped",
        &[
            axis("dedicated_min", &["none", "64M"]),
            axis("limbo_budget", &["none", "64M"]),
            axis("free_idle_chunk", &["False", "True"]),
            axis("free_when_no_cache_hit", &["False", "True"]),
        ],
    ),
    (
        "naive_best_fit",
        &[
            axis("initial_gpu_memory_in_mb", &["0", "1024"]),
            axis("reallocate_gpu_memory_in_mb", &["0", "256"]),
            axis("dedicated_min", &["none", "64M"]),
        ],
    ),
];

/// Trials in all, at the most: so many hundredths of the whole grid.
const PART: usize = 15;

/// A strategy of at most so many combinations is tried whole: where two options do
/// nothing unless both are set, trials of one at a time lead nowhere.
const FEW: usize = 8;

/// Time over what the driver's calls may take counts as memory, as long as better
/// choices are looked for: each doubling as this part of what is reserved. A further
/// option may save the time.
const DOUBLING_PART: u64 = 16;

/// Time that the driver's calls may take: what they took, or this part of the run.
const TIME_PART: u64 = 50;

/// An option, or the strategy, and its value.
type Part = (&'static str, &'static str);

/// Options in the place of the recorded ones.
pub(crate) type Choice = Vec<(String, String)>;

/// A trial that was made.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Tried {
    pub(crate) choice: Choice,
    pub(crate) outcome: Outcome,
}

/// What was found.
pub(crate) struct Search {
    /// With the recorded options.
    pub(crate) recorded: Outcome,
    /// Those that the program could run with, the best first.
    pub(crate) found: Vec<Tried>,
    pub(crate) trials: usize,
}

/// A choice that the program could run with, as far as better ones are made of it; those
/// with which to go on come first.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Step {
    /// What it reserves and, as memory, the time that it takes too long.
    rank: u64,
    price: u64,
    strategy: &'static str,
    options: BTreeSet<Part>,
}

/// The trials of a tape.
struct Bench<'a> {
    tape: &'a Tape,
    /// What a trial's calls of the driver may take, in ns.
    most: u64,
    found: Vec<Tried>,
    trials: usize,
    /// Trials, at the most.
    most_trials: usize,
}

/// Looks for the best options.
///
/// # Errors
/// What of the recorded options cannot be read.
pub(crate) fn search(tape: &Tape) -> Result<Search, String> {
    let recorded = outcome(tape, &tape.loaded(&[])?.settings);
    let mut bench = Bench::new(tape, &recorded, whole().len() * PART / 100);
    let mut singles = Vec::new();
    for &(strategy, axes) in STRATEGIES {
        let all = combined(strategy, axes);
        if all.len() > FEW {
            singles.extend(bench.tries_alone(strategy, axes));
            continue;
        }
        for choice in &all {
            bench.tries(choice);
        }
    }
    bench.tries_together(singles);
    Ok(bench.ended(recorded))
}

/// Tries the whole grid.
///
/// # Errors
/// As [`search`].
pub(crate) fn search_whole(tape: &Tape) -> Result<Search, String> {
    let recorded = outcome(tape, &tape.loaded(&[])?.settings);
    let mut bench = Bench::new(tape, &recorded, usize::MAX);
    for choice in whole() {
        bench.tries(&choice);
    }
    Ok(bench.ended(recorded))
}

/// Every combination there is.
fn whole() -> Vec<Vec<Part>> {
    let all = STRATEGIES.iter();
    all.flat_map(|(strategy, axes)| combined(strategy, axes))
        .collect()
}

/// Every combination of a strategy's options.
fn combined(strategy: &'static str, axes: &[Axis]) -> Vec<Vec<Part>> {
    let mut all = vec![vec![("strategy", strategy)]];
    for axis in axes {
        all = all
            .into_iter()
            .flat_map(|choice| {
                axis.values.iter().map(move |value| {
                    let mut choice = choice.clone();
                    choice.push((axis.key, *value));
                    choice
                })
            })
            .collect();
    }
    all
}

/// Whether a value is another than what was recorded.
fn differs(tape: &Tape, key: &str, value: &str) -> bool {
    let loaded = tape.loaded(&[]).ok();
    let changed = tape.loaded(&[(key.to_owned(), value.to_owned())]).ok();
    match (loaded, changed) {
        (Some(loaded), Some(changed)) => loaded.settings != changed.settings,
        _ => false,
    }
}

fn outcome(tape: &Tape, options: &Settings) -> Outcome {
    let setup = Setup {
        options,
        room: Room::AsRecorded,
        lag: Lag::AsSeen,
        passes: 1,
    };
    trial(tape, &setup)
}

impl<'a> Bench<'a> {
    fn new(tape: &'a Tape, recorded: &Outcome, most_trials: usize) -> Bench<'a> {
        let of_run = tape.length_us().saturating_mul(1000) / TIME_PART;
        Bench {
            tape,
            most: recorded.price.max(of_run),
            found: Vec::new(),
            trials: 0,
            most_trials,
        }
    }

    /// Tries a strategy, and each of its options alone. Of options that came out alike
    /// one goes on: mostly they do nothing in this program, or only end the packing.
    fn tries_alone(&mut self, strategy: &'static str, axes: &[Axis]) -> Vec<Step> {
        self.tries(&[("strategy", strategy)]);
        let mut steps: Vec<Step> = Vec::new();
        for axis in axes {
            let values = axis.values.iter();
            for value in values.filter(|value| differs(self.tape, axis.key, value)) {
                let tried = self.step(strategy, BTreeSet::from([(axis.key, *value)]));
                let is_new = |step: &Step| {
                    (steps.iter()).all(|other| (other.rank, other.price) != (step.rank, step.price))
                };
                steps.extend(tried.filter(is_new));
            }
        }
        steps
    }

    /// Tries the best choice with each further option of its strategy, and so on with
    /// the best of what is then known.
    fn tries_together(&mut self, mut singles: Vec<Step>) {
        singles.sort_unstable();
        let mut open: BTreeSet<Step> = singles.iter().cloned().collect();
        let mut seen = BTreeSet::new();
        while let Some(best) = open.pop_first() {
            let of_strategy = (singles.iter()).filter(|single| single.strategy == best.strategy);
            for &(key, value) in of_strategy.flat_map(|single| &single.options) {
                if best.options.iter().any(|(other, _)| *other == key) {
                    continue;
                }
                let mut options = best.options.clone();
                options.insert((key, value));
                if seen.insert((best.strategy, options.clone())) {
                    open.extend(self.step(best.strategy, options));
                }
            }
        }
    }

    fn step(&mut self, strategy: &'static str, options: BTreeSet<Part>) -> Option<Step> {
        let choice: Vec<Part> = std::iter::once(("strategy", strategy))
            .chain(options.iter().copied())
            .collect();
        let outcome = self.tries(&choice)?;
        let (mut rank, mut time) = (outcome.reserved, outcome.price);
        while time > self.most {
            rank = rank.saturating_add(outcome.reserved / DOUBLING_PART);
            time /= 2;
        }
        Some(Step {
            rank,
            price: outcome.price,
            strategy,
            options,
        })
    }

    /// Makes a trial, if there may be another; what came of it, where the program runs.
    /// It is found where its calls do not take too long: with another option they may
    /// not.
    fn tries(&mut self, choice: &[Part]) -> Option<Outcome> {
        if self.trials >= self.most_trials {
            return None;
        }
        let tape = self.tape;
        let choice: Choice = (choice.iter())
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        // Options may contradict each other.
        let options = tape.loaded(&choice).ok()?.settings;
        self.trials += 1;
        let outcome = outcome(tape, &options);
        if outcome.failed_at.is_some() {
            return None;
        }
        if outcome.price <= self.most {
            let is_new = |(key, value): &(String, String)| differs(tape, key, value);
            let choice = choice.into_iter().filter(is_new).collect();
            self.found.push(Tried { choice, outcome });
        }
        Some(outcome)
    }

    fn ended(mut self, recorded: Outcome) -> Search {
        self.found.sort_by(|a, b| {
            let key = |tried: &Tried| {
                (
                    tried.outcome.reserved,
                    tried.choice.len(),
                    tried.outcome.price,
                )
            };
            key(a).cmp(&key(b))
        });
        Search {
            recorded,
            found: self.found,
            trials: self.trials,
        }
    }
}
