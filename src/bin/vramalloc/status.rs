//! `vramalloc status`: what the processes of this user have on their devices.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use vramalloc_core::Bytes;
use vramalloc_core::control::{DeviceFigures, Figures};

use super::lines::Lines;
use super::output::{USAGE, say, show};
use super::pages::{self, Peer};
use super::units;

#[derive(clap::Args)]
#[command(after_help = "\
Live is what the program holds of the pool, reserved what was taken from the
driver for that. Past the pool is what CUDA gave by other functions than
cudaMalloc (cudaMallocAsync, cuMemCreate and the like). The limit is for both.
The figures are as old as the last column says: a process writes them when it
takes memory or gives some back, and with every few frees. Reserved and past the
pool change only then.

Only your own processes are shown; those that have not asked for CUDA memory so
far, nor what is free, and those with control:off, are not. Processes of
containers are shown if they have the same ipc_dir, by their ids here; a * marks
ids that are known in the container only.")]
pub(super) struct Arguments {
    /// Only this process
    pid: Option<u64>,

    /// As JSON, with bytes and times as numbers
    #[arg(long)]
    json: bool,
}

/// Prints the table. Returns the exit status.
pub(super) fn status(arguments: &Arguments) -> u8 {
    let found = match arguments.pid {
        None => pages::peers(),
        Some(pid) => pages::find(pid).map(|peer| vec![peer]),
    };
    let peers = match found {
        Ok(peers) => peers,
        Err(error) => {
            say(error);
            return USAGE;
        }
    };
    if arguments.json {
        let all: Vec<Value> = peers.iter().map(json).collect();
        return show(&format!("{:#}\n", Value::from(all)));
    }
    if peers.is_empty() {
        say("no process of yours uses CUDA memory under vramalloc");
        return 0;
    }
    show(&table(&peers, now_ms()))
}

/// Milliseconds since 1970.
fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(now.unwrap_or(Duration::ZERO).as_millis()).unwrap_or(u64::MAX)
}

const COLUMNS: usize = 10;

const HEADS: [&str; COLUMNS] = [
    "PID",
    "PROGRAM",
    "DEVICE",
    "LIVE",
    "PEAK",
    "RESERVED",
    "PAST POOL",
    "LIMIT",
    "UP",
    "AGE",
];

/// Columns of texts; numbers stand to the right.
const TEXTS: [&str; 2] = ["PROGRAM", "DEVICE"];

fn table(peers: &[Peer], now: u64) -> String {
    let mut rows = vec![HEADS.map(str::to_owned)];
    for peer in peers {
        rows.extend(process(peer, now));
    }
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    let mut lines = Lines::default();
    for row in &rows {
        let cells = row
            .iter()
            .zip(widths)
            .zip(HEADS)
            .map(|((cell, width), head)| {
                if TEXTS.contains(&head) {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                }
            });
        lines.exact(cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    if peers.iter().any(|peer| peer.id.is_none()) {
        lines.exact("* as its container numbers it");
    }
    lines.text
}

/// A line for each device of a process.
fn process(peer: &Peer, now: u64) -> Vec<[String; COLUMNS]> {
    let owner = &peer.owner;
    let mark = if peer.id.is_some() { "" } else { "*" };
    let up = span(now.saturating_sub(owner.started_ms));
    let head = [format!("{}{mark}", peer.shown_id()), owner.program.clone()];
    let figures = peer.figures();
    let age = figures
        .as_ref()
        .map(|figures| span(now.saturating_sub(figures.at_ms)));
    let age = age.unwrap_or_else(|| "-".to_owned());
    let devices = figures.map(|figures| figures.devices).unwrap_or_default();
    let mut cells: Vec<[String; 6]> = devices.iter().map(device).collect();
    if cells.is_empty() {
        cells.push(std::array::from_fn(|_| "-".to_owned()));
    }
    let [pid, program] = head;
    let rows = cells.into_iter().enumerate().map(|(n, cells)| {
        // What is of the process stands in its first line.
        let first = |text: &str| {
            if n == 0 {
                text.to_owned()
            } else {
                String::new()
            }
        };
        let [device, live, peak, reserved, past, limit] = cells;
        let (pid, program) = (first(&pid), first(&program));
        [
            pid,
            program,
            device,
            live,
            peak,
            reserved,
            past,
            limit,
            first(&up),
            first(&age),
        ]
    });
    rows.collect()
}

fn device(device: &DeviceFigures) -> [String; 6] {
    let bytes = |bytes: Bytes| units::bytes(bytes.get());
    [
        format!("{} {}", device.ordinal, device.name)
            .trim_end()
            .to_owned(),
        bytes(device.live),
        bytes(device.live_peak),
        bytes(device.reserved),
        bytes(device.past),
        device.limit.map_or_else(|| "none".to_owned(), bytes),
    ]
}

/// A time in its largest unit: `12 s`, `3 h`.
fn span(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0 => format!("0.{} s", ms / 100),
        1..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

fn json(peer: &Peer) -> Value {
    let owner = &peer.owner;
    let figures = peer.figures();
    let told = |of: fn(&Figures) -> u64| figures.as_ref().map(of);
    let devices = figures.iter().flat_map(|figures| &figures.devices);
    json!({
        "pid": peer.shown_id(),
        "pid_is_of_container": peer.id.is_none(),
        "pid_in_container": owner.pid,
        "program": owner.program,
        "library_version": owner.version,
        "started_unix_ms": owner.started_ms,
        "figures_unix_ms": told(|figures| figures.at_ms),
        "driver_calls": told(|figures| figures.driver_calls),
        "devices": devices.map(device_json).collect::<Vec<_>>(),
    })
}

fn device_json(device: &DeviceFigures) -> Value {
    json!({
        "device": device.ordinal,
        "device_uuid": (device.uuid != 0).then(|| uuid(device.uuid)),
        "device_name": device.name,
        "device_total_bytes": device.total.map(Bytes::get),
        "live_bytes": { "current": device.live.get(), "peak": device.live_peak.get() },
        "reserved_bytes": {
            "current": device.reserved.get(),
            "peak": device.reserved_peak.get(),
        },
        "past_pool_bytes": { "current": device.past.get(), "peak": device.past_peak.get() },
        "limit_bytes": device.limit.map(Bytes::get),
    })
}

/// As `nvidia-smi -L` writes it, without what it puts in front.
fn uuid(number: u128) -> String {
    let digits = format!("{number:032x}");
    let mut rest = digits.as_str();
    let parts = [8, 4, 4, 4, 12].map(|length| {
        let (part, after) = rest.split_at_checked(length).unwrap_or((rest, ""));
        rest = after;
        part
    });
    parts.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_names_are_written_as_people_read_them() {
        for (ms, text) in [
            (0, "0.0 s"),
            (999, "0.9 s"),
            (119_999, "119 s"),
            (120_000, "2 min"),
            (7_200_000, "2 h"),
            (172_800_000, "2 d"),
        ] {
            assert_eq!(span(ms), text);
        }
        let number = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef;
        assert_eq!(uuid(number), "01234567-89ab-cdef-0123-456789abcdef");
    }
}
