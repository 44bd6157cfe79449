//! What of ranges is in limbo, and will be idle.

use crate::address::Bytes;
use crate::heap::Heap;
use crate::heap::block::{BlockId, State};

use super::whole_units;

impl Heap {
    /// Bytes of the whole units of a block in limbo that lies in a range, unless it was
    /// freed from another context.
    pub(crate) fn units_of_limbo(&self, id: BlockId) -> Bytes {
        let block = self.blocks.get(id);
        let waits = block.state == State::Limbo && !block.elsewhere;
        if self.ranges.is_paused || !waits || !self.is_range(block.chunk) {
            return Bytes::ZERO;
        }
        whole_units(block.address, block.size, self.ranges.unit).size
    }
}
