//! The mappings of this process, as the system lists them.
//!
//! Invariant: no lock of the linker's or of the C library's, and no point at
//! which a thread can be cancelled. Cost: some hundred microseconds in a process
//! with thousands of mappings.

use std::ops::Range;
use std::{ptr, slice};

/// One line of the list.
pub(super) struct Mapped<'a> {
    pub(super) range: Range<usize>,
    /// Where in its file it begins.
    pub(super) offset: usize,
    /// Empty where it is of no file.
    pub(super) path: &'a [u8],
}

impl<'a> Mapped<'a> {
    /// From `start-end perms offset device inode path`.
    fn read(line: &'a [u8]) -> Option<Mapped<'a>> {
        let mut words = line.splitn(6, |&byte| byte == b' ');
        let (range, _perms, offset) = (words.next()?, words.next()?, words.next()?);
        let path = words.nth(2).unwrap_or_default().trim_ascii();
        let mut ends = range.split(|&byte| byte == b'-').map(hexadecimal);
        Some(Mapped {
            range: ends.next()??..ends.next()??,
            offset: hexadecimal(offset)?,
            path,
        })
    }
}

fn hexadecimal(text: &[u8]) -> Option<usize> {
    usize::from_str_radix(str::from_utf8(text).ok()?, 16).ok()
}

/// Closes it when the list was read.
struct Open(i32);

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: our own descriptor, which nobody else knows.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

/// Passes the mappings to `visit` in the order of their addresses, as long as it
/// returns true. False where the list cannot be read to its end.
pub(super) fn each(mut visit: impl FnMut(&Mapped<'_>) -> bool) -> bool {
    const ROOM: usize = 16 << 10;
    let mut text: Vec<u8> = Vec::new();
    if text.try_reserve_exact(ROOM).is_err() {
        return false;
    }
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let path = c"/proc/self/maps".as_ptr();
    // SAFETY: a path that ends in zero. No function of the C library, since its
    // own would be points at which the thread can be cancelled.
    let opened = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags) };
    let Some(file) = i32::try_from(opened).ok().filter(|&file| file >= 0) else {
        return false;
    };
    let file = Open(file);
    loop {
        let room = ROOM - text.len();
        let free = text.spare_capacity_mut().as_mut_ptr();
        // SAFETY: the vector has this room behind what it holds.
        let got = unsafe { libc::syscall(libc::SYS_read, file.0, free, room) };
        let Some(got) = usize::try_from(got).ok().filter(|&got| got <= room) else {
            return false;
        };
        // SAFETY: the system has written so many bytes there.
        unsafe { text.set_len(text.len() + got) };
        let whole = text.iter().rposition(|&byte| byte == b'\n');
        let Some(last) = whole else {
            // The end, or a line that is longer than any path.
            return got == 0 && text.is_empty();
        };
        for line in text
            .get(..last)
            .unwrap_or_default()
            .split(|&byte| byte == b'\n')
        {
            if let Some(mapping) = Mapped::read(line)
                && !visit(&mapping)
            {
                return true;
            }
        }
        text.drain(..=last);
    }
}

/// The mapping around an address.
pub(super) fn around(address: usize) -> Option<Range<usize>> {
    let mut found = None;
    each(|mapping| {
        if mapping.range.contains(&address) {
            found = Some(mapping.range.clone());
        }
        mapping.range.end <= address
    });
    found
}

/// Where in memory the file begins that the mapping around an address is of, and
/// its path.
pub(super) fn file_around(address: usize) -> Option<(usize, Vec<u8>)> {
    let (mut begins, mut path, mut found) = (0, Vec::new(), false);
    each(|mapping| {
        if mapping.offset == 0 && !mapping.path.is_empty() {
            begins = mapping.range.start;
            path.clear();
            path.extend_from_slice(mapping.path);
        }
        found = mapping.range.contains(&address)
            && mapping.path.first() == Some(&b'/')
            && mapping.path == path;
        mapping.range.end <= address
    });
    found.then_some((begins, path))
}

/// The bytes of memory that is known to be mapped.
///
/// # Safety
/// It is, and stays so and as it is while they are used.
pub(super) unsafe fn bytes<'a>(range: Range<usize>) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(range.start), range.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_found_in_its_mapping_and_its_file() {
        let here = hexadecimal as *const () as usize;
        assert!(around(here).unwrap().contains(&here));
        let (begins, path) = file_around(here).unwrap();
        let program = std::env::current_exe().unwrap();
        assert_eq!(String::from_utf8(path).unwrap(), program.to_str().unwrap());
        // SAFETY: the first bytes of the program.
        assert_eq!(unsafe { bytes(begins..begins + 4) }, b"\x7fELF");
        let local = 5_u8;
        assert!(file_around((&raw const local).addr()).is_none());
        assert!(around(8).is_none() && file_around(8).is_none());
    }

    #[test]
    fn a_line_is_read() {
        let line = b"7f00-7f10 r-xp 00001000 08:01 1234    /a b/c.so";
        let mapping = Mapped::read(line).unwrap();
        assert_eq!((mapping.range, mapping.offset), (0x7f00..0x7f10, 0x1000));
        assert_eq!(mapping.path, b"/a b/c.so");
        let line = b"7f00-7f10 rw-p 00000000 00:00 0 ";
        assert!(Mapped::read(line).unwrap().path.is_empty());
        assert!(Mapped::read(b"nonsense").is_none());
    }
}
