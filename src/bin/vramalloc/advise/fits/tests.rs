use std::path::PathBuf;

use vramalloc_core::config::DeviceShare;
use vramalloc_core::stats::Family;

use super::super::super::replay::DIFFERS;
use super::super::super::replay::live::peaks_of_all;
use super::super::made::{does, frees, takes, tape};
use super::super::{Arguments, advice, without};
use super::*;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

#[test]
fn a_program_that_repeats_itself_varies_little() {
    let more = |peaks: &[u64]| match later_rounds(peaks) {
        Later::Vary(more) => more,
        other => panic!("{other:?}"),
    };
    assert_eq!(later_rounds(&[100, 100]), Later::Few);
    assert_eq!(more(&[100, 100, 100]), LEAST);
    assert!(more(&[100, 110, 90]) > 200);
    // Half of it is growth.
    assert!(more(&[1000, 1010, 1030, 1000]) > 50);
    assert_eq!(later_rounds(&[1000, 1010, 1020, 1030]), Later::Grow);
}

/// Takes so much and frees it, once for each size.
fn rounds_of(tape: &mut Tape, arena: u32, sizes: &[u64]) {
    for &size in sizes {
        let block = takes(tape, arena, size);
        frees(tape, arena, block);
    }
}

fn answer(tape: &Tape, device: u64) -> Verdict {
    let options = tape.loaded(&[]).unwrap().settings;
    fits(tape, &options, Bytes::new(device))
}

#[test]
fn what_repeats_fits_where_there_is_room_and_not_where_there_is_none() {
    let mut tape = tape(80 * GIB, &[0]);
    rounds_of(&mut tape, 0, &[4 * GIB; 6]);
    assert_eq!(answer(&tape, 6 * GIB).fits, Fits::Yes);
    assert_eq!(answer(&tape, 3 * GIB).fits, Fits::No);
}

#[test]
fn memory_past_the_pool_is_not_told() {
    let mut tape = tape(80 * GIB, &[0]);
    rounds_of(&mut tape, 0, &[4 * GIB; 6]);
    tape.past.insert(Family::AsyncPools);
    let verdict = answer(&tape, 6 * GIB);
    assert_eq!(verdict.fits, Fits::CannotTell);
    assert!(verdict.why.unwrap().contains("cudaMallocAsync"));
}

#[test]
fn a_slow_leak_is_growth() {
    let mut tape = tape(16 * GIB, &[0]);
    for _ in 0..6 {
        takes(&mut tape, 0, 2 * MIB);
        rounds_of(&mut tape, 0, &[4000 * MIB]);
    }
    let verdict = answer(&tape, 6 * GIB);
    assert_eq!(verdict.fits, Fits::CannotTell);
    assert!(verdict.why.unwrap().contains("grow"));
}

#[test]
fn each_device_has_its_own_rounds() {
    let mut tape = tape(80 * GIB, &[0, 1]);
    for round in 0..9 {
        let first = takes(&mut tape, 0, (4000 + round * 100) * MIB);
        rounds_of(&mut tape, 1, &[(4000 - round * 100) * MIB]);
        frees(&mut tape, 0, first);
    }
    assert_eq!(answer(&tape, 60 * GIB).fits, Fits::CannotTell);
    // As what is reserved is the sum of all devices'.
    assert_eq!(peaks_of_all(&tape), 8800 * MIB);
}

/// A share that the program set at run time is one of the device that is tried.
#[test]
fn a_limit_by_share_is_of_the_tried_device() {
    let mut tape = tape(80 * GIB, &[0]);
    let half = Some(DeviceShare::Fraction(0.5));
    does(&mut tape, 0, What::Limit(half));
    rounds_of(&mut tape, 0, &[13 * GIB; 20]);
    assert_eq!(answer(&tape, 24 * GIB).fits, Fits::No);
    assert_eq!(answer(&tape, 32 * GIB).fits, Fits::Yes);
    // Also of what CUDA has.
    tape.arenas[0].elsewhere = Some(2 * GIB);
    let verdict = answer(&tape, 80 * GIB);
    assert_eq!(verdict.most.map(|most| most.get() < 25 * GIB), Some(true));
}

#[test]
fn what_a_context_held_is_gone_with_it() {
    let mut tape = tape(16 * GIB, &[0, 0, 0, 0, 0]);
    for arena in 0..5 {
        takes(&mut tape, arena, 10 * GIB);
        does(&mut tape, arena, What::Ended);
    }
    assert_eq!(peak_live(&tape), 10 * GIB);
    let verdict = answer(&tape, 16 * GIB);
    assert_eq!(verdict.fits, Fits::Yes, "{verdict:?}");
}

#[test]
fn a_program_can_run_where_it_ran() {
    let mut tape = tape(16 * GIB, &[0]);
    // Whatever the model says.
    tape.arenas[0].elsewhere = Some(12 * GIB);
    rounds_of(&mut tape, 0, &[8 * GIB; 5]);
    assert_eq!(answer(&tape, 16 * GIB).fits, Fits::CannotTell);
    assert_eq!(answer(&tape, 15 * GIB).fits, Fits::No);
}

#[test]
fn a_program_that_asks_what_there_is_may_take_less() {
    let mut tape = tape(80 * GIB, &[0]);
    does(&mut tape, 0, What::Order(ArenaOrder::MemInfo));
    rounds_of(&mut tape, 0, &[64 * GIB; 5]);
    for size in [24 * GIB, 200 * GIB] {
        let verdict = answer(&tape, size);
        assert_eq!(verdict.fits, Fits::CannotTell);
        assert!(verdict.why.unwrap().contains("cudaMemGetInfo"));
    }
}

#[test]
fn room_is_left_for_what_cuda_takes_where_nobody_says() {
    let mut tape = tape(0, &[0]);
    tape.options = None;
    tape.arenas[0].elsewhere = None;
    rounds_of(&mut tape, 0, &[4 * GIB; 6]);
    assert_eq!(answer(&tape, 4 * GIB + 256 * MIB).fits, Fits::CannotTell);
    assert_eq!(answer(&tape, 6 * GIB).fits, Fits::Yes);
    assert_eq!(answer(&tape, 3 * GIB).fits, Fits::No);
}

#[test]
fn sizes_near_the_highest_number_fit_nowhere() {
    let mut tape = tape(16 * GIB, &[0]);
    takes(&mut tape, 0, u64::MAX);
    takes(&mut tape, 0, u64::MAX - 5);
    assert_eq!(peak_live(&tape), u64::MAX);
    assert_eq!(answer(&tape, 8 * GIB).least, None);
}

#[test]
fn there_is_no_advice_where_the_model_fails() {
    let mut tape = tape(16 * GIB, &[0]);
    rounds_of(&mut tape, 0, &[20 * GIB]);
    for json in [false, true] {
        let arguments = Arguments {
            file: PathBuf::new(),
            fits: None,
            whole: false,
            json,
        };
        let (text, status) = advice(&tape, &arguments).unwrap();
        assert_eq!(status, DIFFERS);
        let said = if json {
            "failed_at_event\":1"
        } else {
            "No advice"
        };
        assert!(text.contains(said), "{text}");
    }
}

#[test]
fn advice_of_mapped_memory_warns_of_what_it_cannot() {
    let choice = |strategy: &str| vec![("strategy".to_owned(), strategy.to_owned())];
    assert!(without(&choice("mapped")).is_some());
    assert_eq!(without(&choice("auto_growth")), None);
}
