//! Risk: what is read is not what was written.

mod properties;

use std::collections::BTreeMap;
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::sync::{Arc, Mutex};

use super::form::{BYTES, ROOM, block, head};
use super::*;
use crate::address::Address;
use crate::stats::Action;

/// A file in memory.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Disk>>);

#[derive(Default)]
struct Disk {
    bytes: Vec<u8>,
    /// What it may have.
    most: Option<usize>,
    said_full: u32,
    /// Of so many blocks is told where, and how often it was.
    tells: Option<(&'static Recording, u64)>,
    told: u32,
}

impl Memory {
    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().bytes.clone()
    }

    fn put_at(&self, at: u64, bytes: &[u8]) {
        let at = usize::try_from(at).unwrap();
        self.0.lock().unwrap().bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl Medium for Memory {
    fn put(&self, at: u64, bytes: &[u8]) {
        self.put_at(at, bytes);
    }

    fn publish(&self, at: u64, value: u32) {
        self.put_at(at, &value.to_le_bytes());
    }

    fn append(&self, at: u64, bytes: &[u8], number_at: u64, value: u32) {
        self.put(at, bytes);
        self.publish(number_at, value);
    }

    fn get(&self, at: u64, bytes: &mut [u8]) {
        let at = usize::try_from(at).unwrap();
        bytes.copy_from_slice(&self.0.lock().unwrap().bytes[at..at + bytes.len()]);
    }

    fn extend(&self, from: u64, to: u64) -> bool {
        let mut disk = self.0.lock().unwrap();
        let to = usize::try_from(to).unwrap();
        assert_eq!(disk.bytes.len() as u64, from);
        let fits = disk.most.is_none_or(|most| to <= most);
        if fits {
            disk.bytes.resize(to, 0);
        }
        fits
    }

    fn leave(&self, _: u64, _: u64) {}

    fn end(&self, length: u64) {
        let length = usize::try_from(length).unwrap();
        self.0.lock().unwrap().bytes.truncate(length);
    }

    fn is_full(&self) {
        self.0.lock().unwrap().said_full += 1;
    }

    fn stack(&self, stack: StackId) -> Vec<Place> {
        let offset = u64::from(stack.number().unwrap());
        let object = |file: &str| Place::Object {
            file: file.to_owned(),
            build_id: "ab12".to_owned(),
            offset,
        };
        vec![
            object("/x/libc10.so"),
            object("/x/python"),
            Place::Address(offset),
        ]
    }

    fn tell_all(&self) {
        let tells = self.0.lock().unwrap().tells;
        if let Some((recording, blocks)) = tells {
            self.0.lock().unwrap().told += 1;
            for place in 1..=blocks {
                recording.told(0, &allocated(recording, place, place), false);
            }
        }
    }
}

const GIB: RecordBound = RecordBound {
    most: Bytes::gib(1),
    ring: false,
};

fn begun(bound: RecordBound) -> (Memory, Recording) {
    let memory = Memory::default();
    let recording = Recording::begin(Box::new(memory.clone()), bound, "{\"a\":1}").unwrap();
    (memory, recording)
}

fn reader(bytes: &[u8]) -> RecordReader<Cursor<&[u8]>> {
    RecordReader::open(Cursor::new(bytes)).unwrap()
}

fn entries(reader: &mut RecordReader<Cursor<&[u8]>>) -> Vec<Entry> {
    std::iter::from_fn(|| reader.next_entry().unwrap()).collect()
}

fn allocated(recording: &Recording, place: u64, size: u64) -> Event {
    Event {
        action: Action::Alloc(Address::new(place * 512)),
        size: Bytes::new(size),
        time_us: recording.clock().now_us(),
        stack: StackId::NONE,
    }
}

fn alloc(recording: &Recording, place: u64, size: u64) {
    recording.event(0, &allocated(recording, place, size));
}

fn free(recording: &Recording, place: u64, size: u64) {
    let event = Event {
        action: Action::FreeRequested(Address::new(place * 512)),
        size: Bytes::new(size),
        time_us: recording.clock().now_us(),
        stack: StackId::NONE,
    };
    recording.event(0, &event);
}

/// What is live at the end of what can be read.
fn live(reader: &mut RecordReader<Cursor<&[u8]>>) -> BTreeMap<u64, u64> {
    let mut live = BTreeMap::new();
    while let Some(entry) = reader.next_entry().unwrap() {
        let Found::Event { event, told } = entry.found else {
            continue;
        };
        match event.action {
            Action::Alloc(address) if told != Some(true) => {
                live.insert(address.get(), event.size.get());
            }
            Action::FreeRequested(address) => {
                live.remove(&address.get());
            }
            _ => {}
        }
    }
    live
}

#[test]
fn many_blocks_are_one_recording() {
    let (memory, recording) = begun(GIB);
    const MANY: u64 = 200_000;
    for place in 1..=MANY {
        alloc(&recording, place, place);
        if place % 4 != 0 {
            free(&recording, place, place);
        }
        recording.tend();
    }
    // Long ago: they are no longer known by their numbers.
    for place in (4..=1000).step_by(4) {
        free(&recording, place, place);
    }
    // Killed: it is not ended.
    let bytes = memory.bytes();
    let mut killed = reader(&bytes);
    assert_eq!(killed.standing(), Standing::Running);
    let held = live(&mut killed);
    let expected: BTreeMap<u64, u64> = (1001..=MANY)
        .filter(|place| place % 4 == 0)
        .map(|place| (place * 512, place))
        .collect();
    assert_eq!(held, expected);
    let totals = killed.totals();
    assert!(totals.blocks > 10 && totals.events == MANY + MANY * 3 / 4 + 250);
    assert!(!totals.is_cut && totals.damaged == 0);
    recording.end();
    let ended = memory.bytes();
    assert!(ended.len() < bytes.len() && ended.len().is_multiple_of(BYTES));
    let mut ended = reader(&ended);
    assert_eq!(
        (ended.standing(), live(&mut ended)),
        (Standing::Ended, expected)
    );
    // Nothing comes behind the end.
    alloc(&recording, 1, 1);
    assert_eq!(recording.recorded().lost, 0);
}

#[test]
fn a_full_one_says_so_once_and_counts_what_is_lost() {
    let bound = RecordBound {
        most: Bytes::mib(1),
        ring: false,
    };
    let (memory, recording) = begun(bound);
    for place in 1..=400_000 {
        alloc(&recording, place, place);
        recording.tend();
    }
    let recorded = recording.recorded();
    assert_eq!(recorded.standing, Standing::Full);
    assert_eq!(recorded.events + recorded.lost, 400_000);
    assert!(recorded.lost > 0 && !recorded.came_round);
    assert_eq!(memory.0.lock().unwrap().said_full, 1);
    recording.end();
    let bytes = memory.bytes();
    let mut read = reader(&bytes);
    assert_eq!(live(&mut read).len() as u64, recorded.events);
    assert_eq!(
        (read.standing(), read.lost()),
        (Standing::Full, recorded.lost)
    );
}

#[test]
fn a_disk_without_room_ends_it() {
    let memory = Memory::default();
    memory.0.lock().unwrap().most = Some(5 << 20);
    let recording = Recording::begin(Box::new(memory.clone()), GIB, "{}").unwrap();
    for place in 1..=1_500_000 {
        alloc(&recording, place, place);
        recording.tend();
    }
    assert_eq!(recording.recorded().standing, Standing::Failed);
    assert_eq!(
        live(&mut reader(&memory.bytes())).len() as u64,
        recording.recorded().events
    );
    let nothing = Memory::default();
    nothing.0.lock().unwrap().most = Some(0);
    assert!(Recording::begin(Box::new(nothing), GIB, "{}").is_none());
}

#[test]
fn a_ring_has_the_newest() {
    let bound = RecordBound {
        most: Bytes::mib(1),
        ring: true,
    };
    let (memory, recording) = begun(bound);
    const MANY: u64 = 1_000_000;
    for place in 1..=MANY {
        alloc(&recording, place, place);
        recording.tend();
    }
    assert!(recording.recorded().came_round);
    assert_eq!(recording.recorded().lost, 0);
    let bytes = memory.bytes();
    assert_eq!(bytes.len(), 1 << 20);
    let mut read = reader(&bytes);
    assert!(read.is_ring() && read.begins_late());
    let held = live(&mut read);
    let first = MANY + 1 - held.len() as u64;
    assert!(
        held.keys()
            .copied()
            .eq((first..=MANY).map(|place| place * 512))
    );
    assert!(held.len() > 15 * ROOM / 16 / 8);
    assert_eq!((read.totals().missing, read.totals().damaged), (0, 0));
    recording.end();
    assert_eq!(live(&mut reader(&memory.bytes())), held);
}

/// Reads a recording that goes on.
struct Live {
    memory: Memory,
    at: u64,
}

impl Read for Live {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let disk = self.memory.0.lock().unwrap();
        let at = usize::try_from(self.at).unwrap().min(disk.bytes.len());
        let read = (&disk.bytes[at..]).read(to)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for Live {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let length = self.memory.0.lock().unwrap().bytes.len() as u64;
        self.at = match to {
            SeekFrom::Start(at) => at,
            SeekFrom::Current(by) => self.at.checked_add_signed(by).unwrap(),
            SeekFrom::End(by) => length.checked_add_signed(by).unwrap(),
        };
        Ok(self.at)
    }
}

#[test]
fn what_makes_room_in_a_ring_meanwhile_is_not_read_as_what_was_there() {
    let bound = RecordBound {
        most: Bytes::mib(1),
        ring: true,
    };
    let (memory, recording) = begun(bound);
    let take = |places: std::ops::RangeInclusive<u64>| {
        for place in places {
            alloc(&recording, place, place);
            recording.tend();
        }
    };
    take(1..=300_000);
    let mut read = RecordReader::open(Live { memory, at: 0 }).unwrap();
    take(300_001..=350_000);
    let found = std::iter::from_fn(|| read.next_entry().unwrap());
    let sizes: Vec<u64> = found
        .filter_map(|entry| match entry.found {
            Found::Event { event, .. } => Some(event.size.get()),
            Found::Mark(_) => None,
        })
        .collect();
    assert!(sizes.is_sorted() && sizes.len() > 10_000, "{}", sizes.len());
    assert!(read.totals().missing > 0);
}

#[test]
fn a_ring_that_is_smaller_than_what_is_held_has_events_beside_it() {
    let bound = RecordBound {
        most: Bytes::mib(1),
        ring: true,
    };
    // Told in a quarter of a block, and in some 25 blocks of 15.
    for (held, tellings) in [(2_000, 30..=36), (200_000, 2..=4)] {
        let (memory, recording) = begun(bound);
        let recording: &'static Recording = Box::leak(Box::new(recording));
        memory.0.lock().unwrap().tells = Some((recording, held));
        // Some 100 blocks, of which each third is the last of a quarter.
        for place in 1..=800_000 {
            alloc(recording, place, place);
            recording.tend();
        }
        let told = memory.0.lock().unwrap().told;
        assert!(tellings.contains(&told), "{told} of {held}");
        let held = recording.recorded();
        assert_eq!((held.events, held.lost), (800_000, 0));
    }
}

#[test]
fn stacks_are_told_once_with_their_files() {
    let (memory, recording) = begun(GIB);
    for stack in [1, 2, 1, u32::MAX, 2] {
        recording.know(StackId::new(stack));
    }
    let bytes = memory.bytes();
    let marks: Vec<Mark> = entries(&mut reader(&bytes))
        .into_iter()
        .filter_map(|entry| match entry.found {
            Found::Mark(mark) => Some(mark),
            Found::Event { .. } => None,
        })
        .collect();
    let [
        Mark::Object { object: 0, .. },
        Mark::Object { object: 1, .. },
        Mark::Stack { .. },
        Mark::Stack { stack, frames },
    ] = &marks[..]
    else {
        panic!("{marks:?}");
    };
    assert_eq!(*stack, StackId::new(2));
    assert_eq!(
        frames[1],
        RecordFrame::Object {
            object: 1,
            offset: 2
        }
    );
}

#[test]
fn what_is_no_recording_is_refused() {
    let (memory, _recording) = begun(GIB);
    let bytes = memory.bytes();
    let open = |bytes: &[u8]| {
        RecordReader::open(Cursor::new(bytes))
            .map(|_| ())
            .unwrap_err()
    };
    assert!(matches!(open(b""), Unreadable::NotOne));
    assert!(matches!(open(&bytes[1..]), Unreadable::NotOne));
    assert!(matches!(open(&bytes[..63]), Unreadable::Head));
    assert!(matches!(open(&bytes[..66]), Unreadable::Head));
    let mut later = bytes;
    later[head::VERSION] = 2;
    assert!(matches!(open(&later), Unreadable::Version(2)));
}
