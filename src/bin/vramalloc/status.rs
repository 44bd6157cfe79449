//! `vramalloc status`: what the processes of this user have on their devices.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use vramalloc_core::Bytes;
use vramalloc_core::control::{DeviceFigures, Figures, PageOwner};

use super::gloss;
use super::grid::{Column, Grid};
use super::lines::Lines;
use super::output::{USAGE, say, show};
use super::pages::{self, Peer};
use super::units;

#[derive(clap::Args)]
#[command(after_help = "\
Live is what the program holds of the pool, reserved what was taken from the \
driver for that. Past the pool is what CUDA gave by other functions than \
cudaMalloc (cudaMallocAsync, cuMemCreate and the like). The limit is for both. \
Paused, where something is, is what the program has given to the device until it \
resumes it. \
The figures are as old as the last column says: a process writes them when it \
takes memory or gives some back, and with every few frees. Reserved and past the \
pool change only then. Columns for which the terminal has no room are left out; \
--json has all.

Only your own processes are shown; those that have not asked for CUDA memory so \
far, nor what is free, and those with control:off, are not. Processes of \
containers are shown if they have the same ipc_dir, by their ids here; a * marks \
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
        let all = peers.iter().map(|peer| {
            let figures = peer.figures();
            json(peer.id, &peer.owner, figures.as_ref())
        });
        let all: Vec<Value> = all.collect();
        return show(&format!("{:#}\n", Value::from(all)));
    }
    if peers.is_empty() {
        say("no process of yours uses CUDA memory under vramalloc");
        return 0;
    }
    let shown: Vec<Shown> = peers.iter().map(Shown::new).collect();
    let mut out = Lines::default();
    table(&shown, now_ms(), &mut out);
    gloss::explain(&mut out);
    show(&out.text)
}

/// What is shown of a process.
struct Shown {
    pid: String,
    program: String,
    started_ms: u64,
    figures: Option<Figures>,
}

impl Shown {
    fn new(peer: &Peer) -> Shown {
        let mark = if peer.id.is_some() { "" } else { STRANGE };
        Shown {
            pid: format!("{}{mark}", peer.shown_id()),
            program: peer.owner.program.clone(),
            started_ms: peer.owner.started_ms,
            figures: peer.figures(),
        }
    }
}

/// The mark of an id that is not known here.
pub(super) const STRANGE: &str = "*";

/// Milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(now.unwrap_or(Duration::ZERO).as_millis()).unwrap_or(u64::MAX)
}

const COLUMNS: [Column; 11] = [
    Column::number("PID"),
    Column::text("PROGRAM"),
    Column::number("DEVICE"),
    Column::text("NAME").spare(6),
    Column::number("LIVE"),
    Column::number("PEAK").spare(2),
    Column::number("RESERVED").spare(1),
    Column::number("PAST POOL").spare(3),
    Column::number("LIMIT"),
    Column::number("UP").spare(4),
    Column::number("AGE").spare(5),
];

/// Shown where something is paused, in the place of the same number.
const PAUSED: (usize, Column) = (7, Column::number("PAUSED"));

fn table(processes: &[Shown], now: u64, out: &mut Lines) {
    let figures = processes
        .iter()
        .filter_map(|process| process.figures.as_ref());
    let mut devices = figures.flat_map(|figures| &figures.devices);
    let is_any_paused = devices.any(|device| !device.paused.is_zero());
    let mut columns = COLUMNS.to_vec();
    if is_any_paused {
        let (place, column) = PAUSED;
        columns.insert(place, column);
        // Where there is too little room for both, what is paused is the news.
        let limit = columns.iter_mut().find(|column| column.head == "LIMIT");
        limit.into_iter().for_each(|limit| *limit = limit.spare(2));
    }
    let mut grid = Grid::new(&columns);
    for process in processes {
        rows(process, now, is_any_paused, &mut grid);
    }
    grid.write(0, out);
    if processes
        .iter()
        .any(|process| process.pid.ends_with(STRANGE))
    {
        out.exact("* as its container numbers it");
    }
}

/// A line for each device of a process, with what is paused if that has a column. What
/// is of the process stands in the first.
fn rows(process: &Shown, now: u64, shows_paused: bool, grid: &mut Grid<'_>) {
    let since = |then| units::span(now.saturating_sub(then));
    let figures = process.figures.as_ref();
    let age = figures.map(|figures| since(figures.at_ms));
    let mut own = [
        process.pid.clone(),
        process.program.clone(),
        since(process.started_ms),
        age.unwrap_or_else(|| "-".to_owned()),
    ];
    let devices = figures.iter().flat_map(|figures| &figures.devices);
    let mut rows: Vec<[String; 8]> = devices.map(device).collect();
    if rows.is_empty() {
        rows.push(std::array::from_fn(|_| "-".to_owned()));
    }
    for cells in rows {
        let [pid, program, up, age] = std::mem::take(&mut own);
        let cells = [pid, program].into_iter().chain(cells).chain([up, age]);
        let (place, _) = PAUSED;
        let cells = cells.enumerate();
        let cells = cells.filter(|&(at, _)| shows_paused || at != place);
        grid.row(cells.map(|(_, cell)| cell));
    }
}

fn device(device: &DeviceFigures) -> [String; 8] {
    let bytes = |bytes: Bytes| units::bytes(bytes.get());
    [
        device.ordinal.to_string(),
        device.name.to_string(),
        bytes(device.live),
        bytes(device.live_peak),
        bytes(device.reserved),
        bytes(device.paused),
        bytes(device.past),
        device.limit.map_or_else(|| "none".to_owned(), bytes),
    ]
}

/// A process: its id here, if that is known, whose its page is, and its figures.
pub(super) fn json(id: Option<u64>, owner: &PageOwner, figures: Option<&Figures>) -> Value {
    let told = |of: fn(&Figures) -> u64| figures.map(of);
    let devices = figures.iter().flat_map(|figures| &figures.devices);
    json!({
        "pid": id.unwrap_or(owner.pid),
        "pid_is_of_container": id.is_none(),
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
        "limbo_bytes": device.limbo.map(Bytes::get),
        "paused_bytes": device.paused.get(),
        "past_pool_bytes": { "current": device.past.get(), "peak": device.past_peak.get() },
        "limit_bytes": device.limit.map(Bytes::get),
    })
}

/// As `nvidia-smi -L` writes it, without what it puts in front.
pub(super) fn uuid(number: u128) -> String {
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
    fn the_table_fits_where_it_is_shown() {
        let device = |ordinal, past| DeviceFigures {
            ordinal,
            name: "NVIDIA H100 80GB HBM3".into(),
            live: Bytes::mib(51_300),
            live_peak: Bytes::gib(61),
            reserved: Bytes::gib(64),
            past: Bytes::mib(past),
            limit: (ordinal == 0).then_some(Bytes::gib(70)),
            ..DeviceFigures::default()
        };
        let process = |pid: &str, program: &str, devices| Shown {
            pid: pid.to_owned(),
            program: program.to_owned(),
            started_ms: 1_000,
            figures: Some(Figures {
                at_ms: 7_000_000,
                driver_calls: 0,
                devices,
            }),
        };
        let mut processes = [
            process(
                "4194304",
                "python3.12",
                vec![device(0, 0), device(1, 2_100)],
            ),
            process("17*", "train", Vec::new()),
        ];
        insta::assert_snapshot!("status", at_all_widths(&processes));
        // Its second device's memory is paused.
        let figures = processes[0].figures.as_mut();
        let paused = figures.and_then(|figures| figures.devices.last_mut());
        let paused = paused.unwrap();
        (paused.reserved, paused.paused) = (Bytes::mib(6), Bytes::mib(60_500));
        insta::assert_snapshot!("status_while_paused", at_all_widths(&processes));
    }

    fn at_all_widths(processes: &[Shown]) -> String {
        let mut all = String::new();
        for width in [60, 80, 200] {
            let mut out = Lines::wide(width);
            table(processes, 7_300_000, &mut out);
            gloss::explain(&mut out);
            let widest = out.text.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(width), "{}", out.text);
            all += &format!("{:-<width$}\n{}", "", out.text);
        }
        all
    }

    #[test]
    fn a_device_is_named_as_nvidia_smi_names_it() {
        let number = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef;
        assert_eq!(uuid(number), "01234567-89ab-cdef-0123-456789abcdef");
    }
}
