//! What our own code allocates: from the C library, but for our last work at the
//! end of the process.
//!
//! A signal handler may end the process while its thread is inside `malloc`,
//! which nobody can find out, and a bare program gets away with that. So the
//! thread that ends the process takes what it needs for that work from the system,
//! in pieces that are never given back, and frees nothing. Where the system has
//! none left it has to be the C library after all.
//!
//! Owns these pieces. Invariant: what lies in one never reaches the C library's
//! `free`, whichever thread gives it back. Cost: a load for what we allocate,
//! two for what we free; a hit does neither.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, UnsafeCell};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Whether a thread ends the process, and whether it is this one. Relaxed: it
/// stands for itself.
static ENDED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static ENDS: Cell<bool> = const { Cell::new(false) };
    static IS_FIRST: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, its thread ends the process.
pub(crate) struct LastWork;

impl LastWork {
    /// If two threads do, the first.
    pub(crate) fn begin() -> LastWork {
        if !ENDED.swap(true, Ordering::Relaxed) {
            IS_FIRST.set(true);
        }
        ENDS.set(IS_FIRST.get());
        LastWork
    }
}

impl Drop for LastWork {
    /// What the program does afterwards, it does for itself.
    fn drop(&mut self) {
        ENDS.set(false);
    }
}

#[inline]
fn ends() -> bool {
    ENDED.load(Ordering::Relaxed) && is_last_thread()
}

/// Apart, or each allocation would look for what belongs to the thread.
#[cold]
#[inline(never)]
fn is_last_thread() -> bool {
    ENDS.get()
}

#[global_allocator]
static HEAP: Heap = Heap;

/// See the module.
struct Heap;

// SAFETY: memory of either kind is as large and as aligned as was asked for, and
// goes back to where it came from.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !ends() {
            // SAFETY: the caller's promise.
            return unsafe { System.alloc(layout) };
        }
        last_memory(layout)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !ends() {
            // SAFETY: the caller's promise.
            return unsafe { System.alloc_zeroed(layout) };
        }
        let memory = last_memory(layout);
        if !memory.is_null() {
            // SAFETY: as many bytes as it has.
            unsafe { memory.write_bytes(0, layout.size()) };
        }
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if !is_last_memory(memory) && !ends() {
            // SAFETY: it came from there, by the caller's promise.
            unsafe { System.dealloc(memory, layout) }
        }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !is_last_memory(memory) && !ends() {
            // SAFETY: it came from there, by the caller's promise.
            return unsafe { System.realloc(memory, layout, size) };
        }
        // SAFETY: not 0, and an alignment that a layout has had, by the
        // caller's promise.
        let larger = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: as above.
        let moved = unsafe { self.alloc(larger) };
        if !moved.is_null() {
            // SAFETY: both are so large, and one of them is new.
            unsafe { ptr::copy_nonoverlapping(memory, moved, layout.size().min(size)) };
        }
        moved
    }
}

/// Memory of the system's, handed out from its beginning.
struct Piece {
    start: AtomicUsize,
    next: AtomicUsize,
    end: AtomicUsize,
}

/// Each is twice as large as the one before, from [`FIRST`] on. One thread
/// takes of them, and signal handlers that interrupt it.
static PIECES: [Piece; 24] = [const {
    Piece {
        start: AtomicUsize::new(0),
        next: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
    }
}; 24];

/// Bytes of the first one, which is there from the beginning: the end may come
/// because there is no more memory.
const FIRST: usize = 512 << 10;

/// The first one. The system gives it pages when they are used.
struct Reserved(UnsafeCell<[u8; FIRST]>);

// SAFETY: it is only handed out, as any piece is.
unsafe impl Sync for Reserved {}

static RESERVED: Reserved = Reserved(UnsafeCell::new([0; FIRST]));

/// How many of them there are. Relaxed, as all of this: what reaches another
/// thread does so by something that orders more.
static BEGUN: AtomicUsize = AtomicUsize::new(0);

/// Memory that is never handed out again. Where the system gives no more, the C
/// library may have some; null if it has none either.
#[cold]
fn last_memory(layout: Layout) -> *mut u8 {
    loop {
        let begun = BEGUN.load(Ordering::Relaxed);
        let last = begun.checked_sub(1).and_then(|last| PIECES.get(last));
        if let Some(memory) = last.and_then(|piece| piece.take(layout)) {
            return ptr::with_exposed_provenance_mut(memory);
        }
        if !PIECES
            .get(begun)
            .is_some_and(|piece| begins(piece, begun, layout))
        {
            // SAFETY: not of size 0, as what we are asked for.
            return unsafe { System.alloc(layout) };
        }
        BEGUN.store(begun + 1, Ordering::Relaxed);
    }
}

/// Fills the next piece, so that this has room in it.
fn begins(piece: &Piece, begun: usize, layout: Layout) -> bool {
    let at_least = layout.size().saturating_add(layout.align());
    if begun == 0 && at_least <= FIRST {
        piece.consist_of(RESERVED.0.get().expose_provenance(), FIRST);
        return true;
    }
    // Half of it, and half of that, where the address space is nearly used up.
    let sizes = std::iter::successors(Some(FIRST << begun), |size| Some(size / 2));
    let mut sizes = sizes.take_while(|&size| size > at_least).chain([at_least]);
    sizes.any(|size| piece.map(size))
}

fn is_last_memory(memory: *mut u8) -> bool {
    ENDED.load(Ordering::Relaxed) && is_in_piece(memory)
}

#[cold]
fn is_in_piece(memory: *mut u8) -> bool {
    let begun = BEGUN.load(Ordering::Relaxed);
    let mut pieces = PIECES.iter().take(begun);
    pieces.any(|piece| piece.holds(memory.addr()))
}

impl Piece {
    /// Fills it with memory of the system's.
    fn map(&self, size: usize) -> bool {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: new memory, at a place that the system picks.
        let start = unsafe { libc::mmap(ptr::null_mut(), size, access, how, -1, 0) };
        if start == libc::MAP_FAILED {
            return false;
        }
        self.consist_of(start.expose_provenance(), size);
        true
    }

    fn consist_of(&self, start: usize, size: usize) {
        self.start.store(start, Ordering::Relaxed);
        self.next.store(start, Ordering::Relaxed);
        self.end.store(start + size, Ordering::Relaxed);
    }

    /// The next bytes of it; `None` if too few are left.
    fn take(&self, layout: Layout) -> Option<usize> {
        let end = self.end.load(Ordering::Relaxed);
        let start_after = |next: usize| next.checked_next_multiple_of(layout.align());
        let after = |next| {
            let after = start_after(next)?.checked_add(layout.size())?;
            (after <= end).then_some(after)
        };
        let taken = (self.next).fetch_update(Ordering::Relaxed, Ordering::Relaxed, after);
        start_after(taken.ok()?)
    }

    fn holds(&self, address: usize) -> bool {
        let (start, end) = (&self.start, &self.end);
        (start.load(Ordering::Relaxed)..end.load(Ordering::Relaxed)).contains(&address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a thread of its own, which ends no process.
    #[test]
    fn the_end_allocates_nothing_of_the_c_library() {
        let mut kept = vec![7_u64; 100];
        let last = std::thread::scope(|scope| {
            let end = || {
                ENDED.store(true, Ordering::Relaxed);
                ENDS.set(true);
                kept.resize(1 << 16, 8);
                let all: Vec<String> = (0..10_000).map(|n| format!("number {n}")).collect();
                let zeros = vec![0_u8; 40 << 20];
                ENDS.set(false);
                assert!(zeros.iter().all(|zero| *zero == 0));
                assert!(
                    all.iter()
                        .all(|text| is_last_memory(text.as_ptr().cast_mut()))
                );
                assert!(is_last_memory(all.as_ptr().cast_mut().cast()));
                all
            };
            scope.spawn(end).join().unwrap()
        });
        assert_eq!(last.first().unwrap(), "number 0");
        assert_eq!(last.last().unwrap(), "number 9999");
        assert_eq!((kept[99], kept[100], kept[65_535]), (7, 8, 8));
        assert!(is_last_memory(kept.as_mut_ptr().cast()));
        // Another thread gives it back, or makes it larger.
        kept.resize(1 << 17, 9);
        assert!(!is_last_memory(kept.as_mut_ptr().cast()));
        assert_eq!((kept[99], kept[65_535], kept[65_536]), (7, 8, 9));
    }
}
