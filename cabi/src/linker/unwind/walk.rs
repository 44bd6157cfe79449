//! The walk along a stack by rules that are known already.
//!
//! Invariant: every read lies between the stack pointer and the end of the
//! calling thread's stack, and each frame above the one before. So where a rule
//! does not fit (what unloads a library and loads another is not seen at once)
//! places are wrong, and nothing is read that is not there. Cost: 2 ns a frame
//! where the last walk came along, 8 ns elsewhere; some 20 us for a place that is
//! new.

use std::ptr;

use super::last::{Along, By, Step};
use super::rules::{Base, Next, Rule, Saved};
use super::{CodePlace, End, frame_tables, modules, rules, top};

/// After this many walks a thread looks whether a library was unloaded.
const UNCHECKED: u32 = 64;

/// What a walk needs of the processor at a place.
pub(super) struct Registers {
    pub(super) place: usize,
    pub(super) stack: usize,
    pub(super) frame: usize,
}

/// Passes each place to `more`, from that in the caller of this function outwards,
/// as long as `more` returns true.
#[inline(never)]
pub(super) fn walk(mut more: impl FnMut(CodePlace) -> bool) -> End {
    let (place, stack, frame);
    // SAFETY: the registers are only read.
    unsafe {
        std::arch::asm!(
            "lea {}, [rip]",
            "mov {}, rsp",
            "mov {}, rbp",
            out(reg) place,
            out(reg) stack,
            out(reg) frame,
            options(nomem, nostack, preserves_flags),
        );
    }
    let Some((top, walks)) = top::of(stack) else {
        return End::Elsewhere;
    };
    if walks.is_multiple_of(UNCHECKED) {
        modules::check();
    }
    let mut at = Registers {
        place,
        stack,
        frame,
    };
    let epoch = modules::epoch();
    let mut rule = rule_of(at.place, epoch);
    let mut along = Along::begin(top, epoch);
    if let Some(along) = &mut along {
        along.made(Step::new(&at, &at, By::OTHER, false));
    }
    loop {
        if let Some(along) = &mut along {
            let mut is_followed = false;
            // SAFETY: the stack pointer is that of a frame on the stack which ends at
            // `top`: here, and by what these functions promise.
            while let Some(step) = unsafe { along.next(&mut at) } {
                is_followed = true;
                if !more(step.to()) {
                    return End::Enough;
                }
            }
            if is_followed {
                rule = rule_of(at.place - 1, epoch);
            }
        }
        // SAFETY: as above. Two ways, so that what is usual stays in registers.
        let (caller, by) = unsafe {
            if rule.is_usual() {
                match usual_caller(&at, top, rule) {
                    Some(caller) => caller,
                    None => return End::Cut,
                }
            } else {
                match caller(&at, top, rule) {
                    Ok(caller) => (caller, By::OTHER),
                    Err(end) => return end,
                }
            }
        };
        // No program has code there.
        if caller.place >> 47 != 0 {
            return End::Cut;
        }
        if caller.place == 0 {
            return End::Whole;
        }
        // A call returns behind itself, which may be in another function.
        rule = rule_of(caller.place - 1, epoch);
        let step = Step::new(&at, &caller, by, rule.is_python());
        if let Some(along) = &mut along {
            along.made(step);
        }
        at = caller;
        if !more(step.to()) {
            return End::Enough;
        }
    }
}

/// A word of the thread's stack; none where it is none.
///
/// # Safety
/// From `low` up to `high`, a multiple of 8, there is the thread's stack.
unsafe fn word(at: usize, low: usize, high: usize) -> Option<usize> {
    let is_on_stack = at >= low && at < high && at.is_multiple_of(8);
    let at = ptr::with_exposed_provenance::<usize>(at);
    // SAFETY: the caller's promise.
    is_on_stack.then(|| unsafe { at.read_volatile() })
}

/// The registers in the caller, in the usual ways.
///
/// # Safety
/// From the stack pointer up to `top`, a multiple of 8, there is the thread's stack.
/// Then it is so for what is returned.
#[inline(always)]
unsafe fn usual_caller(at: &Registers, top: usize, rule: Rule) -> Option<(Registers, By)> {
    let address = rule.address(at.stack, at.frame);
    let room = top.wrapping_sub(at.stack);
    // The last word of the frame says where it returns to.
    let last = address.wrapping_sub(8);
    if last.wrapping_sub(at.stack) >= room || !address.is_multiple_of(8) {
        return None;
    }
    // SAFETY: words between the stack pointer and `top`, all of them multiples of 8.
    let read = |at: usize| unsafe { ptr::with_exposed_provenance::<usize>(at).read_volatile() };
    let saved = rule.saved(address);
    let frame = match saved {
        None => at.frame,
        Some(saved) if saved.wrapping_sub(at.stack) >= room => return None,
        Some(saved) => read(saved),
    };
    let caller = Registers {
        place: read(last),
        stack: address,
        frame,
    };
    Some((caller, By::new(saved, rule.is_from_pointer())))
}

/// The same in all ways.
///
/// # Safety
/// As there.
#[inline(never)]
unsafe fn caller(at: &Registers, top: usize, rule: Rule) -> Result<Registers, End> {
    let (base, saved) = match rule.next() {
        Next::Caller(base, saved) => (base, saved),
        Next::Nothing => return Err(End::Whole),
        Next::Unknown => return Err(End::Cut),
    };
    // SAFETY: the caller's promise.
    let word = |address| unsafe { word(address, at.stack, top) }.ok_or(End::Cut);
    let by = |from: usize, by: i32| from.wrapping_add_signed(by as isize);
    let address = match base {
        Base::StackPointer(offset) => by(at.stack, offset),
        Base::FramePointer(offset) => by(at.frame, offset),
        Base::Behind(offset) => word(by(at.frame, offset))?,
    };
    if address <= at.stack || address > top {
        return Err(End::Cut);
    }
    let words = |from: usize, words: i16| from.wrapping_add_signed(isize::from(words) * 8);
    Ok(Registers {
        place: word(address - 8)?,
        stack: address,
        frame: match saved {
            Saved::Unchanged => at.frame,
            Saved::At(offset) => word(words(address, offset))?,
            Saved::AtPointer(offset) => word(words(at.frame, offset))?,
            Saved::Lost => 0,
        },
    })
}

#[inline(always)]
fn rule_of(place: usize, epoch: u16) -> Rule {
    rules::of(place, epoch).unwrap_or_else(|| learnt(place))
}

/// The rule of a place that is new, which is known from now on. What lies in no
/// object is asked for again, where that costs little: code that a program makes
/// comes and goes.
#[cold]
#[inline(never)]
fn learnt(place: usize) -> Rule {
    let Some(module) = modules::around(place) else {
        let unknown = Rule::new(Next::Unknown, false);
        if modules::are_asked_of_system() {
            rules::put(place, modules::epoch(), unknown);
        }
        return unknown;
    };
    let rule = Rule::new(frame_tables::next(module, place), module.is_python);
    rules::put(place, modules::epoch(), rule);
    rule
}
