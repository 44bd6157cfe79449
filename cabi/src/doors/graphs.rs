//! The doors by which graphs get memory of their own.

use std::ffi::{c_char, c_void};

use crate::families::graphs::{self, run};
use crate::real;
use crate::types::{
    CUgraph, CUgraphExec, CUgraphNode, CUstream, CudaResult, MemNode, NodeParameters,
};

doors! {
    add(parameters) cuGraphAddMemAllocNode(
        node: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize,
        parameters: *mut MemNode,
    );
    add(NodeParameters::memory(parameters)) cuGraphAddNode(
        node: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize,
        parameters: *mut NodeParameters,
    );
    add(NodeParameters::memory(parameters)) cuGraphAddNode_v2(
        node: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, edges: *const c_void,
        count: usize, parameters: *mut NodeParameters,
    );
    add(NodeParameters::memory(parameters)) cuGraphAddNode_v3(
        node: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, edges: *const c_void,
        count: usize, parameters: *mut NodeParameters,
    );
    prepare() cuGraphInstantiate(
        executable: *mut CUgraphExec, graph: CUgraph, node: *mut CUgraphNode, log: *mut c_char,
        length: usize,
    );
    prepare() cuGraphInstantiate_v2(
        executable: *mut CUgraphExec, graph: CUgraph, node: *mut CUgraphNode, log: *mut c_char,
        length: usize,
    );
    prepare() cuGraphInstantiateWithFlags(
        executable: *mut CUgraphExec, graph: CUgraph, flags: u64,
    );
    prepare() cuGraphInstantiateWithParams(
        executable: *mut CUgraphExec, graph: CUgraph, parameters: *mut c_void,
    );
    prepare() cuGraphInstantiateWithParams_ptsz(
        executable: *mut CUgraphExec, graph: CUgraph, parameters: *mut c_void,
    );
    prepare() cuGraphUpload(executable: CUgraphExec, stream: CUstream);
    prepare() cuGraphUpload_ptsz(executable: CUgraphExec, stream: CUstream);
    run() cuGraphLaunch(executable: CUgraphExec, stream: CUstream);
    run() cuGraphLaunch_ptsz(executable: CUgraphExec, stream: CUstream);
}

/// Adds a node by `call`; `None` where it allocates no memory of a device.
///
/// # Safety
/// `parameters` is null or can be read.
unsafe fn add(parameters: *const MemNode, call: impl FnOnce() -> CudaResult) -> Option<CudaResult> {
    // SAFETY: the caller's promise.
    let parameters = unsafe { parameters.as_ref() }?;
    let device = parameters.properties.begin.location.device()?;
    Some(graphs::add_on(device, parameters.bytes, call))
}

fn prepare(call: impl FnMut() -> CudaResult) -> Option<CudaResult> {
    Some(graphs::prepare(call))
}
