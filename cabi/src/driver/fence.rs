//! Fences over all contexts of the process.
//!
//! A fence records events in its own context when it is made, and in the others
//! too, as long as few such events stand unreached in their queues. A queue is
//! bounded: a call that finds it full waits for the device, and what runs there
//! may end only by what the calling thread does next. Our own events must not
//! be what fills it. If there is no room, the event is recorded when the fence
//! is queried: later, and so after all that the fence stands for. The same
//! holds for a context that may be ending: until that is decided its part
//! counts as not reached, unless it certainly ends and had no work left.
//!
//! Owns the events of each fence. Invariant: a fence is reached only after the
//! work that every context had when it was made. Cost: an event for each
//! context, and another query for each that is full.

use std::slice;
use std::sync::{Arc, OnceLock};

use vramalloc_core::Code;
use vramalloc_core::driver::Whose;

use crate::driver::context::{Context, Decision, Event, lasts};
use crate::driver::{capture, contexts, streams};
use crate::types::CUstream;

/// Events in the work of one context: on most drivers one.
#[derive(Clone)]
pub(crate) enum Events {
    None,
    One(Arc<Event>),
    Several(Arc<[Arc<Event>]>),
}

impl Events {
    fn all(&self) -> &[Arc<Event>] {
        match self {
            Events::None => &[],
            Events::One(event) => slice::from_ref(event),
            Events::Several(events) => events,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.all().len()
    }

    /// Whether these are the very same.
    pub(crate) fn are(&self, other: &Events) -> bool {
        let first = |events: &Events| events.all().first().map(Arc::as_ptr);
        first(self) == first(other)
    }
}

/// See the module.
#[derive(Clone)]
pub(crate) struct Fence {
    own: Events,
    /// The parts of the other contexts; `None` if there are none.
    others: Option<Arc<[Other]>>,
}

/// Another context's part of a fence.
struct Other {
    context: Arc<Context>,
    /// Empty while its queue has no room, or while it may be ending.
    marks: OnceLock<Events>,
}

impl Fence {
    /// A fence on one stream of the context.
    pub(crate) fn of_stream(context: &Arc<Context>, stream: CUstream) -> Result<Fence, Code> {
        Ok(Fence {
            own: Events::One(context.record_in(stream)?),
            others: None,
        })
    }

    /// The same for one of another context, whose errors are that one's.
    pub(crate) fn of_stream_elsewhere(
        context: &Arc<Context>,
        stream: CUstream,
    ) -> Result<Fence, Code> {
        let marks = unless_broken(context.record_in(stream).map(Events::One), Events::None)?;
        let other = Other {
            context: Arc::clone(context),
            marks: OnceLock::from(marks),
        };
        Ok(Fence {
            own: Events::None,
            others: Some(Arc::new([other])),
        })
    }

    /// A fence on all work of the context, and of all others. Where no event can be
    /// recorded in the context, that one is waited for.
    pub(crate) fn of_all(context: &Arc<Context>) -> Result<Fence, Code> {
        Fence::with_others(context, streams::mark(context)?)
    }

    /// As `of_all`, but where no event can be recorded in the context it fails.
    pub(crate) fn of_all_at_once(context: &Arc<Context>) -> Result<Fence, Code> {
        Fence::with_others(context, streams::mark_at_once(context)?)
    }

    /// A fence of these events in the context, and on all work of all others.
    fn with_others(context: &Arc<Context>, own: Events) -> Result<Fence, Code> {
        let Fence { others, .. } = Fence::of_others(context)?;
        Ok(Fence { own, others })
    }

    /// As `of_all`; `None` if all of that work is done. The caller has passed the gate
    /// that captures close.
    pub(crate) fn of_all_unless_done(context: &Arc<Context>) -> Result<Option<Fence>, Code> {
        let own = streams::mark_unless_done(context)?;
        let is_done = own.len() == 0;
        if !contexts::are_several() {
            return Ok((!is_done).then_some(Fence { own, others: None }));
        }
        let fence = Fence::with_others(context, own)?;
        let is_done = is_done && fence.is_reached_by_others() == Ok(true);
        Ok((!is_done).then_some(fence))
    }

    /// A fence on the work of all contexts but this one.
    pub(crate) fn of_others(context: &Arc<Context>) -> Result<Fence, Code> {
        let own = Events::None;
        if !contexts::are_several() {
            return Ok(Fence { own, others: None });
        }
        let others = contexts::others_than(context.handle()).into_iter();
        let others = others.map(|context| Other {
            context,
            marks: OnceLock::new(),
        });
        let others: Arc<[Other]> = others.collect();
        for other in others.iter().filter(|other| other.context.has_room()) {
            match other.mark(streams::mark_elsewhere) {
                // The context may be ending.
                Err(Code::NOT_READY) => {}
                marked => {
                    marked?;
                }
            }
        }
        let others = Some(others);
        Ok(Fence { own, others })
    }

    /// Whether the context's own work is done.
    pub(crate) fn is_reached_by_own(&self) -> Result<bool, Code> {
        all_reached(&self.own)
    }

    /// Whether all of the work is done.
    pub(crate) fn is_reached(&self) -> Result<bool, Code> {
        Ok(self.is_reached_by_own()? && self.is_reached_by_others()?)
    }

    fn others(&self) -> &[Other] {
        self.others.as_deref().unwrap_or_default()
    }

    fn is_reached_by_others(&self) -> Result<bool, Code> {
        for other in self.others() {
            if !other.is_reached()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits for the work that is `whose`. Returns whether all is done then.
    pub(crate) fn wait(&self, whose: Whose) -> Result<bool, Code> {
        if !wait_for(&self.own)? {
            return Ok(false);
        }
        if whose == Whose::All {
            for other in self.others() {
                other.wait()?;
            }
        }
        self.is_reached_by_others()
    }
}

impl Other {
    /// Records the events, if that was not done, by `mark`.
    fn mark(
        &self,
        mark: impl FnOnce(&Arc<Context>) -> Result<Events, Code>,
    ) -> Result<&Events, Code> {
        if let Some(known) = self.marks.get() {
            return Ok(known);
        }
        let marks = unless_broken(mark(&self.context), Events::None)?;
        self.context.stands_in_queue(&marks);
        Ok(self.marks.get_or_init(|| marks))
    }

    fn is_reached(&self) -> Result<bool, Code> {
        if self.marks.get().is_none() {
            if !self.context.has_room() {
                return Ok(false);
            }
            match outside(|| self.mark(streams::mark_elsewhere)) {
                // The context may be ending.
                Err(Code::NOT_READY) => return Ok(self.context.is_quiet()),
                marked => {
                    marked?;
                }
            }
        }
        let reached = |marks| unless_broken(all_reached(marks), true);
        self.marks.get().map_or(Ok(false), reached)
    }

    /// Waits for the other context's work, or for its end to be decided.
    fn wait(&self) -> Result<(), Code> {
        loop {
            match outside(|| self.mark(streams::mark)) {
                Err(Code::NOT_READY) => {}
                marked => return unless_broken(wait_for(marked?), true).map(|_| ()),
            }
            if self.context.is_quiet() || self.context.await_decision() == Decision::Open {
                return Ok(());
            }
        }
    }
}

/// What a context answered, or `done` where it has no work any more.
fn unless_broken<R>(answer: Result<R, Code>, done: R) -> Result<R, Code> {
    match answer {
        Err(code) if runs_nothing(code) => Ok(done),
        answer => answer,
    }
}

fn outside<R>(record: impl FnOnce() -> Result<R, Code>) -> Result<R, Code> {
    capture::outside(record).unwrap_or(Err(Code::CAPTURE_UNSUPPORTED))
}

/// Waits for all these events. Returns false if one cannot be waited for.
pub(crate) fn wait_for(marks: &Events) -> Result<bool, Code> {
    for mark in marks.all() {
        if !mark.wait()? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether all these events are reached.
pub(crate) fn all_reached(marks: &Events) -> Result<bool, Code> {
    for mark in marks.all() {
        if !mark.reached()? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a code means that a context has no work any more: it is gone, or a
/// lasting error has ended all of it.
pub(crate) fn runs_nothing(code: Code) -> bool {
    matches!(code.get(), 4 | 201 | 709) || lasts(code)
}
