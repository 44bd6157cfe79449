//! What a program can ask and set by name.
//!
//! Cost: a question takes a lock while something is copied; giving memory back
//! waits for the device.

use std::ffi::{OsStr, c_int};
use std::io;
use std::os::unix::ffi::OsStrExt as _;

use vramalloc_core::Bytes;
use vramalloc_core::arena::Peak;
use vramalloc_core::config::{OptionRow, StatsTarget, Unchanged};
use vramalloc_core::recording::Mark;
use vramalloc_core::stats::{ArenaStats, ClassCount};

use crate::driver::devices::{self, Device};
use crate::linker::objects;
use crate::pools::device::DevicePool;
use crate::pools::{background, device, pageable};
use crate::process;
use crate::real::reach;
use crate::recording;
use crate::report::{dump, marks};

/// Options that can be changed at any time; all others only before memory is
/// asked for.
const CHANGEABLE: [&str; 6] = [
    "device_limits",
    "eager_delete_scope",
    "fuse_parameter_groups_size",
    "fuse_parameter_memory_size",
    "limit",
    "stats",
];

/// A number of an arena.
type Of = fn(&ArenaStats) -> u64;

/// A number of a device.
type OfDevice = fn(&Device) -> Bytes;

/// Numbers of the memory that a device has now, summed over its contexts.
const NOW: [(&str, Of); 5] = [
    ("live", |stats| stats.live.current.get()),
    ("cached", |stats| stats.cached.current.get()),
    ("limbo", |stats| stats.limbo.current.get()),
    ("idle", |stats| stats.idle.get()),
    ("reserved", |stats| stats.reserved.current.get()),
];

/// What was counted since the start, also in contexts that have ended.
const SINCE_START: [(&str, Of); 3] = [
    ("allocations", |stats| sum(stats, |class| class.allocations)),
    ("frees", |stats| sum(stats, |class| class.frees)),
    ("requested", |stats| sum(stats, |class| class.requested)),
];

/// Numbers of a device that no arena has.
const BESIDE: [(&str, OfDevice); 2] = [
    ("past_pool", |device| device.families.bytes()),
    ("counted", |device| device.quota.reserved()),
];

const PEAKS: [(&str, Peak); 2] = [("live_peak", Peak::Live), ("reserved_peak", Peak::Reserved)];

fn sum(stats: &ArenaStats, of: fn(&ClassCount) -> u64) -> u64 {
    stats.classes.iter().map(of).sum()
}

/// What belongs to a name in a table.
fn named<T: Copy>(table: &[(&str, T)], name: &str) -> Option<T> {
    let found = table.iter().find(|(known, _)| *known == name);
    found.map(|(_, value)| *value)
}

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
    /// The same about a mark; none where there is no such mark.
    Mark(u64, fn(u64) -> Option<String>),
    Limit(c_int),
    Peak(c_int, Peak),
    Now(c_int, Of),
    SinceStart(c_int, Of),
    Beside(c_int, OfDevice),
}

impl Name<'_> {
    fn read(name: &str) -> Option<Name<'_>> {
        Some(match name {
            "device.count" => Name::Plain(|| devices::count().to_string()),
            "dump" => Name::Dump,
            "flush" => Name::Plain(flush),
            "library.path" => Name::Plain(library_path),
            "mark" => Name::Plain(|| marks::set().to_string()),
            "preloaded" => Name::Plain(|| u8::from(reach::is_in_front()).to_string()),
            "statistics" => Name::Plain(dump::text),
            "trim" => Name::Plain(trim),
            "version" => Name::Plain(|| env!("CARGO_PKG_VERSION").to_owned()),
            _ => match name.split_once('.')? {
                ("option", key) => Name::Option(key),
                ("device", rest) => Name::of_device(rest)?,
                ("mark", rest) => Name::of_mark(rest)?,
                _ => return None,
            },
        })
    }

    /// `<ordinal>.<value>`.
    fn of_device(name: &str) -> Option<Name<'_>> {
        let (ordinal, value) = name.split_once('.')?;
        let ordinal = there(ordinal)?;
        if value == "limit" {
            return Some(Name::Limit(ordinal));
        }
        let peak = || named(&PEAKS, value).map(|of| Name::Peak(ordinal, of));
        let now = || named(&NOW, value).map(|of| Name::Now(ordinal, of));
        let since = || named(&SINCE_START, value).map(|of| Name::SinceStart(ordinal, of));
        let beside = || named(&BESIDE, value).map(|of| Name::Beside(ordinal, of));
        peak().or_else(now).or_else(since).or_else(beside)
    }

    /// `<number>.<value>`.
    fn of_mark(name: &str) -> Option<Name<'_>> {
        let (number, value) = name.split_once('.')?;
        let answer: fn(u64) -> Option<String> = match value {
            "blocks" => |mark| Some(marks::sums(mark)?.0.to_string()),
            "bytes" => |mark| Some(marks::sums(mark)?.1.to_string()),
            "report" => marks::report,
            "end" => |mark| marks::end(mark).then(String::new),
            _ => return None,
        };
        Some(Name::Mark(number.parse().ok()?, answer))
    }
}

/// The device with this number, if it is there. How many there are is not known before CUDA
/// is initialised.
fn there(number: &str) -> Option<c_int> {
    let is_number = number.bytes().all(|digit| digit.is_ascii_digit());
    let device = number.parse().ok().filter(|_| is_number)?;
    let count = devices::count();
    (count == 0 || device < count).then_some(device)
}

/// Answers a question by name, does something, or sets a value that is given.
///
/// # Errors
/// [`Refused`].
pub(crate) fn control(name: &str, value: Option<&str>) -> Result<String, Refused> {
    let name = Name::read(name).ok_or(Refused::Unknown)?;
    Ok(match (name, value) {
        (Name::Option(key), value) => return option(key, value),
        (Name::Dump, pattern) => return dump(pattern).map(|()| String::new()),
        (Name::Limit(device), Some(text)) => return set_limit_of(device, text),
        (Name::Peak(device, of), Some(text)) => return set_peak(device, of, text),
        (_, Some(_)) => return Err(Refused::ReadOnly),
        (Name::Plain(answer), None) => answer(),
        (Name::Mark(mark, answer), None) => answer(mark).ok_or(Refused::Unknown)?,
        (Name::Limit(device), None) => limit_of(device),
        (Name::Peak(device, of), None) => device::peak(device, of).get().to_string(),
        (Name::Now(device, of), None) => {
            let now = device::all_on(device).filter(|pool| !pool.arena().has_ended());
            now.map(|pool| pool.arena().stats_by(of))
                .sum::<u64>()
                .to_string()
        }
        (Name::SinceStart(device, of), None) => {
            let all = device::all_on(device);
            all.map(|pool| pool.arena().stats_by(of))
                .sum::<u64>()
                .to_string()
        }
        (Name::Beside(device, of), None) => {
            let bytes = devices::find(device).map_or(Bytes::ZERO, of);
            bytes.get().to_string()
        }
    })
}

/// The limit in force on a device.
fn limit_of(device: c_int) -> String {
    devices::limit_on(device).map_or("none".to_owned(), |limit| limit.get().to_string())
}

/// Sets the limit of a device, in the option `device_limits`.
fn set_limit_of(device: c_int, text: &str) -> Result<String, Refused> {
    let number = u32::try_from(device).map_err(|_| Refused::Unknown)?;
    process::change_options(|loaded| loaded.change_limit_of(number, text))?;
    tell_changed("device_limits");
    device::obey_limit(DevicePool::trim);
    Ok(limit_of(device))
}

/// Begins a peak anew, or raises it to what the caller has kept. Returns what it was
/// before.
fn set_peak(device: c_int, of: Peak, text: &str) -> Result<String, Refused> {
    if text == "reset" {
        return Ok(device::begin_peak(device, of).get().to_string());
    }
    let least = text.parse().map_err(|_| Refused::Unreadable)?;
    let before = device::peak(device, of);
    device::raise_peak(device, of, Bytes::new(least));
    Ok(before.get().to_string())
}

/// Where the library was loaded from.
fn library_path() -> String {
    let object = objects::around(library_path as *const () as usize);
    let path = object.map_or_else(Vec::new, |object| object.path.into_bytes());
    let path = process::first_folder().join(OsStr::from_bytes(&path));
    let real = path.canonicalize().unwrap_or(path);
    real.to_string_lossy().into_owned()
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
