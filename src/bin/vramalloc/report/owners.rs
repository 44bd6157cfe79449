//! Who holds memory of a device: the libraries that asked for it, and what CUDA
//! itself and other processes have.
//!
//! Files of older libraries do not tell. Peaks past the pool are not known by
//! library, so what is held there counts as it is when the file is written.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::super::grid::{Column, Grid};
use super::super::lines::Lines;
use super::super::units::bytes;
use super::file::File;

/// What is in use of a device and not this process's.
#[derive(Deserialize)]
pub(super) struct Elsewhere {
    device: u64,
    bytes: u64,
}

/// What is called so holds this of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Owner {
    pub(super) owner: String,
    pub(super) bytes: u64,
    pub(super) peak_bytes: u64,
    pub(super) past_pool_bytes: u64,
}

/// What has no file of the process.
const REST: &str = "CUDA itself and others";

impl Owner {
    /// The most that it can have held at once, as far as is known.
    fn most(&self) -> u64 {
        self.peak_bytes.saturating_add(self.past_pool_bytes)
    }

    /// Adds what another of the same name holds.
    fn add(&mut self, other: &Owner) {
        for (sum, more) in [
            (&mut self.bytes, other.bytes),
            (&mut self.peak_bytes, other.peak_bytes),
            (&mut self.past_pool_bytes, other.past_pool_bytes),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

/// Owners of the same name as one, the one that held most first.
pub(super) fn summed(owners: impl Iterator<Item = Owner>) -> Vec<Owner> {
    let mut sums: BTreeMap<String, Owner> = BTreeMap::new();
    for one in owners {
        match sums.get_mut(&one.owner) {
            Some(sum) => sum.add(&one),
            None => _ = sums.insert(one.owner.clone(), one),
        }
    }
    let mut owners: Vec<Owner> = sums.into_values().collect();
    owners.retain(|owner| owner.most() > 0);
    owners.sort_by_key(|owner| Reverse(owner.most()));
    owners
}

/// The owners on a device.
pub(super) fn on(file: &File, device: u64) -> Vec<Owner> {
    let here = file.owners.iter().filter(|one| one.device == device);
    summed(here.map(|one| Owner {
        owner: one.called().to_owned(),
        bytes: one.bytes,
        peak_bytes: one.peak_bytes,
        past_pool_bytes: one.past_pool_bytes,
    }))
}

/// What CUDA itself and other processes have of a device, if that is known.
pub(super) fn elsewhere(file: &File, device: u64) -> Option<u64> {
    let mut here = file.elsewhere.iter().filter(|one| one.device == device);
    here.next().map(|one| one.bytes)
}

/// Those that held most, in words: as many as fit into so many columns.
pub(super) fn in_words(owners: &[Owner], elsewhere: Option<u64>, room: usize) -> Option<String> {
    let all = owners.iter().map(|one| (&*one.owner, one.most()));
    let rest = elsewhere.filter(|&bytes| bytes > 0);
    let all: Vec<(&str, u64)> = all.chain(rest.map(|bytes| (REST, bytes))).collect();
    let mut text = String::new();
    for (n, &(name, most)) in all.iter().enumerate() {
        let part = format!("{name} {}", bytes(most));
        let left = all.len() - n - 1;
        let more = match left {
            0 => String::new(),
            _ => format!(", and {left} more"),
        };
        if n > 0 && text.len() + 2 + part.len() + more.len() > room {
            return Some(format!("{text}, and {} more", left + 1));
        }
        if n > 0 {
            text += ", ";
        }
        text += &part;
    }
    (!owners.is_empty()).then_some(text)
}

const TABLE: [Column; 4] = [
    Column::text("library"),
    Column::number("at the peak"),
    Column::number("at the end"),
    Column::number("past the pool"),
];

/// Writes who held a device, where that is more than one.
pub(super) fn tell(file: &File, device: u64, out: &mut Lines) {
    let owners = on(file, device);
    let elsewhere = elsewhere(file, device).filter(|&bytes| bytes > 0);
    if owners.len() < 2 && elsewhere.is_none() {
        return;
    }
    out.exact("");
    out.heading(match file.devices().count() {
        0 | 1 => "who held it".to_owned(),
        _ => format!("who held device {device}"),
    });
    let mut grid = Grid::new(&TABLE);
    for owner in &owners {
        grid.row([
            owner.owner.clone(),
            bytes(owner.peak_bytes),
            bytes(owner.bytes),
            bytes(owner.past_pool_bytes),
        ]);
    }
    grid.write(2, out);
    if let Some(rest) = elsewhere {
        out.item(format_args!(
            "{REST}: {}, when the driver was asked last. That is what CUDA has for contexts, \
             modules and its libraries, and what other processes have.",
            bytes(rest)
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(name: &str, peak: u64) -> Owner {
        Owner {
            owner: name.to_owned(),
            bytes: 1,
            peak_bytes: peak << 30,
            past_pool_bytes: 0,
        }
    }

    #[test]
    fn owners_of_one_name_are_one() {
        let all = [
            owner("b", 3),
            owner("a", 2),
            owner("none", 0),
            owner("a", 2),
        ];
        let none = Owner {
            peak_bytes: 0,
            ..owner("none", 0)
        };
        let sums = summed(all.into_iter().chain([none]));
        let sums: Vec<_> = sums
            .iter()
            .map(|one| (&*one.owner, one.peak_bytes >> 30))
            .collect();
        assert_eq!(sums, [("a", 4), ("b", 3)]);
    }

    #[test]
    fn as_many_are_named_as_there_is_room_for() {
        let owners = [owner("PyTorch", 1), owner("NCCL", 1), owner("cuBLAS", 1)];
        let words = |room| in_words(&owners, None, room).unwrap();
        assert_eq!(words(60), "PyTorch 1.0 GiB, NCCL 1.0 GiB, cuBLAS 1.0 GiB");
        assert_eq!(words(42), "PyTorch 1.0 GiB, NCCL 1.0 GiB, and 1 more");
        assert_eq!(words(30), "PyTorch 1.0 GiB, and 2 more");
        let all = in_words(&owners, Some(1 << 30), 90).unwrap();
        assert!(
            all.ends_with("cuBLAS 1.0 GiB, CUDA itself and others 1.0 GiB"),
            "{all}"
        );
        assert_eq!(in_words(&owners, Some(0), 60), in_words(&owners, None, 60));
        assert_eq!(in_words(&[], Some(1), 80), None);
    }
}
