//! What threads did with their caches, for the books to hear.
//!
//! Owns one account for each thread of an arena that keeps blocks. Invariant:
//! only its thread writes to an account, and anybody may compare it with what
//! the books have heard of. Cost: a few additions to memory that no other
//! thread writes, at each step in a cache.
//!
//! # Peaks
//!
//! The most that was live is known exactly though nobody is told of a step in a
//! cache. Each thread has [`Headroom`]: how much more it may hold before it has to
//! speak up. A free gives it room, a request
//! takes some, be it served from the cache or by the books. The books
//! see to it that what they know to be live, and what all threads may hold
//! beyond that, never comes to more than the peak; where it would, they call
//! for all room back, hear of everybody, and then know what is live. A thread
//! writes its account, exchanges the entry of the block and then looks whether
//! it was called: so either the books hear of its step or it sees the call.

use std::sync::Arc;

use crate::address::Bytes;
use crate::arena::cache::bins::Kept;
use crate::page_map::Entry;
use crate::stats::size_class;
use crate::sync::Lock;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Size classes of blocks that are kept.
const CLASSES: usize = size_class(Entry::MOST) + 1;

/// So much room a thread gets though it is more than half of what there is.
const LITTLE: Headroom = Headroom {
    blocks: 16,
    bytes: 256 << 10,
    pool_blocks: 16,
    pool_bytes: 256 << 10,
    requested: 4 << 10,
};

/// How much more may be held without a word.
#[derive(Copy, Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Headroom {
    /// Of all pools.
    pub(crate) blocks: i64,
    pub(crate) bytes: i64,
    /// Of the pool of which threads keep blocks.
    pub(crate) pool_blocks: i64,
    pub(crate) pool_bytes: i64,
    /// Bytes that the program asks for, in blocks that are live or kept.
    pub(crate) requested: i64,
}

impl Headroom {
    /// One block more, of any pool.
    pub(super) const BLOCK: Headroom = Headroom {
        blocks: 1,
        bytes: 0,
        pool_blocks: 0,
        pool_bytes: 0,
        requested: 0,
    };

    /// Room for a block of this size, of the pool of which threads keep blocks.
    /// What is asked for in it the books count themselves: it stays counted for
    /// as long as the device may use the block.
    #[inline]
    pub(crate) fn of(size: Bytes) -> Headroom {
        let bytes = size.get().cast_signed();
        Headroom {
            blocks: 1,
            bytes,
            pool_blocks: 1,
            pool_bytes: bytes,
            requested: 0,
        }
    }

    /// Whether more is held than there was room for.
    #[inline]
    pub(super) fn is_short(self) -> bool {
        (self.blocks | self.bytes | self.pool_blocks | self.pool_bytes | self.requested) < 0
    }

    fn with(self, other: Headroom, of: impl Fn(i64, i64) -> i64) -> Headroom {
        Headroom {
            blocks: of(self.blocks, other.blocks),
            bytes: of(self.bytes, other.bytes),
            pool_blocks: of(self.pool_blocks, other.pool_blocks),
            pool_bytes: of(self.pool_bytes, other.pool_bytes),
            requested: of(self.requested, other.requested),
        }
    }

    #[inline]
    pub(crate) fn plus(self, other: Headroom) -> Headroom {
        self.with(other, i64::wrapping_add)
    }

    #[inline]
    pub(crate) fn minus(self, other: Headroom) -> Headroom {
        self.with(other, i64::wrapping_sub)
    }

    /// What a thread gets where there is so much: half, or a little.
    pub(crate) fn share(self) -> Headroom {
        let half = self.with(LITTLE, |all, little| (all / 2).max(little));
        half.with(self, |half, all| half.min(all).max(0))
    }
}

/// A number that only its thread writes.
#[derive(Default)]
struct Sum(AtomicU64);

impl Sum {
    #[inline]
    fn add(&self, by: u64) {
        // Relaxed, and no exchange: nobody else writes it, and nothing is
        // ordered by it.
        self.0.store(self.get().wrapping_add(by), Ordering::Relaxed);
    }

    #[inline]
    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Of one size class.
#[derive(Default)]
struct Class {
    allocations: Sum,
    frees: Sum,
    allocated: Sum,
    freed: Sum,
    rest: Sum,
    shrunk: Sum,
}

impl Class {
    fn read(&self, class: usize) -> Passed {
        Passed {
            class,
            allocations: self.allocations.get(),
            frees: self.frees.get(),
            allocated: self.allocated.get(),
            freed: self.freed.get(),
            rest: self.rest.get(),
            shrunk: self.shrunk.get(),
        }
    }
}

/// What a thread left that ended.
pub(crate) struct Left {
    pub(crate) kept: Vec<Kept>,
    /// The room that it had, and the calls for room that it had answered.
    pub(crate) room: Headroom,
    pub(crate) rooms: u32,
}

/// What a thread did.
#[repr(align(128))]
pub(crate) struct Account {
    /// How many steps it made; what follows changes only with this.
    steps: Sum,
    classes: [Class; CLASSES],
    left: Lock<Option<Left>>,
}

impl Account {
    pub(super) fn new() -> Account {
        Account {
            steps: Sum::default(),
            classes: Default::default(),
            left: Lock::new(None),
        }
    }

    /// A block of `size` bytes is handed out, `rest` of which were not asked
    /// for, and `rest_before` the time before.
    #[inline]
    pub(super) fn allocated(&self, size: Bytes, rest: u64, rest_before: u64) {
        if let Some(class) = self.classes.get(size_class(size)) {
            self.steps.add(1);
            class.allocations.add(1);
            class.allocated.add(size.get());
            if rest | rest_before != 0 {
                class.rest.add(rest);
                class.shrunk.add(rest.wrapping_sub(rest_before));
            }
        }
    }

    /// It was not, after all.
    #[cold]
    pub(super) fn not_allocated(&self, size: Bytes, rest: u64, rest_before: u64) {
        if let Some(class) = self.classes.get(size_class(size)) {
            self.steps.add(1);
            class.allocations.add(1_u64.wrapping_neg());
            class.allocated.add(size.get().wrapping_neg());
            class.rest.add(rest.wrapping_neg());
            class.shrunk.add(rest_before.wrapping_sub(rest));
        }
    }

    /// A block was freed.
    #[inline]
    pub(super) fn freed(&self, size: Bytes) {
        if let Some(class) = self.classes.get(size_class(size)) {
            self.steps.add(1);
            class.frees.add(1);
            class.freed.add(size.get());
        }
    }

    /// The thread ends, and leaves this.
    pub(super) fn leave(&self, left: Left) {
        *self.left.lock() = Some(left);
    }
}

/// What a thread did in a size class, or since the books last heard of it.
/// Differences wrap.
#[derive(Copy, Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Passed {
    pub(crate) class: usize,
    pub(crate) allocations: u64,
    pub(crate) frees: u64,
    /// Bytes handed out, and freed.
    pub(crate) allocated: u64,
    pub(crate) freed: u64,
    /// Bytes among those handed out that were not asked for, and how many more
    /// than the time before.
    pub(crate) rest: u64,
    pub(crate) shrunk: u64,
}

impl Passed {
    fn since(self, before: Passed) -> Passed {
        Passed {
            class: self.class,
            allocations: self.allocations.wrapping_sub(before.allocations),
            frees: self.frees.wrapping_sub(before.frees),
            allocated: self.allocated.wrapping_sub(before.allocated),
            freed: self.freed.wrapping_sub(before.freed),
            rest: self.rest.wrapping_sub(before.rest),
            shrunk: self.shrunk.wrapping_sub(before.shrunk),
        }
    }

    /// By how much more is held.
    fn rise(self) -> Headroom {
        let blocks = self.allocations.wrapping_sub(self.frees).cast_signed();
        let bytes = self.allocated.wrapping_sub(self.freed).cast_signed();
        Headroom {
            blocks,
            bytes,
            pool_blocks: blocks,
            pool_bytes: bytes,
            requested: self.shrunk.wrapping_neg().cast_signed(),
        }
    }
}

/// A thread that has room of its own for what it asks the books for, or gets
/// some by what they take back.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Payer {
    /// The calls for room that it had answered.
    pub(crate) rooms: u32,
    pub(super) part: Part,
}

/// For what a thread pays, or is paid, of what a block counts for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// All.
    Full,
    /// One block more of the pool of which threads keep blocks.
    OfPool,
    /// One block more.
    Block,
}

impl Payer {
    /// What changes hands for a block of this size.
    #[inline]
    pub(crate) fn sum(self, size: Bytes) -> Headroom {
        match self.part {
            Part::Full => Headroom::of(size),
            Part::OfPool => Headroom::of(Bytes::ZERO),
            Part::Block => Headroom::BLOCK,
        }
    }
}

struct Known {
    account: Arc<Account>,
    /// What the books have heard of.
    steps: u64,
    heard: [Passed; CLASSES],
}

/// The accounts of all threads of an arena; under the lock of the books.
#[derive(Default)]
pub(crate) struct Accounts {
    known: Vec<Option<Known>>,
    open: usize,
}

impl Accounts {
    /// Enters an account, under a number.
    pub(crate) fn open(&mut self, account: Arc<Account>) -> usize {
        let known = Some(Known {
            account,
            steps: 0,
            heard: Default::default(),
        });
        self.open += 1;
        let mut places = self.known.iter_mut().enumerate();
        match places.find(|(_, place)| place.is_none()) {
            Some((number, place)) => {
                *place = known;
                number
            }
            None => {
                self.known.push(known);
                self.known.len() - 1
            }
        }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.open
    }

    /// Whether there is none but this one.
    pub(crate) fn are_all_of(&self, number: Option<usize>) -> bool {
        let own = number.is_some_and(|number| matches!(self.known.get(number), Some(Some(_))));
        self.open == usize::from(own)
    }

    /// Numbers that may be those of accounts.
    pub(crate) fn numbers(&self) -> std::ops::Range<usize> {
        0..self.known.len()
    }

    /// Tells what an account has that was not heard of, class by class, and
    /// returns by how much what its thread may hold beyond that changes.
    pub(crate) fn hear(&mut self, number: usize, mut tell: impl FnMut(Passed)) -> Headroom {
        let mut change = Headroom::default();
        let Some(Some(known)) = self.known.get_mut(number) else {
            return change;
        };
        let steps = known.account.steps.get();
        if steps == known.steps {
            return change;
        }
        known.steps = steps;
        let classes = known.account.classes.iter().zip(&mut known.heard);
        for (number, (class, heard)) in classes.enumerate() {
            // Nothing else changes without these two.
            if class.allocations.get() != heard.allocations || class.frees.get() != heard.frees {
                let now = class.read(number);
                let passed = now.since(*heard);
                change = change.minus(passed.rise());
                tell(passed);
                *heard = now;
            }
        }
        change
    }

    /// What a thread that has ended kept; its account is to be closed.
    pub(crate) fn left(&self, number: usize) -> Option<Left> {
        let known = self.known.get(number)?.as_ref()?;
        known.account.left.lock().take()
    }

    /// Forgets an account of which everything was heard.
    pub(crate) fn close(&mut self, number: usize) {
        if let Some(known) = self.known.get_mut(number)
            && known.take().is_some()
        {
            self.open -= 1;
        }
    }

    /// Forgets all of them.
    pub(crate) fn clear(&mut self) {
        self.known.clear();
        self.open = 0;
    }
}
