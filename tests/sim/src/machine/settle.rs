//! Doing what work does to memory, when it ends.
//!
//! Owns the only writes to device memory. Invariant: device ranges were checked
//! against live allocations when the work was submitted, and are checked again
//! here, since they may have been freed since; host ranges are trusted, as a
//! real driver trusts them.

use std::ffi::c_void;

use vramalloc_core::{Address, Bytes};
use vramalloc_model::Violation;

use super::Machine;
use crate::backing::{Backing, populate};
use crate::effect::{Callback, Effect, Rows};
use crate::thread::in_callback;

impl Machine {
    /// Does the effects that are due.
    pub(crate) fn settle(&mut self) {
        for effect in self.model.take_effects() {
            self.apply(effect);
        }
        self.bury_pools();
    }

    fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::Set {
                to,
                unit,
                value,
                width,
                rows,
            } => {
                for start in self.rows(to, width, rows) {
                    set(&self.backing, start, unit, value, width);
                }
            }
            Effect::Copy {
                to,
                from,
                width,
                rows,
            } => {
                let from = self.rows(from, width, rows);
                for (to, from) in self.rows(to, width, rows).into_iter().zip(from) {
                    copy(&self.backing, to, from, width);
                }
            }
            Effect::Write { to, bytes } => {
                let row = Rows {
                    start: to,
                    pitch: 0,
                };
                let width = bytes.len() as u64;
                for to in self.rows(row, width, 1) {
                    copy(&self.backing, to, bytes.as_ptr() as u64, width);
                }
            }
            Effect::Call {
                callback,
                argument,
                mark,
            } => {
                self.model.has_reached(&mark);
                let argument = argument as *mut c_void;
                in_callback(|| match callback {
                    Callback::Plain(function) => function(argument),
                    Callback::Stream(function, stream) => function(stream, 0, argument),
                });
            }
            Effect::Release(address) => self.release(address),
        }
    }

    /// The start of each row; no rows, and a violation, if a row is not
    /// accessible any more.
    fn rows(&mut self, rows: Rows, width: u64, count: u64) -> Vec<u64> {
        let start = |row: u64| rows.start.wrapping_add(row.wrapping_mul(rows.pitch));
        let starts: Vec<u64> = (0..count).map(start).collect();
        // Memory that was freed in the order of the stream is there as long as
        // its pool has reserved it.
        let there = |start: u64| {
            let size = Bytes::new(width);
            self.is_accessible(start, width) || self.model.is_in_spans(Address::new(start), size)
        };
        if starts.iter().all(|&start| there(start)) {
            return starts;
        }
        self.violate(Violation::Other(format!(
            "work ends on {width} bytes at {:#x}, which are not allocated",
            rows.start
        )));
        Vec::new()
    }

    /// Whether these bytes are host memory, or lie in a live allocation.
    pub(crate) fn is_accessible(&self, start: u64, size: u64) -> bool {
        if size == 0 {
            return true;
        }
        let known = self.backing.device_at(start).is_some();
        if !known && self.backing.range_at(start).is_none() {
            return start != 0;
        }
        self.model.covers(Address::new(start), Bytes::new(size))
    }
}

/// As many bytes as are copied at once when memory is set: a multiple of any
/// unit, and small enough for the processor's first cache.
const PIECE: usize = 16 << 10;

fn set(backing: &Backing, start: u64, unit: usize, value: u32, width: u64) {
    let to = backing.inner(start);
    let length = usize::try_from(width).unwrap_or(0);
    populate(to, length);
    let bytes = value.to_le_bytes();
    let unit = &bytes[..unit.min(bytes.len())];
    // SAFETY: `is_accessible` was asked for these bytes, and the machine's lock
    // keeps all other threads of this process away from them.
    let room = unsafe { std::slice::from_raw_parts_mut(to, length) };
    if unit.iter().all(|b| b == &unit[0]) {
        room.fill(unit[0]);
        return;
    }
    let mut done = unit.len().min(length);
    room[..done].copy_from_slice(&unit[..done]);
    // What is written is a whole number of units.
    while done < length {
        let more = done.min(length - done).min(PIECE);
        room.copy_within(..more, done);
        done += more;
    }
}

fn copy(backing: &Backing, to: u64, from: u64, width: u64) {
    let (to, from) = (backing.inner(to), backing.inner(from).cast_const());
    let length = usize::try_from(width).unwrap_or(0);
    populate(to, length);
    // SAFETY: `is_accessible` was asked for device ranges; host ranges are
    // valid by the caller's promise. They may overlap, so this is a move.
    unsafe { std::ptr::copy(from, to, length) };
}
