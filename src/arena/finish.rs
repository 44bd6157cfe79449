//! What is done to a block before the program gets it.
//!
//! For finding errors, not for speed: memory that is filled shows who reads
//! what nobody wrote, and an allocation that waits for the device shows which
//! work went wrong before it. Invariant: the program gets a block when it is
//! filled, whatever stream it will use it on. Nothing is done while a stream
//! captures a graph, which would be spoilt, and no memory is paused while a
//! thread fills it. Cost: a branch where the options
//! are off; else driver calls and a wait per allocation.

use crate::address::{Address, Bytes};
use crate::arena::Arena;
use crate::arena::state::ArenaState;
use crate::config::{Config, Fill};
use crate::driver::Driver;
use crate::error::AllocError;

/// See the module.
pub(super) struct Finish {
    fill: Option<Fill>,
    synchronizes: bool,
}

impl Finish {
    /// None where there is nothing to do.
    pub(super) fn new(config: &Config) -> Option<Finish> {
        let finish = Finish {
            fill: config.fill,
            synchronizes: config.sync_after_alloc,
        };
        (finish.fill.is_some() || finish.synchronizes).then_some(finish)
    }
}

impl<D: Driver> Arena<D> {
    /// Does to the live block at `address` what the options say. Where the
    /// driver refuses, the program has its memory all the same, and hears of
    /// what is wrong from its next call.
    ///
    /// # Errors
    /// [`AllocError::Paused`] where a pause came first: the block is free again.
    #[cold]
    pub(super) fn finish(&self, finish: &Finish, address: Address) -> Result<(), AllocError> {
        if !self.driver.may_fence() {
            return Ok(());
        }
        if let Some(fill) = finish.fill {
            let Some(size) = self.state.lock().begin_fill(address, fill) else {
                let _freed = self.free_in_state(address);
                return Err(AllocError::Paused);
            };
            let _ = self.driver.fill(address, size, fill.byte);
            self.state.lock().relied_on -= 1;
        }
        if finish.synchronizes {
            let _ = self.driver.synchronize();
        }
        Ok(())
    }
}

impl<F: Clone> ArenaState<F> {
    /// How much of a block is to be filled, which the caller does next; none where a
    /// pause takes its memory.
    fn begin_fill(&mut self, address: Address, fill: Fill) -> Option<Bytes> {
        if !self.stays_put(address) {
            return None;
        }
        self.relied_on += 1;
        Some(self.heap.writable(address, fill.whole_block))
    }
}
