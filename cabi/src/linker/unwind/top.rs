//! How far up the stack of the calling thread can be read.
//!
//! Invariant: from the stack pointer up to what is answered all memory is this
//! thread's stack, and stays mapped while the thread runs on it. On a stack that
//! the program made itself (for signals, for coroutines) the answer is none,
//! since nobody can tell where it ends. Cost: a comparison; the system's list of
//! mappings when a thread comes here first, when the first thread's stack has
//! grown, and for the first stacks of the program's own.

use std::cell::Cell;
use std::ops::Range;

use super::maps;

/// A thread that changes stacks has at most this many of them looked up; walks on
/// further ones find nothing.
const MOST_LOOKS: u32 = 32;

#[derive(Copy, Clone)]
struct Known {
    /// The stack that the thread began on.
    low: usize,
    high: usize,
    /// The mapping of no such stack that the thread was on last.
    other_low: usize,
    other_high: usize,
    looks: u32,
    /// How often it was asked for.
    walks: u32,
}

thread_local! {
    static KNOWN: Cell<Known> = const {
        Cell::new(Known {
            low: 0,
            high: 0,
            other_low: 0,
            other_high: 0,
            looks: 0,
            walks: 0,
        })
    };
}

/// The end of the calling thread's stack, if the stack pointer is on it; and how
/// often the thread has asked.
#[inline(always)]
pub(super) fn of(stack_pointer: usize) -> Option<(usize, u32)> {
    KNOWN.with(|cell| {
        let mut known = cell.get();
        known.walks = known.walks.wrapping_add(1);
        cell.set(known);
        if (known.low..known.high).contains(&stack_pointer) {
            return Some((known.high, known.walks));
        }
        Some((look(known, stack_pointer)?, known.walks))
    })
}

#[cold]
#[inline(never)]
fn look(known: Known, stack_pointer: usize) -> Option<usize> {
    let is_other = (known.other_low..known.other_high).contains(&stack_pointer);
    if is_other || known.looks >= MOST_LOOKS {
        return None;
    }
    let around = maps::around(stack_pointer).unwrap_or(stack_pointer..stack_pointer + 1);
    let high = end_within(&around, stack_pointer);
    KNOWN.set(match high {
        Some(high) => Known {
            low: around.start,
            high,
            ..known
        },
        None => Known {
            other_low: around.start,
            other_high: around.end,
            looks: known.looks + 1,
            ..known
        },
    });
    high
}

/// Where the thread's stack ends, if that is in the mapping around the stack
/// pointer: at the thread's own data, which the C library puts above the stack
/// of each thread but the first, or at what the system left above the first's.
fn end_within(mapping: &Range<usize>, stack_pointer: usize) -> Option<usize> {
    // SAFETY: a question without arguments that are pointers.
    let first = unsafe { libc::getauxval(libc::AT_RANDOM) };
    let ends = [thread_pointer(), usize::try_from(first).unwrap_or(0)];
    let end = ends
        .into_iter()
        .find(|end| mapping.contains(end) && *end > stack_pointer);
    end.map(|end| end & !7)
}

/// Where the calling thread's own data is.
fn thread_pointer() -> usize {
    let pointer;
    // SAFETY: the x86-64 ABI: the word at the thread pointer is its own address.
    unsafe {
        std::arch::asm!("mov {}, qword ptr fs:[0]", out(reg) pointer, options(pure, readonly, nostack));
    }
    pointer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_an_end_and_a_stack_of_no_thread_has_none() {
        fn here() -> (usize, usize) {
            let local = 0_u64;
            let address = (&raw const local).addr();
            let (end, walks) = of(address).unwrap();
            assert_eq!(of(address), Some((end, walks + 1)));
            assert!(end > address && end - address < 1 << 30);
            (address, end)
        }
        let (_, first) = here();
        let (address, second) = std::thread::spawn(here).join().unwrap();
        assert!(first != second);
        // The other thread's stack is not ours, nor is the heap.
        let heap = Box::new(0_u64);
        assert_eq!((of(address), of((&raw const *heap).addr())), (None, None));
        assert!(here().1 == first);
    }
}
