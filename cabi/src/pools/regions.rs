//! Regions: stretches of a thread's program whose memory bears a tag, so that it can be
//! paused by it.
//!
//! In each context, memory of a region has an arena of its own, and with that ranges of
//! its own: no unit of memory is shared by two tags, or with memory in no region. Memory
//! whose contents are kept and memory whose contents are dropped lie apart too.
//!
//! Owns the tags, which stay until the process ends, and which regions each thread is
//! in. Cost: an atomic load per request while no thread ever was in a region; then, in a
//! thread that is in one, a look at the arenas that serve.

use std::cell::Cell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

use spin::mutex::SpinMutex;
use vramalloc_core::arena::Contents;
use vramalloc_core::patience::Brief;

use crate::process::shortcut;

/// A tag, and what becomes of the contents of its memory in a pause.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Region {
    pub(crate) tag: Box<CStr>,
    pub(crate) contents: Contents,
}

/// How many regions a thread may be in, one inside the other.
const MOST: usize = 16;

/// The regions that a thread is in, the innermost last.
#[derive(Copy, Clone)]
struct Inside {
    depth: usize,
    regions: [Option<&'static Region>; MOST],
}

thread_local! {
    static INSIDE: Cell<Inside> = const { Cell::new(Inside { depth: 0, regions: [None; MOST] }) };
}

static REGIONS: SpinMutex<Vec<&'static Region>, Brief> = SpinMutex::new(Vec::new());

/// Whether there is or was a region. Relaxed: a thread that is in one has set it.
static ANY: AtomicBool = AtomicBool::new(false);

/// Begins a region of the calling thread; false where it is in as many as it may be.
pub(crate) fn begin(tag: &CStr, contents: Contents) -> bool {
    let mut inside = INSIDE.get();
    if inside.depth == MOST {
        return false;
    }
    shortcut::close();
    ANY.store(true, Ordering::Relaxed);
    inside.regions[inside.depth] = Some(region(tag, contents));
    inside.depth += 1;
    INSIDE.set(inside);
    true
}

/// Ends the innermost one; false where there is none.
pub(crate) fn end() -> bool {
    let mut inside = INSIDE.get();
    if inside.depth == 0 {
        return false;
    }
    inside.depth -= 1;
    INSIDE.set(inside);
    shortcut::open();
    true
}

/// The innermost region that the calling thread is in.
#[inline]
pub(crate) fn current() -> Option<&'static Region> {
    if !ANY.load(Ordering::Relaxed) {
        return None;
    }
    innermost()
}

#[cold]
fn innermost() -> Option<&'static Region> {
    let inside = INSIDE.get();
    inside.regions[..inside.depth].last().copied().flatten()
}

/// The region of this tag, which is new where there is none.
fn region(tag: &CStr, contents: Contents) -> &'static Region {
    let find = |regions: &Vec<&'static Region>| {
        let mut known = regions.iter().copied();
        known.find(|known| *known.tag == *tag && known.contents == contents)
    };
    if let Some(known) = find(&REGIONS.lock()) {
        return known;
    }
    // Made without the lock; another thread may be faster.
    let made = Box::new(Region {
        tag: tag.into(),
        contents,
    });
    let mut regions = REGIONS.lock();
    match find(&regions) {
        Some(known) => known,
        None => {
            let made: &'static Region = Box::leak(made);
            regions.push(made);
            made
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_inside_each_other_and_their_threads() {
        assert_eq!(current(), None);
        assert!(begin(c"a", Contents::Keep));
        let a = current().unwrap();
        assert!(begin(c"b", Contents::Drop));
        assert_eq!(*current().unwrap().tag, *c"b");
        std::thread::spawn(|| {
            assert_eq!(current(), None);
            assert!(!end());
        })
        .join()
        .unwrap();
        assert!(end());
        assert!(std::ptr::eq(current().unwrap(), a));
        assert!(begin(c"a", Contents::Keep));
        assert!(std::ptr::eq(current().unwrap(), a));
        assert!(begin(c"a", Contents::Drop));
        assert!(!std::ptr::eq(current().unwrap(), a));
        while end() {}
        for _ in 0..MOST {
            assert!(begin(c"deep", Contents::Keep));
        }
        assert!(!begin(c"deep", Contents::Keep));
        while end() {}
        assert_eq!(current(), None);
    }
}
