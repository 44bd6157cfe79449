//! Orders that others of the user leave on the page: to write the statistics,
//! to give idle memory back, to change the limit.
//!
//! Invariant: an order is served by a call of the program that is over with its
//! own work and holds nothing, or by the thread that writes the statistics in
//! between; in no signal handler and no callback of the driver. Nothing waits
//! for the device, and no call of the program where bare CUDA would not. Cost:
//! for a call that is no hit, those of the [`page`]; a look at the clock for one
//! that only made a fence.

use std::path::Path;

use vramalloc_core::arena::CallEnd;
use vramalloc_core::control::{Order, OrderKind, Outcome};

use crate::families;
use crate::pools::device;
use crate::process::guard;
use crate::process::say::one_line;
use crate::process::{Start, cancel};
use crate::report::control::{self, Refused};
use crate::report::dump;

use crate::page::{self, Page};

/// Has the end of calls that are no hits looked at from now on.
pub(crate) fn begin(_: &'static Start) {
    device::when_settled(after_call);
}

/// After a call that took memory from the driver or gave some back, and now and
/// then after one that made a fence.
fn after_call(end: CallEnd) {
    if end == CallEnd::Moved {
        families::tell_used();
    }
    if end == CallEnd::Moved || page::is_due() {
        look_after_call();
    }
}

#[cold]
fn look_after_call() {
    families::look_again();
    look(page::ready);
}

/// The same from a thread of ours.
pub(crate) fn look_from_outside() {
    // Where our code is broken, nobody looks.
    let _looked = guard::serve(|| look(page::made));
}

fn look(page: impl FnOnce() -> Option<&'static Page>) {
    if !guard::may_wait() {
        return;
    }
    let Some(page) = page() else {
        return;
    };
    page.publish();
    let Some((order, turn)) = page.take_order() else {
        return;
    };
    let _held = cancel::Held::back();
    let (outcome, text) = match serve(&order) {
        Ok(text) => (Outcome::Done, text),
        Err(why) => (Outcome::Refused, why),
    };
    page.publish();
    page.reply(&order, outcome, &one_line(&text));
    drop(turn);
}

/// Does what an order says.
fn serve(order: &Order) -> Result<String, String> {
    match order.kind {
        OrderKind::Dump => {
            let path = dump::write_file()?;
            Ok(shown(&path))
        }
        OrderKind::Trim => {
            let (given, owed) = control::trim_quietly();
            Ok(format!("{given} {owed}"))
        }
        OrderKind::Limit => control::set_limit(&order.argument).map_err(|refused| match refused {
            Refused::Unreadable => format!("{:?} cannot be read there", order.argument),
            _ => "the limit cannot be changed".to_owned(),
        }),
    }
}

/// A file's name as others can use it: as it is, or in quotes and with escapes
/// (`\n`, `\xFF`) if it is no plain text.
fn shown(path: &Path) -> String {
    match path.to_str() {
        Some(text) if !text.contains(char::is_control) => text.to_owned(),
        _ => format!("{path:?}"),
    }
}
