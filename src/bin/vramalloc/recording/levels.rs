//! How much memory each device held over a recording.

use std::io::{Read, Seek};

use vramalloc_core::recording::{Entry, Found, Mark, RecordReader};

use super::books::{Books, DEVICE};
use super::summary::Of;
use crate::snapshot::steps::{DeviceSteps, Step, Steps, Thinned};

/// The most steps of a device that are kept.
const MOST: usize = 100_000;

/// A device in the making.
struct Told {
    steps: Thinned,
    failed: Vec<(u64, u64)>,
}

impl Told {
    /// What the books hold of it.
    fn step(&mut self, time_us: u64, books: &Books, device: u32) {
        if let Some(sum) = books.sums.get(&(DEVICE.to_owned(), Some(device))) {
            self.steps.push(Step {
                time_us,
                live: sum.live,
                limbo: sum.limbo,
                reserved: sum.reserved,
            });
        }
    }
}

/// The steps of each device.
///
/// # Errors
/// What is wrong with the file, or that it has no events.
pub(super) fn steps<R: Read + Seek>(file: R) -> Result<Steps, String> {
    let mut reader = RecordReader::open(file).map_err(|error| error.to_string())?;
    let mut books = Books::default();
    let mut devices: Vec<Told> = Vec::new();
    let mut is_known = false;
    while let Some(entry) = reader.next_entry().map_err(|error| error.to_string())? {
        books.enter(&entry);
        // What a ring held from before its first event is known from here on.
        if books.is_told && reader.begins_late() && !is_known {
            is_known = true;
            for (device, told) in (0..).zip(&mut devices) {
                told.steps = Thinned::new(MOST);
                told.step(entry.time_us, &books, device);
            }
        }
        enter(&entry, &books, &mut devices);
    }
    if devices.is_empty() {
        return Err("it holds no events of a device".to_owned());
    }
    let of = Of::read(reader.text());
    let device = |told: Told| DeviceSteps {
        steps: told.steps.into_steps(),
        failed: told.failed,
    };
    Ok(Steps {
        program: of.program,
        pid: of.pid,
        began_us: books.first_us.unwrap_or(0),
        devices: devices.into_iter().map(device).collect(),
    })
}

/// What happened, with what the books hold after it.
fn enter(entry: &Entry, books: &Books, devices: &mut Vec<Told>) {
    let arena = entry.arena.unwrap_or(u32::MAX);
    let Some(device) = books.device(arena) else {
        return;
    };
    let at = device as usize;
    if devices.len() <= at {
        devices.resize_with(at + 1, || Told {
            steps: Thinned::new(MOST),
            failed: Vec::new(),
        });
    }
    let Some(told) = devices.get_mut(at) else {
        return;
    };
    match &entry.found {
        Found::Event { .. } | Found::Mark(Mark::Ended) => {
            told.step(entry.time_us, books, device);
        }
        Found::Mark(Mark::Oom { size, .. }) => told.failed.push((entry.time_us, size.get())),
        Found::Mark(_) => {}
    }
}
