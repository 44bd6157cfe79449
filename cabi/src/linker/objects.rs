//! The program and the libraries that are loaded, as the linker knows them.
//!
//! [`info`] takes the linker's lock, which it holds
//! while it runs the constructors and destructors of libraries. All other
//! functions walk the linker's list, and that keeps only changes to the list
//! waiting. Cost: a walk, or a search through the symbols of one library.

use std::ffi::{CStr, CString, c_int, c_void};
use std::ops::Range;
use std::sync::OnceLock;
use std::{ptr, slice};

pub(crate) mod tables;

use tables::Tables;

/// The program or a library.
pub(crate) struct Object {
    /// Its path; the program's own is empty.
    pub(crate) path: CString,
    /// The addresses that it occupies.
    pub(crate) range: Range<usize>,
}

/// The object that the walk is at; it stays loaded until the walk goes on.
struct Visited<'a> {
    info: &'a libc::dl_phdr_info,
    /// How many objects come before it.
    place: usize,
}

impl Visited<'_> {
    fn headers(&self) -> &[libc::Elf64_Phdr] {
        // SAFETY: the linker's table has as many headers as it says; `walk` has
        // checked that it is not null.
        unsafe { slice::from_raw_parts(self.info.dlpi_phdr, self.info.dlpi_phnum.into()) }
    }

    fn at(&self, offset: u64) -> usize {
        usize::try_from(self.info.dlpi_addr.wrapping_add(offset)).unwrap_or(0)
    }

    fn path(&self) -> &CStr {
        // SAFETY: the linker's names end in zero; `walk` has checked for null.
        unsafe { CStr::from_ptr(self.info.dlpi_name) }
    }

    fn range(&self) -> Range<usize> {
        let parts = || self.headers().iter().filter(|h| h.p_type == libc::PT_LOAD);
        let start = parts().map(|h| self.at(h.p_vaddr)).min();
        let end = parts().map(|h| self.at(h.p_vaddr + h.p_memsz)).max();
        start.unwrap_or(0)..end.unwrap_or(0)
    }

    fn tables(&self) -> Option<Tables> {
        let dynamic = |h: &&libc::Elf64_Phdr| h.p_type == libc::PT_DYNAMIC;
        let dynamic = self.headers().iter().find(dynamic)?;
        // SAFETY: the header says where the dynamic section lies, and the
        // object stays loaded while it is visited.
        unsafe { Tables::read(self.at(dynamic.p_vaddr), self.at(0)) }
    }
}

/// Visits every loaded object in the linker's order, as long as `visit` returns
/// true. `visit` must not panic, nor load or look up anything.
fn walk<F: FnMut(&Visited<'_>) -> bool>(mut visit: F) {
    struct Walk<'a, F> {
        place: usize,
        visit: &'a mut F,
    }
    unsafe extern "C" fn next<F: FnMut(&Visited<'_>) -> bool>(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        data: *mut c_void,
    ) -> c_int {
        // SAFETY: the linker passes a valid entry, and our Walk, which only
        // this callback touches while the walk goes on.
        let (info, walk) = unsafe { (&*info, &mut *data.cast::<Walk<'_, F>>()) };
        let place = walk.place;
        walk.place += 1;
        let strange = info.dlpi_phdr.is_null() || info.dlpi_name.is_null();
        let go_on = strange || (walk.visit)(&Visited { info, place });
        c_int::from(!go_on)
    }
    let mut walk = Walk {
        place: 0,
        visit: &mut visit,
    };
    // SAFETY: the callback has the prototype asked for, and the walk lives
    // until it is over.
    unsafe { libc::dl_iterate_phdr(Some(next::<F>), (&raw mut walk).cast()) };
}

/// All loaded objects, in the linker's order.
pub(crate) fn loaded() -> Vec<Object> {
    let mut objects = Vec::new();
    walk(|object| {
        objects.push(Object {
            path: object.path().to_owned(),
            range: object.range(),
        });
        true
    });
    objects
}

/// The loaded object that contains an address.
pub(crate) fn around(address: usize) -> Option<Object> {
    let mut found = None;
    walk(|object| {
        let range = object.range();
        if range.contains(&address) {
            found = Some(Object {
                path: object.path().to_owned(),
                range,
            });
        }
        found.is_none()
    });
    found
}

/// The addresses of this library.
pub(crate) fn own() -> Range<usize> {
    static OWN: OnceLock<Range<usize>> = OnceLock::new();
    let found = OWN.get_or_init(|| {
        let found = around(own as *const () as usize);
        found.map_or(0..0, |object| object.range)
    });
    found.clone()
}

/// Whether a function at this address is one of ours.
pub(crate) fn is_own(address: usize) -> bool {
    own().contains(&address)
}

/// How many objects the linker has unloaded so far.
pub(crate) fn unloads() -> u64 {
    let mut unloads = 0;
    walk(|object| {
        unloads = object.info.dlpi_subs;
        false
    });
    unloads
}

/// The positions of this library and of libc in the linker's order.
#[derive(Copy, Clone)]
struct Places {
    us: usize,
    libc: usize,
}

impl Places {
    fn now() -> Places {
        let mut places = Places { us: 0, libc: 0 };
        walk(|object| {
            let range = object.range();
            if is_us(&range) {
                places.us = object.place;
            }
            if range.contains(&(libc::getpid as *const () as usize)) {
                places.libc = object.place;
            }
            true
        });
        places
    }

    /// Whether a global look-up passes every object before us before it reaches
    /// us. If we stand before libc, all objects before us were there when the
    /// program started, and those are in the order of global look-ups. If we
    /// were opened later, few of the objects before us are in that order.
    fn is_in_order(self) -> bool {
        self.us < self.libc
    }
}

fn is_us(range: &Range<usize>) -> bool {
    range.contains(&(is_us as *const () as usize))
}

/// The address of a function of the linker's, which the C library exports for it, or
/// it itself does.
pub(crate) fn of_linker(name: &CStr) -> Option<usize> {
    let mut found = None;
    walk(|object| {
        let name_of_file = file_name(object.path());
        if name_of_file.starts_with(b"ld-") || name_of_file.starts_with(b"libc.so") {
            found = object.tables().and_then(|tables| tables.function(name));
        }
        found.is_none()
    });
    found
}

/// The path of an object whose file name starts with `prefix` and which exports
/// the function `name`: the first one after us, or else one before us that need
/// not lead to us.
pub(crate) fn exporting(prefix: &[u8], name: &CStr) -> Option<CString> {
    let places = Places::now();
    let (mut before, mut after) = (None, None);
    walk(|object| {
        let is_after = object.place > places.us;
        let place = if is_after { &mut after } else { &mut before };
        if place.is_none()
            && object.place != places.us
            && (is_after || !places.is_in_order())
            && file_name(object.path()).starts_with(prefix)
            && object.tables().is_some_and(|t| t.function(name).is_some())
        {
            *place = Some(object.path().to_owned());
        }
        after.is_none()
    });
    after.or(before)
}

/// A function as the library that calls it finds it.
pub(crate) struct InScope {
    /// The addresses of the calling library.
    pub(crate) of: Range<usize>,
    /// The function; `None` if it must be looked up after us.
    pub(crate) address: Option<usize>,
}

/// What the library around an address finds under this name among its own
/// functions and those of the libraries that it needs, in the linker's order. A
/// function of an object before us does not count: a look-up that reaches us
/// has passed it, and it may lead to us. The address is valid while the library
/// is loaded.
pub(crate) fn in_scope_of(address: usize, name: &CStr) -> Option<InScope> {
    let places = Places::now();
    let (mut caller, mut found, mut wanted) = (None, None, Vec::new());
    walk(|object| {
        let range = object.range();
        if !range.contains(&address) {
            return true;
        }
        // The program itself searches the global order.
        if object.place != 0
            && let Some(tables) = object.tables()
        {
            found = tables.function(name).map(|address| (object.place, address));
            wanted = tables.needed();
        }
        caller = Some((range, object.place));
        false
    });
    let (of, caller) = caller?;
    let mut seen = vec![places.us, caller];
    while found.is_none() && !wanted.is_empty() {
        let mut further: Vec<(usize, Vec<CString>)> = Vec::new();
        let mut nearest = usize::MAX;
        walk(|object| {
            if !seen.contains(&object.place)
                && let Some(tables) = object.tables()
                && let Some(at) = tables.is_called(object.path(), &wanted)
            {
                seen.push(object.place);
                if at < nearest
                    && let Some(address) = tables.function(name)
                {
                    (nearest, found) = (at, Some((object.place, address)));
                }
                further.push((at, tables.needed()));
            }
            true
        });
        further.sort_by_key(|(at, _)| *at);
        wanted = further.into_iter().flat_map(|(_, needed)| needed).collect();
    }
    let leads_to_us = |place: usize| place < places.us && (places.is_in_order() || place == caller);
    let address = found.filter(|&(place, _)| !leads_to_us(place));
    Some(InScope {
        of,
        address: address.map(|(_, address)| address),
    })
}

/// The part of a path after its last slash.
pub(crate) fn file_name(path: &CStr) -> &[u8] {
    let path = path.to_bytes();
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

/// What the linker says of an address; `None` outside of every loaded object.
pub(crate) fn info(address: usize) -> Option<libc::Dl_info> {
    let mut info = libc::Dl_info {
        dli_fname: ptr::null(),
        dli_fbase: ptr::null_mut(),
        dli_sname: ptr::null(),
        dli_saddr: ptr::null_mut(),
    };
    // SAFETY: dladdr takes any address, and fills the record if it returns
    // non-zero.
    let known = unsafe { libc::dladdr(ptr::without_provenance(address), &raw mut info) } != 0;
    known.then_some(info)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_placed() {
        let here = an_address_is_placed as *const () as usize;
        let own = around(here).unwrap();
        assert!(own.path.is_empty());
        let there = libc::getpid as *const () as usize;
        assert!(around(there).unwrap().path.to_bytes().ends_with(b".so.6"));
        assert!(around(8).is_none() && info(8).is_none());
    }
}
