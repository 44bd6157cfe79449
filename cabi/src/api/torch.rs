//! Memory for PyTorch, with the prototypes of its `CUDAPluggableAllocator`.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use spin::mutex::SpinMutex;
use vramalloc_core::patience::Brief;
use vramalloc_core::{Bytes, Code};

use super::streams::vramalloc_stream;
use super::{pointer, serve};
use crate::linker::resolve;
use crate::pools::lanes::{self, Uses};
use crate::pools::memory::free_anywhere;
use crate::pools::{background, device, pageable, places};

/// Whether PyTorch tells us of `record_stream`. Relaxed: a request that comes
/// at the same moment is served as before.
static TELLS_USES: AtomicBool = AtomicBool::new(false);

/// Allocates memory for a tensor that is used on `stream` of the device with
/// this ordinal. Fits as the first function of
/// `torch.cuda.memory.CUDAPluggableAllocator`.
///
/// PyTorch tells an allocator of `Tensor.record_stream` only if it was given a
/// function for that. Until `vramalloc_torch_hook` is asked for that function,
/// memory comes as from `vramalloc_malloc`, which is safe with any number of
/// streams; from then on as from `vramalloc_malloc_on_stream`, which is faster
/// and needs no preload. While the stream captures a graph, memory is kept for
/// the graph in both cases, as `vramalloc_malloc_on_stream` says.
///
/// PyTorch does not check whether it got memory. So if there is none, this
/// function throws std::bad_alloc, which becomes an exception of Python, if the
/// C++ library is in the process; else it returns null. For 0 bytes it returns
/// null too.
///
/// May be called when `vramalloc_malloc` may.
///
/// The caller promises that the stream is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn vramalloc_torch_malloc(
    size: isize,
    device: c_int,
    stream: vramalloc_stream,
) -> *mut c_void {
    if size == 0 {
        return ptr::null_mut();
    }
    let memory = allocate(size, device, stream);
    if memory.is_null() {
        throw_bad_alloc();
    }
    memory
}

fn allocate(size: isize, device: c_int, stream: vramalloc_stream) -> *mut c_void {
    let served = serve(|| {
        let size = u64::try_from(size).map_err(|_| Code::INVALID_VALUE)?;
        let uses = if TELLS_USES.load(Ordering::Relaxed) {
            Uses::Recorded
        } else {
            Uses::Unknown
        };
        let pool = places::pool(Some(device))?;
        let shared = pool_of_captures(device);
        let block = lanes::allocate(pool, stream.cast(), Bytes::new(size), uses, shared)?;
        pointer(block)
    });
    served.unwrap_or(ptr::null_mut())
}

/// Throws C++'s `std::bad_alloc`, if the process has that.
fn throw_bad_alloc() {
    static THROW: AtomicUsize = AtomicUsize::new(0);
    /// `std::__throw_bad_alloc()` of the GNU C++ library.
    const NAME: &CStr = c"_ZSt17__throw_bad_allocv";
    let mut address = THROW.load(Ordering::Relaxed);
    if address == 0 {
        let Some(found) = resolve::function_of(b"libstdc++.so", NAME) else {
            return;
        };
        address = found;
        THROW.store(address, Ordering::Relaxed);
    }
    // SAFETY: the function of that name, which takes nothing. It unwinds through
    // this frame and that of the exported function, which hold nothing that
    // would have to be dropped.
    unsafe { std::mem::transmute::<usize, extern "C-unwind" fn()>(address)() }
}

/// Frees memory of `vramalloc_torch_malloc`. Fits as the second function of
/// `torch.cuda.memory.CUDAPluggableAllocator`. All but the address is ignored;
/// for null it does nothing.
///
/// May be called when `vramalloc_free` may.
///
/// The caller promises that nothing which comes after the call uses the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramalloc_torch_free(
    address: *mut c_void,
    _size: isize,
    _device: c_int,
    _stream: vramalloc_stream,
) {
    if !address.is_null() {
        // PyTorch has no way to hear of a failure.
        let _ = serve(|| Ok(free_anywhere(address.addr())?));
    }
}

/// A further function for PyTorch's allocator object, by its name. Returns the
/// address for the method in the second column, or null for any other name.
///
/// | name | method | what it does |
/// |---|---|---|
/// | `record_stream` | `set_record_stream_fn` | `vramalloc_record_stream`; asking for it is the promise that the method is called |
/// | `empty_cache` | `set_reset_fn` | `vramalloc_empty_cache` on all devices |
/// | `begin_pool` | `set_begin_allocate_to_pool` | captures that follow share memory, as PyTorch's graphs with one pool do |
/// | `end_pool` | `set_end_allocate_to_pool_fn` | they no longer do |
/// | `release_pool` | `set_release_pool` | the memory of a pool is free when all its graphs are gone |
///
/// May be called at any time but from a signal handler.
///
/// The caller promises that `name`, if it is not null, ends in zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramalloc_torch_hook(name: *const c_char) -> *mut c_void {
    if name.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the caller's promise.
    let function = match unsafe { CStr::from_ptr(name) }.to_bytes() {
        b"record_stream" => {
            TELLS_USES.store(true, Ordering::Relaxed);
            record_stream as *const ()
        }
        b"empty_cache" => empty_cache as *const (),
        b"begin_pool" => begin_pool as *const (),
        b"end_pool" => end_pool as *const (),
        b"release_pool" => release_pool as *const (),
        _ => return ptr::null_mut(),
    };
    function.cast_mut().cast()
}

unsafe extern "C" fn record_stream(address: *mut c_void, stream: vramalloc_stream) {
    let _ = serve(|| Ok(lanes::record(address.addr() as u64, stream.cast())?));
}

extern "C" fn empty_cache() {
    let _ = serve(|| {
        background::finish();
        for pool in device::pools() {
            pool.trim();
        }
        pageable::trim();
        Ok(())
    });
}

/// A pool of PyTorch, in which graphs share memory.
struct Pool {
    /// The number that takes the place of the captures' numbers.
    number: u64,
    /// Graphs that were captured in it and are not gone.
    graphs: u64,
    /// Captures in it that are under way.
    open: u64,
}

/// A pool's name: the device and PyTorch's two numbers.
type Name = (c_int, u64, u64);

static POOLS: SpinMutex<BTreeMap<Name, Pool>, Brief> = SpinMutex::new(BTreeMap::new());

/// Pools are numbered from here, and CUDA's captures from the bottom.
const FIRST_POOL: u64 = 1 << 63;

/// The number of the pool in which captures on a device allocate now.
fn pool_of_captures(device: c_int) -> Option<u64> {
    let pools = POOLS.lock();
    let mut open = pools
        .iter()
        .filter(|((of, ..), pool)| *of == device && pool.open > 0);
    open.next().map(|(_, pool)| pool.number)
}

/// PyTorch's pair of numbers comes in two registers, and by reference its
/// function that says which streams are meant: captures tell that better.
extern "C" fn begin_pool(device: c_int, first: u64, second: u64, _streams: *mut c_void) {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(FIRST_POOL);
    let mut pools = POOLS.lock();
    let pool = pools
        .entry((device, first, second))
        .or_insert_with(|| Pool {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            graphs: 0,
            open: 0,
        });
    pool.graphs += 1;
    pool.open += 1;
}

extern "C" fn end_pool(device: c_int, first: u64, second: u64) {
    if let Some(pool) = POOLS.lock().get_mut(&(device, first, second)) {
        pool.open = pool.open.saturating_sub(1);
    }
}

extern "C" fn release_pool(device: c_int, first: u64, second: u64) {
    let gone = {
        let mut pools = POOLS.lock();
        let Some(pool) = pools.get_mut(&(device, first, second)) else {
            return;
        };
        pool.graphs = pool.graphs.saturating_sub(1);
        if pool.graphs > 0 {
            return;
        }
        let number = pool.number;
        pools.remove(&(device, first, second));
        number
    };
    let _ = serve(|| {
        lanes::release_captures(device, |number| number == gone);
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(name: &CStr) -> *mut c_void {
        // SAFETY: a text that ends in zero.
        unsafe { vramalloc_torch_hook(name.as_ptr()) }
    }

    #[test]
    fn hooks_go_by_their_names() {
        for name in [c"empty_cache", c"begin_pool", c"end_pool", c"release_pool"] {
            assert!(!hook(name).is_null(), "{name:?}");
        }
        assert!(!TELLS_USES.load(Ordering::Relaxed));
        assert!(!hook(c"record_stream").is_null());
        assert!(TELLS_USES.load(Ordering::Relaxed));
        assert!(hook(c"records_stream").is_null());
        // SAFETY: null is allowed.
        assert!(unsafe { vramalloc_torch_hook(ptr::null()) }.is_null());
    }

    #[test]
    fn a_pool_is_open_while_something_is_captured_in_it() {
        let device = 97;
        assert_eq!(pool_of_captures(device), None);
        begin_pool(device, 0, 5, ptr::null_mut());
        let number = pool_of_captures(device);
        assert!(number.is_some_and(|number| number >= FIRST_POOL));
        assert_eq!(pool_of_captures(device + 1), None);
        end_pool(device, 0, 5);
        assert_eq!(pool_of_captures(device), None);
        // A second graph in the same pool.
        begin_pool(device, 0, 5, ptr::null_mut());
        assert_eq!(pool_of_captures(device), number);
        end_pool(device, 0, 5);
        release_pool(device, 0, 5);
        assert!(POOLS.lock().contains_key(&(device, 0, 5)));
        release_pool(device, 0, 5);
        assert!(!POOLS.lock().contains_key(&(device, 0, 5)));
        release_pool(device, 0, 5);
    }
}
