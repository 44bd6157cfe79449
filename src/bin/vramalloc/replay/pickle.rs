//! Reads what PyTorch pickles as a memory snapshot, as it comes, and keeps of it what a
//! replay needs.
//!
//! A pickle is a program for a small machine with a stack. Only the opcodes that such a
//! snapshot consists of are obeyed; one that would load or call anything ends the
//! reading. Invariant: whatever the bytes are, nothing of the file is run, and no more
//! is held than the events and blocks that were read, of which each is named once, and a
//! few bytes for each other object, of which there are no more than such a file has: call
//! stacks are dropped where they end. Cost: one pass over the file.

mod objects;
#[cfg(test)]
mod tests;

use std::io::{self, BufRead, BufReader, Read};

#[cfg(test)]
use self::objects::TraceEvent;
use self::objects::{Objects, Value};
pub(super) use self::objects::{TorchSnapshot, TraceAction};

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

/// The machine.
struct Machine<R> {
    file: BufReader<Counted<R>>,
    stack: Vec<Value>,
    /// Where in the stack marks lie.
    marks: Vec<usize>,
    memo: Vec<Value>,
    objects: Objects,
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
        objects: Objects::default(),
    };
    let last = machine.run()?;
    machine.objects.snapshot(last).ok_or_else(foreign)?
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
        if self.stack.len() > MOST_WAITING || self.objects.count() as u64 > most {
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
                self.push_object();
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
                self.push_object();
                self.append(items.into_iter())?;
            }
            b'd' => {
                let items = self.marked()?;
                self.push_object();
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
        let text = self.objects.text(bytes);
        self.stack.push(text);
        Ok(())
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

    fn push_object(&mut self) {
        let object = self.objects.open();
        self.stack.push(object);
    }

    /// Adds to the list on top of the stack.
    fn append(&mut self, items: impl Iterator<Item = Value>) -> Step<()> {
        self.objects.append(self.top()?, items).ok_or_else(foreign)
    }

    /// Fills the dictionary on top of the stack.
    fn fill(&mut self, items: &[Value]) -> Step<()> {
        self.objects.fill(self.top()?, items).ok_or_else(foreign)
    }
}
