//! Launching kernels.
//!
//! Two kernels have an effect: `spin(ns)` takes time, and
//! `fill(pointer, value, count, ns)` takes time and then writes words. Every
//! other kernel takes a fixed time and does nothing.

use std::ffi::c_void;

use vramalloc_core::{Address, Bytes, Code};
use vramalloc_model::{Touch, Work};

use crate::effect::{Effect, Rows};
use crate::entry::{Call, driver};
use crate::ffi::{Done, Handle, In, Out, bytes_at};

#[derive(Copy, Clone)]
struct Shape {
    grid: [u32; 3],
    block: [u32; 3],
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct LaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: Handle,
    attributes: u64,
    attribute_count: u32,
}

/// Marks in the list of extra launch parameters.
const BUFFER: u64 = 1;
const BUFFER_SIZE: u64 = 2;

const MAX_THREADS: u64 = 1024;

impl Shape {
    fn check(self) -> Done {
        let threads: u64 = self.block.iter().map(|&n| u64::from(n)).product();
        let empty = self.grid.contains(&0) || self.block.contains(&0);
        if empty || threads > MAX_THREADS {
            return Err(Code::INVALID_VALUE);
        }
        Ok(())
    }
}

/// A launch's parameters, in either form.
struct Arguments {
    /// The address of each parameter.
    list: In<*const c_void>,
    /// All parameters, packed.
    packed: Vec<u8>,
}

impl Arguments {
    fn read(list: In<*const c_void>, extra: &In<u64>) -> Result<Arguments, Code> {
        let mut packed = Vec::new();
        let (mut buffer, mut size) = (0, 0);
        if !extra.0.is_null() {
            let mut at = 0;
            loop {
                match extra.at(at)? {
                    BUFFER => buffer = extra.at(at + 1)?,
                    BUFFER_SIZE => size = In(extra.at(at + 1)? as *const usize).get()?,
                    _ => break,
                }
                at += 2;
            }
            packed = bytes_at(buffer as *const c_void, size);
        }
        Ok(Arguments { list, packed })
    }

    /// The value of parameter `index` as a number.
    fn number(&self, index: usize, layout: &[(u64, u64)]) -> Result<u64, Code> {
        let &(offset, size) = layout.get(index).ok_or(Code::INVALID_VALUE)?;
        let size = usize::try_from(size.min(8)).unwrap_or(8);
        let bytes = if self.list.0.is_null() {
            let start = usize::try_from(offset).map_err(|_| Code::INVALID_VALUE)?;
            let part = self.packed.get(start..start + size);
            part.ok_or(Code::INVALID_VALUE)?.to_vec()
        } else {
            let place = self.list.at(index)?;
            if place.is_null() {
                return Err(Code::INVALID_VALUE);
            }
            bytes_at(place, size)
        };
        let mut number = [0; 8];
        for (to, from) in number.iter_mut().zip(bytes) {
            *to = from;
        }
        Ok(u64::from_le_bytes(number))
    }
}

impl Call<'_> {
    fn launch(
        &mut self,
        kernel: Handle,
        shape: Shape,
        stream: Handle,
        list: In<*const c_void>,
        extra: &In<u64>,
    ) -> Done {
        let entry = self.kernel(kernel)?.entry.clone();
        let stream = self.stream(stream)?;
        shape.check()?;
        let layout = &entry.parameters;
        let arguments = Arguments::read(list, extra)?;
        let number = |index| arguments.number(index, layout);
        let work = match (entry.name.as_str(), layout.len()) {
            ("spin", 1) => Work::lasting(number(0)?),
            ("fill", 4) => {
                let value = u32::try_from(number(1)? & 0xffff_ffff).unwrap_or(0);
                fill(number(0)?, value, number(2)?, number(3)?)
            }
            _ => Work::lasting(self.sim.environment.kernel_ns),
        };
        self.sim.submit(stream, work)
    }
}

fn fill(start: u64, value: u32, count: u64, duration: u64) -> Work<Effect> {
    let width = count.saturating_mul(4);
    let to = Rows { start, pitch: 0 };
    Work {
        duration,
        touches: vec![Touch::write(Address::new(start), Bytes::new(width))],
        effect: Some(Effect::Set {
            to,
            unit: 4,
            value,
            width,
            rows: 1,
        }),
    }
}

/// The number of blocks of `block` threads that a multiprocessor holds.
fn resident(block: i32) -> Result<i32, Code> {
    if block <= 0 {
        return Err(Code::INVALID_VALUE);
    }
    Ok((2048 / block).min(32))
}

driver! {
    fn cuLaunchKernel / cuLaunchKernel_ptsz(
        call, kernel: Handle, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32,
        _shared: u32, stream: Handle, list: In<*const c_void>, extra: In<u64>,
    ) {
        let shape = Shape { grid: [gx, gy, gz], block: [bx, by, bz] };
        call.launch(kernel, shape, stream, list, &extra)
    }

    fn cuLaunchCooperativeKernel / cuLaunchCooperativeKernel_ptsz(
        call, kernel: Handle, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32,
        _shared: u32, stream: Handle, list: In<*const c_void>,
    ) {
        let shape = Shape { grid: [gx, gy, gz], block: [bx, by, bz] };
        call.launch(kernel, shape, stream, list, &In(std::ptr::null()))
    }

    fn cuLaunchKernelEx / cuLaunchKernelEx_ptsz(
        call, config: In<LaunchConfig>, kernel: Handle, list: In<*const c_void>,
        extra: In<u64>,
    ) {
        let config = config.get()?;
        let shape = Shape { grid: config.grid, block: config.block };
        call.launch(kernel, shape, config.stream, list, &extra)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        call, blocks: Out<i32>, kernel: Handle, block: i32, _shared: u64,
    ) {
        call.kernel(kernel)?;
        blocks.set(resident(block)?)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        call, blocks: Out<i32>, kernel: Handle, block: i32, _shared: u64, _flags: u32,
    ) {
        call.kernel(kernel)?;
        blocks.set(resident(block)?)
    }

    fn cuOccupancyMaxPotentialBlockSize(
        call, grid: Out<i32>, block: Out<i32>, kernel: Handle, _sizes: u64, _shared: u64,
        limit: i32,
    ) {
        call.kernel(kernel)?;
        grid.set(264)?;
        block.set(if (1..1024).contains(&limit) { limit } else { 1024 })
    }

    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        call, grid: Out<i32>, block: Out<i32>, kernel: Handle, _sizes: u64, _shared: u64,
        limit: i32, _flags: u32,
    ) {
        call.kernel(kernel)?;
        grid.set(264)?;
        block.set(if (1..1024).contains(&limit) { limit } else { 1024 })
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock(
        call, size: Out<u64>, kernel: Handle, _blocks: i32, _block: i32,
    ) {
        call.kernel(kernel)?;
        size.set(49_152)
    }
}
