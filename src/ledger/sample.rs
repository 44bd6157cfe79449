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
    risen(request.get().max(1) as f64 / distance.get().max(1) as f64)
}

// The standard library has both of these from the C library's part for mathematics,
// which a program under us may not have loaded.

/// `1 - exp(-x)` for an `x` that is not negative.
fn risen(x: f64) -> f64 {
    if x > 40.0 {
        return 1.0;
    }
    // What is left of a half as large one, twice: 1 - (1 - r)^2.
    if x > 0.25 {
        let half = risen(x / 2.0);
        return half * (2.0 - half);
    }
    // x - x^2/2! + x^3/3! - …, from the smallest on.
    let terms = (2_u32..=14).rev();
    x * terms.fold(1.0, |sum, n| 1.0 - sum * x / f64::from(n))
}

/// `-ln(x)` for an `x` above 0 and up to 1.
fn fallen(x: f64) -> f64 {
    let (mut x, mut halvings) = (x, 0_u32);
    while x < 0.75 && halvings < 1100 {
        x *= 2.0;
        halvings += 1;
    }
    // ln(x) = 2 (s + s^3/3 + s^5/5 + …) for s = (x - 1) / (x + 1), from the smallest
    // on; s is no more than a fifth.
    let s = (x - 1.0) / (x + 1.0);
    let terms = (1_u32..=21).rev().step_by(2);
    let sum = terms.fold(0.0, |sum, n| sum * s * s + 1.0 / f64::from(n));
    f64::from(halvings) * std::f64::consts::LN_2 - 2.0 * s * sum
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
        ((fallen(share) * distance.get() as f64) as u64).saturating_add(1)
    }
}

impl Default for Sampler {
    fn default() -> Sampler {
        Sampler::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_functions_are_those_of_mathematics() {
        for exponent in -60..=10 {
            for by in [1.0, 1.3, 1.5, 1.9] {
                let x = by * 2_f64.powi(exponent);
                let expected = -(-x).exp_m1();
                assert!((risen(x) / expected - 1.0).abs() < 1e-13, "{x}");
                if x <= 1.0 {
                    let (found, expected) = (fallen(x), -x.ln());
                    assert!((found - expected).abs() <= 1e-13 * expected.max(1.0), "{x}");
                }
            }
        }
        assert!(fallen(1.0).abs() < 1e-15 && risen(0.0).abs() < 1e-15);
    }
}
