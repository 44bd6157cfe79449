use super::*;

/// What no device has is refused by the driver, and nobody hears of it.
#[test]
fn a_request_without_measure_leaves_the_sum_as_it_is() {
    let quota = Quota::new(Bytes::MAX);
    let absurd = quota.ask(Bytes::new(u64::MAX - 100)).unwrap();
    assert!(quota.take(Bytes::new(4)));
    drop(absurd);
    assert_eq!(quota.reserved(), Bytes::new(4));
}

#[test]
fn what_is_taken_stays_below_the_limit() {
    let quota = Quota::new(Bytes::new(10));
    assert!(quota.take(Bytes::new(10)));
    assert!(!quota.take(Bytes::new(1)));
    assert!(!quota.take(Bytes::MAX));
    quota.put_back(Bytes::new(1));
    assert!(quota.take(Bytes::new(1)));
    assert_eq!(quota.limit(), Some(Bytes::new(10)));
    assert_eq!(Quota::new(Bytes::MAX).limit(), None);
}

#[test]
fn a_soft_mark_refuses_nothing() {
    let quota = Quota::new(Bytes::new(10));
    assert_eq!(quota.beyond_soft(Bytes::MAX), Bytes::ZERO);
    quota.set_soft(Bytes::new(4));
    assert!(quota.take(Bytes::new(6)));
    assert_eq!(quota.beyond_soft(Bytes::ZERO), Bytes::new(2));
    assert_eq!(quota.beyond_soft(Bytes::new(3)), Bytes::new(5));
}

/// What was reserved between two looks counts, though neither look sees it.
#[test]
fn what_comes_and_goes_between_two_looks_counts() {
    let quota = Quota::new(Bytes::MAX);
    assert!(quota.take(Bytes::new(10)));
    let before = quota.put_back_so_far();
    assert!(quota.take(Bytes::new(5)));
    quota.put_back(Bytes::new(5));
    assert_eq!(quota.reserved(), Bytes::new(10));
    assert_eq!(quota.most_reserved_since(before), Bytes::new(15));
    // No more goes back than is reserved.
    quota.put_back(Bytes::MAX);
    assert_eq!(quota.most_reserved_since(before), Bytes::new(15));
}

/// What the driver has not answered for counts as reserved, and as on its
/// way.
#[test]
fn what_is_asked_for_flies_until_it_is_given_or_refused() {
    let quota = Quota::new(Bytes::new(10));
    let others = || {
        std::thread::scope(|scope| {
            let seen = scope.spawn(|| (quota.others_fly(quota.taken_off()), quota.landings()));
            seen.join().unwrap()
        })
    };
    let (_, before) = others();
    let mut asked = quota.ask(Bytes::new(6)).unwrap();
    assert!(quota.ask(Bytes::new(5)).is_none());
    assert!(others().0 && !quota.others_fly(quota.taken_off()));
    asked.got(Bytes::new(4));
    drop(asked);
    assert_eq!(quota.reserved(), Bytes::new(4));
    let (fly, after) = others();
    let own = quota.landings();
    assert!(!fly && !after.may_serve(before, false));
    assert!(after.may_serve(before, true));
    quota.fly().lands();
    assert!(others().1.may_serve(after, false));
    assert!(!quota.landings().may_serve(own, true));
}

/// A thread that waits for flights does not wait for later ones, however
/// many there are, and does wait for all earlier ones.
#[test]
fn later_flights_are_not_waited_for() {
    let quota = Quota::new(Bytes::MAX);
    let elsewhere = |taken_off| {
        std::thread::scope(|scope| {
            let seen = scope.spawn(|| quota.others_fly(taken_off));
            seen.join().unwrap()
        })
    };
    let first = quota.fly();
    let before = quota.taken_off();
    for _ in 0..3 * GENERATIONS {
        let _ = quota.taken_off();
        drop(quota.fly());
    }
    assert!(elsewhere(before));
    let later = quota.fly();
    drop(first);
    assert!(!elsewhere(before));
    drop(later);
}

/// Without a limit the driver refuses what cannot be had.
#[test]
fn without_a_limit_nothing_is_too_much_to_ask_for() {
    let quota = Quota::new(Bytes::MAX);
    assert!(quota.take(Bytes::new(10)));
    let huge = quota.ask(Bytes::MAX);
    assert!(huge.is_some() && quota.ask(Bytes::new(1)).is_some());
    drop(huge);
    assert_eq!(quota.reserved(), Bytes::new(10));
}

#[test]
fn a_lower_limit_holds_from_then_on() {
    let quota = Quota::new(Bytes::MAX);
    assert!(quota.take(Bytes::new(10)));
    quota.set_limit(Bytes::new(8));
    assert!(!quota.take(Bytes::new(1)));
    quota.put_back(Bytes::new(3));
    assert!(quota.take(Bytes::new(1)));
}
