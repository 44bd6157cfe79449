//! Copies between any two places.
//!
//! Invariant: a copy is work on a stream and moves its bytes at its end. A
//! device range that does not lie in a live allocation is refused and recorded
//! as a violation.

use vramalloc_core::{Address, Bytes, Code};
use vramalloc_model::{Touch, Violation, Work};

use crate::effect::{Effect, Rows};
use crate::entry::{Call, driver};
use crate::ffi::{Done, Handle, In, bytes_at};

/// Simulated bytes per nanosecond over the bus and inside a device.
const BUS: u64 = 32;
const DEVICE: u64 = 1024;

/// The most slices of a three-dimensional copy.
const MAX_DEPTH: u64 = 1 << 20;

/// Memory types of the descriptors of two-dimensional copies.
const HOST: u32 = 1;
const ON_DEVICE: u32 = 2;
const IN_ARRAY: u32 = 3;
const UNIFIED: u32 = 4;

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct Copy2D {
    from_x: u64,
    from_y: u64,
    from_type: u32,
    from_host: u64,
    from_device: u64,
    from_array: u64,
    from_pitch: u64,
    to_x: u64,
    to_y: u64,
    to_type: u32,
    to_host: u64,
    to_device: u64,
    to_array: u64,
    to_pitch: u64,
    width: u64,
    height: u64,
}

/// `CUDA_MEMCPY3D`, and its variant for peers, which also names contexts.
#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct Copy3D {
    from: Corner,
    to: Corner,
    width: u64,
    height: u64,
    depth: u64,
}

/// One side of a three-dimensional copy.
#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct Corner {
    x: u64,
    y: u64,
    z: u64,
    level: u64,
    kind: u32,
    host: u64,
    device: u64,
    array: u64,
    context: u64,
    pitch: u64,
    height: u64,
}

impl Corner {
    /// This side of the copy of slice `z`.
    fn slice(&self, z: u64) -> Option<(u64, u64)> {
        let slice = self.z.checked_add(z)?.checked_mul(self.height)?;
        let offset = slice.checked_mul(self.pitch)?;
        Some((
            offset.checked_add(self.host)?,
            offset.checked_add(self.device)?,
        ))
    }
}

/// One copy of rows.
#[derive(Copy, Clone)]
struct Move {
    to: Rows,
    from: Rows,
    width: u64,
    rows: u64,
}

impl Move {
    fn flat(to: u64, from: u64, width: u64) -> Move {
        let row = |start| Rows {
            start,
            pitch: width,
        };
        Move {
            to: row(to),
            from: row(from),
            width,
            rows: 1,
        }
    }
}

/// The duration of a copy or a set of this many bytes.
pub(crate) fn duration(bytes: u64, over_the_bus: bool) -> u64 {
    let speed = if over_the_bus { BUS } else { DEVICE };
    500 + bytes / speed
}

impl Call<'_> {
    /// Refuses a range that device work may not touch, and records a violation.
    pub(crate) fn check_range(&mut self, rows: Rows, width: u64, count: u64) -> Done {
        let last = rows.pitch.saturating_mul(count.saturating_sub(1));
        let size = last.saturating_add(width);
        // What a graph allocates is checked when the graph is launched.
        if self.sim.is_accessible(rows.start, size) || self.sim.is_graph_memory(rows.start, size) {
            return Ok(());
        }
        let text = format!("{} of {size} bytes at {:#x}", self.name, rows.start);
        self.sim
            .violate(Violation::Other(format!("{text}, which is not allocated")));
        Err(Code::INVALID_VALUE)
    }

    /// The device memory or pinned memory that work on these rows touches.
    pub(crate) fn touch(&self, rows: Rows, width: u64, count: u64, writes: bool) -> Option<Touch> {
        let start = Address::new(rows.start);
        let last = rows.pitch.saturating_mul(count.saturating_sub(1));
        let size = Bytes::new(last.saturating_add(width));
        let known = self.is_on_device(rows.start) || self.sim.model.covers(start, size);
        known.then_some(Touch {
            start,
            size,
            writes,
        })
    }

    fn is_on_device(&self, address: u64) -> bool {
        let found = self.sim.model.find(Address::new(address)).is_some();
        found || self.sim.is_graph_memory(address, 1)
    }

    /// Whether this is host memory that the device cannot access by itself.
    fn is_pageable(&self, address: u64) -> bool {
        !self.is_on_device(address) && self.sim.host.at(address).is_none()
    }

    fn submit_move(&mut self, stream: Handle, m: Move) -> Done {
        let stream = self.stream(stream)?;
        if m.width == 0 || m.rows == 0 {
            return Ok(());
        }
        self.check_range(m.to, m.width, m.rows)?;
        self.check_range(m.from, m.width, m.rows)?;
        let inside = self.is_on_device(m.to.start) && self.is_on_device(m.from.start);
        let staged = m.rows == 1
            && self.is_pageable(m.from.start)
            && self.is_on_device(m.to.start)
            && self.sim.model.capture_of(stream).is_none();
        let effect = if staged {
            let width = usize::try_from(m.width).map_err(|_| Code::INVALID_VALUE)?;
            Effect::Write {
                to: m.to.start,
                bytes: bytes_at(m.from.start as *const _, width),
            }
        } else {
            Effect::Copy {
                to: m.to,
                from: m.from,
                width: m.width,
                rows: m.rows,
            }
        };
        let touches = [
            self.touch(m.to, m.width, m.rows, true),
            self.touch(m.from, m.width, m.rows, false),
        ];
        let work = Work {
            duration: duration(m.width.saturating_mul(m.rows), !inside),
            touches: touches.into_iter().flatten().collect(),
            effect: Some(effect),
        };
        self.sim.submit(stream, work)
    }

    /// Makes a copy. It is done when the call returns, if the host is part of
    /// it.
    fn copy_now(&mut self, m: Move) -> Done {
        self.context()?;
        self.unsafe_in_capture()?;
        self.submit_move(0, m)?;
        let inside = self.is_on_device(m.to.start) && self.is_on_device(m.from.start);
        if !inside || self.is_in_step(&[m.to.start, m.from.start])? {
            self.finish(0)?;
        }
        Ok(())
    }

    /// Whether calls that name no stream wait for their work at these places, whatever
    /// it is: the current context, or the allocation, says so.
    pub(crate) fn is_in_step(&mut self, places: &[u64]) -> Result<bool, Code> {
        const SYNC_MEMOPS: u32 = 0x80;
        let by_context = self.current_mut()?.flags & SYNC_MEMOPS != 0;
        let base = |&at: &u64| Some(self.sim.model.find(Address::new(at))?.base.get());
        let mut bases = places.iter().filter_map(base);
        Ok(by_context || bases.any(|base| self.sim.in_step.contains(&base)))
    }

    pub(crate) fn copy_bytes_now(&mut self, to: u64, from: u64, size: u64) -> Done {
        self.copy_now(Move::flat(to, from, size))
    }

    pub(crate) fn copy_bytes_later(
        &mut self,
        to: u64,
        from: u64,
        size: u64,
        stream: Handle,
    ) -> Done {
        self.copy_later(Move::flat(to, from, size), stream)
    }

    /// Makes a copy on a stream. A copy to host memory that the device cannot
    /// access by itself waits, as the driver's does.
    fn copy_later(&mut self, m: Move, stream: Handle) -> Done {
        self.context()?;
        self.submit_move(stream, m)?;
        let staged = m.rows > 1 && self.is_pageable(m.from.start);
        if staged || self.is_pageable(m.to.start) {
            self.finish(stream)?;
        }
        Ok(())
    }

    pub(crate) fn finish(&mut self, stream: Handle) -> Done {
        let stream = self.stream(stream)?;
        if self.sim.model.capture_of(stream).is_none() {
            self.sim.wait(&self.sim.model.stream_mark(stream));
        }
        Ok(())
    }

    /// The copies of the slices of a three-dimensional copy.
    fn moves_3d(&self, copy: &In<Copy3D>) -> Result<Vec<Move>, Code> {
        let mut c = copy.get()?;
        self.resolve_corner(&mut c.from)?;
        self.resolve_corner(&mut c.to)?;
        let slice = |z| {
            let (from_host, from_device) = c.from.slice(z)?;
            let (to_host, to_device) = c.to.slice(z)?;
            Some(Copy2D {
                from_x: c.from.x,
                from_y: c.from.y,
                from_type: c.from.kind,
                from_host,
                from_device,
                from_array: c.from.array,
                from_pitch: c.from.pitch,
                to_x: c.to.x,
                to_y: c.to.y,
                to_type: c.to.kind,
                to_host,
                to_device,
                to_array: c.to.array,
                to_pitch: c.to.pitch,
                width: c.width,
                height: c.height,
            })
        };
        if c.depth > MAX_DEPTH {
            return Err(Code::INVALID_VALUE);
        }
        (0..c.depth)
            .map(|z| self.move_2d(slice(z).ok_or(Code::INVALID_VALUE)?))
            .collect()
    }

    /// Replaces an array by its place in memory.
    fn resolve_corner(&self, corner: &mut Corner) -> Done {
        if corner.kind == IN_ARRAY {
            let array = self.array(corner.array)?;
            corner.kind = ON_DEVICE;
            corner.device = array.base;
            corner.pitch = array.shape.row().ok_or(Code::INVALID_VALUE)?;
            corner.height = array.shape.height.max(1);
        }
        Ok(())
    }

    /// Replaces arrays by their places in memory.
    fn resolve_2d(&self, c: &mut Copy2D) -> Done {
        if c.from_type == IN_ARRAY {
            let array = self.array(c.from_array)?;
            c.from_type = ON_DEVICE;
            c.from_device = array.base;
            c.from_pitch = array.shape.row().ok_or(Code::INVALID_VALUE)?;
        }
        if c.to_type == IN_ARRAY {
            let array = self.array(c.to_array)?;
            c.to_type = ON_DEVICE;
            c.to_device = array.base;
            c.to_pitch = array.shape.row().ok_or(Code::INVALID_VALUE)?;
        }
        Ok(())
    }

    fn move_2d(&self, mut c: Copy2D) -> Result<Move, Code> {
        self.resolve_2d(&mut c)?;
        let place = |kind, host, device| match kind {
            HOST => Ok(host),
            ON_DEVICE | UNIFIED => Ok(device),
            _ => Err(Code::NOT_SUPPORTED),
        };
        let rows = |start: u64, x: u64, y: u64, pitch: u64| {
            if start == 0 || (pitch < c.width.saturating_add(x) && c.height > 1) {
                return Err(Code::INVALID_VALUE);
            }
            let offset = y.checked_mul(pitch).and_then(|o| o.checked_add(x));
            let start = offset.and_then(|o| start.checked_add(o));
            Ok(Rows {
                start: start.ok_or(Code::INVALID_VALUE)?,
                pitch,
            })
        };
        let to = place(c.to_type, c.to_host, c.to_device)?;
        let from = place(c.from_type, c.from_host, c.from_device)?;
        Ok(Move {
            to: rows(to, c.to_x, c.to_y, c.to_pitch)?,
            from: rows(from, c.from_x, c.from_y, c.from_pitch)?,
            width: c.width,
            rows: c.height,
        })
    }
}

driver! {
    fn cuMemcpy / cuMemcpy_ptds(call, to: u64, from: u64, size: u64) {
        call.copy_now(Move::flat(to, from, size))
    }

    fn cuMemcpyHtoD_v2 / cuMemcpyHtoD_v2_ptds(call, to: u64, from: u64, size: u64) {
        call.copy_now(Move::flat(to, from, size))
    }

    fn cuMemcpyDtoH_v2 / cuMemcpyDtoH_v2_ptds(call, to: u64, from: u64, size: u64) {
        call.copy_now(Move::flat(to, from, size))
    }

    fn cuMemcpyDtoD_v2 / cuMemcpyDtoD_v2_ptds(call, to: u64, from: u64, size: u64) {
        call.copy_now(Move::flat(to, from, size))
    }

    fn cuMemcpyPeer / cuMemcpyPeer_ptds(
        call, to: u64, _to_context: Handle, from: u64, _from_context: Handle, size: u64,
    ) {
        call.copy_now(Move::flat(to, from, size))
    }

    fn cuMemcpy2D_v2 / cuMemcpy2D_v2_ptds(call, copy: In<Copy2D>) {
        let m = call.move_2d(copy.get()?)?;
        call.copy_now(m)
    }

    fn cuMemcpy2DUnaligned_v2 / cuMemcpy2DUnaligned_v2_ptds(call, copy: In<Copy2D>) {
        let m = call.move_2d(copy.get()?)?;
        call.copy_now(m)
    }

    fn cuMemcpy3D_v2 / cuMemcpy3D_v2_ptds(call, copy: In<Copy3D>) {
        call.moves_3d(&copy)?.into_iter().try_for_each(|m| call.copy_now(m))
    }

    fn cuMemcpy3DPeer / cuMemcpy3DPeer_ptds(call, copy: In<Copy3D>) {
        call.moves_3d(&copy)?.into_iter().try_for_each(|m| call.copy_now(m))
    }

    fn cuMemcpy3DAsync_v2 / cuMemcpy3DAsync_v2_ptsz(call, copy: In<Copy3D>, stream: Handle) {
        let moves = call.moves_3d(&copy)?;
        moves.into_iter().try_for_each(|m| call.copy_later(m, stream))
    }

    fn cuMemcpy3DPeerAsync / cuMemcpy3DPeerAsync_ptsz(
        call, copy: In<Copy3D>, stream: Handle,
    ) {
        let moves = call.moves_3d(&copy)?;
        moves.into_iter().try_for_each(|m| call.copy_later(m, stream))
    }

    fn cuMemcpyAsync / cuMemcpyAsync_ptsz(call, to: u64, from: u64, size: u64, stream: Handle) {
        call.copy_later(Move::flat(to, from, size), stream)
    }

    fn cuMemcpyHtoDAsync_v2 / cuMemcpyHtoDAsync_v2_ptsz(
        call, to: u64, from: u64, size: u64, stream: Handle,
    ) {
        call.copy_later(Move::flat(to, from, size), stream)
    }

    fn cuMemcpyDtoHAsync_v2 / cuMemcpyDtoHAsync_v2_ptsz(
        call, to: u64, from: u64, size: u64, stream: Handle,
    ) {
        call.copy_later(Move::flat(to, from, size), stream)
    }

    fn cuMemcpyDtoDAsync_v2 / cuMemcpyDtoDAsync_v2_ptsz(
        call, to: u64, from: u64, size: u64, stream: Handle,
    ) {
        call.copy_later(Move::flat(to, from, size), stream)
    }

    fn cuMemcpyPeerAsync / cuMemcpyPeerAsync_ptsz(
        call, to: u64, _to_context: Handle, from: u64, _from_context: Handle, size: u64,
        stream: Handle,
    ) {
        call.copy_later(Move::flat(to, from, size), stream)
    }

    fn cuMemcpy2DAsync_v2 / cuMemcpy2DAsync_v2_ptsz(call, copy: In<Copy2D>, stream: Handle) {
        let m = call.move_2d(copy.get()?)?;
        call.copy_later(m, stream)
    }
}
