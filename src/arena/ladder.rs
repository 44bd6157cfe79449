//! The out-of-memory ladder: round after round, until a request is served or
//! nothing is left that could serve it.
//!
//! One thread is on it at a time, but others go on to take what is cached, and
//! to free it: what a round made available may be gone again before the request
//! has it, and in limbo once more. So there is another round while the program
//! holds little enough for the request, and something came out of limbo in the
//! last. Owns nothing; who is on the ladder is in the books. Cost: each round
//! waits for the device.

use crate::address::Bytes;
use crate::arena::Arena;
use crate::driver::{Driver, Whose};
use crate::error::AllocError;
use crate::patience::Patience;

use super::growth::is_shortage;

/// The turn on the out-of-memory ladder. What one thread there takes out of
/// limbo or gives back is for a while neither in the books nor with the driver:
/// another would find nothing and fail, with all the memory there.
pub(super) struct LadderTurn<'a, D: Driver>(&'a Arena<D>);

impl<D: Driver> Drop for LadderTurn<'_, D> {
    fn drop(&mut self) {
        self.0.books.lock().on_ladder = false;
    }
}

/// What may have brought the request its memory.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Neighbours gave some back.
    Relieved,
    /// Limbo was emptied, after a wait if there was something in it.
    Emptied { waited: bool },
}

/// Other threads that always come first are not to be told from memory in
/// pieces that are too small, which no wait joins: a request fails after so many
/// rounds.
const ROUNDS: u32 = 64;

impl<D: Driver> Arena<D> {
    /// Waits until no other thread is on the out-of-memory ladder. Taken after
    /// the turn to grow, where that is needed.
    pub(super) fn turn_on_ladder(&self) -> LadderTurn<'_, D> {
        let mut patience = Patience::new();
        loop {
            if let Some(turn) = self.try_turn_on_ladder() {
                return turn;
            }
            patience.pause();
        }
    }

    /// The same where nobody is there.
    pub(super) fn try_turn_on_ladder(&self) -> Option<LadderTurn<'_, D>> {
        let mut books = self.books.lock();
        if books.on_ladder {
            return None;
        }
        books.on_ladder = true;
        Some(LadderTurn(self))
    }

    /// Tries `attempt` after each step, as long as that may help a request for
    /// `size` bytes that failed by `error`. The turn is still held at the end.
    pub(super) fn climb<'a, T>(
        &'a self,
        mut turn: LadderTurn<'a, D>,
        size: Bytes,
        error: AllocError,
        mut attempt: impl FnMut(Step) -> Result<T, AllocError>,
    ) -> (LadderTurn<'a, D>, Result<T, AllocError>) {
        let mut latest = error;
        for round in 0..ROUNDS {
            let whose = if round == 0 { Whose::Own } else { Whose::All };
            if whose == Whose::All && self.is_served_beyond(latest) {
                break;
            }
            if round == 1 {
                let gave;
                (turn, gave) = self.ask_neighbours(turn);
                if gave && !self.fails_at_once(error) {
                    let served = attempt(Step::Relieved);
                    if !matches!(served, Err(error) if is_shortage(error)) {
                        return (turn, served);
                    }
                }
            }
            // The second time round, memory given back in the first may be
            // what it takes to wait with.
            let waited = !self.is_limbo_empty();
            let before = self.oldest_number();
            self.empty_limbo(whose);
            match attempt(Step::Emptied { waited }) {
                Err(error) if is_shortage(error) => latest = error,
                ended => return (turn, ended),
            }
            let ended = before.is_none() || before != self.oldest_number();
            if self.is_limbo_empty() || (round > 0 && !(ended && self.could_hold(size))) {
                break;
            }
        }
        (turn, Err(latest))
    }

    /// What lies idle elsewhere on the device comes before a wait for other
    /// devices. Nobody waits for another arena's turn while holding one.
    fn ask_neighbours<'a>(&'a self, turn: LadderTurn<'a, D>) -> (LadderTurn<'a, D>, bool) {
        let Some(relieve) = &self.neighbours else {
            return (turn, false);
        };
        drop(turn);
        let gave = relieve();
        (self.turn_on_ladder(), gave)
    }

    /// Whether so much could be had, if nobody else took any, of what is not
    /// live; not where limbo cannot be waited for.
    fn could_hold(&self, size: Bytes) -> bool {
        let Some(Ok(available)) = self.driver.may_fence().then(|| self.available()) else {
            return false;
        };
        let mut books = self.books.lock();
        let capacity = books.reserved().saturating_add(available);
        books.tally().live().saturating_add(size) <= capacity
    }

    fn oldest_number(&self) -> Option<u64> {
        self.books.lock().oldest_epoch().map(|oldest| oldest.number)
    }

    fn is_limbo_empty(&self) -> bool {
        self.books.lock().limbo_bytes().is_zero()
    }
}
