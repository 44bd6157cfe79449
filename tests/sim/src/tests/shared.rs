//! What other processes see.

#![allow(clippy::wildcard_imports, reason = "a program sees every function")]

use super::*;

const CHILD: &str = "SIM_CUDA_TEST_HANDLE";

/// The other process of the test below: does nothing unless it was given a
/// handle.
#[test]
fn opens_what_it_is_given() {
    let Ok(handle) = std::env::var(CHILD) else {
        return;
    };
    let _program = Program::new();
    let bytes: Vec<u8> = (handle.split(',')).map(|b| b.parse().unwrap()).collect();
    // SAFETY: a memory handle is 64 plain bytes.
    let handle = unsafe { bytes.as_ptr().cast::<MemHandle>().read_unaligned() };
    let block = made(|to| cuIpcOpenMemHandle_v2(to, handle, 1));
    assert_eq!(read(block + 1024), 41);
    assert_eq!(cuMemsetD32_v2(block + 1024, 42, 1), 0);
    assert_eq!(cuMemFree_v2(block), 1);
    assert_eq!(cuCtxSynchronize(), 0);
    assert_eq!(cuIpcCloseMemHandle(block), 0);
}

#[test]
fn memory_is_shared_between_processes() {
    let _program = Program::new();
    alloc(4096);
    let block = alloc(4096);
    assert_eq!(cuMemsetD32_v2(block + 1024, 41, 1), 0);
    assert_eq!(read(block + 1024), 41);
    let mut bytes = [0_u8; 64];
    let to = Out::at(bytes.as_mut_ptr().cast::<MemHandle>());
    assert_eq!(
        cuIpcGetMemHandle(to, block + 1024),
        0,
        "of an address inside"
    );
    let list: Vec<String> = bytes.iter().map(ToString::to_string).collect();
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tests::shared::opens_what_it_is_given"])
        .env(CHILD, list.join(","))
        .output()
        .unwrap();
    assert!(child.status.success(), "{child:?}");
    assert_eq!(read(block + 1024), 42);
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
