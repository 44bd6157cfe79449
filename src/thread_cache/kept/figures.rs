//! What is counted of a cache: what it holds, by how much the arena's figures may rise
//! without it, and what happened in it.

use crate::address::Bytes;
use crate::library::LibraryBytes;
use crate::page_map::SLOT;
use crate::thread_cache::activity::Activity;
use crate::thread_cache::common::CommonRoom;
use crate::thread_cache::kept::Kept;
use crate::thread_cache::room::{Headroom, PackedRoom};
use crate::thread_cache::sizes::{Size, size_of};

impl Kept {
    /// Bytes kept.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = self.room.slots().wrapping_add(self.beside_room) * SLOT.get();
        debug_assert_eq!(bytes, self.sizes.bytes());
        bytes
    }

    /// Blocks kept.
    pub(crate) fn blocks(&self) -> u64 {
        let blocks = self.sizes.used().map(|(_, size)| size.blocks.len() as u64);
        blocks.sum()
    }

    /// How many were handed out again since this was asked last.
    pub(crate) fn take_served(&mut self) -> u64 {
        let served = self.sizes.used().map(|(_, size)| size.allocations()).sum();
        served - std::mem::replace(&mut self.served, served)
    }

    /// Whether its thread has freed or taken any since this was asked last.
    pub(crate) fn take_used(&mut self) -> bool {
        let used_of = |size: &Size| size.frees() + size.allocations();
        let used = self.sizes.used().map(|(_, size)| used_of(size)).sum();
        std::mem::replace(&mut self.used, used) != used
    }

    /// Gives more room.
    pub(crate) fn grant(&mut self, room: Headroom) {
        let slots = room.bytes / SLOT.get();
        self.room = self.room.with(PackedRoom::of(room.blocks, slots));
        self.changed_room(slots);
        self.asked += room.asked;
    }

    /// Takes so much room away, in each figure of which there is that much: what it
    /// took.
    pub(crate) fn give_room(&mut self, mut room: Headroom) -> Headroom {
        let has = self.room();
        for (wanted, has) in [
            (&mut room.blocks, has.blocks),
            (&mut room.bytes, has.bytes),
            (&mut room.asked, has.asked),
        ] {
            if *wanted > has {
                *wanted = 0;
            }
        }
        let taken = PackedRoom::of(room.blocks, room.bytes / SLOT.get());
        self.room = self.room.without(taken);
        self.changed_room(taken.slots().wrapping_neg());
        self.asked -= room.asked;
        room
    }

    /// Takes a part of the common room; whether there was any.
    pub(crate) fn take_common(&mut self, common: &CommonRoom) -> bool {
        let room = common.take_part();
        self.grant(room);
        !room.is_none()
    }

    /// Leaves room to other caches, where there is far more here than is common.
    pub(crate) fn leave_room(&mut self, common: &CommonRoom) {
        let surplus = common.surplus(self.room());
        if !surplus.is_none() {
            common.add(self.give_room(surplus));
        }
    }

    /// There are so many slots of room more (or wrapped, fewer), other than by blocks that
    /// came or went.
    fn changed_room(&mut self, slots: u64) {
        self.beside_room = self.beside_room.wrapping_sub(slots);
        self.alone.changed_room(slots);
    }

    /// Counts that there are so many blocks of a size more, or fewer, but for those that
    /// `room` counts.
    pub(super) fn count(&mut self, number: usize, more: i64) {
        let slots = (number as u64 + 1).wrapping_mul(more.cast_unsigned());
        self.beside_room = self.beside_room.wrapping_add(slots);
    }

    /// Notes what the program holds, for which the arena counts `live` bytes; whether that
    /// is less than what was noted last by three quarters of the batch that was closed last.
    pub(crate) fn note_held(&mut self, live: Bytes) -> bool {
        let held = live.get().saturating_sub(self.room().bytes);
        let fell = std::mem::replace(&mut self.held, held).saturating_sub(held);
        self.closed > 0 && fell / 3 >= self.closed * SLOT.get() / 4
    }

    pub(crate) fn room(&self) -> Headroom {
        Headroom {
            blocks: self.room.blocks(),
            bytes: self.room.slots() * SLOT.get(),
            asked: self.asked,
        }
    }

    /// Of each size, how many blocks fewer (or wrapped, more) the program has than
    /// when that was asked for last.
    pub(crate) fn fewer(&self) -> impl Iterator<Item = (Bytes, u64)> + '_ {
        self.sizes.used().filter_map(|(number, size)| {
            let fewer = size.fewer_than_noted();
            (fewer != 0).then(|| (Bytes::new(size_of(number)), fewer))
        })
    }

    /// Tells `each` what `fewer` says, and counts from zero from then on.
    pub(crate) fn take_fewer(&mut self, mut each: impl FnMut(Bytes, u64)) {
        for (size, fewer) in self.fewer() {
            each(size, fewer);
        }
        self.sizes.change_used(Size::note);
    }

    /// How much more (or wrapped, less) each library has than when this was called
    /// last.
    pub(crate) fn take_libraries(&mut self) -> LibraryBytes {
        std::mem::take(&mut self.libraries).bytes(SLOT)
    }

    /// What it was when nothing was noted since.
    pub(crate) fn libraries(&self) -> LibraryBytes {
        self.libraries.bytes(SLOT)
    }

    /// Takes all room away.
    pub(crate) fn take_room(&mut self) -> Headroom {
        self.give_room(self.room())
    }

    pub(crate) fn activity(&self) -> Activity {
        let mut activity = Activity::default();
        activity.epochs = self.alone.ended;
        for (number, size) in self.sizes.used() {
            activity.add(size_of(number), size);
        }
        activity
    }
}
