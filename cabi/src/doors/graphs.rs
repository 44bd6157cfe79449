//! The doors by which graphs get memory of their own.

use std::ffi::{c_char, c_void};

use crate::families::graphs;
use crate::real;
use crate::types::{
    CUgraph, CUgraphExec, CUgraphNode, CUstream, CudaResult, MemNode, NodeParameters,
};

pub(crate) unsafe fn cuGraphAddMemAllocNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    parameters: *mut MemNode,
) -> Option<CudaResult> {
    // SAFETY: the caller's own arguments, here and below.
    unsafe {
        add(parameters, || {
            real::cuGraphAddMemAllocNode(node, graph, after, count, parameters)
        })
    }
}

pub(crate) unsafe fn cuGraphAddNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    parameters: *mut NodeParameters,
) -> Option<CudaResult> {
    // SAFETY: as above.
    unsafe {
        add(NodeParameters::memory(parameters), || {
            real::cuGraphAddNode(node, graph, after, count, parameters)
        })
    }
}

pub(crate) unsafe fn cuGraphAddNode_v2(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    edges: *const c_void,
    count: usize,
    parameters: *mut NodeParameters,
) -> Option<CudaResult> {
    // SAFETY: as above.
    unsafe {
        add(NodeParameters::memory(parameters), || {
            real::cuGraphAddNode_v2(node, graph, after, edges, count, parameters)
        })
    }
}

pub(crate) unsafe fn cuGraphAddNode_v3(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    edges: *const c_void,
    count: usize,
    parameters: *mut NodeParameters,
) -> Option<CudaResult> {
    // SAFETY: as above.
    unsafe {
        add(NodeParameters::memory(parameters), || {
            real::cuGraphAddNode_v3(node, graph, after, edges, count, parameters)
        })
    }
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

pub(crate) unsafe fn cuGraphInstantiate(
    executable: *mut CUgraphExec,
    graph: CUgraph,
    node: *mut CUgraphNode,
    log: *mut c_char,
    length: usize,
) -> Option<CudaResult> {
    // SAFETY: as above.
    Some(graphs::prepare(|| unsafe {
        real::cuGraphInstantiate(executable, graph, node, log, length)
    }))
}

pub(crate) unsafe fn cuGraphInstantiate_v2(
    executable: *mut CUgraphExec,
    graph: CUgraph,
    node: *mut CUgraphNode,
    log: *mut c_char,
    length: usize,
) -> Option<CudaResult> {
    // SAFETY: as above.
    Some(graphs::prepare(|| unsafe {
        real::cuGraphInstantiate_v2(executable, graph, node, log, length)
    }))
}

pub(crate) unsafe fn cuGraphInstantiateWithFlags(
    executable: *mut CUgraphExec,
    graph: CUgraph,
    flags: u64,
) -> Option<CudaResult> {
    // SAFETY: as above.
    Some(graphs::prepare(|| unsafe {
        real::cuGraphInstantiateWithFlags(executable, graph, flags)
    }))
}

pub(crate) unsafe fn cuGraphInstantiateWithParams(
    executable: *mut CUgraphExec,
    graph: CUgraph,
    parameters: *mut c_void,
) -> Option<CudaResult> {
    // SAFETY: as above.
    Some(graphs::prepare(|| unsafe {
        real::cuGraphInstantiateWithParams(executable, graph, parameters)
    }))
}

pub(crate) unsafe fn cuGraphInstantiateWithParams_ptsz(
    executable: *mut CUgraphExec,
    graph: CUgraph,
    parameters: *mut c_void,
) -> Option<CudaResult> {
    // SAFETY: as above.
    Some(graphs::prepare(|| unsafe {
        real::cuGraphInstantiateWithParams_ptsz(executable, graph, parameters)
    }))
}

pub(crate) unsafe fn cuGraphUpload(
    executable: CUgraphExec,
    stream: CUstream,
) -> Option<CudaResult> {
    // SAFETY: as above.
    Some(graphs::prepare(|| unsafe {
        real::cuGraphUpload(executable, stream)
    }))
}

pub(crate) unsafe fn cuGraphUpload_ptsz(
    executable: CUgraphExec,
    stream: CUstream,
) -> Option<CudaResult> {
    // SAFETY: as above.
    Some(graphs::prepare(|| unsafe {
        real::cuGraphUpload_ptsz(executable, stream)
    }))
}

pub(crate) unsafe fn cuGraphLaunch(
    executable: CUgraphExec,
    stream: CUstream,
) -> Option<CudaResult> {
    // SAFETY: as above.
    graphs::run(|| unsafe { real::cuGraphLaunch(executable, stream) })
}

pub(crate) unsafe fn cuGraphLaunch_ptsz(
    executable: CUgraphExec,
    stream: CUstream,
) -> Option<CudaResult> {
    // SAFETY: as above.
    graphs::run(|| unsafe { real::cuGraphLaunch_ptsz(executable, stream) })
}
