//! Managed memory: the host may touch it as well as the devices.
//!
//! Owns where its pages lie. Invariant: a page uses the memory of the device on
//! which it lies. All lie on the host at first; with the first work of a device that
//! touches any of them they move there, as far as it has room, but for those that
//! were prefetched; later only a prefetch moves them. Cost: linear in the pages of
//! the range.

use std::ffi::c_void;

use vramalloc_core::{Address, Bytes, Code};
use vramalloc_model::{Allocation, Family, Holds, Touch, Work};

use crate::copy::duration;
use crate::entry::{Call, driver};
use crate::ffi::{Done, Handle, In, Out};
use crate::machine::Machine;
use crate::state::{
    CPU, Kind, Location, Managed, ManagedPage, NO_DEVICE, ON_DEVICE, ON_HOST, ON_HOST_NODE,
};

/// How memory is attached: to all, to the host, to one stream.
const GLOBAL: u32 = 1;
const HOST: u32 = 2;
const SINGLE: u32 = 4;

/// A location as it is passed by value: its kind in the low half.
fn location_of(packed: u64) -> Location {
    let half = |n: u64| u32::try_from(n & 0xffff_ffff).unwrap_or(0);
    Location {
        kind: half(packed),
        id: half(packed >> 32).cast_signed(),
    }
}

/// The location that a device's number stands for.
fn location_at(device: i32) -> Location {
    match device {
        CPU => Location {
            kind: ON_HOST,
            id: 0,
        },
        id => Location {
            kind: ON_DEVICE,
            id,
        },
    }
}

/// The number that stands for a location, and for none.
fn number_of(location: Option<Location>) -> i32 {
    match location {
        None => NO_DEVICE,
        Some(l) if l.kind == ON_DEVICE => l.id,
        Some(_) => CPU,
    }
}

impl Machine {
    /// Moves the managed memory to a device that is the first to touch it.
    pub(crate) fn touch_managed(&mut self, device: u32, touches: &[Touch]) {
        if self.managed.is_empty() {
            return;
        }
        for touch in touches.iter().filter(|touch| !touch.size.is_zero()) {
            let base = self.model.find(touch.start).map(|a| a.base.get());
            let found = base.and_then(|base| Some((base, self.managed.get_mut(&base)?)));
            let Some((base, managed)) = found.filter(|(_, managed)| !managed.is_touched) else {
                continue;
            };
            managed.is_touched = true;
            let pages = (0..).zip(&managed.pages);
            let moving: Vec<usize> = pages
                .filter(|(_, page)| page.prefetched.is_none())
                .map(|(i, _)| i)
                .collect();
            for page in moving {
                self.move_page(base, page, Some(device));
            }
        }
    }

    /// Moves a page of managed memory, if there is room where it is to be.
    fn move_page(&mut self, base: u64, page: usize, to: Option<u32>) {
        let size = self.model.settings().page;
        let start = Address::new(base);
        let managed = self.managed.get(&base);
        let Some(now) = managed.and_then(|m| m.pages.get(page)).map(|p| p.resident) else {
            return;
        };
        if now == to {
            return;
        }
        if let Some(device) = to {
            let more = self.model.used_by_span(start, device).saturating_add(size);
            if self.model.use_for_span(start, device, more).is_err() {
                return;
            }
        }
        if let Some(device) = now {
            let less = self.model.used_by_span(start, device).saturating_sub(size);
            let _ = self.model.use_for_span(start, device, less);
        }
        let managed = self.managed.get_mut(&base);
        if let Some(page) = managed.and_then(|m| m.pages.get_mut(page)) {
            page.resident = to;
        }
    }
}

impl Call<'_> {
    fn take_managed(&mut self, to: &Out<u64>, size: u64, flags: u32) -> Done {
        to.required()?;
        let context = self.model_context()?;
        if size == 0 || ![GLOBAL, HOST].contains(&flags) {
            return Err(Code::INVALID_VALUE);
        }
        self.unsafe_in_capture()?;
        let device = self.sim.model.device_of(context).unwrap_or(0);
        let page = self.sim.model.settings().page;
        let size = Bytes::new(size);
        let length = size.round_up(page).ok_or(Code::OUT_OF_MEMORY)?;
        let family = Family::Managed;
        let base = (self.sim.model).take_span(device, family, length, Bytes::ZERO)?;
        self.sim.model.place(Allocation {
            base,
            size,
            device,
            context: Some(context),
            holds: Holds::Span,
        });
        let count = usize::try_from(length.get() / page.get()).unwrap_or(0);
        let pages = vec![ManagedPage::default(); count];
        let address = base.get();
        let managed = Managed {
            pages,
            is_touched: false,
        };
        self.sim.managed.insert(address, managed);
        self.sim.kinds.insert(address, Kind::Managed);
        self.sim.backing.expose(base, length, true);
        self.sim.note_taken(size, 1);
        to.set(address)
    }

    /// The managed memory that holds a range, and the numbers of its pages.
    fn pages(&self, address: u64, size: u64) -> Result<(u64, std::ops::Range<usize>), Code> {
        let start = Address::new(address);
        let found = self.sim.model.find(start);
        let base = found.ok_or(Code::INVALID_VALUE)?.base.get();
        let inside = self.sim.model.covers(start, Bytes::new(size));
        if size == 0 || !inside || !self.sim.managed.contains_key(&base) {
            return Err(Code::INVALID_VALUE);
        }
        let page = self.sim.model.settings().page.get();
        let number = |n: u64| usize::try_from(n / page).unwrap_or(0);
        let (first, last) = (address - base, address - base + size - 1);
        Ok((base, number(first)..number(last) + 1))
    }

    /// The device of a location; `None` for the host.
    fn resident_at(&self, location: Location) -> Result<Option<u32>, Code> {
        match location.kind {
            ON_DEVICE => self.device(location.id).map(Some),
            ON_HOST | ON_HOST_NODE => Ok(None),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn prefetch(&mut self, address: u64, size: u64, to: Location, stream: Handle) -> Done {
        let (base, pages) = self.pages(address, size)?;
        let resident = self.resident_at(to)?;
        let stream = self.stream(stream)?;
        self.sim
            .submit(stream, Work::lasting(duration(size, true)))?;
        for page in pages {
            self.sim.move_page(base, page, resident);
            let managed = self.sim.managed.get_mut(&base);
            if let Some(page) = managed.and_then(|m| m.pages.get_mut(page)) {
                page.prefetched = Some(to);
            }
        }
        Ok(())
    }

    fn advise(&mut self, address: u64, size: u64, advice: u32, location: Location) -> Done {
        const READ_MOSTLY: std::ops::RangeInclusive<u32> = 1..=2;
        let (base, pages) = self.pages(address, size)?;
        if !READ_MOSTLY.contains(&advice) && advice != 4 {
            self.resident_at(location)?;
        }
        let managed = self.sim.managed.get_mut(&base);
        let pages = managed.and_then(|m| m.pages.get_mut(pages));
        for page in pages.ok_or(Code::INVALID_VALUE)? {
            let number = number_of(Some(location));
            match advice {
                1 | 2 => page.read_mostly = advice == 1,
                3 => page.preferred = Some(location),
                4 => page.preferred = None,
                5 => drop(page.accessed_by.insert(number)),
                6 => drop(page.accessed_by.remove(&number)),
                _ => return Err(Code::INVALID_VALUE),
            }
        }
        Ok(())
    }

    /// Answers one attribute of a range; where its pages differ, it has none.
    fn range_attribute(
        &self,
        data: &Out<i32>,
        size: u64,
        attribute: u32,
        (base, pages): (u64, std::ops::Range<usize>),
    ) -> Done {
        data.required()?;
        let managed = self.sim.managed.get(&base);
        let pages = managed.and_then(|m| m.pages.get(pages));
        let pages = pages.ok_or(Code::INVALID_VALUE)?;
        let common = |of: fn(&ManagedPage) -> Option<Location>| {
            let first = pages.first().and_then(of);
            first.filter(|_| pages.iter().all(|p| of(p) == first))
        };
        let kind = |l: Option<Location>| l.map_or(0, |l| l.kind.cast_signed());
        let preferred = || common(|p| p.preferred);
        let prefetched = || common(|p| p.prefetched);
        let id = |l: Option<Location>| l.map_or(NO_DEVICE, |l| l.id);
        let answer = match attribute {
            3 => return self.accessed_by(data, size, pages),
            _ if size != 4 => return Err(Code::INVALID_VALUE),
            1 => i32::from(pages.iter().all(|p| p.read_mostly)),
            2 => number_of(preferred()),
            4 => number_of(prefetched()),
            5 => kind(preferred()),
            6 => id(preferred()),
            7 => kind(prefetched()),
            8 => id(prefetched()),
            _ => return Err(Code::INVALID_VALUE),
        };
        data.set(answer)
    }

    /// Writes the devices that all the pages are to be accessed by.
    fn accessed_by(&self, data: &Out<i32>, size: u64, pages: &[ManagedPage]) -> Done {
        if size == 0 || !size.is_multiple_of(4) {
            return Err(Code::INVALID_VALUE);
        }
        let room = usize::try_from(size / 4).unwrap_or(0);
        let first = pages.first().map(|p| p.accessed_by.clone());
        let all = first.into_iter().flatten();
        let all = all.filter(|n| pages.iter().all(|p| p.accessed_by.contains(n)));
        let padded = all.chain(std::iter::repeat(NO_DEVICE));
        for (i, number) in padded.take(room).enumerate() {
            data.set_at(i, number);
        }
        Ok(())
    }

    fn attach_memory(&mut self, stream: Handle, address: u64, size: u64, flags: u32) -> Done {
        let own = self.stream(stream)?;
        let found = self.sim.model.find(Address::new(address));
        let a = found.ok_or(Code::INVALID_VALUE)?;
        let managed = self.sim.managed.contains_key(&address);
        let whole = size == 0 || size == a.size.get();
        if !managed || !whole || ![GLOBAL, HOST, SINGLE].contains(&flags) {
            return Err(Code::INVALID_VALUE);
        }
        if flags == SINGLE && self.sim.streams.get(stream).is_none() {
            return Err(Code::INVALID_VALUE);
        }
        self.sim.submit(own, Work::lasting(0))
    }
}

driver! {
    fn cuMemAllocManaged(call, to: Out<u64>, size: u64, flags: u32) {
        call.take_managed(&to, size, flags)
    }

    fn cuMemPrefetchAsync / cuMemPrefetchAsync_ptsz(
        call, address: u64, size: u64, device: i32, stream: Handle,
    ) {
        call.prefetch(address, size, location_at(device), stream)
    }

    fn cuMemPrefetchAsync_v2 / cuMemPrefetchAsync_v2_ptsz(
        call, address: u64, size: u64, location: u64, flags: u32, stream: Handle,
    ) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        call.prefetch(address, size, location_of(location), stream)
    }

    fn cuMemAdvise(call, address: u64, size: u64, advice: u32, device: i32) {
        call.advise(address, size, advice, location_at(device))
    }

    fn cuMemAdvise_v2(call, address: u64, size: u64, advice: u32, location: u64) {
        call.advise(address, size, advice, location_of(location))
    }

    fn cuMemRangeGetAttribute(
        call, data: Out<i32>, room: u64, attribute: u32, address: u64, size: u64,
    ) {
        let pages = call.pages(address, size)?;
        call.range_attribute(&data, room, attribute, pages)
    }

    fn cuMemRangeGetAttributes(
        call, data: In<*mut c_void>, rooms: In<u64>, attributes: In<u32>, count: u64,
        address: u64, size: u64,
    ) {
        if count == 0 {
            return Err(Code::INVALID_VALUE);
        }
        for i in 0..usize::try_from(count).unwrap_or(0) {
            let pages = call.pages(address, size)?;
            let to = Out::at(data.at(i)?.cast());
            call.range_attribute(&to, rooms.at(i)?, attributes.at(i)?, pages)?;
        }
        Ok(())
    }

    fn cuStreamAttachMemAsync / cuStreamAttachMemAsync_ptsz(
        call, stream: Handle, address: u64, size: u64, flags: u32,
    ) {
        call.attach_memory(stream, address, size, flags)
    }
}
