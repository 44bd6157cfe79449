//! All state of the simulated driver, behind one lock.
//!
//! Owns the model, the handles and the things behind them. Invariant: effects
//! that are due are done before any question is answered. Cost: O(log n).

mod access;
mod settle;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use vramalloc_core::patience::wait_within;
use vramalloc_core::{Address, Bytes, Code};
use vramalloc_model::{
    Capture, CaptureMode, ContextId, Mark, Model, Nanos, Settings, StreamId, Violation, Work,
};

use crate::backing::Backing;
use crate::effect::Effect;
use crate::env::Environment;
use crate::ffi::{CAPTURE_IMPLICIT, CAPTURE_INVALIDATED, Done, Handle, NO_DEVICE};
use crate::state::{
    Array, Context, Event, Exec, Graph, GraphBlock, GraphPool, Handles, HostMemory, Kernel, Kind,
    LastWord, Linker, Managed, Mapping, Mipmap, Module, Node, NodeAt, Opened, Physical, Pool,
    Stream,
};
use crate::thread::top;

use access::OnMapped;

/// How many entries of `taken` are kept.
const MOST_TAKEN: usize = 4096;

static MACHINE: Mutex<Option<Machine>> = Mutex::new(None);

/// The machine; `None` before the driver is initialised. In a forked child another
/// thread of the parent may have it for ever.
pub(crate) fn lock() -> MutexGuard<'static, Option<Machine>> {
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The machine at the end of the process; `None` where the thread that ends it has
/// come from inside a call.
pub(crate) fn last_lock() -> Option<MutexGuard<'static, Option<Machine>>> {
    const MOST: Duration = Duration::from_secs(1);
    let mut found = None;
    wait_within(MOST, || {
        found = match MACHINE.try_lock() {
            Ok(lock) => Some(lock),
            Err(TryLockError::Poisoned(lock)) => Some(lock.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        found.is_some()
    });
    found
}

pub(crate) struct Machine {
    pub(crate) model: Model<Effect>,
    pub(crate) environment: Environment,
    pub(crate) backing: Backing,
    pub(crate) contexts: Handles<Context>,
    /// The primary context of each device; its handle never changes.
    pub(crate) primaries: Vec<Handle>,
    pub(crate) streams: Handles<Stream>,
    pub(crate) events: Handles<Event>,
    pub(crate) modules: Handles<Module>,
    pub(crate) kernels: Handles<Kernel>,
    pub(crate) linkers: Handles<Linker>,
    pub(crate) pools: Handles<Pool>,
    /// The pool that each device had first, and its present one.
    pub(crate) default_pools: Vec<Handle>,
    pub(crate) current_pools: Vec<Handle>,
    /// Destroyed pools whose memory is still in use.
    pub(crate) dying_pools: Vec<Handle>,
    pub(crate) graphs: Handles<Graph>,
    pub(crate) graph_execs: Handles<Exec>,
    pub(crate) nodes: Handles<NodeAt>,
    /// How many graphs there were.
    graph_count: u64,
    /// The memory that graphs allocate, by its start, and what each device has
    /// reserved for it.
    pub(crate) graph_blocks: BTreeMap<u64, GraphBlock>,
    pub(crate) graph_pools: Vec<GraphPool>,
    /// The work that the open captures have recorded, by their number.
    pub(crate) captured: BTreeMap<u64, Graph>,
    /// The kind of each device allocation that is not a plain one.
    pub(crate) kinds: BTreeMap<u64, Kind>,
    /// Physical memory that the program maps by itself, and its mappings by
    /// their start.
    pub(crate) physicals: Handles<Physical>,
    pub(crate) mappings: BTreeMap<u64, Mapping>,
    pub(crate) arrays: Handles<Array>,
    pub(crate) mipmaps: Handles<Mipmap>,
    /// Managed memory, by its start.
    pub(crate) managed: BTreeMap<u64, Managed>,
    /// Memory of other processes that is open here.
    pub(crate) opened: Vec<Opened>,
    /// Pinned host memory.
    pub(crate) host: HostMemory,
    /// Sizes that the program allocated, or freed (negative), by calls of its
    /// own, in bytes.
    pub(crate) taken: Vec<i64>,
    /// The ends of the work in each context's queue, if queues have a limit.
    queues: BTreeMap<ContextId, VecDeque<Nanos>>,
    /// The event that was asked for last, was not reached, and may be waited for
    /// by asking: the device was given nothing since.
    asked: Option<Handle>,
    /// The allocations whose calls wait until their work is done.
    pub(crate) in_step: BTreeSet<u64>,
    /// Work in flight on mapped memory.
    on_mapped: Vec<OnMapped>,
    /// The number of violations that were printed.
    announced: usize,
}

/// Whether a capture is one of these streams', which order with work outside of it.
fn orders_with(streams: &[StreamId]) -> impl Fn(&Capture) -> bool {
    move |capture| {
        capture.mode != CaptureMode::Relaxed && capture.streams.iter().any(|s| streams.contains(s))
    }
}

impl Machine {
    pub(crate) fn new() -> Result<Machine, Code> {
        let environment = Environment::read();
        if environment.devices == 0 {
            return Err(NO_DEVICE);
        }
        let page = Bytes::mib(2);
        // Half of a device's addresses are for pools.
        let four = Bytes::new(environment.memory.get().saturating_mul(4));
        let half = four.round_up(page).ok_or(Code::INVALID_VALUE)?;
        let span = half.checked_add(half).ok_or(Code::INVALID_VALUE)?;
        let backing = Backing::map(environment.devices, span, page)?;
        let mut model = Model::new(Settings {
            devices: environment.devices,
            memory: environment.memory,
            page,
            base: backing.base(),
            span,
            call_ns: environment.call_ns,
            seed: environment.seed,
            races: environment.strict,
            orphans: environment.orphans,
            // The program maps by the driver's own calls.
            maps: false,
            unmaps_runs: false,
            // The simulation's own memory of the host stands for it.
            host: Bytes::MAX,
        });
        model.keep_room(half);
        let mut machine = Machine {
            model,
            backing,
            contexts: Handles::new(1),
            primaries: Vec::new(),
            streams: Handles::new(2),
            events: Handles::new(3),
            modules: Handles::new(4),
            kernels: Handles::new(5),
            linkers: Handles::new(6),
            pools: Handles::new(9),
            default_pools: Vec::new(),
            current_pools: Vec::new(),
            dying_pools: Vec::new(),
            graphs: Handles::new(7),
            graph_execs: Handles::new(8),
            nodes: Handles::new(13),
            graph_count: 0,
            graph_blocks: BTreeMap::new(),
            graph_pools: Vec::new(),
            captured: BTreeMap::new(),
            kinds: BTreeMap::new(),
            physicals: Handles::new(10),
            mappings: BTreeMap::new(),
            arrays: Handles::new(11),
            mipmaps: Handles::new(12),
            managed: BTreeMap::new(),
            opened: Vec::new(),
            host: HostMemory::default(),
            taken: Vec::new(),
            queues: BTreeMap::new(),
            asked: None,
            in_step: BTreeSet::new(),
            on_mapped: Vec::new(),
            announced: 0,
            environment,
        };
        for device in 0..machine.environment.devices {
            let handle = machine.contexts.insert(Context::primary(device));
            machine.primaries.push(handle);
            machine.model.limit(device, machine.environment.hard_limit);
            let grain = machine.environment.pool_grain.get();
            let pool = machine.pools.insert(Pool::new(device, grain));
            machine.default_pools.push(pool);
            machine.current_pools.push(pool);
            machine.graph_pools.push(GraphPool::default());
        }
        Ok(machine)
    }

    /// Waits for a mark, and does the effects that are due.
    pub(crate) fn wait(&mut self, mark: &Mark) {
        self.model.wait(mark);
        self.settle();
    }

    /// Waits for all work that a device was given.
    pub(crate) fn wait_for_device(&mut self, device: u32) {
        for mark in self.model.device_marks(device) {
            self.wait(&mark);
        }
    }

    /// Gives work to a stream, or to the graph that the stream records.
    pub(crate) fn submit(&mut self, stream: StreamId, mut work: Work<Effect>) -> Done {
        self.check_implicit(stream)?;
        if let Some(capture) = self.model.capture_of(stream) {
            if capture.invalidated {
                return Err(CAPTURE_INVALIDATED);
            }
            let id = capture.id;
            let graph = self.captured.entry(id).or_default();
            graph.nodes.push(Node::Work(work));
            return Ok(());
        }
        self.check_access(stream, &mut work);
        let context = self.model.context_of(stream);
        context.into_iter().for_each(|c| self.wait_for_room(c));
        if let Some(device) = context.and_then(|c| self.model.device_of(c)) {
            self.touch_managed(device, &work.touches);
        }
        let mapped = self.mapped_of(&work.touches);
        let done = self.model.submit(stream, work);
        if let (Some(context), Ok(ends)) = (context, done) {
            self.stands_in_queue(context, ends);
            self.note_mapped(context, mapped, ends);
        }
        let done = done.map(|_| ());
        self.settle();
        self.announce();
        done
    }

    /// Waits until a context's queue has room for one more entry.
    pub(crate) fn wait_for_room(&mut self, context: ContextId) {
        let (most, now) = (self.environment.queue, self.model.now());
        let Some(queue) = self.queues.get_mut(&context) else {
            return;
        };
        queue.retain(|&ends| ends > now);
        if queue.len() >= most
            && let Some(ends) = queue.pop_front()
        {
            self.model.advance_to(ends);
            self.settle();
        }
    }

    /// Whether an event is reached. Where it was asked for before, the program
    /// has slept in between.
    pub(crate) fn is_reached(&mut self, event: Handle, mark: &Mark) -> bool {
        if self.asked == Some(event) {
            self.model.wait_within(mark, self.environment.nap_ns);
            self.settle();
        }
        let reached = self.model.has_reached(mark);
        self.asked = (!reached).then_some(event);
        reached
    }

    /// Adds an entry to a context's queue, which stays until it is done.
    pub(crate) fn stands_in_queue(&mut self, context: ContextId, ends: Nanos) {
        self.asked = None;
        if self.environment.queue != usize::MAX {
            self.queues.entry(context).or_default().push_back(ends);
        }
    }

    /// Refuses use of the legacy stream while a blocking stream of its context
    /// captures: it would order with the capture, which is invalid then.
    pub(crate) fn check_implicit(&mut self, stream: StreamId) -> Done {
        let blocking = self.blocking_beside(stream);
        let refused = (self.model).refuse("use of the legacy stream", orders_with(&blocking));
        self.announce();
        refused.map_err(|_| CAPTURE_IMPLICIT)
    }

    /// Refuses the same, and spoils no capture.
    pub(crate) fn asks_implicit(&self, stream: StreamId) -> Done {
        let blocking = self.blocking_beside(stream);
        if self
            .model
            .captures()
            .any(|open| orders_with(&blocking)(open))
        {
            return Err(CAPTURE_IMPLICIT);
        }
        Ok(())
    }

    /// If a stream is a legacy one and any captures, the blocking streams of its
    /// context, which order with it; else none.
    fn blocking_beside(&self, stream: StreamId) -> Vec<StreamId> {
        let context = self.model.context_of(stream);
        let is_legacy = || context.and_then(|c| self.model.legacy(c)) == Some(stream);
        if !self.model.is_capturing() || !is_legacy() {
            return Vec::new();
        }
        (self.streams.values())
            .filter(|s| !s.non_blocking && self.model.context_of(s.id) == context)
            .map(|s| s.id)
            .chain(self.contexts.values().flat_map(Context::thread_streams))
            .collect()
    }

    /// Ends the captures that began on the picked streams, without a graph.
    pub(crate) fn drop_captures(&mut self, picked: impl Fn(StreamId) -> bool) {
        let gone: Vec<StreamId> = (self.model.captures())
            .map(|c| c.origin)
            .filter(|&origin| picked(origin))
            .collect();
        for origin in gone {
            if let Some(capture) = self.model.end_capture(origin) {
                self.drop_captured(capture.id);
            }
        }
    }

    /// Ends what a capture has recorded.
    pub(crate) fn drop_captured(&mut self, id: u64) {
        if let Some(graph) = self.captured.remove(&id) {
            self.let_blocks_go(&graph.taken());
        }
    }

    /// Adds a graph. Returns its handle.
    pub(crate) fn add_graph(&mut self, mut graph: Graph) -> Handle {
        self.graph_count += 1;
        graph.id = self.graph_count;
        self.graphs.insert(graph)
    }

    /// Notes a size that the program allocated or freed, up to [`MOST_TAKEN`]
    /// of them.
    pub(crate) fn note_taken(&mut self, size: Bytes, sign: i64) {
        if self.taken.len() < MOST_TAKEN {
            let size = i64::try_from(size.get()).unwrap_or(i64::MAX);
            self.taken.push(sign * size);
        }
    }

    /// Breaks the current context: from now on every call in it fails.
    pub(crate) fn break_current(&mut self, code: Code) {
        if let Some(context) = self.contexts.get_mut(top()) {
            context.broken = Some(code);
        }
    }

    /// The error that broke the current context.
    pub(crate) fn current_fault(&self) -> Option<Code> {
        self.contexts.get(top())?.broken
    }

    /// Takes the values out of the storage of a context that ends.
    pub(crate) fn last_words(&mut self, context: Handle) -> Vec<LastWord> {
        let kept = self.contexts.get_mut(context);
        let kept = kept.map(|c| std::mem::take(&mut c.storage));
        let words = kept.into_iter().flatten();
        words
            .filter_map(|(key, (value, destructor))| {
                Some(LastWord {
                    context,
                    key,
                    value,
                    destructor: destructor?,
                })
            })
            .collect()
    }

    /// Frees device memory without waiting.
    pub(crate) fn release(&mut self, address: u64) {
        if self.graph_blocks.contains_key(&address) {
            self.drop_block(address);
        } else if let Ok(pages) = self.model.release(Address::new(address)) {
            self.forget(address, pages);
        }
    }

    /// Forgets the kind of a freed allocation, and gives its pages back.
    pub(crate) fn forget(&mut self, address: u64, pages: Option<(Address, Bytes)>) {
        self.kinds.remove(&address);
        self.in_step.remove(&address);
        if let Some((start, size)) = pages {
            if self.managed.remove(&address).is_some() {
                self.backing.expose(start, size, false);
            }
            self.backing.discard(start, size);
        } else if let Some(start) = self.backing.foreign_start(address) {
            self.backing.unmap_foreign(start);
        }
    }

    pub(crate) fn violate(&mut self, violation: Violation) {
        self.model.violate(violation);
        self.announce();
    }

    /// Prints the violations that were not printed yet.
    pub(crate) fn announce(&mut self) {
        let all = self.model.violations();
        for violation in all.get(self.announced..).unwrap_or(&[]) {
            // In one write: the process may end meanwhile.
            let line = format!("simulated CUDA: violation: {violation}\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
        self.announced = all.len();
    }
}
