//! What was held around the peak of a recording, and the events that led there and
//! away, in the form of the statistics' `snapshot`.
//!
//! A snapshot is read from its end back, so it shows what was held where the window
//! ends. A recording has the sizes that were asked for; a block is shown in whole
//! slots.

use std::collections::VecDeque;
use std::io::{Read, Seek};

use serde_json::{Value, json};
use vramalloc_core::recording::{Entry, Found, Mark, RecordReader};
use vramalloc_core::stats::{SCHEMA, StackId};

use super::books::{Books, DEVICE};
use super::callers::Told;
use super::layout::{self, LaidBlock, LaidSegment};

/// Chunks up to this size are shown as those for small requests.
const SLAB: u64 = 2 << 20;

/// The largest number that a snapshot holds exactly.
const LARGEST: u64 = (1 << 53) - 1;

/// An event of the window.
struct Shown {
    arena: u32,
    action: &'static str,
    address: u64,
    size: u64,
    time_us: u64,
    stack: StackId,
}

/// The newest events, as many as the window has.
struct Window {
    events: VecDeque<Shown>,
    most: usize,
}

impl Window {
    fn push(&mut self, shown: Shown) {
        if self.events.len() == self.most {
            self.events.pop_front();
        }
        self.events.push_back(shown);
    }

    /// What happened, with what the books hold before it.
    fn enter(&mut self, entry: &Entry, books: &Books) {
        let arena = entry.arena.unwrap_or(u32::MAX);
        let shown = |action, address, size, stack| Shown {
            arena,
            action,
            address,
            size,
            time_us: entry.time_us,
            stack,
        };
        match &entry.found {
            Found::Event { event, told: None } => {
                let Some(address) = event.action.address() else {
                    return;
                };
                let word = event.action.word();
                let size = event.size.get();
                self.push(shown(word, address.get(), size, event.stack));
            }
            Found::Mark(Mark::Ended) => {
                for (&(of, address), held) in &books.blocks {
                    if of == arena && !held.waits {
                        self.push(shown("free_requested", address, held.size, StackId::NONE));
                    }
                    if of == arena {
                        self.push(shown("free_completed", address, held.size, StackId::NONE));
                    }
                }
                for (&(of, address), taken) in &books.segments {
                    let word = match taken.is_mapped {
                        true => "segment_unmap",
                        false => "segment_free",
                    };
                    if of == arena {
                        self.push(shown(word, address, taken.size, StackId::NONE));
                    }
                }
            }
            _ => {}
        }
    }
}

/// Statistics with a snapshot around the peak of the device that held most.
///
/// # Errors
/// What is wrong with the file.
pub(crate) fn statistics<R: Read + Seek>(mut file: R, most: usize) -> Result<Value, String> {
    let peak = peak(&mut file)?;
    let mut reader = RecordReader::open(file).map_err(|error| error.to_string())?;
    let mut books = Books::default();
    let mut window = Window {
        events: VecDeque::new(),
        most,
    };
    let mut told = Told::default();
    let end = peak.saturating_add(most as u64 / 2);
    while let Some(entry) = reader.next_entry().map_err(|error| error.to_string())? {
        window.enter(&entry, &books);
        books.enter(&entry);
        told.enter(&entry);
        if books.entries >= end {
            break;
        }
    }
    let of: Value = serde_json::from_str(reader.text()).unwrap_or(Value::Null);
    let arenas = arenas(&books, &window.events);
    let blocks: usize = books.blocks.len();
    let value = json!({
        "schema": SCHEMA,
        "options": of.get("options").filter(|options| options.is_object()).unwrap_or(&json!({})),
        "snapshot": {
            "blocks": blocks,
            "left_out": false,
            "arenas": arenas,
        },
        "call_stacks": told.written(),
    });
    Ok(value)
}

/// After how many entries the device that held most held it.
fn peak<R: Read + Seek>(file: &mut R) -> Result<u64, String> {
    let mut reader = RecordReader::open(file).map_err(|error| error.to_string())?;
    let mut books = Books::default();
    while let Some(entry) = reader.next_entry().map_err(|error| error.to_string())? {
        books.enter(&entry);
    }
    let devices = books.sums.iter().filter(|((place, _), _)| place == DEVICE);
    let most = devices.max_by_key(|(_, sum)| sum.peak);
    Ok(most.map_or(0, |(_, sum)| sum.peak_entry))
}

fn arenas(books: &Books, events: &VecDeque<Shown>) -> Vec<Value> {
    let mut numbers: Vec<u32> = events.iter().map(|shown| shown.arena).collect();
    numbers.extend(books.segments.keys().map(|&(arena, _)| arena));
    numbers.sort_unstable();
    numbers.dedup();
    let shown = numbers.into_iter().filter_map(|number| {
        let device = books.device(number)?;
        let own = events.iter().filter(|shown| shown.arena == number);
        let own: Vec<Value> = own.filter_map(event).collect();
        Some(json!({
            "device": device,
            "made_us": 0,
            "ended_us": null,
            "segments": segments(books, number),
            "events": own,
        }))
    });
    shown.collect()
}

fn event(shown: &Shown) -> Option<Value> {
    let numbers = [shown.address, shown.size, shown.time_us];
    let is_exact = numbers.iter().all(|&number| number <= LARGEST);
    is_exact.then(|| {
        json!({
            "action": shown.action,
            "address": shown.address,
            "size": shown.size,
            "time_us": shown.time_us,
            "stack": shown.stack.number(),
        })
    })
}

/// The segments of an arena with their blocks, which fill them.
fn segments(books: &Books, arena: u32) -> Vec<Value> {
    let laid = layout::segments(books, arena).into_iter();
    let exact = laid.filter(|segment| segment.end() <= LARGEST);
    let shown = exact.map(|segment| {
        let LaidSegment { start, size, .. } = segment;
        json!({
            "address": start,
            "size": size,
            "kind": if size <= SLAB { "small" } else { "large" },
            "mapped": segment.is_mapped,
            "blocks": segment.blocks.iter().map(block).collect::<Vec<Value>>(),
        })
    });
    shown.collect()
}

fn block(laid: &LaidBlock) -> Value {
    let state = match laid.held {
        None => "inactive",
        Some(held) if held.waits => "active_pending_free",
        Some(_) => "active_allocated",
    };
    json!({
        "address": laid.address,
        "size": laid.size,
        "requested": laid.held.map_or(0, |held| held.size.min(laid.size)),
        "state": state,
        "stack": laid.held.and_then(|held| held.stack.number()),
    })
}
