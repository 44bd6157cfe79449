//! What the statistics say of a recording, and what a recording says of an arena.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::address::Bytes;

/// The recording of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordingReport {
    /// Its file.
    pub file: PathBuf,
    /// How it stands: `running`, `ended`, `full`, `failed`.
    pub state: &'static str,
    /// Events of blocks and segments.
    pub events: u64,
    /// Bytes of events and marks.
    pub bytes: u64,
    /// Events that found no room.
    pub lost: u64,
    /// Whether older events have made room for new ones.
    pub came_round: bool,
    /// Why it ended before the process.
    pub why: Option<String>,
}

impl RecordingReport {
    pub(super) fn to_json(&self) -> Value {
        json!({
            "file": self.file.to_string_lossy(),
            "state": self.state,
            "events": self.events,
            "bytes": self.bytes,
            "lost_events": self.lost,
            "oldest_lost": self.came_round,
            "reason": self.why,
        })
    }
}

/// Where the memory of an arena lies.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum RecordedPlace {
    /// On a device.
    Device,
    /// On the host, page-locked.
    Pinned,
    /// On the host.
    Pageable,
}

impl RecordedPlace {
    /// The word in a recording.
    const fn word(self) -> &'static str {
        match self {
            RecordedPlace::Device => "device",
            RecordedPlace::Pinned => "pinned",
            RecordedPlace::Pageable => "pageable",
        }
    }
}

/// An arena, as a recording tells of it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct RecordedArena<'a> {
    /// Where its memory lies.
    pub place: RecordedPlace,
    /// The device's number.
    pub device: Option<u32>,
    /// Its name, if the driver said.
    pub device_name: Option<&'a str>,
    /// Its memory, if the driver said.
    pub device_total: Option<Bytes>,
    /// What the process may have of it, if there is a limit.
    pub limit: Option<Bytes>,
    /// Its context: any number that no other context has at that time.
    pub context: Option<u64>,
    /// Whether it serves one stream.
    pub lane: bool,
}

impl RecordedArena<'_> {
    /// As JSON, under the keys of the statistics.
    #[must_use]
    pub fn to_text(&self) -> String {
        let value = json!({
            "place": self.place.word(),
            "device": self.device,
            "device_name": self.device_name,
            "device_total_bytes": self.device_total.map(Bytes::get),
            "limit_bytes": self.limit.map(Bytes::get),
            "context": self.context,
            "lane": self.lane,
        });
        value.to_string()
    }
}
