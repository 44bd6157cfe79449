//! Scopes: the memory that is freed when a scope ends.
//!
//! Owns the open scopes and their items. Invariant: an item is in at most one
//! scope, and leaves it when it is freed or the scope ends. Cost: one lock and
//! a few tree look-ups per item; while no scope has items, a free costs one
//! atomic load.

use std::collections::BTreeMap;

use crate::sync::Lock;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// The position of an item: its scope, and its number in the order of entry.
pub type Position = (ScopeId, u64);

/// An open scope.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ScopeId(pub u64);

struct Scope<T> {
    outer: Option<ScopeId>,
    items: BTreeMap<u64, T>,
}

struct State<T> {
    next: u64,
    scopes: BTreeMap<ScopeId, Scope<T>>,
    places: BTreeMap<T, Position>,
}

/// All open scopes of a process.
pub struct Scopes<T> {
    state: Lock<State<T>>,
    /// The number of items in all scopes. Relaxed: a thread that frees an item
    /// learned of it from the thread that entered it, and so sees it counted.
    held: AtomicUsize,
}

impl<T: Copy + Ord> Scopes<T> {
    /// No scopes.
    #[must_use]
    pub fn new() -> Scopes<T> {
        Scopes {
            state: Lock::new(State {
                next: 1,
                scopes: BTreeMap::new(),
                places: BTreeMap::new(),
            }),
            held: AtomicUsize::new(0),
        }
    }

    /// Begins a scope, inside `outer` if given. Numbers start at 1 and are
    /// never used again.
    pub fn begin(&self, outer: Option<ScopeId>) -> ScopeId {
        let mut state = self.state.lock();
        let id = ScopeId(state.next);
        state.next += 1;
        let scope = Scope {
            outer,
            items: BTreeMap::new(),
        };
        state.scopes.insert(id, scope);
        id
    }

    /// Adds an item to an open scope.
    pub fn enter(&self, id: ScopeId, item: T) {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        self.put(&mut state, (id, number), item);
    }

    /// Takes out an item that is being freed. Returns its position; `None` if
    /// it is in no scope.
    pub fn leave(&self, item: T) -> Option<Position> {
        if self.held.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut state = self.state.lock();
        let (id, number) = state.places.remove(&item)?;
        if let Some(scope) = state.scopes.get_mut(&id) {
            scope.items.remove(&number);
        }
        self.held.fetch_sub(1, Ordering::Relaxed);
        Some((id, number))
    }

    /// Undoes `leave`, because the item was not freed; does nothing if its
    /// scope has ended.
    pub fn come_back(&self, position: Position, item: T) {
        self.put(&mut self.state.lock(), position, item);
    }

    fn put(&self, state: &mut State<T>, position: Position, item: T) {
        let (id, number) = position;
        if let Some(scope) = state.scopes.get_mut(&id) {
            scope.items.insert(number, item);
            state.places.insert(item, position);
            self.held.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The items of all scopes.
    #[must_use]
    pub fn items(&self) -> Vec<T> {
        self.state.lock().places.keys().copied().collect()
    }

    /// Ends a scope. Returns the scope around it and its items, the youngest
    /// first; `None` if it is not open.
    pub fn end(&self, id: ScopeId) -> Option<(Option<ScopeId>, Vec<T>)> {
        let mut state = self.state.lock();
        let scope = state.scopes.remove(&id)?;
        let items: Vec<T> = scope.items.into_values().rev().collect();
        for item in &items {
            state.places.remove(item);
        }
        self.held.fetch_sub(items.len(), Ordering::Relaxed);
        Some((scope.outer, items))
    }
}

impl<T: Copy + Ord> Default for Scopes<T> {
    fn default() -> Scopes<T> {
        Scopes::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_scope_gives_back_what_was_not_freed_before() {
        let scopes = Scopes::new();
        let outer = scopes.begin(None);
        scopes.enter(outer, 10);
        let inner = scopes.begin(Some(outer));
        for item in [20, 21, 22] {
            scopes.enter(inner, item);
        }
        assert!(scopes.leave(21).is_some());
        // In no scope.
        assert_eq!(scopes.leave(99), None);
        // Its free was refused: it returns to its position.
        let position = scopes.leave(20).unwrap();
        scopes.come_back(position, 20);
        assert_eq!(scopes.end(inner), Some((Some(outer), vec![22, 20])));
        assert_eq!(scopes.end(inner), None);
        scopes.enter(outer, 20);
        scopes.leave(10);
        assert_eq!(scopes.end(outer), Some((None, vec![20])));
        assert_eq!(scopes.held.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_comes_after_the_end_is_not_held() {
        let scopes = Scopes::new();
        let scope = scopes.begin(None);
        assert_eq!(scopes.end(scope), Some((None, vec![])));
        scopes.enter(scope, 1);
        scopes.come_back((scope, 7), 1);
        assert_eq!(scopes.held.load(Ordering::Relaxed), 0);
        assert!(scopes.begin(None) > scope);
    }
}
