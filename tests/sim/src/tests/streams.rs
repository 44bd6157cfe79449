//! Order: streams, events, marks, the twins, and host functions.

#![allow(clippy::wildcard_imports, reason = "a program sees every function")]

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

#[test]
fn a_fill_lands_at_its_end_and_a_free_waits_for_it() {
    let program = Program::new();
    let (s, block) = (stream(1), alloc(4 * MIB));
    assert_eq!(cuMemsetD32_v2(block, 7, 16), 0);
    assert_eq!(program.fill(s, block, 0xabcd, 16, 200 * MS), 0);
    assert_eq!(read(block), 7);
    assert_eq!(cuStreamQuery(s), 600);
    assert_eq!(cuStreamSynchronize(s), 0);
    assert_eq!(read(block + 60), 0xabcd);

    assert_eq!(program.fill(s, block, 1, 16, 200 * MS), 0);
    assert_eq!(cuMemFree_v2(block), 0);
    assert_eq!(cuStreamQuery(s), 0);
    assert_eq!(cuMemFree_v2(block), 1);
    assert_eq!(cuMemFree_v2(NULL), 0);
}

#[test]
fn a_free_waits_for_the_whole_device() {
    let program = Program::new();
    let (s, block) = (stream(1), alloc(MIB));
    assert_eq!(program.fill(s, block, 1, 1, 200 * MS), 0);
    let other = made(|to| cuCtxCreate_v2(to, 0, 0));
    assert_eq!(cuMemFree_v2(alloc(MIB)), 0);
    assert_eq!(cuStreamQuery(s), 0);
    assert_eq!(cuCtxDestroy_v2(other), 0);
}

#[test]
fn a_mark_of_the_context_sees_all_streams() {
    let program = Program::new();
    let (s, block) = (stream(1), alloc(MIB));
    let on_legacy: Handle = made(|to| cuEventCreate(to, 0));
    let on_all: Handle = made(|to| cuEventCreate(to, 0));
    assert_eq!(program.fill(s, block, 1, 1, 5 * MS), 0);
    assert_eq!(cuStreamDestroy_v2(s), 0);
    assert_eq!(cuEventRecord(on_legacy, NULL), 0);
    assert_eq!(cuCtxRecordEvent(program.context, on_all), 0);
    assert_eq!(cuEventQuery(on_legacy), 0);
    assert_eq!(cuEventQuery(on_all), 600);
    assert_eq!(cuEventElapsedTime(out(&mut 0.0), on_legacy, on_all), 600);
    assert_eq!(cuEventSynchronize(on_all), 0);
    let apart = made(|to| cuEventElapsedTime(to, on_legacy, on_all));
    assert!((4.9..5.1).contains(&apart), "{apart} ms");
}

/// A program that asks until an event is reached sleeps in between, and the device
/// goes on; one that gives it more work does not.
#[test]
fn a_program_that_asks_again_has_slept() {
    let program = Program::new();
    let (s, block) = (stream(1), alloc(MIB));
    let event: Handle = made(|to| cuEventCreate(to, 0));
    let questions = |nap| {
        let mut lock = crate::machine::lock();
        lock.as_mut().unwrap().environment.nap_ns = nap;
        drop(lock);
        let _ = program.fill(s, block, 1, 1, 5 * MS);
        assert_eq!(cuEventRecord(event, s), 0);
        (1..9000).find(|_| cuEventQuery(event) == 0)
    };
    let without = questions(0).unwrap();
    assert!((4000..7000).contains(&without), "{without}");
    assert_eq!(questions(MS), Some(6));
    // Another event, or work in between, and nothing is waited for.
    let _ = program.fill(s, block, 1, 1, 5 * MS);
    let other: Handle = made(|to| cuEventCreate(to, 0));
    assert_eq!([cuEventRecord(event, s), cuEventRecord(other, s)], [0, 0]);
    for _ in 0..20 {
        assert_eq!([cuEventQuery(event), cuEventQuery(other)], [600, 600]);
        assert_eq!(program.fill(s, block, 1, 1, 0), 0);
        assert_eq!([cuEventQuery(other), cuEventRecord(other, s)], [600, 0]);
    }
    // The device is not ahead of the event.
    questions(50 * MS);
    let _ = program.fill(s, block, 1, 1, 5 * MS);
    assert_eq!(cuEventQuery(event), 0);
    assert_eq!([cuEventRecord(event, s), cuEventQuery(event)], [0, 600]);
}

#[test]
fn the_twin_takes_stream_0_for_the_threads_own() {
    let program = Program::new();
    let (s, block) = (stream(1), alloc(MIB));
    let _ = program.fill(s, block, 1, 1, 5 * MS);
    let event: Handle = made(|to| cuEventCreate(to, 0));
    assert_eq!(cuEventRecord(event, s), 0);
    assert_eq!(cuStreamWaitEvent_ptsz(NULL, event, 0), 0);
    assert_eq!(cuStreamQuery_ptsz(NULL), 600);
    assert_eq!(cuStreamQuery(2), 600);
    assert_eq!(cuStreamQuery(1), 600, "the thread's own is a blocking one");
    let elsewhere = std::thread::scope(|scope| {
        let ask = || {
            assert_eq!(cuCtxSetCurrent(program.context), 0);
            cuStreamQuery(2)
        };
        scope.spawn(ask).join().unwrap()
    });
    assert_eq!(elsewhere, 0, "another thread has another");
}

#[test]
fn a_host_function_comes_in_its_turn_and_may_not_call_the_driver() {
    static SEEN: AtomicU32 = AtomicU32::new(0);
    extern "C" fn called(to: *mut c_void) {
        SEEN.store(cuCtxSynchronize(), Ordering::Relaxed);
        // SAFETY: the pinned memory that the test passed on.
        unsafe { to.cast::<u32>().write(5) }
    }
    let program = Program::new();
    let (s, block) = (stream(1), alloc(MIB));
    let pinned = made(|to| cuMemHostAlloc(to, 4096, 0));
    assert_eq!(program.fill(s, block + 512, 0, 1, 5 * MS), 0);
    assert_eq!(cuLaunchHostFunc(s, Some(called), pinned), 0);
    assert_eq!(cuMemcpyHtoDAsync_v2(block, pinned, 4, s), 0);
    assert_eq!(SEEN.load(Ordering::Relaxed), 0);
    assert_eq!(cuStreamSynchronize(s), 0);
    assert_eq!(SEEN.load(Ordering::Relaxed), 800);
    assert_eq!(read(block), 5);
    assert_eq!(cuLaunchHostFunc(s, None, pinned), 1);
}
