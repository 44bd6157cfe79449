//! Waits for a context by the driver's own free: with what it keeps back, with memory that
//! is taken for it, or with what another context keeps back.
//!
//! Cost: two driver calls for each wait.

use std::ptr;
use std::time::Instant;

use vramalloc_core::Code;
use vramalloc_core::driver::PAGE;
use vramalloc_core::quota::Quota;

use super::loans::Lent;
use super::{InHand, Kept, LITTLE, ask_driver, filled, give, take};
use crate::driver::context::Context;

/// A page that counts towards a quota while this lives. It goes back to that
/// quota: the device of a reserve may become known only after a wait began
/// without it.
struct Charge<'a>(&'a Quota);

impl Charge<'_> {
    /// Returns `None` if no page is left.
    fn of_page(quota: &Quota) -> Option<Charge<'_>> {
        quota.take(PAGE).then(|| Charge(quota))
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        self.0.put_back(PAGE);
    }
}

/// Waits by allocating memory and freeing it again: so little that it takes a page only
/// where no page of small blocks has room.
fn wait_with_little() -> Result<(), Code> {
    give(take(LITTLE)?)
}

/// Whether a wait may exceed the limit for a moment, if nothing is kept back and the limit
/// has no page for it.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum Beyond {
    /// There is no other way to wait.
    Allowed,
    /// There is another way.
    Refused,
}

/// Waits for the context by the driver's own free.
///
/// # Errors
/// What the driver returns; [`Code::NOT_READY`] if the context may be ending,
/// [`Code::OUT_OF_MEMORY`] if there is nothing to wait with.
pub(crate) fn wait_by_free(context: &Context, beyond: Beyond) -> Result<(), Code> {
    let reserve = context.reserve();
    let device = reserve.device(context);
    // In one stay: the context cannot begin to end before all is given back.
    context.within_now(|| {
        let mut held = reserve.take_out_to_wait()?;
        if let Some(waited) = held.as_mut().and_then(InHand::wait) {
            return waited;
        }
        drop(held);
        let charge = device.map(|device| Charge::of_page(&device.quota));
        let is_beyond = charge.as_ref().is_some_and(Option::is_none);
        if is_beyond && beyond == Beyond::Refused {
            return Err(Code::OUT_OF_MEMORY);
        }
        let waited = wait_with_little();
        drop(charge);
        waited
    })
}

/// Waits for a context that has nothing to wait with by what another one of its device keeps
/// back, whose work is waited for too; `until`: how long a thread that has it is waited for.
///
/// # Errors
/// As [`wait_by_free`]; [`Code::OUT_OF_MEMORY`] too if the other one lends nothing.
pub(crate) fn wait_by_that_of(
    lender: &Context,
    context: &Context,
    until: Instant,
) -> Result<(), Code> {
    let device = context.reserve().device(context);
    let device = device.ok_or(Code::OUT_OF_MEMORY)?;
    let its = lender.reserve().device(lender);
    its.filter(|its| ptr::eq(*its, device))
        .ok_or(Code::OUT_OF_MEMORY)?;
    let mut held = lender.reserve().take_out_to_lend(until)?;
    let mut parts = held.memory.map(Kept::parts).ok_or(Code::OUT_OF_MEMORY)?;
    held.lend();
    let _lent = Lent::begin(device);
    let given = lender.within_now(|| {
        // From a host function nothing is freed.
        Code::check(ask_driver())?;
        for part in &mut parts {
            if let Some(address) = *part {
                give(address)?;
                *part = None;
            }
        }
        Ok(())
    });
    // Not within the lender: that may end meanwhile, which this one's work may depend on.
    // What the lender answers says nothing of the context's work.
    let given = given.map_err(|_| Code::OUT_OF_MEMORY);
    let waited = given.and_then(|()| context.within_now(wait_with_little));
    let _ends = lender.within_now(|| {
        parts = filled(parts);
        Ok(())
    });
    held.hold(parts);
    waited
}

#[cfg(test)]
mod tests {
    use vramalloc_core::Bytes;

    use super::*;

    #[test]
    fn a_page_that_is_refused_is_not_put_back() {
        let quota = Quota::new(Bytes::mib(3));
        let first = Charge::of_page(&quota);
        assert!(first.is_some());
        assert!(Charge::of_page(&quota).is_none());
        assert_eq!(quota.reserved(), PAGE);
        drop(first);
        assert_eq!(quota.reserved(), Bytes::ZERO);
    }
}
