//! From an address to the arena and the block that it belongs to.
//!
//! Owns a radix tree over the 48 bits of a device address: *regions* of
//! 4 GiB, in them *frames* of 64 KiB, in them one slot for each 512 bytes. One
//! map serves all arenas of a process, so that a pointer is found whatever
//! device is current when it is freed.
//!
//! A frame is *held* by an arena in one of two ways. A frame inside a chunk is
//! held whole: any address in it is ours, live or not, and must never reach
//! the real free. A frame in which a direct allocation starts is shared with
//! whatever else the driver put there: only the exact addresses are ours.
//!
//! Invariant: a slot is non-zero exactly while a live block starts there, and
//! only the arena that holds the frame, under its lock, writes the slots and
//! gives up the frame. So an arena can lose a race for a free frame only, and
//! then it is told.
//!
//! Cost: a look-up is three dependent loads and takes no lock. Host memory: 32
//! bytes for each frame of a touched region (2 MiB for 4 GiB) and 512 bytes
//! for each frame in which blocks start.

use crate::address::{Address, Bytes};
use crate::sync::OnceLock;
use crate::sync::atomic::{AtomicU32, Ordering};

/// Blocks and direct allocations start at multiples of this.
pub(crate) const SLOT: Bytes = Bytes::new(1 << SLOT_SHIFT);

const SLOT_SHIFT: u32 = 9;
#[cfg(not(loom))]
const BITS: Bits = Bits {
    slots: 7,
    frames: 16,
    regions: 16,
};
// The checker explores every interleaving: a tree of a few cells is enough.
#[cfg(loom)]
const BITS: Bits = Bits {
    slots: 1,
    frames: 1,
    regions: 1,
};

struct Bits {
    slots: u32,
    frames: u32,
    regions: u32,
}

const SLOTS: usize = 1 << BITS.slots;
const FRAMES: usize = 1 << BITS.frames;
const REGIONS: usize = 1 << BITS.regions;
const FRAME_SHIFT: u32 = SLOT_SHIFT + BITS.slots;
const REGION_SHIFT: u32 = FRAME_SHIFT + BITS.frames;
const FRAME: Bytes = Bytes::new(1 << FRAME_SHIFT);

/// Names an arena in a process; the doors' registry gives them out, from 0.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct ArenaId(pub u32);

impl ArenaId {
    /// Numbers from here on cannot be written into a frame.
    pub const LIMIT: u32 = HELD_WHOLE - 1;
}

/// What an address is to us.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Owner {
    /// Nothing: the real function must deal with it.
    Foreign,
    /// It lies in memory of this arena, live block or not: it must never
    /// reach the real function.
    Arena(ArenaId),
}

/// The block that starts at an address, in the arena that holds the frame.
/// Zero is no block.
type Slot = AtomicU32;

/// Set in a frame's holder where the frame lies inside a chunk.
const HELD_WHOLE: u32 = 1 << 31;

struct Frame {
    /// 0, or the number of the arena plus one, with `HELD_WHOLE` or without.
    holder: AtomicU32,
    slots: OnceLock<Box<[Slot]>>,
}

impl Frame {
    fn new() -> Frame {
        Frame {
            holder: AtomicU32::new(0),
            slots: OnceLock::new(),
        }
    }

    fn slot(&self, address: Address) -> Option<&Slot> {
        self.slots.get()?.get(slot_index(address))
    }

    fn slot_made(&self, address: Address) -> Option<&Slot> {
        let slots = self
            .slots
            .get_or_init(|| (0..SLOTS).map(|_| Slot::new(0)).collect());
        slots.get(slot_index(address))
    }

    fn is_empty(&self) -> bool {
        // Relaxed: only the holder writes, and the holder asks.
        self.slots
            .get()
            .is_none_or(|slots| slots.iter().all(|slot| slot.load(Ordering::Relaxed) == 0))
    }
}

#[allow(clippy::cast_possible_truncation, reason = "masked to a few bits")]
fn slot_index(address: Address) -> usize {
    (address.get() >> SLOT_SHIFT) as usize & (SLOTS - 1)
}

/// The map of all arenas of a process.
pub struct PageMap {
    regions: Box<[OnceLock<Box<[Frame]>>]>,
}

impl PageMap {
    /// An empty map.
    #[must_use]
    pub fn new() -> PageMap {
        PageMap {
            regions: (0..REGIONS).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Whose the address is. Takes no lock.
    #[must_use]
    pub fn owner(&self, address: Address) -> Owner {
        let Some(frame) = self.frame(address) else {
            return Owner::Foreign;
        };
        // Acquire: pairs with the Release of `hold_*`, so that what the
        // holder wrote before taking the frame is seen.
        let holder = frame.holder.load(Ordering::Acquire);
        let whole = holder & HELD_WHOLE != 0;
        match holder & !HELD_WHOLE {
            0 => Owner::Foreign,
            number if whole || self.block(address).is_some() => Owner::Arena(ArenaId(number - 1)),
            _ => Owner::Foreign,
        }
    }

    /// The live block that starts exactly here, as its arena numbers it.
    pub(crate) fn block(&self, address: Address) -> Option<u32> {
        if !address.is_aligned(SLOT) {
            return None;
        }
        // Acquire: pairs with the Release of `set_block`. The thread that
        // frees got the pointer from the one that allocated, so it sees at
        // least that store.
        let slot = self.frame(address)?.slot(address)?.load(Ordering::Acquire);
        slot.checked_sub(1)
    }

    /// Holds every frame of a chunk whole. Fails, changing nothing, where the
    /// addresses are beyond what the map can hold, a frame is not free, or the
    /// chunk does not fill its frames: then others' addresses would be taken
    /// for ours.
    pub(crate) fn hold_chunk(&self, arena: ArenaId, address: Address, size: Bytes) -> bool {
        if !address.is_aligned(FRAME) || size.round_down(FRAME) != size {
            return false;
        }
        let holder = (arena.0 + 1) | HELD_WHOLE;
        let mut held = Bytes::ZERO;
        for start in frames(address, size) {
            // Release: pairs with the Acquire in `owner`.
            let taken = self.frame_made(start).is_some_and(|frame| {
                frame
                    .holder
                    .compare_exchange(0, holder, Ordering::Release, Ordering::Relaxed)
                    .is_ok()
            });
            if !taken {
                self.release_frames(address, held);
                return false;
            }
            held = held.saturating_add(FRAME);
        }
        true
    }

    /// Gives up the frames of a chunk, whose slots are all empty.
    pub(crate) fn release_chunk(&self, address: Address, size: Bytes) {
        self.release_frames(address, size);
    }

    fn release_frames(&self, address: Address, size: Bytes) {
        for start in frames(address, size) {
            if let Some(frame) = self.frame(start) {
                // Release: whoever takes the frame next sees empty slots.
                frame.holder.store(0, Ordering::Release);
            }
        }
    }

    /// Enters the block of a chunk that this arena holds.
    pub(crate) fn set_block(&self, address: Address, block: u32) {
        if let Some(slot) = self
            .frame(address)
            .and_then(|frame| frame.slot_made(address))
        {
            // Release: pairs with the Acquire in `block`.
            slot.store(block + 1, Ordering::Release);
        }
    }

    /// Takes the block at this address out.
    pub(crate) fn clear_block(&self, address: Address) {
        if let Some(slot) = self.frame(address).and_then(|frame| frame.slot(address)) {
            // Release: pairs with the Acquire in `block`.
            slot.store(0, Ordering::Release);
        }
    }

    /// Enters a direct allocation. Fails, changing nothing, where its start
    /// cannot be told from a neighbour's: not a multiple of 512, or in a frame
    /// that another arena holds.
    pub(crate) fn hold_direct(&self, arena: ArenaId, address: Address, block: u32) -> bool {
        let mine = arena.0 + 1;
        let Some(frame) = self
            .frame_made(address)
            .filter(|_| address.is_aligned(SLOT))
        else {
            return false;
        };
        let Some(slot) = frame.slot_made(address) else {
            return false;
        };
        // AcqRel: Acquire pairs with the Release of a former holder, Release
        // with the Acquire in `owner`.
        let held = frame
            .holder
            .compare_exchange(0, mine, Ordering::AcqRel, Ordering::Acquire);
        if held.is_err_and(|holder| holder != mine) || slot.load(Ordering::Relaxed) != 0 {
            return false;
        }
        slot.store(block + 1, Ordering::Release);
        true
    }

    /// Takes a direct allocation out, and gives up the frame with the last.
    pub(crate) fn release_direct(&self, address: Address) {
        self.clear_block(address);
        if let Some(frame) = self.frame(address).filter(|frame| frame.is_empty()) {
            // Release: whoever takes the frame next sees empty slots.
            frame.holder.store(0, Ordering::Release);
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "48 bits of address")]
    fn region_index(address: Address) -> usize {
        (address.get() >> REGION_SHIFT) as usize
    }

    #[allow(clippy::cast_possible_truncation, reason = "masked to 16 bits")]
    fn frame_index(address: Address) -> usize {
        (address.get() >> FRAME_SHIFT) as usize & (FRAMES - 1)
    }

    fn frame(&self, address: Address) -> Option<&Frame> {
        let region = self.regions.get(Self::region_index(address))?.get()?;
        region.get(Self::frame_index(address))
    }

    fn frame_made(&self, address: Address) -> Option<&Frame> {
        let region = self.regions.get(Self::region_index(address))?;
        let frames = region.get_or_init(|| (0..FRAMES).map(|_| Frame::new()).collect());
        frames.get(Self::frame_index(address))
    }
}

impl Default for PageMap {
    fn default() -> PageMap {
        PageMap::new()
    }
}

/// The starts of the frames that a range lies in.
fn frames(address: Address, size: Bytes) -> impl Iterator<Item = Address> {
    let first = Bytes::new(address.get()).round_down(FRAME).get();
    let end = address.get().saturating_add(size.get());
    (first..end).step_by(SLOTS << SLOT_SHIFT).map(Address::new)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const A: ArenaId = ArenaId(0);
    const B: ArenaId = ArenaId(1);
    const CHUNK: Address = Address::new(0x7f00_0000_0000);

    #[test]
    fn every_address_of_a_chunk_is_ours() {
        let map = PageMap::new();
        assert!(map.hold_chunk(A, CHUNK, Bytes::mib(2)));
        for offset in [0, 1, 511, 4096, (2 << 20) - 1] {
            assert_eq!(
                map.owner(Address::new(CHUNK.get() + offset)),
                Owner::Arena(A)
            );
        }
        assert_eq!(
            map.owner(Address::new(CHUNK.get() + (2 << 20))),
            Owner::Foreign
        );
        assert_eq!(map.owner(Address::new(CHUNK.get() - 1)), Owner::Foreign);
        map.release_chunk(CHUNK, Bytes::mib(2));
        assert_eq!(map.owner(CHUNK), Owner::Foreign);
    }

    #[test]
    fn of_a_direct_allocation_only_the_start_is_ours() {
        let map = PageMap::new();
        assert!(map.hold_direct(A, CHUNK, 7));
        assert_eq!(map.owner(CHUNK), Owner::Arena(A));
        assert_eq!(map.block(CHUNK), Some(7));
        assert_eq!(map.owner(Address::new(CHUNK.get() + 1)), Owner::Foreign);
        assert_eq!(map.owner(Address::new(CHUNK.get() + 512)), Owner::Foreign);
    }

    #[test]
    fn a_frame_belongs_to_one_arena_until_its_last_block_is_gone() {
        let map = PageMap::new();
        let second = Address::new(CHUNK.get() + 512);
        assert!(map.hold_direct(A, CHUNK, 1));
        assert!(!map.hold_direct(B, second, 1), "the frame is A's");
        assert!(!map.hold_chunk(B, CHUNK, Bytes::mib(2)));
        assert!(map.hold_direct(A, second, 2));
        map.release_direct(CHUNK);
        assert!(!map.hold_direct(B, CHUNK, 1));
        map.release_direct(second);
        assert!(map.hold_direct(B, CHUNK, 1));
    }

    #[test]
    fn a_failed_hold_changes_nothing() {
        let map = PageMap::new();
        let later = Address::new(CHUNK.get() + (1 << 20));
        assert!(map.hold_direct(B, later, 1));
        assert!(!map.hold_chunk(A, CHUNK, Bytes::mib(2)));
        assert_eq!(map.owner(CHUNK), Owner::Foreign);
        assert_eq!(map.owner(later), Owner::Arena(B));
    }

    #[test]
    fn a_chunk_that_does_not_fill_its_frames_is_not_held() {
        let map = PageMap::new();
        let odd = Address::new(CHUNK.get() + 512);
        assert!(!map.hold_chunk(A, odd, Bytes::mib(2)));
        assert!(!map.hold_chunk(A, CHUNK, Bytes::new((2 << 20) + 512)));
        assert_eq!(map.owner(odd), Owner::Foreign);
    }

    #[test]
    fn addresses_beyond_the_map_are_foreign() {
        let map = PageMap::new();
        let high = Address::new(1 << 48);
        assert!(!map.hold_direct(A, high, 1));
        assert!(!map.hold_chunk(A, Address::new(u64::MAX - 4096), Bytes::mib(2)));
        assert_eq!(map.owner(Address::new(u64::MAX)), Owner::Foreign);
        assert!(
            !map.hold_direct(A, Address::new(CHUNK.get() + 256), 1),
            "not a slot"
        );
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    const FIRST: Address = Address::new(0);
    const SECOND: Address = Address::new(512);

    /// A map whose cells exist: the checker does not see `OnceLock` order
    /// their creation before their use.
    fn made() -> Arc<PageMap> {
        let map = PageMap::new();
        map.frame_made(FIRST)
            .and_then(|frame| frame.slot_made(FIRST))
            .unwrap();
        Arc::new(map)
    }

    /// Two arenas race for one frame: exactly one gets it, and a reader sees
    /// nothing or the winner, never a mixture.
    #[test]
    fn loom_one_arena_wins_a_frame() {
        loom::model(|| {
            let map = made();
            let racers: Vec<_> = [(ArenaId(0), FIRST), (ArenaId(1), SECOND)]
                .map(|(arena, address)| {
                    let map = Arc::clone(&map);
                    thread::spawn(move || map.hold_direct(arena, address, 3))
                })
                .into_iter()
                .collect();
            let seen = map.owner(FIRST);
            let won: Vec<bool> = racers
                .into_iter()
                .map(|racer| racer.join().unwrap())
                .collect();
            assert_eq!(won.iter().filter(|&&won| won).count(), 1);
            assert!(seen == Owner::Foreign || won[0] && seen == Owner::Arena(ArenaId(0)));
            assert_eq!(map.owner(FIRST) == Owner::Arena(ArenaId(0)), won[0]);
            assert_eq!(map.owner(SECOND) == Owner::Arena(ArenaId(1)), won[1]);
        });
    }

    /// A frame that changes hands carries no block of the former holder.
    #[test]
    fn loom_a_frame_changes_hands_empty() {
        loom::model(|| {
            let map = made();
            assert!(map.hold_direct(ArenaId(0), FIRST, 1));
            let giver = {
                let map = Arc::clone(&map);
                thread::spawn(move || map.release_direct(FIRST))
            };
            let taken = map.hold_direct(ArenaId(1), SECOND, 2);
            giver.join().unwrap();
            if taken {
                assert_eq!(map.owner(FIRST), Owner::Foreign);
                assert_eq!(map.owner(SECOND), Owner::Arena(ArenaId(1)));
            }
        });
    }
}
