//! The command's parsers.

use std::collections::BTreeMap;

use serde_json::Value;
use vramalloc_command::parsers::{self, Form};

/// Statistics files of any content, separated by zero bytes.
pub fn report(data: &[u8]) {
    let files: Vec<&[u8]> = data.split(|&byte| byte == 0).take(8).collect();
    for form in [Form::Each, Form::Merged, Form::Json] {
        let (text, errors) = parsers::report(&files, form);
        assert!(errors.len() <= files.len());
        text.lines().for_each(super::is_plain);
        errors.iter().for_each(|error| super::is_plain(error));
    }
}

/// A statistics file of any content: its snapshot can be undone event by event,
/// from the newest back.
pub fn snapshot(data: &[u8]) {
    match parsers::snapshot(data) {
        Ok(made) => {
            // PROTO 4 at the start, STOP at the end.
            assert!(made.pickle.starts_with(&[0x80, 4]) && made.pickle.ends_with(b"."));
            super::is_plain(&made.summary);
            undone(&serde_json::from_str(&made.json).unwrap());
        }
        Err(error) => super::is_plain(&error),
    }
}

/// What a recording begins with, up to its first event. The text is `{}`.
fn begun() -> Vec<u8> {
    /// Of the file's head and of each block.
    const BLOCK: usize = 64 << 10;
    let mut file = b"vramrec\n".to_vec();
    for word in [1, 64 << 10, 0, 0, 0, 2, 0xa3a6_bf43_u32] {
        file.extend_from_slice(&word.to_le_bytes());
    }
    file.resize(64, 0);
    file.extend_from_slice(b"{}");
    file.resize(BLOCK, 0);
    file.push(1);
    file.resize(BLOCK + 32, 0);
    file
}

/// A recording of any content: the input as a file, and as the events of its first
/// block.
pub fn recording(data: &[u8]) {
    recorded(data);
    let mut file = begun();
    let length = u32::try_from(data.len()).unwrap_or(u32::MAX >> 1);
    let events = file.len();
    file[events - 24..events - 20].copy_from_slice(&length.to_le_bytes());
    file.extend_from_slice(data);
    recorded(&file);
}

fn recorded(file: &[u8]) {
    if let Err(error) = parsers::tape(file) {
        super::is_plain(&error);
    }
    let texts = match parsers::recording(file) {
        Ok(texts) => texts,
        Err(error) => return super::is_plain(&error),
    };
    texts.summary.lines().for_each(super::is_plain);
    let lines: Vec<&str> = texts.json_lines.lines().collect();
    for line in &lines {
        let value: Value = serde_json::from_str(line).unwrap();
        assert!(value["event"].is_string());
    }
    assert_eq!(texts.csv.lines().count(), lines.len() + 1);
    match texts.folded {
        Ok(folded) => {
            for line in String::from_utf8(folded).unwrap().lines() {
                super::is_plain(line);
                let (_, bytes) = line.rsplit_once(' ').unwrap();
                assert!(bytes.parse::<u64>().unwrap() > 0);
            }
        }
        Err(error) => super::is_plain(&error),
    }
    match texts.trace {
        Ok(trace) => assert!(serde_json::from_slice::<Value>(&trace).is_ok()),
        Err(error) => super::is_plain(&error),
    }
    match texts.snapshot {
        Ok(made) => {
            super::is_plain(&made.summary);
            undone(&serde_json::from_str(&made.json).unwrap());
        }
        Err(error) => super::is_plain(&error),
    }
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a Vec<Value> {
    value[key].as_array().unwrap()
}

fn undone(snapshot: &Value) {
    for (device, events) in list(snapshot, "device_traces").iter().enumerate() {
        let mut memory = Memory::default();
        let here = |segment: &&Value| segment["device"] == device;
        for segment in list(snapshot, "segments").iter().filter(here) {
            let mut at = number(segment, "address");
            let size = number(segment, "total_size");
            if segment["is_expandable"] == true {
                memory.map(at, size);
            } else {
                assert_eq!(memory.segments.insert(at, size), None);
            }
            for block in list(segment, "blocks") {
                if block["state"] != "inactive" {
                    let was_freed = block["state"] == "active_pending_free";
                    memory.blocks.insert(at, was_freed);
                }
                at += number(block, "size");
            }
            assert_eq!(at, number(segment, "address") + size);
        }
        for event in events.as_array().unwrap().iter().rev() {
            memory.undo(event);
        }
    }
}

/// The memory of a device at a moment.
#[derive(Default)]
struct Memory {
    /// Sizes by start; of what is mapped side by side, together.
    segments: BTreeMap<u64, u64>,
    mapped: BTreeMap<u64, u64>,
    /// Whether a block was freed, by its start.
    blocks: BTreeMap<u64, bool>,
}

impl Memory {
    fn map(&mut self, at: u64, size: u64) {
        let size = size + self.mapped.remove(&(at + size)).unwrap_or(0);
        match self.mapped.range_mut(..at).next_back() {
            Some((start, before)) if start + *before == at => *before += size,
            _ => assert_eq!(self.mapped.insert(at, size), None),
        }
    }

    fn undo(&mut self, event: &Value) {
        let at = event["addr"].as_u64().unwrap_or(0);
        let size = number(event, "size");
        let around = |all: &BTreeMap<u64, u64>| {
            let (&start, &room) = all.range(..=at).next_back()?;
            (at + size <= start + room).then_some((start, room))
        };
        match event["action"].as_str().unwrap() {
            "alloc" => assert_eq!(self.blocks.remove(&at), Some(false)),
            "free_requested" => assert_eq!(self.blocks.insert(at, false), Some(true)),
            "free_completed" => {
                assert!(
                    around(&self.segments)
                        .or_else(|| around(&self.mapped))
                        .is_some()
                );
                assert_eq!(self.blocks.insert(at, true), None);
            }
            "segment_alloc" => {
                assert_eq!(self.segments.remove(&at), Some(size));
                assert_eq!(self.blocks.range(at..at + size).next(), None);
            }
            "segment_free" => assert_eq!(self.segments.insert(at, size), None),
            "segment_map" => {
                assert_eq!(self.blocks.range(at..at + size).next(), None);
                let (start, room) = around(&self.mapped).unwrap();
                self.mapped.remove(&start);
                for (from, to) in [(start, at), (at + size, start + room)] {
                    if from < to {
                        self.mapped.insert(from, to - from);
                    }
                }
            }
            "segment_unmap" => self.map(at, size),
            action => assert_eq!(action, "oom"),
        }
    }
}

/// A statistics file of ours has a report, alone and as a rank of a job.
pub(crate) fn reads(data: &[u8]) {
    report(data);
    for form in [Form::Each, Form::Merged, Form::Json] {
        let (text, errors) = parsers::report(&[data], form);
        assert_eq!(errors, [""; 0]);
        assert!(!text.is_empty());
    }
}

/// An ELF file, a file of the cache of names, or a mangled name: whichever it
/// is, a name is short and takes no long time.
pub fn symbols(data: &[u8]) {
    // As bounded as the command bounds them.
    const LONGEST: usize = 600;
    let addresses: Vec<u64> = (0..64).map(|n| n * 0x41).collect();
    if let Ok(functions) = parsers::functions(data, &addresses) {
        assert_eq!(functions.len(), addresses.len());
        assert!(functions.iter().flatten().all(|name| name.len() <= LONGEST));
    }
    let _ = parsers::kept_names(data);
    for line in data.split(|&byte| byte == b'\n').take(8) {
        let (name, brief) = parsers::function(line);
        assert!(name.len() <= LONGEST && brief.len() <= name.len() + LONGEST);
    }
}

/// A pattern, and on the next line a name that it may have given.
pub fn names(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Some((pattern, name)) = text.split_once('\n') else {
        return;
    };
    let fits = |pid| parsers::fits(pattern, name, pid);
    // A name that fits for one process fits for any.
    assert!(fits(None) || !fits(Some("42")));
}
