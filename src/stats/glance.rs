//! How an arena stands, in a few numbers.

use crate::address::Bytes;

/// How an arena stands.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Glance {
    /// What the program holds.
    pub live: Bytes,
    /// The most that it held.
    pub live_peak: Bytes,
    /// What was taken from the driver.
    pub reserved: Bytes,
    /// The most that was.
    pub reserved_peak: Bytes,
    /// What a pause gave to the device until its end.
    pub paused: Bytes,
    /// What the program freed and the device may still use.
    pub limbo: Bytes,
    /// Calls to the driver.
    pub driver_calls: u64,
}

impl Glance {
    /// Both together. Their peaks may have been at different times: what was
    /// there at one is the higher of them, or what is there now.
    #[must_use]
    pub fn and(self, other: Glance) -> Glance {
        let live = self.live.saturating_add(other.live);
        let reserved = self.reserved.saturating_add(other.reserved);
        Glance {
            live,
            live_peak: self.live_peak.max(other.live_peak).max(live),
            reserved,
            reserved_peak: self.reserved_peak.max(other.reserved_peak).max(reserved),
            paused: self.paused.saturating_add(other.paused),
            limbo: self.limbo.saturating_add(other.limbo),
            driver_calls: self.driver_calls.saturating_add(other.driver_calls),
        }
    }
}
