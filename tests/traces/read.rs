//! Reads the traces of this folder, for whoever runs at the repository's root.

use std::fs::File;
use std::io::{BufRead, BufReader};

use flate2::read::GzDecoder;
use vramalloc::address::Bytes;

/// One event: the number of the allocation, and its size where it is made.
pub(crate) type Event = (u64, Option<Bytes>);

/// All events of a trace, in their order.
pub(crate) fn events(name: &str) -> Vec<Event> {
    let path = format!("tests/traces/{name}.csv.gz");
    let file = File::open(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let event = |line: String| {
        let fields: Vec<&str> = line.split(',').collect();
        let size = Bytes::new(fields[2].parse().unwrap());
        (
            fields[1].parse().unwrap(),
            (fields[0] == "a").then_some(size),
        )
    };
    let lines = BufReader::new(GzDecoder::new(file)).lines();
    lines.map(|line| event(line.unwrap())).collect()
}
