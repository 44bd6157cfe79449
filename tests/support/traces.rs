//! Traces of allocations: those of `tests/traces`, which are read, and one that is made.

mod dataframe;

use std::fs::File;
use std::io::{BufRead, BufReader};

use flate2::read::GzDecoder;
use vramalloc_core::address::Bytes;

use crate::stage::root;

/// One event: the number of the allocation, and its size if it is an
/// allocation.
pub type Event = (u64, Option<Bytes>);

/// All events of a trace, in their order: of a file, or of work on dataframes by the
/// seed in a name as `dataframe.1`.
pub fn events(name: &str) -> Vec<Event> {
    if let Some(seed) = name.strip_prefix("dataframe.") {
        return dataframe::events(seed.parse().unwrap());
    }
    let path = root().join(format!("tests/traces/{name}.csv.gz"));
    let file = File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
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
