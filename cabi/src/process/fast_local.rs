//! Thread-local data that a few instructions find.
//!
//! The compiler looks thread-local data of a shared library up by a call of
//! `__tls_get_addr`; a request that a thread's cache serves would spend a third of
//! its time there. Data that is defined in assembly can be found by a *TLS
//! descriptor* (the x86-64 ELF ABI): where the library is loaded with the program,
//! the loader makes that a call which returns an offset. Where it is loaded later,
//! and no thread has room for the data beside its stack, it is found as usual.
//!
//! Owns one block for each thread, in which each user has a place
//! ([`fast_local`]). Invariant: the block is zero when a thread begins, which the
//! types in it allow ([`Zeroed`]), and nothing is done about it when the thread
//! ends. Cost: five instructions on x86-64; elsewhere the usual look-up.

/// The bytes of the block.
pub(crate) const SIZE: usize = 256;

/// The alignment of the block.
pub(crate) const ALIGN: usize = 16;

/// Where in the block is what.
pub(crate) mod places {
    pub(crate) const INSIDE: usize = 0;
    pub(crate) const CALLER: usize = 8;
    pub(crate) const LAST_POOL: usize = 16;
    pub(crate) const OWN_CACHES: usize = 48;
    /// Nobody's beyond this.
    pub(crate) const END: usize = super::SIZE;
}

/// Types of which memory of zeros is a value, and of which a thread's value stays
/// with the thread.
///
/// # Safety
/// Zeros are a value of the type, it is not dropped, and it is not `Sync`.
pub(crate) unsafe trait Zeroed {}

// SAFETY: numbers, zero at first, in cells.
unsafe impl Zeroed for vramalloc_core::driver::OwnCaches {}

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .tbss.vramalloc_thread_block,\"awT\",@nobits",
    ".balign {align}",
    ".hidden vramalloc_thread_block",
    ".globl vramalloc_thread_block",
    ".type vramalloc_thread_block, @object",
    ".size vramalloc_thread_block, {size}",
    "vramalloc_thread_block:",
    ".zero {size}",
    ".popsection",
    size = const SIZE,
    align = const ALIGN,
);

/// The calling thread's block.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn block() -> *const u8 {
    let block: *const u8;
    // SAFETY: the ABI's sequence for a TLS descriptor. The call returns the offset
    // of the block from the thread pointer in rax and changes nothing else but
    // flags; the thread pointer points to itself.
    unsafe {
        std::arch::asm!(
            "lea rax, [rip + vramalloc_thread_block@TLSDESC]",
            "call [rax + vramalloc_thread_block@TLSCALL]",
            "add rax, qword ptr fs:[0]",
            out("rax") block,
            options(pure, nomem),
        );
    }
    block
}

/// The same by the usual look-up.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn block() -> *const u8 {
    #[repr(C, align(16))]
    struct Block(std::cell::UnsafeCell<[u8; SIZE]>);
    std::thread_local! {
        static BLOCK: Block = const { Block(std::cell::UnsafeCell::new([0; SIZE])) };
    }
    BLOCK.with(|block| block.0.get().cast_const().cast())
}

/// Defines a function that returns the calling thread's value of a [`Zeroed`]
/// type, which lies at `$place` of the block, before `$next`.
macro_rules! fast_local {
    ($(#[$doc:meta])* fn $name:ident() -> $type:ty = $place:ident to $next:ident;) => {
        $(#[$doc])*
        #[inline(always)]
        fn $name() -> &'static $type {
            use $crate::process::fast_local::{ALIGN, Zeroed, block, places};
            const fn zeroed<T: Zeroed>() {}
            const {
                zeroed::<$type>();
                assert!(places::$place + size_of::<$type>() <= places::$next);
                assert!(places::$place % align_of::<$type>() == 0);
                assert!(align_of::<$type>() <= ALIGN);
            }
            // SAFETY: in the block, aligned, nobody else's place, and zero at first,
            // which is one of the type's values. The reference stays in its thread,
            // since the type is not `Sync`; so it does not outlive it.
            unsafe { &*block().add(places::$place).cast() }
        }
    };
}

pub(crate) use fast_local;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::{Barrier, Mutex};

    #[test]
    fn each_thread_has_a_block_of_zeros() {
        const THREADS: usize = 40;
        let (barrier, seen) = (Barrier::new(THREADS), Mutex::new(BTreeSet::new()));
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let (first, again) = (block(), block());
                    assert_eq!((first, first.addr() % ALIGN), (again, 0));
                    // SAFETY: the thread's own block; nothing here has used it.
                    let bytes = unsafe { std::slice::from_raw_parts(first, SIZE) };
                    assert!(bytes.iter().all(|&byte| byte == 0));
                    seen.lock().unwrap().insert(first.addr());
                    barrier.wait();
                });
            }
        });
        assert_eq!(seen.into_inner().unwrap().len(), THREADS);
    }
}
