//! What the program holds that it did not hold at a mark.

use serde_json::{Value, json};

use crate::address::Bytes;

/// Blocks of a device that were asked for in the same place.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NewBlocks {
    /// CUDA's number of the device.
    pub device: u32,
    /// How many there are.
    pub blocks: u64,
    /// Their bytes as they were handed out.
    pub bytes: Bytes,
    /// Those of them that were asked for.
    pub requested: Bytes,
    /// The call stack in words, the innermost place first; empty if none was taken.
    pub places: Vec<String>,
}

/// The groups as a JSON object, the largest first.
#[must_use]
pub fn new_blocks_json(groups: &mut [NewBlocks]) -> String {
    groups.sort_by_key(|group| std::cmp::Reverse(group.bytes));
    let sum = |of: fn(&NewBlocks) -> u64| groups.iter().map(of).sum::<u64>();
    let one = |group: &NewBlocks| -> Value {
        json!({
            "device": group.device,
            "blocks": group.blocks,
            "bytes": group.bytes.get(),
            "requested_bytes": group.requested.get(),
            "places": group.places,
        })
    };
    let all = json!({
        "blocks": sum(|group| group.blocks),
        "bytes": sum(|group| group.bytes.get()),
        "requested_bytes": sum(|group| group.requested.get()),
        "groups": groups.iter().map(one).collect::<Vec<_>>(),
    });
    all.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_group_comes_first() {
        let of = |mib| NewBlocks {
            blocks: 2,
            bytes: Bytes::mib(mib),
            requested: Bytes::mib(1),
            places: vec!["a\"b.py:1 f".to_owned()],
            ..NewBlocks::default()
        };
        let text = new_blocks_json(&mut [of(1), of(3)]);
        let json: Value = serde_json::from_str(&text).unwrap();
        assert_eq!([&json["blocks"], &json["bytes"]], [4, 4 << 20]);
        assert_eq!(json["groups"][0]["bytes"], 3 << 20);
        assert_eq!(json["groups"][0]["places"][0], "a\"b.py:1 f");
    }
}
