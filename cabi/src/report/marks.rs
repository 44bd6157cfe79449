//! Marks: moments since which a program asks what it holds.
//!
//! Owns the addresses of the blocks that were held at each of the newest marks. A block
//! that was freed since, and whose address was handed out again, counts as there at the
//! mark: what grew is told all the same, since the one that went is missing. Cost: 8
//! bytes a block for each mark; a look at every block when it is set and asked about.

use std::collections::BTreeMap;

use spin::mutex::SpinMutex;
use vramalloc_core::Address;
use vramalloc_core::patience::Brief;
use vramalloc_core::recording::Place;
use vramalloc_core::stats::{BlockPicture, NewBlocks, StackId, new_blocks_json};

use crate::pools::device;
use crate::stacks;

/// More marks than these push the oldest out.
const MOST_MARKS: usize = 64;

/// As many groups are told with their places.
const MOST_GROUPS: usize = 100;

struct Marks {
    /// The number of the newest mark.
    newest: u64,
    /// The blocks at each, by address.
    held: BTreeMap<u64, Vec<Address>>,
}

static MARKS: SpinMutex<Marks, Brief> = SpinMutex::new(Marks {
    newest: 0,
    held: BTreeMap::new(),
});

/// Every block of a device that the program holds, with the device's number.
fn held() -> impl Iterator<Item = (u32, BlockPicture)> {
    device::arenas().flat_map(|(device, arena)| {
        let blocks = arena.blocks_held().unwrap_or_default();
        blocks.into_iter().map(move |block| (device, block))
    })
}

/// Sets a mark, and returns its number.
pub(crate) fn set() -> u64 {
    let mut held: Vec<Address> = held().map(|(_, block)| block.address).collect();
    held.sort_unstable();
    held.shrink_to_fit();
    let mut marks = MARKS.lock();
    marks.newest += 1;
    let number = marks.newest;
    marks.held.insert(number, held);
    // Dropped without the lock.
    let _oldest = (marks.held.len() > MOST_MARKS).then(|| marks.held.pop_first());
    drop(marks);
    number
}

/// Forgets a mark; whether there was one of this number.
pub(crate) fn end(number: u64) -> bool {
    let mark = MARKS.lock().held.remove(&number);
    mark.is_some()
}

/// What the program holds that it did not hold at a mark: how many blocks, and how many
/// bytes in all. `None` if there is no such mark.
pub(crate) fn sums(number: u64) -> Option<(u64, u64)> {
    let new = new_since(number)?;
    let bytes = new.iter().map(|(_, block)| block.size.get()).sum();
    Some((new.len() as u64, bytes))
}

/// The same with where it was asked for, as a JSON object.
pub(crate) fn report(number: u64) -> Option<String> {
    let mut groups = BTreeMap::<(u32, StackId), NewBlocks>::new();
    for (device, block) in new_since(number)? {
        let group = groups.entry((device, block.stack)).or_default();
        group.device = device;
        group.blocks += 1;
        group.bytes = group.bytes.saturating_add(block.size);
        group.requested = group.requested.saturating_add(block.requested);
    }
    let mut groups: Vec<(StackId, NewBlocks)> = (groups.into_iter())
        .map(|((_, stack), group)| (stack, group))
        .collect();
    groups.sort_by_key(|(_, group)| std::cmp::Reverse(group.bytes));
    for (stack, group) in groups.iter_mut().take(MOST_GROUPS) {
        group.places = stacks::places(*stack).iter().map(in_words).collect();
    }
    let mut groups: Vec<NewBlocks> = groups.into_iter().map(|(_, group)| group).collect();
    Some(new_blocks_json(&mut groups))
}

/// The blocks that are held now and were not at a mark, with their devices.
fn new_since(number: u64) -> Option<Vec<(u32, BlockPicture)>> {
    let before = MARKS.lock().held.get(&number)?.clone();
    let is_new = |block: &BlockPicture| before.binary_search(&block.address).is_err();
    Some(held().filter(|(_, block)| is_new(block)).collect())
}

/// A place of a call stack as a text: "train.py:41 forward", "libx.so+0x1234".
fn in_words(place: &Place) -> String {
    match place {
        Place::Address(address) => format!("{address:#x}"),
        Place::Object { file, offset, .. } => {
            let name = file.rsplit('/').next().unwrap_or(file);
            format!("{name}+{offset:#x}")
        }
        Place::Python {
            file,
            line,
            function,
        } => format!("{file}:{line} {function}"),
    }
}
