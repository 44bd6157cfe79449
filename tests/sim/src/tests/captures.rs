//! Captures and graphs.

#![allow(clippy::wildcard_imports, reason = "a program sees every function")]

use super::*;

#[test]
fn a_capture_forbids_growth_except_in_relaxed_mode() {
    let program = Program::new();
    let (s, block) = (stream(1), alloc(MIB));
    let event: Handle = made(|to| cuEventCreate(to, 0));
    assert_eq!(cuMemsetD32_v2(block, 1, 1), 0);
    for call in [
        || cuMemAlloc_v2(out(&mut 0), 512),
        || cuMemFree_v2(0x1000),
        || cuMemsetD8_v2(0x1000, 0, 1),
    ] {
        assert_eq!(cuStreamBeginCapture_v2(s, 0), 0);
        assert_eq!(call(), 900);
        assert_eq!(made(|to| cuStreamIsCapturing(s, to)), 2);
        assert_eq!(program.fill(s, block, 2, 1, 1), 901);
        assert_eq!(cuStreamEndCapture(s, none()), 901);
    }
    for ask in [
        || cuEventQuery as extern "C" fn(Handle) -> u32,
        || cuEventSynchronize as extern "C" fn(Handle) -> u32,
    ] {
        assert_eq!(cuStreamBeginCapture_v2(s, 0), 0);
        assert_eq!(ask()(event), 900);
        assert_eq!(cuStreamEndCapture(s, none()), 901);
    }
    assert_eq!(cuStreamBeginCapture_v2(s, 2), 0);
    assert_eq!(cuCtxRecordEvent(program.context, event), 900);
    assert_eq!(cuStreamEndCapture(s, none()), 901);
    let seen = program.violations();
    assert!(seen.iter().any(|v| v.starts_with("cuCtxRecordEvent")));

    assert_eq!(cuStreamBeginCapture_v2(s, 0), 0);
    let mut mode = 2;
    assert_eq!(cuThreadExchangeStreamCaptureMode(out(&mut mode)), 0);
    assert_eq!(cuMemFree_v2(alloc(512)), 0);
    assert_eq!(cuThreadExchangeStreamCaptureMode(out(&mut mode)), 0);
    assert_eq!(mode, 2);
    assert_eq!(program.fill(s, block, 3, 1, MS), 0);
    let graph = made(|to| cuStreamEndCapture(s, to));
    assert_eq!(cuStreamSynchronize(s), 0);
    assert_eq!(read(block), 1, "captured work is not done");
    let exec = made(|to| cuGraphInstantiateWithFlags(to, graph, 0));
    for value in [1, 2] {
        assert_eq!(cuMemsetD32_v2(block, value, 1), 0);
        assert_eq!(cuGraphLaunch(exec, s), 0);
        assert_eq!(cuStreamSynchronize(s), 0);
        assert_eq!(read(block), 3);
    }
}

/// The calls of a thread about a stream that does not capture.
#[test]
fn a_capture_forbids_a_wait_for_another_stream() {
    let program = Program::new();
    let (s, t) = (stream(1), stream(1));
    let here = || cuStreamSynchronize(t);
    let there = |mode: u32| {
        std::thread::spawn(move || {
            let mut mode = mode;
            assert_eq!(cuThreadExchangeStreamCaptureMode(out(&mut mode)), 0);
            cuStreamSynchronize(t)
        })
        .join()
        .unwrap()
    };
    let own = |capture: u32, wait: &dyn Fn() -> u32| {
        assert_eq!(cuStreamBeginCapture_v2(s, capture), 0);
        let code = wait();
        (code, cuStreamEndCapture(s, none()))
    };
    assert_eq!(program.fill(t, alloc(512), 1, 1, 1), 0);
    for (capture, answers) in [
        // Here; there, by a thread that is global, thread-local, relaxed.
        (0, [900, 900, 0, 0]),
        (1, [900, 0, 0, 0]),
        (2, [0, 0, 0, 0]),
    ] {
        let waits: [&dyn Fn() -> u32; 4] = [&here, &|| there(0), &|| there(1), &|| there(2)];
        for (wait, code) in waits.into_iter().zip(answers) {
            let end = if code == 0 { 0 } else { 901 };
            assert_eq!(own(capture, wait), (code, end), "mode {capture}");
        }
    }
    let mut mode = 2;
    assert_eq!(cuThreadExchangeStreamCaptureMode(out(&mut mode)), 0);
    assert_eq!(own(0, &here), (0, 0), "this thread is relaxed");
    assert_eq!(cuThreadExchangeStreamCaptureMode(out(&mut mode)), 0);
}

#[test]
fn a_capture_ends_with_its_stream_or_context() {
    let _program = Program::new();
    let s = stream(1);
    assert_eq!(cuStreamBeginCapture_v2(s, 0), 0);
    assert_eq!(cuStreamDestroy_v2(s), 900);
    alloc(512);
    let other = made(|to| cuCtxCreate_v2(to, 0, 0));
    assert_eq!(cuStreamBeginCapture_v2(2, 0), 0);
    assert_eq!(
        cuStreamSynchronize(NULL),
        906,
        "the thread's own stream counts"
    );
    assert_eq!(cuCtxDestroy_v2(other), 0);
    alloc(512);
}

#[test]
fn an_event_takes_another_stream_into_the_capture() {
    let program = Program::new();
    let (s, t, block) = (stream(1), stream(0), alloc(MIB));
    let (fork, join) = (
        made(|to| cuEventCreate(to, 2)),
        made(|to| cuEventCreate(to, 2)),
    );
    assert_eq!(cuStreamBeginCapture_v2(s, 0), 0);
    assert_eq!(cuEventRecord(fork, s), 0);
    assert_eq!(cuEventQuery(fork), 900, "and the capture is spoiled");
    assert_eq!(cuStreamEndCapture(s, none()), 901);

    assert_eq!(cuStreamBeginCapture_v2(s, 0), 0);
    assert_eq!(cuEventRecord(fork, s), 0);
    assert_eq!(cuStreamWaitEvent(t, fork, 0), 0);
    assert_eq!(program.fill(t, block, 9, 1, 1), 0);
    assert_eq!(cuEventRecord(join, t), 0);
    assert_eq!(cuStreamWaitEvent(s, join, 0), 0);
    assert_eq!(
        cuStreamSynchronize(NULL),
        906,
        "the legacy stream orders with it"
    );
    assert_eq!(cuStreamEndCapture(s, none()), 901);
}

#[test]
fn a_stream_that_captures_tells_its_context_but_not_its_number() {
    let _program = Program::new();
    let s = stream(1);
    let questions = [
        |of: Handle| cuStreamGetId(of, out(&mut 0)),
        |of: Handle| cuStreamGetFlags(of, out(&mut 0)),
        |of: Handle| cuStreamGetDevice(of, out(&mut 0)),
    ];
    let harmless = [
        |of: Handle| cuStreamGetCtx(of, out(&mut 0)),
        |of: Handle| cuStreamGetPriority(of, out(&mut 0)),
        |of: Handle| cuStreamIsCapturing(of, out(&mut 0)),
    ];
    for ask in questions {
        assert_eq!(ask(s), 0);
        for mode in 0..3 {
            assert_eq!(cuStreamBeginCapture_v2(s, mode), 0);
            assert_eq!(ask(s), 900, "in mode {mode}");
            assert_eq!(cuStreamEndCapture(s, none()), 901);
        }
    }
    for mode in 0..3 {
        assert_eq!(cuStreamBeginCapture_v2(s, mode), 0);
        for ask in harmless {
            assert_eq!(ask(s), 0, "in mode {mode}");
        }
        assert_eq!(cuStreamEndCapture(s, out(&mut 0)), 0);
    }
}

#[test]
fn the_legacy_stream_says_that_it_orders_with_a_capture() {
    let _program = Program::new();
    let s = stream(0);
    assert_eq!(cuStreamBeginCapture_v2(s, 0), 0);
    assert_eq!(cuStreamIsCapturing(NULL, out(&mut 0)), 906);
    assert_eq!(cuStreamEndCapture(s, out(&mut 0)), 0, "that spoils nothing");
}
