//! The rise and fall of programs, and what follows from it.

use super::requests::RUN;
use super::*;

const MIB: fn(u64) -> Bytes = Bytes::mib;

/// A program that came to hold `peak`, and `returns` times came back to
/// it from nothing.
fn program(peak: Bytes, returns: u32) -> Packing {
    let mut packing = Packing::default();
    packing.rose(peak);
    for _ in 0..returns {
        packing.fell(Bytes::ZERO);
        packing.rose(peak);
    }
    packing
}

#[test]
fn a_chunk_is_cut_for_what_fills_it() {
    assert!(fills(MIB(60), MIB(100), |_| false));
    assert!(!fills(MIB(59), MIB(100), |_| false));
    assert!(!fills(Bytes::new(512), Bytes::MAX, |_| false));
    assert!(fills(MIB(90), MIB(100), |rest| rest == MIB(10) || rest == MIB(11)));
    assert!(!fills(MIB(89), MIB(100), |rest| rest == MIB(10) || rest == MIB(11)));
}

#[test]
fn a_small_program_is_left_alone() {
    assert!(!program(MIB(255), 9).is_on());
    let mut packing = program(MIB(256), 0);
    packing.fell(Bytes::ZERO);
    assert!(packing.is_on());
}

#[test]
fn a_program_that_holds_much_of_a_little_is_not_small() {
    let mut packing = program(MIB(50), 0);
    packing.learn(MIB(201));
    assert!(!packing.is_on());
    packing.learn(MIB(200));
    assert!(packing.is_on());
    packing.learn(Bytes::MAX);
    assert!(!packing.is_on());
}

#[test]
fn requests_of_one_size_share_chunks_alone_until_that_is_known() {
    let of = |packing: &Packing, mib| packing.sharing(MIB(12), MIB(mib), MIB(1000));
    let mut packing = program(MIB(1000), 0);
    packing.serves(MIB(12));
    for _ in 0..RUN {
        assert_eq!(of(&packing, 50), Sharing::All);
        packing.serves(MIB(12));
    }
    assert_eq!(of(&packing, 10), Sharing::All);
    assert_eq!(of(&packing, 11), Sharing::Alike);
    let other = packing.sharing(MIB(11), MIB(50), MIB(1000));
    assert_eq!(other, Sharing::All);
    packing.returns = KNOWN;
    assert_eq!(
        of(&packing, 11),
        Sharing::Alike,
        "new to a program that is known"
    );
    packing.fell(MIB(100));
    packing.rose(MIB(1000));
    assert_eq!(of(&packing, 900), Sharing::All);
    packing.returns = 0;
    packing.serves(MIB(11));
    packing.serves(MIB(12));
    assert_eq!(of(&packing, 11), Sharing::All, "the run is over");
}

#[test]
fn nobody_shares_a_chunk_for_a_new_size_where_much_lies_in_pieces() {
    let of = |packing: &Packing, mib| packing.sharing(MIB(12), MIB(mib), MIB(1000));
    let mut packing = program(MIB(1000), 0);
    assert_eq!(of(&packing, 50), Sharing::All);
    assert_eq!(of(&packing, 51), Sharing::Nobody);
    packing.serves(MIB(12));
    assert_eq!(of(&packing, 51), Sharing::Nobody);
    packing.fell(MIB(100));
    assert_eq!(of(&packing, 900), Sharing::All, "it may come again");
}

#[test]
fn pieces_are_wasted_sooner_where_room_is_short() {
    let mut packing = program(MIB(1000), 0);
    packing.room(None, MIB(1000), MIB(2000), Bytes::ZERO);
    let wastes = |packing: &Packing, reserved, mib| {
        packing.wastes(MIB(12), MIB(reserved), MIB(mib), MIB(1000))
    };
    let is_careful = |packing: &Packing| {
        assert!(!wastes(packing, 1001, 80));
        wastes(packing, 1001, 81)
    };
    assert!(!wastes(&packing, 1000, 900) && is_careful(&packing));
    (0..=RUN).for_each(|_| packing.serves(MIB(12)));
    assert!(!wastes(&packing, 1000, 500) && wastes(&packing, 1000, 501));
    assert!(is_careful(&packing));
}

#[test]
fn what_a_known_program_asks_for_is_new_until_it_came_down_once_more() {
    let mut packing = program(MIB(1000), KNOWN);
    let room = |packing: &mut Packing, size| {
        packing.room(Some(MIB(size)), MIB(900), MIB(1100), Bytes::ZERO)
    };
    let is_new = |packing: &mut Packing, size| {
        let is_tight = room(packing, size) == Room::Tight;
        assert_eq!(
            is_tight,
            packing.wastes(MIB(size), MIB(900), MIB(900), MIB(800))
        );
        is_tight
    };
    packing.serves(MIB(12));
    packing.serves(MIB(40));
    assert!(is_new(&mut packing, 12) && is_new(&mut packing, 40) && is_new(&mut packing, 41));
    packing.fell(MIB(749));
    packing.rose(MIB(1000));
    assert!(!is_new(&mut packing, 12) && !is_new(&mut packing, 40) && is_new(&mut packing, 41));
    packing.exchanges = EXCHANGES;
    assert_eq!(
        room(&mut packing, 41),
        Room::Ample,
        "it has exchanged too often"
    );
}

#[test]
fn after_a_refusal_all_sizes_are_new_for_a_while() {
    let mut packing = program(MIB(1000), KNOWN);
    packing.room(None, MIB(900), MIB(1100), Bytes::ZERO);
    let is_new = |packing: &Packing| packing.wastes(MIB(12), MIB(1100), MIB(900), MIB(800));
    let come_down = |packing: &mut Packing| {
        packing.rose(MIB(960));
        packing.fell(MIB(100));
    };
    packing.serves(MIB(12));
    come_down(&mut packing);
    assert!(!is_new(&packing));
    packing.failed(MIB(600), MIB(501));
    assert!(!is_new(&packing), "there was not so much");
    for rounds in [4, 8] {
        packing.failed(MIB(600), MIB(500));
        for _ in 0..rounds {
            assert!(is_new(&packing));
            come_down(&mut packing);
        }
        assert!(!is_new(&packing));
    }
    packing.rose(MIB(1100));
    packing.failed(MIB(600), MIB(500));
    (0..4).for_each(|_| come_down(&mut packing));
    assert!(!is_new(&packing), "it holds more than before");
}

#[test]
fn who_came_back_twice_is_known_until_the_peak_is_clearly_higher() {
    assert!(!program(MIB(1000), 1).is_known());
    let mut packing = program(MIB(1000), 2);
    assert!(packing.is_known());
    packing.rose(MIB(1030));
    assert!(packing.is_known());
    packing.rose(MIB(1031));
    assert!(!packing.is_known());
}

#[test]
fn to_come_back_takes_a_fall_and_a_rise() {
    let mut packing = program(MIB(1000), 0);
    for _ in 0..9 {
        // Not down far enough, and then not back up.
        packing.fell(MIB(750));
        packing.rose(MIB(1000));
    }
    packing.fell(MIB(749));
    packing.rose(MIB(950));
    assert_eq!(packing.returns, 0);
    packing.rose(MIB(951));
    packing.rose(MIB(952));
    assert_eq!(packing.returns, 1);
}

#[test]
fn it_comes_down_once_and_low_once_until_it_is_back() {
    let mut packing = program(MIB(1000), 0);
    let falls = [800, 749, 600, 100, 99, 500, 99, 0];
    let comes = falls.map(|live| packing.fell(MIB(live)));
    assert_eq!(
        comes,
        [false, true, false, false, true, false, false, false]
    );
    packing.rose(MIB(951));
    assert!(packing.fell(MIB(0)));
    assert!(!packing.fell(MIB(0)));
    assert!(program(MIB(64), 0).fell(MIB(0)));
    assert!(!program(MIB(63), 0).fell(MIB(0)), "it is left alone");
}

#[test]
fn threads_keep_while_a_known_program_has_room_until_it_holds_nothing() {
    let mut known = program(MIB(1000), KNOWN);
    known.room(None, MIB(1080), MIB(2000), Bytes::ZERO);
    assert!(!known.lets_keep(), "it has just become known");
    let mut known = program(MIB(1000), KNOWN + 1);
    assert!(!known.lets_keep(), "no miss has found room yet");
    known.room(None, MIB(500), MIB(1000), Bytes::ZERO);
    assert!(!known.lets_keep(), "it hardly fits");
    known.room(None, MIB(1080), MIB(2000), Bytes::ZERO);
    assert!(known.lets_keep());
    assert_eq!(
        [749, 99, 0].map(|live| known.fell(MIB(live))),
        [true, true, false]
    );
    known.rose(MIB(1031));
    assert!(!known.lets_keep(), "it is not known at that height");
}

#[test]
fn the_bound_is_the_peak_and_a_little_or_what_is_about_to_be_one() {
    let packing = program(MIB(1000), 0);
    assert_eq!(packing.bound(MIB(10), MIB(10)), MIB(1080));
    assert_eq!(packing.bound(MIB(1000), MIB(1000)), MIB(2160));
    assert_eq!(packing.bound(Bytes::MAX, MIB(1)), Bytes::MAX);
}

#[test]
fn what_a_known_program_exchanges_raises_its_bound_to_an_end() {
    let mut unknown = program(MIB(1000), 0);
    unknown.exchanged();
    assert_eq!(unknown.bound(MIB(0), MIB(0)), MIB(1080));
    let mut packing = program(MIB(1000), 2);
    packing.exchanged();
    assert_eq!(packing.bound(MIB(0), MIB(0)), MIB(1085));
    for _ in 0..11 {
        packing.exchanged();
    }
    assert_eq!(packing.bound(MIB(0), MIB(0)), MIB(1140));
    assert!(!packing.is_spent());
    packing.exchanged();
    assert!(packing.is_spent());
    assert_eq!(packing.bound(MIB(0), MIB(0)), MIB(1140));
}

#[test]
fn who_came_back_adds_slabs_up_to_a_bound() {
    assert!(!program(MIB(1000), 0).adds_slab(MIB(10), MIB(1), MIB(1090)));
    let back = program(MIB(1000), 1);
    assert!(back.adds_slab(MIB(10), MIB(1), MIB(1160)));
    assert!(!back.adds_slab(MIB(10), MIB(1), MIB(1161)));
}

#[test]
fn exchanging_ends_at_each_peak() {
    let mut packing = program(MIB(1000), 0);
    for _ in 0..EXCHANGES {
        assert!(!packing.is_spent());
        packing.exchanged();
    }
    assert!(packing.is_spent());
    packing.rose(MIB(1100));
    assert!(!packing.is_spent());
}

#[test]
fn room_is_what_is_left_until_the_program_is_known() {
    let room =
        |program: &mut Packing, reserved| program.room(None, MIB(reserved), MIB(1000), Bytes::ZERO);
    let mut unknown = program(MIB(400), 0);
    assert_eq!(room(&mut unknown, 500), Room::Ample);
    assert_eq!(room(&mut unknown, 501), Room::Tight);
    let mut spent = program(MIB(400), 0);
    spent.exchanges = EXCHANGES;
    for mut program in [program(MIB(920), 2), spent] {
        assert_eq!(room(&mut program, 999), Room::Ample);
        program.rose(MIB(921));
        assert_ne!(room(&mut program, 999), Room::Ample);
    }
    let mut lagging = program(MIB(600), 2);
    lagging.lags = true;
    assert_eq!(room(&mut lagging, 999), Room::Ample);
    lagging.rose(MIB(601));
    assert_eq!(room(&mut lagging, 999), Room::Scarce);
}

#[test]
fn pieces_and_chunks_may_take_half_of_what_the_peak_leaves() {
    let mut known = program(MIB(940), 2);
    assert_eq!(known.room(None, MIB(999), MIB(1000), MIB(30)), Room::Scarce);
    assert_eq!(known.room(None, MIB(999), MIB(1000), MIB(31)), Room::Tight);
    assert_eq!(known.filled(MIB(1000)), MIB(970));
}

#[test]
fn patience_ends() {
    let mut packing = program(MIB(1000), 0);
    for _ in 0..VAIN {
        assert!(packing.is_patient());
        packing.waited_in_vain();
    }
    assert!(!packing.is_patient());
}
