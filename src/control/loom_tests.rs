//! Orders, under every interleaving of a sender and the process.

use super::*;
use loom::sync::Arc;
use loom::thread;
use std::sync::Mutex;

const UNTIL: u64 = 9;

/// The versions are words of their own. The other words are read and written
/// all at once, unseen by the checker: that they are not mixed is the business
/// of `record`.
struct Coarse {
    versions: [AtomicU64; 2],
    words: Mutex<Vec<u64>>,
}

const RECORDS: [Record; 2] = [ORDER, REPLY];

impl Coarse {
    fn version(&self, place: usize) -> Option<&AtomicU64> {
        let n = RECORDS.iter().position(|record| record.begins_at(place))?;
        Some(&self.versions[n])
    }
}

impl Cells for Coarse {
    fn load(&self, place: usize, to: &mut [u64]) -> io::Result<()> {
        let version = self.version(place).map(|word| word.load(Ordering::Relaxed));
        if to.len() > 1 {
            let words = self.words.lock().unwrap();
            to.copy_from_slice(&words[place..place + to.len()]);
        }
        if let Some(version) = version {
            to[0] = version;
        }
        Ok(())
    }

    fn store(&self, place: usize, words: &[u64]) -> io::Result<()> {
        match self.version(place) {
            Some(version) => version.store(words[0], Ordering::Relaxed),
            None => {
                let mut all = self.words.lock().unwrap();
                all[place..place + words.len()].copy_from_slice(words);
            }
        }
        Ok(())
    }
}

type Shared = Arc<Coarse>;

fn cells() -> Shared {
    Arc::new(Coarse {
        versions: [AtomicU64::new(0), AtomicU64::new(0)],
        words: Mutex::new(vec![0; REPLY.end()]),
    })
}

fn page(cells: &Shared) -> ControlPage<&Coarse> {
    ControlPage::new(&**cells)
}

/// What the process does when it looks: whether it served an order.
fn serve(cells: &Shared, desk: &Desk) -> bool {
    let page = page(cells);
    let order = page.take(desk, |_| true).unwrap();
    if let Some(order) = &order {
        page.reply(order, Outcome::Done, "").unwrap();
    }
    order.is_some()
}

/// A sender withdraws an order while the process looks at it. If it hears
/// nothing, the order is not served; if the process served it, it hears of it.
#[test]
fn loom_a_withdrawn_order_is_not_served() {
    loom::model(|| {
        let cells = cells();
        let number = page(&cells).post(OrderKind::Trim, "", UNTIL).unwrap();
        let process = {
            let cells = Arc::clone(&cells);
            thread::spawn(move || serve(&cells, &Desk::default()))
        };
        let heard = page(&cells).withdraw(number).unwrap();
        let served = process.join().unwrap();
        assert!(!served || heard != Seen::Nothing);
        let outcome = page(&cells).reply_to(number).unwrap().whole();
        let outcome = outcome.map(|reply| reply.outcome);
        assert_eq!(outcome == Some(Outcome::Done), served);
        assert_ne!(outcome, Some(Outcome::Begun));
    });
}

/// An order takes the place of another while the process looks: each is served
/// at most once, none is mixed of both, and the last one is served in the end.
#[test]
fn loom_an_order_is_served_once() {
    loom::model(|| {
        let cells = cells();
        page(&cells).post(OrderKind::Trim, "", UNTIL).unwrap();
        let desk = Arc::new(Desk::default());
        let process = {
            let (cells, desk) = (Arc::clone(&cells), Arc::clone(&desk));
            thread::spawn(move || serve(&cells, &desk))
        };
        let second = page(&cells).post(OrderKind::Dump, "", UNTIL).unwrap();
        let early = process.join().unwrap();
        let late = serve(&cells, &desk);
        let done = page(&cells).reply_to(second).unwrap().whole();
        assert_eq!(done.map(|reply| reply.outcome), Some(Outcome::Done));
        assert!(early || late);
        assert!(!serve(&cells, &desk));
    });
}
