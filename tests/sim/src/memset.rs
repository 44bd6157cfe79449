//! Setting device memory to a value.
//!
//! Invariant: a set is work on a stream, also if the call names none: then on
//! the default stream, and the host does not wait.

use vramalloc_core::{Address, Bytes, Code};
use vramalloc_model::{Touch, Work};

use crate::copy::duration;
use crate::effect::{Effect, Rows};
use crate::entry::{Call, driver};
use crate::ffi::{Done, Handle};

/// The memory to set.
#[derive(Copy, Clone)]
pub(crate) struct Area {
    start: u64,
    pitch: u64,
    /// The elements of a row, and the number of rows.
    width: u64,
    rows: u64,
}

fn row(start: u64, width: u64) -> Area {
    Area {
        start,
        pitch: 0,
        width,
        rows: 1,
    }
}

impl Area {
    pub(crate) fn new(start: u64, pitch: u64, width: u64, rows: u64) -> Area {
        Area {
            start,
            pitch,
            width,
            rows,
        }
    }
}

impl Call<'_> {
    fn set_now(&mut self, area: Area, value: u32, unit: u64) -> Done {
        self.context()?;
        self.unsafe_in_capture()?;
        self.set_later(area, value, unit, 0)?;
        if self.is_in_step(&[area.start])? {
            self.finish(0)?;
        }
        Ok(())
    }

    fn set_later(&mut self, area: Area, value: u32, unit: u64, stream: Handle) -> Done {
        self.context()?;
        let stream = self.stream(stream)?;
        let width = area.width.checked_mul(unit).ok_or(Code::INVALID_VALUE)?;
        if width == 0 || area.rows == 0 {
            return Ok(());
        }
        let (mut work, to) = set_work(area, value, unit)?;
        self.check_range(to, width, area.rows)?;
        work.touches = (self.touch(to, width, area.rows, true).into_iter()).collect();
        self.sim.submit(stream, work)
    }
}

/// The work that sets memory, and the rows that it writes.
pub(crate) fn set_work(area: Area, value: u32, unit: u64) -> Result<(Work<Effect>, Rows), Code> {
    let width = area.width.checked_mul(unit).ok_or(Code::INVALID_VALUE)?;
    if !area.start.is_multiple_of(unit) || (area.rows > 1 && area.pitch < width) {
        return Err(Code::INVALID_VALUE);
    }
    let to = Rows {
        start: area.start,
        pitch: area.pitch,
    };
    let all = area
        .pitch
        .saturating_mul(area.rows - 1)
        .saturating_add(width);
    let work = Work {
        duration: duration(width.saturating_mul(area.rows), false),
        touches: vec![Touch::write(Address::new(area.start), Bytes::new(all))],
        effect: Some(Effect::Set {
            to,
            unit: usize::try_from(unit).unwrap_or(1),
            value,
            width,
            rows: area.rows,
        }),
    };
    Ok((work, to))
}

driver! {
    fn cuMemsetD8_v2 / cuMemsetD8_v2_ptds(call, to: u64, value: u8, count: u64) {
        call.set_now(row(to, count), u32::from(value), 1)
    }

    fn cuMemsetD16_v2 / cuMemsetD16_v2_ptds(call, to: u64, value: u16, count: u64) {
        call.set_now(row(to, count), u32::from(value), 2)
    }

    fn cuMemsetD32_v2 / cuMemsetD32_v2_ptds(call, to: u64, value: u32, count: u64) {
        call.set_now(row(to, count), value, 4)
    }

    fn cuMemsetD2D8_v2 / cuMemsetD2D8_v2_ptds(
        call, to: u64, pitch: u64, value: u8, width: u64, rows: u64,
    ) {
        call.set_now(Area::new(to, pitch, width, rows), u32::from(value), 1)
    }

    fn cuMemsetD2D16_v2 / cuMemsetD2D16_v2_ptds(
        call, to: u64, pitch: u64, value: u16, width: u64, rows: u64,
    ) {
        call.set_now(Area::new(to, pitch, width, rows), u32::from(value), 2)
    }

    fn cuMemsetD2D32_v2 / cuMemsetD2D32_v2_ptds(
        call, to: u64, pitch: u64, value: u32, width: u64, rows: u64,
    ) {
        call.set_now(Area::new(to, pitch, width, rows), value, 4)
    }

    fn cuMemsetD8Async / cuMemsetD8Async_ptsz(
        call, to: u64, value: u8, count: u64, stream: Handle,
    ) {
        call.set_later(row(to, count), u32::from(value), 1, stream)
    }

    fn cuMemsetD16Async / cuMemsetD16Async_ptsz(
        call, to: u64, value: u16, count: u64, stream: Handle,
    ) {
        call.set_later(row(to, count), u32::from(value), 2, stream)
    }

    fn cuMemsetD32Async / cuMemsetD32Async_ptsz(
        call, to: u64, value: u32, count: u64, stream: Handle,
    ) {
        call.set_later(row(to, count), value, 4, stream)
    }

    fn cuMemsetD2D8Async / cuMemsetD2D8Async_ptsz(
        call, to: u64, pitch: u64, value: u8, width: u64, rows: u64, stream: Handle,
    ) {
        call.set_later(Area::new(to, pitch, width, rows), u32::from(value), 1, stream)
    }

    fn cuMemsetD2D16Async / cuMemsetD2D16Async_ptsz(
        call, to: u64, pitch: u64, value: u16, width: u64, rows: u64, stream: Handle,
    ) {
        call.set_later(Area::new(to, pitch, width, rows), u32::from(value), 2, stream)
    }

    fn cuMemsetD2D32Async / cuMemsetD2D32Async_ptsz(
        call, to: u64, pitch: u64, value: u32, width: u64, rows: u64, stream: Handle,
    ) {
        call.set_later(Area::new(to, pitch, width, rows), value, 4, stream)
    }
}
