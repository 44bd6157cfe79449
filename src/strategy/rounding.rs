//! Rounding of requests, so that sizes which differ a little reuse each other's
//! blocks exactly.
//!
//! PyTorch's formula: a request above 512 bytes times the divisions is rounded
//! up to a multiple of (the greatest power of two in it, divided by the
//! divisions); so a power of two stays what it is, and a step is never below a
//! slot. Other requests are rounded to whole slots. Cost: nothing if the option
//! is off; else a few instructions per request.

use crate::address::Bytes;
use crate::config::Rounding;
use crate::page_map::SLOT;

/// How requests are rounded beyond whole slots.
pub(crate) struct Rounder(Rounding);

impl Rounder {
    /// `None` if the option is off, so that it costs nothing.
    pub(crate) fn new(rounding: &Rounding) -> Option<Rounder> {
        let divides = rounding.divisions.iter().any(|&divisions| divisions > 1);
        divides.then_some(Rounder(*rounding))
    }

    /// The size of the block for a request, in whole slots; `None` if that
    /// overflows.
    pub(crate) fn size(&self, request: Bytes) -> Option<Bytes> {
        let divisions = u64::from(self.divisions(request));
        let bypassed = self.0.bypass.is_some_and(|most| request > most);
        if divisions <= 1 || bypassed || request.get() <= SLOT.get() * divisions {
            return request.round_up(SLOT);
        }
        // Both are powers of two, the step the smaller one, so the next
        // multiple of the step is at most the next power of two.
        let power = 1_u64 << request.get().ilog2();
        request.round_up(Bytes::new(power >> divisions.ilog2()))
    }

    /// Entry `i` holds from `2^i` MiB, the first also below and the last for
    /// all above.
    fn divisions(&self, request: Bytes) -> u32 {
        let power = (request.get() >> 20).checked_ilog2().unwrap_or(0) as usize;
        let last = self.0.divisions.len() - 1;
        self.0.divisions[power.min(last)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn rounded(divisions: u32, request: u64) -> u64 {
        let rounding = Rounding {
            divisions: [divisions; 16],
            bypass: None,
        };
        let size = match Rounder::new(&rounding) {
            Some(rounder) => rounder.size(Bytes::new(request)),
            None => Bytes::new(request).round_up(SLOT),
        };
        size.unwrap().get()
    }

    /// PyTorch's own results, for 1, 2, 4, 8 and 16 divisions.
    #[test]
    fn the_worked_figures_come_out() {
        let table = [
            (1200, [1536, 1536, 1536, 1536, 1536]),
            (4097, [4608, 6144, 5120, 4608, 4608]),
            (MIB, [MIB; 5]),
            (
                MIB + 1,
                [1_049_088, 1_572_864, 1_310_720, 1_179_648, 1_114_112],
            ),
            (
                5 * MIB + 3,
                [5_243_392, 6_291_456, 6_291_456, 5_767_168, 5_505_024],
            ),
            (
                10 * MIB - 1,
                [10_485_760, 12_582_912, 10_485_760, 10_485_760, 10_485_760],
            ),
            (
                100 * MIB + 1,
                [
                    104_858_112,
                    134_217_728,
                    117_440_512,
                    109_051_904,
                    109_051_904,
                ],
            ),
            (
                257 * MIB,
                [
                    269_484_032,
                    402_653_184,
                    335_544_320,
                    301_989_888,
                    285_212_672,
                ],
            ),
            (3 * GIB, [3 * GIB; 5]),
            (
                3 * GIB + 1,
                [
                    3_221_225_984,
                    4_294_967_296,
                    3_758_096_384,
                    3_489_660_928,
                    3_355_443_200,
                ],
            ),
        ];
        for (request, row) in table {
            for (divisions, size) in [1, 2, 4, 8, 16].into_iter().zip(row) {
                assert_eq!(
                    rounded(divisions, request),
                    size,
                    "{request}, {divisions} divisions"
                );
            }
        }
    }

    #[test]
    fn divisions_are_chosen_by_the_power_of_two() {
        let mut divisions = [0; 16];
        divisions[0] = 8;
        divisions[9] = 2;
        divisions[15] = 4;
        let rounder = Rounder::new(&Rounding {
            divisions,
            bypass: None,
        })
        .unwrap();
        for (request, size) in [
            // The first entry: everything below 2 MiB.
            (500 * KIB, 512 * KIB),
            (2 * MIB - 1, 2 * MIB),
            // An entry of 0: no rounding.
            (2 * MIB + 1, 2 * MIB + 512),
            (511 * MIB + 1, 511 * MIB + 512),
            // 512 MiB to below 1 GiB.
            (512 * MIB + 1, 768 * MIB),
            (GIB + 1, GIB + 512),
            // The last entry: 32 GiB and all above.
            (32 * GIB + 1, 40 * GIB),
            (64 * GIB + 1, 80 * GIB),
        ] {
            assert_eq!(rounder.size(Bytes::new(request)), Some(Bytes::new(size)));
        }
    }

    #[test]
    fn above_the_bypass_only_slots_count() {
        let rounder = Rounder::new(&Rounding {
            divisions: [8; 16],
            bypass: Some(Bytes::mib(100)),
        })
        .unwrap();
        let size = |request| rounder.size(Bytes::new(request)).unwrap().get();
        assert_eq!(size(100 * MIB), 104 * MIB);
        assert_eq!(size(100 * MIB + 1), 100 * MIB + 512);
    }

    /// Also with settings that no text can give.
    #[test]
    fn every_size_is_slots_and_holds_its_request() {
        for divisions in [1, 2, 3, 7, 8, 1 << 20, u32::MAX] {
            for power in 0..64 {
                for request in [(1_u64 << power) - 1, 1 << power, (1 << power) + 1] {
                    let rounding = Rounding {
                        divisions: [divisions; 16],
                        bypass: None,
                    };
                    let Some(rounder) = Rounder::new(&rounding) else {
                        continue;
                    };
                    if let Some(size) = rounder.size(Bytes::new(request)) {
                        assert!(size.get() >= request);
                        assert_eq!(size.get() % 512, 0, "{request}, {divisions}");
                    }
                }
            }
        }
        assert_eq!(Rounder::new(&Rounding::default()).map(|_| ()), None);
    }
}
