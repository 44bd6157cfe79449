//! Graphs: made node by node or by a capture, instantiated and launched.
//!
//! Owns the graphs. Invariant: a graph is the list of its nodes in the order in
//! which they were added; nodes can depend on earlier ones only, so a launch
//! does them in this order on one stream, after the last launch. Cost: linear
//! in the nodes.

use vramalloc_core::Code;

use crate::entry::{Call, driver};
use crate::ffi::{Done, Handle, INVALID_HANDLE, In, Out};
use crate::memset::{Area, set_work};
use crate::pool::PoolProps;
use crate::state::{Exec, Graph, Node, NodeAt, ON_DEVICE, PINNED};

/// The flags of an instantiation.
const AUTO_FREE: u64 = 1;
const UPLOAD: u64 = 2;
const FLAGS: u64 = 15;

/// The types of nodes that can be added.
const MEMSET: u32 = 2;
const EMPTY: u32 = 5;
const TAKE: u32 = 10;
const GIVE: u32 = 11;

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct TakeParams {
    pub(crate) pool: PoolProps,
    pub(crate) accesses: u64,
    pub(crate) access_count: u64,
    pub(crate) size: u64,
    pub(crate) address: u64,
}

/// `CUDA_MEMSET_NODE_PARAMS`.
#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct SetParams {
    pub(crate) to: u64,
    pub(crate) pitch: u64,
    pub(crate) value: u32,
    pub(crate) element: u32,
    pub(crate) width: u64,
    pub(crate) height: u64,
}

/// The beginning of `CUgraphNodeParams`; the parameters follow.
#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct NodeParams {
    pub(crate) kind: u32,
    pub(crate) reserved: [u32; 3],
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct InstantiateParams {
    pub(crate) flags: u64,
    pub(crate) stream: Handle,
    pub(crate) node: Handle,
    pub(crate) result: u32,
}

/// The result of an instantiation that has worked, and of one that has not.
const DONE: u32 = 0;
const FAILED: u32 = 1;

impl Call<'_> {
    fn instantiate(&mut self, to: &Out<Handle>, graph: Handle, flags: u64) -> Result<Handle, Code> {
        to.required()?;
        let graph = self.sim.graphs.get(graph).cloned();
        let graph = graph.ok_or(Code::INVALID_VALUE)?;
        if flags & !FLAGS != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let same = |e: &Exec| e.graph.id == graph.id;
        if graph.has_memory_nodes() && self.sim.graph_execs.values().any(same) {
            return Err(Code::INVALID_VALUE);
        }
        self.sim.hold_blocks(&graph.taken());
        let exec = Exec {
            frees: flags & AUTO_FREE != 0,
            need: self.sim.need_of(&graph),
            graph,
            ..Exec::default()
        };
        let handle = self.sim.graph_execs.insert(exec);
        to.maybe(handle);
        Ok(handle)
    }

    fn instantiate_with(
        &mut self,
        to: &Out<Handle>,
        graph: Handle,
        params: &Out<InstantiateParams>,
    ) -> Done {
        let mut asked = params.get()?;
        asked.node = 0;
        asked.result = FAILED;
        params.maybe(asked);
        let exec = self.instantiate(to, graph, asked.flags)?;
        if asked.flags & UPLOAD != 0
            && let Err(code) = self.upload(exec, asked.stream)
        {
            self.drop_exec(exec)?;
            return Err(code);
        }
        asked.result = DONE;
        params.set(asked)
    }

    fn upload(&mut self, exec: Handle, stream: Handle) -> Done {
        let stream = self.stream(stream)?;
        self.sim.graph_execs.get(exec).ok_or(INVALID_HANDLE)?;
        self.sim.map_exec(exec, stream, false)
    }

    fn launch_graph(&mut self, handle: Handle, stream: Handle) -> Done {
        let stream = self.stream(stream)?;
        let exec = self.sim.graph_execs.get(handle).cloned();
        let exec = exec.ok_or(INVALID_HANDLE)?;
        let context = self.sim.model.context_of(stream).ok_or(INVALID_HANDLE)?;
        let captured = self.sim.model.capture_of(stream).is_some();
        if exec.graph.has_memory_nodes() {
            if captured {
                return Err(Code::NOT_SUPPORTED);
            }
            self.sim.check_blocks(&exec, stream)?;
            self.sim.map_exec(handle, stream, true)?;
        }
        if !captured {
            self.sim.model.hold(stream, &exec.last);
        }
        for node in exec.graph.nodes {
            match node {
                Node::Work(work) => self.sim.submit(stream, work)?,
                Node::Take(at) => self.sim.take_block(at, context),
                Node::Give(at) => self.sim.give_block_later(at, stream)?,
            }
        }
        let last = self.sim.model.stream_mark(stream);
        if let Some(exec) = self.sim.graph_execs.get_mut(handle).filter(|_| !captured) {
            exec.last = last;
        }
        Ok(())
    }

    fn drop_exec(&mut self, handle: Handle) -> Done {
        let exec = self.sim.graph_execs.remove(handle);
        let exec = exec.ok_or(INVALID_HANDLE)?;
        self.sim.let_blocks_go(&exec.graph.taken());
        Ok(())
    }

    fn drop_graph(&mut self, handle: Handle) -> Done {
        let graph = self.sim.graphs.remove(handle).ok_or(INVALID_HANDLE)?;
        for node in &graph.handles {
            self.sim.nodes.remove(*node);
        }
        self.sim.let_blocks_go(&graph.taken());
        Ok(())
    }

    /// The handles of a graph's nodes, made as they are asked for.
    fn node_handles(&mut self, handle: Handle) -> Result<Vec<Handle>, Code> {
        let graph = self.sim.graphs.get_mut(handle).ok_or(INVALID_HANDLE)?;
        for index in graph.handles.len()..graph.nodes.len() {
            let node = NodeAt {
                graph: handle,
                index,
            };
            graph.handles.push(self.sim.nodes.insert(node));
        }
        Ok(graph.handles.clone())
    }

    /// Checks the dependencies of a node that is to be added.
    fn check_dependencies(&self, graph: Handle, list: &In<Handle>, count: u64) -> Done {
        let count = usize::try_from(count).map_err(|_| Code::INVALID_VALUE)?;
        for i in 0..count {
            let node = self.sim.nodes.get(list.at(i)?);
            node.filter(|n| n.graph == graph)
                .ok_or(Code::INVALID_VALUE)?;
        }
        Ok(())
    }

    /// Adds a node to a graph by what `add` does, and returns its handle.
    fn add_node<R>(
        &mut self,
        to: &Out<Handle>,
        handle: Handle,
        dependencies: (&In<Handle>, u64),
        add: impl FnOnce(&mut Self, &mut Graph) -> Result<R, Code>,
    ) -> Result<R, Code> {
        to.required()?;
        let graph = self.sim.graphs.get(handle).cloned();
        let mut graph = graph.ok_or(Code::INVALID_VALUE)?;
        self.check_dependencies(handle, dependencies.0, dependencies.1)?;
        let done = add(self, &mut graph)?;
        if let Some(place) = self.sim.graphs.get_mut(handle) {
            *place = graph;
        }
        to.maybe(self.node_handles(handle)?.last().copied().unwrap_or(0));
        Ok(done)
    }

    /// The parameters with the address of the block.
    fn taking(&mut self, graph: &mut Graph, params: &Out<TakeParams>) -> Done {
        let mut asked = params.get()?;
        let location = asked.pool.location;
        if asked.pool.kind != PINNED || location.kind != ON_DEVICE || asked.size == 0 {
            return Err(Code::INVALID_VALUE);
        }
        if asked.pool.handles != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let device = self.device(location.id)?;
        asked.address = self.sim.add_take(graph, device, asked.size)?;
        params.set(asked)
    }

    fn add_any(
        &mut self,
        to: &Out<Handle>,
        graph: Handle,
        dependencies: (&In<Handle>, u64),
        params: &Out<NodeParams>,
    ) -> Done {
        let kind = params.get()?.kind;
        self.add_node(to, graph, dependencies, |call, graph| match kind {
            MEMSET => add_set(graph, &params.following()),
            EMPTY => {
                graph
                    .nodes
                    .push(Node::Work(vramalloc_model::Work::lasting(0)));
                Ok(())
            }
            TAKE => call.taking(graph, &params.following()),
            GIVE => {
                let address = params.following::<u64>().get()?;
                call.sim.add_give(graph, address)
            }
            _ => Err(Code::NOT_SUPPORTED),
        })
    }

    /// A node of a graph.
    fn node(&self, handle: Handle) -> Result<&Node, Code> {
        let at = self.sim.nodes.get(handle).ok_or(Code::INVALID_VALUE)?;
        let graph = self.sim.graphs.get(at.graph);
        let node = graph.and_then(|g| g.nodes.get(at.index));
        node.ok_or(Code::INVALID_VALUE)
    }

    fn take_params(&self, to: &Out<TakeParams>, node: Handle) -> Done {
        let Node::Take(address) = *self.node(node)? else {
            return Err(Code::INVALID_VALUE);
        };
        let block = self.sim.graph_blocks.get(&address);
        let block = block.ok_or(Code::INVALID_VALUE)?;
        to.set(TakeParams {
            pool: PoolProps::of(block.device),
            accesses: 0,
            access_count: 0,
            size: block.size,
            address,
        })
    }
}

fn add_set(graph: &mut Graph, params: &Out<SetParams>) -> Done {
    let p = params.get()?;
    let unit = u64::from(p.element);
    if ![1, 2, 4].contains(&unit) || p.width == 0 || p.height == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let area = Area::new(p.to, p.pitch, p.width, p.height);
    let (work, _) = set_work(area, p.value, unit)?;
    graph.nodes.push(Node::Work(work));
    Ok(())
}

driver! {
    fn cuGraphCreate(call, to: Out<Handle>, flags: u32) {
        to.required()?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        to.set(call.sim.add_graph(Graph::default()))
    }

    fn cuGraphDestroy(call, graph: Handle) {
        call.drop_graph(graph)
    }

    fn cuGraphGetNodes(call, graph: Handle, nodes: Out<Handle>, count: Out<u64>) {
        let handles = call.node_handles(graph)?;
        let there = handles.len() as u64;
        if nodes.is_null() {
            return count.set(there);
        }
        let room = usize::try_from(count.get()?).map_err(|_| Code::INVALID_VALUE)?;
        let padded = handles.into_iter().chain(std::iter::repeat(0));
        for (i, handle) in padded.take(room).enumerate() {
            nodes.set_at(i, handle);
        }
        count.set(there)
    }

    fn cuGraphInstantiate(
        call, to: Out<Handle>, graph: Handle, _node: Out<Handle>, _log: Out<u8>, _length: u64,
    ) {
        call.instantiate(&to, graph, 0).map(|_| ())
    }

    fn cuGraphInstantiate_v2(
        call, to: Out<Handle>, graph: Handle, _node: Out<Handle>, _log: Out<u8>, _length: u64,
    ) {
        call.instantiate(&to, graph, 0).map(|_| ())
    }

    fn cuGraphInstantiateWithFlags(call, to: Out<Handle>, graph: Handle, flags: u64) {
        call.instantiate(&to, graph, flags).map(|_| ())
    }

    fn cuGraphInstantiateWithParams / cuGraphInstantiateWithParams_ptsz(
        call, to: Out<Handle>, graph: Handle, params: Out<InstantiateParams>,
    ) {
        call.instantiate_with(&to, graph, &params)
    }

    fn cuGraphUpload / cuGraphUpload_ptsz(call, exec: Handle, stream: Handle) {
        call.upload(exec, stream)
    }

    fn cuGraphLaunch / cuGraphLaunch_ptsz(call, exec: Handle, stream: Handle) {
        call.launch_graph(exec, stream)
    }

    fn cuGraphExecDestroy(call, exec: Handle) {
        call.drop_exec(exec)
    }

    fn cuGraphAddMemAllocNode(
        call, to: Out<Handle>, graph: Handle, dependencies: In<Handle>, count: u64,
        params: Out<TakeParams>,
    ) {
        call.add_node(&to, graph, (&dependencies, count), |call, graph| {
            call.taking(graph, &params)
        })
    }

    fn cuGraphAddMemFreeNode(
        call, to: Out<Handle>, graph: Handle, dependencies: In<Handle>, count: u64, address: u64,
    ) {
        call.add_node(&to, graph, (&dependencies, count), |call, graph| {
            call.sim.add_give(graph, address)
        })
    }

    fn cuGraphAddMemsetNode(
        call, to: Out<Handle>, graph: Handle, dependencies: In<Handle>, count: u64,
        params: Out<SetParams>, _context: Handle,
    ) {
        call.add_node(&to, graph, (&dependencies, count), |_, graph| {
            add_set(graph, &params)
        })
    }

    fn cuGraphAddNode(
        call, to: Out<Handle>, graph: Handle, dependencies: In<Handle>, count: u64,
        params: Out<NodeParams>,
    ) {
        call.add_any(&to, graph, (&dependencies, count), &params)
    }

    fn cuGraphAddNode_v2(
        call, to: Out<Handle>, graph: Handle, dependencies: In<Handle>, _edges: In<u64>,
        count: u64, params: Out<NodeParams>,
    ) {
        call.add_any(&to, graph, (&dependencies, count), &params)
    }

    fn cuGraphAddNode_v3(
        call, to: Out<Handle>, graph: Handle, dependencies: In<Handle>, _edges: In<u64>,
        count: u64, params: Out<NodeParams>,
    ) {
        call.add_any(&to, graph, (&dependencies, count), &params)
    }

    fn cuGraphMemAllocNodeGetParams(call, node: Handle, to: Out<TakeParams>) {
        call.take_params(&to, node)
    }

    fn cuGraphMemFreeNodeGetParams(call, node: Handle, to: Out<u64>) {
        match *call.node(node)? {
            Node::Give(address) => to.set(address),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}
