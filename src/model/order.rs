//! What is ordered before what, whatever the clock says.
//!
//! Owns, where races are looked for, what each stream and the host know of the
//! others' work, and the accesses that the host does not know to be done.
//! Invariant: a stream knows another's work up to a time, and what that knew;
//! knowledge travels by marks only: events, fences, waits. Two pieces of work
//! of which neither knows the other are unordered, also where one happens to
//! have ended before the other began. Cost: linear in the streams and in those
//! accesses; nothing where races are not looked for.

use std::sync::Arc;

use crate::flight::Touch;
use crate::ids::StreamId;
use crate::settings::Nanos;

/// A mark in the work of a stream or of more: when it is reached, and what is
/// ordered before it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Mark {
    pub(crate) time: Nanos,
    pub(crate) known: Option<Arc<Known>>,
}

impl Mark {
    /// When it is reached.
    #[must_use]
    pub const fn time(&self) -> Nanos {
        self.time
    }
}

/// Until when each stream's work is known, by the streams' numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Known(Vec<Nanos>);

impl Known {
    fn of(&self, stream: StreamId) -> Nanos {
        self.0.get(stream.number() as usize).copied().unwrap_or(0)
    }

    fn raise(&mut self, stream: StreamId, time: Nanos) {
        let at = stream.number() as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        self.0[at] = self.0[at].max(time);
    }

    pub(crate) fn join(&mut self, other: &Known) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (own, &theirs) in self.0.iter_mut().zip(&other.0) {
            *own = (*own).max(theirs);
        }
    }
}

/// Memory that work touched, until the host knows that it is done.
#[derive(Debug)]
struct Access {
    touch: Touch,
    stream: StreamId,
    ends: Nanos,
}

#[derive(Debug, Default)]
pub(crate) struct Order {
    streams: Vec<Known>,
    host: Known,
    accesses: Vec<Access>,
}

impl Order {
    /// What work submitted to these streams so far is ordered after.
    pub(crate) fn known(&self, streams: impl Iterator<Item = StreamId>) -> Known {
        let mut known = Known::default();
        for stream in streams {
            if let Some(own) = self.streams.get(stream.number() as usize) {
                known.join(own);
            }
        }
        known
    }

    /// The host learns that a mark was reached.
    pub(crate) fn tell_host(&mut self, known: &Known) {
        self.host.join(known);
        let host = &self.host;
        self.accesses.retain(|a| host.of(a.stream) < a.ends);
    }

    /// A stream learns of a mark.
    pub(crate) fn tell(&mut self, stream: StreamId, known: &Known) {
        let at = stream.number() as usize;
        if self.streams.len() <= at {
            self.streams.resize(at + 1, Known::default());
        }
        self.streams[at].join(known);
    }

    /// Work that knows `known` besides what the host does is put on a stream.
    /// The touches that unordered work touches as well, with its stream.
    pub(crate) fn submit(
        &mut self,
        stream: StreamId,
        mut known: Known,
        touches: &[Touch],
        ends: Nanos,
    ) -> Vec<(Touch, StreamId)> {
        known.join(&self.host);
        let mut races = Vec::new();
        for touch in touches.iter().filter(|t| !t.size.is_zero()) {
            let unordered = self.accesses.iter().find(|a| {
                a.stream != stream
                    && (a.touch.writes || touch.writes)
                    && a.touch.start.get() < touch.end()
                    && touch.start.get() < a.touch.end()
                    && known.of(a.stream) < a.ends
            });
            races.extend(unordered.map(|a| (*touch, a.stream)));
        }
        known.raise(stream, ends);
        self.tell(stream, &known);
        self.accesses.extend(touches.iter().map(|&touch| Access {
            touch,
            stream,
            ends,
        }));
        races
    }

    /// Memory is given back: who touched it does not matter any more.
    pub(crate) fn forget(&mut self, freed: Touch) {
        let apart =
            |a: &Access| a.touch.end() <= freed.start.get() || freed.end() <= a.touch.start.get();
        self.accesses.retain(apart);
    }
}
