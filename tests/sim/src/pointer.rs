//! The properties of a pointer.
//!
//! Invariant: they are those of the driver, so an address inside an allocation
//! has the allocation's.

use std::ffi::c_void;

use vramalloc_core::{Address, Code};

use crate::entry::{Call, driver};
use crate::ffi::{Done, Handle, In, Out};
use crate::state::Kind;

const HOST: u32 = 1;
const DEVICE: u32 = 2;

/// The properties of an address.
struct Known {
    base: u64,
    size: u64,
    context: Handle,
    device: i32,
    on_device: bool,
    kind: Option<Kind>,
    /// The reserved addresses that it lies in, if the program reserved them.
    range: Option<(u64, u64)>,
    /// The physical memory that is mapped there, and the kinds of handles that
    /// it can have.
    memory: Handle,
    handles: u32,
}

impl Call<'_> {
    fn known(&self, address: u64) -> Option<Known> {
        if let Some(a) = self.sim.model.find(Address::new(address)) {
            let owner = self.sim.contexts.iter();
            let mut owner = owner.filter(|(_, c)| c.model.is_some() && c.model == a.context);
            let memory = self.sim.mapping_at(address).map_or(0, |(_, m)| m.memory);
            let handles = self
                .sim
                .physicals
                .get(memory)
                .map_or(0, |m| m.props.handles);
            return Some(Known {
                base: a.base.get(),
                size: a.size.get(),
                context: owner.next().map_or(0, |(handle, _)| handle),
                device: i32::try_from(a.device).unwrap_or(-1),
                on_device: true,
                kind: self.sim.kinds.get(&a.base.get()).copied(),
                range: self.sim.backing.range_at(address),
                memory,
                handles,
            });
        }
        if let Some((base, size)) = self.sim.backing.range_at(address) {
            return Some(Known {
                base,
                size,
                context: 0,
                device: -1,
                on_device: true,
                kind: None,
                range: Some((base, size)),
                memory: 0,
                handles: 0,
            });
        }
        let (base, block) = self.sim.host.at(address)?;
        let device = self.sim.contexts.get(block.context).map_or(0, |c| c.device);
        Some(Known {
            base,
            size: block.size,
            context: block.context,
            device: i32::try_from(device).unwrap_or(-1),
            on_device: false,
            kind: None,
            range: None,
            memory: 0,
            handles: 0,
        })
    }
}

/// Writes one attribute, if the caller wants it.
fn answer(known: &Known, attribute: u32, address: u64, to: *mut c_void) -> Done {
    let long = |value: u64| cast::<u64>(to).set(value);
    let int = |value: u32| cast::<u32>(to).set(value);
    let yes = |value: bool| cast::<u8>(to).set(u8::from(value));
    let managed = known.kind == Some(Kind::Managed);
    let unmapped = known.range.is_some() && known.memory == 0;
    if unmapped && !(11..=13).contains(&attribute) {
        return Err(Code::INVALID_VALUE);
    }
    match attribute {
        1 => long(known.context),
        2 => int(if known.on_device { DEVICE } else { HOST }),
        3 => long(address),
        4 if managed || !known.on_device => long(address),
        4 => Err(Code::INVALID_VALUE),
        5 => Err(Code::NOT_SUPPORTED),
        6 => int(0),
        7 => long(known.base >> 9),
        8 => yes(managed),
        9 => cast::<i32>(to).set(known.device),
        10 => yes(known.on_device && known.kind.is_none()),
        11 => long(known.range.map_or(known.base, |(start, _)| start)),
        12 => long(known.range.map_or(known.size, |(_, size)| size)),
        13 => yes(!unmapped),
        14 => long(u64::from(known.handles)),
        15 => yes(false),
        16 => int(3),
        17 => match known.kind {
            Some(Kind::Pool(pool)) => long(pool),
            _ => long(0),
        },
        18 if known.memory != 0 => long(known.size),
        19 if known.memory != 0 => long(known.base),
        20 => long(known.memory),
        18..=21 => long(0),
        _ => Err(Code::INVALID_VALUE),
    }
}

fn cast<T>(to: *mut c_void) -> Out<T> {
    Out::at(to.cast())
}

driver! {
    fn cuPointerGetAttribute(call, to: *mut c_void, attribute: u32, address: u64) {
        let known = call.known(address).ok_or(Code::INVALID_VALUE)?;
        answer(&known, attribute, address, to)
    }

    fn cuPointerGetAttributes(
        call, count: u32, attributes: In<u32>, to: In<*mut c_void>, address: u64,
    ) {
        const ORDINAL: u32 = 9;
        let known = call.known(address);
        for i in 0..count as usize {
            let (attribute, to) = (attributes.at(i)?, to.at(i)?);
            match &known {
                // An attribute that this pointer does not have is 0.
                Some(known) if answer(known, attribute, address, to).is_err() => {
                    cast::<u64>(to).set(0)?;
                }
                Some(_) => {}
                None if attribute == ORDINAL => cast::<i32>(to).set(-2)?,
                None if matches!(attribute, 2 | 6 | 16) => cast::<u32>(to).set(0)?,
                None if matches!(attribute, 8 | 10 | 13 | 15) => cast::<u8>(to).set(0)?,
                None if matches!(attribute, 11 | 12) => {}
                None => cast::<u64>(to).set(0)?,
            }
        }
        Ok(())
    }

    fn cuPointerSetAttribute(call, value: In<u32>, attribute: u32, address: u64) {
        const SYNC_MEMOPS: u32 = 6;
        let known = call.known(address).ok_or(Code::INVALID_VALUE)?;
        let on = value.get()? != 0;
        if attribute == SYNC_MEMOPS && known.kind == Some(Kind::Mapped) {
            return Err(Code::NOT_SUPPORTED);
        }
        if attribute != SYNC_MEMOPS {
            return Err(Code::INVALID_VALUE);
        }
        if on {
            call.sim.in_step.insert(known.base);
        } else {
            call.sim.in_step.remove(&known.base);
        }
        Ok(())
    }
}
