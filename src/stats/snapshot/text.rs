//! The snapshots as JSON text.
//!
//! Owns the names of their keys, which docs/statistics.md explains. The text is
//! written while it is made, one line per block and event: at the end of a
//! process there may be little memory, and JSON values would take a kilobyte
//! for each, a text in memory a hundred bytes. Cost: some 100 ns per line.

use std::io::{self, Write};

use super::{Action, Event, Segment, Snapshot, Snapshots};
use crate::stats::lines::Lines;
use crate::stats::{Frame, Stacks};

/// See [`Snapshots::write`].
pub(super) fn write(snapshots: &Snapshots, stacks: &Stacks, out: &mut dyn Write) -> io::Result<()> {
    let mut out = Lines::new(out);
    out.put(format_args!(
        "{{\n    \"blocks\": {},\n    \"left_out\": {},\n    \"arenas\": ",
        snapshots.blocks, snapshots.left_out,
    ))?;
    out.list(4, &snapshots.arenas, |out, (device, snapshot)| {
        arena(out, *device, snapshot)
    })?;
    out.put(format_args!(",\n    \"frames\": "))?;
    out.list(4, &stacks.frames, |out, place| frame(out, place, stacks))?;
    out.put(format_args!(",\n    \"stacks\": "))?;
    out.list(4, &stacks.stacks, |out, (id, frames)| {
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
        "{{ \"address\": {}, \"size\": {}, \"kind\": \"{}\", \"mapped\": {}, \"blocks\": ",
        segment.address.get(),
        segment.size.get(),
        segment.kind.word(),
        segment.is_mapped,
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
    if let Action::Oom { device_free } = event.action {
        out.put(format_args!("\"device_free\": {}", device_free.get()))?;
    }
    if let Some(address) = event.action.address() {
        out.put(format_args!("\"address\": {}", address.get()))?;
    }
    out.put(format_args!(
        ", \"size\": {}, \"time_us\": {}",
        event.size.get(),
        event.time_us
    ))?;
    out.stack(event.stack)?;
    out.put(format_args!(" }}"))
}

/// Of Python the file, the line and the function are in the same keys.
fn frame(out: &mut Lines<'_>, frame: &Frame, stacks: &Stacks) -> io::Result<()> {
    let (object, offset, name) = match frame {
        Frame::Native { object, offset } => {
            let object = object.and_then(|at| stacks.objects.get(at));
            (object.map_or("", |object| &object.file), *offset, None)
        }
        Frame::Python {
            file,
            line,
            function,
        } => (&**file, line.map_or(0, u64::from), Some(function.as_str())),
    };
    out.put(format_args!("{{ \"object\": "))?;
    out.quoted(Some(object))?;
    out.put(format_args!(", \"offset\": {offset}, \"name\": "))?;
    out.quoted(name)?;
    out.put(format_args!(" }}"))
}
