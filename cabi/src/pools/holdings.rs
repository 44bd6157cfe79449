//! Memory that is freed together: scopes and groups.
//!
//! Owns the groups and each thread's innermost scope. Invariant: a group's
//! allocations are freed with it and not one by one, although the first
//! member's address is that of an allocation; nothing is held that was freed,
//! by whichever function, or went with its context. Cost: an atomic load per free in a
//! process that never had a scope or a group.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use spin::mutex::SpinMutex;
use vramalloc_core::patience::Brief;
use vramalloc_core::scope::{ScopeId, Scopes};
use vramalloc_core::{Address, FreeError};

use crate::pools::memory::{self, OwnBlock};
use crate::process::shortcut;

/// What a scope holds.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Item {
    /// A block.
    Block(OwnBlock),
    /// A group, by its number.
    Group(u64),
}

static SCOPES: LazyLock<Scopes<Item>> = LazyLock::new(Scopes::new);

/// Whether there is or was a scope or a group. Relaxed: a thread that has an
/// address of one learned of it from the thread that made it, and so sees this
/// set.
static ANY: AtomicBool = AtomicBool::new(false);

thread_local! {
    static INNERMOST: Cell<Option<ScopeId>> = const { Cell::new(None) };
}

/// There is a scope or a group from now on.
fn begins() {
    shortcut::close();
    if ANY.swap(true, Ordering::Relaxed) {
        shortcut::open();
    }
}

/// Enters the block at an address in the calling thread's innermost scope.
pub(crate) fn enter_block(address: Address) {
    if INNERMOST.get().is_some()
        && let Some(block) = OwnBlock::at(address)
    {
        enter(Item::Block(block));
    }
}

/// Enters an item in the calling thread's innermost scope.
fn enter(item: Item) {
    if let Some(scope) = INNERMOST.get() {
        SCOPES.enter(scope, item);
    }
}

/// Begins a scope of the calling thread.
pub(crate) fn begin_scope() -> u64 {
    begins();
    let scope = SCOPES.begin(INNERMOST.get());
    INNERMOST.set(Some(scope));
    scope.0
}

/// Ends the calling thread's innermost scope and returns what has to be freed;
/// `None` if `scope` is not the innermost.
pub(crate) fn end_scope(scope: u64) -> Option<Vec<Item>> {
    let scope = ScopeId(scope);
    if INNERMOST.get() != Some(scope) {
        return None;
    }
    let (outer, items) = SCOPES.end(scope)?;
    INNERMOST.set(outer);
    Some(items)
}

/// Frees an item of a scope. If it is gone, it went with its context.
///
/// # Errors
/// What CUDA returns.
pub(crate) fn free_item(item: Item) -> Result<(), FreeError> {
    let freed = match item {
        Item::Block(block) => memory::free_block(block),
        Item::Group(group) => free_group(group),
    };
    match freed {
        Err(FreeError::NotLive) => Ok(()),
        freed => freed,
    }
}

struct Groups {
    next: u64,
    allocations: BTreeMap<u64, Vec<OwnBlock>>,
    /// All allocations.
    blocks: BTreeSet<OwnBlock>,
}

static GROUPS: SpinMutex<Groups, Brief> = SpinMutex::new(Groups {
    next: 1,
    allocations: BTreeMap::new(),
    blocks: BTreeSet::new(),
});

/// Makes a group of these allocations.
pub(crate) fn make_group(allocations: Vec<OwnBlock>) -> u64 {
    begins();
    let group = {
        let mut groups = GROUPS.lock();
        let group = groups.next;
        groups.next += 1;
        groups.blocks.extend(&allocations);
        groups.allocations.insert(group, allocations);
        group
    };
    enter(Item::Group(group));
    group
}

/// How many allocations a group has.
pub(crate) fn group_size(group: u64) -> Option<usize> {
    Some(GROUPS.lock().allocations.get(&group)?.len())
}

/// Frees the allocations of a group. Those that CUDA refuses to free stay.
///
/// # Errors
/// [`FreeError::NotLive`] if there is no such group; else the first failure.
pub(crate) fn free_group(group: u64) -> Result<(), FreeError> {
    let allocations = {
        let mut groups = GROUPS.lock();
        let allocations = groups.allocations.remove(&group);
        let allocations = allocations.ok_or(FreeError::NotLive)?;
        for block in &allocations {
            groups.blocks.remove(block);
        }
        allocations
    };
    let spot = SCOPES.leave(Item::Group(group));
    let (mut result, mut left) = (Ok(()), Vec::new());
    for block in allocations {
        let freed = memory::free_block(block);
        if !matches!(freed, Ok(()) | Err(FreeError::NotLive)) {
            left.push(block);
        }
        result = result.and(freed);
    }
    if !left.is_empty() {
        let mut groups = GROUPS.lock();
        groups.blocks.extend(&left);
        groups.allocations.insert(group, left);
        drop(groups);
        if let Some(spot) = spot {
            SCOPES.come_back(spot, Item::Group(group));
        }
    }
    result
}

/// Frees a block by `free`. It leaves its scope before that, since its address
/// may become another block's at once; if CUDA refuses to free it, it is put back.
///
/// # Errors
/// Those of `free`; [`FreeError::NotLive`] for one of a group's allocations,
/// which is not freed by itself.
pub(crate) fn free_by(
    block: OwnBlock,
    free: impl FnOnce() -> Result<(), FreeError>,
) -> Result<(), FreeError> {
    if !ANY.load(Ordering::Relaxed) {
        return free();
    }
    if GROUPS.lock().blocks.contains(&block) {
        return Err(FreeError::NotLive);
    }
    let item = Item::Block(block);
    let spot = SCOPES.leave(item);
    let freed = free();
    if let (Some(spot), Err(FreeError::Driver(_))) = (spot, freed) {
        SCOPES.come_back(spot, item);
    }
    freed
}

/// Called when a context is gone, and its memory with it: forgets what was there.
pub(crate) fn forget_dead() {
    if !ANY.load(Ordering::Relaxed) {
        return;
    }
    for item in SCOPES.items() {
        if matches!(item, Item::Block(block) if !block.is_known()) {
            SCOPES.leave(item);
        }
    }
    let blocks: Vec<OwnBlock> = GROUPS.lock().blocks.iter().copied().collect();
    for block in blocks.into_iter().filter(|block| !block.is_known()) {
        let mut groups = GROUPS.lock();
        groups.blocks.remove(&block);
        let all = groups.allocations.values_mut();
        all.for_each(|allocations| allocations.retain(|&other| other != block));
    }
}
