use super::super::super::statistics::Setting;
use super::super::made::{frees, takes, tape};
use super::*;

const MIB: u64 = 1 << 20;

/// A program that trains, with sizes that vary from step to step. It takes no time, so
/// that the driver's calls may take what they took.
fn trains() -> Tape {
    let mut random: u64 = 2;
    let mut draw = |below: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let mut tape = tape(80 << 30, &[0]);
    for _ in 0..12 {
        let scale = 60 + draw(41);
        let mut kept = Vec::new();
        for layer in 0..16 {
            for part in [10, 25, 5] {
                let size = MIB * part * scale * (1 + layer % 3) / 1000;
                let temporary = takes(&mut tape, 0, size);
                kept.push(takes(&mut tape, 0, size));
                frees(&mut tape, 0, temporary);
            }
        }
        while let Some(block) = kept.pop() {
            frees(&mut tape, 0, block);
        }
    }
    for item in &mut tape.items {
        item.time_us = 0;
    }
    tape
}

fn with(tape: &Tape, choice: &[Part]) -> Outcome {
    let owned = |(key, value): &Part| ((*key).to_owned(), (*value).to_owned());
    let choice: Choice = choice.iter().map(owned).collect();
    outcome(tape, &tape.loaded(&choice).unwrap().settings)
}

/// Chunks of 16 MiB alone are worse than what was recorded, and giving back alone takes
/// too long.
#[test]
fn options_that_help_only_together_are_found() {
    let tape = trains();
    let (large, gives_back) = (
        ("auto_growth_chunk_size_in_mb", "16"),
        ("free_when_no_cache_hit", "True"),
    );
    let both = with(&tape, &[large, gives_back]);
    let alone = [with(&tape, &[large]), with(&tape, &[gives_back])];
    let found = search(&tape).unwrap();
    assert!(both.reserved < found.recorded.reserved && found.recorded.reserved < alone[0].reserved);
    assert!(both.price < found.recorded.price && found.recorded.price < alone[1].price);
    assert_eq!(found.found[0].outcome.reserved, both.reserved);
}

/// Under `naive_best_fit` the sizes of chunks matter only where both are set.
#[test]
fn a_strategy_of_few_options_is_tried_whole() {
    let found = search(&trains()).unwrap();
    let naive = ("strategy".to_owned(), "naive_best_fit".to_owned());
    let is_naive = |tried: &&Tried| tried.choice.contains(&naive);
    let of_naive = found.found.iter().filter(is_naive);
    assert_eq!(of_naive.count(), 8);
}

#[test]
fn no_recorded_options_lead_to_more_trials() {
    let mut tape = trains();
    let options = tape.options.get_or_insert_default();
    for (key, value) in [
        ("auto_growth_chunk_size_in_mb", "32"),
        ("dedicated_min", "32M"),
        ("limbo_budget", "32M"),
        ("max_split_size_mb", "64"),
        ("garbage_collection_threshold", "0.5"),
    ] {
        let setting = Setting {
            value: value.to_owned(),
            origin: "VRAMALLOC_CONF".to_owned(),
        };
        options.insert(key.to_owned(), setting);
    }
    assert_eq!(search(&tape).unwrap().trials, whole().len() * PART / 100);
}

/// No block is as large as these sizes, and the device is not full.
#[test]
fn of_options_that_do_nothing_one_goes_on() {
    let tape = trains();
    let (strategy, axes) = STRATEGIES[0];
    let mut bench = Bench::new(&tape, &with(&tape, &[]), usize::MAX);
    let steps = bench.tries_alone(strategy, axes);
    let goes_on = steps.iter().flat_map(|step| &step.options);
    let idle = [
        "dedicated_min",
        "limbo_budget",
        "max_split_size_mb",
        "garbage_collection_threshold",
    ];
    let idle = goes_on.filter(|(key, _)| idle.contains(key));
    assert_eq!(idle.count(), 1);
}
