//! The objects of a snapshot: what is kept of each.
//!
//! Owns the objects that were read, by number, and each text once. Invariant: an object is
//! open until its keys are known; what no replay needs is not kept. Cost: some bytes for
//! each object.

use std::collections::HashMap;

/// An entry of a device's trace.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct TraceEvent {
    pub(crate) action: TraceAction,
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) time_us: u64,
}

/// What a trace says, as far as a replay needs it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum TraceAction {
    Alloc,
    FreeRequested,
    Other,
}

/// A block that was live when the snapshot was taken.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct LiveBlock {
    pub(crate) device: u32,
    pub(crate) address: u64,
    pub(crate) size: u64,
}

/// What is read of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct TorchSnapshot {
    /// By device.
    pub(crate) traces: Vec<Vec<TraceEvent>>,
    pub(crate) live: Vec<LiveBlock>,
}

/// A value on the machine's stack.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(super) enum Value {
    /// Nothing that is needed.
    Nothing,
    Number(u64),
    /// A text by its number.
    Text(u32),
    /// An object by its number.
    Object(u32),
}

/// An object that can grow after it was named.
#[derive(Debug)]
enum Object {
    /// A list, of which what is needed is kept; or a dictionary that is not filled.
    Open(Vec<Value>),
    /// A dictionary that is not needed.
    Other,
    Event(TraceEvent),
    Block {
        address: u64,
        size: u64,
        is_live: bool,
    },
    Segment {
        device: u32,
        address: u64,
        blocks: Option<u32>,
    },
    Snapshot {
        segments: Option<u32>,
        traces: Option<u32>,
    },
}

/// See the module.
#[derive(Default)]
pub(super) struct Objects {
    all: Vec<Object>,
    texts: HashMap<Vec<u8>, u32>,
    names: Vec<Vec<u8>>,
}

impl Objects {
    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// A new list or dictionary, in which nothing is yet.
    pub(super) fn open(&mut self) -> Value {
        self.all.push(Object::Open(Vec::new()));
        Value::Object(u32::try_from(self.all.len() - 1).unwrap_or(u32::MAX))
    }

    /// A text.
    pub(super) fn text(&mut self, bytes: Vec<u8>) -> Value {
        let next = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        Value::Text(match self.texts.get(&bytes) {
            Some(&number) => number,
            None => {
                self.texts.insert(bytes.clone(), next);
                self.names.push(bytes);
                next
            }
        })
    }

    /// Adds to a list; none if it is no list.
    pub(super) fn append(&mut self, list: Value, items: impl Iterator<Item = Value>) -> Option<()> {
        let Value::Object(number) = list else {
            return None;
        };
        // Only what is needed: call stacks are lists of what is nothing.
        let needed = items.filter(|item| match item {
            Value::Object(number) => self.is_needed(*number),
            _ => false,
        });
        let needed: Vec<Value> = needed.collect();
        match self.all.get_mut(number as usize) {
            Some(Object::Open(list)) => list.extend(needed),
            _ => return None,
        }
        Some(())
    }

    /// An empty list is: it may be the trace of a device, whose place counts.
    fn is_needed(&self, number: u32) -> bool {
        !matches!(self.all.get(number as usize), Some(Object::Other) | None)
    }

    fn named(&self, value: Value) -> &[u8] {
        match value {
            Value::Text(number) => self.names.get(number as usize).map_or(&[], Vec::as_slice),
            _ => &[],
        }
    }

    /// Fills a dictionary, which is what its keys say; none if it is none.
    pub(super) fn fill(&mut self, dictionary: Value, items: &[Value]) -> Option<()> {
        let Value::Object(number) = dictionary else {
            return None;
        };
        let find = |key: &str| {
            let pairs = items.chunks_exact(2);
            let mut found = pairs.filter(|pair| self.named(pair[0]) == key.as_bytes());
            found.next().map(|pair| pair[1])
        };
        let number_of = |key: &str| match find(key) {
            Some(Value::Number(number)) => number,
            _ => 0,
        };
        let list_of = |key: &str| match find(key) {
            Some(Value::Object(number)) => Some(number),
            _ => None,
        };
        let object = if let Some(action) = find("action") {
            Object::Event(TraceEvent {
                action: match self.named(action) {
                    b"alloc" => TraceAction::Alloc,
                    b"free_requested" => TraceAction::FreeRequested,
                    _ => TraceAction::Other,
                },
                address: number_of("addr"),
                size: number_of("size"),
                time_us: number_of("time_us"),
            })
        } else if let Some(state) = find("state") {
            Object::Block {
                address: number_of("address"),
                size: number_of("size"),
                is_live: self.named(state) == b"active_allocated",
            }
        } else if find("total_size").is_some() {
            Object::Segment {
                device: u32::try_from(number_of("device")).unwrap_or(u32::MAX),
                address: number_of("address"),
                blocks: list_of("blocks"),
            }
        } else if find("device_traces").is_some() || find("segments").is_some() {
            Object::Snapshot {
                segments: list_of("segments"),
                traces: list_of("device_traces"),
            }
        } else {
            // A line of a call stack, settings, or anything else.
            Object::Other
        };
        if let Some(place) = self.all.get_mut(number as usize) {
            *place = object;
        }
        Some(())
    }

    fn list(&self, number: Option<u32>) -> impl Iterator<Item = &Object> {
        let list = match number.and_then(|number| self.all.get(number as usize)) {
            Some(Object::Open(list)) => list.as_slice(),
            _ => &[],
        };
        list.iter().filter_map(|item| match item {
            Value::Object(number) => self.all.get(*number as usize),
            _ => None,
        })
    }

    /// The snapshot that this is; none if it is none.
    pub(super) fn snapshot(&self, whole: Value) -> Option<Result<TorchSnapshot, String>> {
        let Value::Object(number) = whole else {
            return None;
        };
        match self.all.get(number as usize)? {
            Object::Snapshot { segments, traces } => Some(self.gathered(*segments, *traces)),
            _ => None,
        }
    }

    fn gathered(
        &self,
        segments: Option<u32>,
        traces: Option<u32>,
    ) -> Result<TorchSnapshot, String> {
        let mut snapshot = TorchSnapshot::default();
        // Each event and block is an object of its own: a file that names one list many
        // times is to take no more.
        let most = self.all.len();
        let mut named = 0usize;
        let mut names = |more: usize| {
            named = named.saturating_add(more);
            match named > most {
                true => Err("it names the same events many times, as no snapshot does".to_owned()),
                false => Ok(()),
            }
        };
        for trace in self.list(traces) {
            let Object::Open(entries) = trace else {
                continue;
            };
            names(entries.len().max(1))?;
            let events = entries.iter().filter_map(|entry| match entry {
                Value::Object(number) => match self.all.get(*number as usize) {
                    Some(Object::Event(event)) => Some(*event),
                    _ => None,
                },
                _ => None,
            });
            snapshot.traces.push(events.collect());
        }
        for segment in self.list(segments) {
            let Object::Segment {
                device,
                address: start,
                blocks,
            } = segment
            else {
                continue;
            };
            names(1 + self.list(*blocks).count())?;
            let mut next = *start;
            for block in self.list(*blocks) {
                if let Object::Block {
                    address,
                    size,
                    is_live,
                } = block
                {
                    // Snapshots of older versions have no addresses of blocks.
                    let at = if *address == 0 { next } else { *address };
                    next = at.saturating_add(*size);
                    if *is_live {
                        snapshot.live.push(LiveBlock {
                            device: *device,
                            address: at,
                            size: *size,
                        });
                    }
                }
            }
        }
        Ok(snapshot)
    }
}
