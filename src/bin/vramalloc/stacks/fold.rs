//! Which places of a call stack say nothing of who asked for memory.
//!
//! They are known by their names, which are those of the released frameworks; a
//! name that is not listed is shown.

use super::place::{Place, PlaceKind};

/// The starts of the names of allocators' functions.
const ALLOCATORS: [&str; 25] = [
    "BFCAllocator::",
    "at::detail::_empty_",
    "at::detail::empty_",
    "c10::Allocator::",
    "c10::CachingDeviceAllocator",
    "c10::cuda::CUDACachingAllocator::",
    "c10::cuda::MemPool",
    "cub::CachingDeviceAllocator",
    "cuMemAlloc",
    "cuMemCreate",
    "cudaHostAlloc",
    "cudaMalloc",
    "cudart::",
    "paddle::memory::",
    "phi::DeviceContext::Alloc",
    "phi::memory_utils::",
    "rmm::device_buffer::",
    "rmm::mr::",
    "stream_executor::",
    "thrust::",
    "torch::cuda::CUDAPluggableAllocator::",
    "tsl::BFCAllocator::",
    "tsl::DeviceMemAllocator",
    "xla::se::",
    "xla::TfAllocatorAdapter::",
];

/// Parts of the names of functions that make a pool grow which the framework
/// keeps itself.
pub(super) const POOLS: [&str; 1] = ["::DeviceCachingAllocator::"];

/// The starts of the names of files that are a runtime of CUDA.
const RUNTIMES: [&str; 4] = ["libcuda.so", "libcudart", "libsimcuda", "libsimcudart"];

/// The starts of the names of functions between callers and what they call.
const PLUMBING: [&str; 25] = [
    "_PyEval_",
    "_PyObject_",
    "_dl_",
    "_start",
    "__clone",
    "__libc_start_",
    "c10::BoxedKernel",
    "c10::Dispatcher::",
    "c10::KernelFunction::",
    "c10::OperatorHandle",
    "c10::TypedOperatorHandle",
    "c10::callUnboxedKernelFunction",
    "c10::impl::",
    "c10::intrusive_ptr",
    "c10::make_intrusive",
    "clone",
    "execute_native_thread_routine",
    "ffi_call",
    "pybind11::cpp_function::",
    "start_thread",
    "std::_Function_handler",
    "std::__invoke",
    "std::function",
    "std::invoke",
    "torch::autograd::VariableType::",
];

/// What a place in a file of the program is, by the file's name and the
/// function's.
pub(super) fn kind(file: &str, function: &str) -> PlaceKind {
    let begins = |text: &str, with: &[&str]| with.iter().any(|start| text.starts_with(start));
    if file.starts_with("libvramalloc") {
        PlaceKind::Own
    } else if begins(file, &RUNTIMES) || begins(function, &ALLOCATORS) {
        PlaceKind::Allocator
    } else if file.starts_with("libpython")
        || begins(function, &PLUMBING)
        // Steps of an operator that stands in the stack itself.
        || function.starts_with("at::_ops::") && function.ends_with("::redispatch")
        || function.starts_with("at::") && function.contains("::wrapper_")
    {
        PlaceKind::Plumbing
    } else {
        PlaceKind::Native
    }
}

/// Whether a Python function only calls another for its caller.
pub(super) fn is_python_plumbing(file: &str, function: &str) -> bool {
    let calls = matches!(function, "_call_impl" | "_wrapped_call_impl");
    calls && file.ends_with("torch/nn/modules/module.py")
}

/// The places that say who asked: Python's if there are any, else the
/// program's; if all belong to allocators, the one that was called by the
/// program.
pub(super) fn folded(places: Vec<&Place>) -> Vec<&Place> {
    let of = |kind| {
        let of_kind = places.iter().filter(move |place| place.kind == kind);
        of_kind.copied().collect::<Vec<_>>()
    };
    for kind in [PlaceKind::Python, PlaceKind::Native] {
        let told = of(kind);
        if !told.is_empty() {
            return told;
        }
    }
    let last = |kind| of(kind).pop();
    let told = last(PlaceKind::Allocator).or_else(|| last(PlaceKind::Plumbing));
    match told {
        Some(told) => vec![told],
        None => places,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn native(file: &str, name: &str) -> Place {
        Place::native(&file.into(), 0, Some(name), &[]).remove(0)
    }

    fn told(places: &[Place]) -> Vec<String> {
        folded(places.iter().collect())
            .iter()
            .map(|place| place.text())
            .collect()
    }

    #[test]
    fn who_asked_is_told() {
        let grows = "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc";
        let mut places = vec![
            native("/x/libvramalloc.so", "cudaMalloc"),
            native("/x/libc10_cuda.so", grows),
            native("/x/libtorch_cuda.so", "at::native::empty_cuda"),
            native("/x/libtorch_cpu.so", "c10::Dispatcher::call<int>"),
            native("/x/libtorch_cpu.so", "at::_ops::empty::redispatch"),
            native("/x/libtorch_cpu.so", "at::_ops::empty::call"),
        ];
        assert_eq!(
            told(&places),
            ["at::native::empty_cuda", "at::_ops::empty::call"]
        );
        assert!(places[1].is_of_a_pool() && !places[2].is_of_a_pool());
        places.push(Place::python(
            "/a/torch/nn/modules/module.py",
            3,
            "_call_impl",
        ));
        places.push(Place::python("/a/train.py", 41, "forward"));
        assert_eq!(told(&places), ["train.py:41 forward"]);
        assert_eq!(told(&places[..2]), [grows]);
        assert_eq!(told(&places[..1]), ["cudaMalloc"]);
        assert_eq!(told(&[]), [""; 0]);
    }
}
