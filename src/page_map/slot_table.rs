//! The slots of a subpage.
//!
//! They are never freed, so that a thread may remember where the block is told of
//! that it keeps: a map that goes leaves its tables to the next ones. Owns the
//! tables that are left. Cost: 1 KiB a table.

use crate::page_map::{SLOTS, Slot, SlotWord};
#[cfg(not(loom))]
use crate::sync::Lock;
#[cfg(not(loom))]
use crate::sync::atomic::Ordering;

/// Tables of maps that are gone; all slots are empty.
#[cfg(not(loom))]
static LEFT: Lock<Vec<&'static [Slot; SLOTS]>> = Lock::new(Vec::new());

/// See the module.
pub(super) struct SlotTable(&'static [Slot; SLOTS]);

impl SlotTable {
    pub(super) fn new() -> SlotTable {
        #[cfg(not(loom))]
        if let Some(left) = LEFT.lock().pop() {
            return SlotTable(left);
        }
        let empty = |_| Slot::new(SlotWord::NONE.word());
        SlotTable(Box::leak(Box::new(std::array::from_fn(empty))))
    }

    #[inline]
    pub(super) fn all(&self) -> &'static [Slot; SLOTS] {
        self.0
    }
}

#[cfg(not(loom))]
impl Drop for SlotTable {
    fn drop(&mut self) {
        // Relaxed: the lock passes them on.
        let clear = |slot: &Slot| slot.store(SlotWord::NONE.word(), Ordering::Relaxed);
        self.0.iter().for_each(clear);
        LEFT.lock().push(self.0);
    }
}
