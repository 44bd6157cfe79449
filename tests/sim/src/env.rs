//! The environment variables that shape the simulation.
//!
//! | variable | default | meaning |
//! |---|---|---|
//! | `SIM_CUDA_DEVICES` | 2 | devices |
//! | `SIM_CUDA_MEMORY` | `16G` | memory of each device; K, M, G |
//! | `SIM_CUDA_CONTEXT_SIZE` | 0 | what each context takes of its device, in whole pages of 2 MiB |
//! | `SIM_CUDA_HARD_LIMIT` | | how much of each device this process may use, managed memory apart, as the kernel would limit it; all of it where nothing is said |
//! | `SIM_CUDA_SOFT_LIMIT` | 0 | the limit that the simulated NVML tells beside it |
//! | `SIM_CUDA_HOST_MEMORY` | | how much host memory can be page-locked; all of it where nothing is said |
//! | `SIM_CUDA_HOST_ALIGN` | `4K` | how page-locked memory is aligned, and no better; a power of two |
//! | `SIM_CUDA_HOST_PACKED` | 0 | 1: page-locked memory below 64 MiB is packed together, and all of it says the flags of what came first |
//! | `SIM_CUDA_POOL_GRAIN` | `32M` | pools of stream-ordered memory reserve multiples of this; whole pages of 2 MiB |
//! | `SIM_CUDA_SEED` | 1 | seed of the clock's jitter |
//! | `SIM_CUDA_KERNEL_NS` | 1000 | simulated time of a kernel without a meaning |
//! | `SIM_CUDA_CALL_NS` | 1000 | simulated time of a driver call |
//! | `SIM_CUDA_NAP_NS` | 0 | simulated time that passes, until the event at the most, where an event is asked for again and the device was given nothing in between: a program that waits so sleeps, and the device goes on |
//! | `SIM_CUDA_CAPABILITY` | `9.0` | the devices' compute capability |
//! | `SIM_CUDA_VERSION` | 13000 | the driver's version |
//! | `SIM_CUDA_LACKS` | | names of functions that this driver is to lack |
//! | `SIM_CUDA_FAULT` | | `name:n:code,…`: the n-th call of it fails so; with `:sticky` behind it, the current context is broken from then on |
//! | `SIM_CUDA_SLOW` | | `name:ns,…`: calls of it take so much real time more |
//! | `SIM_CUDA_QUEUE` | | how much work and how many marks a context has room for before a call waits for the oldest; any number where nothing is said |
//! | `SIM_CUDA_STRICT` | 0 | 1: unordered work on the same bytes is a violation |
//! | `SIM_CUDA_NO_VMM` | 0 | 1: there is no virtual memory |
//! | `SIM_CUDA_WSL` | 0 | 1: access to virtual memory that other hardware may use is refused, as under WSL2 |
//! | `SIM_CUDA_MAP_OFFSETS` | 0 | 1: a mapping can begin inside physical memory |
//! | `SIM_CUDA_UNMAP_ONE` | 0 | 1: a call takes away one mapping, and no several side by side |
//! | `SIM_CUDA_STRICT_MAPPING` | 0 | 1: while a stream captures, memory is created and mapped, and devices let in, by threads in the relaxed mode alone; 0: in every mode, as the thread that captured did on an H200 |
//! | `SIM_CUDA_NO_UNMAP_IN_CAPTURE` | 0 | 1: no mapping is taken away while a stream captures, in no mode; 0: in every mode, as the thread that captured did on an H200 |
//! | `SIM_CUDA_MAPPINGS` | | the most mappings at a time; any number where nothing is said |
//! | `SIM_CUDA_ORPHANS` | 0 | 1: what a destroyed stream still does orders with no other stream |
//! | `SIM_CUDA_LATE` | 0 | 1: the driver serves until the process is gone, as runtimes up to 11.6 expect that end contexts at exit; 0: until its exit handlers ran |
//! | `SIM_CUDA_SETS_LATE` | 0 | 1: `cudaSetDevice` of the thin runtime leaves it to the next call to make that device's context current, as NVIDIA tells of the initialisation before 12 (10.2 was seen to make it current at once) |
//! | `SIM_CUDA_NARROW_FREES` | 0 | 1: a free waits for the memory's device and for the current context, and for nobody else who uses it |
//! | `SIM_CUDA_VERBOSE` | 0 | 1: name the functions asked for that are not there |
//! | `SIM_CUDA_REPORT` | | file for the report at exit; `%p` is the process |
//!
//! A value that cannot be read counts as not given, with one line on standard
//! error. The variables are read once per process; those for faults and lacks,
//! once per driver function.

use std::time::Duration;

use vramalloc_core::Bytes;

/// The settings of the environment.
#[derive(Clone, Debug)]
pub(crate) struct Environment {
    pub(crate) devices: u32,
    pub(crate) memory: Bytes,
    pub(crate) context_size: Bytes,
    pub(crate) hard_limit: Bytes,
    pub(crate) host_memory: Bytes,
    pub(crate) host_align: Bytes,
    pub(crate) host_packed: bool,
    pub(crate) pool_grain: Bytes,
    pub(crate) seed: u64,
    pub(crate) kernel_ns: u64,
    pub(crate) call_ns: u64,
    pub(crate) nap_ns: u64,
    pub(crate) queue: usize,
    pub(crate) strict: bool,
    pub(crate) orphans: bool,
    pub(crate) narrow_frees: bool,
    pub(crate) no_vmm: bool,
    pub(crate) wsl: bool,
    pub(crate) map_offsets: bool,
    pub(crate) unmap_one: bool,
    pub(crate) strict_mapping: bool,
    pub(crate) no_unmap_in_capture: bool,
    pub(crate) mappings: usize,
    pub(crate) version: i32,
    /// The devices' compute capability, both numbers.
    pub(crate) capability: (i32, i32),
}

impl Environment {
    pub(crate) fn read() -> Environment {
        Environment {
            devices: number("SIM_CUDA_DEVICES", 2),
            memory: size("SIM_CUDA_MEMORY", Bytes::gib(16)),
            context_size: pages(size("SIM_CUDA_CONTEXT_SIZE", Bytes::ZERO)),
            hard_limit: size("SIM_CUDA_HARD_LIMIT", Bytes::MAX),
            host_memory: size("SIM_CUDA_HOST_MEMORY", Bytes::MAX),
            host_align: host_align(),
            host_packed: flag("SIM_CUDA_HOST_PACKED"),
            pool_grain: pages(size("SIM_CUDA_POOL_GRAIN", Bytes::mib(32)).max(Bytes::mib(2))),
            seed: number("SIM_CUDA_SEED", 1),
            kernel_ns: number("SIM_CUDA_KERNEL_NS", 1_000),
            call_ns: number("SIM_CUDA_CALL_NS", 1_000),
            nap_ns: number("SIM_CUDA_NAP_NS", 0),
            queue: number("SIM_CUDA_QUEUE", usize::MAX),
            strict: flag("SIM_CUDA_STRICT"),
            orphans: flag("SIM_CUDA_ORPHANS"),
            narrow_frees: flag("SIM_CUDA_NARROW_FREES"),
            no_vmm: flag("SIM_CUDA_NO_VMM"),
            wsl: flag("SIM_CUDA_WSL"),
            map_offsets: flag("SIM_CUDA_MAP_OFFSETS"),
            unmap_one: flag("SIM_CUDA_UNMAP_ONE"),
            strict_mapping: flag("SIM_CUDA_STRICT_MAPPING"),
            no_unmap_in_capture: flag("SIM_CUDA_NO_UNMAP_IN_CAPTURE"),
            mappings: number("SIM_CUDA_MAPPINGS", usize::MAX),
            version: version(),
            capability: capability(),
        }
    }
}

fn capability() -> (i32, i32) {
    let text = std::env::var("SIM_CUDA_CAPABILITY").unwrap_or_default();
    let parts = text.split_once('.');
    let numbers = parts.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    numbers.unwrap_or((9, 0))
}

/// At least the size of the host's pages.
fn host_align() -> Bytes {
    let page = Bytes::kib(4);
    let asked = size("SIM_CUDA_HOST_ALIGN", page);
    if asked.get().is_power_of_two() {
        asked.max(page)
    } else {
        page
    }
}

/// In whole pages of a device.
fn pages(asked: Bytes) -> Bytes {
    asked.round_up(Bytes::mib(2)).unwrap_or(asked)
}

pub(crate) fn version() -> i32 {
    number("SIM_CUDA_VERSION", 13_000)
}

pub(crate) fn flag(name: &str) -> bool {
    std::env::var(name).is_ok_and(|v| v == "1")
}

/// Whether this driver is to lack the function.
pub(crate) fn lacks(function: &str) -> bool {
    std::env::var("SIM_CUDA_LACKS").is_ok_and(|l| l.split(',').any(|n| n.trim() == function))
}

/// A call that is to fail.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    /// Which call of the function; 1 is the first.
    pub(crate) n: u64,
    pub(crate) code: u32,
    /// Whether it breaks the current context.
    pub(crate) sticky: bool,
}

/// The calls of the function that are to fail.
pub(crate) fn faults(function: &str) -> Vec<Fault> {
    std::env::var("SIM_CUDA_FAULT").map_or_else(|_| Vec::new(), |l| faults_in(&l, function))
}

fn faults_in(list: &str, function: &str) -> Vec<Fault> {
    list.split(',')
        .filter_map(|fault| {
            let mut parts = fault.trim().split(':');
            let named = parts.next() == Some(function);
            let n = parts.next()?.parse().ok()?;
            let code = parts.next()?.parse().ok()?;
            let sticky = parts.next() == Some("sticky");
            named.then_some(Fault { n, code, sticky })
        })
        .collect()
}

/// How much longer a call of the function takes, in real time.
pub(crate) fn slowness(function: &str) -> Option<Duration> {
    let list = std::env::var("SIM_CUDA_SLOW").ok()?;
    let mut pairs = list
        .split(',')
        .filter_map(|pair| pair.trim().split_once(':'));
    let (_, ns) = pairs.find(|&(name, _)| name == function)?;
    ns.parse().ok().map(Duration::from_nanos)
}

fn number<T: std::str::FromStr>(name: &str, default: T) -> T {
    let Ok(text) = std::env::var(name) else {
        return default;
    };
    text.trim().parse().unwrap_or_else(|_| {
        eprintln!("simulated CUDA: {name}={text} is no number; it is ignored");
        default
    })
}

fn size(name: &str, default: Bytes) -> Bytes {
    let Ok(text) = std::env::var(name) else {
        return default;
    };
    parse_size(text.trim()).unwrap_or_else(|| {
        eprintln!("simulated CUDA: {name}={text} is no size (such as 512M); it is ignored");
        default
    })
}

fn parse_size(text: &str) -> Option<Bytes> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().ok()?;
    match text.get(digits.len()..)?.to_ascii_uppercase().as_str() {
        "" => Some(Bytes::new(number)),
        "K" => Some(Bytes::kib(number)),
        "M" => Some(Bytes::mib(number)),
        "G" => Some(Bytes::gib(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_those_of_the_function() {
        let list =
            "cuMemFree_v2:1:700, cuMemAlloc_v2:3:2,cuMemAlloc_v2:x:2,cuMemAlloc_v2:5:700:sticky";
        let fault = |n, code, sticky| Fault { n, code, sticky };
        assert_eq!(
            faults_in(list, "cuMemAlloc_v2"),
            [fault(3, 2, false), fault(5, 700, true)]
        );
        assert_eq!(faults_in(list, "cuInit"), []);
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("16G"), Some(Bytes::gib(16)));
        assert_eq!(parse_size("100"), Some(Bytes::new(100)));
        assert_eq!(parse_size("3x"), None);
        assert_eq!(parse_size(""), None);
    }
}
