//! Reading memory of the process that may not be what it should.

use std::ptr;

/// Addresses of programs are below this, and above the first page.
const HIGHEST: usize = 1 << 47;
const LOWEST: usize = 4096;

/// A way to read memory.
pub(super) trait Memory {
    /// A word so many bytes into what begins at an address that objects have.
    fn word(&self, of: usize, offset: usize) -> Option<usize>;

    /// Reads 32 bits in the same way.
    fn half(&self, of: usize, offset: usize) -> Option<u32>;
}

/// Whether something of the interpreter's may begin here. Once for all that is read
/// of it: the compiler sees that it is the same question.
#[inline(always)]
fn is_plausible(of: usize) -> bool {
    (LOWEST..HIGHEST).contains(&of) && of.is_multiple_of(8)
}

/// Reads it where it lies.
pub(super) struct Direct(());

impl Direct {
    /// # Safety
    /// What it is asked for is there, or at an address that no program has.
    pub(super) unsafe fn new() -> Direct {
        Direct(())
    }
}

impl Memory for Direct {
    #[inline(always)]
    fn word(&self, of: usize, offset: usize) -> Option<usize> {
        let at = ptr::with_exposed_provenance::<usize>(of.wrapping_add(offset));
        // SAFETY: the promise of who made this.
        is_plausible(of).then(|| unsafe { at.read_unaligned() })
    }

    #[inline(always)]
    fn half(&self, of: usize, offset: usize) -> Option<u32> {
        let at = ptr::with_exposed_provenance::<u32>(of.wrapping_add(offset));
        // SAFETY: the promise of who made this.
        is_plausible(of).then(|| unsafe { at.read_unaligned() })
    }
}

/// Has the system read it, which answers where nothing is there.
pub(super) struct Checked;

impl Checked {
    /// Bytes from an address; false where they cannot be read.
    pub(super) fn bytes(&self, at: usize, into: &mut [u8]) -> bool {
        let local = libc::iovec {
            iov_base: into.as_mut_ptr().cast(),
            iov_len: into.len(),
        };
        let remote = libc::iovec {
            iov_base: ptr::with_exposed_provenance_mut(at),
            iov_len: into.len(),
        };
        // SAFETY: one list entry each; the system writes only into ours.
        let got = unsafe {
            libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
        };
        usize::try_from(got) == Ok(into.len())
    }
}

impl Memory for Checked {
    fn word(&self, of: usize, offset: usize) -> Option<usize> {
        let mut word = [0; 8];
        let is_read = is_plausible(of) && self.bytes(of.wrapping_add(offset), &mut word);
        is_read.then(|| usize::from_le_bytes(word))
    }

    fn half(&self, of: usize, offset: usize) -> Option<u32> {
        let mut half = [0; 4];
        let is_read = is_plausible(of) && self.bytes(of.wrapping_add(offset), &mut half);
        is_read.then(|| u32::from_le_bytes(half))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_read_and_what_is_not_is_none() {
        let words = [7_usize, 9];
        let at = (&raw const words).addr();
        // SAFETY: a local of ours, or nothing.
        let direct = unsafe { Direct::new() };
        assert_eq!((direct.word(at, 8), direct.half(at, 0)), (Some(9), Some(7)));
        assert_eq!(
            (Checked.word(at, 8), Checked.half(at, 0)),
            (Some(9), Some(7))
        );
        let mut byte = [0];
        assert!(Checked.bytes(at, &mut byte) && byte == [7]);
        for nowhere in [0, 8, at + 1, 1 << 47] {
            assert_eq!(
                (direct.word(nowhere, 8), Checked.word(nowhere, 8)),
                (None, None)
            );
        }
        assert_eq!(Checked.word(1 << 46, 8), None);
        assert!(!Checked.bytes(1 << 46, &mut byte));
    }
}
