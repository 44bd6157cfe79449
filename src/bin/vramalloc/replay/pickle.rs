//! Reads what PyTorch pickles as a memory snapshot, as it comes, and keeps of it what a
//! replay needs.
//!
//! A pickle is a program for a small machine with a stack. Only the opcodes that such a
//! snapshot consists of are obeyed; one that would load or call anything ends the
//! reading. Invariant: whatever the bytes are, nothing of the file is run, and no more
//! is held than the events and blocks that were read, of which each is named once, and a
//! few bytes for each other object, of which there are no more than such a file has: call stacks are dropped where they end. Cost: one pass over the file.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read};

/// Marks within marks: a snapshot has about eight.
const MOST_DEPTH: usize = 64;

/// Bytes of a text that is kept: names of keys and actions. Of longer ones so much is
/// kept, which no key has.
const MOST_TEXT: u64 = 64;

/// Values that wait on the stack for a place: a pickler fills a list by a thousand.
const MOST_WAITING: usize = 1 << 20;

/// An object takes this many bytes of the file at the least, but for the first so many.
const OBJECT_BYTES: u64 = 8;
const FREE_OBJECTS: u64 = 1 << 16;

/// The newest protocol of which the opcodes are known.
const PROTOCOL: u8 = 5;

/// An entry of a device's trace.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct TraceEvent {
    pub(super) action: TraceAction,
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) time_us: u64,
}

/// What a trace says, as far as a replay needs it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum TraceAction {
    Alloc,
    FreeRequested,
    Other,
}

/// A block that was live when the snapshot was taken.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct LiveBlock {
    pub(super) device: u32,
    pub(super) address: u64,
    pub(super) size: u64,
}

/// What is read of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct TorchSnapshot {
    /// By device.
    pub(super) traces: Vec<Vec<TraceEvent>>,
    pub(super) live: Vec<LiveBlock>,
}

/// A value on the machine's stack.
#[derive(Copy, Clone, PartialEq, Debug)]
enum Value {
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

/// The machine.
struct Machine<R> {
    file: BufReader<Counted<R>>,
    stack: Vec<Value>,
    /// Where in the stack marks lie.
    marks: Vec<usize>,
    memo: Vec<Value>,
    objects: Vec<Object>,
    texts: HashMap<Vec<u8>, u32>,
    names: Vec<Vec<u8>>,
}

/// A file, and how much of it was read.
struct Counted<R> {
    file: R,
    read: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(bytes)?;
        self.read += read as u64;
        Ok(read)
    }
}

type Step<T> = Result<T, String>;

/// Reads a snapshot.
///
/// # Errors
/// What is wrong with it.
pub(super) fn read(file: impl Read) -> Step<TorchSnapshot> {
    let mut machine = Machine {
        file: BufReader::with_capacity(1 << 20, Counted { file, read: 0 }),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
        objects: Vec::new(),
        texts: HashMap::new(),
        names: Vec::new(),
    };
    let last = machine.run()?;
    machine.snapshot(last)
}

fn foreign() -> String {
    "neither a recording nor a snapshot of PyTorch's memory".to_owned()
}

fn cut(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the snapshot is cut off".to_owned(),
        _ => error.to_string(),
    }
}

impl<R: Read> Machine<R> {
    fn run(&mut self) -> Step<Value> {
        let start = self.file.fill_buf().map_err(|error| error.to_string())?;
        if start.first() != Some(&0x80) {
            return Err(foreign());
        }
        loop {
            let opcode = self.byte()?;
            if opcode == b'.' {
                return self.pop();
            }
            self.step(opcode)?;
            self.is_bounded()?;
        }
    }

    /// Whatever the file is, no more is held than a snapshot of its size would take.
    fn is_bounded(&self) -> Step<()> {
        let read = self.file.get_ref().read;
        let most = FREE_OBJECTS + read / OBJECT_BYTES;
        if self.stack.len() > MOST_WAITING || self.objects.len() as u64 > most {
            return Err("it holds more than a snapshot of its size".to_owned());
        }
        Ok(())
    }

    fn step(&mut self, opcode: u8) -> Step<()> {
        match opcode {
            0x80 => {
                let version = self.byte()?;
                if version > PROTOCOL {
                    return Err(format!("a pickle of protocol {version}"));
                }
            }
            // A frame: how many bytes follow is no news.
            0x95 => _ = self.number(8)?,
            b'(' => {
                if self.marks.len() == MOST_DEPTH {
                    return Err("too much lies in one another".to_owned());
                }
                self.marks.push(self.stack.len());
            }
            b'}' | b']' => {
                let object = self.object(Object::Open(Vec::new()));
                self.stack.push(object);
            }
            b'N' | 0x89 | b')' => self.stack.push(Value::Nothing),
            0x88 => self.stack.push(Value::Number(1)),
            b'J' => {
                let number = self.number(4)?;
                let is_negative = number >> 31 == 1;
                self.push_number((!is_negative).then_some(number));
            }
            b'K' => {
                let number = self.number(1)?;
                self.push_number(Some(number));
            }
            b'M' => {
                let number = self.number(2)?;
                self.push_number(Some(number));
            }
            0x8a => self.long()?,
            b'G' => {
                self.skip(8)?;
                self.stack.push(Value::Nothing);
            }
            0x8c => {
                let length = self.number(1)?;
                self.text(length)?;
            }
            b'X' => {
                let length = self.number(4)?;
                self.text(length)?;
            }
            0x8d => {
                let length = self.number(8)?;
                self.text(length)?;
            }
            0x94 => {
                let top = self.top()?;
                self.memo.push(top);
            }
            b'q' => {
                let place = self.number(1)?;
                self.put(place)?;
            }
            b'r' => {
                let place = self.number(4)?;
                self.put(place)?;
            }
            b'h' => {
                let place = self.number(1)?;
                self.get(place)?;
            }
            b'j' => {
                let place = self.number(4)?;
                self.get(place)?;
            }
            b'a' => {
                let item = self.pop()?;
                self.append([item].into_iter())?;
            }
            b'e' => {
                let items = self.marked()?;
                self.append(items.into_iter())?;
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.fill(&[key, value])?;
            }
            b'u' => {
                let items = self.marked()?;
                self.fill(&items)?;
            }
            b't' => {
                self.marked()?;
                self.stack.push(Value::Nothing);
            }
            b'l' => {
                let items = self.marked()?;
                let object = self.object(Object::Open(Vec::new()));
                self.stack.push(object);
                self.append(items.into_iter())?;
            }
            b'd' => {
                let items = self.marked()?;
                let object = self.object(Object::Open(Vec::new()));
                self.stack.push(object);
                self.fill(&items)?;
            }
            0x85..=0x87 => {
                for _ in 0..opcode - 0x84 {
                    self.pop()?;
                }
                self.stack.push(Value::Nothing);
            }
            other => {
                return Err(format!(
                    "a pickle with the opcode {other:#04x}, which no snapshot has; it is not run"
                ));
            }
        }
        Ok(())
    }

    fn byte(&mut self) -> Step<u8> {
        let mut byte = [0];
        self.file
            .read_exact(&mut byte)
            .map_err(|error| cut(&error))?;
        Ok(byte[0])
    }

    /// A number of so many bytes, the lowest first.
    fn number(&mut self, bytes: usize) -> Step<u64> {
        let mut number = [0; 8];
        let place = number.get_mut(..bytes).unwrap_or_default();
        self.file.read_exact(place).map_err(|error| cut(&error))?;
        Ok(u64::from_le_bytes(number))
    }

    fn skip(&mut self, bytes: u64) -> Step<()> {
        let mut part = self.file.by_ref().take(bytes);
        let skipped = io::copy(&mut part, &mut io::sink()).map_err(|error| cut(&error))?;
        if skipped < bytes {
            return Err("the snapshot is cut off".to_owned());
        }
        Ok(())
    }

    fn push_number(&mut self, number: Option<u64>) {
        self.stack
            .push(number.map_or(Value::Nothing, Value::Number));
    }

    /// A number of any length; none that is needed is below zero or above 2^64.
    fn long(&mut self) -> Step<()> {
        let length = self.number(1)?;
        let mut number = 0u64;
        let mut is_whole = true;
        for at in 0..length {
            let byte = u64::from(self.byte()?);
            match at {
                0..8 => number |= byte << (8 * at),
                _ => is_whole &= byte == 0,
            }
            let is_last = at + 1 == length;
            is_whole &= !(is_last && byte & 0x80 != 0);
        }
        self.push_number(is_whole.then_some(number));
        Ok(())
    }

    fn text(&mut self, length: u64) -> Step<()> {
        let kept = length.min(MOST_TEXT);
        let mut bytes = vec![0; usize::try_from(kept).unwrap_or(0)];
        self.file
            .read_exact(&mut bytes)
            .map_err(|error| cut(&error))?;
        self.skip(length - kept)?;
        if kept == MOST_TEXT {
            // No key is as long.
            self.stack.push(Value::Nothing);
            return Ok(());
        }
        let next = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        let number = match self.texts.get(&bytes) {
            Some(&number) => number,
            None => {
                self.texts.insert(bytes.clone(), next);
                self.names.push(bytes);
                next
            }
        };
        self.stack.push(Value::Text(number));
        Ok(())
    }

    fn object(&mut self, object: Object) -> Value {
        self.objects.push(object);
        Value::Object(u32::try_from(self.objects.len() - 1).unwrap_or(u32::MAX))
    }

    fn top(&self) -> Step<Value> {
        self.stack.last().copied().ok_or_else(foreign)
    }

    fn pop(&mut self) -> Step<Value> {
        self.stack.pop().ok_or_else(foreign)
    }

    /// What lies on the newest mark.
    fn marked(&mut self) -> Step<Vec<Value>> {
        let mark = self.marks.pop().ok_or_else(foreign)?;
        if mark > self.stack.len() {
            return Err(foreign());
        }
        Ok(self.stack.split_off(mark))
    }

    fn put(&mut self, place: u64) -> Step<()> {
        let top = self.top()?;
        let place = usize::try_from(place).unwrap_or(usize::MAX);
        match place {
            _ if place == self.memo.len() => self.memo.push(top),
            _ => *self.memo.get_mut(place).ok_or_else(foreign)? = top,
        }
        Ok(())
    }

    fn get(&mut self, place: u64) -> Step<()> {
        let place = usize::try_from(place).unwrap_or(usize::MAX);
        let value = self.memo.get(place).copied().ok_or_else(foreign)?;
        self.stack.push(value);
        Ok(())
    }

    /// Adds to the list on top of the stack.
    fn append(&mut self, items: impl Iterator<Item = Value>) -> Step<()> {
        let Value::Object(number) = self.top()? else {
            return Err(foreign());
        };
        // Only what is needed: call stacks are lists of what is nothing.
        let needed = items.filter(|item| match item {
            Value::Object(number) => self.is_needed(*number),
            _ => false,
        });
        let needed: Vec<Value> = needed.collect();
        match self.objects.get_mut(number as usize) {
            Some(Object::Open(list)) => list.extend(needed),
            _ => return Err(foreign()),
        }
        Ok(())
    }

    /// An empty list is: it may be the trace of a device, whose place counts.
    fn is_needed(&self, number: u32) -> bool {
        !matches!(
            self.objects.get(number as usize),
            Some(Object::Other) | None
        )
    }

    fn named(&self, value: Value) -> &[u8] {
        match value {
            Value::Text(number) => self.names.get(number as usize).map_or(&[], Vec::as_slice),
            _ => &[],
        }
    }

    /// Fills the dictionary on top of the stack, which is what its keys say.
    fn fill(&mut self, items: &[Value]) -> Step<()> {
        let Value::Object(number) = self.top()? else {
            return Err(foreign());
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
        if let Some(place) = self.objects.get_mut(number as usize) {
            *place = object;
        }
        Ok(())
    }

    fn list(&self, number: Option<u32>) -> impl Iterator<Item = &Object> {
        let list = match number.and_then(|number| self.objects.get(number as usize)) {
            Some(Object::Open(list)) => list.as_slice(),
            _ => &[],
        };
        list.iter().filter_map(|item| match item {
            Value::Object(number) => self.objects.get(*number as usize),
            _ => None,
        })
    }

    fn snapshot(&self, last: Value) -> Step<TorchSnapshot> {
        let Value::Object(number) = last else {
            return Err(foreign());
        };
        let Some(Object::Snapshot { segments, traces }) = self.objects.get(number as usize) else {
            return Err(foreign());
        };
        let mut snapshot = TorchSnapshot::default();
        // Each event and block is an object of its own: a file that names one list many
        // times is to take no more.
        let most = self.objects.len();
        let mut named = 0usize;
        let mut names = |more: usize| {
            named = named.saturating_add(more);
            match named > most {
                true => Err("it names the same events many times, as no snapshot does".to_owned()),
                false => Ok(()),
            }
        };
        for trace in self.list(*traces) {
            let Object::Open(entries) = trace else {
                continue;
            };
            names(entries.len().max(1))?;
            let events = entries.iter().filter_map(|entry| match entry {
                Value::Object(number) => match self.objects.get(*number as usize) {
                    Some(Object::Event(event)) => Some(*event),
                    _ => None,
                },
                _ => None,
            });
            snapshot.traces.push(events.collect());
        }
        for segment in self.list(*segments) {
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
