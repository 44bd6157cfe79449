//! The lock under every order of two or three threads that the checker finds. It sees each
//! access to the value that another thread's may meet.

use loom::cell::UnsafeCell;
use loom::thread;

use super::{BiasedLock, Key};

struct Yields;

impl spin::RelaxStrategy for Yields {
    fn relax() {
        thread::yield_now();
    }
}

/// Three threads or more have too many orders: of these the ones with few switches.
fn check_few(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.max_branches = 20_000;
    builder.check(model);
}

type Counter = BiasedLock<UnsafeCell<u32>, Yields>;

fn made() -> &'static Counter {
    Box::leak(Box::new(BiasedLock::new(UnsafeCell::new(0))))
}

fn add(value: &UnsafeCell<u32>) -> u32 {
    // SAFETY: the checker says whether it is so.
    value.with_mut(|value| unsafe {
        *value += 1;
        *value
    })
}

/// Its key, with the lock biased towards it, and nobody inside.
fn biased(lock: &'static Counter) -> Key<UnsafeCell<u32>, Yields> {
    let key = Key::new(lock, 0);
    drop(key.stay(lock.lock()));
    key
}

/// How often the owner came in by its bias in so many tries.
fn enters(lock: &'static Counter, tries: usize) -> usize {
    let key = biased(lock);
    let entered = (0..tries).filter_map(|_| key.enter());
    entered.map(|guard| add(&guard)).count()
}

#[test]
fn loom_one_is_inside_at_a_time() {
    loom::model(|| {
        let lock = made();
        let owner = thread::spawn(|| enters(lock, 2));
        add(&lock.lock());
        let entered = owner.join().unwrap();
        assert_eq!(add(&lock.lock()) as usize, entered + 2);
    });
}

/// One that gives up leaves the lock without a bias and with the owner inside.
#[test]
fn loom_who_gives_up_hands_the_lock_to_nobody() {
    check_few(|| {
        let lock = made();
        let owner = thread::spawn(|| enters(lock, 1));
        let gives_up = thread::spawn(|| lock.try_lock().map_or(0, |guard| add(&guard).min(1)));
        add(&lock.lock());
        let entered = owner.join().unwrap() + gives_up.join().unwrap() as usize;
        assert_eq!(add(&lock.lock()) as usize, entered + 2);
    });
}

/// The bias comes back while another one wants the lock.
#[test]
fn loom_the_bias_comes_back_to_one_inside() {
    loom::model(|| {
        let lock = made();
        let owner = thread::spawn(|| {
            let key = biased(lock);
            drop(lock.lock());
            lock.entries_left.store(0, super::Ordering::Relaxed);
            let guard = key.stay(lock.try_lock()?);
            add(&guard);
            // It is inside already.
            assert!(key.enter().is_none());
            drop(guard);
            key.enter().map(|guard| add(&guard))
        });
        add(&lock.lock());
        owner.join().unwrap();
        assert!(add(&lock.lock()) > 1);
    });
}

/// The lock has another owner, for whom its bias cannot be: the first one comes late.
#[test]
fn loom_an_owner_before_comes_late() {
    check_few(|| {
        let lock = made();
        let before = biased(lock);
        let next = thread::spawn(|| {
            let guard = lock.lock();
            lock.entries_left.store(0, super::Ordering::Relaxed);
            let key = Key::new(lock, 0);
            add(&key.stay(guard));
            usize::from(key.enter().is_some_and(|guard| add(&guard) > 0))
        });
        let other = thread::spawn(|| add(&lock.lock()));
        let late = usize::from(before.enter().is_some_and(|guard| add(&guard) > 0));
        let entered = late + next.join().unwrap();
        other.join().unwrap();
        assert_eq!(add(&lock.lock()) as usize, entered + 3);
    });
}

/// An owner that takes the lock as others do enters by its bias, and takes that away.
#[test]
fn loom_an_owner_ends_its_bias_inside() {
    loom::model(|| {
        let lock = made();
        let owner = thread::spawn(|| {
            let key = biased(lock);
            let guard = lock.lock();
            add(&guard);
            lock.unbias(&guard);
            add(&guard);
            drop(guard);
            assert!(key.enter().is_none());
        });
        let all = BiasedLock::lock_all([lock].into_iter());
        add(&all[0]);
        drop(all);
        owner.join().unwrap();
        assert_eq!(add(&lock.lock()), 4);
    });
}
