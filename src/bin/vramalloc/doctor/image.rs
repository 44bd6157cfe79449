//! What an ELF file contains: its loader, the libraries that it needs, and the
//! CUDA names that it defines or mentions.
//!
//! For any file the answer is an image or one line that says what is wrong.
//! Cost: its tables and its constants are read once, piece by piece, never the
//! GPU code in it.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use memchr::memmem;
use object::Endianness;
use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader, SectionTable, Sym};
use object::read::{ReadCache, ReadRef};

use super::past;

/// The most of a table that is read; the largest libraries have less.
const LARGEST_TABLE: u64 = 1 << 29;

/// The most bytes of constants that are searched in a file.
const MOST_SEARCHED: u64 = 1 << 28;

/// Names of the runtime's errors. A runtime that is linked in has a table of
/// them for `cudaGetErrorName`; a single one may stand in any program's
/// messages.
const ERROR_NAMES: [&str; 4] = [
    "cudaErrorInvalidValue",
    "cudaErrorMemoryAllocation",
    "cudaErrorInitializationError",
    "cudaErrorInsufficientDriver",
];

/// Names in the constants of a runtime, or of a program that looks for one.
const DRIVER_FILE: &str = "libcuda.so";
const RUNTIME_FILE: &str = "libcudart.so";

/// Functions that show a linked-in runtime in a file that is not stripped.
const RUNTIME_FUNCTIONS: [&str; 2] = ["__cudaRegisterFatBinary", "cudaGetDeviceCount"];

/// The contents of an ELF file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Image {
    /// Word size and processor.
    pub(crate) machine: Machine,
    /// The loader that it names; `None` for libraries and static programs.
    pub(crate) interpreter: Option<String>,
    /// The name by which other files need it.
    pub(crate) soname: Option<String>,
    /// The names of the libraries that it needs.
    pub(crate) needed: Vec<String>,
    /// Where its libraries are looked for before `LD_LIBRARY_PATH`.
    pub(crate) rpath: Option<String>,
    /// Where its libraries are looked for after `LD_LIBRARY_PATH`; then `rpath`
    /// is ignored.
    pub(crate) runpath: Option<String>,
    /// The names of CUDA's functions, and `dlsym`, that it exports.
    pub(crate) exports: BTreeSet<String>,
    /// Whether a CUDA runtime is linked into it.
    pub(crate) runtime_inside: bool,
    /// Whether it names the driver's library.
    pub(crate) mentions_driver: bool,
    /// Whether it names a shared runtime's library.
    pub(crate) mentions_runtime: bool,
    /// The functions that take device memory past the pool, as far as it is
    /// linked to them or names them.
    pub(crate) past: BTreeSet<&'static str>,
}

/// Word size and processor, which all files of a process have in common.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Machine {
    class: u8,
    processor: u16,
}

impl Machine {
    /// The name that is shown.
    pub(crate) fn name(self) -> String {
        let bits = if self.class == elf::ELFCLASS32.0 {
            32
        } else {
            64
        };
        match elf::Machine(self.processor) {
            elf::EM_386 => "i386 (32-bit)".to_owned(),
            elf::EM_X86_64 => "x86-64".to_owned(),
            elf::EM_AARCH64 => "aarch64".to_owned(),
            other => format!("processor {} ({bits}-bit)", other.0),
        }
    }
}

impl Image {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// What the system answers, or that it is not an ELF file that can be read.
    pub(crate) fn open(path: &Path) -> Result<Image, String> {
        let mut file = File::open(path).map_err(|error| error.to_string())?;
        if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            return Err("not a file".to_owned());
        }
        Image::read(&mut file)
    }

    /// Reads an open file.
    ///
    /// # Errors
    /// As of [`Image::open`].
    pub(crate) fn read(file: &mut (impl Read + Seek)) -> Result<Image, String> {
        let machine = machine(file)?;
        if machine.class != elf::ELFCLASS64.0 {
            // Of a file that is not 64-bit only the machine is reported.
            return Ok(Image {
                machine,
                ..Image::default()
            });
        }
        let mut places = Vec::new();
        let mut image = tables(&ReadCache::new(&mut *file), &mut places)
            .map_err(|error| format!("a damaged ELF file: {error}"))?;
        image.machine = machine;
        let mut mentions = Mentions::default();
        let mut left = MOST_SEARCHED;
        for (start, size) in places {
            let size = size.min(left);
            left -= size;
            mentions
                .search(file, start, size)
                .map_err(|error| error.to_string())?;
        }
        image.mentions_driver = mentions.driver;
        image.mentions_runtime = mentions.runtime;
        image.past.extend(mentions.past);
        // In a stripped file a linked-in runtime is recognised by its messages
        // and the library that it opens.
        image.runtime_inside |= mentions.driver && mentions.errors.len() > 1;
        if image.runtime_inside || image.is_runtime() || image.is_driver() {
            // They name what they offer, and not what is used.
            image.past.clear();
        }
        Ok(image)
    }

    /// Whether this is a CUDA runtime, which wheels may have renamed
    /// (`libcudart-1234.so.12`).
    pub(crate) fn is_runtime(&self) -> bool {
        self.named("libcudart")
    }

    /// Whether this is the driver.
    pub(crate) fn is_driver(&self) -> bool {
        self.named(DRIVER_FILE)
    }

    fn named(&self, prefix: &str) -> bool {
        self.soname
            .as_ref()
            .is_some_and(|name| name.starts_with(prefix))
    }
}

/// Word size and processor, from the first bytes.
fn machine(file: &mut (impl Read + Seek)) -> Result<Machine, String> {
    let mut start = [0; 20];
    file.seek(SeekFrom::Start(0))
        .and_then(|_| file.read_exact(&mut start))
        .map_err(|_| "not an ELF file".to_owned())?;
    let [0x7f, b'E', b'L', b'F', class, data, ..] = start else {
        return Err("not an ELF file".to_owned());
    };
    let [.., low, high] = start;
    let processor = match data {
        2 => u16::from_be_bytes([low, high]),
        _ => u16::from_le_bytes([low, high]),
    };
    Ok(Machine { class, processor })
}

/// Reads the tables, and adds the ranges of the constants to `places`.
fn tables<'data>(
    data: impl ReadRef<'data>,
    places: &mut Vec<(u64, u64)>,
) -> Result<Image, object::read::Error> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let mut image = Image::default();
    let segments = header.program_headers(endian, data)?;
    for segment in segments {
        if let Some(interpreter) = segment.interpreter(endian, data)? {
            image.interpreter = Some(String::from_utf8_lossy(interpreter).into_owned());
        }
        if let Some(entries) = segment.dynamic(endian, data)? {
            dynamic(entries, segments, endian, data, &mut image);
        }
    }
    // Sections are not needed to run: without them the segments are searched.
    match header.sections(endian, data) {
        Ok(sections) if !sections.is_empty() => {
            names(&sections, endian, data, &mut image);
            places.extend(sections.iter().filter_map(|section| {
                let name = sections.section_name(endian, section).ok()?;
                let constants = [&b".rodata"[..], b".lrodata", b".data"];
                let searched = constants.iter().any(|start| name.starts_with(start));
                section.file_range(endian).filter(|_| searched)
            }));
        }
        _ => places.extend(
            segments
                .iter()
                .filter(|segment| segment.p_type(endian) == elf::PT_LOAD)
                .map(|segment| segment.file_range(endian)),
        ),
    }
    Ok(image)
}

type Segment = elf::ProgramHeader64<Endianness>;

/// Reads what the dynamic section asks the loader for. Entries that point
/// outside the file are left out, as other readers do.
fn dynamic<'data>(
    entries: &[elf::Dyn64<Endianness>],
    segments: &[Segment],
    endian: Endianness,
    data: impl ReadRef<'data>,
    image: &mut Image,
) {
    let entries = || {
        entries
            .iter()
            .take_while(|entry| entry.d_tag(endian) != elf::DT_NULL)
    };
    let value = |tag| {
        entries()
            .find(|entry| entry.d_tag(endian) == tag)
            .map(|entry| entry.d_val(endian))
    };
    let strings = value(elf::DT_STRTAB)
        .and_then(|address| in_file(address, segments, endian))
        .zip(value(elf::DT_STRSZ).filter(|&size| size <= LARGEST_TABLE))
        .and_then(|(offset, size)| data.read_bytes_at(offset, size).ok())
        .unwrap_or_default();
    for entry in entries() {
        let tag = entry.d_tag(endian);
        let text = || {
            let text = string(strings, entry.d_val(endian))?;
            Some(String::from_utf8_lossy(text).into_owned())
        };
        match tag {
            elf::DT_NEEDED => image.needed.extend(text()),
            elf::DT_SONAME => image.soname = text(),
            elf::DT_RPATH => image.rpath = text(),
            elf::DT_RUNPATH => image.runpath = text(),
            _ => {}
        }
    }
}

/// The file offset of an address of the loaded image.
fn in_file(address: u64, segments: &[Segment], endian: Endianness) -> Option<u64> {
    segments
        .iter()
        .filter(|segment| segment.p_type(endian) == elf::PT_LOAD)
        .find_map(|segment| {
            let inside = address.checked_sub(segment.p_vaddr(endian))?;
            (inside < segment.p_filesz(endian))
                .then(|| segment.p_offset(endian).checked_add(inside))?
        })
}

/// The string at an offset of a string table.
fn string(table: &[u8], offset: u64) -> Option<&[u8]> {
    let rest = table.get(usize::try_from(offset).ok()?..)?;
    rest.get(..memchr::memchr(0, rest)?)
}

/// Adds the CUDA names among the symbols.
fn names<'data, R: ReadRef<'data>>(
    sections: &SectionTable<'data, FileHeader64<Endianness>, R>,
    endian: Endianness,
    data: R,
    image: &mut Image,
) {
    for section in sections.iter() {
        let kind = section.sh_type(endian);
        if !matches!(kind, elf::SHT_DYNSYM | elf::SHT_SYMTAB)
            || section.sh_size(endian) > LARGEST_TABLE
        {
            continue;
        }
        let symbols: &[elf::Sym64<Endianness>] =
            section.data_as_array(endian, data).unwrap_or_default();
        let strings = sections
            .section(section.link(endian))
            .ok()
            .filter(|strings| strings.sh_size(endian) <= LARGEST_TABLE)
            .and_then(|strings| strings.data(endian, data).ok())
            .unwrap_or_default();
        for symbol in symbols {
            let Some(name) = string(strings, symbol.st_name(endian).into()) else {
                continue;
            };
            if symbol.is_undefined(endian) {
                image.past.extend(past::function(name));
                continue;
            }
            image.runtime_inside |= RUNTIME_FUNCTIONS
                .iter()
                .any(|function| function.as_bytes() == name);
            if kind == elf::SHT_DYNSYM && (name.starts_with(b"cu") || name == b"dlsym") {
                let name = String::from_utf8_lossy(name).into_owned();
                image.exports.insert(name);
            }
        }
    }
}

/// The names in the constants of a file.
#[derive(Default)]
struct Mentions {
    driver: bool,
    runtime: bool,
    errors: BTreeSet<&'static str>,
    past: BTreeSet<&'static str>,
}

impl Mentions {
    /// Searches a range of a file, as far as the file goes.
    fn search(
        &mut self,
        file: &mut (impl Read + Seek),
        start: u64,
        size: u64,
    ) -> std::io::Result<()> {
        const PIECE: usize = 1 << 20;
        // The end of one piece is searched again with the next.
        const OVERLAP: usize = 64;
        file.seek(SeekFrom::Start(start))?;
        let mut rest = file.take(size);
        let mut piece = Vec::new();
        loop {
            let kept = piece.len();
            let read = (&mut rest).take(PIECE as u64).read_to_end(&mut piece)?;
            self.note(&piece);
            if read == 0 {
                return Ok(());
            }
            let done = (kept + read).saturating_sub(OVERLAP);
            piece.drain(..done);
        }
    }

    fn note(&mut self, bytes: &[u8]) {
        for at in memmem::find_iter(bytes, b"cuda") {
            let here = bytes.get(at..).unwrap_or_default();
            let before = bytes.get(at.saturating_sub(3)..).unwrap_or_default();
            self.driver |= before.starts_with(DRIVER_FILE.as_bytes());
            self.runtime |= before.starts_with(RUNTIME_FILE.as_bytes());
            let error = ERROR_NAMES
                .iter()
                .find(|name| here.starts_with(name.as_bytes()));
            self.errors.extend(error);
        }
        past::named(bytes, &mut self.past);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn read(bytes: &[u8]) -> Result<Image, String> {
        Image::read(&mut Cursor::new(bytes))
    }

    #[test]
    fn this_test_is_an_image() {
        let image = Image::open(&std::env::current_exe().unwrap()).unwrap();
        assert!(image.interpreter.is_some());
        assert!(image.needed.iter().any(|name| name.starts_with("libc.")));
        assert_ne!(image.machine, Machine::default());
        assert!(!image.is_runtime() && !image.is_driver());
    }

    #[test]
    fn a_damaged_file_is_an_error_or_an_image() {
        let whole = std::fs::read("/bin/true").unwrap();
        assert!(read(&whole).unwrap().interpreter.is_some());
        for length in (0..whole.len()).step_by(97) {
            let _ = read(&whole[..length]);
        }
        for at in 0..0x400 {
            let mut bytes = whole.clone();
            bytes[at] ^= 0xff;
            let _ = read(&bytes);
        }
        for text in [&b""[..], b"#!/bin/sh\n", b"\x7fELF"] {
            assert_eq!(read(text), Err("not an ELF file".to_owned()));
        }
    }

    #[test]
    fn mentions_are_found_wherever_they_lie() {
        let mut bytes = vec![b'c'; 3 << 20];
        let mut put = |at: usize, text: &str| {
            bytes[at..at + text.len()].copy_from_slice(text.as_bytes());
        };
        put(0, "libcuda.so.1");
        // Across the boundary of two pieces.
        put((1 << 20) - 5, ERROR_NAMES[1]);
        put((2 << 20) + 100, ERROR_NAMES[2]);
        let size = bytes.len() as u64;
        let mut mentions = Mentions::default();
        let mut file = Cursor::new(bytes);
        mentions.search(&mut file, 0, size).unwrap();
        assert!(mentions.driver && !mentions.runtime);
        assert_eq!(mentions.errors.len(), 2);
        let mut mentions = Mentions::default();
        mentions.search(&mut file, 1, 1 << 20).unwrap();
        assert!(!mentions.driver && mentions.errors.is_empty());
    }
}
