//! `vramalloc replay`: a recorded program once more, with the options that it had, with
//! others, or on another device.
//!
//! First the recording has to lead the allocator to the same addresses and calls of the
//! driver (`witness`); what would have come of something else is said only then
//! (`trial`). A snapshot of PyTorch's has nothing to compare with: it is of another
//! allocator, of which the program's own calls are taken (`torch`).

pub(super) mod live;
mod pickle;
pub(super) mod price;
pub(super) mod tape;
mod torch;
pub(super) mod trial;
pub(super) mod witness;

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use vramalloc_core::Bytes;
use vramalloc_core::config::{DeviceShare, Host, Settings, check_all, load};
use vramalloc_core::recording::is_recording;

use super::grid::{Column, Grid};
use super::lines::Lines;
use super::output;
use super::progress::Progress;
use super::units::{bytes, count, duration, share};
use live::{peak_live, peaks_of_all};
use tape::{Tape, What};
use trial::{Lag, Outcome, Room, Setup, smallest, trial};
use witness::Difference;

/// The exit status if the recorded options do not lead to the recorded run.
pub(super) const DIFFERS: u8 = 1;

/// What is said below the help.
const WHEN: &str = "\
The exit status is 0; 1 if the recorded options do not lead to what was recorded, \
and then nothing else is said; 2 if the file cannot be read.

Example: vramalloc replay run.rec --option strategy=mapped --device 24G --smallest";

#[derive(clap::Args)]
#[command(after_help = WHEN)]
pub(super) struct Arguments {
    /// The recording (option record), or a snapshot of PyTorch's memory
    file: PathBuf,
    /// An option of the library in the place of the recorded one; it may be given
    /// several times
    #[arg(long = "option", value_name = "KEY=VALUE", value_parser = pair)]
    options: Vec<(String, String)>,
    /// On a device with so much memory, of which CUDA takes what it took
    #[arg(long, value_name = "SIZE", value_parser = size)]
    device: Option<u64>,
    /// Say also on how small a device it would run
    #[arg(long)]
    smallest: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// An option and its value.
fn pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=');
    let (key, value) = pair.ok_or_else(|| "accepted: KEY=VALUE".to_owned())?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

/// A size in bytes, in the forms that a limit takes.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let loaded = load([("VRAMALLOC_LIMIT".into(), text.into())], Host::default());
    match loaded.settings.config.limit {
        Some(DeviceShare::Bytes(bytes)) if loaded.warnings.is_empty() => Ok(bytes.get()),
        _ => Err(format!("{text} is no size, such as 24G or 512MiB")),
    }
}

/// Replays a file. Returns the exit status.
pub(super) fn replay(arguments: &Arguments) -> u8 {
    output::answer(&arguments.file, told(arguments))
}

fn told(arguments: &Arguments) -> Result<(String, u8), String> {
    let tape = read(&arguments.file)?;
    let recorded = tape.loaded(&[])?.settings;
    let given: Vec<(&str, &str)> = (arguments.options.iter())
        .map(|(key, value)| (&**key, &**value))
        .collect();
    check_all(recorded.clone(), &given)?;
    let changed = tape.loaded(&arguments.options)?.settings;
    let _progress = Progress::new("replaying", None);
    let checked = proven(&tape);
    if let Err(difference) = &checked {
        let text = match arguments.json {
            true => {
                json!({ "reproduced": false, "differs": difference_json(difference) }).to_string()
                    + "\n"
            }
            false => differs(&tape, difference),
        };
        return Ok((text, DIFFERS));
    }
    let room = arguments.device.map_or(Room::AsRecorded, |device| {
        Room::Usable(Bytes::new(
            device.saturating_sub(tape.of_cuda().unwrap_or(0)),
        ))
    });
    let mut rows = vec![Row::of(
        &tape,
        match tape.options {
            Some(_) => "as recorded",
            None => "default options",
        },
        &recorded,
        Room::AsRecorded,
        arguments,
    )];
    if !arguments.options.is_empty() || arguments.device.is_some() {
        let given = arguments
            .options
            .iter()
            .map(|(key, value)| format!("{key}={value}"));
        let on = arguments
            .device
            .map(|device| format!("on {}", bytes(device)));
        let name = given.chain(on).collect::<Vec<_>>().join(" ");
        rows.push(Row::of(&tape, &name, &changed, room, arguments));
    }
    Ok((
        match arguments.json {
            true => json_of(&tape, &rows),
            false => text_of(&tape, &rows),
        },
        0,
    ))
}

/// Whether a tape can be believed; one of another allocator can.
pub(super) fn proven(tape: &Tape) -> Result<(), Difference> {
    if tape.options.is_none() {
        return Ok(());
    }
    witness::check(tape)
}

/// Reads a recording, or a snapshot.
///
/// # Errors
/// What is wrong with the file.
pub(super) fn read(path: &Path) -> Result<Tape, String> {
    let progress = Progress::reading([path].into_iter());
    let file = progress.open(path).map_err(|error| error.to_string())?;
    tape_of(file)
}

/// The same of what was opened.
///
/// # Errors
/// What is wrong with it.
pub(super) fn tape_of<R: Read + Seek>(mut file: R) -> Result<Tape, String> {
    let mut start = Vec::new();
    let read = file.by_ref().take(64).read_to_end(&mut start);
    read.map_err(|error| error.to_string())?;
    let rewound = file.seek(SeekFrom::Start(0));
    rewound.map_err(|error| error.to_string())?;
    if is_recording(&start) {
        return Tape::read(file);
    }
    if start.trim_ascii_start().starts_with(b"{") {
        return Err(
            "it is no recording: statistics, if it is those, do not say what happened \
             when; vramalloc run --option record=%e.%p.rec makes a recording"
                .to_owned(),
        );
    }
    torch::read(file)
}

/// What came of one setup, at both ends of what the device can have done.
struct Row {
    name: String,
    best: Outcome,
    worst: Outcome,
    smallest: Option<(Option<Bytes>, Option<Bytes>)>,
}

impl Row {
    fn of(tape: &Tape, name: &str, options: &Settings, room: Room, asked: &Arguments) -> Row {
        let setup = |lag| Setup {
            options,
            room,
            lag,
            passes: 1,
        };
        let [best, worst] = [Lag::None, Lag::AsSeen].map(|lag| trial(tape, &setup(lag)));
        let live = peak_live(tape);
        let smallest = asked.smallest.then(|| {
            let [best, worst] = [Lag::None, Lag::AsSeen].map(|lag| {
                let setup = Setup {
                    passes: PASSES,
                    ..setup(lag)
                };
                smallest(tape, &setup, live)
            });
            (best, worst)
        });
        Row {
            name: name.to_owned(),
            best,
            worst,
            smallest,
        }
    }
}

/// On a small device a program is to do all of it several times: what lies scattered
/// after the first is in the way of the second.
pub(super) const PASSES: u32 = 3;

/// The line about a recording that does not lead to itself.
pub(super) fn differs(tape: &Tape, difference: &Difference) -> String {
    let mut lines = Lines::default();
    if difference.event == 0 {
        lines.wrapped(
            format_args!("The recording cannot be replayed: {}.", difference.what),
            2,
        );
    } else {
        lines.wrapped(
            format_args!(
                "The recorded options do not lead to the recorded run: at event {} of {} ({} after \
                 the first), {}.",
                difference.event,
                tape.events,
                duration(difference.time_us.saturating_mul(1000)),
                difference.what,
            ),
            2,
        );
    }
    lines.wrapped(
        "So nothing is said about other options: it could not be believed.",
        2,
    );
    lines.text
}

pub(super) fn difference_json(difference: &Difference) -> Value {
    json!({
        "event": difference.event,
        "after_us": difference.time_us,
        "what": difference.what,
    })
}

/// What a tape holds, in a line.
pub(super) fn summary(tape: &Tape) -> String {
    let frees = tape
        .items
        .iter()
        .filter(|item| matches!(item.what, What::Free { .. }));
    let proof = if tape.options.is_some() {
        "; replayed with the recorded options, it leads to the same addresses, calls of the \
         driver and peak"
    } else {
        "; a snapshot of PyTorch's, so there is nothing that a replay could be compared with"
    };
    let live = match tape.devices().len() {
        0 | 1 => "live at the peak".to_owned(),
        devices => format!("live at the peaks of {devices} devices together"),
    };
    let past: Vec<&str> = tape.past.iter().map(|family| family.taken_by()).collect();
    let past = match past.is_empty() {
        true => String::new(),
        false => format!(
            " The program also had memory past the pool ({}), which no figure here counts.",
            past.join(", ")
        ),
    };
    let cut = match tape.is_cut {
        true => " The file is cut off: this is of what can be read of it.",
        false => "",
    };
    format!(
        "{} and {} in {}, {} {live}{proof}.{past}{cut}",
        count(u64::from(tape.blocks), "allocation"),
        count(frees.count() as u64, "free"),
        duration(tape.length_us().saturating_mul(1000)),
        bytes(peaks_of_all(tape)),
    )
}

/// The last is for what was looked for.
const COLUMNS: &[Column] = &[
    Column::text("").least(24),
    Column::number("RESERVED"),
    Column::number("OVER LIVE").spare(1),
    Column::number("CALLS").spare(2),
    Column::number("THEIR TIME").spare(3),
    Column::number("SMALLEST DEVICE"),
];

fn text_of(tape: &Tape, rows: &[Row]) -> String {
    let live = peaks_of_all(tape);
    let mut lines = Lines::default();
    lines.wrapped(summary(tape), 2);
    lines.text.push('\n');
    let is_looked_for = rows.iter().any(|row| row.smallest.is_some());
    let columns = COLUMNS.len() - usize::from(!is_looked_for);
    let mut grid = Grid::new(COLUMNS.get(..columns).unwrap_or(COLUMNS));
    for row in rows {
        let reserved = |outcome: &Outcome| match outcome.failed_at {
            Some(at) => format!("fails at event {at}"),
            None => bytes(outcome.reserved),
        };
        let smallest = row.smallest.map(|(best, worst)| {
            let shown = |bytes_of: Option<Bytes>| {
                bytes_of.map_or("none".to_owned(), |found| {
                    bytes(found.get().saturating_add(tape.of_cuda().unwrap_or(0)))
                })
            };
            both(shown(best), shown(worst))
        });
        let over = |outcome: &Outcome| match outcome.failed_at {
            Some(_) => "-".to_owned(),
            None => share(outcome.reserved.saturating_sub(live), live),
        };
        let cells = [
            row.name.clone(),
            both(reserved(&row.best), reserved(&row.worst)),
            both(over(&row.best), over(&row.worst)),
            both(
                row.best.memory_calls.to_string(),
                row.worst.memory_calls.to_string(),
            ),
            both(duration(row.best.price), duration(row.worst.price)),
            smallest.unwrap_or_default(),
        ];
        grid.row(cells.into_iter().take(columns));
    }
    grid.write(0, &mut lines);
    lines.text.push('\n');
    let with_cuda = match tape.of_cuda() {
        Some(_) => "with what CUDA took",
        None => "without what CUDA takes, which is not told",
    };
    lines.wrapped(
        format_args!(
            "Two figures are the ends of what is possible: with a device that is done at once, \
             and with one that is done when the program saw it. Calls are those for memory; \
             their time is by published prices, without what they wait. A device's size is \
             {with_cuda}.",
        ),
        2,
    );
    lines.text
}

/// Both ends in a cell; one where they are the same.
fn both(best: String, worst: String) -> String {
    if best == worst {
        return best;
    }
    format!("{best} … {worst}")
}

fn json_of(tape: &Tape, rows: &[Row]) -> String {
    let rows: Vec<Value> = (rows.iter())
        .map(|row| {
            let smallest = row
                .smallest
                .map(|(best, worst)| json!([best.map(Bytes::get), worst.map(Bytes::get)]));
            json!({
                "name": row.name,
                "done_at_once": outcome_json(&row.best),
                "done_as_seen": outcome_json(&row.worst),
                "smallest_usable_bytes": smallest,
            })
        })
        .collect();
    let value = json!({
        "reproduced": tape.options.is_some(),
        "allocations": tape.blocks,
        "peak_live_bytes": peaks_of_all(tape),
        "of_cuda_bytes": tape.of_cuda(),
        "rows": rows,
    });
    value.to_string() + "\n"
}

pub(super) fn outcome_json(outcome: &Outcome) -> Value {
    json!({
        "failed_at_event": outcome.failed_at,
        "reserved_bytes": outcome.reserved,
        "memory_calls": outcome.memory_calls,
        "driver_ns": outcome.price,
    })
}
