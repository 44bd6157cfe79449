//! `vramalloc metrics`: what the user's processes have, as OpenMetrics text.
//!
//! Only gauges, whose text OpenMetrics and Prometheus's older format read alike:
//! so a file does for node_exporter's textfile collector too. Invariant: no two
//! lines have the same name and labels; a file is whole whenever somebody reads it.

use std::fmt::{Display, Write as _};
use std::path::PathBuf;

use vramalloc_core::Bytes;
use vramalloc_core::control::DeviceFigures;

use super::look::{self, Look, Watched};
use super::output::{USAGE, is_unseen, say};
use super::{status, target};

#[derive(clap::Args)]
#[command(after_help = "\
For Prometheus: let a timer write a file into the folder of node_exporter's \
textfile collector:
  vramalloc metrics --output FOLDER/vramalloc.prom

Each process has its own series, by pid, program and device, as vramalloc status \
numbers them; those of a process that has ended are gone. limit_bytes is missing \
where there is no limit.")]
pub(super) struct Arguments {
    /// Where to: a file, which is replaced as a whole, or - for standard output
    #[arg(long, short, value_name = "FILE", default_value = "-",
          value_hint = clap::ValueHint::FilePath)]
    output: PathBuf,
}

/// Writes the metrics. Returns the exit status.
pub(super) fn metrics(arguments: &Arguments) -> u8 {
    let checked = target::check(&arguments.output, [], "--output");
    let look = match checked.and_then(|()| Look::now(&[])) {
        Ok(look) => look,
        Err(error) => {
            say(error);
            return USAGE;
        }
    };
    target::write(&arguments.output, text(&look).as_bytes())
}

/// What is told of each process on each device: the name behind the prefix, what
/// it means, and the number; nothing if there is none.
type OfDevice = (
    &'static str,
    &'static str,
    fn(&DeviceFigures) -> Option<Bytes>,
);

const OF_DEVICES: [OfDevice; 10] = [
    (
        "live_bytes",
        "Memory that the program holds of the pool.",
        |device| Some(device.live),
    ),
    ("live_peak_bytes", "The most that was live.", |device| {
        Some(device.live_peak)
    }),
    (
        "cached_bytes",
        "Memory of the pool that is free, kept to be handed out again.",
        look::cached,
    ),
    (
        "limbo_bytes",
        "Memory that the program freed and the device may still use.",
        |device| device.limbo,
    ),
    (
        "reserved_bytes",
        "Memory that the driver gave for the pool: live, cached and in limbo.",
        |device| Some(device.reserved),
    ),
    (
        "reserved_peak_bytes",
        "The most that was reserved.",
        |device| Some(device.reserved_peak),
    ),
    (
        "past_pool_bytes",
        "Memory that CUDA itself gave, by cudaMallocAsync, cuMemCreate and the like.",
        |device| Some(device.past),
    ),
    (
        "past_pool_peak_bytes",
        "The most that was past the pool.",
        |device| Some(device.past_peak),
    ),
    (
        "limit_bytes",
        "The limit in force, for what is reserved and past the pool.",
        |device| device.limit,
    ),
    ("device_memory_bytes", "The device's memory.", |device| {
        device.total
    }),
];

/// The text of all metrics.
fn text(look: &Look) -> String {
    let ids = look.ids();
    let processes: Vec<(String, &Watched)> = ids
        .iter()
        .zip(&look.processes)
        .map(|(id, process)| {
            (
                labels(&[("pid", id), ("program", &process.owner.program)]),
                process,
            )
        })
        .collect();
    let mut out = String::new();
    one(
        &mut out,
        "processes",
        "Processes whose memory is told.",
        look.processes.len(),
    );
    let unread = "Pages that cannot be read: of another version, or not as they should be.";
    one(&mut out, "unread_pages", unread, look.unread);
    of_processes(&mut out, &processes);
    for (name, help, number) in OF_DEVICES {
        family(&mut out, name, help);
        for (labels, process) in &processes {
            for device in process.devices() {
                if let Some(bytes) = number(device) {
                    let ordinal = device.ordinal;
                    line(
                        &mut out,
                        name,
                        &format!("{labels},device=\"{ordinal}\""),
                        bytes.get(),
                    );
                }
            }
        }
    }
    out.push_str("# EOF\n");
    out
}

/// What is told of each process, and of its devices in words.
fn of_processes(out: &mut String, processes: &[(String, &Watched)]) {
    let name = "process_info";
    family(
        out,
        name,
        "The version of the library in the process; always 1.",
    );
    for (of, process) in processes {
        let more = labels(&[("version", &process.owner.version)]);
        line(out, name, &format!("{of},{more}"), 1);
    }
    let name = "process_start_time_seconds";
    family(out, name, "When the process began, in seconds since 1970.");
    for (of, process) in processes {
        line(out, name, of, seconds(process.owner.started_ms));
    }
    let name = "figures_timestamp_seconds";
    family(
        out,
        name,
        "When the process wrote its figures, in seconds since 1970.",
    );
    for (of, process) in processes {
        if let Some(figures) = &process.figures {
            line(out, name, of, seconds(figures.at_ms));
        }
    }
    let name = "device_info";
    family(
        out,
        name,
        "The device that the process has under a number; always 1.",
    );
    for (of, process) in processes {
        for device in process.devices() {
            let uuid = match device.uuid {
                0 => String::new(),
                uuid => status::uuid(uuid),
            };
            let ordinal = device.ordinal.to_string();
            let more = [
                ("device", &*ordinal),
                ("uuid", &uuid),
                ("name", &device.name),
            ];
            line(out, name, &format!("{of},{}", labels(&more)), 1);
        }
    }
}

/// A number without labels.
fn one(out: &mut String, name: &str, help: &str, number: usize) {
    family(out, name, help);
    let _ = writeln!(out, "{PREFIX}{name} {number}");
}

const PREFIX: &str = "vramalloc_";

/// Begins the lines of a name. Its unit is its last word.
fn family(out: &mut String, name: &str, help: &str) {
    // Writing to a string cannot fail; as below.
    let _ = writeln!(out, "# TYPE {PREFIX}{name} gauge");
    let unit = name.rsplit('_').next().unwrap_or_default();
    if ["bytes", "seconds"].contains(&unit) {
        let _ = writeln!(out, "# UNIT {PREFIX}{name} {unit}");
    }
    let _ = writeln!(out, "# HELP {PREFIX}{name} {help}");
}

fn line(out: &mut String, name: &str, labels: &str, number: impl Display) {
    let _ = writeln!(out, "{PREFIX}{name}{{{labels}}} {number}");
}

fn seconds(ms: u64) -> String {
    format!("{}.{:03}", ms / 1000, ms % 1000)
}

/// Labels and their values, with what would end a value written so that it does
/// not. What would do something to a terminal is replaced.
fn labels(all: &[(&str, &str)]) -> String {
    let mut out = String::new();
    for (name, value) in all {
        let comma = if out.is_empty() { "" } else { "," };
        let _ = write!(out, "{comma}{name}=\"");
        for c in value.chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                '"' => out.push_str("\\\""),
                '\n' => out.push_str("\\n"),
                c if is_unseen(c) => out.push('\u{fffd}'),
                c => out.push(c),
            }
        }
        out.push('"');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::look::tests::watched;
    use super::*;

    fn example() -> Look {
        let mut old = watched(
            12,
            "old \\ \"one\"\n\u{1b}[31m\u{202e}\u{feff}",
            &[(1, [5, 0, 0, 0])],
        );
        if let Some(figures) = &mut old.figures {
            figures.devices[0].limbo = None;
        }
        let mut silent = watched(13, "silent", &[]);
        silent.figures = None;
        Look {
            at_ms: 1,
            processes: vec![watched(11, "train", &[(0, [10, 1, 2, 3])]), old, silent],
            unread: 1,
            ..Look::default()
        }
    }

    #[test]
    fn the_text_is_as_it_was_shown() {
        insta::assert_snapshot!("metrics", text(&example()));
    }

    #[test]
    fn what_is_not_known_has_no_line() {
        let text = text(&example());
        let lines = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
        assert_eq!(lines("vramalloc_live_bytes{"), 2);
        assert_eq!(lines("vramalloc_limbo_bytes{"), 1);
        assert_eq!(lines("vramalloc_limit_bytes{"), 1);
        assert_eq!(lines("vramalloc_process_info{"), 3);
        assert!(!text.contains(['\u{1b}', '\u{202e}', '\u{feff}']));
    }
}
