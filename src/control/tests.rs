use std::cell::Cell;

use super::*;
use crate::address::Bytes;

const UNTIL: u64 = 1000;

fn cells() -> Vec<AtomicU64> {
    (0..WORDS).map(|_| AtomicU64::new(0)).collect()
}

fn figures(number: u64) -> Figures {
    let device = |ordinal| DeviceFigures {
        ordinal,
        uuid: 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef,
        name: "NVIDIA H200".into(),
        total: Some(Bytes::gib(139)),
        live: Bytes::new(number),
        live_peak: Bytes::new(number),
        reserved: Bytes::mib(number),
        reserved_peak: Bytes::mib(number),
        limit: (ordinal == 1).then_some(Bytes::gib(8)),
        past: Bytes::gib(number),
        past_peak: Bytes::gib(number + 1),
        paused: Bytes::gib(number + 2),
        limbo: Some(Bytes::kib(number)),
    };
    Figures {
        at_ms: number,
        driver_calls: number,
        devices: vec![device(0), device(1)],
    }
}

fn owner() -> PageOwner {
    PageOwner {
        pid: 42,
        namespace: 4_026_531_836,
        started_ms: 7,
        program: "python3".to_owned(),
        version: "0.2.0-dev".to_owned(),
    }
}

#[test]
fn what_is_written_is_read() {
    let cells = cells();
    let page = ControlPage::new(&cells[..]);
    assert_eq!(page.owner().unwrap(), Seen::Nothing);
    assert_eq!(page.figures().unwrap(), Seen::Nothing);
    page.sign(&owner()).unwrap();
    assert_eq!(page.owner().unwrap(), Seen::Whole(owner()));
    for number in 1..4 {
        page.publish(&figures(number)).unwrap();
        assert_eq!(page.figures().unwrap(), Seen::Whole(figures(number)));
    }
    let many = Figures {
        devices: vec![DeviceFigures::default(); MOST_DEVICES + 1],
        ..figures(5)
    };
    page.publish(&many).unwrap();
    let read = page.figures().unwrap().whole().unwrap();
    assert_eq!(read.devices.len(), MOST_DEVICES);
}

/// Libraries of before write fewer words for each device.
#[test]
fn a_page_of_before_is_read() {
    let cells = cells();
    let page = ControlPage::new(&cells[..]);
    page.publish(&figures(7)).unwrap();
    let mut words = FIGURES.peek(&cells[..]).unwrap().whole().unwrap();
    words.splice(3..4, [FIRST_OF_DEVICE as u64]);
    for at in [1, 0] {
        let device = 4 + at * OF_DEVICE;
        words.drain(device + FIRST_OF_DEVICE..device + OF_DEVICE);
    }
    FIGURES.write(&cells[..], &words).unwrap();
    let mut older = figures(7);
    for device in &mut older.devices {
        (device.paused, device.limbo) = (Bytes::ZERO, None);
    }
    assert_eq!(page.figures().unwrap(), Seen::Whole(older));
}

#[test]
fn a_file_s_name_says_which_version_it_is() {
    assert_eq!(layout_of(&file_name("a")), Some(LAYOUT));
    for other in ["page", "page.1", "page.x.a", "pages.1.a", "0123.4567"] {
        assert_eq!(layout_of(other), None, "{other}");
    }
}

#[test]
fn long_texts_are_cut_between_characters() {
    let cells = cells();
    let page = ControlPage::new(&cells[..]);
    let program = format!("a{}", "ü".repeat(100));
    page.sign(&PageOwner { program, ..owner() }).unwrap();
    let read = page.owner().unwrap().whole().unwrap();
    assert_eq!(read.program, format!("a{}", "ü".repeat(31)));
}

#[test]
fn an_order_is_taken_once_and_replied_to() {
    let cells = cells();
    let page = ControlPage::new(&cells[..]);
    let desk = Desk::default();
    assert!(!page.has_post(&desk).unwrap());
    let number = page.post(OrderKind::Limit, "8G", UNTIL).unwrap();
    assert!(page.has_post(&desk).unwrap());
    assert_eq!(page.reply_to(number).unwrap(), Seen::Nothing);
    let order = page
        .take(&desk, |order| order.until_ms == UNTIL)
        .unwrap()
        .unwrap();
    assert_eq!((order.kind, &*order.argument), (OrderKind::Limit, "8G"));
    let outcome = || page.reply_to(number).unwrap().whole().unwrap();
    assert_eq!(outcome().outcome, Outcome::Begun);
    assert!(!page.has_post(&desk).unwrap());
    assert_eq!(
        page.take(&desk, |order| order.until_ms == UNTIL).unwrap(),
        None
    );
    page.reply(&order, Outcome::Done, "8GiB").unwrap();
    assert_eq!(outcome().text, "8GiB");
    // The next one is another.
    let next = page.post(OrderKind::Dump, "", UNTIL).unwrap();
    assert_eq!(page.reply_to(next).unwrap(), Seen::Nothing);
    assert_eq!(
        page.take(&desk, |order| order.until_ms == UNTIL)
            .unwrap()
            .unwrap()
            .number,
        next
    );
}

#[test]
fn what_was_withdrawn_or_nobody_waits_for_is_not_served() {
    let cells = cells();
    let page = ControlPage::new(&cells[..]);
    let desk = Desk::default();
    let number = page.post(OrderKind::Trim, "", UNTIL).unwrap();
    assert_eq!(page.withdraw(number).unwrap(), Seen::Nothing);
    assert_eq!(
        page.take(&desk, |order| order.until_ms == UNTIL).unwrap(),
        None
    );
    page.post(OrderKind::Trim, "", UNTIL).unwrap();
    assert_eq!(page.take(&desk, |_| false).unwrap(), None);
}

/// A number is only told from others: none is the last.
#[test]
fn no_number_of_an_order_keeps_later_ones_from_being_served() {
    for number in [0, 1, u64::MAX - 1, u64::MAX] {
        let cells = cells();
        let page = ControlPage::new(&cells[..]);
        let desk = Desk::default();
        let planted = [number, UNTIL, OrderKind::Trim as u64, 0];
        ORDER.write(&cells[..], &planted).unwrap();
        let taken = page.take(&desk, |_| true).unwrap();
        assert_eq!(
            taken.map(|order| order.number),
            (number > 0).then_some(number)
        );
        for _ in 0..3 {
            let number = page.post(OrderKind::Trim, "", UNTIL).unwrap();
            let taken = page.take(&desk, |_| true).unwrap();
            assert_eq!(taken.map(|order| order.number), Some(number));
        }
    }
}

/// A version goes on after the last one.
#[test]
fn no_version_of_a_record_is_the_last() {
    for version in [u64::MAX - 2, u64::MAX - 1, u64::MAX] {
        let cells = cells();
        FIGURES
            .write_after(&cells[..], version, Vec::new())
            .unwrap();
        let page = ControlPage::new(&cells[..]);
        page.publish(&figures(1)).unwrap();
        assert_eq!(page.figures().unwrap(), Seen::Whole(figures(1)));
    }
}

/// Cells of somebody who is killed before one of his stores of a word.
struct Mortal<'a> {
    cells: &'a [AtomicU64],
    left: Cell<u32>,
}

impl Cells for Mortal<'_> {
    fn load(&self, place: usize, to: &mut [u64]) -> io::Result<()> {
        self.cells.load(place, to)
    }

    fn store(&self, place: usize, words: &[u64]) -> io::Result<()> {
        for (at, &word) in words.iter().enumerate() {
            let left = self.left.get().checked_sub(1);
            self.left.set(left.ok_or(io::ErrorKind::BrokenPipe)?);
            self.cells.store(place + at, &[word])?;
        }
        Ok(())
    }
}

/// Does `work` again and again, killed one store later each time, until it comes
/// to its end; `then` looks at what each one left.
fn killed_everywhere(
    prepare: impl Fn(&[AtomicU64]),
    work: impl Fn(&ControlPage<Mortal<'_>>) -> io::Result<()>,
    then: impl Fn(&[AtomicU64], bool),
) -> u32 {
    for stores in 0.. {
        let cells = cells();
        prepare(&cells);
        let left = Cell::new(stores);
        let cells = &cells[..];
        let alive = work(&ControlPage::new(Mortal { cells, left })).is_ok();
        then(cells, alive);
        if alive {
            return stores;
        }
    }
    0
}

#[test]
fn a_writer_that_dies_leaves_nothing_torn() {
    let stores = killed_everywhere(
        |cells| ControlPage::new(cells).publish(&figures(1)).unwrap(),
        |page| page.publish(&figures(2)),
        |cells, alive| {
            let page = ControlPage::new(cells);
            let seen = page.figures().unwrap();
            let expected = match seen {
                Seen::Whole(_) => Seen::Whole(figures(if alive { 2 } else { 1 })),
                _ => Seen::Unfinished,
            };
            assert_eq!(seen, expected);
            page.publish(&figures(3)).unwrap();
            assert_eq!(page.figures().unwrap(), Seen::Whole(figures(3)));
        },
    );
    assert_eq!(stores, 4 + 4 + 2 * u32::try_from(OF_DEVICE).unwrap());
}

#[test]
fn a_page_that_is_not_signed_to_its_end_is_nobody_s() {
    killed_everywhere(
        |_| (),
        |page| page.sign(&owner()),
        |cells, alive| {
            let seen = ControlPage::new(cells).owner().unwrap().whole();
            assert_eq!(seen, alive.then(owner));
        },
    );
}

#[test]
fn a_sender_that_dies_keeps_no_other_from_sending() {
    for before in [0, 1, 2] {
        killed_everywhere(
            |cells| {
                let page = ControlPage::new(cells);
                for _ in 0..before {
                    page.post(OrderKind::Trim, "", UNTIL).unwrap();
                }
            },
            |page| page.post(OrderKind::Limit, "8G", UNTIL).map(drop),
            |cells, alive| {
                let page = ControlPage::new(cells);
                let desk = Desk::default();
                // Before the next one, or after it.
                for early in [true, false] {
                    let order = early
                        .then(|| page.take(&desk, |order| order.until_ms == UNTIL).unwrap())
                        .flatten();
                    let known = order
                        .as_ref()
                        .is_none_or(|order| order.argument == if alive { "8G" } else { "" });
                    assert!(known, "{order:?}");
                    let number = page.post(OrderKind::Dump, "", UNTIL).unwrap();
                    let next = page
                        .take(&desk, |order| order.until_ms == UNTIL)
                        .unwrap()
                        .unwrap();
                    assert_eq!((next.number, next.kind), (number, OrderKind::Dump));
                }
            },
        );
    }
}

#[test]
fn a_process_that_dies_leaves_no_half_a_reply() {
    let number = Cell::new(0);
    killed_everywhere(
        |cells| {
            let page = ControlPage::new(cells);
            number.set(page.post(OrderKind::Dump, "", UNTIL).unwrap());
        },
        |page| {
            let order = page.take(&Desk::default(), |order| order.until_ms == UNTIL)?;
            page.reply(&order.unwrap(), Outcome::Done, "/a/file")
        },
        |cells, alive| {
            let reply = ControlPage::new(cells).reply_to(number.get()).unwrap();
            let done = Seen::Whole(Reply {
                outcome: Outcome::Done,
                text: "/a/file".to_owned(),
            });
            let begun = Seen::Whole(Reply {
                outcome: Outcome::Begun,
                text: String::new(),
            });
            assert_eq!(reply == done, alive);
            let others = [done, begun, Seen::Nothing, Seen::Unfinished];
            assert!(others.contains(&reply), "{reply:?}");
        },
    );
}

#[test]
fn words_that_nobody_wrote_are_no_record() {
    for garbage in [1, 2, 0x2020_2020_2020_2020, u64::MAX] {
        let cells: Vec<_> = (0..WORDS).map(|_| AtomicU64::new(garbage)).collect();
        let page = ControlPage::new(&cells[..]);
        assert_eq!(page.owner().unwrap(), Seen::Unfinished);
        assert_eq!(page.figures().unwrap(), Seen::Unfinished);
        assert_eq!(page.take(&Desk::default(), |_| true).unwrap(), None);
        page.sign(&owner()).unwrap();
        assert_eq!(page.owner().unwrap(), Seen::Whole(owner()));
    }
}

#[test]
fn a_page_that_is_cut_off_is_nobody_s() {
    let cells = cells();
    for length in [0, 3, OWNER.end() - 1] {
        let page = ControlPage::new(&cells[..length]);
        let _ = page.sign(&owner());
        assert!(!matches!(page.owner(), Ok(Seen::Whole(_))), "{length}");
    }
}

#[test]
fn a_folder_has_the_number_that_its_user_has_outside() {
    let all = "         0          0 4294967295\n";
    assert_eq!(user_outside(1000, all), 1000);
    let map = "0 100000 1000\n1000 5 1\n2000 4294967295 2\n";
    for (inside, outside) in [
        (0, 100_000),
        (999, 100_999),
        (1000, 5),
        (1001, 1001),
        (2000, u32::MAX),
        (2001, 2001),
    ] {
        assert_eq!(user_outside(inside, map), outside);
    }
    for unreadable in ["", "0", "0 1", "0 1 -1", "a b c"] {
        assert_eq!(user_outside(0, unreadable), 0);
    }
}
