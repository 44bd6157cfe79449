//! The addresses that arenas have reserved, whatever is mapped there.
//!
//! The driver says of mapped memory that it belongs to no context: it outlives
//! them. So who asks the driver whose an address is looks here first.
//!
//! Owns the list; its lock is taken alone and spans no driver call. Cost: a search
//! in an ordered map, on slow paths only.

use std::collections::BTreeMap;

use spin::mutex::SpinMutex;
use vramalloc_core::patience::Brief;

use crate::types::CUdeviceptr;

/// The size of each reservation, by its start.
static ALL: SpinMutex<BTreeMap<CUdeviceptr, u64>, Brief> = SpinMutex::new(BTreeMap::new());

pub(crate) fn add(start: CUdeviceptr, size: u64) {
    ALL.lock().insert(start, size);
}

pub(crate) fn remove(start: CUdeviceptr) {
    ALL.lock().remove(&start);
}

/// Whether an address lies in one of them.
pub(crate) fn holds(address: CUdeviceptr) -> bool {
    touches(address, 1)
}

/// Whether some of these addresses do.
pub(crate) fn touches(address: CUdeviceptr, size: u64) -> bool {
    let all = ALL.lock();
    let below = all.range(..address.saturating_add(size)).next_back();
    below.is_some_and(|(start, size)| address < start.saturating_add(*size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_holds_its_addresses_until_it_is_removed() {
        const START: CUdeviceptr = 0x77_0000_0000;
        add(START, 4096);
        assert!(!holds(START - 1) && holds(START) && holds(START + 4095));
        assert!(!holds(START + 4096));
        assert!(touches(START - 1, 2) && touches(START - 1, 8192) && touches(START + 4095, 9));
        assert!(!touches(START - 9, 9) && !touches(START + 4096, u64::MAX));
        remove(START);
        assert!(!holds(START));
    }
}
