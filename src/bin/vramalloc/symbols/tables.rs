//! The symbol tables of an ELF file, and what it says of itself.
//!
//! No index is kept: all addresses are looked up in one pass over the table, in
//! which each symbol finds its place among the sorted addresses. Cost: some 50
//! ns a symbol, and a read for each function that was found; the file's tables
//! of symbols are read whole, its names one by one. It is read and not mapped,
//! because a map of a file that is replaced meanwhile ends the process.

use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;
use std::rc::Rc;

use object::elf::{self, FileHeader64, Sym64};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, SectionTable, Sym};
use object::read::{ReadCache, ReadRef};
use object::{Endianness, SectionIndex};

use super::names::{self, MOST_READ};

/// The most of a table that is read; the largest libraries have a tenth.
const LARGEST_TABLE: u64 = 1 << 29;

/// What a file contains.
#[derive(Default)]
pub(crate) struct Tables {
    /// In hexadecimal digits.
    pub(super) build_id: Option<String>,
    /// The name of the file that has what was stripped from this one.
    pub(super) debug_link: Option<String>,
    /// The name of the file that has what several such files share.
    pub(super) shared_link: Option<String>,
    pub(super) has_lines: bool,
    /// Whether it has a table of all functions, and not of the exported only.
    pub(super) has_all: bool,
    /// The functions around the addresses, in their order.
    pub(crate) around: Vec<Option<Around>>,
}

/// A function at or before an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Around {
    pub(crate) name: Rc<str>,
    /// Whether the address is known to be in it.
    pub(super) is_inside: bool,
}

/// Opens a regular file.
pub(super) fn open(path: &Path) -> Result<File, String> {
    // Others may hold a pipe's other end.
    let is_file = |metadata: std::fs::Metadata| metadata.is_file();
    if !std::fs::metadata(path).is_ok_and(is_file) {
        return Err("not a file".to_owned());
    }
    File::open(path).map_err(|error| error.to_string())
}

/// Reads a file, and looks for the functions around some addresses, which are
/// sorted.
///
/// # Errors
/// That it is not an ELF file of 64 bits, or is damaged.
pub(crate) fn read(file: impl Read + Seek, addresses: &[u64]) -> Result<Tables, String> {
    let cache = ReadCache::new(file);
    parse(&cache, addresses).map_err(|error| error.to_string())
}

type Sections<'data, R> = SectionTable<'data, FileHeader64<Endianness>, R>;

fn parse<'data, R: ReadRef<'data>>(
    data: R,
    addresses: &[u64],
) -> Result<Tables, object::read::Error> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let mut tables = Tables {
        build_id: build_id(header, endian, data),
        around: vec![None; addresses.len()],
        ..Tables::default()
    };
    // A file without sections runs as well.
    let Ok(sections) = header.sections(endian, data) else {
        return Ok(tables);
    };
    let named = |name: &[u8]| sections.section_by_name(endian, name);
    let has_bytes = |name: &[u8]| {
        named(name).is_some_and(|(_, section)| section.sh_type(endian) != elf::SHT_NOBITS)
    };
    tables.has_lines = has_bytes(b".debug_line") || has_bytes(b".zdebug_line");
    let link = |name: &[u8]| {
        let (_, section) = named(name)?;
        let (start, size) = section.file_range(endian)?;
        let end = start.checked_add(size)?;
        let name = data.read_bytes_at_until(start..end, 0).ok()?;
        Some(String::from_utf8_lossy(name).into_owned())
    };
    tables.debug_link = link(b".gnu_debuglink");
    tables.shared_link = link(b".gnu_debugaltlink");
    for kind in [elf::SHT_SYMTAB, elf::SHT_DYNSYM] {
        let of_kind = |section: &&elf::SectionHeader64<Endianness>| section.sh_type(endian) == kind;
        let Some(table) = sections.iter().find(of_kind) else {
            continue;
        };
        if table.sh_size(endian) > LARGEST_TABLE {
            continue;
        }
        let symbols: &[Sym64<Endianness>] = table.data_as_array(endian, data)?;
        if symbols.len() > 1 {
            let candidates = nearest(symbols, endian, addresses);
            let strings = sections.section(table.link(endian))?.file_range(endian);
            tables.around = names_of(&candidates, addresses, (strings, &sections), endian, data);
            tables.has_all = kind == elf::SHT_SYMTAB;
            break;
        }
    }
    Ok(tables)
}

fn build_id<'data>(
    header: &FileHeader64<Endianness>,
    endian: Endianness,
    data: impl ReadRef<'data>,
) -> Option<String> {
    let segments = header.program_headers(endian, data).ok()?;
    let of = |segment: &elf::ProgramHeader64<Endianness>| {
        // Damaged notes are none.
        let mut notes = segment.notes(endian, data).ok()??;
        while let Ok(Some(note)) = notes.next() {
            if note.name() == elf::ELF_NOTE_GNU && note.n_type(endian) == elf::NT_GNU_BUILD_ID {
                return Some(note.desc());
            }
        }
        None
    };
    let id = segments.iter().find_map(of)?;
    Some(id.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A symbol of a function.
#[derive(Copy, Clone)]
struct Candidate {
    start: u64,
    size: u64,
    /// Names that every object can use are the better ones.
    rank: u8,
    name: u32,
    section: usize,
}

/// For each address the function that begins last, at or before it.
fn nearest(
    symbols: &[Sym64<Endianness>],
    endian: Endianness,
    addresses: &[u64],
) -> Vec<Option<Candidate>> {
    let mut nearest: Vec<Option<Candidate>> = vec![None; addresses.len()];
    for symbol in symbols {
        let kind = symbol.st_type();
        let is_code = kind == elf::STT_FUNC || kind == elf::STT_GNU_IFUNC;
        if !is_code || symbol.is_undefined(endian) || symbol.st_name(endian) == 0 {
            continue;
        }
        let start = symbol.st_value(endian);
        let at = addresses.partition_point(|&address| address < start);
        let Some(slot) = nearest.get_mut(at) else {
            continue;
        };
        let candidate = Candidate {
            start,
            size: symbol.st_size(endian),
            rank: match symbol.st_bind() {
                elf::STB_GLOBAL => 2,
                elf::STB_WEAK => 1,
                _ => 0,
            },
            name: symbol.st_name(endian),
            section: usize::from(symbol.st_shndx(endian).0),
        };
        let key = |of: Candidate| (of.start, of.size > 0, of.rank, of.size);
        if slot.is_none_or(|other| key(candidate) > key(other)) {
            *slot = Some(candidate);
        }
    }
    // What begins before one address begins before those behind it too.
    let mut last = None;
    for slot in &mut nearest {
        last = slot.or(last);
        *slot = last;
    }
    nearest
}

/// Reads the names of functions; those that end before their address are only
/// near, and none at all behind the end of their section.
fn names_of<'data, R: ReadRef<'data>>(
    candidates: &[Option<Candidate>],
    addresses: &[u64],
    (strings, sections): (Option<(u64, u64)>, &Sections<'data, R>),
    endian: Endianness,
    data: R,
) -> Vec<Option<Around>> {
    // Addresses of one function follow each other.
    let mut before: Option<(u32, Rc<str>)> = None;
    let mut name = |candidate: &Candidate| {
        match &before {
            Some((number, name)) if *number == candidate.name => return Some(name.clone()),
            _ => {}
        }
        let (offset, size) = strings?;
        let start = offset.checked_add(candidate.name.into())?;
        let end = offset.checked_add(size)?;
        let bytes = match data.read_bytes_at_until(start..end, 0) {
            Ok(bytes) => bytes,
            // The start of a name that is too long, or no string.
            Err(()) => data.read_bytes_at(start, MOST_READ as u64).ok()?,
        };
        let name: Rc<str> = names::demangled(bytes).into();
        before = Some((candidate.name, name.clone()));
        Some(name)
    };
    let end = |candidate: &Candidate| {
        let section = sections.section(SectionIndex(candidate.section)).ok()?;
        (section.sh_addr(endian)).checked_add(section.sh_size(endian))
    };
    let one = |(candidate, &address): (&Option<Candidate>, &u64)| {
        let candidate = candidate.as_ref()?;
        let is_inside = address - candidate.start < candidate.size;
        if !is_inside && end(candidate).is_none_or(|end| address >= end) {
            return None;
        }
        Some(Around {
            name: name(candidate)?,
            is_inside,
        })
    };
    candidates.iter().zip(addresses).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn this() -> File {
        open(&std::env::current_exe().unwrap()).unwrap()
    }

    #[test]
    fn a_function_of_this_program_is_found() {
        let tables = read(this(), &[]).unwrap();
        assert!(tables.has_all && tables.has_lines && tables.around.is_empty());
    }

    #[test]
    fn each_address_has_the_function_that_begins_before_it() {
        let symbol = |start: u64, size: u64, bind: elf::SymbolBind, name: u32| {
            let little = Endianness::Little;
            Sym64 {
                st_name: object::U32::new(little, name),
                st_info: elf::SymbolInfo(bind.0 << 4 | elf::STT_FUNC.0),
                st_other: elf::SymbolOther(0),
                st_shndx: object::U16::new(little, elf::SymbolSection(1)),
                st_value: object::U64::new(little, start),
                st_size: object::U64::new(little, size),
            }
        };
        let symbols = [
            symbol(100, 50, elf::STB_LOCAL, 1),
            symbol(100, 50, elf::STB_GLOBAL, 2),
            symbol(100, 60, elf::STB_WEAK, 3),
            symbol(40, 10, elf::STB_LOCAL, 4),
            symbol(200, 0, elf::STB_LOCAL, 5),
        ];
        let addresses = [0, 40, 45, 99, 100, 149, 1000];
        let found = nearest(&symbols, Endianness::Little, &addresses);
        let names: Vec<_> = found
            .iter()
            .map(|one| one.map_or(0, |one| one.name))
            .collect();
        assert_eq!(names, [0, 4, 4, 4, 2, 2, 5]);
    }

    #[test]
    fn a_damaged_file_is_an_error_or_read() {
        use std::io::Cursor;
        let mut whole = Vec::new();
        File::open("/bin/true")
            .unwrap()
            .read_to_end(&mut whole)
            .unwrap();
        let addresses: Vec<u64> = (0..0x8000).step_by(61).collect();
        assert!(read(Cursor::new(&whole), &addresses).is_ok());
        for length in (0..whole.len()).step_by(997) {
            let _ = read(Cursor::new(&whole[..length]), &addresses);
        }
        let tables = whole.len() - 0x800..whole.len();
        for at in (0..0x400).chain(tables) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0xff;
            let _ = read(Cursor::new(&bytes), &addresses);
        }
        assert!(read(Cursor::new(b"#!/bin/sh"), &[]).is_err());
        assert!(open(Path::new("/dev/null")).is_err() && open(Path::new("/no/file")).is_err());
    }
}
