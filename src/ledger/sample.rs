//! Which requests are in a sample.
//!
//! Samples lie so many bytes of requests apart, on the average and without a
//! memory (exponentially distributed): a request of `s` bytes is one with a chance
//! of `1 - exp(-s / distance)`, whatever came before it. Cost: a subtraction for a
//! request that is left out, a logarithm for one that is not.

use crate::address::Bytes;

/// How likely a request is in a sample; above 0, since no request is of no bytes.
#[allow(clippy::cast_precision_loss, reason = "a chance")]
pub(super) fn chance(request: Bytes, distance: Bytes) -> f64 {
    let share = request.get().max(1) as f64 / distance.get().max(1) as f64;
    -(-share).exp_m1()
}

/// Counts down to the next sample, for one thread.
#[derive(Copy, Clone, Debug)]
pub struct Sampler {
    /// Of the generator; zero: nothing is drawn yet.
    random: u64,
    /// Bytes up to the next sample.
    left: u64,
}

impl Sampler {
    /// One that gets its seed from where it lies when it is asked first.
    #[must_use]
    pub const fn new() -> Sampler {
        Sampler { random: 0, left: 0 }
    }

    /// One that always draws the same.
    #[must_use]
    pub const fn seeded(seed: u64) -> Sampler {
        Sampler {
            random: seed | 1 << 63,
            left: 0,
        }
    }

    /// Whether a request is in the sample.
    #[inline]
    pub fn takes(&mut self, request: Bytes, distance: Bytes) -> bool {
        if request.get() < self.left {
            self.left -= request.get();
            return false;
        }
        self.draw(request, distance)
    }

    #[cold]
    fn draw(&mut self, request: Bytes, distance: Bytes) -> bool {
        let is_first = self.left == 0;
        if self.random == 0 {
            *self = Sampler::seeded(std::ptr::from_ref(self).addr() as u64);
        }
        self.left = self.next(distance);
        // What comes first is no sample because it comes first.
        if is_first {
            self.takes(request, distance)
        } else {
            true
        }
    }

    /// At least 1: zero stands for nothing drawn.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a distance, and a conversion that stops at the largest number"
    )]
    fn next(&mut self, distance: Bytes) -> u64 {
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut drawn = self.random;
        drawn = (drawn ^ drawn >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        drawn = (drawn ^ drawn >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        drawn ^= drawn >> 31;
        // Above 0 and up to 1.
        let share = ((drawn >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        ((-share.ln() * distance.get() as f64).ceil() as u64).max(1)
    }
}

impl Default for Sampler {
    fn default() -> Sampler {
        Sampler::new()
    }
}
