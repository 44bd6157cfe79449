//! Handles to memory for other processes.
//!
//! The driver's handle names a whole allocation: opening it gives the beginning
//! of that, and where a block lies in it is lost. So
//!
//! * a block that starts its allocation has the driver's own handle, which is
//!   right in every process, with us or without;
//! * a block of mapped memory has none: no driver makes a handle for what is mapped,
//!   and the arena takes plain memory from then on;
//! * any other block has a [`token`] of ours. A process with us opens the
//!   allocation behind it and gets the block; in one without us the driver
//!   refuses it, for it never made such a handle.
//!
//! `exports` keeps what we let others use, [`mappings`] what others let us use,
//! `range` makes what the driver says of an address agree with the handles.
//! Invariant: right bytes or an error, never other bytes. Cost: a file per
//! exported block and two look-ups per opened one.

mod exports;
mod mappings;
pub(crate) mod range;
mod token;

use std::{io, ptr};

use vramalloc_core::arena::Located;
use vramalloc_core::page_map::Owner;
use vramalloc_core::{Address, Bytes, Code};

use crate::driver::{green, primary};
use crate::families::{imports, relief};
use crate::ipc::mappings::{Closed, Found, Part, Source};
use crate::ipc::token::{HandleBytes, Record, Token};
use crate::pools::device;
use crate::process::guard::{Service, own_call, service};
use crate::process::say::{Once, warn_once};
use crate::real;
use crate::types::{CUcontext, CUdevice, CUdeviceptr, CUipcMemHandle, CudaResult};

pub(crate) use exports::end as end_process;

/// What the driver returns for a handle that it does not know.
const INVALID_HANDLE: CudaResult = Code::INVALID_HANDLE.get();

/// A handle to the block at an address; `None` if the driver's own is right.
///
/// # Errors
/// What the driver returns; "not supported" if the system does not let us leave
/// the record that other processes need.
pub(crate) fn export(address: CUdeviceptr) -> Option<Result<CUipcMemHandle, CudaResult>> {
    let Owner::Arena(id) = device::owner(address) else {
        return None;
    };
    if service() != Service::Full {
        return Some(Err(Code::NOT_SUPPORTED.get()));
    }
    let arena = device::arena(id);
    let located = arena.and_then(|arena| Some((arena, arena.locate(Address::new(address))?)));
    let Some((arena, found)) = located else {
        return Some(Err(Code::INVALID_VALUE.get()));
    };
    if found.is_mapped {
        arena.grow_plainly();
        warn_once(
            Once::IpcMapped,
            "a memory handle for another process was refused: CUDA makes none of mapped memory; \
             option dedicated_min for large requests, or strategy:auto_growth, helps",
        );
        return Some(Err(Code::NOT_SUPPORTED.get()));
    }
    if found.block == found.allocation {
        return None;
    }
    let token = token_of(&found).map_err(|refused| match refused {
        Refused::Real(result) => result,
        Refused::System(error) => {
            warn_once(
                Once::IpcRefused,
                &format!(
                    "a memory handle for another process was refused: {}: {error}; options \
                     ipc_dir, and dedicated_min for large requests, help",
                    exports::parent().display()
                ),
            );
            Code::NOT_SUPPORTED.get()
        }
    });
    Some(token.map(|token| token::handle_of(token.handle())))
}

/// Why there is no token.
enum Refused {
    /// The driver gives no handle to the allocation.
    Real(CudaResult),
    /// The record behind the token cannot be left for others.
    System(io::Error),
}

/// The token of a block: always the same while the block lives, since programs
/// compare handles.
fn token_of(found: &Located) -> Result<Token, Refused> {
    if let Some(token) = exports::token(found.block.get()) {
        return Ok(token);
    }
    let mut real = token::handle_of([0; 64]);
    let allocation = found.allocation.get();
    // SAFETY: writes the answer to a local.
    let result = own_call(|| unsafe { real::cuIpcGetMemHandle(&raw mut real, allocation) });
    if result != 0 {
        return Err(Refused::Real(result));
    }
    let record = Record {
        handle: token::bytes_of(&real),
        offset: found.block.offset_from(found.allocation).get(),
        size: found.size.get(),
    };
    exports::add(found.block.get(), &record).map_err(Refused::System)
}

/// Opens a handle of either kind; `None` if no context is current. `real_open`
/// is called with a place for its answer.
///
/// # Errors
/// What the driver returns, or would return for a handle that it does not know.
pub(crate) fn open(
    handle: &CUipcMemHandle,
    flags: u32,
    real_open: impl Fn(*mut CUdeviceptr, CUipcMemHandle) -> CudaResult,
) -> Option<Result<CUdeviceptr, CudaResult>> {
    let context = current()?;
    let (handle, part) = match what_is(token::bytes_of(handle)) {
        Ok(found) => found,
        Err(error) => {
            warn_once(
                Once::IpcUnknown,
                &format!(
                    "a memory handle cannot be opened: {}: {error}; both processes need the \
                     same user and the same ipc_dir, and the memory must be live",
                    exports::parent().display()
                ),
            );
            return Some(Err(INVALID_HANDLE));
        }
    };
    let source = Source {
        context: context.addr(),
        handle,
        flags,
    };
    Some(match mappings::open(&source, part) {
        Found::Open(opened) => Ok(opened),
        Found::Outside => Err(INVALID_HANDLE),
        Found::Closed => open_first(source, part, real_open),
    })
}

/// The driver's handle behind a handle, and the part of its allocation that is
/// meant.
fn what_is(handle: HandleBytes) -> io::Result<(HandleBytes, Part)> {
    let Some(token) = Token::read(&handle) else {
        let whole = Part {
            offset: 0,
            size: None,
        };
        return Ok((handle, whole));
    };
    let record = exports::read(token)?;
    let part = Part {
        offset: record.offset,
        size: Some(record.size),
    };
    Ok((record.handle, part))
}

/// Has the driver open an allocation.
fn open_first(
    source: Source,
    part: Part,
    real_open: impl Fn(*mut CUdeviceptr, CUipcMemHandle) -> CudaResult,
) -> Result<u64, CudaResult> {
    let mut base: CUdeviceptr = 0;
    let mut call = || real_open(&raw mut base, token::handle_of(source.handle));
    let result = relief::with_room(None, &mut call);
    // Another thread may have been faster. Then a driver that opens a handle
    // only once has refused, and any other has to close it again.
    match mappings::open(&source, part) {
        Found::Closed if result != 0 => return Err(result),
        Found::Closed => {}
        found => {
            if result == 0 {
                really_close(base);
            }
            return match found {
                Found::Open(address) => Ok(address),
                _ => Err(INVALID_HANDLE),
            };
        }
    }
    let extent = extent(base);
    let Some(address) = part.inside(base, extent) else {
        really_close(base);
        return Err(INVALID_HANDLE);
    };
    imports::note(imports::Way::Ipc, Bytes::new(extent.unwrap_or(0)));
    let primary_of = primary_of(source.context);
    mappings::add(source, primary_of, base, extent, part);
    Ok(address)
}

/// The size of the allocation opened at `base`, if the driver tells it: a
/// record that does not fit must not lead to other bytes.
fn extent(base: CUdeviceptr) -> Option<u64> {
    let (mut start, mut size) = (0, 0);
    // SAFETY: writes both answers to locals.
    let result =
        own_call(|| unsafe { real::cuMemGetAddressRange_v2(&raw mut start, &raw mut size, base) });
    // The driver counts bytes, a block is made of whole slots.
    let size = Bytes::new(size as u64).round_up(SLOT)?;
    (result == 0 && start == base).then_some(size.get())
}

/// Blocks are made of whole slots of this size.
const SLOT: Bytes = Bytes::new(512);

fn really_close(base: CUdeviceptr) -> CudaResult {
    // SAFETY: a number that the driver checks.
    own_call(|| unsafe { real::cuIpcCloseMemHandle(base) })
}

/// Closes what a handle was opened to; `None` if we did not open it.
pub(crate) fn close(address: CUdeviceptr) -> Option<CudaResult> {
    match mappings::close(address) {
        Closed::Unknown => None,
        Closed::Counted => Some(0),
        Closed::Last(mapping) => {
            let result = really_close(mapping.base);
            if result != 0 {
                mappings::put_back(mapping);
            }
            Some(result)
        }
    }
}

/// The current context, or the one that it is a part of: the part's mappings
/// belong to that one, and end with it.
fn current() -> Option<CUcontext> {
    let mut context: CUcontext = ptr::null_mut();
    // SAFETY: writes the answer to a local.
    let result = unsafe { real::cuCtxGetCurrent(&raw mut context) };
    (result == 0 && !context.is_null()).then(|| green::whole(context))
}

/// The device of the current context, if it is that device's primary context.
fn primary_of(context: usize) -> Option<CUdevice> {
    let mut device: CUdevice = 0;
    // SAFETY: writes the answer to a local.
    let told = unsafe { real::cuCtxGetDevice(&raw mut device) } == 0;
    let context = ptr::without_provenance_mut(context);
    (told && primary::is_primary(context, device)).then_some(device)
}

/// Forgets what a context had opened, and what it let others use: it is gone.
/// Its arena was retired before.
pub(crate) fn end(context: CUcontext) {
    mappings::end(context.addr());
    exports::forget_dead();
}

/// As `end`, for the device's primary context.
pub(crate) fn end_primary(device: CUdevice) {
    mappings::end_primary(device);
    exports::forget_dead();
}
