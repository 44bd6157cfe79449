//! The objects that code on a stack belongs to, without the linker's lock.
//!
//! Owns a list of every object that code was met in, also of those that were
//! unloaded: what refers to one by its number stays right. It is asked of the
//! linker by `_dl_find_object` (glibc 2.35 and later), which takes no lock; before,
//! the system's list of mappings says where an object begins. The rest stands in
//! the object's own headers. Invariant: an object that is not `gone` was there
//! when it was looked at last; where another lies in its place, the *epoch* is
//! over, in which rules and stacks are known by addresses. Cost: some
//! microseconds for an object that is new, 10 ns for each known one when all are
//! looked at.

use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use spin::mutex::{SpinMutex, SpinMutexGuard};
use vramalloc_core::patience::Brief;

use super::super::objects::{self, tables::Tables};
use super::maps;

/// An object that code was met in.
pub(crate) struct Module {
    /// The place in the list of the first that was loaded from this file, as it is.
    pub(crate) number: u32,
    /// As the linker names it, but never relative; empty for the program.
    pub(crate) path: Vec<u8>,
    /// Its load bias: addresses in memory minus addresses in its file.
    pub(crate) bias: usize,
    pub(crate) build_id: Vec<u8>,
    /// The addresses that it occupies, or did.
    pub(crate) range: Range<usize>,
    /// Where its tables for unwinding begin, and what can be read from there on.
    pub(super) unwind: Option<Range<usize>>,
    /// Whether it is a Python interpreter.
    pub(crate) is_python: bool,
    dynamic: usize,
    /// What tells it from another that begins in its place.
    mark: Mark,
    gone: AtomicBool,
}

impl Module {
    /// What it exports, while code of it is on the calling thread's stack.
    pub(crate) fn tables(&self) -> Option<Tables> {
        // SAFETY: its headers said where the section lies, and it is loaded
        // while its code is on a stack.
        unsafe { Tables::read(self.dynamic, self.bias) }
    }

    /// Whether all is the same but the places in the list.
    fn looks_as(&self, other: &Module) -> bool {
        let parts = |of: &Module| (of.bias, of.dynamic, of.mark, of.is_python);
        let ranges = (&self.range, &self.unwind) == (&other.range, &other.unwind);
        let names = (&self.path, &self.build_id) == (&other.path, &other.build_id);
        ranges && names && parts(self) == parts(other)
    }

    /// Whether it was still loaded when that was looked at last.
    pub(crate) fn is_there(&self) -> bool {
        !self.gone.load(Ordering::Relaxed)
    }
}

/// Where an object ends, and where the linker's entry for it and its tables are, if
/// the linker was asked.
type Mark = (usize, usize, usize);

/// Every object so far, in the order in which they were met.
static MODULES: SpinMutex<Vec<&'static Module>, Brief> = SpinMutex::new(Vec::new());

/// Whether a thread that has the list is not in this process, a child: there is none then.
static IS_LOST: AtomicBool = AtomicBool::new(false);

/// Called in a child, by its one thread.
pub(crate) fn forked() {
    IS_LOST.store(MODULES.is_locked(), Ordering::Relaxed);
}

fn modules() -> Option<SpinMutexGuard<'static, Vec<&'static Module>, Brief>> {
    (!IS_LOST.load(Ordering::Relaxed)).then(|| MODULES.lock())
}

/// How often an object has lain where another did before.
static EPOCH: AtomicU32 = AtomicU32::new(0);

/// What is to be done when one is gone.
static WHEN_GONE: OnceLock<fn()> = OnceLock::new();

/// Has `forget` called, which takes no lock, whenever an object is found to be gone: it
/// forgets what is known of its addresses. The first that is given here is called.
pub(crate) fn when_one_is_gone(forget: fn()) {
    WHEN_GONE.get_or_init(|| forget);
}

/// The epoch, counted round.
#[inline(always)]
pub(super) fn epoch() -> u16 {
    // Relaxed: what is known by an address in an old epoch stays true of it, and
    // who uses it in a new one gets wrong names, and nothing worse.
    let [low, high, ..] = EPOCH.load(Ordering::Relaxed).to_le_bytes();
    u16::from_le_bytes([low, high])
}

/// What `_dl_find_object` tells, and what later ones may.
#[repr(C)]
struct Found {
    flags: u64,
    start: usize,
    end: usize,
    link: *const Link,
    frames: usize,
    reserved: [u64; 11],
}

impl Found {
    fn mark(&self) -> Mark {
        (self.end, self.link.addr(), self.frames)
    }
}

/// The public part of a `link_map`.
#[repr(C)]
struct Link {
    bias: usize,
    name: *const std::ffi::c_char,
}

type FindObject = unsafe extern "C" fn(*mut c_void, *mut Found) -> c_int;

/// The linker's function, or nothing where it has none.
fn finder() -> Option<FindObject> {
    static FINDER: OnceLock<Option<FindObject>> = OnceLock::new();
    *FINDER.get_or_init(|| {
        let address = objects::of_linker(c"_dl_find_object")?;
        // SAFETY: the function of this name has this prototype.
        Some(unsafe { std::mem::transmute::<usize, FindObject>(address) })
    })
}

/// Finds out how objects are found; once, before that is in a hurry.
pub(super) fn prepare() {
    finder();
}

/// Whether it takes the system's list of mappings to find an object.
pub(crate) fn are_asked_of_system() -> bool {
    finder().is_none()
}

/// Where the object around an address begins, and its name: what all else
/// follows from; and its mark.
fn begins(address: usize) -> Option<(usize, Vec<u8>, Mark)> {
    let Some(find) = finder() else {
        let (start, path) = maps::file_around(address)?;
        return Some((start, path, Mark::default()));
    };
    let found = found(find, address)?;
    // SAFETY: the entry of an object that is loaded, because its code is on this
    // stack; its name ends in zero.
    let name = unsafe { CStr::from_ptr((*found.link).name) };
    let name = name.to_bytes().to_owned();
    // What was opened by a relative name is not found by it from another folder.
    let is_whole = name.is_empty() || name.starts_with(b"/");
    let listed = || maps::file_around(found.start).map(|(_, path)| path);
    let whole = if is_whole { None } else { listed() };
    Some((found.start, whole.unwrap_or(name), found.mark()))
}

fn found(find: FindObject, address: usize) -> Option<Found> {
    let mut found = Found {
        flags: 0,
        start: 0,
        end: 0,
        link: ptr::null(),
        frames: 0,
        reserved: [0; 11],
    };
    let place = ptr::without_provenance_mut(address);
    // SAFETY: it takes any address, and fills what has room for it.
    let missed = unsafe { find(place, &raw mut found) } != 0;
    (!missed && !found.link.is_null()).then_some(found)
}

/// The object around an address of the calling thread's stack.
pub(crate) fn around(address: usize) -> Option<&'static Module> {
    check();
    let is_it =
        |module: &&&Module| module.range.contains(&address) && !module.gone.load(Ordering::Relaxed);
    let known = modules()?.iter().find(is_it).copied();
    if known.is_some() && finder().is_some() {
        return known;
    }
    let (start, path, mark) = begins(address)?;
    if let Some(known) = known {
        if known.range.start == start && known.path == path {
            return Some(known);
        }
        leave(known);
    }
    let headers = Headers::read(start)?;
    let mut module = Module {
        number: 0,
        path,
        bias: headers.bias,
        build_id: headers.build_id(),
        range: headers.range.clone(),
        unwind: headers.unwind(),
        is_python: false,
        dynamic: headers.dynamic,
        mark,
        gone: AtomicBool::new(false),
    };
    module.is_python = module.tables().is_some_and(|tables| {
        tables.function(c"Py_GetVersion").is_some() && tables.data(c"PyCode_Type").is_some()
    });
    let mut module = Box::new(module);
    let mut modules = modules()?;
    // Another thread may have been faster.
    if let Some(known) = modules.iter().find(is_it) {
        return Some(known);
    }
    // A program may load a library a thousand times.
    if let Some(known) = modules.iter().find(|known| known.looks_as(&module)) {
        known.gone.store(false, Ordering::Relaxed);
        return Some(known);
    }
    let same =
        |known: &&'static Module| known.path == module.path && known.build_id == module.build_id;
    let number = modules.iter().position(same).unwrap_or(modules.len());
    module.number = u32::try_from(number).ok()?;
    let module: &Module = Box::leak(module);
    modules.push(module);
    Some(module)
}

/// All objects so far; that of a number is the first with it.
pub(crate) fn all() -> Vec<&'static Module> {
    modules().map_or_else(Vec::new, |modules| modules.clone())
}

fn leave(module: &Module) {
    if !module.gone.swap(true, Ordering::Relaxed) {
        EPOCH.fetch_add(1, Ordering::Relaxed);
        if let Some(forget) = WHEN_GONE.get() {
            forget();
        }
    }
}

/// Looks whether the known objects are still there. Where only the list of
/// mappings tells, that is found out when a place is new.
pub(super) fn check() {
    let Some(find) = finder() else {
        return;
    };
    for module in modules().iter().flat_map(|modules| modules.iter()) {
        if module.is_there() && !is_it(find, module) {
            leave(module);
        }
    }
}

/// Whether the linker has this object where it was.
fn is_it(find: FindObject, module: &Module) -> bool {
    let is_it = |found: Found| (found.start, found.mark()) == (module.range.start, module.mark);
    found(find, module.range.start).is_some_and(is_it)
}

/// Whether an object is loaded now, whatever is on the calling thread's stack.
pub(crate) fn is_still_there(module: &Module) -> bool {
    if module.is_there() {
        let start = module.range.start;
        let listed =
            || maps::file_around(start).is_some_and(|found| found == (start, module.path.clone()));
        if !finder().map_or_else(listed, |find| is_it(find, module)) {
            leave(module);
        }
    }
    module.is_there()
}

/// What the headers of a loaded object say of it.
struct Headers {
    bias: usize,
    range: Range<usize>,
    dynamic: usize,
    parts: Vec<libc::Elf64_Phdr>,
}

impl Headers {
    /// Those of the object that begins here, if it begins with its headers.
    fn read(start: usize) -> Option<Headers> {
        const PAGE: usize = 4096;
        const HEADER: usize = size_of::<libc::Elf64_Phdr>();
        // SAFETY: the first page of an object that is loaded. It is the file's,
        // which nobody writes to.
        let page = unsafe { maps::bytes(start..start + PAGE) };
        let (_, header, _) = {
            // SAFETY: numbers, of which all bits are values.
            unsafe { page.get(..64)?.align_to::<libc::Elf64_Ehdr>() }
        };
        let header = header.first()?;
        let table = usize::try_from(header.e_phoff).ok()?;
        let length = usize::from(header.e_phnum).checked_mul(HEADER)?;
        let is_elf = header.e_ident.starts_with(b"\x7fELF\x02");
        if !is_elf || usize::from(header.e_phentsize) != HEADER {
            return None;
        }
        let table = page.get(table..table.checked_add(length)?)?;
        // SAFETY: as above.
        let (before, parts, after) = unsafe { table.align_to::<libc::Elf64_Phdr>() };
        if !before.is_empty() || !after.is_empty() {
            return None;
        }
        let loaded = || parts.iter().filter(|part| part.p_type == libc::PT_LOAD);
        let lowest = usize::try_from(loaded().map(|part| part.p_vaddr).min()?).ok()? & !(PAGE - 1);
        let highest = loaded()
            .map(|part| part.p_vaddr.saturating_add(part.p_memsz))
            .max()?;
        let bias = start.wrapping_sub(lowest);
        let dynamic = parts.iter().find(|part| part.p_type == libc::PT_DYNAMIC);
        let at = |address: u64| {
            usize::try_from(address)
                .ok()
                .map(|at| at.wrapping_add(bias))
        };
        Some(Headers {
            bias,
            range: start..at(highest)?,
            dynamic: at(dynamic?.p_vaddr)?,
            parts: parts.to_vec(),
        })
    }

    /// Where such a part lies, from there up to the end of what is loaded with it.
    fn part(&self, kind: u32) -> impl Iterator<Item = (usize, usize, usize)> + '_ {
        let wanted = self.parts.iter().filter(move |part| part.p_type == kind);
        wanted.filter_map(|part| {
            let mut loaded = self
                .parts
                .iter()
                .filter(|part| part.p_type == libc::PT_LOAD);
            let end = part.p_vaddr.checked_add(part.p_filesz)?;
            let around = loaded.find(|loaded| {
                loaded.p_vaddr <= part.p_vaddr && end <= loaded.p_vaddr + loaded.p_filesz
            })?;
            let at = |address: u64| {
                usize::try_from(address)
                    .ok()
                    .map(|at| at.wrapping_add(self.bias))
            };
            Some((
                at(part.p_vaddr)?,
                at(end)?,
                at(around.p_vaddr + around.p_filesz)?,
            ))
        })
    }

    /// From the table of its functions on. What that points to comes after it, in
    /// the same part.
    fn unwind(&self) -> Option<Range<usize>> {
        let (start, _, end) = self.part(libc::PT_GNU_EH_FRAME).next()?;
        Some(start..end)
    }

    /// The build id, from the notes; empty if there is none.
    fn build_id(&self) -> Vec<u8> {
        let notes = self.part(libc::PT_NOTE);
        let mut notes = notes.filter_map(|(start, end, _)| {
            // SAFETY: a part of the object that is loaded as it is in the file.
            build_id_in(unsafe { maps::bytes(start..end) })
        });
        notes.next().unwrap_or_default().to_owned()
    }
}

/// The build id among notes: each has the lengths of a name and of what it says,
/// and a kind; then both, in whole words.
fn build_id_in(mut notes: &[u8]) -> Option<&[u8]> {
    const BUILD_ID: u32 = 3;
    let padded = |length: u32| usize::try_from(length).ok()?.checked_next_multiple_of(4);
    loop {
        let (head, rest) = notes.split_at_checked(12)?;
        let word = |at: usize| {
            let bytes = head.get(at..at + 4)?.try_into().ok()?;
            Some(u32::from_le_bytes(bytes))
        };
        let (name, length, kind) = (word(0)?, word(4)?, word(8)?);
        let says = rest.get(padded(name)?..)?;
        if kind == BUILD_ID && rest.starts_with(b"GNU\0") {
            return says.get(..usize::try_from(length).ok()?);
        }
        notes = says.get(padded(length)?..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_found_by_its_code_with_its_build_id_and_tables() {
        let here = build_id_in as *const () as usize;
        let module = around(here).unwrap();
        assert!(module.range.contains(&here), "{:?}", module.range);
        let program = std::env::current_exe().unwrap();
        let path = std::path::Path::new(str::from_utf8(&module.path).unwrap());
        assert!(path == program || path.as_os_str().is_empty());
        assert!(ptr::eq(around(here).unwrap(), module));
        assert!(ptr::eq(all()[module.number as usize], module));
        let there = libc::getpid as *const () as usize;
        let libc = around(there).unwrap();
        assert!(libc.path.ends_with(b"libc.so.6") && libc.build_id.len() == 20);
        assert_eq!(libc.tables().unwrap().function(c"getpid"), Some(there));
        assert!(libc.unwind.is_some() && !libc.is_python);
        let object = objects::around(there).unwrap();
        assert_eq!(object.range, libc.range);
        assert!(around(8).is_none());
    }

    #[test]
    fn an_object_is_the_same_by_the_list_of_mappings() {
        // SAFETY: a look-up by a name that ends in zero.
        let exported = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
        assert_eq!(finder().is_some(), !exported.is_null());
        let there = libc::getpid as *const () as usize;
        let (start, path) = maps::file_around(there).unwrap();
        let (other, name, _) = begins(there).unwrap();
        assert_eq!(start, other);
        assert_eq!(
            std::fs::canonicalize(std::ffi::OsStr::new(str::from_utf8(&name).unwrap())).unwrap(),
            std::fs::canonicalize(str::from_utf8(&path).unwrap()).unwrap()
        );
    }

    #[test]
    fn a_build_id_is_found_among_notes() {
        let note = |kind: u8, says: &[u8]| {
            let length = u8::try_from(says.len()).unwrap();
            let head = [4, 0, 0, 0, length, 0, 0, 0, kind, 0, 0, 0];
            let mut note = [&head[..], b"GNU\0", says].concat();
            note.resize(note.len().next_multiple_of(4), 0);
            note
        };
        let notes = [note(5, &[1; 7]), note(3, &[9; 5])].concat();
        assert_eq!(build_id_in(&notes), Some(&[9; 5][..]));
        assert_eq!(build_id_in(&notes[..notes.len() - 4]), None);
        assert_eq!(build_id_in(&note(5, &[1; 7])), None);
        assert_eq!(build_id_in(&[]), None);
    }
}
