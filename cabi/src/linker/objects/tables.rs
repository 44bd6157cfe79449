//! What the ELF tables of a loaded object say: its name, the libraries that it
//! needs, and the functions that it exports.
//!
//! The tables are read where they lie, as the linker reads them. Cost: a few
//! loads for a function if the object has a GNU hash table, a look at each
//! symbol if it has only the old one.

use std::ffi::{CStr, CString, c_char};
use std::ptr;

/// Tags of entries in an object's dynamic section.
const END: i64 = 0;
const NEEDED: i64 = 1;
const HASH: i64 = 4;
const STRINGS: i64 = 5;
const SYMBOLS: i64 = 6;
const NAME: i64 = 14;
const GNU_HASH: i64 = 0x6fff_fef5;
const VERSIONS: i64 = 0x6fff_fff0;

/// Marks a symbol's version: only a look-up of that version finds the symbol.
const HIDDEN: u16 = 0x8000;

/// Kinds of symbols.
const OBJECT: u8 = 1;
const FUNCTION: u8 = 2;

/// One entry of an object's dynamic section.
#[derive(Copy, Clone)]
#[repr(C)]
struct Entry {
    kind: i64,
    value: u64,
}

/// Where an object's tables lie.
pub(crate) struct Tables {
    bias: usize,
    entries: *const Entry,
    strings: *const c_char,
    symbols: *const libc::Elf64_Sym,
    /// Null if the object has no such table, as the two below.
    gnu_hash: *const u32,
    hash: *const u32,
    versions: *const u16,
}

impl Tables {
    /// Finds the tables of the object whose dynamic section lies at `list`.
    /// Returns `None` if the object has no names.
    ///
    /// # Safety
    /// The section is that of an object which is loaded with this bias and
    /// stays loaded while the tables are read.
    pub(crate) unsafe fn read(list: usize, bias: usize) -> Option<Tables> {
        let entries: *const Entry = ptr::with_exposed_provenance(list);
        let at = |value: u64| {
            let value = usize::try_from(value).unwrap_or(0);
            // Most linkers write addresses in memory into the section. In
            // objects that they did not load, addresses are the file's.
            let address = if value < bias { value + bias } else { value };
            ptr::with_exposed_provenance::<u8>(address)
        };
        let mut tables = Tables {
            bias,
            entries,
            strings: ptr::null(),
            symbols: ptr::null(),
            gnu_hash: ptr::null(),
            hash: ptr::null(),
            versions: ptr::null(),
        };
        for Entry { kind, value } in tables.entries() {
            match kind {
                STRINGS => tables.strings = at(value).cast(),
                SYMBOLS => tables.symbols = at(value).cast(),
                GNU_HASH => tables.gnu_hash = at(value).cast(),
                HASH => tables.hash = at(value).cast(),
                VERSIONS => tables.versions = at(value).cast(),
                _ => {}
            }
        }
        let whole = !tables.strings.is_null() && !tables.symbols.is_null();
        whole.then_some(tables)
    }

    fn entries(&self) -> impl Iterator<Item = Entry> + use<> {
        let entries = self.entries;
        (0..)
            // SAFETY: the section has an entry that ends it, where this stops.
            .map(move |n| unsafe { *entries.add(n) })
            .take_while(|entry| entry.kind != END)
    }

    fn text(&self, offset: u64) -> &CStr {
        let offset = usize::try_from(offset).unwrap_or(0);
        // SAFETY: the entries of an object point into its own string table, in
        // which each name ends in zero.
        unsafe { CStr::from_ptr(self.strings.wrapping_add(offset)) }
    }

    /// The names of the libraries that the object needs, in its order.
    pub(super) fn needed(&self) -> Vec<CString> {
        let needed = self.entries().filter(|entry| entry.kind == NEEDED);
        needed
            .map(|entry| self.text(entry.value).to_owned())
            .collect()
    }

    /// The position in `names` of this object, whose file is `path`.
    pub(super) fn is_called(&self, path: &CStr, names: &[CString]) -> Option<usize> {
        let own = self.entries().find(|entry| entry.kind == NAME);
        let own = own.map(|entry| self.text(entry.value));
        let file = super::file_name(path);
        names
            .iter()
            .map(CString::as_c_str)
            .position(|name| own == Some(name) || name == path || name.to_bytes() == file)
    }

    /// The address of the function that the object exports under this name.
    pub(crate) fn function(&self, name: &CStr) -> Option<usize> {
        self.symbol(name, FUNCTION)
    }

    /// The address of the data that the object exports under this name.
    pub(crate) fn data(&self, name: &CStr) -> Option<usize> {
        self.symbol(name, OBJECT)
    }

    fn symbol(&self, name: &CStr, kind: u8) -> Option<usize> {
        let number = if self.gnu_hash.is_null() {
            self.by_symbols(name, kind)
        } else {
            self.by_hash(name, kind)
        }?;
        // SAFETY: the number comes from the object's own hash table.
        let value = unsafe { (*self.symbols.add(number)).st_value };
        Some(usize::try_from(value).ok()?.wrapping_add(self.bias))
    }

    /// The number of the symbol, by the GNU hash table: four words, a filter of
    /// 64-bit words, buckets, and the hashes of all symbols from the first that
    /// it covers. The last hash of a bucket is marked by its lowest bit.
    fn by_hash(&self, name: &CStr, kind: u8) -> Option<usize> {
        let hash = name.to_bytes().iter().fold(5381_u32, |hash, &byte| {
            hash.wrapping_mul(33).wrapping_add(byte.into())
        });
        // SAFETY: the layout above.
        let word = |at: usize| unsafe { *self.gnu_hash.add(at) } as usize;
        let (buckets, first, filter) = (word(0), word(1), word(2));
        let start = 4 + 2 * filter;
        let mut number = word(start + (hash as usize).checked_rem(buckets)?);
        if number < first {
            return None;
        }
        loop {
            let other = word(start + buckets + (number - first));
            if other | 1 == hash as usize | 1 && self.is_called_so(number, name, kind) {
                return Some(number);
            }
            if other & 1 == 1 {
                return None;
            }
            number += 1;
        }
    }

    /// The number of the symbol, by the old hash table. Its second word is the
    /// number of symbols.
    fn by_symbols(&self, name: &CStr, kind: u8) -> Option<usize> {
        if self.hash.is_null() {
            return None;
        }
        // SAFETY: the layout above.
        let count = unsafe { *self.hash.add(1) } as usize;
        (1..count).find(|&number| self.is_called_so(number, name, kind))
    }

    /// Whether the symbol is of this kind and name and any look-up finds it.
    fn is_called_so(&self, number: usize, name: &CStr, kind: u8) -> bool {
        const NO_TYPE: u8 = 0;
        // SAFETY: the number comes from the object's own hash table.
        let symbol = unsafe { &*self.symbols.add(number) };
        // SAFETY: as above; there are as many versions as symbols.
        let hidden =
            !self.versions.is_null() && unsafe { *self.versions.add(number) } & HIDDEN != 0;
        let local = symbol.st_info >> 4 == 0;
        let defined = symbol.st_shndx != 0 && symbol.st_value != 0;
        defined
            && !local
            && !hidden
            && [NO_TYPE, kind].contains(&(symbol.st_info & 0xf))
            && self.text(symbol.st_name.into()) == name
    }
}
