//! The options that a replay is tried with, and how the best are found without trying
//! all of them together.
//!
//! For each strategy every option is tried alone; then the ones that helped most are
//! tried together, two at a time, as long as the bound on trials allows. Invariant: what
//! is compared is comparable: each trial is the whole recording on the same device.

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

/// The best so many of a strategy's options are tried in pairs.
const PAIRED: usize = 4;

/// Time that the driver's calls may take: what they took, or this part of the run.
const TIME_PART: u64 = 50;

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

/// The trials of a tape.
struct Bench<'a> {
    tape: &'a Tape,
    /// What a trial's calls of the driver may take, in ns.
    most: u64,
    found: Vec<Tried>,
    trials: usize,
}

/// Looks for the best options.
///
/// # Errors
/// What of the recorded options cannot be read.
pub(crate) fn search(tape: &Tape) -> Result<Search, String> {
    let recorded = outcome(tape, &tape.loaded(&[])?.settings);
    let mut bench = Bench::new(tape, &recorded);
    let most = whole().len() * PART / 100;
    let mut pairs = Vec::new();
    for (strategy, axes) in STRATEGIES {
        bench.tries(tape, &[("strategy", strategy)]);
        let mut singles: Vec<(u64, &str, &str)> = Vec::new();
        for axis in *axes {
            for value in axis
                .values
                .iter()
                .filter(|value| differs(tape, axis.key, value))
            {
                if bench.trials >= most {
                    break;
                }
                let tried = bench.tries(tape, &[("strategy", strategy), (axis.key, value)]);
                singles.push((tried.unwrap_or(u64::MAX), axis.key, value));
            }
        }
        singles.sort_unstable();
        singles.truncate(PAIRED);
        let mut turn = 0;
        for (at, one) in singles.iter().enumerate() {
            for other in (singles.iter().skip(at + 1)).filter(|other| other.1 != one.1) {
                pairs.push((turn, one.0, *strategy, (one.1, one.2), (other.1, other.2)));
                turn += 1;
            }
        }
    }
    // Each strategy in its turn, with those first whose parts were the best.
    pairs.sort_unstable();
    for (_, _, strategy, one, other) in pairs {
        if bench.trials >= most {
            break;
        }
        bench.tries(tape, &[("strategy", strategy), one, other]);
    }
    Ok(bench.ended(recorded))
}

/// Tries the whole grid.
///
/// # Errors
/// As [`search`].
pub(crate) fn search_whole(tape: &Tape) -> Result<Search, String> {
    let recorded = outcome(tape, &tape.loaded(&[])?.settings);
    let mut bench = Bench::new(tape, &recorded);
    for choice in whole() {
        bench.tries(tape, &choice);
    }
    Ok(bench.ended(recorded))
}

/// Every combination there is.
fn whole() -> Vec<Vec<(&'static str, &'static str)>> {
    let mut all = Vec::new();
    for (strategy, axes) in STRATEGIES {
        let mut of_strategy = vec![vec![("strategy", *strategy)]];
        for axis in *axes {
            of_strategy = of_strategy
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
        all.extend(of_strategy);
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
    fn new(tape: &'a Tape, recorded: &Outcome) -> Bench<'a> {
        let of_run = tape.length_us().saturating_mul(1000) / TIME_PART;
        Bench {
            tape,
            most: recorded.price.max(of_run),
            found: Vec::new(),
            trials: 0,
        }
    }

    /// Makes a trial; what is reserved, where the program runs. It is found where its
    /// calls do not take too long: with another option they may not.
    fn tries(&mut self, tape: &Tape, choice: &[(&str, &str)]) -> Option<u64> {
        let choice: Choice = (choice.iter())
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        // Options may contradict each other.
        let options = tape.loaded(&choice).ok()?.settings;
        self.trials += 1;
        let outcome = outcome(self.tape, &options);
        if outcome.failed_at.is_some() {
            return None;
        }
        if outcome.price <= self.most {
            let is_new = |(key, value): &(String, String)| differs(tape, key, value);
            let choice = choice.into_iter().filter(is_new).collect();
            self.found.push(Tried { choice, outcome });
        }
        Some(outcome.reserved)
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
