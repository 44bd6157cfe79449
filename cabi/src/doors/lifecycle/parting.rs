//! Waits before a context ends.
//!
//! The program relies on its free having waited for all that used the memory,
//! and the end of a context waits for the context's own work alone. So others
//! that may still be using memory which was freed here are waited for before.
//! But not for ever: work of another context may have begun after the free, and
//! end only by what this thread does after the call; it cannot be told from
//! work that began before. So chunks in which nothing lives go to the driver's
//! own free, which waits for exactly the work that uses them. For the rest the
//! others are waited for as long as an ordinary copy or kernel takes.
//!
//! Cost: if something is in limbo and there is another context, a fence; five
//! seconds if the others' work does not end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use vramalloc_core::Code;
use vramalloc_core::driver::{Whose, ask_until};

use super::Sure;
use crate::driver::context::Context;
use crate::driver::fence::{Fence, all_reached, runs_nothing};
use crate::driver::{capture, contexts, streams};
use crate::pools::device::{self, DevicePool};

/// The longest that all waits before an end take together, because work may end
/// only by what is done after the call.
const MOST: Duration = Duration::from_secs(5);

/// Before a context ends, waits for the others if they can still be using
/// memory that was freed.
pub(super) fn wait_for_peers(context: &Arc<Context>, sure: Sure) {
    let start = Instant::now();
    for pool in device::pools_of(context) {
        // Whether they are over makes no difference to what follows.
        let _over = within(start, || Ok(pool.lanes().are_uses_over()));
        if contexts::others_than(context.handle()).is_empty() || !has_limbo(pool) {
            continue;
        }
        pool.arena().flush();
        pool.pinned().flush();
        if has_limbo(pool) {
            see_off(pool, context, sure, start);
        }
    }
}

fn has_limbo(pool: &DevicePool) -> bool {
    !pool.arena().limbo().is_zero() || pool.pinned().has_limbo()
}

fn see_off(pool: &DevicePool, context: &Arc<Context>, sure: Sure, start: Instant) {
    // A capture must not be disturbed, and contexts that refuse events are
    // broken: then nothing can be done.
    let Some(Ok(fence)) = capture::outside(|| Fence::of_all(context)) else {
        return;
    };
    let own = match sure {
        // The end itself waits for it too.
        Sure::Yes => fence.wait(Whose::Own).map(|_all| true),
        Sure::No => within(start, || fence.is_reached_by_own()),
    };
    if own != Ok(true) {
        return;
    }
    // The driver's free waits for the context's own work too.
    pool.arena().give_back_idle();
    pool.pinned().give_back_idle();
    if has_limbo(pool) {
        // Whether it was reached makes no difference to what follows.
        let _reached = within(start, || fence.is_reached());
    }
}

/// Whether all work of a context that certainly ends is done, if others may
/// ask. The end itself waits for that, but it cannot be asked then.
pub(super) fn is_quiet(context: &Arc<Context>) -> bool {
    if contexts::others_than(context.handle()).is_empty() {
        return false;
    }
    match capture::outside(|| streams::mark_at_once(context)) {
        Some(Ok(marks)) => within(Instant::now(), || all_reached(&marks)) == Ok(true),
        Some(Err(code)) => runs_nothing(code),
        None => false,
    }
}

/// Waits until the answer is yes, until `MOST` after `start` at most. Returns
/// the last answer.
fn within(start: Instant, mut ask: impl FnMut() -> Result<bool, Code>) -> Result<bool, Code> {
    let mut last = false;
    ask_until(MOST.saturating_sub(start.elapsed()), || {
        last = ask()?;
        Ok(last)
    })?;
    Ok(last)
}
