//! How far up the stack of the calling thread can be read.
//!
//! Invariant: from the stack pointer up to what is answered all memory is this
//! thread's stack, and stays mapped while the thread runs on it. On a stack that
//! the program made itself (for signals, for coroutines) the answer is none,
//! since nobody can tell where it ends. Cost: a comparison; some microseconds when
//! a thread comes here first; the system's list of mappings when the first thread
//! does, when its stack has grown, and for the first stacks of the program's own.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;

use super::maps;

/// A thread that changes stacks has at most this many of them looked up, and then one
/// in so many walks: on others, nothing is found.
const MOST_LOOKS: u32 = 32;
const SELDOM: u32 = 1024;

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
    if is_other || (known.looks >= MOST_LOOKS && !known.walks.is_multiple_of(SELDOM)) {
        return None;
    }
    let found = made_for_thread().filter(|stack| stack.contains(&stack_pointer));
    if let Some(stack) = found.or_else(|| first_stack(stack_pointer)) {
        KNOWN.set(Known {
            low: stack.start,
            high: stack.end,
            ..known
        });
        return Some(stack.end);
    }
    let around = maps::around(stack_pointer).unwrap_or(stack_pointer..stack_pointer + 1);
    KNOWN.set(Known {
        other_low: around.start,
        other_high: around.end,
        looks: known.looks + 1,
        ..known
    });
    None
}

/// The stack that the C library made for the calling thread, up to the thread's own
/// data, which it puts there; none for the first thread, whose data is elsewhere.
/// The mapping alone would not tell: the system joins mappings that meet.
fn made_for_thread() -> Option<Range<usize>> {
    let mut attributes = MaybeUninit::uninit();
    let (mut low, mut size) = (ptr::null_mut(), 0);
    // SAFETY: the attributes are set by the first, used by the second, and let go
    // once by the third.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return None;
        }
        libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut low, &raw mut size);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
    }
    let (low, end) = (low.addr(), thread_pointer() & !7);
    (low < end && end - low < size).then_some(low..end)
}

/// The stack that the system made for the first thread, if the stack pointer is on
/// it, up to what the system left above. It joins it with no other mapping.
fn first_stack(stack_pointer: usize) -> Option<Range<usize>> {
    // SAFETY: a question without arguments that are pointers.
    let end = unsafe { libc::getauxval(libc::AT_RANDOM) };
    let end = usize::try_from(end).ok()? & !7;
    let mapping = maps::around(stack_pointer)?;
    (mapping.contains(&end) && end > stack_pointer).then_some(mapping.start..end)
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

    /// A thread that was on many stacks of the program's own is told its own in the end.
    #[test]
    fn many_stacks_do_not_hide_the_threads() {
        std::thread::spawn(|| {
            let rights = libc::PROT_READ;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // Apart, so that the system joins none.
            let others: Vec<usize> = (0..2 * MOST_LOOKS)
                .map(|_| {
                    // SAFETY: two pages of our own, of which the second is given back.
                    unsafe {
                        let low = libc::mmap(ptr::null_mut(), 8192, rights, flags, -1, 0);
                        assert_ne!(low, libc::MAP_FAILED);
                        libc::munmap(low.byte_add(4096), 4096);
                        low.addr()
                    }
                })
                .collect();
            assert!(others.iter().all(|&other| of(other).is_none()));
            let local = 0_u64;
            let found = (0..=SELDOM).find_map(|_| of((&raw const local).addr()));
            assert!(found.is_some());
        })
        .join()
        .unwrap();
    }

    /// A program may put a thread's stack and one of its own into one mapping.
    #[test]
    fn a_stack_below_that_of_the_thread_is_not_its() {
        const HALF: usize = 1 << 20;
        extern "C" fn body(low: *mut libc::c_void) -> *mut libc::c_void {
            let local = 0_u64;
            let own = of((&raw const local).addr()).is_some();
            let below = of(low.addr() + HALF - 64).is_some();
            ptr::without_provenance_mut(usize::from(own) | usize::from(below) << 1)
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let mut attributes = MaybeUninit::uninit();
        let (mut thread, mut found) = (MaybeUninit::uninit(), ptr::null_mut());
        // SAFETY: a mapping of our own, whose upper half is the stack of a thread that
        // ends before it is given back.
        unsafe {
            let low = libc::mmap(ptr::null_mut(), 2 * HALF, rights, flags, -1, 0);
            assert_ne!(low, libc::MAP_FAILED);
            libc::pthread_attr_init(attributes.as_mut_ptr());
            let stack = low.byte_add(HALF);
            assert_eq!(
                libc::pthread_attr_setstack(attributes.as_mut_ptr(), stack, HALF),
                0
            );
            let made = libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), body, low);
            assert_eq!(made, 0);
            libc::pthread_join(thread.assume_init(), &raw mut found);
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
            libc::munmap(low, 2 * HALF);
        }
        assert_eq!(found.addr(), 1);
    }
}
