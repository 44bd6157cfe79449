//! Which library of the program asked for memory.
//!
//! A door that takes memory passes its return address on: an address in the code
//! of the library that called. Which library that is was looked for at the first
//! call from there; later ones find it in a table, by that address.
//!
//! A call that comes out of CUDA itself, as from the runtime for `cudaMallocPitch`,
//! is that of the library around it: the stack is walked for each of those. So is one
//! that we handed on to the runtime, which then calls the driver's door. One that
//! comes out of a binding, such as ctypes ([`packages`]), is that of the package, or the
//! file outside of packages, whose Python code made it: the places of Python are looked
//! at for each of those. Where they cannot be read, it is the binding's.
//!
//! Owns the libraries and packages that asked so far, of which each has a number for
//! good, and the table. Invariant: an entry of the table is one word, so it is of one
//! call. When a library is found to be gone, the table is made anew. On other
//! processors than x86-64 nobody is known: a walk for each call would take too long.
//! Cost: a load and a comparison for a call that is known; for one out of a
//! binding some 0.1 us, the first in a process up to a millisecond; some microseconds
//! for one that is not known. The linker's lock is never taken.

mod packages;

use std::cell::Cell;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};

use spin::mutex::SpinMutex;
use vramalloc_core::library::LibraryId;
use vramalloc_core::lookup::Pairs;
use vramalloc_core::patience::Brief;

use crate::linker::objects;
use crate::linker::unwind::{self, modules};
use crate::process;
use crate::process::fast_local::{Zeroed, fast_local};
use crate::stacks;

// SAFETY: in a cell; a number.
unsafe impl Zeroed for Cell<usize> {}

fast_local! {
    /// Where the door returns to that the calling thread came through last; zero:
    /// not known.
    fn last() -> Cell<usize> = CALLER to LAST_POOL;
}

/// Calls that the table has room for.
const CALLS: usize = 1024;

/// Frames that are looked at for the library around one of CUDA's own, and for the
/// interpreter around a binding.
const DEEPEST: usize = 32;

/// Where each call returns to, and in the lowest byte whose it is.
static KNOWN: [AtomicU64; CALLS] = [const { AtomicU64::new(0) }; CALLS];

/// Marks an entry of a call out of a binding, which is then none of a call that is
/// known: no address has this bit. The lowest byte has the binding's own number, once
/// it was needed.
const OF_BINDING: u64 = 1 << 63;

/// Marks an entry of a call out of CUDA or of this library in the same way.
const OF_INSIDE: u64 = 1 << 62;

/// What files of Python count under, by what tells them: a number, or [`PASSED`].
static CODE: Pairs<256> = Pairs::new();
const PASSED: u64 = 1 << 8;

/// The library numbered 1 comes first.
static LIBRARIES: SpinMutex<Book, Brief> = SpinMutex::new(Book { all: Vec::new() });

struct Book {
    /// Their paths, and those of packages; the program's own is empty.
    all: Vec<Vec<u8>>,
}

impl Book {
    /// The number of a library.
    fn number(&mut self, path: &[u8]) -> LibraryId {
        let at = self.all.iter().position(|known| known == path);
        let at = at.unwrap_or(self.all.len());
        // The last number is that of all others.
        match u8::try_from(at + 1) {
            Ok(number) if number < LibraryId::OTHERS.number() => {
                if at == self.all.len() {
                    self.all.push(path.to_vec());
                }
                LibraryId::new(number)
            }
            _ => LibraryId::OTHERS,
        }
    }
}

/// Which entry of the table a call has.
#[inline(always)]
fn entry(call: usize) -> &'static AtomicU64 {
    &KNOWN[(call ^ call >> 10) % CALLS]
}

/// The library that a call comes from which returns to this address, where that is
/// known already.
#[inline(always)]
pub(crate) fn known(call: usize) -> Option<LibraryId> {
    // Relaxed: the word says all of it.
    let word = entry(call).load(Ordering::Relaxed);
    let [number, ..] = word.to_le_bytes();
    (word >> 8 == call as u64).then(|| LibraryId::new(number))
}

/// A binding that made a call.
struct Binding {
    /// Where the call returns to.
    call: usize,
    /// Its own number, if it needed one so far.
    own: Option<LibraryId>,
}

/// The binding that a call comes out of which returns to this address, where it is known
/// to come out of one.
fn binding(call: usize) -> Option<Binding> {
    let number = LibraryId::new(marked(call, OF_BINDING)?);
    let own = Some(number).filter(|&own| own != LibraryId::UNKNOWN);
    Some(Binding { call, own })
}

/// The lowest byte of a call's entry, if it has one with this mark.
fn marked(call: usize, mark: u64) -> Option<u8> {
    let word = entry(call).load(Ordering::Relaxed) ^ mark;
    let [number, ..] = word.to_le_bytes();
    (word >> 8 == call as u64).then_some(number)
}

fn learn(call: usize, library: LibraryId) {
    store(call, library, 0);
}

fn store(call: usize, library: LibraryId, mark: u64) {
    let word = (call as u64) << 8 | u64::from(library.number()) | mark;
    entry(call).store(word, Ordering::Relaxed);
}

/// A call of the program has come through a door that returns to this address; zero:
/// through another function of ours.
pub(crate) fn came_from(call: usize) {
    last().set(call);
}

/// The library that the calling thread's call comes from.
pub(crate) fn current() -> LibraryId {
    let call = last().get();
    if call == 0 && cfg!(target_arch = "x86_64") {
        return find(call);
    }
    known(call).unwrap_or_else(|| find(call))
}

/// Looks for that library.
#[cold]
fn find(call: usize) -> LibraryId {
    if !process::options(|loaded| loaded.settings.owners) {
        learn(call, LibraryId::UNKNOWN);
        return LibraryId::UNKNOWN;
    }
    if call == 0 {
        return find_around(None);
    }
    match look(call) {
        Some(Place::Outside(library)) => library,
        Some(Place::Binding(binding)) => find_around(Some(binding)),
        Some(Place::Inside) => find_around(None),
        // Code that a program made for itself; it may be freed again, and is looked for
        // again where that costs little.
        None => {
            if modules::are_asked_of_system() {
                learn(call, LibraryId::UNKNOWN);
            }
            LibraryId::UNKNOWN
        }
    }
}

/// The innermost library on the stack that is neither CUDA's nor ours; of the code of
/// Python around it, if that is a binding, or if it is known that one, `binding`, made
/// the call.
fn find_around(mut binding: Option<Binding>) -> LibraryId {
    let (mut frames, mut library, mut interpreter) = (0, LibraryId::UNKNOWN, None);
    unwind::places(|place| {
        frames += 1;
        if binding.is_none() {
            match look(place.address) {
                Some(Place::Outside(found)) => {
                    library = found;
                    return false;
                }
                Some(Place::Binding(found)) => binding = Some(found),
                Some(Place::Inside) | None => {}
            }
        }
        if binding.is_some() {
            interpreter = place.is_python.then_some(place.address);
        }
        interpreter.is_none() && frames < DEEPEST
    });
    let Some(binding) = binding else {
        return library;
    };
    let code = interpreter.and_then(find_code);
    code.or(binding.own).unwrap_or_else(|| number(&binding))
}

/// Whose code of Python runs on this thread, in the interpreter around this address.
fn find_code(interpreter: usize) -> Option<LibraryId> {
    let mut found = None;
    stacks::files_of_python(interpreter, |file, name| {
        let under = CODE.get(file).or_else(|| number_code(file, &name()?));
        found = under.filter(|&under| under != PASSED);
        under == Some(PASSED)
    });
    let [number, ..] = found?.to_le_bytes();
    Some(LibraryId::new(number))
}

/// What a file of Python counts under, from now on.
fn number_code(file: u64, name: &str) -> Option<u64> {
    let under = match packages::of_code(name.as_bytes()) {
        Some(path) => u64::from(LIBRARIES.lock().number(path).number()),
        None => PASSED,
    };
    CODE.put(file, under);
    Some(under)
}

/// The number of a binding itself.
fn number(binding: &Binding) -> LibraryId {
    let Some(module) = modules::around(binding.call.wrapping_sub(1)) else {
        return LibraryId::UNKNOWN;
    };
    let own = LIBRARIES.lock().number(&module.path);
    // If Python is never read, the next call need not ask.
    let is_final = stacks::python_is_refused();
    store(binding.call, own, if is_final { 0 } else { OF_BINDING });
    own
}

enum Place {
    Outside(LibraryId),
    /// It calls for others.
    Binding(Binding),
    /// In the runtime or the driver, or in this library.
    Inside,
}

/// Looks whose code it is that a call returns to, and remembers it.
fn look(call: usize) -> Option<Place> {
    if let Some(library) = known(call) {
        return Some(Place::Outside(library));
    }
    if let Some(binding) = binding(call) {
        return Some(Place::Binding(binding));
    }
    if marked(call, OF_INSIDE).is_some() {
        return Some(Place::Inside);
    }
    modules::when_one_is_gone(forget);
    // A call returns behind itself, which may be in another library.
    let code = call.wrapping_sub(1);
    let module = modules::around(code)?;
    let path = &*module.path;
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    let is_cuda = name.starts_with(b"libcudart.so") || name.starts_with(b"libcuda.so");
    if is_cuda || objects::own().contains(&code) {
        store(call, LibraryId::UNKNOWN, OF_INSIDE);
        return Some(Place::Inside);
    }
    if packages::is_binding(path) || module.is_python && is_interpreter(path) {
        store(call, LibraryId::UNKNOWN, OF_BINDING);
        return Some(Place::Binding(Binding { call, own: None }));
    }
    let library = LIBRARIES.lock().number(packages::of_library(path));
    learn(call, library);
    Some(Place::Outside(library))
}

fn is_interpreter(path: &[u8]) -> bool {
    if path.is_empty() {
        if process::is_sandboxed() {
            return false;
        }
        let program = std::env::current_exe().unwrap_or_default();
        return packages::is_interpreter(program.as_os_str().as_bytes());
    }
    packages::is_interpreter(path)
}

/// Makes the table anew: another library may come to lie where one lay.
fn forget() {
    (KNOWN.iter()).for_each(|entry| entry.store(0, Ordering::Relaxed));
}

/// The path of each library or package that asked, from number 1 on; the program's is
/// that of its file.
pub(crate) fn paths() -> Vec<String> {
    let program = std::env::current_exe().unwrap_or_default();
    let book = LIBRARIES.lock();
    let path = |path: &Vec<u8>| {
        let path = if path.is_empty() {
            program.as_os_str().as_bytes()
        } else {
            path
        };
        String::from_utf8_lossy(path).into_owned()
    };
    book.all.iter().map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use vramalloc_core::library::MOST_LIBRARIES;

    #[test]
    fn a_call_is_known_once_it_was_looked_for() {
        let call = libc::getpid as *const () as usize + 1;
        assert_eq!(known(call), None);
        came_from(call);
        let library = current();
        assert_ne!(library, LibraryId::UNKNOWN);
        assert_eq!((known(call), current()), (Some(library), library));
        let at = usize::from(library.number()) - 1;
        assert!(paths()[at].contains("libc"));
        came_from(8);
        assert_eq!((current(), known(8)), (LibraryId::UNKNOWN, None));
    }

    #[test]
    fn a_call_out_of_this_library_is_looked_for_once() {
        let call = forget as *const () as usize + 1;
        for _ in 0..2 {
            assert!(matches!(look(call), Some(Place::Inside)));
            assert!(marked(call, OF_INSIDE).is_some() && known(call).is_none());
        }
        // No object is there, so none was asked for.
        store(16, LibraryId::UNKNOWN, OF_INSIDE);
        assert!(matches!(look(16), Some(Place::Inside)) && look(24).is_none());
    }

    #[test]
    fn libraries_beyond_the_last_number_are_others() {
        let mut book = Book { all: Vec::new() };
        let mut number = |at: usize| usize::from(book.number(at.to_string().as_bytes()).number());
        for at in 0..2 * MOST_LIBRARIES {
            let expected = (at + 1).min(MOST_LIBRARIES - 1);
            assert_eq!((number(at), number(at)), (expected, expected));
        }
        assert_eq!(number(0), 1);
    }
}
