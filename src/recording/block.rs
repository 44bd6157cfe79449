//! The events of a block, from its bytes.
//!
//! Owns what the bytes of an event refer to, as the writer does (`encode`).
//! Invariant: whatever the bytes are, nothing is read beyond them, and an event that
//! is cut off is none.

use super::form::{self, In, NONE, SIZES, UNIT, WINDOW, flag, kind, unzigzag};
use super::mark::{Mark, stack_of};
use super::read::{Entry, Found};
use crate::address::{Address, Bytes};
use crate::stats::{Action, Event, StackId};

/// A block of memory by its number.
#[derive(Copy, Clone, Default)]
struct Numbered {
    /// Twice; one more where it is there. So nothing is there at first.
    number: u64,
    address: u64,
    size: u64,
}

/// The newest blocks by their numbers.
struct Newest {
    ring: Vec<Numbered>,
    /// The next number.
    next: u32,
}

impl Newest {
    fn new() -> Newest {
        Newest {
            ring: vec![Numbered::default(); WINDOW as usize],
            next: 0,
        }
    }

    fn push(&mut self, address: u64, size: u64) {
        let place = self.next as usize % WINDOW as usize;
        if let Some(place) = self.ring.get_mut(place) {
            *place = Numbered {
                number: u64::from(self.next) << 1 | 1,
                address,
                size,
            };
        }
        self.next = self.next.wrapping_add(1);
    }

    fn get(&self, number: u32) -> Option<(u64, u64)> {
        let place = self.ring.get(number as usize % WINDOW as usize)?;
        let is_it = place.number == u64::from(number) << 1 | 1;
        is_it.then_some((place.address, place.size))
    }
}

/// What was read.
pub(super) enum Decoded {
    /// An event or a mark.
    Entry(Entry),
    /// A free of a block whose allocation is not in the recording, or a mark of a
    /// later version.
    Unknown,
    /// The block is at its end.
    End,
    /// The next event is cut off, or no event.
    Broken,
}

/// See the module.
pub(super) struct Decoder {
    time_us: u64,
    address: u64,
    arena: u32,
    thread: u32,
    /// The free that is expected to be completed next.
    next: u32,
    sizes: Vec<u64>,
    allocations: Newest,
    frees: Newest,
}

impl Decoder {
    pub(super) fn new() -> Decoder {
        Decoder {
            time_us: 0,
            address: 0,
            arena: NONE,
            thread: NONE,
            next: 0,
            sizes: Vec::new(),
            allocations: Newest::new(),
            frees: Newest::new(),
        }
    }

    /// A block with this head begins.
    pub(super) fn restart(&mut self, head: &[u8]) {
        self.time_us = form::long(head, form::block::TIME);
        self.address = 0;
        (self.arena, self.thread) = (NONE, NONE);
        self.allocations.next = form::word(head, form::block::ALLOCATIONS);
        self.frees.next = form::word(head, form::block::FREES);
        self.next = self.frees.next;
        self.sizes.clear();
    }

    /// Reads one event, or where it is cut off takes nothing.
    #[inline]
    pub(super) fn step(&mut self, bytes: &mut In<'_>) -> Decoded {
        if bytes.rest.is_empty() {
            return Decoded::End;
        }
        let mut read = *bytes;
        match self.read(&mut read) {
            Some(step) => {
                *bytes = read;
                step
            }
            None => Decoded::Broken,
        }
    }

    #[inline]
    fn read(&mut self, read: &mut In<'_>) -> Option<Decoded> {
        let mut tag = read.byte()?;
        while tag & kind::MASK >= kind::ARENA {
            let number = read.small()?;
            if tag & kind::MASK == kind::ARENA {
                self.arena = number;
            } else {
                self.thread = number;
            }
            tag = read.byte()?;
        }
        if tag & flag::TIMED != 0 {
            self.time_us = self.time_us.checked_add(read.number()?)?;
        }
        let found = match tag & kind::MASK {
            kind::MARK => {
                let code = read.byte()?;
                let length = usize::try_from(read.number()?).ok()?;
                let said = read.take(length)?;
                let Some(mark) = Mark::read(code, said) else {
                    return Some(Decoded::Unknown);
                };
                Found::Mark(mark)
            }
            kind::ALLOC => self.allocation(read, tag)?,
            kind::FREE | kind::COMPLETED => {
                let Some(found) = self.free(read, tag)? else {
                    return Some(Decoded::Unknown);
                };
                found
            }
            _ => {
                let address = Address::new(read.number()?);
                let size = read.number()?;
                let is_taken = tag & kind::MASK == kind::SEGMENT_ALLOC;
                let action = match (is_taken, tag & flag::PLAIN != 0) {
                    (true, false) => Action::SegmentAlloc(address),
                    (false, false) => Action::SegmentFree(address),
                    (true, true) => Action::SegmentMap(address),
                    (false, true) => Action::SegmentUnmap(address),
                };
                self.event(read, tag, action, size)?
            }
        };
        Some(Decoded::Entry(Entry {
            arena: (self.arena != NONE).then_some(self.arena),
            thread: self.thread,
            time_us: self.time_us,
            found,
        }))
    }

    #[inline]
    fn allocation(&mut self, read: &mut In<'_>, tag: u8) -> Option<Found> {
        let size = self.size(read)?;
        let address = if tag & flag::PLAIN != 0 {
            read.number()?
        } else {
            let difference = unzigzag(read.number()?);
            self.address = self.address.wrapping_add_signed(difference);
            self.address.wrapping_mul(UNIT)
        };
        let event = self.event(read, tag, Action::Alloc(Address::new(address)), size)?;
        self.allocations.push(address, size);
        Some(event)
    }

    fn size(&mut self, read: &mut In<'_>) -> Option<u64> {
        let number = usize::try_from(read.number()?).ok()?;
        if let Some(&size) = self.sizes.get(number) {
            return Some(size);
        }
        let size = (number == self.sizes.len()).then(|| read.number())??;
        if number < SIZES {
            self.sizes.push(size);
        }
        Some(size)
    }

    /// A free, or that it is completed; none inside where its block is not known.
    #[inline]
    fn free(&mut self, read: &mut In<'_>, tag: u8) -> Option<Option<Found>> {
        let is_free = tag & kind::MASK == kind::FREE;
        let block = match (tag & flag::KNOWN != 0, is_free) {
            (false, _) => Some((read.number()?, read.number()?)),
            (true, true) => {
                let distance = read.small()?.checked_add(1)?;
                let number = self.allocations.next.wrapping_sub(distance);
                self.allocations.get(number)
            }
            (true, false) => {
                let mut number = self.next;
                if tag & flag::PLAIN == 0 {
                    let difference = i32::try_from(unzigzag(read.number()?)).ok()?;
                    number = number.wrapping_add_signed(difference);
                }
                self.next = number.wrapping_add(1);
                self.frees.get(number)
            }
        };
        // What is not known has a number all the same.
        let (address, size) = block.unwrap_or_default();
        let at = Address::new(address);
        let action = if is_free {
            self.frees.push(address, size);
            Action::FreeRequested(at)
        } else {
            Action::FreeCompleted(at)
        };
        let found = self.event(read, tag & !flag::KNOWN, action, size)?;
        Some((address != 0).then_some(found))
    }

    #[inline]
    fn event(&self, read: &mut In<'_>, tag: u8, action: Action, size: u64) -> Option<Found> {
        let stack = if tag & flag::STACK == 0 {
            StackId::NONE
        } else {
            stack_of(read.number()?)?
        };
        let told = (tag & flag::KNOWN != 0).then_some(tag & flag::WAITS != 0);
        Some(Found::Event {
            event: Event {
                action,
                size: Bytes::new(size),
                time_us: self.time_us,
                stack,
            },
            told,
        })
    }
}
