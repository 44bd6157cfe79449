//! Graphs, and the memory that their nodes allocate.

use vramalloc_model::{Mark, StreamId, Work};

use crate::effect::Effect;
use crate::ffi::Handle;

/// One step of a graph.
#[derive(Clone)]
pub(crate) enum Node {
    /// Work as on a stream.
    Work(Work<Effect>),
    /// Allocates the block at this address.
    Take(u64),
    /// Frees the block at this address.
    Give(u64),
}

/// A graph: its steps in the order in which a launch does them.
#[derive(Clone, Default)]
pub(crate) struct Graph {
    /// Its number, never used twice.
    pub(crate) id: u64,
    pub(crate) nodes: Vec<Node>,
    /// The handles of the first nodes, as far as they were asked for.
    pub(crate) handles: Vec<Handle>,
}

impl Graph {
    /// The blocks that it allocates.
    pub(crate) fn taken(&self) -> Vec<u64> {
        let taken = |n: &Node| match n {
            Node::Take(at) => Some(*at),
            _ => None,
        };
        self.nodes.iter().filter_map(taken).collect()
    }

    /// The blocks that it frees.
    pub(crate) fn given(&self) -> Vec<u64> {
        let given = |n: &Node| match n {
            Node::Give(at) => Some(*at),
            _ => None,
        };
        self.nodes.iter().filter_map(given).collect()
    }

    pub(crate) fn has_memory_nodes(&self) -> bool {
        self.nodes.iter().any(|n| !matches!(n, Node::Work(_)))
    }
}

/// A node of a graph, by its number there.
#[derive(Copy, Clone, Debug)]
pub(crate) struct NodeAt {
    pub(crate) graph: Handle,
    pub(crate) index: usize,
}

/// A graph that can be launched.
#[derive(Clone, Default)]
pub(crate) struct Exec {
    pub(crate) graph: Graph,
    /// Whether a launch frees what the last one left allocated.
    pub(crate) frees: bool,
    /// The stream for which its memory is there, and the device.
    pub(crate) mapped: Option<(StreamId, u32)>,
    /// How much memory its blocks need at once that it frees by itself.
    pub(crate) need: u64,
    /// The end of its last launch.
    pub(crate) last: Mark,
}

/// Memory that a node of a graph allocates. Its address is fixed; it is memory
/// from the launch that allocates it to its free.
#[derive(Debug)]
pub(crate) struct GraphBlock {
    pub(crate) size: u64,
    /// In whole pages.
    pub(crate) length: u64,
    pub(crate) device: u32,
    /// Whether its own graph frees it, or another one.
    pub(crate) freed_inside: bool,
    pub(crate) freed_elsewhere: bool,
    pub(crate) live: bool,
    /// The graphs that allocate it: the first one, and what was made of it.
    pub(crate) holders: u32,
}

/// The graph memory of one device, in bytes: now, and the most.
#[derive(Copy, Clone, Default, Debug)]
pub(crate) struct GraphPool {
    pub(crate) used: (u64, u64),
    pub(crate) reserved: (u64, u64),
}
