//! The thread that ends scopes in the background, if the option
//! `eager_delete_scope` is off.
//!
//! Owns the queue of what is to be freed. The thread is started on first use,
//! with signals blocked: the program's signals are for its own threads. At the
//! end of the process it is left as it is, and what it has not freed goes with
//! the process. Invariant: no lock is held during a free.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::pools::holdings::{Item, free_item};
use crate::process::{guard, threads};

struct Queue {
    items: VecDeque<Item>,
    running: bool,
    /// The thread is freeing an item that it has taken.
    busy: bool,
    /// The process ends: nothing more is freed.
    ended: bool,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue {
    items: VecDeque::new(),
    running: false,
    busy: false,
    ended: false,
});
/// Notified when there is something to free, when it is freed, and at the end.
static CHANGED: Condvar = Condvar::new();

fn queue() -> MutexGuard<'static, Queue> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hands items over to be freed. Returns everything that is queued if the
/// thread cannot be started.
pub(crate) fn free_later(items: Vec<Item>) -> Result<(), Vec<Item>> {
    if items.is_empty() {
        return Ok(());
    }
    let first = !std::mem::replace(&mut queue().running, true);
    if first && threads::spawn("scopes", work).is_err() {
        // Other callers may have relied on the thread.
        let mut queue = queue();
        queue.running = false;
        CHANGED.notify_all();
        return Err(queue.items.drain(..).chain(items).collect());
    }
    queue().items.extend(items);
    CHANGED.notify_all();
    Ok(())
}

fn work() {
    while let Some(item) = next() {
        // No caller is left to hear of a failure.
        let freed = guard::serve(|| free_item(item));
        let mut queue = queue();
        queue.busy = false;
        if freed.is_err() {
            // Our code is broken, or the process ends: what is left is kept.
            queue.ended = true;
        }
        CHANGED.notify_all();
    }
}

/// Waits for the next item; `None` at the end.
fn next() -> Option<Item> {
    let mut queue = queue();
    loop {
        if queue.ended {
            return None;
        }
        if let Some(item) = queue.items.pop_front() {
            queue.busy = true;
            return Some(item);
        }
        let (locked, waited) = CHANGED
            .wait_timeout(queue, threads::LONGEST_WAIT)
            .unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            drop(locked);
            threads::end_with_the_last();
            queue = self::queue();
        } else {
            queue = locked;
        }
    }
}

/// Whether something that was handed over is not freed yet.
fn is_at_work(queue: &Queue) -> bool {
    queue.running && !queue.ended && (queue.busy || !queue.items.is_empty())
}

pub(crate) fn is_busy() -> bool {
    is_at_work(&queue())
}

/// Waits until all that was handed over is freed.
pub(crate) fn finish() {
    let mut queue = queue();
    while is_at_work(&queue) {
        queue = CHANGED.wait(queue).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Called at the end of the process: frees no more.
pub(crate) fn stop() {
    // A thread that ends the process inside a hand-over must not wait for it.
    if let Ok(mut queue) = QUEUE.try_lock() {
        queue.ended = true;
        CHANGED.notify_all();
    }
}
