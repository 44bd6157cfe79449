//! What programs and scripts may rely on since 0.1 stays: `ci/interface.0.1`
//! has every option of then under each of its names, and every key of the JSON;
//! `ci/exports` looks for its symbols and controls.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;
use vramalloc_core::config::{OPTIONS, Torch};
use vramalloc_core::stats::ArenaReport;
use vramalloc_tests::stage::root;

use crate::page::paths;
use crate::sample::{arena, host_arena, snapshots, text};

/// The names of a sort in the list.
fn listed(sort: &str) -> BTreeSet<String> {
    let list = fs::read_to_string(root().join("ci/interface.0.1")).unwrap();
    let names: BTreeSet<String> = (list.lines())
        .filter_map(|line| line.strip_prefix(sort)?.strip_prefix(' '))
        .map(str::to_owned)
        .collect();
    assert!(!names.is_empty(), "no {sort} is listed");
    names
}

#[test]
fn every_option_of_0_1_is_there() {
    let mut names = BTreeSet::new();
    for row in OPTIONS {
        names.insert(row.key.to_owned());
        names.extend(row.paddle.map(str::to_owned));
        names.extend(row.torch_keys().iter().map(|key| (*key).to_owned()));
        if let Torch::Variable(variable) = row.torch {
            names.insert(variable.to_owned());
        }
    }
    let gone: Vec<_> = listed("option").difference(&names).cloned().collect();
    assert_eq!(gone, [""; 0]);
}

#[test]
fn every_key_of_0_1_is_there() {
    let pageable = ArenaReport {
        pageable: true,
        ..arena(0)
    };
    let arenas = [arena(0), host_arena(), pageable];
    let json: Value = serde_json::from_str(&text(&arenas, Some(&snapshots()))).unwrap();
    let mut found = BTreeSet::new();
    let named = |path: &str, key: &str| {
        let called = if path == "options" { "<option>" } else { key };
        called.to_owned()
    };
    paths(&json, "", &named, &mut found);
    let gone: Vec<_> = listed("key").difference(&found).cloned().collect();
    assert_eq!(gone, [""; 0]);
}
