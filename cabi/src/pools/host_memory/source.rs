//! Where page-locked memory comes from: `trait Driver` over the driver's own
//! functions for it, for one context and one kind of request.
//!
//! If the option `pinned_use_cuda_host_register` asks for it, memory is taken
//! from the system and registered instead ([`registered`]); if the driver
//! refuses that, it is asked for memory of its own all the same.
//!
//! Owns the record of chunks that begin elsewhere than the driver's memory. The
//! arena's page map wants chunks at multiples of 64 KiB, which the driver does
//! not promise. A small first one is cut out of something larger, and so is each once
//! the driver's memory did not begin so. Invariant: a cut is in the record as long as
//! the driver's memory is ours. Cost: a look at a short list per driver free, and 64
//! KiB for each chunk that is cut.
//!
//! No allocation calls the driver's free, unless memory is short: it waits for all
//! work that runs, and the end of that may hang on what the caller does next.
//! Memory that turns out not to be wanted is put by until a free.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use spin::mutex::SpinMutex;
use vramalloc_core::driver::mapping::Mapping;
use vramalloc_core::driver::{Whose, told};
use vramalloc_core::patience::Brief;
use vramalloc_core::{Address, Bytes, Code, Driver, MemInfo};

use crate::driver::context::Context;
use crate::driver::fence::Fence;
use crate::driver::real_driver::RealDriver;
use crate::driver::whose;
use crate::pools::device::context_at;
use crate::pools::host_memory::pools;
use crate::pools::host_memory::registered::{self, Leftovers};
use crate::real;
use crate::types::{CUdevice, CudaResult};

/// Chunks begin at multiples of this.
pub(super) const CHUNK_ALIGN: Bytes = Bytes::kib(64);

/// Every pointer of the driver is a multiple of this.
const LEAST_ALIGN: Bytes = Bytes::new(256);

/// Flags of `cuMemHostAlloc` that have names: for all contexts, mapped,
/// write-combined.
const FLAGS: c_uint = 7;
const WRITE_COMBINED: c_uint = 4;

/// Attributes of a device: host and device share addresses, and they do so for
/// registered memory too.
const UNIFIED_ADDRESSING: c_int = 41;
const REGISTERED_AT_HOST_ADDRESS: c_int = 91;

/// A first chunk up to this size is cut out of something larger, so that none has to be
/// put by.
const LITTLE: Bytes = Bytes::mib(1);

/// Bytes of a stand-in.
const STAND_IN: Bytes = Bytes::kib(4);

/// Whether it was looked how the driver's memory begins, in whatever context and kind, and
/// whether chunks are cut out of it. Relaxed, both: they guard no other memory.
static IS_KNOWN: AtomicBool = AtomicBool::new(false);
static IS_CUTTING: AtomicBool = AtomicBool::new(false);

/// A kind of request for page-locked memory.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// `cuMemAllocHost`.
    Plain,
    /// `cuMemHostAlloc` with these flags.
    Flags(c_uint),
}

impl Kind {
    /// Memory for every context.
    pub(crate) const PORTABLE: Kind = Kind::Flags(1);

    /// How many kinds there are.
    pub(crate) const COUNT: usize = FLAGS as usize + 2;

    /// The kind of `cuMemHostAlloc` with these flags; `None` for flags that
    /// have no name yet.
    pub(crate) fn of_flags(flags: c_uint) -> Option<Kind> {
        (flags & !FLAGS == 0).then_some(Kind::Flags(flags))
    }

    /// The flags of `cuMemHostAlloc`, if it was that.
    pub(crate) fn flags(self) -> Option<c_uint> {
        match self {
            Kind::Plain => None,
            Kind::Flags(flags) => Some(flags),
        }
    }

    /// A number for each kind, below `COUNT`.
    pub(crate) fn index(self) -> usize {
        match self {
            Kind::Plain => 0,
            Kind::Flags(flags) => flags as usize + 1,
        }
    }

    /// Whether registered memory can take its place.
    fn can_be_registered(self) -> bool {
        !matches!(self, Kind::Flags(flags) if flags & WRITE_COMBINED != 0)
    }

    /// Calls the real function.
    ///
    /// # Safety
    /// `to` is null or may be written to.
    pub(crate) unsafe fn take(self, to: *mut *mut c_void, size: usize) -> CudaResult {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Kind::Plain => real::cuMemAllocHost_v2(to, size),
                Kind::Flags(flags) => real::cuMemHostAlloc(to, size, flags),
            }
        }
    }
}

/// A chunk that was cut out of the driver's memory.
struct Cut {
    chunk: Address,
    whole: Address,
}

/// Registered memory on its way back to the system.
struct Leaving {
    address: Address,
    /// `None` if it could not be made yet: a stream captures.
    fence: Option<Fence>,
}

/// See the module.
pub(crate) struct HostDriver {
    context: Arc<Context>,
    /// Makes fences. They are the same for all memory: host memory, too, can be
    /// in use in every context.
    device: RealDriver,
    kind: Kind,
    cuts: SpinMutex<Vec<Cut>, Brief>,
    /// How many threads touch memory before it is registered; `None` if it is
    /// not.
    threads: Option<u32>,
    /// The stand-in, once wanted; `None` inside if memory cannot be registered.
    stand_in: OnceLock<Option<usize>>,
    leaving: SpinMutex<Vec<Leaving>, Brief>,
    /// The driver's memory that nobody wants, until a free.
    unwanted: SpinMutex<Vec<Address>, Brief>,
}

impl HostDriver {
    /// Memory of this kind in the context, registered after `threads` threads
    /// have touched it, or allocated by the driver.
    pub(crate) fn new(context: Arc<Context>, kind: Kind, threads: Option<u32>) -> HostDriver {
        HostDriver {
            device: RealDriver::new(Arc::clone(&context), None, context_at),
            context,
            kind,
            cuts: SpinMutex::new(Vec::new()),
            threads,
            stand_in: OnceLock::new(),
            leaving: SpinMutex::new(Vec::new()),
            unwanted: SpinMutex::new(Vec::new()),
        }
    }

    /// The context in which calls are made.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// What its memory was asked for with.
    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// An error that every call in the context returns from now on.
    pub(crate) fn lasting_error(&self) -> Option<Code> {
        self.device.lasting_error()
    }

    /// Whether this chunk was cut out of something larger.
    pub(crate) fn has_cut(&self, chunk: Address) -> bool {
        self.cuts.lock().iter().any(|cut| cut.chunk == chunk)
    }

    /// Forgets all memory: the context is gone.
    pub(crate) fn forget(&self) -> Leftovers {
        self.cuts.lock().clear();
        self.leaving.lock().clear();
        self.unwanted.lock().clear();
        match self.stand_in.get() {
            Some(&Some(stand_in)) => registered::end(stand_in),
            _ => Leftovers::default(),
        }
    }

    /// The stand-in, made on first use.
    fn stand_in(&self) -> Option<usize> {
        if let Some(&known) = self.stand_in.get() {
            return known;
        }
        let page = self.can_register().then(|| self.take(STAND_IN).ok());
        let page = page.flatten();
        let mine = page.and_then(|page| usize::try_from(page.get()).ok());
        // Made before it is put in place: no lock spans a driver call.
        let kept = *self.stand_in.get_or_init(|| mine);
        if let Some(page) = page.filter(|_| kept != mine) {
            // Another thread was faster.
            self.unwanted.lock().push(page);
        }
        kept
    }

    /// Whether the program cannot tell registered memory from the driver's.
    fn can_register(&self) -> bool {
        let has = |attribute| {
            let (mut device, mut value): (CUdevice, c_int) = (0, 0);
            let asked = self.context.call(|| {
                // SAFETY: writes the answers to locals.
                unsafe {
                    match real::cuCtxGetDevice(&raw mut device) {
                        0 => real::cuDeviceGetAttribute(&raw mut value, attribute, device),
                        result => result,
                    }
                }
            });
            asked.is_ok() && value == 1
        };
        has(UNIFIED_ADDRESSING) && has(REGISTERED_AT_HOST_ADDRESS)
    }

    /// Whether memory may be registered memory of the system.
    pub(crate) fn registers(&self) -> bool {
        self.threads.is_some() && self.kind.can_be_registered()
    }

    /// Takes registered memory of the system, aligned as chunks are so that the
    /// page map can hold it. Returns `None` if the driver has to allocate it.
    fn register(&self, size: Bytes) -> Option<Address> {
        let threads = self.threads.filter(|_| self.kind.can_be_registered())?;
        self.see_off();
        let stand_in = self.stand_in()?;
        let [size, align] = [size, CHUNK_ALIGN].map(|bytes| usize::try_from(bytes.get()).ok());
        let (size, align) = (size?, align?);
        told::alloc(|| registered::take(&self.context, size, align, stand_in, threads)).ok()
    }

    /// Whether registered memory is waiting to be given back.
    pub(crate) fn has_leaving(&self) -> bool {
        !self.leaving.lock().is_empty()
    }

    /// Gives back registered memory that the devices are done with. The driver
    /// waits in frees of its own memory, but need not when memory is
    /// unregistered; and a wait for all contexts here might never end.
    fn see_off(&self) {
        let leaving = std::mem::take(&mut *self.leaving.lock());
        for mut leaves in leaving {
            if leaves.fence.is_none() {
                leaves.fence = self.fence().ok();
            }
            let fence = leaves.fence.as_ref();
            if fence.is_some_and(|fence| self.reached(fence) == Ok(true)) {
                // No caller hears of a failure; the memory stays then.
                let _ = registered::give_back(&self.context, leaves.address);
            } else {
                self.leaving.lock().push(leaves);
            }
        }
    }

    fn take(&self, size: Bytes) -> Result<Address, Code> {
        let length = usize::try_from(size.get()).map_err(|_| Code::OUT_OF_MEMORY)?;
        let mut address: *mut c_void = ptr::null_mut();
        // SAFETY: writes the answer to a local.
        let take = || unsafe { self.kind.take(&raw mut address, length) };
        told::alloc(|| self.context.call(take))?;
        let address = Address::new(address.expose_provenance() as u64);
        whose::took(address, size, pools::context_at);
        Ok(address)
    }

    fn give_back(&self, address: Address) -> Result<(), Code> {
        let address = usize::try_from(address.get()).map_err(|_| Code::INVALID_VALUE)?;
        let address = ptr::with_exposed_provenance_mut(address);
        // SAFETY: what `take` returned; nobody uses it any more.
        let free = || unsafe { real::cuMemFreeHost(address) };
        told::free(|| self.context.call(free))
    }

    /// Takes a chunk of the driver's memory.
    fn take_chunk(&self, size: Bytes) -> Result<Address, Code> {
        if size <= LITTLE && !IS_KNOWN.swap(true, Ordering::Relaxed) {
            let chunk = self.cut(size)?;
            if self.has_cut(chunk) {
                IS_CUTTING.store(true, Ordering::Relaxed);
            }
            return Ok(chunk);
        }
        if !IS_CUTTING.load(Ordering::Relaxed) {
            let chunk = self.take(size)?;
            if chunk.is_aligned(CHUNK_ALIGN) {
                return Ok(chunk);
            }
            IS_CUTTING.store(true, Ordering::Relaxed);
            self.unwanted.lock().push(chunk);
        }
        self.cut(size)
    }

    /// Gives back what nobody wants, if a free may be made now; whether that was anything.
    /// Waits for all work, as any free does.
    pub(super) fn give_back_unwanted(&self) -> bool {
        let is_any = !self.unwanted.lock().is_empty();
        if !is_any || !self.may_give_back() {
            return false;
        }
        // Taken out: the lock is not held during the driver's frees.
        let mut unwanted = std::mem::take(&mut *self.unwanted.lock());
        let before = unwanted.len();
        unwanted.retain(|&address| self.give_back(address).is_err());
        let is_less = unwanted.len() < before;
        self.unwanted.lock().extend(unwanted);
        is_less
    }

    /// Calls `ask`. If memory is short while some waits to be given back, gives
    /// it back and calls `ask` once more: registered memory after a wait for the
    /// context's own work, as the driver's free would have waited.
    fn again_with_room(&self, ask: impl Fn() -> Result<Address, Code>) -> Result<Address, Code> {
        let asked = ask();
        if asked != Err(Code::OUT_OF_MEMORY) {
            return asked;
        }
        let last = self
            .leaving
            .lock()
            .last()
            .and_then(|last| last.fence.clone());
        let waits = last.is_some();
        if let Some(fence) = last {
            // If that fails the memory stays, as the second answer shows.
            let _ = self.wait(&fence, Whose::Own);
            self.see_off();
        }
        match self.give_back_unwanted() || waits {
            true => ask(),
            false => asked,
        }
    }

    /// Cuts an aligned chunk of `size` bytes out of a larger allocation.
    fn cut(&self, size: Bytes) -> Result<Address, Code> {
        let slack = CHUNK_ALIGN.saturating_sub(LEAST_ALIGN);
        let whole = self.take(size.saturating_add(slack))?;
        let aligned = Bytes::new(whole.get()).round_up(CHUNK_ALIGN);
        let chunk = Address::new(aligned.ok_or(Code::OUT_OF_MEMORY)?.get());
        if chunk != whole {
            self.cuts.lock().push(Cut { chunk, whole });
        }
        Ok(chunk)
    }
}

impl Mapping for HostDriver {}

impl Driver for HostDriver {
    type Fence = Fence;

    fn alloc(&self, size: Bytes) -> Result<Address, Code> {
        self.again_with_room(|| match self.register(size) {
            Some(address) => Ok(address),
            None => self.take(size),
        })
    }

    fn alloc_chunk(&self, size: Bytes) -> Result<Address, Code> {
        self.again_with_room(|| match self.register(size) {
            Some(chunk) => Ok(chunk),
            None => self.take_chunk(size),
        })
    }

    fn free(&self, address: Address) -> Result<(), Code> {
        if registered::begins_at(address) {
            let fence = self.fence().ok();
            self.leaving.lock().push(Leaving { address, fence });
            self.see_off();
            return Ok(());
        }
        self.give_back_unwanted();
        let cut = {
            let mut cuts = self.cuts.lock();
            let at = cuts.iter().position(|cut| cut.chunk == address);
            at.map(|at| cuts.swap_remove(at))
        };
        let whole = cut.as_ref().map_or(address, |cut| cut.whole);
        self.give_back(whole).inspect_err(|_| {
            self.cuts.lock().extend(cut);
        })
    }

    /// Memory of the host: a share of a device is a share of this here.
    fn mem_info(&self) -> Result<MemInfo, Code> {
        let total = vramalloc_core::host::memory().ok_or(Code::NOT_SUPPORTED)?;
        Ok(MemInfo { free: total, total })
    }

    fn may_fence(&self) -> bool {
        self.device.may_fence()
    }

    fn may_give_back(&self) -> bool {
        self.device.may_give_back()
    }

    fn is_alone(&self) -> bool {
        self.device.is_alone()
    }

    fn fence(&self) -> Result<Fence, Code> {
        self.device.fence()
    }

    fn reached(&self, fence: &Fence) -> Result<bool, Code> {
        self.device.reached(fence)
    }

    fn wait(&self, fence: &Fence, whose: Whose) -> Result<bool, Code> {
        self.device.wait(fence, whose)
    }

    fn fill(&self, address: Address, size: Bytes, byte: u8) -> Result<(), Code> {
        let number = |n: u64| usize::try_from(n).map_err(|_| Code::INVALID_VALUE);
        let (start, size) = (number(address.get())?, number(size.get())?);
        let start: *mut u8 = ptr::with_exposed_provenance_mut(start);
        // SAFETY: memory of the host that was not handed out yet.
        unsafe { start.write_bytes(byte, size) };
        Ok(())
    }

    fn synchronize(&self) -> Result<(), Code> {
        self.device.synchronize()
    }

    fn wait_by_free(&self, whose: Whose) -> Result<bool, Code> {
        self.device.wait_by_free(whose)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_a_number_of_its_own() {
        let kinds = (0..=FLAGS).filter_map(Kind::of_flags);
        let mut numbers: Vec<_> = kinds.chain([Kind::Plain]).map(Kind::index).collect();
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..Kind::COUNT));
        assert_eq!(Kind::of_flags(FLAGS + 1), None);
    }
}
