//! What a page tells, and its words.

use std::borrow::Cow;

use crate::address::Bytes;

use super::words::{Reader, halves, joined, pack};
use super::{FIRST_OF_DEVICE, MAGIC, MOST_DEVICES, NAME};

/// Whose a page is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PageOwner {
    /// Its process id, as it sees itself.
    pub pid: u64,
    /// What identifies the namespace of that id; 0 if the system does not say.
    pub namespace: u64,
    /// When the process began, in milliseconds since 1970.
    pub started_ms: u64,
    /// File name of the executable; long ones are cut.
    pub program: String,
    /// Version of the library.
    pub version: String,
}

/// What a process has at a moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Figures {
    /// That moment, in milliseconds since 1970.
    pub at_ms: u64,
    /// Calls to the driver so far.
    pub driver_calls: u64,
    /// Its devices.
    pub devices: Vec<DeviceFigures>,
}

/// What a process has on a device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DeviceFigures {
    /// Its number in the process.
    pub ordinal: u64,
    /// The driver's name for it among all devices; zero if it does not say.
    pub uuid: u128,
    /// Its name; long ones are cut.
    pub name: Cow<'static, str>,
    /// Its memory, if the driver said.
    pub total: Option<Bytes>,
    /// What the program holds.
    pub live: Bytes,
    /// The most that was, as far as it was seen.
    pub live_peak: Bytes,
    /// What was taken from the driver.
    pub reserved: Bytes,
    /// The most that was, as far as it was seen.
    pub reserved_peak: Bytes,
    /// The limit in force.
    pub limit: Option<Bytes>,
    /// What went past the pool: memory of `cudaMallocAsync`, `cuMemCreate` and
    /// the like.
    pub past: Bytes,
    /// The most that was, as far as it was seen.
    pub past_peak: Bytes,
    /// What the device has until the program resumes what it has paused.
    pub paused: Bytes,
    /// What the program freed and the device may still use. Libraries of before
    /// do not say it.
    pub limbo: Option<Bytes>,
}

/// What can be asked of a process.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum OrderKind {
    /// Write the statistics.
    Dump = 1,
    /// Give idle memory back to the driver.
    Trim = 2,
    /// Set the option `limit` to the argument.
    Limit = 3,
}

impl OrderKind {
    fn of(word: u64) -> Option<OrderKind> {
        let all = [OrderKind::Dump, OrderKind::Trim, OrderKind::Limit];
        all.into_iter().find(|&kind| kind as u64 == word)
    }
}

/// What somebody asks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Order {
    /// Tells it from all others of the process.
    pub number: u64,
    /// Until when it may be begun, in milliseconds since the machine began, by a
    /// process that cannot see whether its sender is still there.
    pub until_ms: u64,
    /// What to do.
    pub kind: OrderKind,
    /// With what.
    pub argument: String,
}

/// How far an order has come.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Outcome {
    /// It is being served.
    Begun = 1,
    /// It was served; the text is the result.
    Done = 2,
    /// It was not; the text says why.
    Refused = 3,
    /// It was withdrawn before it was served.
    Withdrawn = 4,
}

impl Outcome {
    fn of(word: u64) -> Option<Outcome> {
        use Outcome::{Begun, Done, Refused, Withdrawn};
        [Begun, Done, Refused, Withdrawn]
            .into_iter()
            .find(|&outcome| outcome as u64 == word)
    }
}

/// The answer to an order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// How far it is.
    pub outcome: Outcome,
    /// The result or the reason.
    pub text: String,
}

/// No limit, or what the driver does not say.
const NONE: u64 = u64::MAX;

fn optional(word: u64) -> Option<Bytes> {
    (word != NONE).then_some(Bytes::new(word))
}

pub(super) fn write_device(words: &mut Vec<u64>, device: &DeviceFigures) {
    let start = words.len();
    let word = |bytes: Option<Bytes>| bytes.map_or(NONE, Bytes::get);
    let (high, low) = halves(device.uuid);
    words.extend([device.ordinal, high, low]);
    words.extend([
        word(device.total),
        device.live.get(),
        device.live_peak.get(),
        device.reserved.get(),
        device.reserved_peak.get(),
        word(device.limit),
        device.past.get(),
        device.past_peak.get(),
    ]);
    pack(words, &device.name, NAME);
    words.resize(start + FIRST_OF_DEVICE, 0);
    words.extend([device.paused.get(), word(device.limbo)]);
}

fn read_device(words: &[u64]) -> Option<DeviceFigures> {
    let mut from = Reader(words);
    let mut later = words.iter().skip(FIRST_OF_DEVICE).copied();
    Some(DeviceFigures {
        ordinal: from.word()?,
        uuid: joined(from.word()?, from.word()?),
        total: optional(from.word()?),
        live: Bytes::new(from.word()?),
        live_peak: Bytes::new(from.word()?),
        reserved: Bytes::new(from.word()?),
        reserved_peak: Bytes::new(from.word()?),
        limit: optional(from.word()?),
        past: Bytes::new(from.word()?),
        past_peak: Bytes::new(from.word()?),
        name: from.text()?.into(),
        paused: later.next().map_or(Bytes::ZERO, Bytes::new),
        limbo: later.next().and_then(optional),
    })
}

pub(super) fn read_owner(words: Vec<u64>) -> Option<PageOwner> {
    let mut from = Reader(&words);
    if from.word()? != MAGIC {
        return None;
    }
    Some(PageOwner {
        pid: from.word()?,
        namespace: from.word()?,
        started_ms: from.word()?,
        program: from.text()?,
        version: from.text()?,
    })
}

pub(super) fn read_figures(words: Vec<u64>) -> Option<Figures> {
    let mut from = Reader(&words);
    let (at_ms, driver_calls) = (from.word()?, from.word()?);
    let (count, of_each) = (from.word()?, usize::try_from(from.word()?).ok()?);
    let mut devices = Vec::new();
    for _ in 0..count.min(MOST_DEVICES as u64) {
        devices.push(read_device(from.words(of_each)?)?);
    }
    Some(Figures {
        at_ms,
        driver_calls,
        devices,
    })
}

pub(super) fn read_order(words: Vec<u64>) -> Option<Order> {
    let mut from = Reader(&words);
    Some(Order {
        number: from.word()?,
        until_ms: from.word()?,
        kind: OrderKind::of(from.word()?)?,
        argument: from.text()?,
    })
}

pub(super) fn read_reply(words: Vec<u64>, number: u64) -> Option<Reply> {
    let mut from = Reader(&words);
    if from.word()? != number {
        return None;
    }
    Some(Reply {
        outcome: Outcome::of(from.word()?)?,
        text: from.text()?,
    })
}
