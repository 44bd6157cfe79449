//! Whether look-ups of CUDA's functions reach ours. Found out once.

use std::ffi::{CStr, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use vramalloc_core::stats::NOT_SERVED;

use crate::linker::objects::is_own;
use crate::linker::resolve::{Dlsym, driver_function, driver_function_by, real_dlsym};
use crate::process;
use crate::process::guard::own_call;
use crate::process::say::warn;
use crate::process::shortcut;
use crate::real::known;

/// The `dlsym` that a global look-up finds.
fn first_dlsym() -> Option<Dlsym> {
    // SAFETY: a pseudo handle and a name ending in zero.
    let first = unsafe { real_dlsym()?(libc::RTLD_DEFAULT, c"dlsym".as_ptr()) };
    // SAFETY: null, or a function of that name.
    unsafe { std::mem::transmute::<*mut c_void, Option<Dlsym>>(first) }
}

/// Whether the program's look-ups reach our `dlsym`: the library was preloaded,
/// or the program is linked with it. If it was loaded later, by `dlopen`, the
/// program and its libraries found their `dlsym` before us.
pub(crate) fn is_in_front() -> bool {
    static FIRST: OnceLock<bool> = OnceLock::new();
    *FIRST.get_or_init(|| first_dlsym().is_some_and(|first| is_own(first as *const () as usize)))
}

/// Whether look-ups of the driver's functions reach our doors.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Reach {
    /// No driver is loaded yet.
    Unknown = 0,
    Doors = 1,
    /// Another `dlsym` answers, and not with our doors: we do not hear of the
    /// end of a context, a capture, or a handle for another process.
    PastUs = 2,
}

/// Found once, by the look-up that a runtime does. Relaxed throughout: the
/// value guards no other memory.
static REACH: AtomicU8 = AtomicU8::new(Reach::Unknown as u8);

pub(crate) fn reach() -> Reach {
    match REACH.load(Ordering::Relaxed) {
        1 => Reach::Doors,
        2 => Reach::PastUs,
        _ => find_reach(),
    }
}

#[cold]
fn find_reach() -> Reach {
    const SOUGHT: &CStr = c"cuMemAlloc_v2";
    if driver_function(SOUGHT).is_none() {
        return Reach::Unknown;
    }
    let comes_to_us = is_in_front()
        || first_dlsym().is_some_and(|first| {
            let found = own_call(|| driver_function_by(first, SOUGHT));
            found.is_some_and(is_own)
        });
    let reach = if comes_to_us {
        Reach::Doors
    } else {
        Reach::PastUs
    };
    let before = REACH.swap(reach as u8, Ordering::Relaxed);
    // Unknown was the reason; another thread may have found it before.
    let is_first = before == Reach::Unknown as u8;
    if reach == Reach::Doors && is_first && known::find() {
        shortcut::open();
    }
    reach
}

/// Whether we hear when a capture begins.
pub(crate) fn hears_of_captures() -> bool {
    reach() != Reach::PastUs
}

static HANDED_ON: AtomicBool = AtomicBool::new(false);

/// Whether requests were handed on because look-ups do not reach our doors.
pub(crate) fn handed_on() -> bool {
    HANDED_ON.load(Ordering::Relaxed)
}

/// Notes that a request is handed on. Warns only if there is a limit.
#[cold]
pub(crate) fn hand_on() {
    if reach() != Reach::PastUs || HANDED_ON.swap(true, Ordering::Relaxed) {
        return;
    }
    let limit = process::options(|loaded| loaded.settings.config.is_limited());
    if limit {
        warn(&format!("limit is not in force: {NOT_SERVED}"));
    }
}
