//! Bad arguments and the look-up of functions.

#![allow(clippy::wildcard_imports, reason = "a program sees every function")]

use super::*;

#[test]
fn bad_arguments_get_codes() {
    let program = Program::new();
    let block = alloc(512);
    assert_eq!(cuMemcpyDtoH_v2(0, block, 4), 1);
    assert_eq!(cuMemcpyHtoD_v2(block, program.module, 0), 0);
    assert_eq!(cuMemsetD8_v2(block, 0, 513), 1);
    assert_eq!(cuMemsetD32_v2(block + 2, 0, 1), 1);
    assert_eq!(cuStreamQuery(0xdead), 400);
    assert_eq!(cuEventRecord(0xdead, NULL), 400);
    assert_eq!(cuCtxSetCurrent(0xdead), 201);
    assert_eq!(
        cuModuleGetFunction(out(&mut 0), program.module, text(c"no")),
        500
    );
    assert_eq!(
        cuModuleLoadData(out(&mut 0), c"no image".as_ptr().cast()),
        200
    );
    assert_eq!(cuPointerGetAttribute(std::ptr::null_mut(), 2, block), 1);
    assert_eq!(cuMemHostUnregister(block), 713);
    assert_eq!(cuMemGetInfo_v2(none(), none()), 0);
    assert_eq!(program.fill(NULL, block, 1, 129, 1), 0);
    let seen = program.violations();
    let said = format!("touches 516 bytes at {block:#x}");
    assert!(seen.iter().any(|v| v.contains(&said)), "{seen:?}");
}

#[test]
fn the_version_picks_the_abi_and_the_flag_picks_the_twin() {
    let _program = Program::new();
    let look = |name: &std::ffi::CStr, version, flags| {
        let (mut address, mut status) = (std::ptr::null(), 9);
        let (to, status_to) = (out(&mut address), out(&mut status));
        let code = cuGetProcAddress_v2(text(name), to, version, flags, status_to);
        (address, status, code)
    };
    let is = |f: *const c_void| (f, 0, 0);
    assert_eq!(
        look(c"cuMemAlloc", 3020, 0),
        is(cuMemAlloc_v2 as *const c_void)
    );
    assert_eq!(
        look(c"cuMemAlloc", 13000, 2),
        is(cuMemAlloc_v2 as *const c_void)
    );
    assert_eq!(
        look(c"cuLaunchKernel", 12000, 0),
        is(cuLaunchKernel as *const c_void)
    );
    assert_eq!(
        look(c"cuLaunchKernel", 12000, 2),
        is(cuLaunchKernel_ptsz as *const c_void)
    );
    assert_eq!(
        look(c"cuGetProcAddress", 11030, 0),
        is(cuGetProcAddress as *const c_void)
    );
    assert_eq!(
        look(c"cuGetProcAddress", 12000, 0),
        is(cuGetProcAddress_v2 as *const c_void)
    );
    assert_eq!(
        look(c"cuCtxGetDevice", 12090, 0),
        is(cuCtxGetDevice as *const c_void)
    );
    assert_eq!(
        look(c"cuCtxGetDevice", 13000, 0),
        is(cuCtxGetDevice_v2 as *const c_void)
    );
    assert_eq!(look(c"cuNoSuchThing", 13000, 0), (std::ptr::null(), 1, 500));
    assert_eq!(
        look(c"cuCtxRecordEvent", 12040, 0),
        (std::ptr::null(), 2, 500)
    );
}

#[test]
fn a_broken_context_fails_until_its_end() {
    let program = Program::new();
    let block = alloc(512);
    let illegal_address = vramalloc_core::Code::check(700).unwrap_err();
    (crate::machine::lock().as_mut().unwrap()).break_current(illegal_address);
    assert_eq!(cuMemFree_v2(block), 700);
    assert_eq!(cuCtxSynchronize(), 700);
    assert_eq!(made::<Handle>(|to| cuCtxGetCurrent(to)), program.context);
    drop(program);
    let _program = Program::new();
    assert_eq!(cuCtxSynchronize(), 0);
}

#[test]
fn a_primary_context_may_be_current_before_it_is_made() {
    let _program = Program::new();
    let primary: Handle = made(|to| cuDevicePrimaryCtxRetain(to, 1));
    assert_eq!(cuCtxPushCurrent_v2(primary), 0);
    assert_eq!(cuDevicePrimaryCtxRelease_v2(1), 0);
    let device = made::<i32>(|to| cuCtxGetDevice(to));
    assert_eq!(device, 1);
    assert_eq!(cuMemAlloc_v2(out(&mut 0), 512), 709);
    assert_eq!(cuCtxSetCurrent(primary), 0);
    assert_eq!(
        made::<Handle>(|to| cuDevicePrimaryCtxRetain(to, 1)),
        primary
    );
    assert_eq!(cuMemFree_v2(alloc(512)), 0);
    assert_eq!(cuDevicePrimaryCtxReset_v2(1), 0);
    assert_eq!(cuCtxPopCurrent_v2(none()), 0);
}
