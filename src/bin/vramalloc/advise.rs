//! `vramalloc advise`: which options would have served a recorded program better, and
//! whether it runs on another device.
//!
//! Everything is said by replaying the recording, and only where the replay with the
//! recorded options leads to what was recorded. Cost: some thirty replays, and ten for
//! each size of a device that is looked for.

mod fits;
mod grid;
#[cfg(test)]
mod made;

use std::path::PathBuf;

use serde_json::{Value, json};
use vramalloc_core::Bytes;

use super::lines::Lines;
use super::output;
use super::progress::Progress;
use super::replay::live::{peak_live, peaks_of_all};
use super::replay::tape::Tape;
use super::replay::trial::{Lag, Room, Setup, smallest};
use super::replay::{
    DIFFERS, PASSES, difference_json, differs, outcome_json, proven, read, size, summary,
};
use super::units::{bytes, count, duration, percent, share};
use fits::{Verdict, fits};
use grid::{Search, Tried, search, search_whole};

/// The exit status if a program does not fit, or that cannot be told.
const NOT_SURE: u8 = 3;

/// A line of advice saves at least this, and this many per mille.
const WORTH: u64 = 64 << 20;
const WORTH_PART: u64 = 20;

/// Lines of advice, at the most.
const MOST: usize = 3;

/// Sizes of devices that are sold, in GiB.
const SOLD: &[u64] = &[
    4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 45, 48, 64, 80, 94, 96, 128, 141, 180, 192, 256, 288,
];

/// What is said below the help.
const WHEN: &str = "\
The exit status is 0; 1 if the recorded options do not lead to what was recorded, \
or the model of the device not to its end, and then there is no advice; 3 if with --fits the answer is no, or cannot be told; \
2 if the file cannot be read.

Example:
  vramalloc run --option record=%p.rec -- python train.py --steps 5
  vramalloc advise 4711.rec --fits 24G";

#[derive(clap::Args)]
#[command(after_help = WHEN)]
pub(super) struct Arguments {
    /// The recording (option record), or a snapshot of PyTorch's memory
    file: PathBuf,
    /// Say whether the program runs on a device of this size, by what was recorded
    #[arg(long, value_name = "SIZE", value_parser = size)]
    fits: Option<u64>,
    /// Try all options together; it takes seven times as long
    #[arg(long)]
    whole: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Advises on a file. Returns the exit status.
pub(super) fn advise(arguments: &Arguments) -> u8 {
    output::answer(&arguments.file, told(arguments))
}

fn told(arguments: &Arguments) -> Result<(String, u8), String> {
    let tape = read(&arguments.file)?;
    let _progress = Progress::new("replaying", None);
    if let Err(difference) = proven(&tape) {
        let text = match arguments.json {
            true => line(&json!({ "reproduced": false, "differs": difference_json(&difference) })),
            false => differs(&tape, &difference),
        };
        return Ok((text, DIFFERS));
    }
    match arguments.fits {
        Some(device) => answer(&tape, device, arguments.json),
        None => advice(&tape, arguments),
    }
}

fn line(value: &Value) -> String {
    value.to_string() + "\n"
}

fn advice(tape: &Tape, arguments: &Arguments) -> Result<(String, u8), String> {
    let found = if arguments.whole {
        search_whole(tape)?
    } else {
        search(tape)?
    };
    if let Some(event) = found.recorded.failed_at {
        return Ok((no_model(tape, event, arguments.json), DIFFERS));
    }
    let worth: Vec<&Tried> = worth(&found).into_iter().take(MOST).collect();
    let smallest: Vec<Option<Bytes>> = (worth.iter())
        .map(|tried| smallest_of(tape, &tried.choice))
        .collect();
    let as_it_is = smallest_of(tape, &[]);
    if arguments.json {
        let lines: Vec<Value> = (worth.iter().zip(&smallest))
            .map(|(tried, smallest)| {
                json!({
                    "set": setting(tried),
                    "outcome": outcome_json(&tried.outcome),
                    "without": without(&tried.choice),
                    "smallest_usable_bytes": smallest.map(Bytes::get),
                })
            })
            .collect();
        let value = json!({
            "reproduced": tape.options.is_some(),
            "trials": found.trials,
            "recorded": outcome_json(&found.recorded),
            "smallest_usable_bytes": as_it_is.map(Bytes::get),
            "advice": lines,
        });
        return Ok((line(&value), 0));
    }
    let mut lines = Lines::default();
    lines.wrapped(summary(tape), 2);
    let live = peaks_of_all(tape);
    let mut recorded = format!(
        "With the {} options {} are reserved at the most, {} over what is live",
        if tape.options.is_some() {
            "recorded"
        } else {
            "default"
        },
        bytes(found.recorded.reserved),
        share(found.recorded.reserved.saturating_sub(live), live),
    );
    if let Some(smallest) = as_it_is {
        recorded += &format!("; it {} {}", runs_on(tape), device(tape, smallest));
    }
    lines.wrapped(recorded + ".", 2);
    lines.text.push('\n');
    if worth.is_empty() {
        lines.item(format_args!(
            "Nothing: of {} none reserves {} and {} less without more time in the driver.",
            count(found.trials as u64, "setting"),
            bytes(WORTH),
            percent(0.02),
        ));
        return Ok((lines.text, 0));
    }
    for (tried, smallest) in worth.iter().zip(smallest) {
        lines.item(told_of(tape, &found, tried, smallest));
    }
    lines.wrapped(
        format_args!(
            "  (to be given as VRAMALLOC_CONF=\"option:value,...\"; found by {} on a model of the \
             device that is done with its work when the program saw it)",
            count(found.trials as u64, "replay")
        ),
        2,
    );
    Ok((lines.text, 0))
}

/// The line where the model of the device does not come to the recording's end: what it
/// would say of other options is not worth more.
fn no_model(tape: &Tape, event: u32, as_json: bool) -> String {
    if as_json {
        let value = json!({
            "reproduced": tape.options.is_some(),
            "recorded": { "failed_at_event": event },
            "advice": [],
        });
        return line(&value);
    }
    let mut lines = Lines::default();
    lines.wrapped(summary(tape), 2);
    lines.wrapped(
        format_args!(
            "No advice: on the model of the device memory is short at event {event} of {} with \
             the program's own options already. So nothing is said about others.",
            tape.events
        ),
        2,
    );
    lines.text
}

/// The trials that are worth a line, the best first; of those that reserve the same, the
/// one with the fewest options.
fn worth(found: &Search) -> Vec<&Tried> {
    let recorded = found.recorded.reserved;
    let mut worth: Vec<&Tried> = Vec::new();
    for tried in &found.found {
        let saved = recorded.saturating_sub(tried.outcome.reserved);
        let is_worth = saved >= WORTH && saved.saturating_mul(1000) >= recorded * WORTH_PART;
        let is_new = worth
            .iter()
            .all(|other| other.outcome.reserved != tried.outcome.reserved);
        if is_worth && is_new {
            worth.push(tried);
        }
    }
    worth
}

/// The options of a trial, as they are set.
fn setting(tried: &Tried) -> String {
    let pairs = tried
        .choice
        .iter()
        .map(|(key, value)| format!("{key}:{value}"));
    pairs.collect::<Vec<_>>().join(",")
}

fn told_of(tape: &Tape, found: &Search, tried: &Tried, smallest: Option<Bytes>) -> String {
    let saved = found
        .recorded
        .reserved
        .saturating_sub(tried.outcome.reserved);
    let mut text = format!(
        "{}. Reserves {}, {} less ({}); {} for memory in the place of {}, {} in the place of {}",
        setting(tried),
        bytes(tried.outcome.reserved),
        bytes(saved),
        share(saved, found.recorded.reserved),
        count(tried.outcome.memory_calls, "call"),
        found.recorded.memory_calls,
        duration(tried.outcome.price),
        duration(found.recorded.price),
    );
    if let Some(smallest) = smallest {
        text += &format!("; {} {}", runs_on(tape), device(tape, smallest));
    }
    text += ".";
    if let Some(without) = without(&tried.choice) {
        text += &format!(" {without}");
    }
    text
}

/// What a program must do without under these options.
fn without(choice: &[(String, String)]) -> Option<&'static str> {
    let is_mapped = |(key, value): &(String, String)| key == "strategy" && value == "mapped";
    choice.iter().any(is_mapped).then_some(
        "Not for a program that shares device memory with other processes by handles \
         (cudaIpcGetMemHandle): of mapped memory there are none.",
    )
}

/// The smallest memory on which the program runs with these options.
fn smallest_of(tape: &Tape, choice: &[(String, String)]) -> Option<Bytes> {
    let options = tape.loaded(choice).ok()?.settings;
    let setup = Setup {
        options: &options,
        room: Room::AsRecorded,
        lag: Lag::AsSeen,
        passes: PASSES,
    };
    smallest(tape, &setup, peak_live(tape))
}

/// What is said before the smallest device.
fn runs_on(tape: &Tape) -> &'static str {
    match tape.past.is_empty() {
        true => "runs on",
        false => "runs, but for what went past the pool, on",
    }
}

/// A device with so much memory for the program, and one that is sold.
fn device(tape: &Tape, usable: Bytes) -> String {
    let Some(of_cuda) = tape.of_cuda() else {
        return format!(
            "a device with {} besides what CUDA takes",
            bytes(usable.get())
        );
    };
    let all = usable.get().saturating_add(of_cuda);
    let sold = SOLD.iter().find(|&&gib| gib << 30 >= all);
    let sold = sold.map_or(String::new(), |gib| format!(" (such as one of {gib} GiB)"));
    format!("a device of {}{sold}", bytes(all))
}

fn answer(tape: &Tape, device: u64, as_json: bool) -> Result<(String, u8), String> {
    let options = tape.loaded(&[])?.settings;
    let verdict = fits(tape, &options, Bytes::new(device));
    let usable = device.saturating_sub(tape.of_cuda().unwrap_or(fits::FOR_CUDA));
    let status = if verdict.fits == fits::Fits::Yes {
        0
    } else {
        NOT_SURE
    };
    let text = if as_json {
        line(&json!({
            "reproduced": tape.options.is_some(),
            "fits": verdict.fits.word(),
            "why": verdict.why,
            "usable_bytes": usable,
            "needs_at_least_bytes": verdict.least.map(Bytes::get),
            "needs_at_most_bytes": verdict.most.map(Bytes::get),
            "later_rounds_per_mille": verdict.spread,
            "rounds": verdict.rounds,
        }))
    } else {
        words(tape, device, usable, &verdict)
    };
    Ok((text, status))
}

fn words(tape: &Tape, device: u64, usable: u64, verdict: &Verdict) -> String {
    let mut lines = Lines::default();
    lines.wrapped(summary(tape), 2);
    let size = |size: Option<Bytes>| size.map_or("more than any".to_owned(), |s| bytes(s.get()));
    let needs = match (verdict.least, verdict.most) {
        (least, most) if least == most => size(most),
        (least, most) => format!("{} to {}", size(least), size(most)),
    };
    let mut text = format!(
        "{}: a device of {} leaves {} to the program, and what was recorded needs {needs}.",
        verdict.fits.word(),
        bytes(device),
        bytes(usable),
    );
    if let Some(why) = &verdict.why {
        text += &format!(" {why}");
    } else if let Some(spread) = verdict.spread {
        text += &format!(
            " The peaks of its {} say that later ones may need {} more.",
            count(verdict.rounds as u64, "round"),
            units_per_mille(spread),
        );
    }
    if tape.of_cuda().is_none() {
        text += &format!(" {}", fits::left_for_cuda());
    }
    lines.wrapped(text, 2);
    lines.text
}

#[allow(clippy::cast_precision_loss, reason = "a share with one digit")]
fn units_per_mille(share: u64) -> String {
    percent(share as f64 / 1000.0)
}
