//! Whatever is written, in any order, is read again, and what is damaged is left out.

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};
use proptest::test_runner::Config;

use super::*;

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
            assert!(end == used || cut.totals().is_cut, "cut at {end}");
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
