//! What virtual memory forbids, and what drivers differ in.

#![allow(clippy::wildcard_imports, reason = "a program sees every function")]

use super::*;
use crate::device::cuDeviceGetAttribute;
use crate::env::Environment;
use crate::settings::*;

const PAGE: u64 = 2 * MIB;

/// Two mappings of a page each, side by side, with access of the first device.
struct Pages {
    range: u64,
    memory: [Handle; 2],
}

fn props() -> AllocationProps {
    AllocationProps {
        kind: 1,
        handles: 0,
        location: Location { kind: 1, id: 0 },
        security: 0,
        flags: [0; 8],
    }
}

fn let_in(start: u64, size: u64, id: i32) -> u32 {
    let location = Location { kind: 1, id };
    let list = Access { location, flags: 3 };
    cuMemSetAccess(start, size, given(&list), 1)
}

impl Pages {
    /// In a range of four pages.
    fn new() -> Pages {
        let range = made(|to| cuMemAddressReserve(to, 4 * PAGE, 0, 0, 0));
        let memory = [0, 1].map(|i| {
            let memory: Handle = made(|to| cuMemCreate(to, PAGE, given(&props()), 0));
            assert_eq!(cuMemMap(range + i * PAGE, PAGE, 0, memory, 0), 0);
            memory
        });
        assert_eq!(let_in(range, 2 * PAGE, 0), 0);
        Pages { range, memory }
    }

    fn unmap(&self) {
        for at in [self.range, self.range + PAGE] {
            assert_eq!(cuMemUnmap(at, PAGE), 0);
        }
    }

    fn give_back(self) {
        self.unmap();
        for memory in self.memory {
            assert_eq!(cuMemRelease(memory), 0);
        }
        assert_eq!(cuMemAddressFree(self.range, 4 * PAGE), 0);
    }
}

impl Program {
    /// The violations that `work` adds.
    fn new_violations(&self, work: impl FnOnce()) -> Vec<String> {
        let before = self.violations().len();
        work();
        self.violations().split_off(before)
    }
}

/// Runs `work` with other settings of the environment.
fn with(change: impl Fn(&mut Environment), work: impl FnOnce()) {
    let environment = || {
        let mut lock = crate::machine::lock();
        let sim = lock.as_mut().unwrap();
        let before = sim.environment.clone();
        change(&mut sim.environment);
        before
    };
    let before = environment();
    work();
    crate::machine::lock().as_mut().unwrap().environment = before;
}

fn attribute(attribute: i32) -> i32 {
    made(|to| cuDeviceGetAttribute(to, attribute, 0))
}

#[test]
fn new_memory_holds_garbage_also_where_others_had_zeros() {
    let _program = Program::new();
    let pages = Pages::new();
    assert_eq!(cuMemsetD8_v2(pages.range, 0, 2 * PAGE), 0);
    assert_eq!(read(pages.range), 0);
    pages.give_back();
    let pages = Pages::new();
    for at in [pages.range, pages.range + PAGE] {
        assert_eq!(read(at), 0xc5c5_c5c5);
    }
    // A unit keeps what it holds while it is mapped elsewhere.
    assert_eq!(cuMemsetD32_v2(pages.range, 7, 1), 0);
    assert_eq!(cuCtxSynchronize(), 0);
    assert_eq!(cuMemUnmap(pages.range, PAGE), 0);
    let other = pages.range + 2 * PAGE;
    assert_eq!(cuMemMap(other, PAGE, 0, pages.memory[0], 0), 0);
    assert_eq!(let_in(other, PAGE, 0), 0);
    assert_eq!(read(other), 7);
    assert_eq!(cuMemUnmap(other, PAGE), 0);
    assert_eq!(cuMemMap(pages.range, PAGE, 0, pages.memory[0], 0), 0);
    pages.give_back();
}

#[test]
fn work_that_runs_into_a_hole_is_a_violation() {
    let program = Program::new();
    let pages = Pages::new();
    let end = pages.range + 2 * PAGE;
    let seen = program.new_violations(|| {
        assert_eq!(program.fill(NULL, end - 64, 1, 32, 1), 0);
    });
    assert!(seen.iter().any(|v| v.contains("not allocated")), "{seen:?}");
    let seen = program.new_violations(|| {
        assert_eq!(cuMemsetD8_v2(end, 1, 64), 1);
    });
    assert!(seen[0].contains("not allocated"), "{seen:?}");
    assert_eq!(cuCtxSynchronize(), 0);
    pages.give_back();
}

#[test]
fn access_is_set_while_no_work_of_that_device_uses_the_bytes() {
    let program = Program::new();
    let pages = Pages::new();
    let s = stream(1);
    assert_eq!(program.fill(s, pages.range, 1, 4, 50 * MS), 0);
    let none = program.new_violations(|| {
        assert_eq!(let_in(pages.range, 2 * PAGE, 1), 0, "another device");
        assert_eq!(let_in(pages.range + PAGE, PAGE, 0), 0, "beside the work");
    });
    assert_eq!(none, [""; 0]);
    let seen = program.new_violations(|| {
        assert_eq!(let_in(pages.range, PAGE, 0), 0);
    });
    assert!(seen[0].contains("is set while its work"), "{seen:?}");
    assert_eq!(cuStreamSynchronize(s), 0);
    let none = program.new_violations(|| {
        assert_eq!(let_in(pages.range, PAGE, 0), 0);
    });
    assert_eq!(none, [""; 0]);
    pages.give_back();
}

#[test]
fn access_to_a_context_does_not_reach_mapped_memory() {
    let program = Program::new();
    let (pages, plain) = (Pages::new(), alloc(MIB));
    let other: Handle = made(|to| cuCtxCreate_v2(to, 0, 1));
    assert_eq!(cuCtxEnablePeerAccess(program.context, 0), 0);
    let touch = |at| program.new_violations(|| assert_eq!(cuMemsetD32_v2(at, 1, 1), 0));
    assert_eq!(touch(plain), [""; 0]);
    let seen = touch(pages.range);
    assert!(seen[0].contains("device 1 was not given"), "{seen:?}");
    assert_eq!(let_in(pages.range, 2 * PAGE, 1), 0);
    assert_eq!(touch(pages.range), [""; 0]);
    assert_eq!(cuCtxSynchronize(), 0);
    assert_eq!(cuCtxDestroy_v2(other), 0);
    assert_eq!(touch(pages.range), [""; 0], "as before");
    assert_eq!(cuCtxSynchronize(), 0);
    pages.give_back();
}

#[test]
fn addresses_with_memory_behind_them_are_not_given_back() {
    let program = Program::new();
    let pages = Pages::new();
    let seen = program.new_violations(|| {
        assert_eq!(cuMemAddressFree(pages.range, 4 * PAGE), 1);
    });
    assert!(seen[0].contains("memory is mapped"), "{seen:?}");
    pages.give_back();
}

fn capture_undisturbed(stream: Handle, mode: u32, during: impl FnOnce()) {
    assert_eq!(cuStreamBeginCapture_v2(stream, mode), 0);
    during();
    let graph: Handle = made(|to| cuStreamEndCapture(stream, to));
    assert_eq!(cuGraphDestroy(graph), 0);
}

#[test]
fn a_capture_allows_memory_in_every_mode() {
    let program = Program::new();
    let (pages, s) = (Pages::new(), stream(1));
    let third = pages.range + 2 * PAGE;
    for capture in 0..3 {
        let seen = program.new_violations(|| {
            capture_undisturbed(s, capture, || {
                let memory: Handle = made(|to| cuMemCreate(to, PAGE, given(&props()), 0));
                assert_eq!(cuMemMap(third, PAGE, 0, memory, 0), 0);
                assert_eq!(let_in(third, PAGE, 0), 0);
                assert_eq!(cuMemUnmap(third, PAGE), 0);
                assert_eq!(cuMemRelease(memory), 0);
            });
        });
        assert_eq!(seen, [""; 0]);
    }
    pages.give_back();
}

#[test]
fn a_strict_driver_allows_a_capture_memory_in_relaxed_mode() {
    let program = Program::new();
    let (pages, s) = (Pages::new(), stream(1));
    let third = pages.range + 2 * PAGE;
    let mut mode = 2;
    let refused = |capture, call: &dyn Fn() -> u32| {
        assert_eq!(cuStreamBeginCapture_v2(s, capture), 0);
        let seen = program.new_violations(|| assert_eq!(call(), 900));
        assert!(seen[0].contains("during a stream capture"), "{seen:?}");
        assert_eq!(cuStreamEndCapture(s, none()), 901);
    };
    with(
        |e| e.strict_mapping = true,
        || {
            for capture in [0, 1] {
                let mut memory = Handle::default();
                capture_undisturbed(s, capture, || {
                    assert_eq!(cuThreadExchangeStreamCaptureMode(out(&mut mode)), 0);
                    memory = made(|to| cuMemCreate(to, PAGE, given(&props()), 0));
                    assert_eq!(cuMemMap(third, PAGE, 0, memory, 0), 0);
                    assert_eq!(let_in(third, PAGE, 0), 0);
                    assert_eq!(cuThreadExchangeStreamCaptureMode(out(&mut mode)), 0);
                });
                refused(capture, &|| {
                    cuMemCreate(out(&mut 0), PAGE, given(&props()), 0)
                });
                refused(capture, &|| let_in(third, PAGE, 0));
                refused(capture, &|| cuMemMap(third + PAGE, PAGE, 0, memory, 0));
                assert_eq!(cuMemUnmap(third, PAGE), 0);
                assert_eq!(cuMemRelease(memory), 0);
            }
        },
    );
    pages.give_back();
}

#[test]
fn a_driver_may_unmap_nothing_during_a_capture() {
    let program = Program::new();
    let (pages, s) = (Pages::new(), stream(1));
    let mut mode = 2;
    assert_eq!(cuThreadExchangeStreamCaptureMode(out(&mut mode)), 0);
    for capture in 0..3 {
        assert_eq!(cuStreamBeginCapture_v2(s, capture), 0);
        let seen = program.new_violations(|| {
            with(
                |e| e.no_unmap_in_capture = true,
                || assert_eq!(cuMemUnmap(pages.range, PAGE), 900),
            );
        });
        assert!(seen[0].starts_with("cuMemUnmap during"), "{seen:?}");
        assert_eq!(cuStreamEndCapture(s, none()), 901);
    }
    assert_eq!(cuThreadExchangeStreamCaptureMode(out(&mut mode)), 0);
    pages.give_back();
}

#[test]
fn memory_that_outlives_all_contexts_is_told_at_the_end() {
    let program = Program::new();
    let check = || {
        let mut lock = crate::machine::lock();
        lock.as_mut().unwrap().check_units();
    };
    let other: Handle = made(|to| cuCtxCreate_v2(to, 0, 1));
    let mut there = props();
    there.location.id = 1;
    let memory: Handle = made(|to| cuMemCreate(to, PAGE, given(&there), 0));
    assert_eq!(program.new_violations(check), [""; 0], "a context lives");
    assert_eq!(cuCtxDestroy_v2(other), 0);
    let seen = program.new_violations(check);
    assert!(seen[0].starts_with("1 pieces of physical"), "{seen:?}");
    assert_eq!(cuMemRelease(memory), 0);
    assert_eq!(program.new_violations(check), [""; 0]);
}

#[test]
fn a_driver_can_be_without_virtual_memory() {
    let _program = Program::new();
    assert_eq!([102, 103, 110].map(attribute), [1; 3]);
    with(
        |e| e.no_vmm = true,
        || {
            assert_eq!([102, 103, 110].map(attribute), [0; 3]);
            assert_eq!(cuMemAddressReserve(out(&mut 0), PAGE, 0, 0, 0), 801);
            assert_eq!(cuMemCreate(out(&mut 0), PAGE, given(&props()), 0), 801);
            let asked = cuMemGetAllocationGranularity(out(&mut 0), given(&props()), 0);
            assert_eq!(asked, 801);
        },
    );
}

#[test]
fn wsl_refuses_access_to_memory_for_other_hardware() {
    let _program = Program::new();
    let range = made(|to| cuMemAddressReserve(to, PAGE, 0, 0, 0));
    let both = [[0_u8; 8], [0, 1, 0, 0, 0, 0, 0, 0]];
    for (wsl, answers) in [(false, [0, 0]), (true, [0, 999])] {
        for (flags, answer) in both.into_iter().zip(answers) {
            let wanted = AllocationProps { flags, ..props() };
            let memory: Handle = made(|to| cuMemCreate(to, PAGE, given(&wanted), 0));
            assert_eq!(cuMemMap(range, PAGE, 0, memory, 0), 0);
            with(
                |e| e.wsl = wsl,
                || {
                    assert_eq!(let_in(range, PAGE, 0), answer);
                },
            );
            assert_eq!(cuMemUnmap(range, PAGE), 0);
            assert_eq!(cuMemRelease(memory), 0);
        }
    }
    assert_eq!(cuMemAddressFree(range, PAGE), 0);
}

#[test]
fn a_driver_may_map_from_the_middle_of_memory() {
    let _program = Program::new();
    let range = made(|to| cuMemAddressReserve(to, 4 * PAGE, 0, 0, 0));
    let memory: Handle = made(|to| cuMemCreate(to, 2 * PAGE, given(&props()), 0));
    with(
        |e| e.map_offsets = true,
        || {
            assert_eq!(cuMemMap(range, PAGE, PAGE, memory, 0), 0);
            assert_eq!(cuMemMap(range + PAGE, PAGE, 0, memory, 0), 0);
            assert_eq!(cuMemMap(range + 2 * PAGE, PAGE, 2 * PAGE, memory, 0), 1);
            assert_eq!(cuMemMap(range + 2 * PAGE, PAGE, PAGE / 2, memory, 0), 1);
        },
    );
    assert_eq!(let_in(range, 2 * PAGE, 0), 0);
    assert_eq!(cuMemsetD32_v2(range, 1, 1), 0);
    assert_eq!(cuMemsetD32_v2(range + PAGE, 2, 1), 0);
    assert_eq!((read(range), read(range + PAGE)), (1, 2));
    assert_eq!(cuMemUnmap(range, 2 * PAGE), 0);
    assert_eq!(cuMemMap(range, 2 * PAGE, 0, memory, 0), 0);
    assert_eq!(let_in(range, 2 * PAGE, 0), 0);
    assert_eq!((read(range), read(range + PAGE)), (2, 1));
    assert_eq!(cuMemUnmap(range, 2 * PAGE), 0);
    assert_eq!(cuMemRelease(memory), 0);
    assert_eq!(cuMemAddressFree(range, 4 * PAGE), 0);
}

#[test]
fn a_later_driver_has_memory_in_a_part_of_a_device() {
    let _program = Program::new();
    let make = |id, size| {
        let location = Location { kind: 6, id };
        let props = AllocationProps {
            location,
            ..props()
        };
        cuMemCreate(out(&mut 0), size, given(&props), 0)
    };
    for (version, answers) in [(13_000, [1, 1]), (13_040, [2, 1])] {
        with(
            |e| e.version = version,
            || {
                let all = make(1, 1 << 50);
                assert_eq!([all, make(0x100, PAGE)], answers, "a device's only part");
            },
        );
    }
}

#[test]
fn a_driver_may_unmap_one_at_a_time() {
    let _program = Program::new();
    let pages = Pages::new();
    with(
        |e| e.unmap_one = true,
        || assert_eq!(cuMemUnmap(pages.range, 2 * PAGE), 1),
    );
    assert_eq!(cuMemUnmap(pages.range, 2 * PAGE), 0);
    for (i, memory) in (0..).zip(pages.memory) {
        assert_eq!(cuMemMap(pages.range + i * PAGE, PAGE, 0, memory, 0), 0);
    }
    pages.give_back();
}

#[test]
fn mappings_can_run_out() {
    let _program = Program::new();
    let pages = Pages::new();
    let memory: Handle = made(|to| cuMemCreate(to, PAGE, given(&props()), 0));
    let third = pages.range + 2 * PAGE;
    with(
        |e| e.mappings = 2,
        || assert_eq!(cuMemMap(third, PAGE, 0, memory, 0), 2),
    );
    assert_eq!(cuMemMap(third, PAGE, 0, memory, 0), 0);
    assert_eq!(cuMemUnmap(third, PAGE), 0);
    assert_eq!(cuMemRelease(memory), 0);
    pages.give_back();
}

#[test]
fn addresses_are_given_to_other_hardware_within_one_allocation() {
    let _program = Program::new();
    let for_rdma = AllocationProps {
        flags: [0, 1, 0, 0, 0, 0, 0, 0],
        ..props()
    };
    let pages = Pages::new();
    let memory: Handle = made(|to| cuMemCreate(to, PAGE, given(&for_rdma), 0));
    let third = pages.range + 2 * PAGE;
    assert_eq!(cuMemMap(third, PAGE, 0, memory, 0), 0);
    assert_eq!(let_in(third, PAGE, 0), 0);
    let ask = |at, size, kind| {
        let mut file = -1;
        let code = cuMemGetHandleForAddressRange(out(&mut file), at, size, kind, 0);
        // SAFETY: the descriptor is ours, if there is one.
        assert_eq!(code == 0, unsafe { libc::close(file) } == 0);
        code
    };
    let plain = alloc(4 * MIB);
    assert_eq!(ask(plain, MIB, 1), 0);
    assert_eq!(ask(plain, 8 * MIB, 1), 1, "more than there is");
    assert_eq!(ask(plain + 1, MIB, 1), 1);
    assert_eq!(ask(plain, MIB, 2), 1);
    assert_eq!(ask(third + 4096, 4096, 1), 0);
    assert_eq!(ask(pages.range, PAGE, 1), 801, "not for other hardware");
    assert_eq!(cuMemUnmap(third, PAGE), 0);
    assert_eq!(cuMemRelease(memory), 0);
    pages.give_back();
}

/// Mapped memory is synchronised for a whole context only.
#[test]
fn calls_on_mapped_memory_wait_if_their_context_says_so() {
    let _program = Program::new();
    let (pages, plain) = (Pages::new(), alloc(MIB));
    let on = 1_u32;
    assert_eq!(cuPointerSetAttribute(given(&on), 6, plain), 0);
    assert_eq!(cuPointerSetAttribute(given(&on), 6, pages.range), 801);
    let done = |at, size| {
        assert_eq!(cuMemsetD8_v2(at, 1, size), 0);
        cuStreamQuery(NULL)
    };
    assert_eq!(done(plain, MIB), 0);
    assert_eq!(done(pages.range, 2 * PAGE), 600);
    assert_eq!(cuCtxSetFlags(0x80), 0);
    assert_eq!(done(pages.range, 2 * PAGE), 0);
    assert_eq!(cuMemcpyDtoD_v2(pages.range, pages.range + PAGE, PAGE), 0);
    assert_eq!(cuStreamQuery(NULL), 0);
    pages.give_back();
}
