//! What of ranges is in limbo. The driver's own free, by which chunks go back from
//! there, waits for whatever it has to; an unmapping does not. So after a wait such as
//! the driver's free has, what lies in ranges is as free as its program's free would
//! have made it, and stays where it is.

use crate::address::Bytes;
use crate::heap::Heap;
use crate::heap::block::{BlockId, State};

use super::whole_units;

impl Heap {
    /// Whether a block in limbo lies in a range, and the driver's free in the arena's
    /// own context would have waited for all that may still use it.
    pub(crate) fn is_settled_by_free(&self, id: BlockId) -> bool {
        let block = self.blocks.get(id);
        block.state == State::Limbo && !block.elsewhere && self.is_mapped(block.chunk)
    }

    /// Bytes of the whole units of such a block.
    pub(crate) fn units_held_back(&self, id: BlockId) -> Bytes {
        let block = self.blocks.get(id);
        if self.ranges.is_paused || !self.is_settled_by_free(id) || !self.is_range(block.chunk) {
            return Bytes::ZERO;
        }
        whole_units(block.address, block.size, self.ranges.unit).size
    }
}
