//! What a recorded program held of each device, as a walk over its tape. Cost: one pass.

use super::tape::{Item, Tape, What};

/// Blocks lie in whole slots.
const SLOT: u64 = 512;

/// Walks over the tape: tells of each item of an arena the place of its device in
/// [`Tape::devices`], and how many bytes are live there after it, in whole slots. What a
/// context held is gone with it.
pub(crate) fn walk(tape: &Tape, mut each: impl FnMut(usize, &Item, u64)) {
    let devices = tape.devices();
    let mut of_device = vec![0u64; devices.len()];
    let mut of_arena = vec![0u64; tape.arenas.len()];
    let mut sizes = vec![0u64; tape.blocks as usize];
    for item in &tape.items {
        let number = item.arena as usize;
        let Some(arena) = tape.arenas.get(number) else {
            continue;
        };
        let place = devices.binary_search(&arena.device).unwrap_or(0);
        let (Some(device), Some(arena)) = (of_device.get_mut(place), of_arena.get_mut(number))
        else {
            continue;
        };
        let gone = match item.what {
            What::Alloc { block, size, .. } => {
                let size = size.div_ceil(SLOT).saturating_mul(SLOT);
                if let Some(known) = sizes.get_mut(block as usize) {
                    *known = size;
                }
                *arena = arena.saturating_add(size);
                *device = device.saturating_add(size);
                0
            }
            What::Free { block, .. } => {
                let size = sizes.get(block as usize).copied().unwrap_or(0);
                size.min(*arena)
            }
            What::Ended => *arena,
            _ => 0,
        };
        *arena = arena.saturating_sub(gone);
        *device = device.saturating_sub(gone);
        each(place, item, *device);
    }
}

/// The most bytes that were live at a time on each device.
fn peaks(tape: &Tape) -> Vec<u64> {
    let mut peaks = vec![0; tape.devices().len()];
    walk(tape, |place, _, live| {
        if let Some(peak) = peaks.get_mut(place) {
            *peak = live.max(*peak);
        }
    });
    peaks
}

/// The most that was live on one device at a time.
pub(crate) fn peak_live(tape: &Tape) -> u64 {
    peaks(tape).into_iter().max().unwrap_or(0)
}

/// The sum of the devices' peaks, as what is reserved is one.
pub(crate) fn peaks_of_all(tape: &Tape) -> u64 {
    peaks(tape).into_iter().fold(0, u64::saturating_add)
}
