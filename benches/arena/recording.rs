//! What recording costs: what an event takes when it is written, in time and in
//! bytes, and when it is read.
//!
//! The file is plain memory: what a disk does meanwhile is not measured.

use std::io::Cursor;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::Instant;

use serde_json::json;
use vramalloc_core::Arena;
use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::arena::Watch;
use vramalloc_core::config::{Config, ThreadCacheSize};
use vramalloc_core::page_map::PageMap;
use vramalloc_core::recording::{Medium, Place, RecordBound, RecordReader, Recording};
use vramalloc_core::stats::StackId;

use crate::arguments::Arguments;
use vramalloc_benches::driver::{Costless, arena_with};
use vramalloc_benches::workload::{get, put};
use vramalloc_tests::traces::{Event, events};

const TRACES: [&str; 3] = ["gpt_train", "varlen_train", "llm_infer"];

/// The largest file.
const MOST: usize = 128 << 20;

/// A file in memory.
#[derive(Clone)]
struct Plain {
    bytes: Arc<[AtomicU8]>,
    published: Arc<AtomicU32>,
}

impl Plain {
    fn new() -> Plain {
        Plain {
            bytes: (0..MOST).map(|_| AtomicU8::new(0)).collect(),
            published: Arc::new(AtomicU32::new(0)),
        }
    }
}

fn place(at: u64) -> usize {
    usize::try_from(at).unwrap()
}

impl Medium for Plain {
    fn put(&self, at: u64, bytes: &[u8]) {
        let places = &self.bytes[place(at)..][..bytes.len()];
        for (place, byte) in places.iter().zip(bytes) {
            place.store(*byte, Ordering::Relaxed);
        }
    }

    fn publish(&self, at: u64, value: u32) {
        self.put(at, &value.to_le_bytes());
        // As a mapped file would: what was put is there before.
        self.published.store(value, Ordering::Release);
    }

    fn append(&self, at: u64, bytes: &[u8], number_at: u64, value: u32) {
        self.put(at, bytes);
        self.publish(number_at, value);
    }

    fn get(&self, at: u64, bytes: &mut [u8]) {
        let places = &self.bytes[place(at)..][..bytes.len()];
        for (byte, place) in bytes.iter_mut().zip(places) {
            *byte = place.load(Ordering::Relaxed);
        }
    }

    fn extend(&self, _: u64, to: u64) -> bool {
        place(to) <= MOST
    }

    fn leave(&self, _: u64, _: u64) {}

    fn end(&self, _: u64) {}

    fn is_full(&self) {}

    fn stack(&self, _: StackId) -> Vec<Place> {
        Vec::new()
    }

    fn tell_all(&self) {}
}

fn arena(recording: Option<&'static Recording>) -> Arena<Costless> {
    let config = Config {
        thread_cache: ThreadCacheSize::Most(Bytes::ZERO),
        ..Config::default()
    };
    let arena = arena_with(Costless::new(0, 0), 0, &config, &Arc::new(PageMap::new()));
    arena.watched(Watch {
        recording: recording.map(|recording| (recording, recording.arena("{}"))),
        ..Watch::default()
    })
}

/// Calls that are timed together.
const TOGETHER: usize = 1000;

/// The least that each part of a pass took in several passes, in seconds: what else the
/// machine did meanwhile is not in it.
#[derive(Default)]
struct Least(Vec<f64>);

impl Least {
    /// Makes a pass of a trace, and then frees what is left.
    fn pass(&mut self, arena: &Arena<Costless>, events: &[Event], blocks: &mut [Option<Address>]) {
        for (part, events) in events.chunks(TOGETHER).enumerate() {
            let start = Instant::now();
            for &(id, size) in events {
                let block = &mut blocks[usize::try_from(id).unwrap()];
                match (size, block.take()) {
                    (Some(size), None) => *block = Some(get(arena, size)),
                    (None, Some(address)) => put(arena, address),
                    _ => {}
                }
            }
            let took = start.elapsed().as_secs_f64();
            match self.0.get_mut(part) {
                Some(least) => *least = least.min(took),
                None => self.0.push(took),
            }
        }
        for address in blocks.iter_mut().filter_map(Option::take) {
            put(arena, address);
        }
    }

    fn seconds(&self) -> f64 {
        self.0.iter().sum()
    }
}

/// Measures each trace, over an arena that keeps nothing for threads.
#[allow(clippy::cast_precision_loss, reason = "means")]
pub(crate) fn run(arguments: &Arguments) {
    let rounds = arguments.count("rounds", 7);
    for name in TRACES {
        let events = events(&format!("{name}.1"));
        let mut blocks = vec![None; events.len()];
        let file = Plain::new();
        let bound = RecordBound {
            most: Bytes::new(MOST as u64),
            ring: false,
        };
        let recording = Recording::begin(Box::new(file.clone()), bound, "{}").unwrap();
        let recording: &'static Recording = Box::leak(Box::new(recording));
        let (without, with) = (arena(None), arena(Some(recording)));
        let (mut plain, mut timed) = (Least::default(), Least::default());
        for _ in 0..=rounds {
            plain.pass(&without, &events, &mut blocks);
            timed.pass(&with, &events, &mut blocks);
        }
        let cost_ns = (timed.seconds() - plain.seconds()) * 1e9;
        let recorded = recording.recorded();
        recording.end();
        let mut bytes = vec![0; MOST];
        file.get(0, &mut bytes);
        let mut read_s = f64::INFINITY;
        for _ in 0..3 {
            let start = Instant::now();
            let mut reader = RecordReader::open(Cursor::new(bytes.as_slice())).unwrap();
            while reader.next_entry().unwrap().is_some() {}
            read_s = read_s.min(start.elapsed().as_secs_f64());
            assert_eq!(reader.totals().events, recorded.events);
        }
        let of_a_pass = recorded.events as f64 / (rounds + 1) as f64;
        println!(
            "{}",
            json!({
                "trace": name,
                "events": recorded.events,
                "bytes_per_event": recorded.bytes as f64 / recorded.events as f64,
                "ns_per_event": cost_ns / of_a_pass,
                "read_ns_per_event": read_s * 1e9 / recorded.events as f64,
            })
        );
    }
}
