//! Virtual memory: `cuMemCreate`, and what is mapped at reserved addresses.
//!
//! Memory lives as long as a handle of it was not released, or a mapping of it
//! is left. It counts on the device that the request names, not on the current
//! one; memory of the host, and memory that another process made, counts
//! nothing.
//!
//! Owns what is known of each memory, its handles and its mappings; its lock is
//! taken alone. Cost: a few searches in ordered maps for each call.

use std::collections::BTreeMap;

use spin::mutex::SpinMutex;
use vramalloc_core::Bytes;
use vramalloc_core::library::LibraryId;
use vramalloc_core::patience::Brief;
use vramalloc_core::stats::Family;

use super::{imports, put_back, relief, settled, take};
use crate::driver::devices::{self, Device};
use crate::owners;
use crate::process::guard::own_call;
use crate::types::{CUdevice, CUdeviceptr, CudaResult, MemHandle};

/// How much memory counts on which device, and which library asked for it.
#[derive(Copy, Clone)]
struct Counted {
    device: &'static Device,
    size: Bytes,
    library: LibraryId,
}

/// What the driver was asked for.
struct Memory {
    /// Where it counts; `None` if it does not.
    counts: Option<Counted>,
    /// How often its handles have to be released.
    references: u64,
    mappings: u64,
    /// Its handles in the book; as a rule one.
    handles: Vec<MemHandle>,
}

struct Mapping {
    size: u64,
    memory: u64,
}

struct Book {
    /// The number of the next memory.
    next: u64,
    memories: BTreeMap<u64, Memory>,
    /// The memory of each handle.
    handles: BTreeMap<MemHandle, u64>,
    /// By the first address.
    mappings: BTreeMap<CUdeviceptr, Mapping>,
}

static BOOK: SpinMutex<Book, Brief> = SpinMutex::new(Book {
    next: 0,
    memories: BTreeMap::new(),
    handles: BTreeMap::new(),
    mappings: BTreeMap::new(),
});

impl Book {
    fn enter(&mut self, handle: MemHandle, counts: Option<Counted>) {
        let number = self.next;
        self.next += 1;
        let memory = Memory {
            counts,
            references: 1,
            mappings: 0,
            handles: Vec::new(),
        };
        self.memories.insert(number, memory);
        self.name(number, handle);
    }

    /// Notes that a handle is this memory's.
    fn name(&mut self, number: u64, handle: MemHandle) {
        if let Some(memory) = self.memories.get_mut(&number)
            && self.handles.insert(handle, number) != Some(number)
        {
            memory.handles.push(handle);
        }
    }

    /// Forgets the handles of a memory: the driver may give them to another.
    fn forget_handles(&mut self, number: u64) {
        let memory = self.memories.get_mut(&number);
        let handles = memory.map(|memory| std::mem::take(&mut memory.handles));
        for handle in handles.into_iter().flatten() {
            if self.handles.get(&handle) == Some(&number) {
                self.handles.remove(&handle);
            }
        }
    }

    /// Changes what is known of a memory. If nothing refers to it any more, it
    /// is taken out.
    fn change(&mut self, number: u64, change: impl FnOnce(&mut Memory)) -> Option<Memory> {
        let memory = self.memories.get_mut(&number)?;
        change(memory);
        if memory.references > 0 || memory.mappings > 0 {
            return None;
        }
        self.memories.remove(&number)
    }

    /// The memory that is mapped at an address.
    fn mapped_at(&self, address: CUdeviceptr) -> Option<u64> {
        let (start, mapping) = self.mappings.range(..=address).next_back()?;
        (address - start < mapping.size).then_some(mapping.memory)
    }
}

/// Makes memory on a device by `call`; its handle is at `made`. `None`: it is
/// not a device's.
pub(crate) fn create(
    device: Option<CUdevice>,
    size: usize,
    call: impl FnMut() -> CudaResult,
    made: impl FnOnce() -> MemHandle,
) -> CudaResult {
    let size = Bytes::new(size as u64);
    let counts = device.and_then(devices::named).map(|device| Counted {
        device,
        size,
        library: owners::current(),
    });
    let result = match counts {
        Some(counted) => take(counted.device, Family::Virtual, size, call),
        None => own_call(call),
    };
    if result == 0 {
        BOOK.lock().enter(made(), counts);
    }
    result
}

/// Notes memory that another process made.
pub(crate) fn imported(handle: MemHandle) {
    imports::note(imports::Way::Virtual, Bytes::ZERO);
    let mut book = BOOK.lock();
    match book.handles.get(&handle).copied() {
        // This process made it itself.
        Some(number) => drop(book.change(number, |memory| memory.references += 1)),
        None => book.enter(handle, None),
    }
}

/// Releases a handle by `call`.
pub(crate) fn release(handle: MemHandle, call: impl FnOnce() -> CudaResult) -> Option<CudaResult> {
    let number = {
        let mut book = BOOK.lock();
        let number = *book.handles.get(&handle)?;
        if book.memories.get(&number)?.references == 1 {
            book.forget_handles(number);
        }
        number
    };
    let result = own_call(call);
    let last = {
        let mut book = BOOK.lock();
        if result != 0 {
            book.name(number, handle);
            return Some(result);
        }
        if (book.memories.get(&number)).is_some_and(|memory| memory.references == 1) {
            book.forget_handles(number);
        }
        book.change(number, |memory| memory.references -= 1)
    };
    gone(last);
    Some(result)
}

/// Adds a user of what is mapped at an address; `made` finds the handle.
pub(crate) fn retained(address: u64, made: MemHandle) {
    let mut book = BOOK.lock();
    if let Some(number) = book.mapped_at(address) {
        book.change(number, |memory| memory.references += 1);
        book.name(number, made);
    }
}

/// Maps memory by `call`.
pub(crate) fn map(
    address: CUdeviceptr,
    size: usize,
    handle: MemHandle,
    mut call: impl FnMut() -> CudaResult,
) -> CudaResult {
    let counted = {
        let book = BOOK.lock();
        let number = book.handles.get(&handle);
        let memory = number.and_then(|number| book.memories.get(number));
        memory.and_then(|memory| memory.counts)
    };
    let result = relief::with_room(counted.map(|counted| counted.device.handle), &mut call);
    if result == 0 {
        let mut book = BOOK.lock();
        if let Some(&memory) = book.handles.get(&handle) {
            let size = size as u64;
            book.change(memory, |memory| memory.mappings += 1);
            book.mappings.insert(address, Mapping { size, memory });
        }
    }
    result
}

/// Takes a range of addresses away from what is mapped there, by `call`.
pub(crate) fn unmap(
    address: CUdeviceptr,
    size: usize,
    call: impl FnOnce() -> CudaResult,
) -> CudaResult {
    let end = address.saturating_add(size as u64);
    // The memory itself stays in the book until the call has succeeded.
    let taken: Vec<(u64, Mapping)> = {
        let mut book = BOOK.lock();
        let starts: Vec<u64> = (book.mappings.range(address..end))
            .map(|(start, _)| *start)
            .collect();
        (starts.into_iter())
            .filter_map(|start| book.mappings.remove_entry(&start))
            .collect()
    };
    let result = own_call(call);
    let mut ended = Vec::new();
    {
        let mut book = BOOK.lock();
        for (start, mapping) in taken {
            if result == 0 {
                let last = book.change(mapping.memory, |memory| memory.mappings -= 1);
                ended.extend(last);
            } else {
                book.mappings.insert(start, mapping);
            }
        }
    }
    ended.into_iter().for_each(|memory| gone(Some(memory)));
    result
}

/// The driver took memory back.
fn gone(memory: Option<Memory>) {
    if let Some(counted) = memory.and_then(|memory| memory.counts) {
        let Counted {
            device,
            size,
            library,
        } = counted;
        put_back(device, Family::Virtual, size, library);
        settled();
    }
}
