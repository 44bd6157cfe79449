//! A lock that is biased towards one thread, its owner.
//!
//! An exchange costs a processor as much as some twenty plain instructions, and a lock that
//! nobody else wants needs one each time. The owner of a biased lock says instead, by a
//! plain store, that it has entered, looks whether the lock is still biased towards it,
//! and is inside. Whoever else wants the lock takes it by an exchange, ends the bias,
//! has every thread of the process pass a memory barrier (`membarrier(2)`), and waits until
//! the owner has left. So one of the two sees what the other did: the barrier that
//! the owner would pay at each entry is paid by who seldom comes. This is Dekker's
//! algorithm with an asymmetric barrier. Without the bias the owner takes the lock by an
//! exchange, as everybody does, until it has done so often enough for the bias to be worth
//! its end.
//!
//! A thread that was the owner may still come, however late, and say that it has entered
//! before it sees that it is the owner no more. So a lock is biased towards one thread
//! alone, its home, as long as that thread lives.
//!
//! Owns the value. Invariants: of the owner that is inside by the bias and of those who hold
//! the lock by an exchange there is one at a time; the bias is changed by who holds the
//! lock by an exchange, and given by the home thread. Cost: three loads and two stores for
//! the owner; for others an exchange, and where the lock was biased a system call, which
//! interrupts each processor that runs a thread of the process.

mod barrier;
#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(loom)]
use loom::sync::atomic;
#[cfg(not(loom))]
use std::sync::atomic;

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
#[cfg(not(loom))]
pub use barrier::prepare;
use spin::RelaxStrategy;

/// After so many entries of the owner by an exchange the bias comes back when it was ended
/// first, each time after twice as many, and after this many at the most: what it saves is
/// to be more than what its end costs.
const ENTRIES: u32 = 256;
const MOST_ENTRIES: u32 = 1 << 16;

/// See the [module](self). Who waits for it does so by `R`. In this order: what an entry
/// needs is beside the beginning of the value.
#[repr(C)]
pub struct BiasedLock<T, R> {
    /// The number of the key that enters without an exchange; zero: none does.
    bias: AtomicU64,
    /// Its thread has entered. Stored by the home thread alone.
    is_entered: AtomicBool,
    is_locked: AtomicBool,
    /// How many entries the owner still makes by an exchange before it has the bias again.
    /// Only who holds the lock by an exchange changes this and the fields after `value`, but
    /// for `is_inviting`.
    entries_left: AtomicU32,
    value: UnsafeCell<T>,
    is_inviting: AtomicBool,
    entries: AtomicU32,
    /// The thread that the bias may be for; zero: it may be for any.
    home: AtomicUsize,
    relax: PhantomData<fn() -> R>,
}

// SAFETY: one thread at a time has a reference to the value.
unsafe impl<T: Send, R> Sync for BiasedLock<T, R> {}

/// The lock, entered by its bias, until this is dropped.
pub struct Entered<'a, T, R> {
    lock: &'a BiasedLock<T, R>,
    stays: PhantomData<*const ()>,
}

/// The lock, held until this is dropped, on one thread.
pub struct BiasedGuard<'a, T> {
    /// Which of the two words says that it is held.
    word: &'a AtomicBool,
    value: NonNull<T>,
    held: PhantomData<&'a mut T>,
}

/// What a thread enters a lock with that may be biased towards it. No other thread can have
/// it, and no other key has its number.
pub struct Key<T: 'static, R: 'static> {
    lock: &'static BiasedLock<T, R>,
    number: u64,
    stays: PhantomData<*const ()>,
}

impl<T, R> Copy for Key<T, R> {}

impl<T, R> Clone for Key<T, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, R: RelaxStrategy> Key<T, R> {
    /// A key of the calling thread, with a tag of the caller's.
    pub fn new(lock: &'static BiasedLock<T, R>, tag: u8) -> Key<T, R> {
        Key {
            lock,
            number: next_number() << u8::BITS | u64::from(tag),
            stays: PhantomData,
        }
    }

    /// What no other key has.
    pub fn number(self) -> u64 {
        self.number
    }

    /// The tag of the key with this number.
    pub fn tag_of(number: u64) -> u8 {
        number.to_le_bytes()[0]
    }

    /// The lock that it is of.
    pub fn lock(self) -> &'static BiasedLock<T, R> {
        self.lock
    }

    /// Enters, if the lock is biased towards this key. Not where its thread has entered
    /// already, as in a signal's handler.
    #[inline(always)]
    pub fn enter(self) -> Option<Entered<'static, T, R>> {
        self.lock.enter_as(self.number)
    }

    /// Goes on as one that has entered where the lock is biased from now on; `guard` is of
    /// this lock, held by an exchange.
    pub fn stay(self, guard: BiasedGuard<'static, T>) -> BiasedGuard<'static, T> {
        let lock = self.lock;
        if !std::ptr::eq(guard.word, &raw const lock.is_locked) || !lock.is_bias_due() {
            return guard;
        }
        // Whoever takes the lock next finds both.
        lock.is_entered.store(true, Ordering::Relaxed);
        lock.bias.store(self.number, Ordering::Relaxed);
        drop(guard);
        lock.guard(&lock.is_entered)
    }
}

impl<T, R: RelaxStrategy> BiasedLock<T, R> {
    /// A lock that is biased towards nobody.
    pub fn new(value: T) -> BiasedLock<T, R> {
        BiasedLock {
            bias: AtomicU64::new(0),
            is_entered: AtomicBool::new(false),
            is_locked: AtomicBool::new(false),
            entries_left: AtomicU32::new(0),
            is_inviting: AtomicBool::new(false),
            entries: AtomicU32::new(ENTRIES),
            home: AtomicUsize::new(0),
            relax: PhantomData,
            value: UnsafeCell::new(value),
        }
    }

    /// Enters, if the lock is biased towards the key with this number, which is one of the
    /// calling thread's.
    #[inline(always)]
    fn enter_as(&self, number: u64) -> Option<Entered<'_, T, R>> {
        // Relaxed, all: only this thread gives the bias and enters by it. So it was inside
        // last, or held the lock when it gave the bias.
        if self.bias.load(Ordering::Relaxed) != number || self.is_entered.load(Ordering::Relaxed) {
            return None;
        }
        self.is_entered.store(true, Ordering::Relaxed);
        barrier::light();
        if self.bias.load(Ordering::Relaxed) != number {
            self.is_entered.store(false, Ordering::Relaxed);
            return None;
        }
        Some(Entered {
            lock: self,
            stays: PhantomData,
        })
    }

    /// Enters, if the lock is biased towards any key of the calling thread.
    fn enter_here(&self) -> Option<BiasedGuard<'_, T>> {
        let number = self.bias.load(Ordering::Relaxed);
        // Whose bias that is, is the home thread; and if it is this one, it stays so.
        let is_here = number != 0 && self.home.load(Ordering::Relaxed) == here();
        let entered = is_here.then(|| self.enter_as(number)).flatten();
        entered.map(BiasedGuard::from)
    }

    /// Takes the lock; waits for who has it.
    pub fn lock(&self) -> BiasedGuard<'_, T> {
        if let Some(guard) = self.enter_here() {
            return guard;
        }
        self.lock_word();
        if self.end_bias() {
            barrier::heavy::<R>();
        }
        self.wait_for_owner();
        self.guard(&self.is_locked)
    }

    /// Takes the lock, if nobody has it.
    pub fn try_lock(&self) -> Option<BiasedGuard<'_, T>> {
        if let Some(guard) = self.enter_here() {
            return Some(guard);
        }
        if !self.try_lock_word() {
            return None;
        }
        if self.end_bias() {
            barrier::heavy::<R>();
        }
        if self.is_owner_inside() {
            self.is_locked.store(false, Ordering::Release);
            return None;
        }
        Some(self.guard(&self.is_locked))
    }

    /// Takes many locks, each of which is there once, with one barrier for all; waits for
    /// who has them.
    pub fn lock_all<'a>(locks: impl Iterator<Item = &'a Self>) -> Vec<BiasedGuard<'a, T>>
    where
        R: 'a,
    {
        let mut was_biased = false;
        let take = |lock: &'a Self| {
            let guard = lock.enter_here();
            if guard.is_none() {
                lock.lock_word();
                was_biased |= lock.end_bias();
            }
            (lock, guard)
        };
        let taken: Vec<_> = locks.map(take).collect();
        if was_biased {
            barrier::heavy::<R>();
        }
        let finish = |(lock, guard): (&'a Self, Option<_>)| {
            guard.unwrap_or_else(|| {
                lock.wait_for_owner();
                lock.guard(&lock.is_locked)
            })
        };
        taken.into_iter().map(finish).collect()
    }

    /// The lock, which is held, is biased towards nobody from now on.
    pub fn unbias(&self, guard: &BiasedGuard<'_, T>) {
        // Held by an exchange, it is not.
        if std::ptr::eq(guard.word, &raw const self.is_entered) {
            // Release: pairs with the Acquire in `end_bias`.
            self.bias.store(0, Ordering::Release);
        }
    }

    /// Tells others, who need not take the lock to see it, whether it is worth taking.
    pub fn invite(&self, is_inviting: bool) {
        self.is_inviting.store(is_inviting, Ordering::Relaxed);
    }

    /// Whether that was told last. A guess: it may be so no more.
    pub fn is_inviting(&self) -> bool {
        self.is_inviting.load(Ordering::Relaxed)
    }

    /// Whether another thread has the bias, as far as that can be seen, so that to take the
    /// lock takes it away.
    pub fn is_biased_elsewhere(&self) -> bool {
        self.bias.load(Ordering::Relaxed) != 0 && self.home.load(Ordering::Relaxed) != here()
    }

    /// Whether it may be biased towards the calling thread.
    pub fn may_be_biased_here(&self) -> bool {
        // Relaxed: another thread may make it its home at the same time; then it is not
        // biased towards this one.
        let home = self.home.load(Ordering::Relaxed);
        home == 0 || home == here()
    }

    /// Whether it is to be biased towards the calling thread, which holds it by an exchange,
    /// with this entry.
    fn is_bias_due(&self) -> bool {
        let left = self.entries_left.load(Ordering::Relaxed);
        if left > 0 {
            self.entries_left.store(left - 1, Ordering::Relaxed);
            return false;
        }
        let is_due = self.may_be_biased_here() && barrier::is_there();
        if is_due {
            self.home.store(here(), Ordering::Relaxed);
        } else {
            self.entries_left.store(MOST_ENTRIES, Ordering::Relaxed);
        }
        is_due
    }

    /// The lock is biased towards nobody from now on, as seen after a barrier; whether it
    /// was.
    fn end_bias(&self) -> bool {
        // Acquire: pairs with the Release in `unbias`, whose thread is still inside.
        if self.bias.load(Ordering::Acquire) == 0 {
            return false;
        }
        self.bias.store(0, Ordering::Relaxed);
        let entries = self.entries.load(Ordering::Relaxed);
        self.entries_left.store(entries, Ordering::Relaxed);
        let more = entries.saturating_mul(2).min(MOST_ENTRIES);
        self.entries.store(more, Ordering::Relaxed);
        true
    }

    fn try_lock_word(&self) -> bool {
        // Acquire: pairs with the Release where a guard is dropped.
        let exchange =
            self.is_locked
                .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        exchange.is_ok()
    }

    fn lock_word(&self) {
        while !self.try_lock_word() {
            R::relax();
        }
    }

    fn is_owner_inside(&self) -> bool {
        // Acquire: pairs with the Release where a guard is dropped.
        self.is_entered.load(Ordering::Acquire)
    }

    fn wait_for_owner(&self) {
        while self.is_owner_inside() {
            R::relax();
        }
    }

    #[inline(always)]
    fn guard<'a>(&'a self, word: &'a AtomicBool) -> BiasedGuard<'a, T> {
        BiasedGuard {
            word,
            value: NonNull::from(&self.value).cast(),
            held: PhantomData,
        }
    }
}

impl<'a, T, R: RelaxStrategy> From<Entered<'a, T, R>> for BiasedGuard<'a, T> {
    fn from(entered: Entered<'a, T, R>) -> Self {
        // It is left when the guard is dropped.
        let lock = ManuallyDrop::new(entered).lock;
        lock.guard(&lock.is_entered)
    }
}

impl<T, R> Deref for Entered<'_, T, R> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: by the module's invariant nobody else has a reference while this lives.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T, R> DerefMut for Entered<'_, T, R> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T, R> Drop for Entered<'_, T, R> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: pairs with the Acquire of who takes the lock next.
        self.lock.is_entered.store(false, Ordering::Release);
    }
}

impl<T> Deref for BiasedGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: by the module's invariant nobody else has a reference while this lives.
        unsafe { self.value.as_ref() }
    }
}

impl<T> DerefMut for BiasedGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { self.value.as_mut() }
    }
}

impl<T> Drop for BiasedGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: pairs with the Acquire of who takes the lock next.
        self.word.store(false, Ordering::Release);
    }
}

/// The calling thread. Another thread that is told by the same number comes after this one
/// has ended.
#[cfg(not(loom))]
fn here() -> usize {
    thread_local! {
        static HERE: u8 = const { 0 };
    }
    HERE.with(|own| std::ptr::from_ref(own).addr())
}

/// The checker's threads have no addresses of their own.
#[cfg(loom)]
fn here() -> usize {
    loom::thread_local! {
        static HERE: u64 = next_number();
    }
    HERE.with(|own| usize::try_from(*own).unwrap_or(usize::MAX))
}

fn next_number() -> u64 {
    // Not a part of what is checked: the numbers only differ.
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}
