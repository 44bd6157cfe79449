//! The call stacks of a recording, and who held memory at the peak, in the form of
//! statistics.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{Read, Seek};

use serde_json::{Value, json};
use vramalloc_core::Bytes;
use vramalloc_core::recording::{Entry, Found, Mark, RecordFrame, RecordReader};
use vramalloc_core::stats::{SCHEMA, SIZE_CLASSES, size_class, size_class_limit};

use super::books::{Books, DEVICE, Sum, Where};
use super::summary::Of;

/// The call stacks that were told of.
#[derive(Default)]
pub(super) struct Told {
    /// The files by their numbers, as JSON.
    objects: BTreeMap<u32, Value>,
    stacks: BTreeMap<u32, Vec<RecordFrame>>,
    /// Requests that failed.
    failed: Weights,
}

/// How many blocks and bytes each call stack has; `None`: those without one.
type Weights = BTreeMap<Option<u32>, (u64, u64)>;

/// The most places of a call stack that a snapshot shows.
const MOST_FRAMES: usize = 128;

impl Told {
    pub(super) fn enter(&mut self, entry: &Entry) {
        match &entry.found {
            Found::Mark(Mark::Object {
                object,
                file,
                build_id,
            }) => {
                let build_id = Some(build_id).filter(|id| !id.is_empty());
                let told = json!({ "file": file, "build_id": build_id });
                self.objects.insert(*object, told);
            }
            Found::Mark(Mark::Stack { stack, frames }) => {
                if let Some(number) = stack.number() {
                    let frames = frames.iter().take(MOST_FRAMES).cloned().collect();
                    self.stacks.insert(number, frames);
                }
            }
            Found::Mark(Mark::Oom { size, stack, .. }) => {
                add(&mut self.failed, stack.number(), size.get());
            }
            _ => {}
        }
    }

    /// In the form of the statistics.
    pub(super) fn written(&self) -> Value {
        self.written_of(|_| true)
    }

    /// The same of some of the call stacks.
    pub(super) fn written_of(&self, is_asked: impl Fn(u32) -> bool) -> Value {
        let mut frames = Vec::new();
        let stacks = self.stacks.iter().filter(|(number, _)| is_asked(**number));
        let stacks = stacks.map(|(number, places)| {
            let first = frames.len();
            frames.extend(places.iter().map(|place| self.frame(place)));
            let numbers: Vec<usize> = (first..frames.len()).collect();
            json!({ "stack": number, "frames": numbers })
        });
        let stacks: Vec<Value> = stacks.collect();
        let objects: Vec<&Value> = self.objects.values().collect();
        json!({ "objects": objects, "frames": frames, "stacks": stacks })
    }

    fn frame(&self, place: &RecordFrame) -> Value {
        match place {
            RecordFrame::Object { object, offset } => {
                let place = self.objects.keys().position(|known| known == object);
                json!({ "object": place, "offset": offset })
            }
            RecordFrame::Address(address) => {
                json!({ "object": null, "offset": address })
            }
            RecordFrame::Python {
                file,
                line,
                function,
            } => json!({ "file": file, "line": line, "function": function }),
        }
    }
}

/// Statistics with the peaks of devices, and what call stacks and sizes held when all
/// devices together held most; of call stacks also what they held in the end, and what
/// failed. Without any stack there are none.
///
/// # Errors
/// What is wrong with the file.
pub(super) fn statistics<R: Read + Seek>(mut file: R) -> Result<Value, String> {
    let peak = peak(&mut file)?;
    let mut reader = RecordReader::open(file).map_err(|error| error.to_string())?;
    let (mut books, mut told) = (Books::default(), Told::default());
    let (mut at_peak, mut sizes) = (Weights::new(), Sizes::new());
    while let Some(entry) = reader.next_entry().map_err(|error| error.to_string())? {
        books.enter(&entry);
        told.enter(&entry);
        if books.entries == peak {
            (at_peak, sizes) = (held(&books), by_size(&books));
        }
    }
    let mut call_stacks = told.written();
    if let Value::Object(keys) = &mut call_stacks {
        keys.insert("peak".to_owned(), listed(&at_peak));
        keys.insert("live".to_owned(), listed(&held(&books)));
        keys.insert("failed".to_owned(), listed(&told.failed));
    }
    let of = Of::read(reader.text());
    Ok(json!({
        "schema": SCHEMA,
        "program": of.program,
        "rank": of.rank,
        "started_unix_ms": books.first_us.unwrap_or(0) / 1000,
        "arenas": arenas(&books, &sizes),
        "call_stacks": Some(call_stacks).filter(|_| !told.stacks.is_empty()),
    }))
}

/// The bytes that requests of each size class held of each device.
type Sizes = BTreeMap<(u32, usize), u64>;

fn by_size(books: &Books) -> Sizes {
    let mut sizes = Sizes::new();
    for ((arena, _), held) in &books.blocks {
        if let Some(device) = books.device(*arena).filter(|_| !held.waits) {
            let class = size_class(Bytes::new(held.size));
            let bytes = sizes.entry((device, class)).or_default();
            *bytes = bytes.saturating_add(held.size);
        }
    }
    sizes
}

/// The devices.
fn arenas(books: &Books, sizes: &Sizes) -> Vec<Value> {
    let devices = books.sums.iter().filter(|((place, _), _)| place == DEVICE);
    let one = |((_, device), sum): (&Where, &Sum)| {
        let device = (*device)?;
        let classes = sizes.range((device, 0)..(device, SIZE_CLASSES));
        let classes = classes.map(|(&(_, class), bytes)| {
            // The last has no bound.
            let bound = (class + 1 < SIZE_CLASSES).then(|| size_class_limit(class).get());
            json!({ "up_to_bytes": bound, "peak_bytes": bytes })
        });
        Some(json!({
            "device": device,
            "live_bytes": { "peak": sum.peak },
            "reserved_bytes": { "peak": sum.reserved_peak },
            "size_classes": classes.collect::<Vec<Value>>(),
        }))
    };
    devices.filter_map(one).collect()
}

/// After how many entries devices together held most.
fn peak<R: Read + Seek>(file: &mut R) -> Result<u64, String> {
    let mut reader = RecordReader::open(file).map_err(|error| error.to_string())?;
    let mut books = Books::default();
    let mut most = (0, 0);
    while let Some(entry) = reader.next_entry().map_err(|error| error.to_string())? {
        books.enter(&entry);
        let live = books.live_on_devices();
        if live > most.0 {
            most = (live, books.entries);
        }
    }
    Ok(most.1)
}

/// What each call stack holds of devices.
fn held(books: &Books) -> Weights {
    let mut weights = Weights::new();
    for ((arena, _), held) in &books.blocks {
        if !held.waits && books.device(*arena).is_some() {
            add(&mut weights, held.stack.number(), held.size);
        }
    }
    weights
}

fn add(weights: &mut Weights, stack: Option<u32>, size: u64) {
    let (count, bytes) = weights.entry(stack).or_default();
    *count += 1;
    *bytes = bytes.saturating_add(size);
}

/// In the form of the statistics, the largest first.
fn listed(weights: &Weights) -> Value {
    let mut listed: Vec<_> = weights.iter().collect();
    listed.sort_by_key(|(_, (_, bytes))| Reverse(*bytes));
    let one = |(stack, (count, bytes)): (&Option<u32>, &(u64, u64))| json!({ "stack": stack, "count": count, "bytes": bytes });
    Value::Array(listed.into_iter().map(one).collect())
}
