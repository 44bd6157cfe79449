//! What a program can ask and set by name.
//!
//! Cost: a question takes a lock while something is copied; giving memory back
//! waits for the device.

use std::ffi::c_int;
use std::io;

use vramalloc_core::Bytes;
use vramalloc_core::config::{OptionRow, StatsTarget, Unchanged};
use vramalloc_core::recording::Mark;
use vramalloc_core::stats::ArenaStats;

use crate::driver::devices;
use crate::pools::device::DevicePool;
use crate::pools::{background, device, pageable};
use crate::process;
use crate::recording;
use crate::report::dump;

/// Options that can be changed at any time; all others only before memory is
/// asked for.
const CHANGEABLE: [&str; 5] = [
    "eager_delete_scope",
    "fuse_parameter_groups_size",
    "fuse_parameter_memory_size",
    "limit",
    "stats",
];

/// A number of an arena.
type Of = fn(&ArenaStats) -> Bytes;

/// Values of a device's memory, summed over its contexts.
const OF_DEVICE: [(&str, Of); 5] = [
    ("live", |stats| stats.live.current),
    ("cached", |stats| stats.cached.current),
    ("limbo", |stats| stats.limbo.current),
    ("idle", |stats| stats.idle),
    ("reserved", |stats| stats.reserved.current),
];

/// Why a request by name failed.
#[derive(Debug)]
pub(crate) enum Refused {
    /// There is nothing of this name.
    Unknown,
    /// It cannot be set, or not any more.
    ReadOnly,
    /// The text cannot be read.
    Unreadable,
    /// A file could not be written.
    File(io::Error),
}

impl From<Unchanged> for Refused {
    fn from(unchanged: Unchanged) -> Refused {
        match unchanged {
            Unchanged::Unknown => Refused::Unknown,
            Unchanged::Fixed => Refused::ReadOnly,
            Unchanged::Unreadable => Refused::Unreadable,
        }
    }
}

/// What a name stands for.
enum Name<'a> {
    Option(&'a str),
    Dump,
    /// A question or an action that takes no value.
    Plain(fn() -> String),
    Limit(c_int),
    Memory(c_int, Of),
}

impl Name<'_> {
    fn read(name: &str) -> Option<Name<'_>> {
        Some(match name {
            "dump" => Name::Dump,
            "flush" => Name::Plain(flush),
            "statistics" => Name::Plain(dump::text),
            "trim" => Name::Plain(trim),
            "version" => Name::Plain(|| env!("CARGO_PKG_VERSION").to_owned()),
            _ => match name.split_once('.')? {
                ("option", key) => Name::Option(key),
                ("device", rest) => Name::of_device(rest)?,
                _ => return None,
            },
        })
    }

    /// `<ordinal>.<value>`.
    fn of_device(name: &str) -> Option<Name<'_>> {
        let (ordinal, value) = name.split_once('.')?;
        let ordinal = ordinal.parse().ok()?;
        if value == "limit" {
            return Some(Name::Limit(ordinal));
        }
        let (_, of) = OF_DEVICE.iter().find(|(known, _)| *known == value)?;
        Some(Name::Memory(ordinal, *of))
    }
}

/// Answers a question by name, does something, or sets a value that is given.
///
/// # Errors
/// [`Refused`].
pub(crate) fn control(name: &str, value: Option<&str>) -> Result<String, Refused> {
    Ok(match (Name::read(name).ok_or(Refused::Unknown)?, value) {
        (Name::Option(key), value) => return option(key, value),
        (Name::Dump, pattern) => return dump(pattern).map(|()| String::new()),
        (_, Some(_)) => return Err(Refused::ReadOnly),
        (Name::Plain(answer), None) => answer(),
        (Name::Limit(device), None) => {
            devices::limit_on(device).map_or("none".to_owned(), |limit| limit.get().to_string())
        }
        (Name::Memory(device, of), None) => {
            let stats = device::all_on(device).map(|pool| pool.arena().stats());
            let now = stats.filter(|stats| stats.ended_us.is_none());
            now.map(|stats| of(&stats).get()).sum::<u64>().to_string()
        }
    })
}

fn option(key: &str, value: Option<&str>) -> Result<String, Refused> {
    if let Some(text) = value {
        // An existing arena keeps the options that it was made with.
        let early = !device::any() && !pageable::is_in_use();
        let may_change = |row: &OptionRow| early || CHANGEABLE.contains(&row.key);
        process::change_options(|loaded| loaded.change(key, text, may_change))?;
        tell_changed(key);
        device::obey_limit(DevicePool::trim);
    }
    process::options(|loaded| loaded.value(key)).ok_or(Refused::Unknown)
}

/// Tells the recording of an option that was changed.
fn tell_changed(key: &str) {
    recording::mark(|| {
        let value = process::options(|loaded| loaded.value(key))?;
        let key = key.to_owned();
        Some(Mark::Option { key, value })
    });
}

/// Writes the statistics to the file of this pattern, or to where the option
/// `stats` says.
///
/// # Errors
/// [`Refused`].
pub(crate) fn dump(pattern: Option<&str>) -> Result<(), Refused> {
    let target = match pattern {
        None => dump::target(),
        Some(text) => StatsTarget::read(text).ok_or(Refused::Unreadable)?,
    };
    dump::write_now(&target).map_err(Refused::File)
}

fn flush() -> String {
    for pool in device::pools() {
        pool.arena().flush();
        pool.pinned().flush();
    }
    String::new()
}

/// Sets the limit for somebody outside of the program, who may not make it
/// wait. Returns the limit in force.
///
/// # Errors
/// [`Refused`].
pub(crate) fn set_limit(text: &str) -> Result<String, Refused> {
    const KEY: &str = "limit";
    process::change_options(|loaded| loaded.change_by(ORDERED, KEY, text, |_| true))?;
    tell_changed(KEY);
    device::obey_limit(DevicePool::trim_when_quiet);
    process::options(|loaded| loaded.value(KEY)).ok_or(Refused::Unknown)
}

/// The origin of an option that was changed so.
const ORDERED: &str = "vramalloc limit";

/// Gives idle memory back for somebody outside of the program, who may not make
/// it wait. Returns how many bytes went, and how many will with the program's
/// next frees.
pub(crate) fn trim_quietly() -> (u64, u64) {
    let pools = device::pools();
    let given = pools.iter().map(|pool| pool.trim_when_quiet().get());
    let given = given.sum::<u64>() + pageable::trim().get();
    let owed = pools.iter().map(|pool| pool.idle().get()).sum();
    (given, owed)
}

fn trim() -> String {
    background::finish();
    let pools = device::pools();
    let devices = pools.iter().map(|pool| pool.trim().get());
    (devices.sum::<u64>() + pageable::trim().get()).to_string()
}
