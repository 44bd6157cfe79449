//! A recording line by line, for other programs.
//!
//! Owns the names of the keys and columns, which docs/recording.md explains.

use std::io::{self, Write};

use serde_json::{Map, Value, json};
use vramalloc_core::recording::{Entry, Found, Mark, RecordFrame};
use vramalloc_core::stats::{Action, StackId};

/// How a line is written.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum DumpForm {
    /// A JSON object.
    JsonLines,
    /// The columns of [`COLUMNS`].
    Csv,
}

/// What every line has; the rest of a mark is in `detail`, as JSON.
const COLUMNS: &str = "time_us,thread,arena,event,address,size,stack,detail";

/// Writes what comes before the lines.
pub(super) fn head(form: DumpForm, out: &mut impl Write) -> io::Result<()> {
    match form {
        DumpForm::JsonLines => Ok(()),
        DumpForm::Csv => writeln!(out, "{COLUMNS}"),
    }
}

/// Writes a line.
pub(super) fn line(form: DumpForm, entry: &Entry, out: &mut impl Write) -> io::Result<()> {
    let (word, address, size, stack, detail) = match &entry.found {
        Found::Event { event, told } => {
            let word = event.action.word();
            let address = match event.action {
                Action::Oom { device_free } => Some(device_free.get()),
                action => action.address().map(vramalloc_core::Address::get),
            };
            let detail = match told {
                None => Map::new(),
                Some(waits) => object(json!({ "there_already": true, "freed": waits })),
            };
            let size = event.size.get();
            (word, address, Some(size), event.stack, detail)
        }
        Found::Mark(mark) => {
            let (word, detail) = said(mark);
            (word, None, None, StackId::NONE, detail)
        }
    };
    match form {
        DumpForm::JsonLines => {
            let mut value = object(json!({
                "time_us": entry.time_us,
                "thread": entry.thread,
                "arena": entry.arena,
                "event": word,
            }));
            if let (Some(address), Some(size)) = (address, size) {
                value.insert("address".to_owned(), address.into());
                value.insert("size".to_owned(), size.into());
                if let Some(stack) = stack.number() {
                    value.insert("stack".to_owned(), stack.into());
                }
            }
            value.extend(detail);
            writeln!(out, "{}", Value::Object(value))
        }
        DumpForm::Csv => {
            let shown = |number: Option<u64>| number.map(|n| n.to_string()).unwrap_or_default();
            let detail = if detail.is_empty() {
                String::new()
            } else {
                let text = Value::Object(detail).to_string();
                format!("\"{}\"", text.replace('"', "\"\""))
            };
            writeln!(
                out,
                "{},{},{},{word},{},{},{},{detail}",
                entry.time_us,
                entry.thread,
                shown(entry.arena.map(u64::from)),
                shown(address),
                shown(size),
                shown(stack.number().map(u64::from)),
            )
        }
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// The word for a mark, and what it says.
fn said(mark: &Mark) -> (&'static str, Map<String, Value>) {
    let (word, value) = match mark {
        Mark::Arena { arena, text } => {
            let told: Value = serde_json::from_str(text).unwrap_or(Value::Null);
            ("arena", json!({ "number": arena, "is": told }))
        }
        Mark::Object {
            object,
            file,
            build_id,
        } => {
            let id = Some(build_id).filter(|id| !id.is_empty());
            let value = json!({ "object": object, "file": file, "build_id": id });
            ("object", value)
        }
        Mark::Stack { stack, frames } => {
            let frames: Vec<Value> = frames.iter().map(frame).collect();
            let value = json!({ "number": stack.number(), "frames": frames });
            ("stack", value)
        }
        Mark::Gap(lost) => ("gap", json!({ "lost_events": lost })),
        Mark::Telling { begins } => ("telling", json!({ "begins": begins })),
        Mark::Oom {
            size,
            device_free,
            stack,
        } => {
            let value = json!({
                "bytes": size.get(),
                "device_free_bytes": device_free.get(),
                "of_stack": stack.number(),
            });
            ("oom", value)
        }
        Mark::Fence(number) => ("fence", json!({ "epoch": number })),
        Mark::Reached(number) => ("reached", json!({ "epoch": number })),
        Mark::Waited { ns, budget_ns } => ("waited", json!({ "ns": ns, "budget_ns": budget_ns })),
        Mark::Refused { size, code } => ("refused", json!({ "bytes": size.get(), "code": code })),
        Mark::Capture { begins, stream } => {
            ("capture", json!({ "begins": begins, "stream": stream }))
        }
        Mark::Scope { begins } => ("scope", json!({ "begins": begins })),
        Mark::Option { key, value } => ("option", json!({ "key": key, "value": value })),
        Mark::Trim => ("trim", json!({})),
        Mark::Ended => ("ended", json!({})),
        Mark::Memory {
            free,
            total,
            reserved,
        } => {
            let value = json!({
                "free_bytes": free.get(),
                "total_bytes": total.get(),
                "reserved_bytes": reserved.get(),
            });
            ("memory", value)
        }
        Mark::Reserved { address, size } => (
            "reserved",
            json!({ "address": address, "bytes": size.get() }),
        ),
        Mark::Created(units) => ("created", json!({ "units": units })),
        Mark::Mapping {
            granule,
            unmaps_runs,
        } => {
            let value = json!({ "granule_bytes": granule.get(), "unmaps_runs": unmaps_runs });
            ("mapping", value)
        }
        Mark::Quiet(is_quiet) => ("quiet", json!({ "is_quiet": is_quiet })),
        Mark::Seen(seen) => ("seen", json!({ "how": seen.word() })),
        Mark::Wanted(request) => ("wanted", json!({ "bytes": request.get() })),
        Mark::Past { device, family } => {
            ("past", json!({ "device": device, "family": family.key() }))
        }
        Mark::Order(order) => ("order", json!({ "what": order.word() })),
    };
    (word, object(value))
}

fn frame(frame: &RecordFrame) -> Value {
    match frame {
        RecordFrame::Object { object, offset } => json!({ "object": object, "offset": offset }),
        RecordFrame::Address(address) => json!({ "address": address }),
        RecordFrame::Python {
            file,
            line,
            function,
        } => json!({ "file": file, "line": line, "function": function }),
    }
}
