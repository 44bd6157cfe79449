//! Reserved addresses, physical memory and mappings.

#![allow(clippy::wildcard_imports, reason = "a program sees every function")]

use super::*;

const PAGE: u64 = 2 * MIB;

fn props(kind: u32, id: i32, handles: u32) -> AllocationProps {
    AllocationProps {
        kind: 1,
        handles,
        location: Location { kind, id },
        security: 0,
        flags: [0; 8],
    }
}

fn reserve(size: u64) -> u64 {
    made(|to| cuMemAddressReserve(to, size, 0, 0, 0))
}

fn create(size: u64) -> Handle {
    made(|to| cuMemCreate(to, size, given(&props(1, 0, 1)), 0))
}

fn let_in(start: u64, size: u64, kind: u32, id: i32, flags: u32) -> u32 {
    let location = Location { kind, id };
    let list = Access { location, flags };
    cuMemSetAccess(start, size, given(&list), 1)
}

fn attribute<T: Default>(attribute: u32, address: u64) -> (u32, T) {
    let mut value = T::default();
    let code = cuPointerGetAttribute((&raw mut value).cast(), attribute, address);
    (code, value)
}

#[test]
fn memory_stays_as_long_as_a_reference_or_a_mapping() {
    let _program = Program::new();
    let before = info();
    let range = reserve(8 * PAGE);
    assert_eq!(info(), before, "addresses cost nothing");
    let memory = create(2 * PAGE);
    assert_eq!(before - info(), 2 * PAGE);
    assert_eq!(cuMemMap(range, 2 * PAGE, 0, memory, 0), 0);
    assert_eq!(cuMemRelease(memory), 0);
    assert_eq!(cuMemRelease(memory), 1);
    assert_eq!(cuMemMap(range + 4 * PAGE, PAGE, 0, memory, 0), 1);
    assert_eq!(before - info(), 2 * PAGE, "it is mapped");
    let again: Handle = made(|to| cuMemRetainAllocationHandle(to, range + PAGE + 5));
    assert_eq!(again, memory);
    assert_eq!(cuMemUnmap(range, 2 * PAGE), 0);
    assert_eq!(before - info(), 2 * PAGE, "it is referred to");
    assert_eq!(bytes(c"virtual"), 2 * PAGE);
    assert_eq!(cuMemRelease(again), 0);
    assert_eq!(info(), before);
    assert_eq!(cuMemAddressFree(range, PAGE), 1);
    assert_eq!(cuMemAddressFree(range, 8 * PAGE), 0);
    assert_eq!(cuMemAddressFree(range, 8 * PAGE), 1);
}

#[test]
fn mapped_memory_is_memory_across_its_mappings() {
    let program = Program::new();
    let range = reserve(4 * PAGE);
    let memory = [create(PAGE), create(PAGE)];
    assert_eq!(cuMemMap(range, PAGE, 0, memory[0], 0), 0);
    assert_eq!(cuMemMap(range + PAGE, PAGE, 0, memory[1], 0), 0);
    assert_eq!(let_in(range, 2 * PAGE, 1, 0, 3), 0);
    let edge = range + PAGE - 64;
    assert_eq!(program.fill(NULL, edge, 7, 32, 1), 0);
    assert_eq!((read(edge), read(edge + 124)), (7, 7));
    // The same memory at another place.
    let other = range + 3 * PAGE;
    assert_eq!(cuMemMap(other, PAGE, 0, memory[1], 0), 0);
    assert_eq!(let_in(other, PAGE, 1, 0, 3), 0);
    assert_eq!(read(other), 7);
    assert_eq!(cuMemsetD32_v2(other, 9, 1), 0);
    assert_eq!(read(range + PAGE), 9);
    // What the driver says of addresses.
    let mut base = 0;
    let mut size = 0;
    let at = range + PAGE + 100;
    assert_eq!(
        cuMemGetAddressRange_v2(out(&mut base), out(&mut size), at),
        0
    );
    assert_eq!((base, size), (range + PAGE, PAGE));
    assert_eq!(attribute::<u64>(11, at), (0, range));
    assert_eq!(attribute::<u64>(12, at), (0, 4 * PAGE));
    assert_eq!(attribute::<u64>(18, at), (0, PAGE));
    assert_eq!(attribute::<u64>(19, at), (0, range + PAGE));
    assert_eq!(attribute::<u32>(2, at), (0, 2));
    assert_eq!(attribute::<u8>(13, at), (0, 1));
    assert_eq!(attribute::<u8>(10, at), (0, 0), "no legacy handles");
    assert_eq!(attribute::<u8>(13, range + 2 * PAGE), (0, 0));
    assert_eq!(attribute::<u32>(2, range + 2 * PAGE).0, 1);
    let mut handle = [0_u8; 64];
    let to = Out::at(handle.as_mut_ptr().cast::<MemHandle>());
    assert_eq!(cuIpcGetMemHandle(to, at), 1);
    assert_eq!(cuMemFree_v2(range), 1);
    assert_eq!(cuMemFreeAsync(range, NULL), 1);
    assert_eq!(cuMemUnmap(range, PAGE / 2), 1);
    assert_eq!(cuMemAddressFree(range, 4 * PAGE), 1, "in use");
    for (start, size) in [(range, 2 * PAGE), (other, PAGE)] {
        assert_eq!(cuMemUnmap(start, size), 0);
    }
    assert_eq!(cuMemsetD32_v2(range, 9, 1), 1);
    for memory in memory {
        assert_eq!(cuMemRelease(memory), 0);
    }
    assert_eq!(cuMemAddressFree(range, 4 * PAGE), 0);
}

#[test]
fn work_needs_the_access_of_its_device() {
    let program = Program::new();
    let range = reserve(2 * PAGE);
    let memory = create(2 * PAGE);
    assert_eq!(cuMemMap(range, 2 * PAGE, 0, memory, 0), 0);
    let seen = || program.violations().len();
    let access = |id| {
        let location = Location { kind: 1, id };
        made::<u64>(|to| cuMemGetAccess(to, given(&location), range))
    };
    let start = seen();
    assert_eq!(access(0), 0);
    assert_eq!(cuMemsetD32_v2(range, 1, 1), 0);
    assert_eq!(seen(), start + 1, "none yet");
    assert_eq!(let_in(range, 2 * PAGE, 1, 1, 3), 0);
    assert_eq!(cuMemsetD32_v2(range, 1, 1), 0);
    assert_eq!(seen(), start + 2, "that of another device");
    assert_eq!(let_in(range, 2 * PAGE, 1, 0, 1), 0);
    assert_eq!(read(range), 0xc5c5_c5c5, "new memory holds garbage");
    assert_eq!(seen(), start + 2, "reading");
    assert_eq!(cuMemsetD32_v2(range, 1, 1), 0);
    assert_eq!(seen(), start + 3, "no writing");
    assert_eq!(let_in(range, 2 * PAGE, 1, 0, 3), 0);
    assert_eq!(cuMemsetD32_v2(range, 5, 1), 0);
    assert_eq!(read(range), 5);
    assert_eq!(seen(), start + 3);
    assert_eq!(access(0), 3);
    assert_eq!(let_in(range, PAGE, 1, 0, 3), 1, "not all of a mapping");
    assert_eq!(let_in(range, 2 * PAGE, 1, 9, 3), 101);
    assert_eq!(let_in(range, 2 * PAGE, 2, 0, 3), 801, "not the host");
    let s = stream(1);
    assert_eq!(program.fill(s, range, 1, 1, 50 * MS), 0);
    assert_eq!(cuMemUnmap(range, 2 * PAGE), 0);
    assert_eq!(seen(), start + 4, "work uses it");
    assert_eq!(cuMemRelease(memory), 0);
    assert_eq!(cuStreamSynchronize(s), 0);
    assert_eq!(seen(), start + 5, "and ends there");
    assert_eq!(cuMemAddressFree(range, 2 * PAGE), 0);
}

#[test]
fn memory_of_the_host_costs_the_device_nothing() {
    let _program = Program::new();
    let before = info();
    let range = reserve(PAGE);
    let on_host = props(2, 0, 0);
    let memory: Handle = made(|to| cuMemCreate(to, PAGE, given(&on_host), 0));
    assert_eq!(info(), before);
    assert_eq!(cuMemMap(range, PAGE, 0, memory, 0), 0);
    assert_eq!(let_in(range, PAGE, 2, 0, 3), 0);
    assert_eq!(let_in(range, PAGE, 1, 0, 3), 0);
    assert_eq!(cuMemsetD32_v2(range, 6, 1), 0);
    assert_eq!(cuCtxSynchronize(), 0);
    // SAFETY: the host was given access.
    assert_eq!(unsafe { (range as *const u32).read() }, 6);
    assert_eq!(cuMemUnmap(range, PAGE), 0);
    assert_eq!(cuMemRelease(memory), 0);
    assert_eq!(cuMemAddressFree(range, PAGE), 0);
}

#[test]
fn bad_arguments_of_virtual_memory_get_codes() {
    let _program = Program::new();
    let make = |p: AllocationProps, size| cuMemCreate(out(&mut 0), size, given(&p), 0);
    assert_eq!(make(props(1, 0, 0), PAGE + 1), 1);
    assert_eq!(make(props(1, 0, 0), 0), 1);
    assert_eq!(make(props(1, 5, 0), PAGE), 101);
    assert_eq!(make(props(1, 0, 0), 1 << 50), 2);
    assert_eq!(make(props(1, 0, 2), PAGE), 801);
    assert_eq!(make(props(1, 0, 8), PAGE), 800);
    assert_eq!(
        make(props(2, 0, 1), PAGE),
        1,
        "the host's cannot be exported"
    );
    assert_eq!(make(props(4, 0, 0), PAGE), 1);
    assert_eq!(make(props(6, 1, 0), PAGE), 1, "a place of later drivers");
    assert_eq!(cuMemCreate(out(&mut 0), PAGE, given(&props(1, 0, 0)), 1), 1);
    assert_eq!(cuMemAddressReserve(out(&mut 0), 100, 0, 0, 0), 1);
    assert_eq!(cuMemAddressReserve(out(&mut 0), PAGE, 3, 0, 0), 1);
    assert_eq!(cuMemAddressReserve(none(), PAGE, 0, 0, 0), 1);
    let range = made(|to| cuMemAddressReserve(to, PAGE, 1 << 30, 0, 0));
    assert_eq!(range % (2 << 30), 1 << 30, "aligned so, and no better");
    let memory = create(PAGE);
    assert_eq!(cuMemMap(range, PAGE, PAGE, memory, 0), 1, "past its end");
    let two = create(2 * PAGE);
    assert_eq!(cuMemMap(range, PAGE, PAGE, two, 0), 801, "no part of it");
    assert_eq!(cuMemRelease(two), 0);
    assert_eq!(cuMemMap(range + 4096, PAGE, 0, memory, 0), 1);
    assert_eq!(
        cuMemMap(range + PAGE, PAGE, 0, memory, 0),
        1,
        "not reserved"
    );
    assert_eq!(cuMemMap(range, 2 * PAGE, 0, memory, 0), 1);
    assert_eq!(cuMemMap(range, PAGE, 0, 0xdead, 0), 1);
    assert_eq!(cuMemMap(range, PAGE, 0, memory, 0), 0);
    assert_eq!(cuMemMap(range, PAGE, 0, memory, 0), 1, "twice");
    let mut grain = 0;
    let wanted = props(1, 0, 0);
    assert_eq!(
        cuMemGetAllocationGranularity(out(&mut grain), given(&wanted), 0),
        0
    );
    assert_eq!(grain, PAGE);
    let mut found = props(0, 0, 0);
    assert_eq!(
        cuMemGetAllocationPropertiesFromHandle(out(&mut found), memory),
        0
    );
    assert_eq!(found, props(1, 0, 1));
    assert_eq!(cuMemUnmap(range, PAGE), 0);
    assert_eq!(cuMemRelease(memory), 0);
    assert_eq!(cuMemAddressFree(range, PAGE), 0);
}

#[test]
fn a_descriptor_names_memory_to_its_own_process_too() {
    let _program = Program::new();
    let before = info();
    let memory = create(PAGE);
    let file: i32 = made(|to| cuMemExportToShareableHandle(to, memory, 1, 0));
    assert_eq!(cuMemExportToShareableHandle(out(&mut 0), memory, 2, 0), 1);
    let handle = u64::try_from(file).unwrap();
    let again: Handle = made(|to| cuMemImportFromShareableHandle(to, handle, 1));
    assert_eq!(before - info(), PAGE, "it is there once");
    assert_eq!(cuMemRelease(memory), 0);
    assert_eq!(before - info(), PAGE);
    assert_eq!(cuMemRelease(again), 0);
    assert_eq!(info(), before);
    assert_eq!(cuMemImportFromShareableHandle(out(&mut 0), handle, 1), 1);
    // SAFETY: the descriptor is ours.
    assert_eq!(unsafe { libc::close(file) }, 0);
    assert_eq!(cuMemImportFromShareableHandle(out(&mut 0), handle, 1), 1);
}

const CHILD: &str = "SIM_CUDA_TEST_DESCRIPTOR";

/// The other process of the test below; without a descriptor it does nothing.
#[test]
fn maps_what_its_descriptor_names() {
    let Ok(file) = std::env::var(CHILD) else {
        return;
    };
    let _program = Program::new();
    let before = info();
    let file = file.parse().unwrap();
    let memory: Handle = made(|to| cuMemImportFromShareableHandle(to, file, 1));
    let range = reserve(PAGE);
    assert_eq!(cuMemMap(range, PAGE, 0, memory, 0), 0);
    assert_eq!(let_in(range, PAGE, 1, 0, 3), 0);
    assert_eq!(read(range + 64), 41);
    assert_eq!(cuMemsetD32_v2(range + 64, 42, 1), 0);
    assert_eq!(cuCtxSynchronize(), 0);
    assert_eq!(info(), before, "the exporter's memory");
    assert_eq!(cuMemUnmap(range, PAGE), 0);
    assert_eq!(cuMemRelease(memory), 0);
}

#[test]
fn a_descriptor_names_memory_to_another_process() {
    let _program = Program::new();
    let (range, memory) = (reserve(PAGE), create(PAGE));
    assert_eq!(cuMemMap(range, PAGE, 0, memory, 0), 0);
    assert_eq!(let_in(range, PAGE, 1, 0, 3), 0);
    assert_eq!(cuMemsetD32_v2(range + 64, 41, 1), 0);
    assert_eq!(cuCtxSynchronize(), 0);
    let file: i32 = made(|to| cuMemExportToShareableHandle(to, memory, 1, 0));
    // SAFETY: the descriptor is ours, and is to be inherited.
    assert_eq!(unsafe { libc::fcntl(file, libc::F_SETFD, 0) }, 0);
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "tests::virtual_memory::maps_what_its_descriptor_names",
        ])
        .env(CHILD, file.to_string())
        .output()
        .unwrap();
    assert!(child.status.success(), "{child:?}");
    assert_eq!(read(range + 64), 42);
    // SAFETY: the descriptor is ours.
    assert_eq!(unsafe { libc::close(file) }, 0);
    assert_eq!(cuMemUnmap(range, PAGE), 0);
    assert_eq!(cuMemRelease(memory), 0);
    assert_eq!(cuMemAddressFree(range, PAGE), 0);
}
