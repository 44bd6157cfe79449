//! The interface as a program sees it. All tests share the one machine of the
//! process, one at a time.

#![allow(clippy::wildcard_imports, reason = "a program sees every function")]

use std::ffi::{CString, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::capture::*;
use crate::context::*;
use crate::copy::*;
use crate::event::*;
use crate::ffi::{Handle, In, Out, Text};
use crate::host::*;
use crate::init::*;
use crate::ipc::*;
use crate::launch::*;
use crate::memory::*;
use crate::memset::*;
use crate::module::*;
use crate::pointer::*;
use crate::pool::*;
use crate::stream::*;

const MS: u64 = 1_000_000;
const MIB: u64 = 1 << 20;
const NULL: Handle = 0;

const KERNELS: &str = ".version 6.0\n.target sm_50\n.address_size 64\n\
    .visible .entry spin(.param .u64 ns) { ret; }\n\
    .visible .entry fill(.param .u64 ptr, .param .u32 value, .param .u64 count,\n\
    .param .u64 ns) { ret; }\n";

static ONE: Mutex<()> = Mutex::new(());

/// The machine for one test, with a context current and its kernels loaded.
struct Program {
    context: Handle,
    module: Handle,
    _one: MutexGuard<'static, ()>,
}

fn out<T>(to: &mut T) -> Out<T> {
    Out::at(to)
}

fn none<T>() -> Out<T> {
    Out::at(std::ptr::null_mut())
}

/// What a function with one result answers.
fn made<T: Default>(make: impl FnOnce(Out<T>) -> u32) -> T {
    let mut thing = T::default();
    assert_eq!(make(out(&mut thing)), 0);
    thing
}

impl Program {
    fn new() -> Program {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(cuInit(0), 0);
        let context = made(|to| cuCtxCreate_v2(to, 0, 0));
        let text = CString::new(KERNELS).unwrap();
        let module = made(|to| cuModuleLoadData(to, text.as_ptr().cast()));
        Program {
            context,
            module,
            _one: one,
        }
    }

    fn violations(&self) -> Vec<String> {
        let lock = crate::machine::lock();
        let all = lock.as_ref().unwrap().model.violations();
        all.iter().map(ToString::to_string).collect()
    }

    fn fill(&self, stream: Handle, to: u64, value: u32, count: u64, ns: u64) -> u32 {
        let name = c"fill";
        let kernel = made(|k| cuModuleGetFunction(k, self.module, text(name)));
        let list: [*const c_void; 4] = [
            (&raw const to).cast(),
            (&raw const value).cast(),
            (&raw const count).cast(),
            (&raw const ns).cast(),
        ];
        let extra = In(std::ptr::null());
        cuLaunchKernel(
            kernel,
            1,
            1,
            1,
            1,
            1,
            1,
            0,
            stream,
            In(list.as_ptr()),
            extra,
        )
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        assert_eq!(cuCtxDestroy_v2(self.context), 0);
    }
}

fn text(name: &std::ffi::CStr) -> Text {
    Text::at(name.as_ptr())
}

fn stream(flags: u32) -> Handle {
    made(|to| cuStreamCreate(to, flags))
}

fn alloc(size: u64) -> u64 {
    made(|to| cuMemAlloc_v2(to, size))
}

fn read(from: u64) -> u32 {
    let mut word = 0_u32;
    assert_eq!(cuMemcpyDtoH_v2((&raw mut word) as u64, from, 4), 0);
    word
}

fn info() -> u64 {
    made(|free| cuMemGetInfo_v2(free, none()))
}

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
fn stream_ordered_memory_goes_back_when_the_stream_says_so() {
    let program = Program::new();
    let s = stream(1);
    let before = info();
    let block = made(|to| cuMemAllocAsync(to, 8 * MIB, s));
    assert_eq!(program.fill(s, block, 1, 1, 5 * MS), 0);
    assert_eq!(cuMemFreeAsync(block, s), 0);
    assert_eq!(cuMemFreeAsync(block, s), 1);
    assert_eq!(before - info(), 8 * MIB);
    assert_eq!(cuStreamSynchronize(s), 0);
    assert_eq!(before, info());
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
        .args(["--exact", "tests::opens_what_it_is_given"])
        .env(CHILD, list.join(","))
        .output()
        .unwrap();
    assert!(child.status.success(), "{child:?}");
    assert_eq!(read(block + 1024), 42);
}
