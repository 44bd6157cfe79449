//! Which library of the program has how much of each device, as the report tells
//! it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use serde_json::{Value, json};

use super::json::unix_ms;
use super::{ArenaReport, FamilyReport};
use crate::address::Bytes;
use crate::library::{LibraryBytes, LibraryId};

/// What is in use of a device that the process has not, when the driver was asked
/// last.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ElsewhereReport {
    /// Ordinal of the device.
    pub device: u32,
    /// What CUDA has for itself, and what other processes have.
    pub bytes: Bytes,
    /// When the driver was asked.
    pub at: SystemTime,
}

impl ElsewhereReport {
    pub(super) fn to_json(self) -> Value {
        json!({
            "device": self.device,
            "bytes": self.bytes.get(),
            "asked_unix_ms": unix_ms(self.at),
        })
    }
}

/// What a library, or a package of Python, has of a device.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
struct Owned {
    bytes: Bytes,
    at_peak: Bytes,
    past_pool: Bytes,
}

/// A list of what each library has of each device, who has most of a device first.
/// `paths`: those of the libraries and packages, from number 1 on.
pub(super) fn owners<'a>(
    arenas: impl Iterator<Item = &'a ArenaReport>,
    families: &[FamilyReport],
    paths: &[String],
) -> Vec<Value> {
    let mut all: BTreeMap<(u32, LibraryId), Owned> = BTreeMap::new();
    let arenas: Vec<&ArenaReport> = arenas.collect();
    let devices: BTreeSet<u32> = arenas.iter().map(|arena| arena.device).collect();
    for device in devices {
        let of_device = arenas.iter().filter(|arena| arena.device == device);
        // What a context held that has ended is no longer held.
        let (ended, there): (Vec<&ArenaReport>, Vec<_>) =
            of_device.partition(|arena| arena.stats.ended_us.is_some());
        let peak = |arenas: &[&ArenaReport]| {
            let peaks = arenas.iter().map(|arena| arena.stats.live.peak);
            peaks.fold(Bytes::ZERO, Bytes::saturating_add)
        };
        // Those that were not there together do not add up.
        let alone = ended.chunks(1).max_by_key(|arena| peak(arena));
        let at_peak = match alone {
            Some(alone) if peak(alone) > peak(&there) => alone,
            _ => &there[..],
        };
        for library in LibraryId::all() {
            let owned = all.entry((device, library)).or_default();
            let add =
                |sum: &mut Bytes, of: &LibraryBytes| *sum = sum.saturating_add(of.of(library));
            (there.iter()).for_each(|arena| add(&mut owned.bytes, &arena.stats.libraries_live));
            let peaks = at_peak.iter().map(|arena| &arena.stats.libraries_at_peak);
            peaks.for_each(|of| add(&mut owned.at_peak, of));
        }
    }
    for family in families {
        for library in LibraryId::all() {
            let owned = all.entry((family.device, library)).or_default();
            let bytes = family.stats.libraries.of(library);
            owned.past_pool = owned.past_pool.saturating_add(bytes);
        }
    }
    let mut all: Vec<_> = (all.into_iter())
        .filter(|(_, owned)| *owned != Owned::default())
        .collect();
    all.sort_by_key(|((device, library), owned)| {
        let most = owned.at_peak.max(owned.bytes);
        let most = most.saturating_add(owned.past_pool);
        (*device, std::cmp::Reverse(most), *library)
    });
    let row = |((device, library), owned): ((u32, LibraryId), Owned)| {
        let path = paths.get(usize::from(library.number()).wrapping_sub(1));
        let name = path.map(|path| path.rsplit('/').next().unwrap_or(path));
        let others = (library == LibraryId::OTHERS).then_some("others");
        json!({
            "device": device,
            "owner": name.or(others),
            "file": path,
            "bytes": owned.bytes.get(),
            "peak_bytes": owned.at_peak.get(),
            "past_pool_bytes": owned.past_pool.get(),
        })
    };
    all.into_iter().map(row).collect()
}
