//! Risk: what is read is not what was written.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::sync::{Arc, Mutex};

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};
use proptest::test_runner::Config;

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

/// What a program does, of any size and in any order.
#[derive(Clone, Debug)]
enum Step {
    Alloc {
        arena: u32,
        place: u64,
        size: u64,
        stack: u32,
    },
    Free {
        which: usize,
        complete: bool,
    },
    Complete {
        which: usize,
    },
    Segment {
        address: u64,
        size: u64,
        taken: bool,
        mapped: bool,
    },
    Mark(Mark),
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = prop_oneof![1..4096u64, Just(512), Just(1 << 20), any::<u64>()];
    let stack = prop_oneof![Just(u32::MAX), 0..400u32];
    let place = prop_oneof![1..64u64, 1..1u64 << 38];
    let number = any::<u64>;
    let mark = prop_oneof![
        number().prop_map(Mark::Fence),
        number().prop_map(Mark::Reached),
        (number(), number()).prop_map(|(ns, budget_ns)| Mark::Waited { ns, budget_ns }),
        "\\PC{0,200}".prop_map(|text| Mark::Arena { arena: 7, text }),
        ("[a-z]{0,9}", "\\PC{0,9}").prop_map(|(key, value)| Mark::Option { key, value }),
        (any::<bool>(), number()).prop_map(|(begins, stream)| Mark::Capture { begins, stream }),
        Just(Mark::Trim),
        (any::<u32>(), any::<proptest::sample::Index>()).prop_map(|(device, family)| Mark::Past {
            device,
            family: *family.get(&crate::stats::Family::ALL),
        }),
        number().prop_map(Mark::Created),
        Just(Mark::Order(super::ArenaOrder::GiveRoom)),
        (number(), number()).prop_map(|(address, size)| Mark::Reserved {
            address,
            size: Bytes::new(size),
        }),
        (number(), number()).prop_map(|(free, total)| Mark::Memory {
            free: Bytes::new(free),
            total: Bytes::new(total),
            reserved: Bytes::new(total / 2),
        }),
        number().prop_map(|size| Mark::Oom {
            size: Bytes::new(size),
            device_free: Bytes::ZERO,
            stack: StackId::NONE,
        }),
    ];
    let step = prop_oneof![
        4 => (0..3u32, place.clone(), size.clone(), stack)
            .prop_map(|(arena, place, size, stack)| Step::Alloc { arena, place, size, stack }),
        3 => (any::<usize>(), any::<bool>())
            .prop_map(|(which, complete)| Step::Free { which, complete }),
        2 => any::<usize>().prop_map(|which| Step::Complete { which }),
        1 => (place, size, any::<bool>(), any::<bool>())
            .prop_map(|(address, size, taken, mapped)| Step::Segment { address, size, taken, mapped }),
        1 => mark.prop_map(Step::Mark),
        1 => prop_oneof![1..300u64, any::<u32>().prop_map(u64::from)].prop_map(Step::Pass),
    ];
    vec(step, 1..400)
}

/// Writes steps, and what is to be read of them.
struct Script<'a> {
    recording: &'a Recording,
    time_us: u64,
    live: Vec<(u32, Event)>,
    freed: Vec<(u32, Event)>,
    expected: Vec<Found>,
}

impl Script<'_> {
    fn go(&mut self, steps: &[Step]) {
        for step in steps {
            match step {
                Step::Alloc {
                    arena,
                    place,
                    size,
                    stack,
                } => {
                    let address = Address::new(place * 512 + u64::from(size % 97 == 3));
                    let is_there = |(_, event): &(u32, Event)| {
                        let gone = Action::FreeRequested(address);
                        event.action == Action::Alloc(address) || event.action == gone
                    };
                    if self.live.iter().chain(&self.freed).any(is_there) {
                        continue;
                    }
                    let event = self.event(Action::Alloc(address), *size, StackId::new(*stack));
                    self.live.push((*arena, event));
                    self.write(*arena, event);
                }
                Step::Free { which, complete } if !self.live.is_empty() => {
                    let (arena, event) = self.live.swap_remove(which % self.live.len());
                    let Action::Alloc(address) = event.action else {
                        unreachable!()
                    };
                    let size = event.size.get();
                    let event = self.event(Action::FreeRequested(address), size, StackId::NONE);
                    self.freed.push((arena, event));
                    self.write(arena, event);
                    if *complete {
                        self.complete(0);
                    }
                }
                Step::Complete { which } => self.complete(*which),
                Step::Free { .. } => {}
                Step::Segment {
                    address,
                    size,
                    taken,
                    mapped,
                } => {
                    let address = Address::new(*address);
                    let action = match (*taken, *mapped) {
                        (true, false) => Action::SegmentAlloc,
                        (false, false) => Action::SegmentFree,
                        (true, true) => Action::SegmentMap,
                        (false, true) => Action::SegmentUnmap,
                    };
                    let event = self.event(action(address), *size, StackId::NONE);
                    self.write(9, event);
                }
                Step::Mark(mark) => {
                    self.recording.mark(Some(1), mark);
                    self.expected.push(Found::Mark(mark.clone()));
                }
                Step::Pass(us) => self.time_us += us,
            }
        }
    }

    fn complete(&mut self, which: usize) {
        if self.freed.is_empty() {
            return;
        }
        let (arena, event) = self.freed.remove(which % self.freed.len());
        let Action::FreeRequested(address) = event.action else {
            unreachable!()
        };
        let size = event.size.get();
        let event = self.event(Action::FreeCompleted(address), size, StackId::NONE);
        self.write(arena, event);
    }

    fn event(&self, action: Action, size: u64, stack: StackId) -> Event {
        let (size, time_us) = (Bytes::new(size), self.time_us);
        Event {
            action,
            size,
            time_us,
            stack,
        }
    }

    fn write(&mut self, arena: u32, event: Event) {
        self.recording.event(arena, &event);
        self.expected.push(Found::Event { event, told: None });
    }
}

fn written(recording: &Recording, steps: &[Step]) -> Vec<Found> {
    let mut script = Script {
        recording,
        time_us: recording.clock().now_us(),
        live: Vec::new(),
        freed: Vec::new(),
        expected: Vec::new(),
    };
    script.go(steps);
    script.expected
}

/// The same but for times: marks come with the clock's own, which the next event
/// does not go back behind.
fn without_times(found: Vec<Found>) -> Vec<Found> {
    let timeless = |found| match found {
        Found::Event { event, told } => Found::Event {
            event: Event {
                time_us: 0,
                ..event
            },
            told,
        },
        mark => mark,
    };
    found.into_iter().map(timeless).collect()
}

/// Tells the first difference alone: all are too many to be read.
#[track_caller]
fn same(found: &[Found], expected: &[Found]) {
    let differs = found
        .iter()
        .zip(expected)
        .position(|(one, other)| one != other);
    if let Some(at) = differs {
        panic!("{at}: {:?}, not {:?}", found[at], expected[at]);
    }
    assert_eq!(found.len(), expected.len());
}

proptest! {
    #![proptest_config(Config { cases: 24, failure_persistence: None, ..Config::default() })]

    #[test]
    fn what_is_read_is_what_was_written_also_where_it_is_cut(steps in steps()) {
        let (memory, recording) = begun(GIB);
        let expected = without_times(written(&recording, &steps));
        recording.end();
        let bytes = memory.bytes();
        let mut whole = reader(&bytes);
        let all = entries(&mut whole);
        assert!(all.is_sorted_by_key(|entry| entry.time_us));
        let totals = whole.totals().clone();
        assert_eq!((totals.damaged, totals.missing, totals.unknown), (0, 0, 0));
        let found = without_times(all.into_iter().map(|entry| entry.found).collect());
        same(&found, &expected);
        let used = BYTES + block::EVENTS
            + usize::try_from(totals.bytes).unwrap();
        let mut last = 0;
        for end in (0..=used).rev().step_by(if used.is_multiple_of(2) { 1 } else { 7 }) {
            if end < BYTES - 40 {
                break;
            }
            let Ok(mut cut) = RecordReader::open(Cursor::new(&bytes[..end])) else {
                panic!("cut within the empty rest of the head");
            };
            let found: Vec<Found> = entries(&mut cut).into_iter().map(|entry| entry.found).collect();
            let count = found.len();
            same(&without_times(found), &expected[..count]);
            assert_eq!(cut.totals().damaged, 0, "cut at {end}");
            assert!(end == used || last == 0 || count <= last);
            last = count;
        }
    }

    /// Any change is noticed in a block that is sealed; in no case anything else
    /// happens than that less is read.
    #[test]
    fn what_was_changed_is_not_read(steps in steps(), at in any::<usize>(), by in 1..=255u8) {
        let (memory, recording) = begun(GIB);
        let expected = without_times(written(&recording, &steps));
        recording.end();
        let mut bytes = memory.bytes();
        let start = BYTES;
        let used = usize::try_from(reader_bytes(&bytes)).unwrap();
        let at = start + at % (block::EVENTS + used);
        bytes[at] ^= by;
        let mut read = reader(&bytes);
        let found = entries(&mut read);
        let is_length = (start + block::LENGTH..start + block::SUM).contains(&at);
        if !is_length {
            assert_eq!(found.len() + usize::from(read.totals().damaged == 1), 1.min(found.len() + 1));
            assert!(found.is_empty() || expected.is_empty(), "{at}");
        }
    }

    #[test]
    fn anything_at_all_is_read_to_an_end(bytes in vec(any::<u8>(), 0..600), sealed in any::<bool>()) {
        let (memory, recording) = begun(GIB);
        recording.end();
        let mut file = memory.bytes();
        let start = BYTES;
        let events = start + block::EVENTS;
        file.truncate(events);
        file.extend_from_slice(&bytes);
        let length = u32::try_from(bytes.len()).unwrap() | (u32::from(sealed) << 31);
        file[start + block::LENGTH..start + block::SUM].copy_from_slice(&length.to_le_bytes());
        entries(&mut reader(&file));
    }
}

fn reader_bytes(bytes: &[u8]) -> u64 {
    let mut reader = reader(bytes);
    entries(&mut reader);
    reader.totals().bytes
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
