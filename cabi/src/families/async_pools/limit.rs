//! What lets a request to one of CUDA's pools through below a limit, and what it
//! waits for first.
//!
//! Invariant: a request whose growth was not taken out of the quota is made
//! while no other such request to a pool of the device is. Cost: two more questions
//! to the driver where the quota leaves too little.

use std::time::{Duration, Instant};

use vramalloc_core::Bytes;
use vramalloc_core::busy::Turn;
use vramalloc_core::patience::wait_within;
use vramalloc_core::quota::Asked;

use super::excess::OnStream;
use super::{Pool, USED, frees};
use crate::driver::capture;
use crate::families::{held, relief};
use crate::process::ending;
use crate::types::CUstream;

/// The longest that a request waits for others that may pass the limit: for calls
/// to the driver.
const LONGEST_TURN: Duration = Duration::from_secs(10);

/// What lets a request through.
pub(super) enum Leave<'a> {
    /// There is no limit.
    Unlimited,
    /// What it may make the pool reserve was taken out of the quota.
    Paid(Asked<'a>),
    /// The pool has room for it.
    Within(Turn<'a>, OnStream),
}

/// Lets a request through, if the limit leaves what its pool may grow by or the
/// pool has room for it; if not, idle memory goes back first.
pub(super) fn leave(pool: &Pool, size: Bytes, stream: CUstream) -> Option<Leave<'_>> {
    let device = pool.device;
    if device.quota.limit().is_none() {
        return Some(Leave::Unlimited);
    }
    let growth = pool.growth(size);
    let ask = || match device.quota.ask(growth) {
        Some(asked) => Some(Leave::Paid(asked)),
        None => within(pool, size, stream),
    };
    relief::at_limit(device, growth, ask)
}

/// The turn, on the device, of a request for which a pool has room. It may pass the
/// limit all the same, where that room is not in one piece.
fn within(pool: &Pool, size: Bytes, stream: CUstream) -> Option<Leave<'_>> {
    let mut turn = None;
    wait_within(LONGEST_TURN, || {
        turn = pool.passing.turn();
        turn.is_some()
    });
    let turn = turn?;
    let on = pool.stream_for(stream)?;
    let used = pool.attribute(USED)?;
    let has_room = used.saturating_add(size) <= pool.read();
    has_room.then_some(Leave::Within(turn, on))
}

/// Makes a request, and again as long as there are frees that streams have yet to
/// get to, of the program or of what passed the limit before, or others that may leave it
/// something: the driver itself would wait. New ones are waited for only if it fits beside
/// what the program holds.
pub(super) fn after_frees<T>(
    pool: &Pool,
    size: Bytes,
    mut request: impl FnMut() -> Option<T>,
) -> Option<T> {
    /// What a request waits for may be over long before the rest.
    const PAUSE: Duration = Duration::from_millis(1);
    let device = pool.device;
    let Some(limit) = device.quota.limit().filter(|limit| size <= *limit) else {
        return request();
    };
    let begun = Instant::now();
    let changes = || (frees::reached(), device.quota.landings());
    let (mut seen, newest) = (changes(), frees::newest());
    let mut answer = request();
    if answer.is_some() {
        return answer;
    }
    let fits = || held(device.handle).saturating_add(size) <= limit;
    let mut next = Instant::now();
    let left = relief::patience(device)?.saturating_sub(begun.elapsed());
    let is_over = wait_within(left, || {
        ending::let_it_end();
        if capture::any() {
            return true;
        }
        let left = frees::look(device.handle);
        let is_old = left.is_some_and(|free| free <= newest);
        let is_quiet = || left.is_none() && changes() == seen && !pool.is_awaited();
        if !is_old && (is_quiet() || !fits()) {
            return true;
        }
        if Instant::now() >= next {
            seen = changes();
            pool.trim(Bytes::ZERO);
            answer = request();
            next = Instant::now() + PAUSE;
        }
        answer.is_some()
    });
    if !is_over {
        frees::waited_in_vain(device.handle);
    }
    answer
}
