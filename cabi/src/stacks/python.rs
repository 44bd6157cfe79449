//! The places of Python of the calling thread, without the interpreter's lock.
//!
//! CPython's own structures are read where they lie, of 3.10 to 3.13. Those of the
//! calling thread do not change while it is in a call of ours, whether it holds the
//! interpreter's lock or not; no other thread's are looked at, no reference is
//! taken. Invariant: nothing is read before all that the first stack consists of
//! was read by way of the system, which answers where memory is not there, and
//! found to be what it should be: whatever is strange makes that there are no
//! places of Python in this process, and one line says why. Nor are there any in a
//! process in which Python ends, was unloaded, or has more than one interpreter where
//! the thread's cannot be told. Cost: 10 ns a place that was seen before.

mod frames;
mod layout;
mod lines;
mod memory;

use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::linker::objects::tables::Tables;
use crate::linker::unwind::modules::{self, Module};
use crate::process;
use crate::process::say::{Once, warn_once};

use layout::{Layout, Version};
use memory::{Checked, Direct};

type ThreadState = unsafe extern "C" fn() -> usize;
type Question = unsafe extern "C" fn() -> c_int;

/// The interpreter of this process.
struct Interpreter {
    version: Version,
    /// The object that it is in, which a program that embeds it can unload.
    module: Option<&'static Module>,
    /// Or why it is not read.
    reads: Result<Reads, String>,
}

/// What reading takes.
struct Reads {
    layout: Layout,
    types: Types,
    /// The thread state that is current in the calling thread (from 3.12 on).
    current: Option<ThreadState>,
    /// That which the thread had first, or the last that was current.
    own: ThreadState,
    is_ending: Question,
    /// The newest interpreter, and the first.
    newest: ThreadState,
    main: ThreadState,
    /// Whether what is read was found to be right.
    checked: AtomicU8,
}

/// The types of what is read, by their addresses.
#[derive(Copy, Clone)]
struct Types {
    code: usize,
    text: usize,
    bytes: usize,
}

/// Of [`Reads::checked`].
const UNCHECKED: u8 = 0;
const RIGHT: u8 = 1;
const WRONG: u8 = 2;

static INTERPRETER: OnceLock<Interpreter> = OnceLock::new();

/// Passes the places of Python of this thread to `push`, the innermost first, as
/// words of the table; whether there are any. `address` is in an interpreter.
#[inline]
pub(super) fn places(address: usize, push: impl FnMut(u64)) -> bool {
    interpreter_at(address).is_some_and(|interpreter| read(interpreter, push))
}

/// The interpreter, if this address is in it.
#[inline]
fn interpreter_at(address: usize) -> Option<&'static Interpreter> {
    let interpreter = match INTERPRETER.get() {
        Some(interpreter) => interpreter,
        None => meet(address),
    };
    // Its code is on this stack, so it is loaded, unless that is another one's.
    let is_it = |module: &Module| module.range.contains(&address) && module.is_there();
    interpreter.module.is_some_and(is_it).then_some(interpreter)
}

/// The same where no address is known to be in the interpreter.
pub(super) fn known_places(push: impl FnMut(u64)) -> bool {
    INTERPRETER.get().is_some_and(|interpreter| {
        let is_there = interpreter.module.is_some_and(modules::is_still_there);
        is_there && read(interpreter, push)
    })
}

/// Passes the file of each place of Python of this thread to `visit`, as
/// [`frames::each_file`]. `address` is in an interpreter. Without a word of what cannot be
/// read, and without a call of the system's in a program that has forbidden some.
pub(super) fn files(
    address: usize,
    mut visit: impl FnMut(u64, &dyn Fn() -> Option<String>) -> bool,
) {
    let is_right = |interpreter: &Interpreter| {
        let reads = interpreter.reads.as_ref();
        reads.is_ok_and(|reads| reads.checked.load(Ordering::Relaxed) == RIGHT)
    };
    if !INTERPRETER.get().is_some_and(is_right) && process::is_sandboxed() {
        return;
    }
    let Some((reads, state)) = interpreter_at(address).and_then(ready) else {
        return;
    };
    // SAFETY: as in `read`.
    let memory = unsafe { Direct::new() };
    frames::each_file(&memory, &reads.layout, &reads.types, state, |key, name| {
        visit(key, &|| (!process::is_sandboxed()).then(name).flatten())
    });
}

/// Whether places of Python are not read in this process, whatever comes.
pub(super) fn is_refused() -> bool {
    INTERPRETER.get().is_some_and(|interpreter| {
        let reads = interpreter.reads.as_ref();
        reads.is_ok_and(|reads| reads.checked.load(Ordering::Relaxed) == WRONG)
            || interpreter.reads.is_err()
    })
}

/// The version of the interpreter, and why it is not read.
pub(super) fn told() -> (Option<String>, Option<String>) {
    let Some(interpreter) = INTERPRETER.get() else {
        return (None, None);
    };
    let unread = match &interpreter.reads {
        Err(why) => Some(why.clone()),
        Ok(_) if !interpreter.module.is_some_and(modules::is_still_there) => {
            Some("it was unloaded".to_owned())
        }
        Ok(reads) => {
            let is_wrong = reads.checked.load(Ordering::Relaxed) == WRONG;
            is_wrong.then(|| STRANGE.to_owned())
        }
    };
    (Some(interpreter.version.to_string()), unread)
}

const STRANGE: &str = "its memory is not as that version's should be";

/// Says why call stacks have no places of Python, if somebody asked for those.
fn say(version: Version, why: &str) {
    if !super::are_asked_for() {
        return;
    }
    let text = format!("call stacks have no places of Python {version}: {why}");
    warn_once(Once::Python, &text);
}

#[cold]
fn meet(address: usize) -> &'static Interpreter {
    let (interpreter, is_new) = {
        let mut is_new = false;
        let interpreter = INTERPRETER.get_or_init(|| {
            is_new = true;
            let module = modules::around(address.wrapping_sub(1));
            module.map_or_else(unknown, Interpreter::of)
        });
        (interpreter, is_new)
    };
    if let (Err(why), true) = (&interpreter.reads, is_new) {
        say(interpreter.version, why);
    }
    interpreter
}

fn unknown() -> Interpreter {
    Interpreter {
        version: Version::default(),
        module: None,
        reads: Err("its version is not known".to_owned()),
    }
}

impl Interpreter {
    /// That in an object whose code is on the calling thread's stack.
    fn of(module: &'static Module) -> Interpreter {
        let told = module.tables().and_then(|tables| {
            let version = version(&tables)?;
            Some((version, Reads::of(&tables, version)))
        });
        told.map_or_else(unknown, |(version, reads)| Interpreter {
            version,
            module: Some(module),
            reads,
        })
    }
}

fn version(tables: &Tables) -> Option<Version> {
    type Text = unsafe extern "C" fn() -> *const c_char;
    let address = tables.function(c"Py_GetVersion")?;
    // SAFETY: the function of this name has this prototype. It needs no lock of the
    // interpreter's and returns a text that stays, which begins with the version.
    let text = unsafe {
        let get = std::mem::transmute::<usize, Text>(address);
        let text = get();
        if text.is_null() {
            return None;
        }
        CStr::from_ptr(text)
    };
    Version::read(text.to_bytes())
}

impl Reads {
    fn of(tables: &Tables, version: Version) -> Result<Reads, String> {
        let runtime = tables.data(c"_PyRuntime");
        let layout = Layout::of(version, runtime)?;
        let function = |names: &[&CStr]| {
            let mut found = names.iter().filter_map(|name| tables.function(name));
            found
                .next()
                .ok_or_else(|| format!("it exports no {:?}", names.first()))
        };
        let data = |name: &CStr| {
            tables
                .data(name)
                .ok_or_else(|| format!("it exports no {name:?}"))
        };
        let names: &[&CStr] = &[
            c"PyThreadState_GetUnchecked",
            c"_PyThreadState_UncheckedGet",
        ];
        let current = function(names)?;
        let own = function(&[c"PyGILState_GetThisThreadState"])?;
        let is_ending = function(&[c"Py_IsFinalizing", c"_Py_IsFinalizing"])?;
        let newest = function(&[c"PyInterpreterState_Head"])?;
        let main = function(&[c"PyInterpreterState_Main"])?;
        // SAFETY: the functions of these names have these prototypes, in all versions
        // that there is a layout of.
        let (current, own, is_ending, newest, main) = unsafe {
            (
                std::mem::transmute::<usize, ThreadState>(current),
                std::mem::transmute::<usize, ThreadState>(own),
                std::mem::transmute::<usize, Question>(is_ending),
                std::mem::transmute::<usize, ThreadState>(newest),
                std::mem::transmute::<usize, ThreadState>(main),
            )
        };
        Ok(Reads {
            layout,
            types: Types {
                code: data(c"PyCode_Type")?,
                text: data(c"PyUnicode_Type")?,
                bytes: data(c"PyBytes_Type")?,
            },
            // Before, this is the thread's that has the interpreter's lock.
            current: (version.minor >= 12).then_some(current),
            own,
            is_ending,
            newest,
            main,
            checked: AtomicU8::new(UNCHECKED),
        })
    }

    /// The state of the calling thread; none where it has none, or it is not to be
    /// told which it is.
    #[inline]
    fn thread_state(&self) -> Option<usize> {
        // SAFETY: these functions read the interpreter's own variables, and those of
        // the calling thread; none needs the interpreter's lock.
        unsafe {
            if (self.is_ending)() != 0 {
                return None;
            }
            if let Some(current) = self.current {
                let state = current();
                return Some(if state == 0 { (self.own)() } else { state })
                    .filter(|&state| state != 0);
            }
            if (self.newest)() != (self.main)() {
                return None;
            }
            Some((self.own)()).filter(|&state| state != 0)
        }
    }
}

/// What reading takes, and the state of this thread, if it is to be read.
#[inline]
fn ready(interpreter: &'static Interpreter) -> Option<(&'static Reads, usize)> {
    let reads = interpreter.reads.as_ref().ok()?;
    let state = reads.thread_state()?;
    // Relaxed: whoever sees it checked reads what is there in any case.
    let is_right = match reads.checked.load(Ordering::Relaxed) {
        RIGHT => true,
        WRONG => false,
        _ => check(interpreter, reads, state),
    };
    is_right.then_some((reads, state))
}

#[inline]
fn read(interpreter: &'static Interpreter, push: impl FnMut(u64)) -> bool {
    let Some((reads, state)) = ready(interpreter) else {
        return false;
    };
    // SAFETY: what was checked has the layout that is expected; the state is this
    // thread's, which is in a call of ours.
    let memory = unsafe { Direct::new() };
    frames::each(&memory, &reads.layout, &reads.types, state, push)
}

/// Whether the stack of this thread is what it should be, by way of the system.
#[cold]
#[inline(never)]
fn check(interpreter: &Interpreter, reads: &Reads, state: usize) -> bool {
    // SAFETY: a question without arguments.
    let main = unsafe { (reads.main)() };
    match frames::check(&Checked, &reads.layout, &reads.types, state, main) {
        frames::Verdict::Right => {
            reads.checked.store(RIGHT, Ordering::Relaxed);
            true
        }
        frames::Verdict::Unsaid => false,
        frames::Verdict::Wrong => {
            reads.checked.store(WRONG, Ordering::Relaxed);
            say(interpreter.version, STRANGE);
            false
        }
    }
}
