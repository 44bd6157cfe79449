//! Managed memory.

#![allow(clippy::wildcard_imports, reason = "a program sees every function")]

use super::*;

const PAGE: u64 = 2 * MIB;
const GIB: u64 = 1 << 30;

fn managed(size: u64) -> u64 {
    made(|to| cuMemAllocManaged(to, size, 1))
}

fn asked(attribute: u32, address: u64, size: u64) -> i32 {
    let mut value = 99;
    let code = cuMemRangeGetAttribute(out(&mut value), 4, attribute, address, size);
    assert_eq!(code, 0);
    value
}

fn host(id: i32) -> u64 {
    location(2, id)
}

fn location(kind: u32, id: i32) -> u64 {
    u64::from(kind) | u64::from(id.cast_unsigned()) << 32
}

#[test]
fn the_host_and_the_device_touch_the_same_memory() {
    let program = Program::new();
    let before = info();
    let block = managed(PAGE + 1);
    // SAFETY: managed memory, which no work uses.
    unsafe { (block as *mut u32).write(1) };
    assert_eq!(info(), before, "the host's touch takes nothing of a device");
    assert_eq!(program.fill(NULL, block + PAGE - 4, 7, 1, 1), 0);
    assert_eq!(before - info(), 2 * PAGE, "all of it");
    assert_eq!(bytes(c"managed"), 2 * PAGE);
    assert_eq!(cuCtxSynchronize(), 0);
    let word = (block + PAGE - 4) as *mut u32;
    // SAFETY: managed memory; no work uses it now.
    assert_eq!(unsafe { word.read() }, 7);
    // SAFETY: as above.
    unsafe { word.write(8) };
    assert_eq!(read(block + PAGE - 4), 8);
    assert_eq!(cuMemFree_v2(block), 0);
    assert_eq!(info(), before);
}

#[test]
fn what_does_not_fit_lies_on_the_host() {
    let _program = Program::new();
    let before = info();
    let plain = alloc(before - 10 * PAGE);
    let block = managed(GIB);
    assert_eq!(info(), 10 * PAGE);
    assert_eq!(cuMemsetD32_v2(block + GIB - 4, 3, 1), 0);
    assert_eq!(info(), 0);
    assert_eq!(bytes(c"managed"), 10 * PAGE);
    assert_eq!(cuMemAlloc_v2(out(&mut 0), PAGE), 2);
    assert_eq!(read(block + GIB - 4), 3);
    // A prefetch moves what there is room for.
    assert_eq!(cuMemPrefetchAsync(block, 4 * PAGE, -1, NULL), 0);
    assert_eq!(info(), 4 * PAGE);
    assert_eq!(cuMemPrefetchAsync(block, GIB, 0, NULL), 0);
    assert_eq!(info(), 0);
    assert_eq!(cuMemPrefetchAsync(block, GIB, 1, NULL), 0);
    assert_eq!(bytes(c"managed"), 0);
    assert_eq!(sim_cuda_bytes(c"managed".as_ptr(), 1), GIB);
    assert_eq!(cuMemPrefetchAsync_v2(block, GIB, host(0), 0, NULL), 0);
    assert_eq!(sim_cuda_bytes(c"managed".as_ptr(), -1), 0);
    assert_eq!(cuMemFree_v2(block), 0);
    assert_eq!(cuMemFree_v2(plain), 0);
    assert_eq!(info(), before);
}

/// By a set, a copy and a graph too; what was prefetched stays where it is.
#[test]
fn the_device_that_touches_it_first_has_it() {
    let program = Program::new();
    let on = |device| sim_cuda_bytes(c"managed".as_ptr(), device);
    let block = managed(4 * PAGE);
    assert_eq!(cuMemPrefetchAsync(block, PAGE, -1, NULL), 0);
    assert_eq!(cuMemPrefetchAsync(block + PAGE, PAGE, 0, NULL), 0);
    assert_eq!((on(0), on(1)), (PAGE, 0));
    let other: Handle = made(|to| cuCtxCreate_v2(to, 0, 1));
    assert_eq!(cuMemsetD8_v2(block, 1, 1), 0);
    assert_eq!((on(0), on(1)), (PAGE, 2 * PAGE));
    assert_eq!(cuCtxDestroy_v2(other), 0);
    assert_eq!(cuMemsetD8_v2(block, 1, 1), 0);
    assert_eq!((on(0), on(1)), (PAGE, 2 * PAGE), "once");
    let (copied, captured) = (managed(PAGE), managed(PAGE));
    assert_eq!(read(copied), 0);
    assert_eq!(on(0), 2 * PAGE);
    let s = stream(1);
    assert_eq!(cuStreamBeginCapture_v2(s, 0), 0);
    assert_eq!(program.fill(s, captured, 1, 1, 1), 0);
    let graph = made(|to| cuStreamEndCapture(s, to));
    assert_eq!(on(0), 2 * PAGE, "it does not run yet");
    let exec = made(|to| cuGraphInstantiateWithFlags(to, graph, 0));
    assert_eq!(cuGraphLaunch(exec, s), 0);
    assert_eq!(on(0), 3 * PAGE);
    assert_eq!(cuStreamSynchronize(s), 0);
    for block in [block, copied, captured] {
        assert_eq!(cuMemFree_v2(block), 0);
    }
    assert_eq!((on(0), on(1)), (0, 0));
}

#[test]
fn advice_is_kept_by_range() {
    let _program = Program::new();
    let block = managed(4 * PAGE);
    assert_eq!(asked(1, block, 4 * PAGE), 0);
    assert_eq!(cuMemAdvise(block, PAGE, 1, 0), 0);
    assert_eq!(asked(1, block, PAGE), 1);
    assert_eq!(asked(1, block, 4 * PAGE), 0, "not all of it");
    assert_eq!(asked(2, block, PAGE), -2);
    assert_eq!(cuMemAdvise(block, 4 * PAGE, 3, 1), 0);
    assert_eq!(asked(2, block, PAGE), 1);
    assert_eq!((asked(5, block, PAGE), asked(6, block, PAGE)), (1, 1));
    assert_eq!(cuMemAdvise_v2(block, PAGE, 3, host(0)), 0);
    assert_eq!(asked(2, block, PAGE), -1);
    assert_eq!(asked(2, block, 4 * PAGE), -2, "not the same for all");
    assert_eq!(asked(4, block, PAGE), -2);
    assert_eq!(
        cuMemPrefetchAsync_v2(block, PAGE, location(1, 1), 0, NULL),
        0
    );
    assert_eq!(asked(4, block, PAGE), 1);
    for device in [0, 1, -1] {
        assert_eq!(cuMemAdvise(block, PAGE, 5, device), 0);
    }
    assert_eq!(cuMemAdvise(block, PAGE, 6, 1), 0);
    let mut list = [9; 3];
    let to = out(&mut list[0]);
    assert_eq!(cuMemRangeGetAttribute(to, 12, 3, block, PAGE), 0);
    assert_eq!(list, [-1, 0, -2]);
    let mut values = [0_i32; 2];
    let places = [&raw mut values[0], &raw mut values[1]].map(|p| p.cast::<c_void>());
    let code = cuMemRangeGetAttributes(
        In(places.as_ptr()),
        In([4, 4].as_ptr()),
        In([1, 4].as_ptr()),
        2,
        block,
        PAGE,
    );
    assert_eq!((code, values), (0, [1, 1]));
    assert_eq!(cuMemFree_v2(block), 0);
}

#[test]
fn bad_arguments_of_managed_memory_get_codes() {
    let _program = Program::new();
    for flags in [0, 3, 4, 5] {
        assert_eq!(cuMemAllocManaged(out(&mut 0), PAGE, flags), 1);
    }
    assert_eq!(cuMemAllocManaged(out(&mut 0), 0, 1), 1);
    assert_eq!(cuMemAllocManaged(none(), PAGE, 1), 1);
    assert_eq!(cuMemAllocManaged(out(&mut 0), 1 << 50, 1), 2);
    let (block, plain) = (managed(PAGE), alloc(PAGE));
    assert_eq!(cuMemPrefetchAsync(block, PAGE, 7, NULL), 101);
    assert_eq!(cuMemPrefetchAsync(block, 0, 0, NULL), 1);
    assert_eq!(cuMemPrefetchAsync(block, PAGE + 1, 0, NULL), 1);
    assert_eq!(cuMemPrefetchAsync(plain, PAGE, 0, NULL), 1);
    assert_eq!(cuMemAdvise(block, PAGE, 9, 0), 1);
    assert_eq!(cuMemAdvise(block, PAGE, 3, 7), 101);
    assert_eq!(cuMemRangeGetAttribute(out(&mut 0), 8, 1, block, PAGE), 1);
    assert_eq!(cuMemRangeGetAttribute(out(&mut 0), 4, 1, plain, PAGE), 1);
    let s = stream(1);
    assert_eq!(cuStreamAttachMemAsync(s, block, 0, 4), 0);
    assert_eq!(cuStreamAttachMemAsync(NULL, block, 0, 4), 1);
    assert_eq!(cuStreamAttachMemAsync(s, block, 512, 4), 1);
    assert_eq!(cuStreamAttachMemAsync(s, block, 0, 3), 1);
    assert_eq!(cuStreamAttachMemAsync(s, plain, 0, 4), 1);
    assert_eq!(cuMemFree_v2(block), 0);
}

#[test]
fn managed_memory_ends_with_its_context() {
    let _program = Program::new();
    let before = info();
    let other = made(|to| cuCtxCreate_v2(to, 0, 0));
    let block = managed(PAGE);
    assert_eq!(cuMemsetD8_v2(block, 1, 1), 0);
    assert_eq!(bytes(c"managed"), PAGE);
    assert_eq!(cuCtxDestroy_v2(other), 0);
    assert_eq!(info(), before);
    assert_eq!(bytes(c"managed"), 0);
}
