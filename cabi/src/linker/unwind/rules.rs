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

/// What is known of a place, in one word that is not zero: the base's offset in 32
/// bits, that of the saved pointer in 16, and what they are counted from.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Rule(u64);

const IS_THERE: u64 = 1 << 63;
const IS_PYTHON: u64 = 1 << 62;
const NOTHING: u64 = 1 << 61;
const UNKNOWN: u64 = 1 << 60;
const FROM_POINTER: u64 = 1 << 48;
const BEHIND: u64 = 1 << 49;
const SAVED_AT: u64 = 1 << 50;
const SAVED_AT_POINTER: u64 = 1 << 51;
const LOST: u64 = 1 << 52;

impl Rule {
    pub(super) fn new(next: Next, is_python: bool) -> Rule {
        let python = if is_python { IS_PYTHON } else { 0 };
        let offset = |by: i32| u64::from(by.cast_unsigned());
        let words = |by: i16| u64::from(by.cast_unsigned()) << 32;
        let next = match next {
            Next::Nothing => NOTHING,
            Next::Unknown => UNKNOWN,
            Next::Caller(base, saved) => {
                let base = match base {
                    Base::StackPointer(by) => offset(by),
                    Base::FramePointer(by) => offset(by) | FROM_POINTER,
                    Base::Behind(by) => offset(by) | BEHIND,
                };
                base | match saved {
                    Saved::Unchanged => 0,
                    Saved::At(by) => words(by) | SAVED_AT,
                    Saved::AtPointer(by) => words(by) | SAVED_AT_POINTER,
                    Saved::Lost => LOST,
                }
            }
        };
        Rule(IS_THERE | python | next)
    }

    /// Whether it is in a Python interpreter.
    #[inline(always)]
    pub(super) fn is_python(self) -> bool {
        self.0 & IS_PYTHON != 0
    }

    /// Whether there is a caller that is found in one of the usual ways: the others
    /// are [`Next::Nothing`], [`Next::Unknown`], [`Base::Behind`],
    /// [`Saved::AtPointer`] and [`Saved::Lost`].
    #[inline(always)]
    pub(super) fn is_usual(self) -> bool {
        self.0 & (NOTHING | UNKNOWN | BEHIND | SAVED_AT_POINTER | LOST) == 0
    }

    /// Whether the frame's address is counted from the frame pointer, in the usual
    /// ways.
    #[inline(always)]
    pub(super) fn is_from_pointer(self) -> bool {
        self.0 & FROM_POINTER != 0
    }

    /// Where the frame's address is, in the usual ways.
    #[inline(always)]
    pub(super) fn address(self, stack: usize, frame: usize) -> usize {
        let from = if self.is_from_pointer() { frame } else { stack };
        from.wrapping_add_signed(self.offset() as isize)
    }

    /// Where the caller's frame pointer is, in the usual ways; none: it is unchanged.
    #[inline(always)]
    pub(super) fn saved(self, address: usize) -> Option<usize> {
        let at = address.wrapping_add_signed(isize::from(self.words()) * 8);
        (self.0 & SAVED_AT != 0).then_some(at)
    }

    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "that part of the word")]
    fn offset(self) -> i32 {
        self.0 as i32
    }

    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "that part of the word")]
    fn words(self) -> i16 {
        (self.0 >> 32) as i16
    }

    /// What comes next, in all ways.
    pub(super) fn next(self) -> Next {
        let has = |bit: u64| self.0 & bit != 0;
        let (by, at) = (self.offset(), self.words());
        let base = match (has(FROM_POINTER), has(BEHIND)) {
            (_, true) => Base::Behind(by),
            (true, false) => Base::FramePointer(by),
            (false, false) => Base::StackPointer(by),
        };
        let saved = if has(SAVED_AT) {
            Saved::At(at)
        } else if has(SAVED_AT_POINTER) {
            Saved::AtPointer(at)
        } else if has(LOST) {
            Saved::Lost
        } else {
            Saved::Unchanged
        };
        if has(NOTHING) {
            Next::Nothing
        } else if has(UNKNOWN) {
            Next::Unknown
        } else {
            Next::Caller(base, saved)
        }
    }
}

static TABLE: Pairs<{ 1 << 14 }> = Pairs::new();

/// A place in an epoch as one word; addresses take 47 bits.
#[inline(always)]
fn key(place: usize, epoch: u16) -> u64 {
    place as u64 ^ u64::from(epoch) << 48
}

/// What was put there in this epoch.
#[inline(always)]
pub(super) fn of(place: usize, epoch: u16) -> Option<Rule> {
    TABLE.get(key(place, epoch)).map(Rule)
}

pub(super) fn put(place: usize, epoch: u16, rule: Rule) {
    TABLE.put(key(place, epoch), rule.0);
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
                let rule = Rule::new(next, is_python);
                assert_eq!((rule.next(), rule.is_python()), (next, is_python));
                assert_ne!(rule.0, 0);
                let (stack, frame) = (1 << 40, 1 << 41);
                let address = match next {
                    Next::Caller(Base::StackPointer(by), _) => stack + i64::from(by),
                    Next::Caller(Base::FramePointer(by), _) => frame + i64::from(by),
                    _ => 0,
                };
                let saved = match next {
                    Next::Caller(_, Saved::At(by)) => Some(address + 8 * i64::from(by)),
                    _ => None,
                };
                let is_usual = !matches!(next, Next::Caller(_, Saved::AtPointer(_) | Saved::Lost));
                assert_eq!(rule.is_usual(), is_usual && address != 0, "{rule:?}");
                if rule.is_usual() {
                    let number = |number: i64| usize::try_from(number).unwrap();
                    assert_eq!(rule.address(1 << 40, 1 << 41), number(address));
                    assert_eq!(rule.saved(number(address)), saved.map(number));
                }
            }
        }
    }

    #[test]
    fn a_rule_is_found_in_its_epoch_at_its_place() {
        let rule = |by| {
            Rule::new(
                Next::Caller(Base::StackPointer(by), Saved::Unchanged),
                false,
            )
        };
        // No code is here.
        let place = 0x1234_5678;
        assert_eq!(of(place, 7), None);
        put(place, 7, rule(8));
        assert_eq!(of(place, 7), Some(rule(8)));
        assert_eq!((of(place, 8), of(place + 1, 7)), (None, None));
        put(place, 8, rule(16));
        assert_eq!((of(place, 7), of(place, 8)), (None, Some(rule(16))));
    }
}
