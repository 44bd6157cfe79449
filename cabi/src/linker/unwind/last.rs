//! The last walk of a thread, which the next is likely to meet: from there on, what
//! it found is compared, where finding it again would be one load after the other.
//!
//! Owns the steps of the last walks. A thread has one of a few places for them,
//! which it shares where there are more threads; who finds its place in use goes
//! without. Invariant: a step is followed only from the place and the stack pointer
//! that it was made from, and the frame pointer if it was counted from that, in the
//! same epoch, below the same end of the stack, and where it leads to the place that
//! it led to: a rule would come to the same. Lock-free. Cost: 2 ns a step; 6 KiB for
//! each place that was used.

use std::cell::{Cell, UnsafeCell};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::CodePlace;
use super::walk::Registers;

/// The most steps of a walk that are kept: a few of our own, and more than are asked
/// for.
const MOST: usize = 96;

/// How many threads have a place of their own.
const THREADS: usize = 64;

/// From a frame to its caller.
#[derive(Copy, Clone)]
pub(super) struct Step {
    /// Where the caller goes on, and its stack pointer.
    place: usize,
    stack: usize,
    by: By,
    /// The frame pointer that it was made from.
    frame: usize,
}

/// What a step was made by beside the stack pointer and the last word of the frame,
/// which says where it returns to; and what kind of place it leads to. The word is
/// where the caller's frame pointer is on the stack, a multiple of 8; or zero: it is
/// that of the frame.
#[derive(Copy, Clone)]
pub(super) struct By(usize);

const IS_PYTHON: usize = 1;
const IS_BY_POINTER: usize = 2;
const IS_OTHER: usize = 4;
const FLAGS: usize = 7;

impl By {
    /// By what is not told here: such a step is not followed.
    pub(super) const OTHER: By = By(IS_OTHER);

    #[inline(always)]
    pub(super) fn new(saved: Option<usize>, is_by_pointer: bool) -> By {
        let pointer = if is_by_pointer { IS_BY_POINTER } else { 0 };
        By(saved.unwrap_or(0) & !FLAGS | pointer)
    }
}

impl Step {
    const NONE: Step = Step {
        place: 0,
        stack: 0,
        by: By::OTHER,
        frame: 0,
    };

    #[inline(always)]
    pub(super) fn new(from: &Registers, to: &Registers, By(by): By, is_python: bool) -> Step {
        Step {
            place: to.place,
            stack: to.stack,
            by: By(by | if is_python { IS_PYTHON } else { 0 }),
            frame: from.frame,
        }
    }

    /// Where it leads, for who asked for places.
    #[inline(always)]
    pub(super) fn to(&self) -> CodePlace {
        CodePlace {
            address: self.place,
            is_python: self.by.0 & IS_PYTHON != 0,
        }
    }
}

struct Kept {
    /// The last walk, from here to the end, the innermost step first.
    steps: [Step; MOST],
    from: usize,
    /// What holds for it: the end of the stack, and the epoch.
    top: usize,
    epoch: u16,
    /// What of the walk under way is not in there.
    fresh: [Step; MOST],
}

struct Place {
    is_used: AtomicBool,
    kept: UnsafeCell<Kept>,
}

// SAFETY: what is kept is used by who set the flag, until it is cleared.
unsafe impl Sync for Place {}

static PLACES: [Place; THREADS] = [const {
    Place {
        is_used: AtomicBool::new(false),
        kept: UnsafeCell::new(Kept {
            steps: [Step::NONE; MOST],
            from: 0,
            // No stack ends there.
            top: 0,
            epoch: 0,
            fresh: [Step::NONE; MOST],
        }),
    }
}; THREADS];

/// The place of the calling thread.
#[inline(always)]
fn own() -> Option<&'static Place> {
    static SEEN: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        /// One more than the number of this thread; 0: it has none yet.
        static NUMBER: Cell<usize> = const { Cell::new(0) };
    }
    let mut number = NUMBER.get();
    if number == 0 {
        // Relaxed: which number it is does not matter.
        number = SEEN.fetch_add(1, Ordering::Relaxed) % THREADS + 1;
        NUMBER.set(number);
    }
    PLACES.get(number - 1)
}

/// A walk under way beside the one before it.
pub(super) struct Along {
    place: &'static Place,
    kept: &'static mut Kept,
    /// The step of the one before that led to where this is; or, apart from it, the
    /// first that leads no less far out.
    at: usize,
    is_along: bool,
    fresh: usize,
}

impl Along {
    /// A walk on the stack that ends at `top`. None where another uses this thread's
    /// place: one of another thread, or that which a signal has interrupted.
    #[inline(always)]
    pub(super) fn begin(top: usize, epoch: u16) -> Option<Along> {
        let place = own()?;
        // Acquire: pairs with the release at the end.
        if place.is_used.swap(true, Ordering::Acquire) {
            return None;
        }
        // SAFETY: the flag is ours.
        let kept = unsafe { &mut *place.kept.get() };
        if (kept.top, kept.epoch) != (top, epoch) {
            (kept.top, kept.epoch) = (top, epoch);
            kept.from = MOST;
        }
        Some(Along {
            at: kept.from,
            place,
            kept,
            is_along: false,
            fresh: 0,
        })
    }

    /// The walk made a step in another way than by [`Along::next`].
    #[inline(never)]
    pub(super) fn made(&mut self, step: Step) {
        if self.is_along {
            self.part();
        }
        let Some(place) = self.kept.fresh.get_mut(self.fresh) else {
            // What comes now does not follow what is kept.
            self.at = MOST;
            return;
        };
        *place = step;
        self.fresh += 1;
        while let Some(before) = self.kept.steps.get(self.at) {
            if before.stack >= step.stack {
                self.is_along = (before.stack, before.place) == (step.stack, step.place);
                break;
            }
            self.at += 1;
        }
        if self.is_along {
            self.meet();
        }
    }

    /// The walk has met the one before: what is new takes the place of what led there,
    /// as far as there is room.
    fn meet(&mut self) {
        let end = self.at + 1;
        let count = self.fresh.min(end);
        let new = self.kept.fresh.get(self.fresh - count..self.fresh);
        if let (Some(room), Some(new)) = (self.kept.steps.get_mut(end - count..end), new) {
            room.copy_from_slice(new);
        }
        self.kept.from = end - count;
        self.fresh = 0;
    }

    /// The walk leaves the one before: what was common is of this one alone.
    fn part(&mut self) {
        let common = self.kept.steps.get(self.kept.from..=self.at);
        let common = common.unwrap_or_default();
        if let Some(room) = self.kept.fresh.get_mut(..common.len()) {
            room.copy_from_slice(common);
        }
        self.fresh = common.len();
        self.at += 1;
        self.kept.from = self.at;
        self.is_along = false;
    }

    /// The next step, where it is that of the walk before. `at` is where the walk is,
    /// and then where that leads.
    ///
    /// # Safety
    /// From the stack pointer there up to `top`, there is the calling thread's stack.
    #[inline(always)]
    pub(super) unsafe fn next(&mut self, at: &mut Registers) -> Option<Step> {
        if !self.is_along {
            return None;
        }
        let step = *self.kept.steps.get(self.at + 1)?;
        let By(by) = step.by;
        // SAFETY: a step is made with words between the stack pointer before it and
        // `top`, and here is that stack pointer.
        let read = |at: usize| unsafe { ptr::with_exposed_provenance::<usize>(at).read_volatile() };
        let is_followed =
            by & (IS_BY_POINTER | IS_OTHER) == 0 || by & IS_OTHER == 0 && step.frame == at.frame;
        if !is_followed || read(step.stack.wrapping_sub(8)) != step.place {
            return None;
        }
        if by & !FLAGS != 0 {
            at.frame = read(by & !FLAGS);
        }
        (at.place, at.stack) = (step.place, step.stack);
        self.at += 1;
        Some(step)
    }
}

impl Drop for Along {
    #[inline(always)]
    fn drop(&mut self) {
        // The longer one is more likely to be met.
        if !self.is_along && self.fresh > MOST - self.kept.from {
            self.at = MOST - 1;
            self.meet();
        }
        // Release: what was kept is there for the next.
        self.place.is_used.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use super::super::{End, by_compiler, walk};

    // Calls what it is given, with what it is given for that, below a frame of so many
    // bytes more, a multiple of 16. Its own address is counted from the frame pointer.
    std::arch::global_asm!(
        ".local below_a_frame_of",
        "below_a_frame_of:",
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "sub rsp, rdx",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "leave",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
    );

    unsafe extern "C" {
        fn below_a_frame_of(call: extern "C" fn(&mut Tree), with: &mut Tree, bytes: usize);
    }

    /// Calls by chance, so that many walks have much in common, and no two all.
    #[repr(C)]
    struct Tree {
        seed: u64,
        depth: usize,
        walks: usize,
    }

    impl Tree {
        fn draw(&mut self, below: u64) -> u64 {
            self.seed ^= self.seed << 13;
            self.seed ^= self.seed >> 7;
            self.seed ^= self.seed << 17;
            (self.seed >> 11) % below
        }
    }

    /// Its room is as others left it: with places to return to that are none here.
    extern "C" fn wide(tree: &mut Tree) {
        let mut room = [MaybeUninit::<u64>::uninit(); 20];
        branch(tree);
        std::hint::black_box(&mut room);
    }

    extern "C" fn narrow(tree: &mut Tree) {
        let mut room = [MaybeUninit::<u64>::uninit(); 4];
        branch(tree);
        std::hint::black_box(&mut room);
    }

    extern "C" fn branch(tree: &mut Tree) {
        if tree.depth == 0 {
            same_by_both(tree);
            return;
        }
        for _ in 0..=tree.draw(4) {
            let depth = tree.depth;
            // Some go further in than others.
            tree.depth -= usize::from(tree.draw(3) > 0 || depth > 4);
            let bytes = usize::try_from(16 * tree.draw(12)).unwrap();
            match tree.draw(4) {
                0 => wide(tree),
                1 => narrow(tree),
                // SAFETY: so much room is there.
                2 => unsafe { below_a_frame_of(wide, tree, bytes) },
                // SAFETY: as there.
                _ => unsafe { below_a_frame_of(branch, tree, bytes) },
            }
            tree.depth = depth;
            if tree.walks > 3_000 {
                return;
            }
        }
    }

    /// From the caller of this on, which each walk comes to once.
    #[inline(never)]
    fn same_by_both(tree: &mut Tree) {
        tree.walks += 1;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let most = usize::try_from(6 + tree.draw(60)).unwrap();
        let end = walk::walk(|place| {
            ours.push(place.address);
            ours.len() < most
        });
        by_compiler(|address| {
            theirs.push(address);
            true
        });
        let ours = &ours[1..];
        let inner = theirs.iter().position(|place| *place == ours[0]).unwrap();
        let theirs = &theirs[inner..];
        assert!(theirs.starts_with(ours), "{ours:x?} {theirs:x?}");
        assert!(end == End::Enough || ours.len() == theirs.len());
    }

    #[test]
    fn a_walk_along_another_tells_the_same() {
        let look = |seed| {
            let mut tree = Tree {
                seed,
                depth: 7,
                walks: 0,
            };
            while tree.walks < 3_000 {
                branch(&mut tree);
            }
        };
        std::thread::scope(|scope| {
            for seed in 1..4 {
                scope.spawn(move || look(seed));
            }
        });
    }

    extern "C" fn leaf(tree: &mut Tree) {
        same_by_both(tree);
    }

    extern "C" fn one(tree: &mut Tree) {
        let bytes = 320 - tree.depth;
        // SAFETY: so much room is there.
        unsafe { below_a_frame_of(leaf, tree, bytes) };
    }

    extern "C" fn other(tree: &mut Tree) {
        let bytes = 320 - tree.depth;
        // SAFETY: as there.
        unsafe { below_a_frame_of(leaf, tree, bytes) };
        tree.walks += 1;
    }

    /// Two stacks that begin alike, at the same stack pointer, with another frame in
    /// the middle at another place. Where the first was, its words still are.
    #[test]
    fn a_frame_is_where_the_frame_pointer_says() {
        let mut tree = Tree {
            seed: 1,
            depth: 0,
            walks: 0,
        };
        for round in 0..20 {
            let depth = [0, 160, 320, 160][round % 4];
            tree.depth = depth;
            let through = if round % 2 == 0 { one } else { other };
            // SAFETY: so much room is there.
            unsafe { below_a_frame_of(through, &mut tree, depth) };
        }
    }
}
