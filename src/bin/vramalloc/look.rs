//! What the user's processes have now, by device: one look at all pages.
//!
//! Owns copies, so nobody keeps a page open between two looks. Cost: a few system
//! calls for each page, and some 10 ms for one that is being written.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use vramalloc_core::Bytes;
use vramalloc_core::control::{DeviceFigures, Figures, PageOwner};

use super::pages::{self, Pages};
use super::probe::InUse;
use super::status::{self, STRANGE};
use super::units;

/// What nobody here can see, in words.
const NOT_SEEN: &str = "Not seen: programs without vramalloc or of other users, and what CUDA takes \
     for contexts and code. nvidia-smi shows whole devices.";

/// The same where NVML says what is in use.
const SEEN_IN_SUM: &str = "others: what programs without vramalloc or of other users have of the \
     device, and CUDA itself for contexts and code, in sum. nvidia-smi shows them one by one.";

/// All processes at a moment.
#[derive(Clone, Default)]
pub(super) struct Look {
    /// Milliseconds since 1970.
    pub(super) at_ms: u64,
    pub(super) processes: Vec<Watched>,
    /// Pages that cannot be read.
    pub(super) unread: usize,
    /// What is in use of devices, by whomever; of none where nobody says so.
    pub(super) in_use: InUse,
}

/// A process as its page shows it.
#[derive(Clone)]
pub(super) struct Watched {
    /// Its process id here, if that can be known.
    pub(super) id: Option<u64>,
    pub(super) owner: PageOwner,
    /// Nothing while they are written, or if their writer died in it.
    pub(super) figures: Option<Figures>,
}

impl Watched {
    /// Its process id as others show it.
    pub(super) fn shown_id(&self) -> u64 {
        self.id.unwrap_or(self.owner.pid)
    }

    /// The same as text, marked where only its container knows it.
    pub(super) fn id_text(&self) -> String {
        let mark = if self.id.is_some() { "" } else { STRANGE };
        format!("{}{mark}", self.shown_id())
    }

    /// Tells it from all others of a look and of those before.
    pub(super) fn identity(&self) -> WatchedId {
        let owner = &self.owner;
        (owner.namespace, owner.pid, owner.started_ms)
    }

    /// What it has on its devices.
    pub(super) fn devices(&self) -> &[DeviceFigures] {
        self.figures
            .as_ref()
            .map_or(&[], |figures| &figures.devices)
    }
}

/// See [`Watched::identity`].
pub(super) type WatchedId = (u64, u64, u64);

/// What processes have of one device.
#[derive(Default)]
pub(super) struct Shared<'a> {
    /// The driver's name for it; zero if it does not say.
    pub(super) uuid: u128,
    pub(super) name: &'a str,
    /// Its memory, if the driver said.
    pub(super) total: Option<Bytes>,
    pub(super) parts: Vec<(&'a Watched, &'a DeviceFigures)>,
    /// What others have of it, and CUDA itself, if that is known.
    pub(super) others: Option<Bytes>,
}

impl Shared<'_> {
    /// The sum of something over the processes.
    pub(super) fn sum(&self, of: impl Fn(&DeviceFigures) -> Bytes) -> Bytes {
        let parts = self.parts.iter().map(|(_, device)| of(device));
        parts.fold(Bytes::ZERO, Bytes::saturating_add)
    }

    /// The same of what not every process tells; nothing if one does not.
    fn sum_known(&self, of: impl Fn(&DeviceFigures) -> Option<Bytes>) -> Option<u64> {
        let is_known = self.parts.iter().all(|(_, device)| of(device).is_some());
        is_known.then(|| self.sum(|device| of(device).unwrap_or_default()).get())
    }
}

/// Memory that can be handed out; nothing if the process does not tell it from
/// what is in limbo.
pub(super) fn cached(device: &DeviceFigures) -> Option<Bytes> {
    device.limbo.map(|limbo| idle(device).saturating_sub(limbo))
}

/// Memory of the pool that the program does not hold.
pub(super) fn idle(device: &DeviceFigures) -> Bytes {
    device.reserved.saturating_sub(device.live)
}

impl Look {
    /// Looks at the pages; of these processes only, if any are named.
    ///
    /// # Errors
    /// One line that says why the pages cannot be read.
    pub(super) fn now(only: &[u64]) -> Result<Look, String> {
        let Pages { peers, unread } = pages::all()?;
        let mut processes: Vec<Watched> = Vec::with_capacity(peers.len());
        for peer in &peers {
            // Of two with one id, the first is the living one.
            let is_known = peer.id.is_some() && processes.iter().any(|one| one.id == peer.id);
            if is_known || !(only.is_empty() || only.contains(&peer.shown_id())) {
                continue;
            }
            processes.push(Watched {
                id: peer.id,
                owner: peer.owner.clone(),
                figures: peer.figures(),
            });
        }
        Ok(Look {
            at_ms: status::now_ms(),
            processes,
            unread,
            in_use: InUse::new(),
        })
    }

    /// What is not seen, or only in sum, in words.
    pub(super) fn not_seen(&self) -> &'static str {
        match self.in_use.is_empty() {
            true => NOT_SEEN,
            false => SEEN_IN_SUM,
        }
    }

    /// What is had of each device. Processes may number devices in different
    /// ways, so a device is known by the driver's name for it.
    pub(super) fn by_device(&self) -> Vec<Shared<'_>> {
        let mut devices: BTreeMap<(u128, u64, &str), Shared<'_>> = BTreeMap::new();
        for process in &self.processes {
            for device in process.devices() {
                let key = match device.uuid {
                    0 => (0, device.ordinal, &*device.name),
                    uuid => (uuid, 0, ""),
                };
                let shared = devices.entry(key).or_default();
                shared.uuid = device.uuid;
                shared.name = &device.name;
                shared.total = shared.total.max(device.total);
                shared.parts.push((process, device));
            }
        }
        let mut devices: Vec<Shared<'_>> = devices.into_values().collect();
        for device in &mut devices {
            let own = device.sum(|part| part.reserved.saturating_add(part.past));
            let in_use = self.in_use.get(&device.uuid);
            device.others = in_use.map(|in_use| in_use.saturating_sub(own));
        }
        let first = |shared: &Shared<'_>| shared.parts.iter().map(|(_, part)| part.ordinal).min();
        devices.sort_by_key(|shared| (first(shared), shared.uuid));
        devices
    }

    /// What is there in one line: as much of it as fits.
    pub(super) fn title(&self, width: usize) -> String {
        let processes = match self.processes.len() {
            1 => "1 process".to_owned(),
            n => format!("{n} processes"),
        };
        let devices = units::count(self.by_device().len() as u64, "device");
        let mut text = "vramalloc top".to_owned();
        for part in [format!(": {processes}"), format!(" on {devices}")] {
            if text.len() + part.len() <= width {
                text += &part;
            }
        }
        text
    }

    /// The processes that tell of no device.
    pub(super) fn silent(&self) -> impl Iterator<Item = &Watched> {
        let processes = self.processes.iter();
        processes.filter(|process| process.devices().is_empty())
    }

    /// A text for each process that no other has, also where two containers number
    /// theirs alike.
    pub(super) fn ids(&self) -> Vec<String> {
        let mut used = BTreeSet::new();
        let texts = self.processes.iter().map(|process| {
            let mut text = match process.id {
                Some(id) => id.to_string(),
                None => format!("{}@{}", process.owner.pid, process.owner.namespace),
            };
            while !used.insert(text.clone()) {
                text.push('\'');
            }
            text
        });
        texts.collect()
    }

    pub(super) fn json(&self) -> Value {
        let processes = self.processes.iter().map(|process| {
            let Watched { id, owner, figures } = process;
            status::json(*id, owner, figures.as_ref())
        });
        let devices = self.by_device();
        json!({
            "at_unix_ms": self.at_ms,
            "unread_pages": self.unread,
            "devices": devices.iter().map(device_json).collect::<Vec<_>>(),
            "processes": processes.collect::<Vec<_>>(),
        })
    }
}

fn device_json(device: &Shared<'_>) -> Value {
    json!({
        "device_uuid": (device.uuid != 0).then(|| status::uuid(device.uuid)),
        "device_name": device.name,
        "device_total_bytes": device.total.map(Bytes::get),
        "processes": device.parts.len(),
        "live_bytes": device.sum(|part| part.live).get(),
        "cached_bytes": device.sum_known(cached),
        "limbo_bytes": device.sum_known(|part| part.limbo),
        "reserved_bytes": device.sum(|part| part.reserved).get(),
        "past_pool_bytes": device.sum(|part| part.past).get(),
        "others_bytes": device.others.map(Bytes::get),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A process with some MiB live, cached, in limbo and past the pool on each of
    /// these devices, by the last digit of their names.
    pub(in super::super) fn watched(pid: u64, program: &str, on: &[(u8, [u64; 4])]) -> Watched {
        let devices = on.iter().enumerate().map(|(ordinal, &(device, parts))| {
            let [live, cached, limbo, past] = parts.map(Bytes::mib);
            DeviceFigures {
                ordinal: ordinal as u64,
                uuid: 0x7369_6d75_6c61_7465_642d_6770_0000_0000 + u128::from(device),
                name: "NVIDIA H200".into(),
                total: Some(Bytes::gib(139)),
                live,
                live_peak: live,
                reserved: live.saturating_add(cached).saturating_add(limbo),
                limbo: Some(limbo),
                past,
                limit: (device == 0).then_some(Bytes::gib(70)),
                ..DeviceFigures::default()
            }
        });
        Watched {
            id: Some(pid),
            owner: PageOwner {
                pid,
                started_ms: 1_000 * pid,
                program: program.to_owned(),
                ..PageOwner::default()
            },
            figures: Some(Figures {
                at_ms: 7_000_000,
                driver_calls: 3,
                devices: devices.collect(),
            }),
        }
    }

    /// Two devices, one of which two processes have, a process of a container, one
    /// without figures, and a page that is not read.
    pub(in super::super) fn example(at_ms: u64) -> Look {
        let mut silent = watched(904, "starting", &[]);
        silent.figures = None;
        let name = "in-a-container-with-a-long-name";
        let mut strange = watched(17, name, &[(1, [900, 0, 0, 40_000])]);
        strange.id = None;
        let parts = [(0, [51_300, 9_000, 2_000, 700]), (1, [20_000, 100, 0, 0])];
        Look {
            at_ms,
            processes: vec![watched(4_194_304, "python3.12", &parts), strange, silent],
            unread: 1,
            ..Look::default()
        }
    }

    #[test]
    fn devices_are_the_same_however_processes_number_them() {
        let look = Look {
            processes: vec![
                watched(1, "a", &[(0, [10, 1, 2, 3]), (1, [20, 0, 0, 0])]),
                watched(2, "b", &[(1, [5, 5, 5, 5])]),
                watched(3, "c", &[]),
            ],
            ..Look::default()
        };
        let devices = look.by_device();
        let parts: Vec<usize> = devices.iter().map(|device| device.parts.len()).collect();
        assert_eq!(parts, [1, 2]);
        assert_eq!(devices[1].sum(|part| part.live), Bytes::mib(25));
        assert_eq!(devices[0].sum_known(cached), Some(1 << 20));
        assert_eq!(look.silent().count(), 1);
        assert_eq!(look.json()["devices"][1]["past_pool_bytes"], 5 << 20);
    }

    #[test]
    fn what_one_process_does_not_tell_is_not_known() {
        let mut old = watched(2, "b", &[(0, [5, 5, 5, 5])]);
        if let Some(figures) = &mut old.figures {
            figures.devices[0].limbo = None;
        }
        let look = Look {
            processes: vec![watched(1, "a", &[(0, [1, 1, 1, 1])]), old],
            ..Look::default()
        };
        assert_eq!(look.by_device()[0].sum_known(cached), None);
    }

    #[test]
    fn what_others_have_is_what_is_left_of_what_is_in_use() {
        let mut look = example(0);
        assert_eq!(look.by_device()[0].others, None);
        assert!(look.not_seen().contains("Not seen"));
        let uuids = [0, 1].map(|n| look.by_device()[n].uuid);
        look.in_use = InUse::from([(uuids[0], Bytes::gib(100)), (uuids[1], Bytes::gib(1))]);
        let others = [0, 1].map(|n| look.by_device()[n].others);
        // What was counted a moment ago may be gone.
        let own = Bytes::mib(51_300 + 9_000 + 2_000 + 700);
        assert_eq!(
            others,
            [Some(Bytes::gib(100).saturating_sub(own)), Some(Bytes::ZERO)]
        );
        assert!(look.not_seen().starts_with("others: "));
    }

    #[test]
    fn no_two_processes_have_one_text() {
        let strange = || Watched {
            id: None,
            ..watched(17, "a", &[])
        };
        let look = Look {
            processes: vec![strange(), watched(17, "b", &[]), strange()],
            ..Look::default()
        };
        assert_eq!(look.ids(), ["17@0", "17", "17@0'"]);
    }
}
