//! The workload of all questions: numbers, sizes, and blocks.
//! `benches/programs/workload.h` draws the same.

use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::{Arena, Driver};

/// The smallest request.
const SMALLEST: f64 = 512.0;

/// Doublings from `SMALLEST` to the largest size, 64 MiB.
pub const ALL_SIZES: f64 = 17.0;

/// Doublings to 64 KiB, for many blocks.
pub const SMALL_SIZES: f64 = 7.0;

/// The number of draws, which are made beforehand and used in turn: drawing is
/// not measured.
const DRAWS: usize = 1 << 16;

/// A seeded generator (splitmix64).
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in [0, 1).
    #[allow(clippy::cast_precision_loss, reason = "53 bits fit")]
    pub fn unit(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.number() % bound as u64).unwrap_or(0)
    }
}

/// A slot and the size of its new block.
#[derive(Copy, Clone)]
pub struct Draw {
    /// Which slot.
    pub slot: usize,
    /// How large the new block is.
    pub size: Bytes,
}

/// Draws of slots, and of sizes whose logarithm is uniform. Slot and size are kept in 32
/// bits each: what is measured needs the processor's caches.
pub struct Draws {
    draws: Vec<(u32, u32)>,
    next: usize,
}

impl Draws {
    /// Draws of `slots` slots, and of sizes from 512 bytes over a number of
    /// doublings.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a number of blocks, and a size of some MiB"
    )]
    pub fn new(seed: u64, slots: usize, doublings: f64) -> Draws {
        let mut random = Random(seed);
        let mut draw = || {
            let slot = random.below(slots) as u32;
            (slot, (SMALLEST * (random.unit() * doublings).exp2()) as u32)
        };
        Draws {
            draws: (0..DRAWS).map(|_| draw()).collect(),
            next: 0,
        }
    }

    /// Begins again with the first draw.
    pub fn rewind(&mut self) {
        self.next = 0;
    }

    /// The next draw.
    pub fn draw(&mut self) -> Draw {
        self.next = (self.next + 1) % DRAWS;
        let (slot, size) = self.draws[self.next];
        Draw {
            slot: slot as usize,
            size: Bytes::new(size.into()),
        }
    }
}

/// A fixed number of blocks, which are replaced one at a time.
pub struct Live<'a, D: Driver> {
    arena: &'a Arena<D>,
    blocks: Vec<Address>,
}

impl<'a, D: Driver> Live<'a, D> {
    /// Allocates `count` blocks of drawn sizes.
    pub fn new(arena: &'a Arena<D>, count: usize, draws: &mut Draws) -> Live<'a, D> {
        let blocks = (0..count).map(|_| get(arena, draws.draw().size)).collect();
        Live { arena, blocks }
    }

    /// Frees the block in a slot and allocates another.
    pub fn replace(&mut self, draw: Draw) {
        put(self.arena, self.blocks[draw.slot]);
        self.blocks[draw.slot] = get(self.arena, draw.size);
    }
}

impl<D: Driver> Drop for Live<'_, D> {
    fn drop(&mut self) {
        for &block in &self.blocks {
            put(self.arena, block);
        }
    }
}

/// Allocates a block; fails if there is none.
pub fn get<D: Driver>(arena: &Arena<D>, size: Bytes) -> Address {
    arena
        .allocate(size)
        .unwrap_or_else(|error| fail("an allocation", &error))
}

/// Frees a block.
pub fn put<D: Driver>(arena: &Arena<D>, block: Address) {
    arena
        .free(block)
        .unwrap_or_else(|error| fail("a free", &error));
}

/// What was asked for is not told: to remember it would be measured too.
#[cold]
#[inline(never)]
fn fail(what: &str, error: &dyn std::fmt::Debug) -> ! {
    panic!("{what} failed: {error:?}")
}
