//! Arrays and mipmaps.
//!
//! Invariant: an array uses its device's memory as plain memory does, whole pages,
//! or units of 64 KiB of a page that small arrays share; its bytes lie there row by
//! row, and a mipmap of several levels uses four thirds of its first. Arrays to which memory is mapped later use nothing, and
//! nothing can be mapped to them. Cost: O(log n).

use vramalloc_core::{Address, Bytes, Code};
use vramalloc_model::Family;

use crate::entry::{Call, driver};
use crate::ffi::{Done, Handle, INVALID_HANDLE, In, Out};
use crate::machine::Machine;
use crate::state::{
    ALL_FLAGS, Array, CUBEMAP, DEFERRED, Kind, LAYERED, Mipmap, SPARSE, Shape, Shape2D,
};

/// The unit of an array's memory.
const UNIT: Bytes = Bytes::kib(64);

/// The most columns and rows of an array with two dimensions.
const MOST_2D: [u64; 2] = [131_072, 65_536];

/// `CUDA_ARRAY_MEMORY_REQUIREMENTS`.
#[repr(C)]
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Requirements {
    pub(crate) size: u64,
    pub(crate) alignment: u64,
    pub(crate) reserved: [u32; 4],
}

/// Checks a shape; the error is the driver's.
fn check(shape: &Shape) -> Done {
    let Shape {
        width,
        height,
        depth,
        channels,
        flags,
        ..
    } = *shape;
    let layered = flags & LAYERED != 0;
    let flat = depth == 0 || height != 0 || layered;
    let cube = flags & CUBEMAP == 0
        || (width == height && if layered { depth % 6 == 0 } else { depth == 6 });
    let layers = !layered || depth != 0;
    let is_2d = height != 0 && depth == 0;
    if is_2d && (width > MOST_2D[0] || height > MOST_2D[1]) {
        return Err(Code::INVALID_VALUE);
    }
    if width == 0 || ![1, 2, 4].contains(&channels) || flags & !ALL_FLAGS != 0 {
        return Err(Code::INVALID_VALUE);
    }
    if !flat || !cube || !layers || shape.element().is_none() {
        return Err(Code::INVALID_VALUE);
    }
    Ok(())
}

/// What a shape uses as an array, or as a mipmap of several levels.
fn used(shape: &Shape, mipmap: bool) -> Result<Bytes, Code> {
    let bytes = shape.bytes().ok_or(Code::OUT_OF_MEMORY)?;
    let bytes = match mipmap {
        true => (bytes.checked_mul(4)).map(|four| four.div_ceil(3)),
        false => Some(bytes),
    };
    let bytes = bytes.map(Bytes::new).and_then(|b| b.round_up(UNIT));
    bytes.ok_or(Code::OUT_OF_MEMORY)
}

impl Machine {
    /// Forgets the arrays whose context has ended.
    pub(crate) fn drop_arrays(&mut self) {
        let model = &self.model;
        let gone = |base: u64| base != 0 && model.find(Address::new(base)).is_none();
        self.arrays.remove_if(|a| gone(a.base));
        self.mipmaps.remove_if(|m| gone(m.base));
    }
}

impl Call<'_> {
    /// Takes memory for an array; 0 if memory is mapped to it later.
    fn take_array(&mut self, shape: &Shape, length: u64, used: Bytes) -> Result<(u32, u64), Code> {
        let context = self.model_context()?;
        check(shape)?;
        let device = self.sim.model.device_of(context).unwrap_or(0);
        if shape.flags & (SPARSE | DEFERRED) != 0 {
            return Ok((device, 0));
        }
        self.unsafe_in_capture()?;
        let size = used.max(Bytes::new(length));
        let base = (self.sim.model).allocate_as(context, Family::Array, size)?;
        self.sim.kinds.insert(base.get(), Kind::Array);
        Ok((device, base.get()))
    }

    fn create_array(&mut self, to: &Out<Handle>, shape: Shape) -> Done {
        to.required()?;
        check(&shape)?;
        let length = shape.bytes().ok_or(Code::OUT_OF_MEMORY)?;
        let (device, base) = self.take_array(&shape, length, used(&shape, false)?)?;
        to.set(self.sim.arrays.insert(Array {
            shape,
            base,
            device,
            part_of: None,
        }))
    }

    fn create_mipmap(&mut self, to: &Out<Handle>, shape: Shape, levels: u32) -> Done {
        to.required()?;
        check(&shape)?;
        if levels == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let shapes: Vec<Shape> = (0..levels.min(shape.levels()))
            .map(|l| shape.level(l))
            .collect();
        let bytes = shapes.iter().try_fold(0_u64, |sum, level| {
            sum.checked_add(level.bytes()?.checked_next_multiple_of(512)?)
        });
        let length = bytes.ok_or(Code::OUT_OF_MEMORY)?;
        let (device, base) = self.take_array(&shape, length, used(&shape, levels > 1)?)?;
        let handle = self.sim.mipmaps.insert(Mipmap {
            shape,
            base,
            device,
            levels: Vec::new(),
        });
        let mut at = base;
        let mut levels = Vec::new();
        for shape in shapes {
            levels.push(self.sim.arrays.insert(Array {
                shape,
                base: at,
                device,
                part_of: Some(handle),
            }));
            if base != 0 {
                at += shape.bytes().unwrap_or(0).next_multiple_of(512);
            }
        }
        if let Some(mipmap) = self.sim.mipmaps.get_mut(handle) {
            mipmap.levels = levels;
        }
        to.set(handle)
    }

    pub(crate) fn array(&self, handle: Handle) -> Result<&Array, Code> {
        self.sim.arrays.get(handle).ok_or(INVALID_HANDLE)
    }

    fn mipmap(&self, handle: Handle) -> Result<&Mipmap, Code> {
        self.sim.mipmaps.get(handle).ok_or(INVALID_HANDLE)
    }

    /// Frees an array's memory, after the work of its device.
    fn drop_array_memory(&mut self, base: u64, device: u32) {
        if base == 0 {
            return;
        }
        self.sim.wait_for_device(device);
        self.sim.release(base);
    }

    fn destroy_array(&mut self, handle: Handle) -> Done {
        self.context()?;
        let array = self.array(handle)?;
        let (base, device) = (array.base, array.device);
        if array.part_of.is_some() {
            return Err(INVALID_HANDLE);
        }
        self.unsafe_in_capture()?;
        self.drop_array_memory(base, device);
        self.sim.arrays.remove(handle);
        Ok(())
    }

    fn destroy_mipmap(&mut self, handle: Handle) -> Done {
        self.context()?;
        let mipmap = self.mipmap(handle)?;
        let (base, device) = (mipmap.base, mipmap.device);
        self.unsafe_in_capture()?;
        self.drop_array_memory(base, device);
        self.sim.mipmaps.remove(handle);
        self.sim.arrays.remove_if(|a| a.part_of == Some(handle));
        Ok(())
    }

    /// What memory must be mapped to an array that has none yet.
    fn requirements(&self, shape: Shape, mipmap: bool, device: i32) -> Result<Requirements, Code> {
        self.device(device)?;
        if shape.flags & DEFERRED == 0 {
            return Err(Code::INVALID_VALUE);
        }
        Ok(Requirements {
            size: used(&shape, mipmap)?.get(),
            alignment: UNIT.get(),
            reserved: [0; 4],
        })
    }
}

driver! {
    fn cuArrayCreate_v2(call, to: Out<Handle>, shape: In<Shape2D>) {
        let s = shape.get()?;
        let shape = Shape {
            width: s.width,
            height: s.height,
            depth: 0,
            format: s.format,
            channels: s.channels,
            flags: 0,
        };
        call.create_array(&to, shape)
    }

    fn cuArray3DCreate_v2(call, to: Out<Handle>, shape: In<Shape>) {
        call.create_array(&to, shape.get()?)
    }

    fn cuArrayDestroy(call, array: Handle) {
        call.destroy_array(array)
    }

    fn cuArrayGetDescriptor_v2(call, to: Out<Shape2D>, array: Handle) {
        let shape = call.array(array)?.shape;
        to.set(Shape2D {
            width: shape.width,
            height: shape.height,
            format: shape.format,
            channels: shape.channels,
        })
    }

    fn cuArray3DGetDescriptor_v2(call, to: Out<Shape>, array: Handle) {
        to.set(call.array(array)?.shape)
    }

    fn cuArrayGetMemoryRequirements(
        call, to: Out<Requirements>, array: Handle, device: i32,
    ) {
        let shape = call.array(array)?.shape;
        to.set(call.requirements(shape, false, device)?)
    }

    fn cuMipmappedArrayCreate(call, to: Out<Handle>, shape: In<Shape>, levels: u32) {
        call.create_mipmap(&to, shape.get()?, levels)
    }

    fn cuMipmappedArrayDestroy(call, mipmap: Handle) {
        call.destroy_mipmap(mipmap)
    }

    fn cuMipmappedArrayGetLevel(call, to: Out<Handle>, mipmap: Handle, level: u32) {
        to.required()?;
        let level = call.mipmap(mipmap)?.levels.get(level as usize).copied();
        to.set(level.ok_or(Code::INVALID_VALUE)?)
    }

    fn cuMipmappedArrayGetMemoryRequirements(
        call, to: Out<Requirements>, mipmap: Handle, device: i32,
    ) {
        let shape = call.mipmap(mipmap)?.shape;
        to.set(call.requirements(shape, true, device)?)
    }
}
