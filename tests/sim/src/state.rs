//! The things behind handles, and what else the machine keeps of memory.
//!
//! Plain data; the functions of a theme work on it. Invariant: a handle names
//! at most one thing at a time, and is used again at once. Cost: O(log n).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;

use vramalloc_core::Code;
use vramalloc_model::{ContextId, Mark, StreamId};

use crate::ffi::Handle;
use crate::ptx::{Entry, Image};

mod array;
mod graph;
mod managed;
mod physical;
mod pool;

pub(crate) use array::{
    ALL_FLAGS, Array, CUBEMAP, DEFERRED, LAYERED, Mipmap, SPARSE, Shape, Shape2D,
};
pub(crate) use graph::{Exec, Graph, GraphBlock, GraphPool, Node, NodeAt};
pub(crate) use managed::{CPU, Managed, ManagedPage, NO_DEVICE};
pub(crate) use physical::{
    Access, AllocationProps, IN_DEVICE, Location, Mapping, ON_DEVICE, ON_HOST, ON_HOST_NODE,
    PINNED, Physical,
};
pub(crate) use pool::{Exporter, Pool};

/// Things by handle. A handle looks like an address, is never NULL or a special
/// stream, and is used again after its thing is gone.
pub(crate) struct Handles<T> {
    kind: u64,
    made: u64,
    free: Vec<Handle>,
    things: BTreeMap<Handle, T>,
}

impl<T> Handles<T> {
    pub(crate) fn new(kind: u64) -> Handles<T> {
        Handles {
            kind,
            made: 0,
            free: Vec::new(),
            things: BTreeMap::new(),
        }
    }

    pub(crate) fn insert(&mut self, thing: T) -> Handle {
        let handle = self.free.pop().unwrap_or_else(|| {
            self.made += 1;
            0x5100_0000_0000 + (self.kind << 36) + self.made * 16
        });
        self.things.insert(handle, thing);
        handle
    }

    pub(crate) fn remove(&mut self, handle: Handle) -> Option<T> {
        let thing = self.things.remove(&handle)?;
        self.free.push(handle);
        Some(thing)
    }

    pub(crate) fn get(&self, handle: Handle) -> Option<&T> {
        self.things.get(&handle)
    }

    pub(crate) fn get_mut(&mut self, handle: Handle) -> Option<&mut T> {
        self.things.get_mut(&handle)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.things.values()
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.things.values_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Handle, &T)> {
        self.things.iter().map(|(&h, t)| (h, t))
    }

    /// Removes the things that `gone` accepts, and returns them.
    pub(crate) fn remove_if(&mut self, gone: impl Fn(&T) -> bool) -> Vec<T> {
        let picked: Vec<Handle> = (self.things.iter())
            .filter(|(_, t)| gone(t))
            .map(|(&h, _)| h)
            .collect();
        picked.into_iter().filter_map(|h| self.remove(h)).collect()
    }
}

/// The limits of a context by number, with their initial values.
const LIMITS: &[(u32, u64)] = &[
    (0, 1024),
    (1, 1 << 20),
    (2, 8 << 20),
    (3, 2),
    (4, 2048),
    (5, 64),
    (6, 0),
];

pub(crate) struct Context {
    pub(crate) device: u32,
    /// The model's context, while this one is alive.
    pub(crate) model: Option<ContextId>,
    /// The primary context that a green context is a part of, and shares the
    /// model's context with.
    pub(crate) part_of: Option<Handle>,
    /// The thread on which a green context is current.
    pub(crate) current_on: Option<u64>,
    pub(crate) primary: bool,
    pub(crate) retained: u32,
    /// The users of a context that is not primary: its maker, and those that
    /// attached to it.
    pub(crate) attached: u32,
    pub(crate) flags: u32,
    pub(crate) cache_config: u32,
    pub(crate) shared_config: u32,
    pub(crate) limits: BTreeMap<u32, u64>,
    pub(crate) peers: BTreeSet<Handle>,
    /// The error that every call in it returns, after an error that stays.
    pub(crate) broken: Option<Code>,
    /// Each thread's own default stream, if it was used.
    pub(crate) thread_streams: BTreeMap<u64, StreamId>,
    /// Values that other libraries keep in it.
    pub(crate) storage: Storage,
}

impl Context {
    /// The primary context of a device, not retained yet.
    pub(crate) fn primary(device: u32) -> Context {
        Context {
            device,
            model: None,
            part_of: None,
            current_on: None,
            primary: true,
            retained: 0,
            attached: 1,
            flags: 0,
            cache_config: 0,
            shared_config: 0,
            limits: LIMITS.iter().copied().collect(),
            peers: BTreeSet::new(),
            broken: None,
            thread_streams: BTreeMap::new(),
            storage: Storage::new(),
        }
    }

    /// Makes it a green context.
    pub(crate) fn be_part_of(&mut self, primary: Handle, model: ContextId) {
        self.primary = false;
        self.part_of = Some(primary);
        self.model = Some(model);
    }

    /// The threads' own default streams that were used so far.
    pub(crate) fn thread_streams(&self) -> impl Iterator<Item = StreamId> {
        self.thread_streams.values().copied()
    }

    /// The default stream of one thread, if it was used before.
    pub(crate) fn thread_stream(&self, thread: u64) -> Option<StreamId> {
        self.thread_streams.get(&thread).copied()
    }

    pub(crate) fn keep_thread_stream(&mut self, thread: u64, stream: StreamId) {
        self.thread_streams.insert(thread, stream);
    }
}

/// Called with the context, the key and the value.
pub(crate) type Destructor = extern "C" fn(Handle, u64, u64);

/// The values that other libraries keep in a context, by key.
pub(crate) type Storage = BTreeMap<u64, (u64, Option<Destructor>)>;

/// A value whose context ends.
pub(crate) struct LastWord {
    pub(crate) context: Handle,
    pub(crate) key: u64,
    pub(crate) value: u64,
    pub(crate) destructor: Destructor,
}

impl LastWord {
    pub(crate) fn say(self) {
        (self.destructor)(self.context, self.key, self.value);
    }
}

pub(crate) struct Stream {
    pub(crate) id: StreamId,
    pub(crate) context: Handle,
    pub(crate) non_blocking: bool,
    pub(crate) priority: i32,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum EventState {
    Never,
    At(Mark),
    Captured(u64),
}

pub(crate) struct Event {
    pub(crate) context: Handle,
    pub(crate) state: EventState,
    pub(crate) timing: bool,
    pub(crate) shared: bool,
}

pub(crate) struct Module {
    /// The context that it is loaded into; `None` for a library.
    pub(crate) context: Option<Handle>,
    pub(crate) image: Image,
    /// Handles that were returned, by kernel name.
    pub(crate) kernels: BTreeMap<String, Handle>,
    /// Addresses that were returned, by global and context.
    pub(crate) globals: BTreeMap<(String, Handle), u64>,
}

pub(crate) struct Kernel {
    pub(crate) context: Option<Handle>,
    pub(crate) module: Handle,
    pub(crate) entry: Entry,
    pub(crate) name: CString,
    pub(crate) attributes: BTreeMap<i32, i32>,
}

/// The inputs that are being linked; the image is the last PTX among them.
#[derive(Default)]
pub(crate) struct Linker {
    pub(crate) image: Vec<u8>,
}

/// The kind of an allocation that is not a plain one.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Managed memory: the host can touch it as well.
    Managed,
    /// It belongs to a pool.
    Pool(Handle),
    /// A graph has allocated it.
    Graph,
    /// It is an array.
    Array,
    /// The program mapped it by itself.
    Mapped,
    /// It belongs to a module.
    Global,
    /// It was opened from another process.
    Foreign,
    /// It belongs to another process's pool.
    Imported,
    /// A stream is going to free it.
    Leaving,
}

/// The contents of the 64 bytes of a memory handle.
#[repr(C)]
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) struct MemHandle {
    pub(crate) mark: u64,
    pub(crate) process: u32,
    pub(crate) file: i32,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) base: u64,
    pub(crate) rest: [u64; 3],
}

/// A memory handle that is open.
pub(crate) struct Opened {
    pub(crate) context: ContextId,
    pub(crate) handle: MemHandle,
    pub(crate) address: u64,
    pub(crate) count: u64,
}

/// The size of the host's pages.
pub(crate) const PAGE: u64 = 4096;

#[derive(Copy, Clone, Debug)]
pub(crate) struct HostBlock {
    pub(crate) size: u64,
    pub(crate) context: Handle,
    pub(crate) flags: u32,
    pub(crate) registered: bool,
    /// How many blocks came before it.
    pub(crate) number: u64,
}

impl HostBlock {
    /// The host memory that it takes, in bytes of whole pages.
    pub(crate) fn pages(&self) -> u64 {
        self.size.next_multiple_of(PAGE)
    }
}

/// All blocks, by their start.
#[derive(Debug, Default)]
pub(crate) struct HostMemory {
    pub(crate) blocks: BTreeMap<u64, HostBlock>,
    pub(crate) used: u64,
    pub(crate) peak: u64,
    pub(crate) made: u64,
}

impl HostMemory {
    /// The block that holds this address.
    pub(crate) fn at(&self, address: u64) -> Option<(u64, HostBlock)> {
        let (&start, &block) = self.blocks.range(..=address).next_back()?;
        (address - start < block.size).then_some((start, block))
    }

    pub(crate) fn count(&self) -> usize {
        self.blocks.len()
    }

    /// Bytes in whole pages: now, and the most so far.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    pub(crate) fn peak(&self) -> u64 {
        self.peak
    }

    /// The last block that has bytes in this range.
    pub(crate) fn in_range(&self, start: u64, end: u64) -> Option<HostBlock> {
        let below = self.blocks.range(..end).next_back();
        below
            .filter(|&(&s, b)| s + b.size > start)
            .map(|(_, &block)| block)
    }

    /// The oldest of the driver's blocks that are no larger than `most`.
    pub(crate) fn oldest_up_to(&self, most: u64) -> Option<HostBlock> {
        let own = (self.blocks.values()).filter(|b| !b.registered && b.size <= most);
        own.min_by_key(|block| block.number).copied()
    }
}
