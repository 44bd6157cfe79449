//! What the page shows of statistics.

use std::collections::{BTreeSet, HashMap};

use super::super::super::html::map::{largest, map};
use super::super::super::html::model::{
    Failure, HeldAt, PageRoom, Peak, PlaceShown, ProcessShown, Timeline,
};
use super::super::super::html::names::Names;
use super::super::super::html::thin::{Moment, Thinner};
use super::super::super::lines::Lines;
use super::super::super::snapshot::chunks::{self, DeviceSnapshot};
use super::super::super::snapshot::steps::DeviceSteps;
use super::super::super::stacks::{At, Stacks};
use super::super::super::symbols::Symbols;
use super::super::brief::{Brief, DeviceBrief};
use super::super::file::File;
use super::super::{owners, tell};

/// How wide the tables in the page are.
const WIDTH: usize = 80;

/// The most requests that failed of a device that are shown.
const MOST_FAILURES: usize = 1000;

/// The most call stacks of a moment that are shown, those that held most.
const MOST_HOLDERS: usize = 2000;

/// # Errors
/// What is wrong with the file.
pub(super) fn process(
    bytes: &[u8],
    name: &str,
    room: PageRoom,
    (symbols, shows_all): (&mut Symbols, bool),
) -> Result<ProcessShown, String> {
    let mut file = File::read(bytes).map_err(|error| {
        error.replacen("not statistics", "neither a recording nor statistics", 1)
    })?;
    file.find_names(symbols, shows_all);
    let brief = Brief::new(&file);
    let mut out = Lines::wide(WIDTH);
    tell(&file, false, &mut out);
    let mut shown = ProcessShown {
        identity: (file.program.clone(), file.pid, file.host.clone()),
        label: match file.rank.as_str() {
            "" => format!("{} {}", file.program, file.pid),
            rank => format!("rank {rank}"),
        },
        title: format!("{} (process {} on {})", file.program, file.pid, file.host),
        files: vec![name.to_owned()],
        said: out.said,
        began_us: file.started.saturating_mul(1000),
        ..ProcessShown::default()
    };
    let devices = match chunks::devices(bytes) {
        Ok(devices) => devices,
        Err(why) => {
            shown.notes.push(format!("No map of chunks: {why}."));
            Vec::new()
        }
    };
    let share = PageRoom::of_each(brief.devices.len());
    let room = PageRoom {
        pieces: room.pieces.min(share.pieces),
        steps: room.steps.min(share.steps),
        ..room
    };
    for device in &brief.devices {
        let number = usize::try_from(device.device).unwrap_or(usize::MAX);
        let snapshot = devices.get(number);
        shown
            .places
            .push(place(device, snapshot, shown.began_us, room));
    }
    name_holders(&file, room, &mut shown);
    shown.notes.push(
        "These are statistics, which tell of the end and of the peak. A recording also shows \
         how memory came and went and who held it when: vramalloc run --option \
         record=%e.%p.rec --option stacks=all."
            .to_owned(),
    );
    Ok(shown)
}

fn place(
    device: &DeviceBrief,
    snapshot: Option<&DeviceSnapshot>,
    began_us: u64,
    room: PageRoom,
) -> PlaceShown {
    let mut shown = PlaceShown {
        name: device.name(),
        device: Some(device.device),
        total: device.device_total_bytes,
        limits: vec![(0, device.limit_bytes)],
        peaks: Peak {
            live: device.live_bytes.peak,
            reserved: device.reserved_bytes.peak,
            past: device.past_pool_bytes.peak,
            failures: device.failed(),
        },
        ..PlaceShown::default()
    };
    let Some(snapshot) = snapshot else {
        return shown;
    };
    if !snapshot.chunks.is_empty() {
        let when = "when the statistics were written".to_owned();
        shown.largest = largest(&snapshot.chunks);
        shown.largest_when.clone_from(&when);
        shown.map = Some(map(when, &snapshot.chunks, room.pieces));
    }
    let DeviceSteps { steps, failed } = &snapshot.steps;
    if !steps.is_empty() {
        shown.timeline = Some(timeline(&snapshot.steps, began_us, room));
    }
    let failures = failed.iter().take(MOST_FAILURES);
    let failures = failures.map(|&(time_us, size)| Failure {
        time: time_us.saturating_sub(began_us),
        size,
        holder: None,
    });
    shown.failures = failures.collect();
    shown.failures_left_out = failed.len().saturating_sub(MOST_FAILURES) as u64;
    shown
}

/// The newest events, which statistics have with the option `trace`.
fn timeline(steps: &DeviceSteps, began_us: u64, room: PageRoom) -> Timeline {
    let steps = &steps.steps;
    let mut thinner = Thinner::new(steps.len() as u64, room.steps.clamp(20, 2000));
    let mut latest = 0;
    for step in steps {
        latest = step.time_us.saturating_sub(began_us).max(latest);
        let moment = Moment {
            time: latest,
            live: step.live,
            limbo: step.limbo,
            reserved: step.reserved,
            past: 0,
        };
        thinner.push(moment, &[]);
    }
    let mut timeline = thinner.into_timeline(0, 0);
    // Nobody knows who held memory at these.
    timeline.at.clear();
    timeline.held.clear();
    timeline
}

/// Adds who held memory: by call stack, where these were taken, and by library.
fn name_holders(file: &File, room: PageRoom, shown: &mut ProcessShown) {
    let stacks = &file.stacks;
    let has_stacks = stacks.said().is_some_and(|said| said.taken > 0);
    let mut names = Names::new("call stack", room.names);
    let mut numbers: HashMap<Option<u64>, u32> = HashMap::new();
    let mut number = |names: &mut Names, stack: Option<u64>| {
        let new = || {
            let places = places_of(stacks, stack);
            names.holder(places.iter().map(String::as_str))
        };
        *numbers.entry(stack).or_insert_with(new)
    };
    for (at, when) in [
        (At::Peak, "when the most was live"),
        (At::Now, "when the statistics were written"),
        (At::Failed, "requests that failed"),
    ] {
        let held = stacks.held(at).iter().take(MOST_HOLDERS);
        let held = held.map(|weight| (number(&mut names, weight.stack), weight.bytes));
        let held: Vec<(u32, u64)> = held.collect();
        if !held.is_empty() {
            shown.moments.push(HeldAt {
                when: format!("by call stack, {when}"),
                held,
            });
        }
    }
    let mut used = BTreeSet::new();
    for place in &mut shown.places {
        place.each_holder_of_lists(|stack| {
            used.insert(stack);
            Some(number(&mut names, Some(u64::from(stack))))
        });
        let mut known = |stack: u32| {
            let is_used = used.contains(&stack);
            is_used.then(|| number(&mut names, Some(u64::from(stack))))
        };
        place.each_holder_of_chunks(&mut known);
    }
    by_library(file, &mut names, shown);
    shown.holders = names.into_holders();
    if !has_stacks {
        shown.notes.push(
            "There are no call stacks; vramalloc run --option stacks=all takes them.".to_owned(),
        );
    }
}

/// Adds which libraries held memory.
fn by_library(file: &File, names: &mut Names, shown: &mut ProcessShown) {
    let mut at_peak = Vec::new();
    let mut at_end = Vec::new();
    for device in file.devices() {
        for owner in owners::on(file, device) {
            let place = format!("device {device}");
            let pool = names.holder([place.as_str(), owner.owner.as_str()].into_iter());
            at_peak.push((pool, owner.peak_bytes));
            at_end.push((pool, owner.bytes));
            if owner.past_pool_bytes > 0 {
                let places = [place.as_str(), owner.owner.as_str(), "past the pool"];
                let past = names.holder(places.into_iter());
                at_end.push((past, owner.past_pool_bytes));
            }
        }
    }
    for (held, when) in [
        (at_peak, "by library, when the most was live"),
        (at_end, "by library, when the statistics were written"),
    ] {
        let held: Vec<(u32, u64)> = held.into_iter().filter(|(_, bytes)| *bytes > 0).collect();
        if !held.is_empty() {
            shown.moments.push(HeldAt {
                when: when.to_owned(),
                held,
            });
        }
    }
}

/// The names of the places of a call stack, the outermost first.
fn places_of(stacks: &Stacks, stack: Option<u64>) -> Vec<String> {
    let Some(stack) = stack else {
        return vec!["(no call stack)".to_owned()];
    };
    let shown = stacks.shown(stack);
    let mut places: Vec<String> = shown.iter().map(|place| place.text()).collect();
    places.reverse();
    if places.is_empty() {
        places.push("(a call stack that is not in the file)".to_owned());
    }
    places
}
