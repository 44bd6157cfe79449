//! Device memory, copies, pinned memory.

#![allow(clippy::wildcard_imports, reason = "a program sees every function")]

use super::*;

#[test]
fn memory_falls_by_pages_and_a_context_takes_its_own_with_it() {
    let program = Program::new();
    let before = info();
    alloc(1);
    assert_eq!(before - info(), 2 * MIB);
    alloc(3 * MIB);
    assert_eq!(before - info(), 6 * MIB);
    let other = made(|to| cuCtxCreate_v2(to, 0, 0));
    alloc(100 * MIB);
    assert_eq!(before - info(), 106 * MIB);
    assert_eq!(cuCtxDestroy_v2(other), 0);
    assert_eq!(made(|to| cuCtxGetCurrent(to)), program.context);
    assert_eq!(before - info(), 6 * MIB);
    assert_eq!(cuMemAlloc_v2(out(&mut 0), 1 << 50), 2);
    assert_eq!(cuMemAlloc_v2(out(&mut 0), 0), 1);
    assert_eq!(cuMemAlloc_v2(none(), 1), 1);
}

#[test]
fn copies_move_rows_and_slices() {
    let _program = Program::new();
    let pitched = made(|to| cuMemAllocPitch_v2(to, out(&mut 0), 100, 4, 4));
    let from: Vec<u8> = (0..=255).collect();
    let mut to = vec![0_u8; 256];
    assert_eq!(cuMemcpyHtoD_v2(pitched, from.as_ptr() as u64, 256), 0);
    // Two slices of two rows of three bytes, from x 1, y 1, in rows of 16.
    let words = |side: u64, pitch| [1, 1, 0, 0, side, 0, 0, 0, 0, pitch, 4];
    let (mut source, mut target) = (words(2, 16), words(1, 32));
    source[6] = pitched;
    target[5] = to.as_mut_ptr() as u64;
    let mut copy: Vec<u64> = source.into_iter().chain(target).collect();
    copy.extend([3, 2, 2]);
    assert_eq!(cuMemcpy3D_v2(In(copy.as_ptr().cast())), 0);
    assert_eq!(to[33..36], [17, 18, 19]);
    assert_eq!(to[65..68], [33, 34, 35]);
    assert_eq!(to[161..164], [81, 82, 83]);
    assert_eq!(to[36], 0);
}

#[test]
fn pinned_memory_is_read_when_the_copy_is_done() {
    let program = Program::new();
    let (s, block) = (stream(1), alloc(MIB));
    let pinned = made(|to| cuMemHostAlloc(to, 4096, 0));
    let put = |value: u32| {
        // SAFETY: the pinned memory is mapped, and aligned to pages.
        unsafe { (pinned as *mut u32).write(value) }
    };
    put(1);
    assert_eq!(program.fill(s, block + 512, 0, 1, 5 * MS), 0);
    assert_eq!(cuMemcpyHtoDAsync_v2(block, pinned, 4, s), 0);
    put(2);
    assert_eq!(cuStreamSynchronize(s), 0);
    assert_eq!(read(block), 2);
    let word = 3_u32;
    assert_eq!(program.fill(s, block + 512, 0, 1, 5 * MS), 0);
    assert_eq!(
        cuMemcpyHtoDAsync_v2(block, (&raw const word) as u64, 4, s),
        0
    );
    assert_eq!(cuStreamSynchronize(s), 0);
    assert_eq!(read(block), 3);
    let mut attribute = 0_u32;
    assert_eq!(
        cuPointerGetAttribute((&raw mut attribute).cast(), 2, pinned + 8),
        0
    );
    assert_eq!(attribute, 1);
    assert_eq!(cuMemFreeHost(pinned), 0);
    assert_eq!(cuMemFreeHost(pinned), 1);
}

#[test]
fn pinned_memory_is_told_apart_by_where_it_came_from() {
    let _program = Program::new();
    let flags = |at: u64| {
        let mut flags = 99_u32;
        let code = cuMemHostGetFlags(out(&mut flags), at);
        (code, flags)
    };
    let portable = made(|to| cuMemHostAlloc(to, 10_000, 1));
    let plain = made(|to| cuMemAllocHost_v2(to, 10_000));
    assert_eq!(portable % 8192, 4096, "aligned to a page and no better");
    assert_eq!(flags(portable + 9_999), (0, 3), "mapped, like all of it");
    assert_eq!(flags(plain), (0, 3));
    let own = vec![0_u8; 4096];
    let own = own.as_ptr() as u64;
    assert_eq!(cuMemHostRegister_v2(own, 4096, 0), 0);
    assert_eq!(cuMemHostRegister_v2(own + 4095, 2, 0), 712);
    assert_eq!(flags(own), (0, 2));
    assert_eq!(cuMemHostRegister_v2(portable, 10_000, 0), 1);
    assert_eq!(cuMemFreeHost(own), 1);
    assert_eq!(cuMemFreeHost(0), 0, "nothing may be freed");
    assert_eq!(made(|to| cuMemHostAlloc(to, 0, 0)), 0, "and is nothing");
    assert_eq!(cuMemHostUnregister(portable), 1);
    assert_eq!(cuMemHostUnregister(own), 0);
    assert_eq!(cuMemHostUnregister(own), 713);
    let (mut start, mut size) = (0_u64, 0_u64);
    let range = cuMemGetAddressRange_v2(out(&mut start), out(&mut size), portable + 7);
    assert_eq!((range, start, size), (0, portable, 10_000));
    for block in [portable, plain] {
        assert_eq!(cuMemFreeHost(block + 512), 1);
        assert_eq!(cuMemFreeHost(block), 0);
    }
}

#[test]
fn pinned_memory_is_waited_for_where_a_device_uses_it() {
    let program = Program::new();
    let before = program.violations();
    let (s, block) = (stream(1), alloc(MIB));
    let other = made(|to| cuCtxCreate_v2(to, 0, 1));
    let pinned = made(|to| cuMemHostAlloc(to, MIB, 1));
    assert_eq!(cuCtxSetCurrent(program.context), 0);
    assert_eq!(program.fill(s, pinned, 7, 1, 5 * MS), 0);
    assert_eq!(cuMemcpyHtoDAsync_v2(block, pinned, 4, s), 0);
    assert_eq!(cuCtxDestroy_v2(other), 0);
    assert_eq!(cuStreamQuery(s), 0, "the end of its context has waited");
    assert_eq!(read(block), 7);
    assert_eq!(cuCtxSetCurrent(program.context), 0);
    assert_eq!(program.violations(), before);
}

#[test]
fn a_context_takes_its_own_room_while_it_lives() {
    let _program = Program::new();
    let before = info();
    let own = |size| {
        let mut lock = crate::machine::lock();
        lock.as_mut().unwrap().environment.context_size = vramalloc_core::Bytes::new(size);
    };
    own(300 * MIB);
    let other = made(|to| cuCtxCreate_v2(to, 0, 0));
    assert_eq!(before - info(), 300 * MIB);
    assert_eq!(bytes(c"context"), 300 * MIB);
    let primary: Handle = made(|to| cuDevicePrimaryCtxRetain(to, 0));
    assert_eq!(before - info(), 600 * MIB);
    assert_eq!(
        made::<Handle>(|to| cuDevicePrimaryCtxRetain(to, 0)),
        primary
    );
    assert_eq!(cuDevicePrimaryCtxReset_v2(0), 0);
    let block = alloc(info() - 299 * MIB);
    assert_eq!(cuCtxCreate_v2(out(&mut 0), 0, 0), 2);
    assert_eq!(cuDevicePrimaryCtxRetain(out(&mut 0), 0), 2);
    assert_eq!(cuMemFree_v2(block), 0);
    assert_eq!(cuCtxDestroy_v2(other), 0);
    own(0);
    assert_eq!(info(), before);
}

#[test]
fn what_is_there_is_freed_without_a_context_too() {
    let program = Program::new();
    let before = info();
    let (block, ordered) = (alloc(3 * MIB), made(|to| cuMemAllocAsync(to, MIB, NULL)));
    assert_eq!(cuCtxSetCurrent(NULL), 0);
    assert_eq!(cuMemAlloc_v2(out(&mut 0), MIB), 201);
    assert_eq!(cuMemFree_v2(block + 512), 201, "nothing begins there");
    assert_eq!(cuMemFree_v2(0), 201);
    for there in [block, ordered] {
        assert_eq!(cuMemFree_v2(there), 0);
        assert_eq!(cuMemFree_v2(there), 201);
    }
    assert_eq!(cuCtxSetCurrent(program.context), 0);
    assert_eq!(cuCtxSynchronize(), 0);
    assert_eq!(info(), before);
}

#[test]
fn a_full_device_makes_no_context_and_no_stream() {
    let program = Program::new();
    let (most, page, s) = (info(), 2 * MIB, stream(1));
    let (rest, last) = (alloc(most - page), alloc(page));
    let make_stream = || cuStreamCreate(out(&mut 0), 1);
    assert_eq!(make_stream(), 2);
    assert_eq!(cuStreamCreateWithPriority(out(&mut 0), 1, 0), 2);
    assert_eq!(cuCtxCreate_v2(out(&mut 0), 0, 0), 2);
    assert_eq!(cuDevicePrimaryCtxRetain(out(&mut 0), 0), 2);
    // All else works.
    assert_eq!(program.fill(s, last, 1, 1, 1), 0);
    assert_eq!(program.fill(2, last, 2, 1, 1), 0, "the thread's own stream");
    let pinned = made(|to| cuMemHostAlloc(to, MIB, 0));
    assert_eq!(cuMemFreeHost(pinned), 0);
    assert_eq!(cuCtxSynchronize(), 0);
    assert_eq!(cuMemFree_v2(last), 0);
    assert_eq!(make_stream(), 0);
    assert_eq!(info(), page, "and takes nothing");
    let other = made(|to| cuCtxCreate_v2(to, 0, 0));
    assert_eq!(cuCtxDestroy_v2(other), 0);
    assert_eq!(cuMemFree_v2(rest), 0);
}

#[test]
fn what_is_known_of_freed_memory() {
    let _program = Program::new();
    let block = alloc(3 * MIB);
    let (mut base, mut size) = (1, 1);
    let range =
        |base: &mut u64, size: &mut u64| cuMemGetAddressRange_v2(out(base), out(size), block + 512);
    assert_eq!(range(&mut base, &mut size), 0);
    assert_eq!((base, size), (block, 3 * MIB));
    assert_eq!(cuMemFree_v2(block), 0);
    (base, size) = (1, 1);
    assert_eq!(range(&mut base, &mut size), 500);
    assert_eq!(cuMemGetAddressRange_v2(out(&mut base), none(), block), 500);
    assert_eq!(cuMemGetAddressRange_v2(none(), none(), block), 0);
    let mut ordinal = 1_i32;
    let places = [(&raw mut base).cast(), (&raw mut size).cast(), {
        (&raw mut ordinal).cast::<c_void>()
    }];
    let asked = [11, 12, 9];
    assert_eq!(
        cuPointerGetAttributes(3, In(asked.as_ptr()), In(places.as_ptr()), block),
        0
    );
    assert_eq!((base, size, ordinal), (1, 1, -2), "there is no range");
    assert_eq!(cuPointerGetAttribute((&raw mut base).cast(), 11, block), 1);
}

#[test]
fn a_limit_leaves_managed_memory_alone() {
    let _program = Program::new();
    let before = bytes(c"plain");
    sim_cuda_limit(0, 100 * MIB + before);
    let told = || {
        let (mut free, mut total) = (0, 0);
        assert_eq!(cuMemGetInfo_v2(out(&mut free), out(&mut total)), 0);
        (free, total - before)
    };
    assert_eq!(told(), (100 * MIB, 100 * MIB));
    let block = alloc(60 * MIB);
    let managed: u64 = made(|to| cuMemAllocManaged(to, 200 * MIB, 1));
    assert_eq!(cuMemsetD8_v2(managed, 1, 1), 0);
    assert_eq!(cuMemAlloc_v2(out(&mut 0), 50 * MIB), 2);
    assert_eq!(cuMemAllocAsync(out(&mut 0), 41 * MIB, NULL), 2);
    assert_eq!(told().0, 40 * MIB);
    assert_eq!(cuMemFree_v2(managed), 0);
    assert_eq!(cuMemFree_v2(block), 0);
    sim_cuda_limit(0, u64::MAX);
}
