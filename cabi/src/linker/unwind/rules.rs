//! How to get from a place in the code to the caller of its function.
//!
//! Owns a table of such rules by program counter, which fills as places are
//! met. Invariant: what is found for a place was put there for it, in this epoch.
//! Lock-free. Cost: two loads for a rule that is there; 256 KiB, touched as it
//! fills.

use vramalloc_core::lookup::Pairs;

/// How the frame pointer of the caller is found.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Saved {
    /// The function has not changed it.
    Unchanged,
    /// At so many words from the frame's address.
    At(i16),
    /// At so many words from where the frame pointer points.
    AtPointer(i16),
    /// In no place that we read.
    Lost,
}

/// Where the frame's address is: that of the stack pointer in the caller.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Base {
    StackPointer(i32),
    FramePointer(i32),
    /// In memory, there from the frame pointer.
    Behind(i32),
}

/// What comes after a place.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// A caller, whose address lies below that of the frame.
    Caller(Base, Saved),
    /// Nothing: the thread began here.
    Nothing,
    /// Nobody knows, or it takes more than we do.
    Unknown,
}

/// What is known of a place.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Rule {
    pub(super) next: Next,
    /// Whether it is in a Python interpreter.
    pub(super) is_python: bool,
}

const IS_THERE: u64 = 1 << 63;
const IS_PYTHON: u64 = 1 << 62;
const NEXT_BITS: u32 = 56;
const SAVED_BITS: u32 = 58;

impl Rule {
    /// Where a rule is wanted of a place that nothing is known of.
    pub(super) const UNKNOWN: Rule = Rule {
        next: Next::Unknown,
        is_python: false,
    };

    /// In one word that is not zero: the base's offset in 32 bits, that of the
    /// saved pointer in 16, and what they are counted from.
    fn packed(self) -> u64 {
        let offset = |by: i32| u64::from(by.cast_unsigned());
        let words = |by: i16| u64::from(by.cast_unsigned()) << 32;
        let (kind, base, saved) = match self.next {
            Next::Nothing => (0, 0, 0),
            Next::Unknown => (1, 0, 0),
            Next::Caller(base, saved) => {
                let (from, base) = match base {
                    Base::StackPointer(by) => (0, offset(by)),
                    Base::FramePointer(by) => (1, offset(by)),
                    Base::Behind(by) => (2, offset(by)),
                };
                let (how, at) = match saved {
                    Saved::Unchanged => (0, 0),
                    Saved::At(by) => (1, words(by)),
                    Saved::AtPointer(by) => (2, words(by)),
                    Saved::Lost => (3, 0),
                };
                (2, base, at | how << SAVED_BITS | from << 60)
            }
        };
        let python = if self.is_python { IS_PYTHON } else { 0 };
        IS_THERE | python | kind << NEXT_BITS | base | saved
    }

    #[inline(always)]
    fn unpacked(word: u64) -> Rule {
        #[allow(clippy::cast_possible_truncation, reason = "that part of the word")]
        let (by, at) = (word as i32, (word >> 32) as i16);
        let next = match word >> NEXT_BITS & 3 {
            0 => Next::Nothing,
            2 => {
                let base = match word >> 60 & 3 {
                    0 => Base::StackPointer(by),
                    1 => Base::FramePointer(by),
                    _ => Base::Behind(by),
                };
                let saved = match word >> SAVED_BITS & 3 {
                    0 => Saved::Unchanged,
                    1 => Saved::At(at),
                    2 => Saved::AtPointer(at),
                    _ => Saved::Lost,
                };
                Next::Caller(base, saved)
            }
            _ => Next::Unknown,
        };
        Rule {
            next,
            is_python: word & IS_PYTHON != 0,
        }
    }
}

static TABLE: Pairs<{ 1 << 14 }> = Pairs::new();

/// A place in an epoch as one word, spread by the golden ratio. Addresses take 47
/// bits.
#[inline(always)]
fn key(place: usize, epoch: u16) -> u64 {
    (place as u64 ^ u64::from(epoch) << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// What was put there in this epoch.
#[inline(always)]
pub(super) fn of(place: usize, epoch: u16) -> Option<Rule> {
    TABLE.get(key(place, epoch)).map(Rule::unpacked)
}

pub(super) fn put(place: usize, epoch: u16, rule: Rule) {
    TABLE.put(key(place, epoch), rule.packed());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_what_it_was_before_it_was_packed() {
        let bases = [
            Base::StackPointer(8),
            Base::FramePointer(-16),
            Base::Behind(i32::MIN),
            Base::StackPointer(i32::MAX),
        ];
        let saved = [
            Saved::Unchanged,
            Saved::At(-2),
            Saved::AtPointer(i16::MAX),
            Saved::Lost,
        ];
        let callers = bases.into_iter().flat_map(|base| {
            saved
                .into_iter()
                .map(move |saved| Next::Caller(base, saved))
        });
        for next in callers.chain([Next::Nothing, Next::Unknown]) {
            for is_python in [false, true] {
                let rule = Rule { next, is_python };
                assert_eq!(Rule::unpacked(rule.packed()), rule);
            }
        }
    }

    #[test]
    fn a_rule_is_found_in_its_epoch_at_its_place() {
        let rule = |by| Rule {
            next: Next::Caller(Base::StackPointer(by), Saved::Unchanged),
            is_python: false,
        };
        // No code is here.
        let place = 0x1234_5678;
        assert_eq!(of(place, 7), None);
        put(place, 7, rule(8));
        assert_eq!(of(place, 7), Some(rule(8)));
        assert_eq!((of(place, 8), of(place + 1, 7)), (None, None));
        put(place, 8, rule(16));
        assert_eq!(
            (of(place, 7), of(place, 8)),
            (Some(rule(8)), Some(rule(16)))
        );
    }
}
