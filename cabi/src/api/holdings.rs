//! What is freed together: scopes and groups.
//!
//! Owns the groups and each thread's innermost scope. Invariant: a group's
//! allocations are freed with it and not one by one, although the first
//! member's address is an allocation's own. Cost: where there is neither scope
//! nor group, a free costs two atomic loads more.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use core_arena::scope::{ScopeId, Scopes};
use spin::mutex::SpinMutex;
use spin::relax::Yield;

use super::memory;
use super::{Failure, VRAMALLOC_NOT_OURS, VRAMALLOC_WRONG_SCOPE};

/// What a scope holds.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Item {
    /// A block, by its address.
    Block(usize),
    /// A group, by its number.
    Group(u64),
}

static SCOPES: LazyLock<Scopes<Item>> = LazyLock::new(Scopes::new);

thread_local! {
    static INNERMOST: Cell<Option<ScopeId>> = const { Cell::new(None) };
}

/// Enters what the calling thread got in its innermost scope.
pub(super) fn enter(item: Item) {
    if let Some(scope) = INNERMOST.get() {
        SCOPES.enter(scope, item);
    }
}

/// Begins a scope of the calling thread.
pub(super) fn begin_scope() -> u64 {
    let scope = SCOPES.begin(INNERMOST.get());
    INNERMOST.set(Some(scope));
    scope.0
}

/// Ends the calling thread's innermost scope, which must be this one, and
/// returns what has to be freed.
pub(super) fn end_scope(scope: u64) -> Result<Vec<Item>, Failure> {
    let scope = ScopeId(scope);
    if INNERMOST.get() != Some(scope) {
        return Err(Failure(VRAMALLOC_WRONG_SCOPE));
    }
    let (outer, items) = SCOPES.end(scope).ok_or(Failure(VRAMALLOC_WRONG_SCOPE))?;
    INNERMOST.set(outer);
    Ok(items)
}

/// Frees what a scope held. What is gone already went with its context.
pub(super) fn free_item(item: Item) -> Result<(), Failure> {
    let freed = match item {
        Item::Block(address) => memory::free(address),
        Item::Group(group) => free_group(group),
    };
    match freed {
        Err(Failure(VRAMALLOC_NOT_OURS)) => Ok(()),
        freed => freed,
    }
}

struct Groups {
    next: u64,
    allocations: BTreeMap<u64, Vec<usize>>,
    /// Addresses of all allocations.
    starts: BTreeSet<usize>,
}

static GROUPS: SpinMutex<Groups, Yield> = SpinMutex::new(Groups {
    next: 1,
    allocations: BTreeMap::new(),
    starts: BTreeSet::new(),
});
/// How many groups there are. Relaxed: whoever has an address of one learned
/// of it from the thread that made it, and so sees it counted.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Makes a group of these allocations.
pub(super) fn make_group(allocations: Vec<usize>) -> u64 {
    let group = {
        let mut groups = GROUPS.lock();
        let group = groups.next;
        groups.next += 1;
        groups.starts.extend(&allocations);
        groups.allocations.insert(group, allocations);
        COUNT.fetch_add(1, Ordering::Relaxed);
        group
    };
    enter(Item::Group(group));
    group
}

/// How many allocations a group has.
pub(super) fn group_size(group: u64) -> Option<usize> {
    Some(GROUPS.lock().allocations.get(&group)?.len())
}

/// Frees all allocations of a group.
pub(super) fn free_group(group: u64) -> Result<(), Failure> {
    let allocations = {
        let mut groups = GROUPS.lock();
        let allocations = groups.allocations.remove(&group);
        let allocations = allocations.ok_or(Failure(VRAMALLOC_NOT_OURS))?;
        for start in &allocations {
            groups.starts.remove(start);
        }
        COUNT.fetch_sub(1, Ordering::Relaxed);
        allocations
    };
    SCOPES.leave(Item::Group(group));
    let mut result = Ok(());
    for start in allocations {
        result = result.and(memory::free(start));
    }
    result
}

/// Frees one block of the caller's.
pub(super) fn free_block(address: usize) -> Result<(), Failure> {
    if COUNT.load(Ordering::Relaxed) > 0 && GROUPS.lock().starts.contains(&address) {
        return Err(Failure(VRAMALLOC_NOT_OURS));
    }
    SCOPES.leave(Item::Block(address));
    memory::free(address)
}
