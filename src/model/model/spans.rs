//! Spans: whole pages of a device's addresses, and the memory behind them.
//!
//! Owns the spans. Invariant: spans do not overlap each other or the pages of
//! plain allocations; what a span uses of each device is charged there, to its
//! family. A span may use less than its length, nothing, or memory of several
//! devices. Cost: O(log n).

use std::collections::BTreeMap;

use super::Model;
use crate::family::Family;
use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::error::Code;

#[derive(Debug)]
pub(crate) struct Span {
    /// The device whose addresses it has.
    device: u32,
    family: Family,
    length: u64,
    /// What it uses, by device.
    used: BTreeMap<u32, u64>,
}

/// Where the addresses of a span lie.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// Where there are enough.
    Anywhere,
    /// Here, or nowhere.
    At(Address),
    /// Where the span can be continued, if there is such a place.
    WithRoomBehind,
}

impl<E> Model<E> {
    /// Takes memory without addresses.
    ///
    /// # Errors
    /// [`Code::OUT_OF_MEMORY`].
    pub fn charge(&mut self, device: u32, family: Family, size: Bytes) -> Result<(), Code> {
        let memory = self.devices.get_mut(device as usize);
        let charged = memory.is_some_and(|m| m.charge(family, size.get()));
        charged.then_some(()).ok_or(Code::OUT_OF_MEMORY)
    }

    /// Gives memory back that `charge` took.
    pub fn uncharge(&mut self, device: u32, family: Family, size: Bytes) {
        if let Some(memory) = self.devices.get_mut(device as usize) {
            memory.uncharge(family, size.get());
        }
    }

    /// Keeps a part of each device's addresses, the last ones, for spans
    /// [with room behind](Place::WithRoomBehind).
    pub fn keep_room(&mut self, length: Bytes) {
        let (base, span) = (self.settings.base.get(), self.settings.span.get());
        for (device, memory) in (1..).zip(&mut self.devices) {
            memory.keep_room(base + device * span - length.get(), length.get());
        }
    }

    /// Takes whole pages of a device's addresses, and `used` bytes of its
    /// memory.
    ///
    /// # Errors
    /// [`Code::OUT_OF_MEMORY`].
    pub fn take_span(
        &mut self,
        device: u32,
        family: Family,
        length: Bytes,
        used: Bytes,
    ) -> Result<Address, Code> {
        self.take_span_at(Place::Anywhere, device, family, length, used)
    }

    /// As [`take_span`](Self::take_span), with its addresses at a place.
    ///
    /// # Errors
    /// [`Code::OUT_OF_MEMORY`], also where the place is taken.
    pub fn take_span_at(
        &mut self,
        place: Place,
        device: u32,
        family: Family,
        length: Bytes,
        used: Bytes,
    ) -> Result<Address, Code> {
        let pages = length.round_up(self.settings.page);
        let pages = pages.ok_or(Code::OUT_OF_MEMORY)?.get();
        self.charge(device, family, used)?;
        let memory = self.devices.get_mut(device as usize);
        let Some(start) = memory.and_then(|m| match place {
            Place::Anywhere => m.take_addresses(pages),
            Place::At(start) => m.take_addresses_at(start.get(), pages),
            Place::WithRoomBehind => m.take_roomy_addresses(pages),
        }) else {
            self.uncharge(device, family, used);
            return Err(Code::OUT_OF_MEMORY);
        };
        let span = Span {
            device,
            family,
            length: pages,
            used: BTreeMap::from([(device, used.get())]),
        };
        self.spans.insert(start, span);
        Ok(Address::new(start))
    }

    /// Takes whole pages of a device's addresses, without memory, at a multiple of so
    /// many.
    ///
    /// # Errors
    /// [`Code::OUT_OF_MEMORY`].
    pub fn take_span_at_multiple(
        &mut self,
        device: u32,
        family: Family,
        length: Bytes,
        multiple: Bytes,
    ) -> Result<Address, Code> {
        let pages = length.round_up(self.settings.page);
        let length = pages.ok_or(Code::OUT_OF_MEMORY)?.get();
        let memory = self.devices.get_mut(device as usize);
        let start =
            memory.and_then(|memory| memory.take_addresses_at_multiple(length, multiple.get()));
        let start = start.ok_or(Code::OUT_OF_MEMORY)?;
        let span = Span {
            device,
            family,
            length,
            used: BTreeMap::from([(device, 0)]),
        };
        self.spans.insert(start, span);
        Ok(Address::new(start))
    }

    /// Divides a span that uses its whole length into spans of `part` bytes.
    pub fn divide_span(&mut self, start: Address, part: Bytes) {
        let Some(whole) = self.spans.remove(&start.get()) else {
            return;
        };
        let end = start.get() + whole.length;
        let mut at = start.get();
        while at < end {
            let length = part.get().min(end - at);
            let span = Span {
                length,
                used: BTreeMap::from([(whole.device, length)]),
                ..whole
            };
            self.spans.insert(at, span);
            at += length;
        }
    }

    /// What a span uses of a device.
    pub fn used_by_span(&self, start: Address, device: u32) -> Bytes {
        let span = self.spans.get(&start.get());
        let used = span.and_then(|s| s.used.get(&device));
        Bytes::new(used.copied().unwrap_or(0))
    }

    /// Changes what a span uses of a device.
    ///
    /// # Errors
    /// [`Code::OUT_OF_MEMORY`], and then nothing has changed;
    /// [`Code::INVALID_VALUE`] if there is no such span.
    pub fn use_for_span(&mut self, start: Address, device: u32, used: Bytes) -> Result<(), Code> {
        let before = self.used_by_span(start, device);
        let span = self.spans.get(&start.get()).ok_or(Code::INVALID_VALUE)?;
        let family = span.family;
        if used > before {
            self.charge(device, family, used.saturating_sub(before))?;
        } else {
            self.uncharge(device, family, before.saturating_sub(used));
        }
        if let Some(span) = self.spans.get_mut(&start.get()) {
            span.used.insert(device, used.get());
        }
        Ok(())
    }

    /// Gives a span and all that it uses back. Returns its pages.
    pub fn drop_span(&mut self, start: Address) -> Option<(Address, Bytes)> {
        let span = self.spans.remove(&start.get())?;
        for (&device, &used) in &span.used {
            self.uncharge(device, span.family, Bytes::new(used));
        }
        let memory = self.devices.get_mut(span.device as usize)?;
        memory.put_addresses(start.get(), span.length);
        Some((start, Bytes::new(span.length)))
    }

    /// Whether these bytes lie in spans that follow each other: whether they
    /// are there, allocated or not.
    pub fn is_in_spans(&self, start: Address, size: Bytes) -> bool {
        let end = start.get().saturating_add(size.get());
        let mut at = start.get();
        while at < end {
            match self.spans.range(..=at).next_back() {
                Some((&from, span)) if at - from < span.length => at = from + span.length,
                _ => return false,
            }
        }
        true
    }
}
