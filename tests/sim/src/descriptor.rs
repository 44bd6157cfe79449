//! File descriptors that name memory of this process to another one.
//!
//! Such a descriptor is a small file without a name; what it says is where the
//! memory lies. It does not keep the memory: the exporter has to. Cost: a file
//! per export.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, RawFd};
use std::os::unix::fs::FileExt;

use vramalloc_core::Code;

/// The only kind of handle that is given out.
pub(crate) const POSIX: u32 = 1;

/// What a descriptor says.
#[repr(C)]
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Notice {
    /// What it is that is shared.
    pub(crate) what: u64,
    pub(crate) process: u64,
    /// The exporter's descriptor of the file that has the bytes.
    pub(crate) file: u64,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) device: u64,
    /// The exporter's own handle.
    pub(crate) handle: u64,
}

const WORDS: usize = 7;
const MARK: u64 = 0x7368_6172_6564_6d65;

impl Notice {
    fn words(&self) -> [u64; WORDS] {
        let n = self;
        [
            n.what, n.process, n.file, n.offset, n.size, n.device, n.handle,
        ]
    }

    /// Makes a descriptor that says this.
    pub(crate) fn issue(&self) -> Result<RawFd, Code> {
        let name = c"simulated-handle".as_ptr();
        // SAFETY: the name is NUL-terminated.
        let file = unsafe { libc::memfd_create(name, libc::MFD_CLOEXEC) };
        if file < 0 {
            return Err(Code::OUT_OF_MEMORY);
        }
        // SAFETY: the descriptor is new and nobody else's.
        let mut file = unsafe { File::from_raw_fd(file) };
        let words = [MARK].into_iter().chain(self.words());
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        file.write_all(&bytes).map_err(|_| Code::OUT_OF_MEMORY)?;
        Ok(file.into_raw_fd())
    }

    /// Reads what a descriptor says; `None` if it is none of these.
    pub(crate) fn read(file: RawFd) -> Option<Notice> {
        // The descriptor stays the caller's.
        let path = format!("/proc/self/fd/{file}");
        let file = File::open(path).ok()?;
        let mut bytes = [0; (WORDS + 1) * 8];
        file.read_exact_at(&mut bytes, 0).ok()?;
        let mut words = bytes.chunks_exact(8).map(|word| {
            let mut eight = [0; 8];
            eight.copy_from_slice(word);
            u64::from_le_bytes(eight)
        });
        if words.next() != Some(MARK) {
            return None;
        }
        Some(Notice {
            what: words.next()?,
            process: words.next()?,
            file: words.next()?,
            offset: words.next()?,
            size: words.next()?,
            device: words.next()?,
            handle: words.next()?,
        })
    }

    /// Opens the file that has the bytes, in the exporter or in this process.
    pub(crate) fn open(&self) -> Option<File> {
        let path = format!("/proc/{}/fd/{}", self.process, self.file);
        File::options().read(true).write(true).open(path).ok()
    }
}

/// A descriptor as an argument, which the interface passes as a pointer.
pub(crate) fn from_argument(handle: u64) -> Result<RawFd, Code> {
    RawFd::try_from(handle).map_err(|_| Code::INVALID_VALUE)
}

/// A file's descriptor as a word.
pub(crate) fn word(file: &impl AsRawFd) -> u64 {
    u64::try_from(file.as_raw_fd()).unwrap_or(0)
}
