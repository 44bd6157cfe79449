//! The snapshots as JSON text.
//!
//! Owns the names of their keys, which docs/statistics.md explains. The text is
//! written while it is made, one line per block and event: at the end of a
//! process there may be little memory, and JSON values would take a kilobyte
//! for each, a text in memory a hundred bytes. Cost: some 100 ns per line.

use std::fmt::Arguments;
use std::io::{self, Write};

use super::{Action, Event, Segment, Snapshot, Snapshots};
use crate::address::Address;
use crate::stats::{Frame, StackId};

/// See [`Snapshots::write`].
pub(super) fn write(snapshots: &Snapshots, out: &mut dyn Write) -> io::Result<()> {
    let mut out = Lines { out };
    out.put(format_args!(
        "{{\n    \"blocks\": {},\n    \"left_out\": {},\n    \"arenas\": ",
        snapshots.blocks, snapshots.left_out,
    ))?;
    out.list(4, &snapshots.arenas, |out, (device, snapshot)| {
        arena(out, *device, snapshot)
    })?;
    out.put(format_args!(",\n    \"frames\": "))?;
    out.list(4, &snapshots.stacks.frames, frame)?;
    out.put(format_args!(",\n    \"stacks\": "))?;
    out.list(4, &snapshots.stacks.stacks, |out, (id, frames)| {
        out.put(format_args!("{{ \"stack\": "))?;
        out.number(id.number().map(u64::from))?;
        out.put(format_args!(", \"frames\": {frames:?} }}"))
    })?;
    out.put(format_args!("\n  }}"))
}

fn arena(out: &mut Lines<'_>, device: u32, snapshot: &Snapshot) -> io::Result<()> {
    out.put(format_args!(
        "{{\n        \"device\": {device},\n        \"made_us\": {},\n        \"ended_us\": ",
        snapshot.made_us,
    ))?;
    out.number(snapshot.ended_us)?;
    out.put(format_args!(
        ",\n        \"forgotten\": {},\n        \"segments\": ",
        snapshot.forgotten,
    ))?;
    out.list(8, &snapshot.segments, |out, segment| {
        self::segment(out, snapshot, segment)
    })?;
    out.put(format_args!(
        ",\n        \"events_lost\": {},\n        \"events\": ",
        snapshot.events_lost
    ))?;
    out.list(8, &snapshot.events, event)?;
    out.put(format_args!("\n      }}"))
}

fn segment(out: &mut Lines<'_>, snapshot: &Snapshot, segment: &Segment) -> io::Result<()> {
    out.put(format_args!(
        "{{ \"address\": {}, \"size\": {}, \"kind\": \"{}\", \"blocks\": ",
        segment.address.get(),
        segment.size.get(),
        segment.kind.word(),
    ))?;
    out.list(10, snapshot.blocks_of(segment), |out, block| {
        out.put(format_args!(
            "{{ \"address\": {}, \"size\": {}, \"requested\": {}, \"state\": \"{}\"",
            block.address.get(),
            block.size.get(),
            block.requested.get(),
            block.state.word(),
        ))?;
        out.stack(block.stack)?;
        out.put(format_args!(" }}"))
    })?;
    out.put(format_args!(" }}"))
}

fn event(out: &mut Lines<'_>, event: &Event) -> io::Result<()> {
    out.put(format_args!("{{ \"action\": \"{}\", ", event.action.word()))?;
    match event.action {
        Action::Alloc(address)
        | Action::FreeRequested(address)
        | Action::FreeCompleted(address)
        | Action::SegmentAlloc(address)
        | Action::SegmentFree(address) => {
            out.put(format_args!("\"address\": {}", Address::get(address)))?;
        }
        Action::Oom { device_free } => {
            out.put(format_args!("\"device_free\": {}", device_free.get()))?;
        }
    }
    out.put(format_args!(
        ", \"size\": {}, \"time_us\": {}",
        event.size.get(),
        event.time_us
    ))?;
    out.stack(event.stack)?;
    out.put(format_args!(" }}"))
}

fn frame(out: &mut Lines<'_>, frame: &Frame) -> io::Result<()> {
    out.put(format_args!("{{ \"object\": "))?;
    out.quoted(Some(&frame.object))?;
    out.put(format_args!(", \"offset\": {}, \"name\": ", frame.offset))?;
    out.quoted(frame.name.as_deref())?;
    out.put(format_args!(" }}"))
}

/// A JSON text that is being written.
struct Lines<'a> {
    out: &'a mut dyn Write,
}

impl Lines<'_> {
    fn put(&mut self, words: Arguments<'_>) -> io::Result<()> {
        self.out.write_fmt(words)
    }

    /// A list, each entry on lines of its own, indented by two more than
    /// `indent`.
    fn list<T>(
        &mut self,
        indent: usize,
        entries: &[T],
        mut write: impl FnMut(&mut Self, &T) -> io::Result<()>,
    ) -> io::Result<()> {
        self.put(format_args!("["))?;
        for (at, entry) in entries.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            self.put(format_args!("{comma}\n{:1$}", "", indent + 2))?;
            write(self, entry)?;
        }
        if !entries.is_empty() {
            self.put(format_args!("\n{:indent$}", ""))?;
        }
        self.put(format_args!("]"))
    }

    /// A text in quotes, or null.
    fn quoted(&mut self, text: Option<&str>) -> io::Result<()> {
        let quoted = text.and_then(|text| serde_json::to_string(text).ok());
        self.put(format_args!("{}", quoted.as_deref().unwrap_or("null")))
    }

    fn number(&mut self, number: Option<u64>) -> io::Result<()> {
        match number {
            Some(number) => self.put(format_args!("{number}")),
            None => self.put(format_args!("null")),
        }
    }

    /// The key of a call stack, if one was taken.
    fn stack(&mut self, stack: StackId) -> io::Result<()> {
        match stack.number() {
            Some(number) => self.put(format_args!(", \"stack\": {number}")),
            None => Ok(()),
        }
    }
}
