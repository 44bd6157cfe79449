//! Memory of other processes that is open here.
//!
//! The driver maps whole allocations, and several blocks of one may be open at
//! once. So an allocation is opened once per context, and closed with the last
//! part that was handed out of it; CUDA counts its openings in the same way.
//! Owns the list, whose lock is taken alone and spans no driver call.
//! Invariant: an allocation on the list is mapped, and the program holds a part
//! of it; no part reaches beyond its end. Cost: a look at all that is open.

use spin::mutex::SpinMutex;
use vramalloc_core::patience::Brief;

use crate::ipc::token::HandleBytes;
use crate::types::CUdevice;

/// What the driver is asked to open, and in which context. What is open under
/// the same key is not opened again.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Source {
    /// The context that opens it.
    pub(crate) context: usize,
    /// The driver's handle.
    pub(crate) handle: HandleBytes,
    /// The flags it is opened with.
    pub(crate) flags: u32,
}

/// The part of an allocation that a program opens.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    /// How far into the allocation it starts.
    pub(crate) offset: u64,
    /// Its size; `None` for the whole allocation, whose size only the driver
    /// knows.
    pub(crate) size: Option<u64>,
}

impl Part {
    /// Its address in an allocation at `base`; `None` if it is not inside.
    pub(crate) fn inside(self, base: u64, extent: Option<u64>) -> Option<u64> {
        if let Some(size) = self.size {
            let end = self.offset.checked_add(size)?;
            extent.filter(|extent| end <= *extent)?;
        }
        base.checked_add(self.offset)
    }
}

#[derive(PartialEq, Eq, Debug)]
struct Opened {
    part: Part,
    count: usize,
}

/// An allocation that is open.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct OpenAllocation {
    source: Source,
    /// The context's device, if it is that device's primary context.
    primary_of: Option<CUdevice>,
    /// Where it starts.
    pub(crate) base: u64,
    /// The allocation's size, as far as the driver says.
    extent: Option<u64>,
    opened: Vec<Opened>,
}

/// What there is to open.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// The allocation is not open.
    Closed,
    /// It is open, and has no such part.
    Outside,
    /// The part is open at this address.
    Open(u64),
}

/// What became of an address that was to be closed.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Closed {
    /// Nothing of ours starts there.
    Unknown,
    /// Other parts keep the allocation open.
    Counted,
    /// It was the last part: the driver has to close the allocation, which is off the list.
    Last(OpenAllocation),
}

static MAPPINGS: SpinMutex<List, Brief> = SpinMutex::new(List(Vec::new()));

struct List(Vec<OpenAllocation>);

impl List {
    fn open(&mut self, source: &Source, part: Part) -> Found {
        let Some(mapping) = self.0.iter_mut().find(|m| m.source == *source) else {
            return Found::Closed;
        };
        let Some(address) = part.inside(mapping.base, mapping.extent) else {
            return Found::Outside;
        };
        match mapping.opened.iter_mut().find(|o| o.part == part) {
            Some(opened) => opened.count += 1,
            None => mapping.opened.push(Opened { part, count: 1 }),
        }
        Found::Open(address)
    }

    fn close(&mut self, address: u64) -> Closed {
        let starts = |mapping: &OpenAllocation, opened: &Opened| {
            mapping.base.checked_add(opened.part.offset) == Some(address)
        };
        let found = self.0.iter_mut().enumerate().find_map(|(i, mapping)| {
            let place = mapping.opened.iter().position(|o| starts(mapping, o))?;
            Some((i, mapping, place))
        });
        let Some((i, mapping, place)) = found else {
            return Closed::Unknown;
        };
        if let [Opened { count: 1, .. }] = mapping.opened[..] {
            return Closed::Last(self.0.swap_remove(i));
        }
        if let Some(opened) = mapping.opened.get_mut(place) {
            opened.count -= 1;
            if opened.count == 0 {
                mapping.opened.swap_remove(place);
            }
        }
        Closed::Counted
    }

    /// The driver did not close it.
    fn put_back(&mut self, mapping: OpenAllocation) {
        match self.0.iter_mut().find(|m| m.source == mapping.source) {
            Some(open) => open.opened.extend(mapping.opened),
            None => self.0.push(mapping),
        }
    }

    /// The open part around an address, as start and size.
    fn around(&self, address: u64) -> Option<(u64, u64)> {
        let parts = self.0.iter().flat_map(|mapping| {
            mapping.opened.iter().filter_map(|opened| {
                Some((
                    mapping.base.checked_add(opened.part.offset)?,
                    opened.part.size?,
                ))
            })
        });
        let mut around = parts.filter(|(start, size)| {
            address
                .checked_sub(*start)
                .is_some_and(|inside| inside < *size)
        });
        around.next()
    }
}

/// Opens a part of an allocation that is open already.
pub(crate) fn open(source: &Source, part: Part) -> Found {
    MAPPINGS.lock().open(source, part)
}

/// Enters an allocation of `extent` bytes that was just opened at `base`, for
/// `part` of it.
pub(crate) fn add(
    source: Source,
    primary_of: Option<CUdevice>,
    base: u64,
    extent: Option<u64>,
    part: Part,
) {
    MAPPINGS.lock().0.push(OpenAllocation {
        source,
        primary_of,
        base,
        extent,
        opened: vec![Opened { part, count: 1 }],
    });
}

/// Closes what was opened at an address.
pub(crate) fn close(address: u64) -> Closed {
    MAPPINGS.lock().close(address)
}

/// Enters an allocation again that the driver did not close.
pub(crate) fn put_back(mapping: OpenAllocation) {
    MAPPINGS.lock().put_back(mapping);
}

/// The open part around an address, as start and size; `None` for a whole
/// allocation, about which the driver's answer is right.
pub(crate) fn around(address: u64) -> Option<(u64, u64)> {
    MAPPINGS.lock().around(address)
}

/// Forgets what was opened in a context, which ends.
pub(crate) fn end(context: usize) {
    let mut mappings = MAPPINGS.lock();
    mappings
        .0
        .retain(|mapping| mapping.source.context != context);
}

/// Forgets what was opened in a primary context, which ends.
pub(crate) fn end_primary(device: CUdevice) {
    let mut mappings = MAPPINGS.lock();
    mappings
        .0
        .retain(|mapping| mapping.primary_of != Some(device));
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x7000;

    fn source(byte: u8) -> Source {
        Source {
            context: 1,
            handle: [byte; 64],
            flags: 1,
        }
    }

    fn part(offset: u64, size: u64) -> Part {
        Part {
            offset,
            size: Some(size),
        }
    }

    fn list() -> List {
        let whole = Part {
            offset: 0,
            size: None,
        };
        List(vec![OpenAllocation {
            source: source(1),
            primary_of: None,
            base: BASE,
            extent: Some(4096),
            opened: vec![Opened {
                part: whole,
                count: 1,
            }],
        }])
    }

    #[test]
    fn the_last_part_closes_the_allocation() {
        let mut list = list();
        for _ in 0..2 {
            let found = list.open(&source(1), part(512, 512));
            assert_eq!(found, Found::Open(BASE + 512));
        }
        assert_eq!(list.close(BASE + 1024), Closed::Unknown);
        assert_eq!(list.close(BASE + 512), Closed::Counted);
        assert_eq!(list.close(BASE), Closed::Counted);
        assert_eq!(list.close(BASE), Closed::Unknown);
        assert_eq!(list.around(BASE + 1023), Some((BASE + 512, 512)));
        assert_eq!(list.around(BASE + 1024), None);
        let Closed::Last(mapping) = list.close(BASE + 512) else {
            panic!("it was the last");
        };
        assert_eq!(list.open(&source(1), part(512, 512)), Found::Closed);
        // The driver may refuse to close it.
        list.put_back(mapping);
        assert_eq!(list.around(BASE + 512), Some((BASE + 512, 512)));
        assert!(matches!(list.close(BASE + 512), Closed::Last(_)));
    }

    #[test]
    fn nothing_is_opened_beyond_the_end_or_under_another_key() {
        let mut list = list();
        let open = |list: &mut List, offset, size| list.open(&source(1), part(offset, size));
        assert_eq!(open(&mut list, 0, 4096), Found::Open(BASE));
        assert_eq!(open(&mut list, 512, 4096), Found::Outside);
        assert_eq!(open(&mut list, 1 << 32, 512), Found::Outside);
        assert_eq!(open(&mut list, u64::MAX, 512), Found::Outside);
        assert_eq!(list.open(&source(2), part(0, 512)), Found::Closed);
        let other = Source {
            context: 2,
            ..source(1)
        };
        assert_eq!(list.open(&other, part(0, 512)), Found::Closed);
        list.0[0].extent = None;
        assert_eq!(open(&mut list, 0, 512), Found::Outside);
    }
}
