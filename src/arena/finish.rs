//! What is done to a block before the program gets it.
//!
//! For finding errors, not for speed: memory that is filled shows who reads
//! what nobody wrote, and an allocation that waits for the device shows which
//! work went wrong before it. Invariant: the program gets a block when it is
//! filled, whatever stream it will use it on. Nothing is done while a stream
//! captures a graph, which would be spoilt. Cost: a branch where the options
//! are off; else driver calls and a wait per allocation.

use crate::address::Address;
use crate::arena::Arena;
use crate::config::{Config, Fill};
use crate::driver::Driver;

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
    #[cold]
    pub(super) fn finish(&self, finish: &Finish, address: Address) {
        if !self.driver.may_fence() {
            return;
        }
        if let Some(fill) = finish.fill {
            let size = self.state.lock().heap.writable(address, fill.whole_block);
            let _ = self.driver.fill(address, size, fill.byte);
        }
        if finish.synchronizes {
            let _ = self.driver.synchronize();
        }
    }
}
