//! Reading memory of the process that may not be what it should.

use std::ptr;

/// Addresses of programs are below this, and above the first page.
const HIGHEST: usize = 1 << 47;
const LOWEST: usize = 4096;

/// A way to read memory.
pub(super) trait Memory {
    /// Bytes from an address; false where they cannot be read.
    fn bytes(&self, at: usize, into: &mut [u8]) -> bool;

    /// A word, from an address that words have.
    fn word(&self, at: usize) -> Option<usize>;

    /// The same of 32 bits.
    fn half(&self, at: usize) -> Option<u32>;
}

fn is_plausible(at: usize, align: usize) -> bool {
    (LOWEST..HIGHEST).contains(&at) && at.is_multiple_of(align)
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
    fn bytes(&self, at: usize, into: &mut [u8]) -> bool {
        let is_plausible = is_plausible(at, 1);
        if is_plausible {
            // SAFETY: the promise of who made this.
            unsafe {
                ptr::copy_nonoverlapping(
                    ptr::with_exposed_provenance(at),
                    into.as_mut_ptr(),
                    into.len(),
                );
            }
        }
        is_plausible
    }

    #[inline(always)]
    fn word(&self, at: usize) -> Option<usize> {
        // SAFETY: the promise of who made this.
        is_plausible(at, 8)
            .then(|| unsafe { ptr::with_exposed_provenance::<usize>(at).read_volatile() })
    }

    #[inline(always)]
    fn half(&self, at: usize) -> Option<u32> {
        // SAFETY: the promise of who made this.
        is_plausible(at, 4)
            .then(|| unsafe { ptr::with_exposed_provenance::<u32>(at).read_volatile() })
    }
}

/// Has the system read it, which answers where nothing is there.
pub(super) struct Checked;

impl Memory for Checked {
    fn bytes(&self, at: usize, into: &mut [u8]) -> bool {
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

    fn word(&self, at: usize) -> Option<usize> {
        let mut word = [0; 8];
        (is_plausible(at, 8) && self.bytes(at, &mut word)).then(|| usize::from_le_bytes(word))
    }

    fn half(&self, at: usize) -> Option<u32> {
        let mut half = [0; 4];
        (is_plausible(at, 4) && self.bytes(at, &mut half)).then(|| u32::from_le_bytes(half))
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
        assert_eq!((direct.word(at + 8), direct.half(at)), (Some(9), Some(7)));
        assert_eq!((Checked.word(at + 8), Checked.half(at)), (Some(9), Some(7)));
        let mut byte = [0];
        assert!(direct.bytes(at, &mut byte) && Checked.bytes(at, &mut byte) && byte == [7]);
        for nowhere in [0, 8, at + 1, 1 << 47] {
            assert_eq!((direct.word(nowhere), Checked.word(nowhere)), (None, None));
        }
        assert_eq!(Checked.word(1 << 46 | 8), None);
        assert!(!Checked.bytes(1 << 46, &mut byte));
    }
}
