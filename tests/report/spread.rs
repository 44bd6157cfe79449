//! Fragmentation: what of the reserved memory serves none of the largest
//! requests.

use serde_json::{Value, json};
use vramalloc_core::Bytes;
use vramalloc_core::stats::ClassLive;

use crate::{arena, flat, one_process, report_of};

/// The figure for these free blocks, in MiB, where requests of up to 64 MiB were
/// live at the peak.
fn fragmentation(blocks: &[(u64, &str)], device: u64, reserved: u64) -> (String, Option<String>) {
    let mut arena = arena();
    arena.stats.reserved.add(Bytes::mib(reserved));
    arena.stats.largest_cached = Bytes::mib(5);
    for class in [3, 17] {
        arena.stats.classes[class].allocations = 7;
        arena.stats.classes_at_peak[class] = ClassLive {
            blocks: 3,
            bytes: 1024,
        };
    }
    // Larger requests, of which none was live at the peak.
    arena.stats.classes[20].allocations = 1;
    let mut value = one_process(&[arena]);
    let blocks: Vec<Value> = blocks
        .iter()
        .map(|(mib, state)| json!({ "address": 1, "size": mib << 20, "requested": 0, "state": state }))
        .collect();
    value["snapshot"] = json!({
        "blocks": blocks.len(),
        "left_out": false,
        "arenas": [{
            "device": device,
            "events": [{ "action": "anything", "size": 5 }],
            "segments": [
                { "address": 1, "size": reserved << 20, "kind": "large", "blocks": blocks },
            ],
        }],
        "frames": [],
        "stacks": [],
    });
    let out = flat(&report_of(&value.to_string()));
    let (_, told) = out.split_once(" fragmentation ").unwrap();
    let counted = told.split(" cached block").next().unwrap().to_owned();
    let meant = out.split(" - ").find(|item| item.starts_with("In the end"));
    (counted, meant.map(str::to_owned))
}

#[test]
fn what_is_too_small_for_the_largest_requests_is_told_as_a_share() {
    let blocks = [
        (30, "inactive"),
        (32, "inactive"),
        (33, "inactive"),
        (5, "active_allocated"),
        (100, "active_pending_free"),
    ];
    let (counted, meant) = fragmentation(&blocks, 0, 200);
    assert_eq!(counted, "31.0 % too small, largest");
    assert_eq!(
        meant.as_deref(),
        Some(
            "In the end 31.0 % of what was reserved (62.0 MiB of 200.0 MiB) lay free in pieces \
             too small for the largest requests (above 32.0 MiB)."
        )
    );
    assert_eq!(fragmentation(&[], 0, 200).0, "0.0 % too small, largest");
}

#[test]
fn blocks_of_another_arena_say_nothing() {
    for (device, reserved) in [(1, 200), (0, 0)] {
        let told = fragmentation(&[(30, "inactive")], device, reserved);
        assert_eq!(told, ("largest".to_owned(), None));
    }
}
