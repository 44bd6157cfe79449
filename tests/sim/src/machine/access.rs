//! Which device may work on which memory.
//!
//! Invariant: work on memory to which its device was not given access is a
//! violation, and does nothing to the memory. Plain memory is accessible to
//! all; a copy needs the access of any device, since it may be made by another
//! one than the stream's.

use vramalloc_model::{ContextId, Nanos, StreamId, Touch, Violation, Work};

use super::Machine;
use crate::effect::Effect;
use crate::state::Kind;

const READ: u32 = 1;
const READ_WRITE: u32 = 3;

/// A device's work in flight on mapped memory.
pub(super) struct OnMapped {
    device: u32,
    touch: Touch,
    ends: Nanos,
}

impl Machine {
    /// Those of these ranges that begin in mapped memory.
    pub(super) fn mapped_of(&self, touches: &[Touch]) -> Vec<Touch> {
        let is_mapped = |touch: &&Touch| self.mapping_at(touch.start.get()).is_some();
        touches.iter().filter(is_mapped).copied().collect()
    }

    /// Notes that work of a context uses mapped memory until it ends.
    pub(super) fn note_mapped(&mut self, context: ContextId, mapped: Vec<Touch>, ends: Nanos) {
        let now = self.model.now();
        self.on_mapped.retain(|work| work.ends > now);
        let Some(device) = self.model.device_of(context) else {
            return;
        };
        let work = |touch| OnMapped {
            device,
            touch,
            ends,
        };
        self.on_mapped.extend(mapped.into_iter().map(work));
    }

    /// When the last work of a device on these mapped bytes ends; `None` if there is
    /// none.
    pub(crate) fn mapped_until(&self, device: u32, start: u64, size: u64) -> Option<Nanos> {
        let now = self.model.now();
        let uses = |work: &&OnMapped| {
            let (from, length) = (work.touch.start.get(), work.touch.size.get());
            let shares = from < start + size && start < from.saturating_add(length);
            work.device == device && work.ends > now && shares
        };
        self.on_mapped
            .iter()
            .filter(uses)
            .map(|work| work.ends)
            .max()
    }

    /// Refuses what the stream's device may not touch.
    pub(super) fn check_access(&mut self, stream: StreamId, work: &mut Work<Effect>) {
        let context = self.model.context_of(stream);
        let Some(device) = context.and_then(|c| self.model.device_of(c)) else {
            return;
        };
        let is_copy = matches!(
            work.effect,
            Some(Effect::Copy { .. } | Effect::Write { .. })
        );
        let device = (!is_copy).then_some(device);
        let refused = work.touches.iter().find(|t| !self.may_touch(device, t));
        let Some(start) = refused.map(|t| t.start) else {
            return;
        };
        work.effect = None;
        work.touches.clear();
        let who = device.map_or("no device".to_owned(), |d| format!("device {d}"));
        self.violate(Violation::Other(format!(
            "work touches {start:?}, to which {who} was not given such access"
        )));
    }

    /// Whether a device, or any, may do this.
    fn may_touch(&self, device: Option<u32>, touch: &Touch) -> bool {
        let needed = if touch.writes { READ_WRITE } else { READ };
        let enough = |flags: u32| flags & needed == needed;
        let (start, size) = (touch.start.get(), touch.size.get());
        if let Some((first, _)) = self.mapping_at(start) {
            let end = start.saturating_add(size);
            let mut touched = self.mappings.range(first..end).map(|(_, mapping)| mapping);
            return touched.all(|mapping| match device {
                Some(device) => enough(mapping.access.get(&device).copied().unwrap_or(0)),
                None => mapping.access.values().any(|&flags| enough(flags)),
            });
        }
        let base = self.model.find(touch.start).map_or(start, |a| a.base.get());
        match (self.kinds.get(&base), device) {
            (Some(Kind::Pool(pool)), Some(device)) => {
                let pool = self.pools.get(*pool);
                pool.is_none_or(|pool| enough(pool.access_of(device)))
            }
            _ => true,
        }
    }
}
