//! The requests that failed for want of memory, as the file describes them.
//!
//! Invariant: as that of the file. A call stack that is named but missing
//! counts as none, as if the library could not take it.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::super::output::plain;
use super::file::{list, number};

/// How many places of a call stack are shown, from the innermost on.
const PLACES: usize = 8;

/// The failed requests of an arena, in their order.
#[derive(Default)]
pub(super) struct Ooms {
    pub(super) events: Vec<Oom>,
    /// How many requests in the middle were left out.
    pub(super) left_out: u64,
}

/// A failed request.
pub(super) struct Oom {
    /// Microseconds since 1970.
    pub(super) time_us: u64,
    pub(super) request: u64,
    pub(super) rounded: u64,
    pub(super) at_limit: bool,
    pub(super) limit: Option<u64>,
    pub(super) driver_free: Option<u64>,
    pub(super) driver_total: Option<u64>,
    /// By all arenas of the device.
    pub(super) device_reserved: u64,
    pub(super) before: Holdings,
    pub(super) after: Holdings,
    pub(super) free_in_sum: u64,
    pub(super) largest_free: u64,
    pub(super) fragmented: bool,
    pub(super) sizes: Vec<Group>,
    pub(super) stacks: Vec<Group>,
    pub(super) stack: Option<u64>,
}

/// What an arena held.
pub(super) struct Holdings {
    pub(super) reserved: u64,
    pub(super) live: u64,
    pub(super) cached: u64,
    pub(super) limbo: u64,
}

/// Live blocks of one size, or of one call stack.
pub(super) struct Group {
    /// The size, or the number of the call stack.
    pub(super) key: u64,
    pub(super) count: u64,
    pub(super) bytes: u64,
}

impl Ooms {
    /// The failed requests of an arena; none if the library that wrote the file
    /// did not describe them.
    ///
    /// # Errors
    /// One line that says what is wrong.
    pub(super) fn read(arena: &Value) -> Result<Ooms, String> {
        if arena.get("oom_events").is_none() {
            return Ok(Ooms::default());
        }
        let events = list(arena, "oom_events")?.iter().enumerate();
        Ok(Ooms {
            events: events
                .map(|(i, event)| oom(event).map_err(|error| format!("oom_events[{i}].{error}")))
                .collect::<Result<_, _>>()?,
            left_out: number(arena, "oom_events_left_out")?,
        })
    }
}

fn oom(event: &Value) -> Result<Oom, String> {
    let flag = |key: &str| {
        let flag = event.get(key).and_then(Value::as_bool);
        flag.ok_or_else(|| format!("{key} is missing or neither true nor false"))
    };
    let optional = |key: &str| event.get(key).and_then(Value::as_u64);
    Ok(Oom {
        time_us: number(event, "time_us")?,
        request: number(event, "request_bytes")?,
        rounded: number(event, "rounded_bytes")?,
        at_limit: flag("at_limit")?,
        limit: optional("limit_bytes"),
        driver_free: optional("driver_free_bytes"),
        driver_total: optional("driver_total_bytes"),
        device_reserved: number(event, "device_reserved_bytes")?,
        before: holdings(event, "before")?,
        after: holdings(event, "after")?,
        free_in_sum: number(event, "free_in_sum_bytes")?,
        largest_free: number(event, "largest_free_bytes")?,
        fragmented: flag("fragmented")?,
        sizes: groups(event, "live_sizes", "size_bytes")?,
        stacks: groups(event, "live_stacks", "stack")?,
        stack: optional("stack"),
    })
}

fn holdings(event: &Value, moment: &str) -> Result<Holdings, String> {
    let bytes = |what: &str| number(event, &format!("{moment}.{what}_bytes"));
    Ok(Holdings {
        reserved: bytes("reserved")?,
        live: bytes("live")?,
        cached: bytes("cached")?,
        limbo: bytes("limbo")?,
    })
}

fn groups(event: &Value, name: &str, key: &str) -> Result<Vec<Group>, String> {
    let group = |group: &Value| {
        Ok(Group {
            key: number(group, key)?,
            count: number(group, "count")?,
            bytes: number(group, "bytes")?,
        })
    };
    let all = list(event, name)?.iter().enumerate();
    all.map(|(i, one)| group(one).map_err(|error: String| format!("{name}[{i}].{error}")))
        .collect()
}

/// The call stacks of a file. The rest of its snapshot, which can be large, is
/// skipped.
#[derive(Default, Deserialize)]
pub(super) struct Stacks {
    #[serde(default)]
    frames: Vec<Frame>,
    #[serde(default)]
    stacks: Vec<Stack>,
}

#[derive(Deserialize)]
struct Frame {
    object: String,
    offset: u64,
    name: Option<String>,
}

#[derive(Deserialize)]
struct Stack {
    stack: u64,
    frames: Vec<usize>,
}

impl Stacks {
    /// The innermost places of the stacks as text, by the stacks' numbers.
    pub(super) fn in_words(&self) -> BTreeMap<u64, String> {
        let place = |&at: &usize| {
            let frame = self.frames.get(at)?;
            Some(match &frame.name {
                Some(name) => plain(name),
                // In the form that addr2line accepts.
                None => {
                    let file = frame.object.rsplit('/').next().unwrap_or_default();
                    format!("{}+{:#x}", plain(file), frame.offset)
                }
            })
        };
        let words = |stack: &Stack| {
            let places: Vec<String> = stack.frames.iter().filter_map(place).take(PLACES).collect();
            (stack.stack, places.join(" < "))
        };
        self.stacks.iter().map(words).collect()
    }
}
