//! PyTorch's grammar: what its allocator's variable may hold beyond
//! `key:value`.
//!
//! Invariant: a text that PyTorch reads as the user meant it is read the same
//! way; a text that PyTorch would read as something else, such as `100abc` for
//! 100, is refused.

use super::table::{BOOLEAN, OptionRow};
use super::value::{NONE, number, power_of_two, up_to};

/// PyTorch's variables; the first that is set counts.
pub(super) const CONFS: &[&str] = &["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];

/// How PyTorch spells truth values.
const BOOLEANS: &str = "True, False";

/// The key of an entry for all sizes above the previous entry's, in a list of
/// divisions.
const REST: &str = ">";

/// A text as PyTorch reads it: without blanks, even those inside of words.
pub(super) fn condensed(text: &str) -> String {
    text.split_whitespace().collect()
}

/// What PyTorch's variable accepts for an option.
pub(super) fn accepted(row: &OptionRow) -> &'static str {
    if row.kind == BOOLEAN {
        BOOLEANS
    } else {
        row.accepted
    }
}

/// Whether PyTorch accepts such a text; it is stricter than we are.
pub(super) fn accepts(row: &OptionRow, text: &str) -> bool {
    row.kind != BOOLEAN || BOOLEANS.split(", ").any(|value| value == text)
}

/// The steps between two powers of two, by size: one number for all sizes, or a
/// list of `MiB:divisions` and `>:divisions`.
///
/// As in PyTorch an entry of a list sets one slot, the first entry also all
/// below it, and `>` all above the last; sizes of the other slots are not
/// rounded.
pub(super) fn divisions(text: &str) -> Option<[u32; 16]> {
    if text == NONE {
        return Some([0; 16]);
    }
    let Some(entries) = list(text) else {
        return power_of_two(text).map(|divisions| [divisions; 16]);
    };
    let mut slots = [0; 16];
    let mut last = None;
    for entry in entries {
        let (from, divisions) = entry?;
        let divisions = match divisions {
            "0" => 0,
            divisions => power_of_two(divisions)?,
        };
        if from == REST {
            let above = slots.get_mut(last.unwrap_or(0) + 1..).unwrap_or_default();
            above.fill(divisions);
            continue;
        }
        let from = up_to(u64::MAX, from).filter(|from| from.is_power_of_two())?;
        let slot = usize::try_from(from.ilog2()).map_or(15, |slot| slot.min(15));
        let first = if last.is_none() { 0 } else { slot };
        slots.get_mut(first..=slot)?.fill(divisions);
        last = Some(slot);
    }
    Some(slots)
}

/// Divisions as a text that `divisions` reads back, with as few entries as
/// possible.
pub(super) fn show_divisions(slots: &[u32; 16]) -> String {
    let first = slots[0];
    let alike = |slots: &[u32]| slots.iter().all(|&divisions| divisions == first);
    if alike(slots) {
        return if first == 0 {
            NONE.to_owned()
        } else {
            first.to_string()
        };
    }
    // The first entry stands for all equal slots at the start, `>` for all
    // equal slots at the end.
    let bottom = slots.iter().take_while(|&&divisions| divisions == first);
    let bottom = bottom.count() - 1;
    let end = slots[15];
    let top = slots
        .iter()
        .rev()
        .take_while(|&&divisions| divisions == end);
    let top = slots.len() - top.count();
    let mut entries: Vec<String> = (bottom..top)
        .zip(slots.iter().skip(bottom))
        .map(|(slot, divisions)| format!("{}:{divisions}", 1u64 << slot))
        .collect();
    entries.push(format!("{REST}:{end}"));
    format!("[{}]", entries.join(","))
}

/// Whether this is a reserve of address space: a share of the device, or GiB.
pub(super) fn reserve(text: &str) -> bool {
    let amount = text.strip_suffix('G').unwrap_or(text);
    number(amount).is_some_and(|amount| amount > 0.0)
}

/// Whether this is a list of reserves by name.
pub(super) fn reserves(text: &str) -> bool {
    list(text).is_some_and(|mut entries| {
        entries.all(|entry| entry.is_some_and(|(name, value)| is_name(name) && reserve(value)))
    })
}

/// Whether this may be the name of a class of streams.
fn is_name(text: &str) -> bool {
    let part = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    !text.is_empty() && text.bytes().all(part)
}

/// The entries of a text in brackets, each a pair with a colon between; `None`
/// for an entry that is not a pair. A trailing comma is allowed.
fn list(text: &str) -> Option<impl Iterator<Item = Option<(&str, &str)>>> {
    let entries = text.strip_prefix('[')?.strip_suffix(']')?.trim();
    let entries = entries.strip_suffix(',').unwrap_or(entries);
    let entries = (!entries.is_empty()).then(|| entries.split(','));
    Some(entries.into_iter().flatten().map(|entry| {
        entry
            .split_once(':')
            .map(|(key, value)| (key.trim(), value.trim()))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slots from runs of a value and a length.
    fn slots(runs: &[(u32, usize)]) -> Option<[u32; 16]> {
        let slots: Vec<u32> = runs
            .iter()
            .flat_map(|&(value, length)| vec![value; length])
            .collect();
        Some(slots.try_into().unwrap())
    }

    #[test]
    fn a_number_is_for_all_sizes() {
        assert_eq!(divisions("8"), slots(&[(8, 16)]));
        assert_eq!(divisions("1"), slots(&[(1, 16)]));
        assert_eq!(divisions("none"), slots(&[(0, 16)]));
        for bad in ["0", "3", "-8", "8x", "4294967296", ""] {
            assert_eq!(divisions(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_list_sets_slots_as_pytorch_does() {
        for (text, expected) in [
            (
                "[256:1,512:2,1024:4,>:8]",
                slots(&[(1, 9), (2, 1), (4, 1), (8, 5)]),
            ),
            (
                "[64:8,256:4,1024:4,>:1]",
                slots(&[(8, 7), (0, 1), (4, 1), (0, 1), (4, 1), (1, 5)]),
            ),
            ("[>:8]", slots(&[(0, 1), (8, 15)])),
            // Above the last slot is the last slot.
            ("[65536:2]", slots(&[(2, 16)])),
            ("[32768:2,>:4]", slots(&[(2, 16)])),
            // Only the first entry applies to sizes below it, wherever it
            // stands.
            ("[1024:4,64:8]", slots(&[(4, 6), (8, 1), (4, 4), (0, 5)])),
            ("[>:8,4:2]", slots(&[(2, 3), (8, 13)])),
            (" [ 1 : 2 , > : 0 , ] ".trim(), slots(&[(2, 1), (0, 15)])),
            ("[]", slots(&[(0, 16)])),
        ] {
            assert_eq!(divisions(text), expected, "{text}");
        }
        for bad in [
            "[0:2]",
            "[3:2]",
            "[256:3]",
            "[256]",
            "[256:2",
            "256:2]",
            "[[256:2]]",
            "[256:2,,512:2]",
            "[,]x",
            "[<:2]",
            "[256:-2]",
            "[256:2:2]",
            "[256:none]",
        ] {
            assert_eq!(divisions(bad), None, "{bad}");
        }
    }

    #[test]
    fn divisions_are_written_as_they_are_read() {
        for text in [
            "none",
            "8",
            "[256:1,512:2,1024:4,>:8]",
            "[64:8,128:0,256:4,512:0,1024:4,>:1]",
            "[1:0,>:8]",
            "[16384:2,>:4]",
        ] {
            assert_eq!(show_divisions(&divisions(text).unwrap()), text);
        }
    }

    #[test]
    fn reserves_of_addresses() {
        for good in ["0.5", "2", "16G", "1.5G"] {
            assert!(reserve(good), "{good}");
        }
        for bad in ["0", "-1", "16g", "G", "", "inf", "nan"] {
            assert!(!reserve(bad), "{bad}");
        }
        assert!(reserves("[default:0.5,nccl:2G]") && reserves("[]"));
        assert!(!reserves("[default]") && !reserves("default:1") && !reserves("[:1]"));
    }
}
