//! Who holds memory: by library, as the one that writes files tells it.
//!
//! The key `owners` is a list of entries, or of lists of entries by device; both
//! in the process and in its arenas. Files of older libraries have none.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::super::units::bytes;

/// What one library holds of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Owner {
    pub(super) owner: String,
    pub(super) bytes: u64,
    pub(super) peak_bytes: u64,
}

/// What the key holds.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Owners {
    One {
        owner: String,
        device: Option<u64>,
        #[serde(default)]
        bytes: u64,
        #[serde(default)]
        peak_bytes: u64,
    },
    OfDevice {
        device: u64,
        owners: Vec<Owners>,
    },
    Several(Vec<Owners>),
}

impl Owners {
    /// Adds those of each device to the sums.
    fn collect(&self, device: u64, sums: &mut BTreeMap<(u64, String), [u64; 2]>) {
        match self {
            Owners::One {
                owner,
                device: own,
                bytes,
                peak_bytes,
            } => {
                let sum = sums.entry((own.unwrap_or(device), owner.clone()));
                let [now, peak] = sum.or_default();
                *now = now.saturating_add(*bytes);
                *peak = peak.saturating_add(*peak_bytes);
            }
            Owners::OfDevice { device, owners } => {
                owners.iter().for_each(|one| one.collect(*device, sums));
            }
            Owners::Several(all) => {
                // A list of lists is by device.
                for (place, one) in (0..).zip(all) {
                    let device = match one {
                        Owners::Several(_) => place,
                        _ => device,
                    };
                    one.collect(device, sums);
                }
            }
        }
    }
}

/// The owners on a device, the one that held most at its peak first.
pub(super) fn on(device: u64, told: &[(u64, &Owners)]) -> Vec<Owner> {
    let mut sums = BTreeMap::new();
    for (device, owners) in told {
        owners.collect(*device, &mut sums);
    }
    let here = sums.into_iter().filter(|((of, _), _)| *of == device);
    let mut here: Vec<Owner> = here
        .map(|((_, owner), [bytes, peak_bytes])| Owner {
            owner,
            bytes,
            peak_bytes,
        })
        .collect();
    here.sort_by_key(|owner| Reverse(owner.peak_bytes));
    here
}

/// Those that held most, in words: as many as fit into so many columns.
pub(super) fn in_words(owners: &[Owner], room: usize) -> Option<String> {
    let mut text = String::new();
    for (n, owner) in owners.iter().enumerate() {
        let part = format!("{} {}", owner.owner, bytes(owner.peak_bytes));
        let left = owners.len() - n - 1;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn told(json: &str, device: u64) -> Vec<(String, u64)> {
        let owners: Owners = serde_json::from_str(json).unwrap();
        let owners = on(device, &[(0, &owners)]).into_iter();
        owners.map(|one| (one.owner, one.peak_bytes)).collect()
    }

    #[test]
    fn owners_are_those_of_their_device_whatever_the_list_is_like() {
        let entry = |owner: &str, peak: u64, more: &str| {
            format!(r#"{{"owner": "{owner}", "bytes": 1, "peak_bytes": {peak}{more}}}"#)
        };
        let (a, b, c) = (entry("a", 1, ""), entry("b", 7, ""), entry("c", 3, ""));
        let expected = |names: &[(&str, u64)]| {
            let names = names.iter().map(|&(name, peak)| (name.to_owned(), peak));
            names.collect::<Vec<_>>()
        };
        let lists = format!("[[{a}, {b}], [{c}]]");
        assert_eq!(told(&lists, 0), expected(&[("b", 7), ("a", 1)]));
        assert_eq!(told(&lists, 1), expected(&[("c", 3)]));
        let named =
            format!(r#"[{{"device": 2, "owners": [{a}]}}, {{"device": 0, "owners": [{b}]}}]"#);
        assert_eq!(told(&named, 2), expected(&[("a", 1)]));
        let flat = format!("[{}, {c}]", entry("a", 9, r#", "device": 1"#));
        assert_eq!(told(&flat, 1), expected(&[("a", 9)]));
        assert_eq!(told(&flat, 0), expected(&[("c", 3)]));
        // Of two lanes of a device.
        assert_eq!(told(&format!("[{a}, {a}]"), 0), expected(&[("a", 2)]));
        assert!(told("[]", 0).is_empty());
    }

    #[test]
    fn as_many_are_named_as_there_is_room_for() {
        let owner = |name: &str| Owner {
            owner: name.to_owned(),
            bytes: 0,
            peak_bytes: 1 << 30,
        };
        let owners = [owner("PyTorch"), owner("NCCL"), owner("cuBLAS")];
        let words = |room| in_words(&owners, room).unwrap();
        assert_eq!(words(60), "PyTorch 1.0 GiB, NCCL 1.0 GiB, cuBLAS 1.0 GiB");
        assert_eq!(words(42), "PyTorch 1.0 GiB, NCCL 1.0 GiB, and 1 more");
        assert_eq!(words(30), "PyTorch 1.0 GiB, and 2 more");
        assert_eq!(in_words(&[], 80), None);
    }
}
