//! Risk: our chunks are not those that Paddle's own strategies would take.
//!
//! `tests/clients/paddle/chunks.json` has what Paddle 2.4.2 took from the
//! driver, and gave back, for lists of requests and flags; where Paddle is
//! installed, `scripts/check-programs` looks that it still does. The same
//! requests under the same flags, without Paddle, must take the same from us,
//! but for the differences that docs/options.md names.

use serde_json::Value;

use vramalloc_tests::stage::{Kind, Run};

const PAGE: i64 = 2 << 20;

/// Requests up to this share chunks of a page.
const SMALL: i64 = 1 << 20;

/// Paddle's own sizes are rounded up by less than this.
const UNIT: i64 = 512;

fn table() -> Vec<Value> {
    let text = include_str!("../clients/paddle/chunks.json");
    serde_json::from_str(text).unwrap()
}

fn numbers(value: &Value) -> Vec<i64> {
    let all = value.as_array().unwrap().iter();
    all.map(|number| number.as_i64().unwrap()).collect()
}

/// What a run of the same requests takes from the driver.
fn ours(row: &Value, kind: Kind) -> Vec<i64> {
    let text = |key: &str| row[key].as_str().unwrap().split(' ').collect::<Vec<_>>();
    let mut run = Run::preloaded("steps", kind);
    for step in text("steps") {
        run = run.arg(step);
    }
    for flag in text("flags") {
        let (name, value) = flag.split_once('=').unwrap();
        run = run.env(name, value);
    }
    let outcome = run.go();
    outcome.quiet(0).no_violations();
    numbers(&outcome.report()["taken"])
}

/// Whole pages that hold so much; negative where they are given back.
fn pages(size: i64) -> i64 {
    let whole = (size.abs() + PAGE - 1) / PAGE * PAGE;
    whole * size.signum()
}

/// `auto_growth`: chunks are whole pages, and small requests share one as long
/// as one of them is there.
fn growing(paddle: &[i64]) -> Vec<i64> {
    let mut sharing = 0;
    let shared = |&size: &i64| {
        if size.abs() > SMALL {
            return Some(pages(size));
        }
        sharing += size.signum();
        let changes = sharing == i64::from(size > 0);
        changes.then_some(PAGE * size.signum())
    };
    paddle.iter().filter_map(shared).collect()
}

/// Whether a request that goes to the driver by itself is the same here, where
/// it is not rounded.
fn same_request(paddle: i64, ours: i64) -> bool {
    paddle.signum() == ours.signum() && (0..UNIT).contains(&(paddle.abs() - ours.abs()))
}

/// `naive_best_fit`: of a share of the device less than two pages are missing,
/// the one that is kept back and what whole pages leave over; what does not fit
/// a chunk goes to the driver by itself; every other chunk is whole pages.
fn same_chunk(largest: i64, paddle: i64, ours: i64) -> bool {
    const A_SHARE: i64 = 1 << 30;
    if paddle.abs() > largest {
        same_request(paddle, ours)
    } else if paddle > A_SHARE {
        ours % PAGE == 0 && (0..2 * PAGE).contains(&(paddle - ours))
    } else {
        ours == pages(paddle)
    }
}

#[test]
fn chunks_are_those_of_paddle() {
    for row in table() {
        let flags = row["flags"].as_str().unwrap();
        let paddle = numbers(&row["taken"]);
        for kind in [Kind::Dynamic, Kind::Static, Kind::Driver] {
            let ours = ours(&row, kind);
            let pairs = |ours: &[i64]| paddle.iter().copied().zip(ours.to_vec());
            let seen = format!("{flags} {kind:?}: Paddle {paddle:?}, here {ours:?}");
            if flags.ends_with("_to_use=0") {
                assert_eq!(ours.len(), paddle.len(), "{seen}");
                assert!(pairs(&ours).all(|(p, o)| same_request(p, o)), "{seen}");
                continue;
            }
            // The page that is kept back, in two halves: with the first chunk, before it
            // where that takes a share of the device.
            let kept = ours.iter().position(|&size| size == PAGE / 2).unwrap();
            assert_eq!(ours[kept..kept + 2], [PAGE / 2; 2], "{seen}");
            assert_eq!(kept, usize::from(flags.contains("auto_growth")), "{seen}");
            let ours = [&ours[..kept], &ours[kept + 2..]].concat();
            if flags.contains("auto_growth") {
                assert_eq!(ours, growing(&paddle), "{seen}");
            } else {
                let same = |(p, o)| same_chunk(paddle[0], p, o);
                assert_eq!(ours.len(), paddle.len(), "{seen}");
                assert!(pairs(&ours).all(same), "{seen}");
            }
        }
    }
}
