//! What other processes see.

#![allow(clippy::wildcard_imports, reason = "a program sees every function")]

use super::*;

const CHILD: &str = "SIM_CUDA_TEST_HANDLE";
const CHILD_EVENT: &str = "SIM_CUDA_TEST_EVENT";

/// A handle's bytes as text, and back.
fn text_of(bytes: [u8; 64]) -> String {
    let list: Vec<String> = bytes.iter().map(ToString::to_string).collect();
    list.join(",")
}

fn bytes_of(text: &str) -> Vec<u8> {
    text.split(',').map(|b| b.parse().unwrap()).collect()
}

/// The other process of the test below; without a handle it does nothing.
#[test]
fn opens_what_it_is_given() {
    let Ok(handle) = std::env::var(CHILD) else {
        return;
    };
    let _program = Program::new();
    let bytes = bytes_of(&handle);
    // SAFETY: a memory handle is 64 plain bytes.
    let handle = unsafe { bytes.as_ptr().cast::<MemHandle>().read_unaligned() };
    let block = made(|to| cuIpcOpenMemHandle_v2(to, handle, 1));
    let bytes = bytes_of(&std::env::var(CHILD_EVENT).unwrap());
    // SAFETY: an event handle is 64 plain bytes.
    let handle = unsafe { bytes.as_ptr().cast::<EventHandle>().read_unaligned() };
    let event = made(|to| cuIpcOpenEventHandle(to, handle));
    assert_eq!(cuEventQuery(event), 0);
    assert_eq!(cuStreamWaitEvent(NULL, event, 0), 0);
    assert_eq!(cuEventDestroy_v2(event), 0);
    assert_eq!(read(block + 1024), 41);
    assert_eq!(cuMemsetD32_v2(block + 1024, 42, 1), 0);
    assert_eq!(cuMemFree_v2(block), 1);
    assert_eq!(cuCtxSynchronize(), 0);
    assert_eq!(cuIpcCloseMemHandle(block), 0);
}

#[test]
fn memory_is_shared_between_processes() {
    let program = Program::new();
    alloc(4096);
    let block = alloc(4096);
    let event = made(|to| cuEventCreate(to, 2 | 4));
    assert_eq!(program.fill(NULL, block + 1024, 41, 1, 5 * MS), 0);
    assert_eq!(cuEventRecord(event, NULL), 0);
    // Exporting the event waits for the fill: nothing else here does.
    let mut event_bytes = [0_u8; 64];
    let to = Out::at((&raw mut event_bytes).cast::<EventHandle>());
    assert_eq!(cuIpcGetEventHandle(to, event), 0);
    let mut bytes = [0_u8; 64];
    let to = Out::at(bytes.as_mut_ptr().cast::<MemHandle>());
    assert_eq!(
        cuIpcGetMemHandle(to, block + 1024),
        0,
        "of an address inside"
    );
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tests::shared::opens_what_it_is_given"])
        .env(CHILD, text_of(bytes))
        .env(CHILD_EVENT, text_of(event_bytes))
        .output()
        .unwrap();
    assert!(child.status.success(), "{child:?}");
    assert_eq!(read(block + 1024), 42);
}

#[test]
fn only_events_made_for_it_are_shared() {
    let _program = Program::new();
    assert_eq!(cuEventCreate(out(&mut 0), 4), 1, "one that keeps time");
    let private = made(|to| cuEventCreate(to, 2));
    let shared = made(|to| cuEventCreate(to, 2 | 4));
    let mut bytes = [0_u8; 64];
    let place = (&raw mut bytes).cast::<EventHandle>();
    assert_eq!(cuIpcGetEventHandle(Out::at(place), private), 400);
    assert_eq!(cuIpcGetEventHandle(Out::at(place), shared), 0);
    // SAFETY: written by the call above.
    let own = unsafe { place.read_unaligned() };
    assert_eq!(cuIpcOpenEventHandle(out(&mut 0), own), 201);
}

#[test]
fn the_child_of_a_fork_has_no_driver() {
    let program = Program::new();
    // SAFETY: the child makes the calls of this test and ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let answers = [
            cuInit(0),
            cuCtxSetCurrent(program.context),
            cuMemAlloc_v2(out(&mut 0), 512),
        ];
        let told = i32::from(answers != [3, 3, 3]);
        // SAFETY: ends the child without its parent's exit handlers.
        unsafe { libc::_exit(told) };
    }
    let mut status = -1;
    // SAFETY: waits for the child that was made above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(cuCtxSynchronize(), 0);
}
