//! Stream-ordered memory and its pools.

#![allow(clippy::wildcard_imports, reason = "a program sees every function")]

use super::*;

const GRAIN: u64 = 32 * MIB;

const FOLLOW: u32 = 1;
const OPPORTUNISTIC: u32 = 2;
const INTERNAL: u32 = 3;
const THRESHOLD: u32 = 4;
const RESERVED: u32 = 5;
const MOST_RESERVED: u32 = 6;
const USED: u32 = 7;
const MOST_USED: u32 = 8;

fn place(kind: u32, id: i32) -> Location {
    Location { kind, id }
}

fn props(kind: u32, id: i32, handles: u32, most: u64) -> PoolProps {
    PoolProps {
        kind: 1,
        handles,
        location: place(kind, id),
        security: 0,
        most,
        rest: [0; 56],
    }
}

fn pool(most: u64) -> Handle {
    made(|to| cuMemPoolCreate(to, given(&props(1, 0, 1, most))))
}

fn ask(pool: Handle, attribute: u32) -> u64 {
    made(|to| cuMemPoolGetAttribute(pool, attribute, to))
}

fn tell(pool: Handle, attribute: u32, mut value: u64) -> u32 {
    cuMemPoolSetAttribute(pool, attribute, out(&mut value))
}

fn take(pool: Handle, size: u64, stream: Handle) -> u64 {
    made(|to| cuMemAllocFromPoolAsync(to, size, pool, stream))
}

fn try_take(pool: Handle, size: u64, stream: Handle) -> u32 {
    cuMemAllocFromPoolAsync(out(&mut 0), size, pool, stream)
}

#[test]
fn a_pool_keeps_what_it_has_until_the_host_waits() {
    let program = Program::new();
    let s = stream(1);
    let before = info();
    let first = made(|to| default_take(to, 8 * MIB, s));
    assert_eq!(before - info(), GRAIN);
    assert_eq!(program.fill(s, first, 1, 1, 5 * MS), 0);
    assert_eq!(cuMemFreeAsync(first, s), 0);
    assert_eq!(cuMemFreeAsync(first, s), 1);
    assert_eq!(before - info(), GRAIN, "freed, and kept");
    let again = made(|to| default_take(to, 8 * MIB, s));
    assert_eq!(again, first, "the stream itself may use it at once");
    assert_eq!(cuStreamSynchronize(s), 0);
    assert_eq!(before - info(), GRAIN, "it is in use");
    assert_eq!(cuMemFreeAsync(again, s), 0);
    assert_eq!(cuStreamQuery(s), 0);
    assert_eq!(before - info(), GRAIN, "a question is no wait");
    assert_eq!(cuStreamSynchronize(s), 0);
    assert_eq!(info(), before);
}

/// From the device's default pool.
fn default_take(to: Out<u64>, size: u64, stream: Handle) -> u32 {
    cuMemAllocAsync(to, size, stream)
}

#[test]
fn what_is_reserved_and_used_can_be_asked_for() {
    let _program = Program::new();
    let before = info();
    let p = pool(0);
    assert_eq!(tell(p, THRESHOLD, u64::MAX), 0);
    let small = take(p, 1000, NULL);
    let large = take(p, 2 * GRAIN + 1, NULL);
    assert_eq!(
        large,
        small + 1024,
        "behind the other, over its grain's end"
    );
    assert_eq!(ask(p, USED), 1000 + 2 * GRAIN + 1);
    assert_eq!(ask(p, RESERVED), 3 * GRAIN);
    assert_eq!(before - info(), 3 * GRAIN);
    assert_eq!(bytes(c"pool"), 3 * GRAIN);
    assert_eq!(cuMemFreeAsync(0, NULL), 0);
    assert_eq!(cuMemFreeAsync(large, NULL), 0);
    assert_eq!(ask(p, USED), 1000);
    assert_eq!(cuCtxSynchronize(), 0);
    assert_eq!(ask(p, RESERVED), 3 * GRAIN, "below the threshold");
    assert_eq!(cuMemPoolTrimTo(p, 2 * GRAIN), 0);
    assert_eq!(ask(p, RESERVED), 2 * GRAIN);
    assert_eq!(cuMemPoolTrimTo(p, 0), 0);
    assert_eq!(ask(p, RESERVED), GRAIN, "one is in use");
    assert_eq!(before - info(), GRAIN);
    assert_eq!(ask(p, MOST_RESERVED), 3 * GRAIN);
    assert_eq!(ask(p, MOST_USED), 1000 + 2 * GRAIN + 1);
    assert_eq!(tell(p, MOST_USED, 1), 1);
    assert_eq!(tell(p, MOST_USED, 0), 0);
    assert_eq!(tell(p, MOST_RESERVED, 0), 0);
    assert_eq!(ask(p, MOST_RESERVED), GRAIN);
    assert_eq!(ask(p, MOST_USED), 1000);
    assert_eq!(tell(p, USED, 0), 1);
    assert_eq!(tell(p, RESERVED, 0), 1);
    assert_eq!(cuMemFree_v2(small), 0);
    assert_eq!(cuMemPoolDestroy(p), 0);
    assert_eq!(info(), before);
}

#[test]
fn a_pool_grows_behind_itself_whatever_is_taken_meanwhile() {
    let _program = Program::new();
    let (one, other) = (pool(0), pool(0));
    let mut held = Vec::new();
    for size in [1, MIB, 31 * MIB, 33 * MIB, 100 * MIB] {
        held.push((take(one, size, NULL), take(other, size, NULL)));
        assert_eq!(cuMemFree_v2(alloc(5 * MIB)), 0);
        alloc(5 * MIB);
    }
    for p in [one, other] {
        assert_eq!(ask(p, RESERVED), 192 * MIB);
        assert_eq!(ask(p, USED), 165 * MIB + 1);
    }
    // A gap is used before the end is.
    let (gap, _) = held[3];
    assert_eq!(cuMemFreeAsync(gap, NULL), 0);
    assert_eq!(take(one, 33 * MIB, NULL), gap);
    held[3].0 = gap;
    for (one, other) in held {
        assert_eq!(cuMemFreeAsync(one, NULL), 0);
        assert_eq!(cuMemFreeAsync(other, NULL), 0);
    }
    assert_eq!(cuMemPoolDestroy(one), 0);
    assert_eq!(cuMemPoolDestroy(other), 0);
}

/// Where its addresses go on, somebody else may have them.
#[test]
fn a_pool_may_have_to_grow_elsewhere() {
    let program = Program::new();
    let p = pool(0);
    let block = take(p, 20 * MIB, NULL);
    let room = {
        let mut lock = crate::machine::lock();
        let model = &mut lock.as_mut().unwrap().model;
        let length = vramalloc_core::Bytes::new(2 * MIB);
        let end = vramalloc_core::Address::new(block + GRAIN);
        let family = vramalloc_model::Family::Virtual;
        let place = vramalloc_model::Place::At(end);
        model
            .take_span_at(place, 0, family, length, length)
            .unwrap()
    };
    let other = take(p, 20 * MIB, NULL);
    assert!(other.abs_diff(block) >= GRAIN);
    assert_eq!(ask(p, RESERVED), 2 * GRAIN);
    assert_eq!(program.fill(NULL, other, 1, 5 * MIB, 1), 0);
    for block in [block, other] {
        assert_eq!(cuMemFreeAsync(block, NULL), 0);
    }
    assert_eq!(cuMemPoolDestroy(p), 0);
    crate::machine::lock()
        .as_mut()
        .unwrap()
        .model
        .drop_span(room);
}

#[test]
fn a_free_of_a_pools_memory_does_not_wait() {
    let program = Program::new();
    let seen = program.violations();
    let (s, p) = (stream(1), pool(0));
    let (block, other) = (take(p, MIB, s), take(p, MIB, s));
    assert_eq!(program.fill(s, block, 1, 1, 5 * MS), 0);
    assert_eq!(cuMemFree_v2(other), 0);
    assert_eq!(cuStreamQuery(s), 600);
    assert_eq!(program.violations(), seen);
    assert_eq!(cuMemFree_v2(block), 0);
    assert_eq!(program.violations().len(), seen.len() + 1, "still in use");
    assert_eq!(cuMemFree_v2(block), 1);
    assert_eq!(cuMemPoolDestroy(p), 0);
}

#[test]
fn another_stream_uses_it_again_as_the_attributes_allow() {
    let program = Program::new();
    let (s, t) = (stream(1), stream(1));
    let p = pool(0);
    let free_later = || {
        let block = take(p, GRAIN, s);
        assert_eq!(program.fill(s, block, 1, 1, 5 * MS), 0);
        assert_eq!(cuMemFreeAsync(block, s), 0);
        block
    };
    // While there is memory, no stream is made to wait.
    let block = free_later();
    let other = take(p, GRAIN, t);
    assert_ne!(other, block);
    assert_eq!(cuMemFreeAsync(other, t), 0);
    assert_eq!(cuCtxSynchronize(), 0);
    // A dependency makes it available.
    let block = free_later();
    let event = made(|to| cuEventCreate(to, 2));
    assert_eq!(cuEventRecord(event, s), 0);
    assert_eq!(cuStreamWaitEvent(t, event, 0), 0);
    assert_eq!(tell(p, FOLLOW, 0), 0);
    let other = take(p, GRAIN, t);
    assert_ne!(other, block, "unless it is not to be followed");
    assert_eq!(tell(p, FOLLOW, 1), 0);
    assert_eq!(take(p, GRAIN, t), block);
    for held in [block, other] {
        assert_eq!(cuMemFreeAsync(held, t), 0);
    }
    assert_eq!(cuCtxSynchronize(), 0);
    // What happens to be done is available.
    let block = free_later();
    while cuStreamQuery(s) == 600 {}
    assert_eq!(tell(p, OPPORTUNISTIC, 0), 0);
    let u = stream(1);
    let other = take(p, GRAIN, u);
    assert_ne!(other, block);
    assert_eq!(tell(p, OPPORTUNISTIC, 1), 0);
    assert_eq!(take(p, GRAIN, u), block);
    for held in [block, other] {
        assert_eq!(cuMemFreeAsync(held, u), 0);
    }
    assert_eq!(cuMemPoolDestroy(p), 0);
}

#[test]
fn at_its_limit_a_pool_makes_streams_wait_or_refuses() {
    let program = Program::new();
    let (s, t) = (stream(1), stream(1));
    let p = pool(GRAIN - 5);
    let block = take(p, GRAIN, s);
    assert_eq!(try_take(p, 512, t), 2);
    assert_eq!(program.fill(s, block, 1, 1, 5 * MS), 0);
    assert_eq!(cuMemFreeAsync(block, s), 0);
    assert_eq!(cuStreamQuery(t), 0);
    assert_eq!(take(p, GRAIN, t), block);
    assert_eq!(cuStreamQuery(t), 600, "it waits for the other stream");
    assert_eq!(program.fill(t, block, 2, 1, 5 * MS), 0);
    assert_eq!(cuMemFreeAsync(block, t), 0);
    assert_eq!(tell(p, INTERNAL, 0), 0);
    assert_eq!(take(p, GRAIN, s), block);
    assert_eq!(cuStreamQuery(t), 0, "the call has waited");
    assert_eq!(cuMemFreeAsync(block, s), 0);
    assert_eq!(cuMemPoolDestroy(p), 0);
    assert_eq!(try_take(p, 512, s), 1);
}

#[test]
fn a_destroyed_pool_lives_until_its_memory_is_free() {
    let program = Program::new();
    let (s, before) = (stream(1), info());
    let p = pool(0);
    let block = take(p, MIB, s);
    assert_eq!(cuDeviceSetMemPool(0, p), 0);
    assert_eq!(made::<Handle>(|to| cuDeviceGetMemPool(to, 0)), p);
    assert_eq!(cuMemPoolDestroy(p), 0);
    let first: Handle = made(|to| cuDeviceGetDefaultMemPool(to, 0));
    assert_eq!(made::<Handle>(|to| cuDeviceGetMemPool(to, 0)), first);
    assert_eq!(cuMemPoolTrimTo(p, 0), 1);
    assert_ne!(pool(0), p, "its handle is not used again");
    assert_eq!(before - info(), GRAIN);
    assert_eq!(program.fill(s, block, 1, 1, 5 * MS), 0);
    assert_eq!(cuMemFreeAsync(block, s), 0);
    assert_eq!(before - info(), GRAIN, "the free is not reached");
    while cuStreamQuery(s) == 600 {}
    assert_eq!(info(), before);
    assert_eq!(cuMemPoolDestroy(first), 1);
}

#[test]
fn work_on_freed_memory_is_a_violation() {
    let program = Program::new();
    let (s, t, p) = (stream(1), stream(1), pool(0));
    let seen = program.violations().len();
    let block = take(p, MIB, s);
    assert_eq!(program.fill(t, block, 1, 1, 50 * MS), 0);
    assert_eq!(cuMemFreeAsync(block, s), 0);
    assert_eq!(program.violations().len(), seen + 1, "another stream works");
    assert_eq!(cuMemsetD8_v2(block, 0, 1), 1);
    assert_eq!(program.violations().len(), seen + 2, "freed before");
    assert_eq!(cuMemPoolDestroy(p), 0);
}

#[test]
fn pools_end_with_what_a_context_took_from_them() {
    let _program = Program::new();
    let before = info();
    let other = made(|to| cuCtxCreate_v2(to, 0, 0));
    made::<u64>(|to| cuMemAllocAsync(to, MIB, NULL));
    assert_eq!(cuCtxDestroy_v2(other), 0);
    assert_eq!(info(), before);
}

#[test]
fn bad_arguments_of_pools_get_codes() {
    let _program = Program::new();
    let create = |p: PoolProps| cuMemPoolCreate(out(&mut 0), given(&p));
    assert_eq!(create(props(1, 7, 0, 0)), 101);
    assert_eq!(create(props(2, 0, 0, 0)), 801, "host memory");
    assert_eq!(create(props(1, 0, 2, 0)), 801);
    assert_eq!(create(props(9, 0, 0, 0)), 1);
    let p = pool(0);
    assert_eq!(try_take(p, 0, NULL), 1);
    assert_eq!(try_take(0xdead, 512, NULL), 1);
    assert_eq!(try_take(p, 1 << 50, NULL), 2);
    assert_eq!(cuMemPoolGetAttribute(p, 99, out(&mut 0)), 1);
    assert_eq!(cuDeviceSetMemPool(1, p), 1, "of another device");
    let here = place(1, 0);
    assert_eq!(cuMemSetMemPool(given(&here), 1, p), 0);
    assert_eq!(made::<Handle>(|to| cuMemGetMemPool(to, given(&here), 1)), p);
    let host = place(2, 0);
    assert_eq!(cuMemGetDefaultMemPool(out(&mut 0), given(&host), 1), 801);
    assert_eq!(cuMemPoolDestroy(p), 0);
}

#[test]
fn access_is_set_by_device() {
    let _program = Program::new();
    let p = pool(0);
    let access = |id| {
        let location = place(1, id);
        made::<u32>(|to| cuMemPoolGetAccess(to, p, given(&location)))
    };
    let set = |id, flags| {
        let location = place(1, id);
        let list = Access { location, flags };
        cuMemPoolSetAccess(p, given(&list), 1)
    };
    assert_eq!((access(0), access(1)), (3, 0));
    assert_eq!(set(1, 3), 0);
    assert_eq!(access(1), 3);
    assert_eq!(set(0, 0), 1, "its own device keeps it");
    assert_eq!(set(9, 3), 101);
    assert_eq!(cuMemPoolDestroy(p), 0);
}

#[test]
fn plain_memory_that_an_idle_stream_frees_is_free() {
    let _program = Program::new();
    let before = info();
    let block = alloc(4 * MIB);
    assert_eq!(cuMemFreeAsync(block, NULL), 0);
    assert_eq!(cuCtxSynchronize(), 0);
    assert_eq!(info(), before);
    assert_eq!(alloc(4 * MIB), block);
    assert_eq!(cuMemFree_v2(block), 0);
}
