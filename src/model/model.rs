//! The machine: contexts, streams and the clock, over the devices' memory.
//!
//! Invariant: `now` never goes back; a stream's tail is the end of its last
//! piece of work, and a context's tail is the largest that its streams ever had
//! (so that a destroyed stream's work still counts). Cost: O(log n) per call.

mod captures;
mod contents;
mod mappings;
mod memory;
mod spans;

use crate::capture::Captures;
use crate::device::{Allocation, DeviceMemory};
use crate::faults::Violation;
use crate::flight::{Flight, Touch, Work};
use crate::ids::{ContextId, StreamId};
use crate::order::{Known, Mark, Order};
use crate::random::Random;
use crate::settings::{Nanos, Settings};
pub use spans::Place;
use std::collections::BTreeMap;
use std::sync::Arc;
use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::error::Code;

/// How a stream relates to the legacy default stream of its context.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum StreamKind {
    /// The legacy default stream itself.
    Legacy,
    /// It waits for the legacy stream, and the legacy stream waits for it.
    Blocking,
    /// It has no order with the legacy stream.
    NonBlocking,
}

#[derive(Debug)]
struct Context {
    device: u32,
    legacy: StreamId,
    /// End of the last work on any stream.
    tail: Nanos,
    /// End of the last work on the legacy stream and the blocking ones.
    blocking_tail: Nanos,
    alive: bool,
}

#[derive(Debug)]
struct Stream {
    context: ContextId,
    kind: StreamKind,
    tail: Nanos,
    alive: bool,
}

/// The model GPU, as plain data with one owner. `E` is the effect of a piece of
/// work's end.
#[derive(Debug)]
pub struct Model<E> {
    pub(crate) settings: Settings,
    now: Nanos,
    random: Random,
    pub(crate) devices: Vec<DeviceMemory>,
    contexts: Vec<Context>,
    streams: Vec<Stream>,
    pub(crate) live: BTreeMap<u64, Allocation>,
    pub(crate) spans: BTreeMap<u64, spans::Span>,
    mappings: mappings::Mappings,
    contents: contents::Contents,
    /// Host memory that devices can access.
    pub(crate) host: BTreeMap<u64, Bytes>,
    pub(crate) flight: Flight<E>,
    /// `None` unless races are looked for.
    pub(crate) order: Option<Order>,
    effects: Vec<E>,
    pub(crate) captures: Captures,
    pub(crate) violations: Vec<Violation>,
}

impl<E> Model<E> {
    /// A machine at time 0, with no context.
    #[must_use]
    pub fn new(settings: Settings) -> Model<E> {
        let span = settings.span.get();
        let page = settings.page.get();
        let devices = (0..u64::from(settings.devices))
            .map(|i| {
                let base = settings.base.get() + i * span;
                DeviceMemory::new(base, span, settings.memory.get(), page)
            })
            .collect();
        Model {
            now: 0,
            random: Random(settings.seed),
            devices,
            contexts: Vec::new(),
            streams: Vec::new(),
            live: BTreeMap::new(),
            spans: BTreeMap::new(),
            mappings: mappings::Mappings::default(),
            contents: contents::Contents::default(),
            host: BTreeMap::new(),
            flight: Flight::new(),
            order: settings.races.then(Order::default),
            effects: Vec::new(),
            captures: Captures::default(),
            violations: Vec::new(),
            settings,
        }
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The time of the virtual clock.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// The generator of seeded random numbers.
    pub(crate) fn random(&mut self) -> &mut Random {
        &mut self.random
    }

    /// Advances the clock by the time of one call.
    pub fn tick(&mut self) {
        let call = self.settings.call_ns;
        let jitter = self.random.below(call / 4 + 1);
        let passed = (call - call / 8 + jitter).max(1);
        self.advance_to(self.now.saturating_add(passed));
    }

    /// Waits until `time`; does not wait if it has passed.
    pub fn advance_to(&mut self, time: Nanos) {
        self.now = self.now.max(time);
        self.flight.retire(self.now, &mut self.effects);
    }

    /// The effects of the work that has ended since the last call, in the order
    /// of the ends.
    pub fn take_effects(&mut self) -> Vec<E> {
        std::mem::take(&mut self.effects)
    }

    /// The number of pieces of work in flight.
    pub fn pending(&self) -> usize {
        self.flight.len()
    }

    /// Makes a context on `device`, with its legacy stream.
    ///
    /// # Errors
    /// [`Code::INVALID_VALUE`] if there is no such device.
    pub fn create_context(&mut self, device: u32) -> Result<ContextId, Code> {
        if device >= self.settings.devices {
            return Err(Code::INVALID_VALUE);
        }
        let id = ContextId::numbered(count(self.contexts.len()));
        let legacy = self.push_stream(id, StreamKind::Legacy);
        self.contexts.push(Context {
            device,
            legacy,
            tail: 0,
            blocking_tail: 0,
            alive: true,
        });
        Ok(id)
    }

    /// Waits for the context's work, frees its memory and ends its streams.
    /// Returns the unused pages, as start and length.
    pub fn destroy_context(&mut self, context: ContextId) -> Vec<(Address, Bytes)> {
        self.wait(&self.context_mark(context));
        for stream in self.streams.iter_mut().filter(|s| s.context == context) {
            stream.alive = false;
        }
        if let Some(context) = self.contexts.get_mut(context.number() as usize) {
            context.alive = false;
        }
        let owned: Vec<u64> = (self.live.iter())
            .filter(|(_, a)| a.context == Some(context))
            .map(|(&base, _)| base)
            .collect();
        let freed = owned.into_iter().filter_map(|base| self.drop_live(base));
        freed.collect()
    }

    /// Whether the context exists.
    pub fn is_alive(&self, context: ContextId) -> bool {
        self.contexts
            .get(context.number() as usize)
            .is_some_and(|c| c.alive)
    }

    /// The device of a context.
    pub fn device_of(&self, context: ContextId) -> Option<u32> {
        self.contexts
            .get(context.number() as usize)
            .map(|c| c.device)
    }

    /// The legacy default stream of a context.
    pub fn legacy(&self, context: ContextId) -> Option<StreamId> {
        self.contexts
            .get(context.number() as usize)
            .map(|c| c.legacy)
    }

    /// Makes a stream; `blocking`: it is ordered with the legacy stream.
    ///
    /// # Errors
    /// [`Code::INVALID_CONTEXT`] if the context is not alive.
    pub fn create_stream(&mut self, context: ContextId, blocking: bool) -> Result<StreamId, Code> {
        if !self.is_alive(context) {
            return Err(Code::INVALID_CONTEXT);
        }
        let kind = if blocking {
            StreamKind::Blocking
        } else {
            StreamKind::NonBlocking
        };
        Ok(self.push_stream(context, kind))
    }

    /// Destroys a stream; its work goes on. Returns false if there is no such
    /// stream, or it is a legacy one.
    pub fn destroy_stream(&mut self, stream: StreamId) -> bool {
        let (kind, context) = match self.streams.get_mut(stream.number() as usize) {
            Some(s) if s.alive && s.kind != StreamKind::Legacy => {
                s.alive = false;
                (s.kind, s.context)
            }
            _ => return false,
        };
        if self.settings.orphans && kind == StreamKind::Blocking {
            let orders =
                |s: &&Stream| s.alive && s.context == context && s.kind != StreamKind::NonBlocking;
            let tail = self.streams.iter().filter(orders).map(|s| s.tail).max();
            if let Some(context) = self.contexts.get_mut(context.number() as usize) {
                context.blocking_tail = tail.unwrap_or(0);
            }
        }
        true
    }

    /// The context of a stream that is alive.
    pub fn context_of(&self, stream: StreamId) -> Option<ContextId> {
        let stream = self
            .streams
            .get(stream.number() as usize)
            .filter(|s| s.alive)?;
        Some(stream.context)
    }

    fn push_stream(&mut self, context: ContextId, kind: StreamKind) -> StreamId {
        let id = StreamId::numbered(count(self.streams.len()));
        self.streams.push(Stream {
            context,
            kind,
            tail: 0,
            alive: true,
        });
        id
    }

    /// When all work on the stream is done, and the work that it is ordered
    /// with.
    pub fn stream_tail(&self, stream: StreamId) -> Nanos {
        let Some(s) = self.streams.get(stream.number() as usize) else {
            return 0;
        };
        let Some(context) = self.contexts.get(s.context.number() as usize) else {
            return s.tail;
        };
        match s.kind {
            StreamKind::Legacy => context.blocking_tail,
            StreamKind::NonBlocking => s.tail,
            StreamKind::Blocking => {
                let legacy = self.streams.get(context.legacy.number() as usize);
                s.tail.max(legacy.map_or(0, |l| l.tail))
            }
        }
    }

    /// When all work that the context was given is done.
    pub fn context_tail(&self, context: ContextId) -> Nanos {
        self.contexts
            .get(context.number() as usize)
            .map_or(0, |c| c.tail)
    }

    /// A mark after all work on the stream so far, and the work that it is
    /// ordered with.
    pub fn stream_mark(&self, stream: StreamId) -> Mark {
        Mark {
            time: self.stream_tail(stream),
            known: self.known(stream).map(Arc::new),
        }
    }

    /// A mark after all work that the context was given so far.
    pub fn context_mark(&self, context: ContextId) -> Mark {
        let own = |s: &StreamId| self.stream(*s).is_some_and(|s| s.context == context);
        Mark {
            time: self.context_tail(context),
            known: (self.order.as_ref()).map(|o| Arc::new(o.known(self.ids().filter(own)))),
        }
    }

    /// The marks of all contexts of a device.
    pub fn device_marks(&self, device: u32) -> Vec<Mark> {
        let ids = (0..self.contexts.len()).map(|n| ContextId::numbered(count(n)));
        let own = ids.filter(|&c| self.device_of(c) == Some(device));
        own.map(|c| self.context_mark(c)).collect()
    }

    /// Waits until a mark is reached.
    pub fn wait(&mut self, mark: &Mark) {
        self.advance_to(mark.time);
        self.has_reached(mark);
    }

    /// Waits until a mark is reached, for `most` at the longest; returns
    /// whether it is reached.
    pub fn wait_within(&mut self, mark: &Mark, most: Nanos) -> bool {
        self.advance_to(mark.time.min(self.now.saturating_add(most)));
        self.has_reached(mark)
    }

    /// Whether a mark is reached. If it is, the host knows it from now on.
    pub fn has_reached(&mut self, mark: &Mark) -> bool {
        let reached = mark.time <= self.now;
        if let (true, Some(order), Some(known)) = (reached, &mut self.order, &mark.known) {
            order.tell_host(known);
        }
        reached
    }

    /// Makes later work on a stream wait for a mark.
    pub fn hold(&mut self, stream: StreamId, mark: &Mark) {
        if let (Some(order), Some(known)) = (&mut self.order, &mark.known) {
            order.tell(stream, known);
        }
        self.extend_tail(stream, mark.time);
    }

    /// Makes later work on every stream of a context wait for a mark.
    pub fn hold_context(&mut self, context: ContextId, mark: &Mark) {
        let own: Vec<StreamId> = (self.ids())
            .filter(|&s| self.context_of(s) == Some(context))
            .collect();
        for stream in own {
            self.hold(stream, mark);
        }
    }

    /// Submits work. Returns when it ends.
    ///
    /// # Errors
    /// [`Code::INVALID_CONTEXT`] if the stream or its context is gone.
    pub fn submit(&mut self, stream: StreamId, work: Work<E>) -> Result<Nanos, Code> {
        let alive = self.context_of(stream).filter(|&c| self.is_alive(c));
        alive.ok_or(Code::INVALID_CONTEXT)?;
        let begins = self.now.max(self.stream_tail(stream));
        let ends = begins.saturating_add(work.duration);
        self.check_touches(stream, &work.touches, ends);
        self.flight.submit(ends, work);
        self.extend_tail(stream, ends);
        self.flight.retire(self.now, &mut self.effects);
        Ok(ends)
    }

    fn check_touches(&mut self, stream: StreamId, touches: &[Touch], ends: Nanos) {
        for touch in touches.iter().filter(|t| !t.size.is_zero()) {
            let is_there = self.covers(touch.start, touch.size);
            if !is_there || !self.is_admitted(touch.start, touch.size) {
                self.violations.push(Violation::Unallocated {
                    stream,
                    start: touch.start,
                    size: touch.size,
                });
            }
        }
        let known = self.known(stream);
        if let (Some(order), Some(known)) = (&mut self.order, known) {
            let races = order.submit(stream, known, touches, ends);
            let races = races.into_iter().map(|(touch, other)| Violation::Race {
                stream,
                other,
                start: touch.start,
            });
            self.violations.extend(races);
        }
    }

    /// What work on a stream is ordered after; `None` unless races are looked
    /// for.
    fn known(&self, stream: StreamId) -> Option<Known> {
        let order = self.order.as_ref()?;
        let own = self.stream(stream)?;
        let orders = |other: &StreamId| match (own.kind, self.stream(*other)) {
            _ if *other == stream => true,
            (_, Some(o)) if o.context != own.context => false,
            (StreamKind::Legacy, Some(o)) => o.kind == StreamKind::Blocking,
            (StreamKind::Blocking, Some(o)) => o.kind == StreamKind::Legacy,
            _ => false,
        };
        Some(order.known(self.ids().filter(orders)))
    }

    fn ids(&self) -> impl Iterator<Item = StreamId> + use<E> {
        (0..count(self.streams.len())).map(StreamId::numbered)
    }

    fn stream(&self, stream: StreamId) -> Option<&Stream> {
        self.streams.get(stream.number() as usize)
    }

    fn extend_tail(&mut self, stream: StreamId, time: Nanos) {
        let Some(s) = self.streams.get_mut(stream.number() as usize) else {
            return;
        };
        s.tail = s.tail.max(time);
        let (context, kind) = (s.context, s.kind);
        if let Some(context) = self.contexts.get_mut(context.number() as usize) {
            context.tail = context.tail.max(time);
            if kind != StreamKind::NonBlocking {
                context.blocking_tail = context.blocking_tail.max(time);
            }
        }
    }

    /// Records a violation that the caller has found.
    pub fn violate(&mut self, violation: Violation) {
        self.violations.push(violation);
    }

    /// All violations so far.
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }
}

/// An identifier; there are never more contexts or streams than `u32` holds.
fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
