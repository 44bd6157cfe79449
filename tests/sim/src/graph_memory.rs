//! The memory of graphs: blocks with fixed addresses, and the memory that a
//! device reserves for them.
//!
//! Owns what is reserved. Invariant: a block is memory from the launch that
//! allocates it to its free. Graphs that are launched on one stream share
//! memory, since they do not run at once: what is used is, for each stream, the
//! largest need of its graphs, and every block that outlives its launch. A
//! launch reserves what is lacking, before it does anything; only a trim gives
//! back what is reserved and not used. Cost: linear in the graphs and blocks.

use std::collections::BTreeMap;

use vramalloc_core::{Address, Bytes, Code};
use vramalloc_model::{Allocation, ContextId, Family, Holds, StreamId, Violation, Work};

use crate::effect::Effect;
use crate::entry::{Call, driver};
use crate::ffi::{Done, Handle, Out};
use crate::machine::Machine;
use crate::state::{Exec, Graph, GraphBlock, Kind, Node};

impl Machine {
    /// Adds a node to a graph that allocates memory of a device. Returns the
    /// block's address.
    pub(crate) fn add_take(
        &mut self,
        graph: &mut Graph,
        device: u32,
        size: u64,
    ) -> Result<u64, Code> {
        let length = Bytes::new(size).round_up(self.model.settings().page);
        let length = length.ok_or(Code::OUT_OF_MEMORY)?;
        let start = (self.model).take_span(device, Family::Graph, length, Bytes::ZERO)?;
        let block = GraphBlock {
            size,
            length: length.get(),
            device,
            freed_inside: false,
            freed_elsewhere: false,
            live: false,
            holders: 1,
        };
        self.graph_blocks.insert(start.get(), block);
        graph.nodes.push(Node::Take(start.get()));
        Ok(start.get())
    }

    /// Adds a node to a graph that frees a block of its own or of another one.
    pub(crate) fn add_give(&mut self, graph: &mut Graph, address: u64) -> Done {
        let block = self.graph_blocks.get_mut(&address);
        let block = block.ok_or(Code::INVALID_VALUE)?;
        let inside = graph.taken().contains(&address);
        let twice = graph.given().contains(&address);
        if twice || block.freed_inside || (inside && block.freed_elsewhere) {
            return Err(Code::INVALID_VALUE);
        }
        block.freed_inside = inside;
        block.freed_elsewhere = !inside;
        graph.nodes.push(Node::Give(address));
        Ok(())
    }

    /// Whether these bytes lie in one block of a graph, allocated or not.
    pub(crate) fn is_graph_memory(&self, start: u64, size: u64) -> bool {
        let below = self.graph_blocks.range(..=start).next_back();
        below.is_some_and(|(&at, block)| {
            let end = (start - at).checked_add(size);
            end.is_some_and(|end| end <= block.size)
        })
    }

    /// How much memory a graph's blocks need at once that it frees by itself.
    pub(crate) fn need_of(&self, graph: &Graph) -> u64 {
        let length = |at: &u64| {
            let block = self.graph_blocks.get(at);
            block.filter(|b| b.freed_inside).map_or(0, |b| b.length)
        };
        let (mut now, mut most) = (0_u64, 0);
        for node in &graph.nodes {
            match node {
                Node::Take(at) => now += length(at),
                Node::Give(at) => now = now.saturating_sub(length(at)),
                Node::Work(_) => {}
            }
            most = most.max(now);
        }
        most
    }

    /// What the graphs of a device use: the needs of the streams' graphs, and
    /// the blocks that outlive their launches.
    fn graph_use(&self, device: u32) -> u64 {
        let mut by_stream: BTreeMap<StreamId, u64> = BTreeMap::new();
        for exec in self.graph_execs.values() {
            if let Some((stream, on)) = exec.mapped
                && on == device
            {
                let most = by_stream.entry(stream).or_default();
                *most = exec.need.max(*most);
            }
        }
        let outlives = |b: &&GraphBlock| b.live && !b.freed_inside && b.device == device;
        let blocks = self.graph_blocks.values().filter(outlives);
        let blocks: u64 = blocks.map(|b| b.length).sum();
        by_stream.values().sum::<u64>() + blocks
    }

    /// Notes what the graphs of a device use, and `more` to come. Reserves what
    /// is lacking.
    fn reserve_for_graphs(&mut self, device: u32, more: u64) -> Done {
        let used = self.graph_use(device) + more;
        let pool = self.graph_pools.get(device as usize);
        let mut pool = pool.copied().ok_or(Code::INVALID_VALUE)?;
        if let Some(lacking) = used.checked_sub(pool.reserved.0) {
            (self.model).charge(device, Family::Graph, Bytes::new(lacking))?;
            pool.reserved.0 = used;
        }
        pool.used = (used, pool.used.1.max(used));
        pool.reserved.1 = pool.reserved.1.max(pool.reserved.0);
        if let Some(place) = self.graph_pools.get_mut(device as usize) {
            *place = pool;
        }
        Ok(())
    }

    /// Gives back what no graph uses that runs or is about to.
    pub(crate) fn trim_graphs(&mut self, device: u32) {
        let now = self.model.now();
        for exec in self.graph_execs.values_mut() {
            let here = exec.mapped.is_some_and(|(_, on)| on == device);
            if here && exec.last.time() <= now {
                exec.mapped = None;
            }
        }
        let used = self.graph_use(device);
        let Some(pool) = self.graph_pools.get_mut(device as usize) else {
            return;
        };
        let idle = pool.reserved.0.saturating_sub(used);
        pool.used.0 = used;
        pool.reserved.0 = used;
        (self.model).uncharge(device, Family::Graph, Bytes::new(idle));
    }

    /// Lets an executable graph's memory be there for a stream. Nothing has
    /// happened if there is not enough.
    pub(crate) fn map_exec(&mut self, handle: Handle, stream: StreamId, launch: bool) -> Done {
        let exec = self.graph_execs.get(handle);
        let exec = exec.ok_or(Code::INVALID_VALUE)?;
        if !exec.graph.has_memory_nodes() {
            return Ok(());
        }
        let before = exec.mapped;
        let blocks = exec.graph.taken();
        let blocks = blocks.iter().filter_map(|at| self.graph_blocks.get(at));
        let outlive: u64 = (blocks.filter(|b| launch && !b.freed_inside))
            .map(|b| b.length)
            .sum();
        let context = self.model.context_of(stream);
        let device = context.and_then(|c| self.model.device_of(c)).unwrap_or(0);
        self.set_mapped(handle, Some((stream, device)));
        let reserved = self.reserve_for_graphs(device, outlive);
        if reserved.is_err() {
            self.set_mapped(handle, before);
        }
        reserved
    }

    fn set_mapped(&mut self, handle: Handle, mapped: Option<(StreamId, u32)>) {
        if let Some(exec) = self.graph_execs.get_mut(handle) {
            exec.mapped = mapped;
        }
    }

    /// Checks that a graph can be launched: what it allocates is free, what it
    /// frees is allocated. Frees what its last launch left, if it is to.
    pub(crate) fn check_blocks(&mut self, exec: &Exec, stream: StreamId) -> Done {
        let live = |sim: &Machine, at: &u64| sim.graph_blocks.get(at).is_some_and(|b| b.live);
        let taken = exec.graph.taken();
        let left: Vec<u64> = taken.iter().copied().filter(|at| live(self, at)).collect();
        if !left.is_empty() && !exec.frees {
            return Err(Code::INVALID_VALUE);
        }
        let given = exec.graph.given();
        let missing = |at: &&u64| !taken.contains(at) && !live(self, at);
        if given.iter().any(|at| missing(&at)) {
            return Err(Code::INVALID_VALUE);
        }
        left.into_iter()
            .try_for_each(|at| self.give_block_later(at, stream))
    }

    /// A launch reaches the node that allocates a block.
    pub(crate) fn take_block(&mut self, address: u64, context: ContextId) {
        let Some(block) = self.graph_blocks.get_mut(&address) else {
            return;
        };
        block.live = true;
        self.model.place(Allocation {
            base: Address::new(address),
            size: Bytes::new(block.size),
            device: block.device,
            context: Some(context),
            holds: Holds::Nothing,
        });
        self.kinds.insert(address, Kind::Graph);
    }

    /// Frees a block in the order of a stream.
    pub(crate) fn give_block_later(&mut self, address: u64, stream: StreamId) -> Done {
        let work = Work {
            effect: Some(Effect::Release(address)),
            ..Work::lasting(0)
        };
        self.submit(stream, work)?;
        self.give_block(address, self.model.stream_tail(stream));
        Ok(())
    }

    /// Frees a block at a time; work that still uses it then is a violation.
    pub(crate) fn give_block(&mut self, address: u64, time: u64) {
        let start = Address::new(address);
        if let Some(freed) = self.model.vacate(start)
            && let Some(until) = self.model.used_until(start, freed.size)
            && until > time
        {
            self.violate(Violation::FreedInUse { start, until });
        }
        self.kinds.remove(&address);
        if let Some(block) = self.graph_blocks.get_mut(&address) {
            block.live = false;
            let device = block.device;
            // Uses less than before.
            let _ = self.reserve_for_graphs(device, 0);
        }
    }

    /// Ends a block that no graph allocates any more and that is not in use.
    pub(crate) fn drop_block(&mut self, address: u64) {
        let unused = |b: &GraphBlock| b.holders == 0 && !b.live;
        if self.graph_blocks.get(&address).is_some_and(unused) {
            self.graph_blocks.remove(&address);
            if let Some((start, size)) = self.model.drop_span(Address::new(address)) {
                self.backing.discard(start, size);
            }
        }
    }

    /// One graph more that allocates these blocks, or one less.
    pub(crate) fn hold_blocks(&mut self, blocks: &[u64]) {
        for at in blocks {
            if let Some(block) = self.graph_blocks.get_mut(at) {
                block.holders += 1;
            }
        }
    }

    pub(crate) fn let_blocks_go(&mut self, blocks: &[u64]) {
        for &at in blocks {
            if let Some(block) = self.graph_blocks.get_mut(&at) {
                block.holders = block.holders.saturating_sub(1);
            }
            self.drop_block(at);
        }
    }

    /// Frees the blocks that were allocated in a context, whose work is done.
    pub(crate) fn drop_blocks_of(&mut self, context: ContextId) {
        let own = |at: &u64| {
            let found = self.model.find(Address::new(*at));
            found.is_some_and(|a| a.context == Some(context))
        };
        let live = self.graph_blocks.iter().filter(|(_, b)| b.live);
        let gone: Vec<u64> = live.map(|(&at, _)| at).filter(own).collect();
        for at in gone {
            self.give_block(at, self.model.now());
            self.drop_block(at);
        }
        if let Some(device) = self.model.device_of(context) {
            self.trim_graphs(device);
        }
    }
}

impl Call<'_> {
    /// Frees a block that outlived its launch.
    pub(crate) fn free_block(&mut self, address: u64, stream: Option<StreamId>) -> Done {
        let block = self.sim.graph_blocks.get(&address);
        let block = block.ok_or(Code::INVALID_VALUE)?;
        if block.freed_inside {
            return Err(Code::INVALID_VALUE);
        }
        let device = block.device;
        let Some(stream) = stream else {
            self.sim.wait_for_device(device);
            self.sim.give_block(address, self.sim.model.now());
            self.sim.drop_block(address);
            return Ok(());
        };
        self.sim.give_block_later(address, stream)
    }
}

/// The attributes of a device's graph memory.
const USED: u32 = 0;
const MOST_USED: u32 = 1;
const RESERVED: u32 = 2;
const MOST_RESERVED: u32 = 3;

driver! {
    fn cuDeviceGraphMemTrim(call, device: i32) {
        let device = call.device(device)?;
        call.sim.trim_graphs(device);
        Ok(())
    }

    fn cuDeviceGetGraphMemAttribute(call, device: i32, attribute: u32, value: Out<u64>) {
        let device = call.device(device)?;
        let pool = call.sim.graph_pools.get(device as usize).copied();
        let pool = pool.unwrap_or_default();
        value.set(match attribute {
            USED => pool.used.0,
            MOST_USED => pool.used.1,
            RESERVED => pool.reserved.0,
            MOST_RESERVED => pool.reserved.1,
            _ => return Err(Code::INVALID_VALUE),
        })
    }

    fn cuDeviceSetGraphMemAttribute(call, device: i32, attribute: u32, value: Out<u64>) {
        let device = call.device(device)?;
        if value.get()? != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let pool = call.sim.graph_pools.get_mut(device as usize);
        match (attribute, pool) {
            (MOST_USED, Some(pool)) => pool.used.1 = pool.used.0,
            (MOST_RESERVED, Some(pool)) => pool.reserved.1 = pool.reserved.0,
            _ => return Err(Code::INVALID_VALUE),
        }
        Ok(())
    }
}
