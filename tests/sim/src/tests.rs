//! The interface as a program sees it. All tests share the one machine of the
//! process, one at a time.

#![allow(clippy::wildcard_imports, reason = "a program sees every function")]

mod arrays;
mod captures;
mod export_table;
mod graphs;
mod interface;
mod managed;
mod mapping_rules;
mod memory;
mod pools;
mod shared;
mod streams;
mod virtual_memory;

use std::ffi::{CString, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::array::*;
use crate::array_copy::*;
use crate::capture::*;
use crate::context::*;
use crate::copy::*;
use crate::event::*;
use crate::export_table::*;
use crate::ffi::{Handle, In, Out, Text};
use crate::graph::*;
use crate::graph_memory::*;
use crate::host::*;
use crate::init::*;
use crate::ipc::*;
use crate::launch::*;
use crate::managed::*;
use crate::memory::*;
use crate::memset::*;
use crate::module::*;
use crate::pointer::*;
use crate::pool::*;
use crate::pool_attributes::*;
use crate::report::*;
use crate::shareable::*;
use crate::state::{Access, AllocationProps, Location, MemHandle, Shape, Shape2D};
use crate::stream::*;
use crate::table::look_up::*;
use crate::virtual_memory::*;

const MS: u64 = 1_000_000;
const MIB: u64 = 1 << 20;
const NULL: Handle = 0;

const KERNELS: &str = ".version 6.0\n.target sm_50\n.address_size 64\n\
    .visible .entry spin(.param .u64 ns) { ret; }\n\
    .visible .entry fill(.param .u64 ptr, .param .u32 value, .param .u64 count,\n\
    .param .u64 ns) { ret; }\n";

static ONE: Mutex<()> = Mutex::new(());

/// The machine for one test, with a current context and loaded kernels.
struct Program {
    context: Handle,
    module: Handle,
    _one: MutexGuard<'static, ()>,
}

fn out<T>(to: &mut T) -> Out<T> {
    Out::at(to)
}

fn given<T>(thing: &T) -> In<T> {
    In(thing)
}

fn none<T>() -> Out<T> {
    Out::at(std::ptr::null_mut())
}

/// The result of a function that has one.
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

/// Bytes of the first device that a family uses.
fn bytes(family: &std::ffi::CStr) -> u64 {
    sim_cuda_bytes(family.as_ptr(), 0)
}

fn info() -> u64 {
    made(|free| cuMemGetInfo_v2(free, none()))
}
