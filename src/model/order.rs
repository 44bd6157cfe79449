//! Which work is ordered before which, whatever the clock says.
//!
//! Used only if races are looked for. Owns what each stream and the host know
//! of the other streams' work, and the accesses that the host does not know to
//! be done. Invariant: a stream knows another's work up to a time, and what
//! that work knew; knowledge travels by marks only: events, fences, waits. Two
//! pieces of work of which neither knows the other are unordered, even if one
//! happens to end before the other begins. Cost: linear in the streams and in
//! those accesses.

use std::sync::Arc;

use crate::flight::Touch;
use crate::ids::StreamId;
use crate::settings::Nanos;

/// A mark in the work of one or more streams: when it is reached, and what is
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

/// The time until which each stream's work is known, by the streams' numbers.
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

/// Memory that work touched, until the host knows that the work is done.
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
    /// The work that is ordered before anything submitted to these streams now.
    pub(crate) fn known(&self, streams: impl Iterator<Item = StreamId>) -> Known {
        let mut known = Known::default();
        for stream in streams {
            if let Some(own) = self.streams.get(stream.number() as usize) {
                known.join(own);
            }
        }
        known
    }

    /// Lets the host know what a reached mark knew.
    pub(crate) fn tell_host(&mut self, known: &Known) {
        self.host.join(known);
        let host = &self.host;
        self.accesses.retain(|a| host.of(a.stream) < a.ends);
    }

    /// Lets a stream know what a mark knew.
    pub(crate) fn tell(&mut self, stream: StreamId, known: &Known) {
        let at = stream.number() as usize;
        if self.streams.len() <= at {
            self.streams.resize(at + 1, Known::default());
        }
        self.streams[at].join(known);
    }

    /// Adds work to a stream; it knows `known` and what the host knows. Returns
    /// the touches that conflict with unordered work, and the stream of that
    /// work.
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

    /// Memory was freed: removes its accesses.
    pub(crate) fn forget(&mut self, freed: Touch) {
        let apart =
            |a: &Access| a.touch.end() <= freed.start.get() || freed.end() <= a.touch.start.get();
        self.accesses.retain(apart);
    }
}
