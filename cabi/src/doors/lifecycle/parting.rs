//! What is waited for before a context ends.
//!
//! The program relies on its free having waited for whoever used the memory,
//! and the end of a context waits for the context's own work alone: so others
//! that may still be using memory which was freed here are waited for before.
//! But not for ever. What another context does may have begun after the free,
//! and end only by what this thread does after the call; nobody can tell it
//! from work that began before. So chunks in which nothing lives go to the
//! driver's own free, which waits for exactly those who use them. For the rest
//! the others are waited for as long as an ordinary copy or kernel takes, and
//! no longer.
//!
//! Owns nothing. Cost: where something is in limbo and there is another
//! context, a fence; five seconds where the others' work does not end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use vramalloc_core::Code;
use vramalloc_core::driver::{Whose, ask_until};

use super::Sure;
use crate::driver::capture;
use crate::driver::context::Context;
use crate::driver::contexts;
use crate::driver::fence::{Fence, all_reached, runs_nothing};
use crate::driver::streams;
use crate::pools::device::{self, DevicePool};

/// So long work is waited for that may end only by what is done after the call;
/// all waits before an end together.
const MOST: Duration = Duration::from_secs(5);

/// Before a context ends: waits for the others where they can still be using
/// memory that was freed.
pub(super) fn wait_for_peers(context: &Arc<Context>, sure: Sure) {
    let start = Instant::now();
    for pool in device::pools_of(context) {
        // Whether they are over makes no difference to what comes.
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
    // A capture must not hear of it, and contexts that cannot be marked are
    // broken: then nothing can be done.
    let Some(Ok(fence)) = capture::outside(|| Fence::of_all(context)) else {
        return;
    };
    let own = match sure {
        // So does the end itself.
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
        // Whether it was reached makes no difference to what comes.
        let _reached = within(start, || fence.is_reached());
    }
}

/// Whether all work of a context that surely ends is done, where others may ask;
/// the end itself waits for that, but nobody can tell then.
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

/// Waits until the answer is yes, for no longer than `MOST` from the start on;
/// the last answer.
fn within(start: Instant, mut ask: impl FnMut() -> Result<bool, Code>) -> Result<bool, Code> {
    let mut last = false;
    ask_until(MOST.saturating_sub(start.elapsed()), || {
        last = ask()?;
        Ok(last)
    })?;
    Ok(last)
}
