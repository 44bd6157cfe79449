/*
 * PyTorch's allocator behind the names of gpu.h: its C++ interface in the
 * wheel's libc10_cuda.so, with no interpreter in the process. What is measured
 * beside the allocator is one direct call.
 */
#include "torch.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include <exception>

extern "C" int spin_kernel(gpu_stream stream, uint64_t ns);

namespace allocator = c10::cuda::CUDACachingAllocator;

extern "C" int gpu_set_device(int device) {
    if (!allocator::get()->initialized())
        allocator::init(1);
    return cudaSetDevice(device);
}

extern "C" int gpu_malloc(void **block, size_t size) {
    try {
        *block = allocator::raw_alloc(size);
        return GPU_SUCCESS;
    } catch (const c10::OutOfMemoryError &) {
        return GPU_OUT_OF_MEMORY;
    } catch (const std::exception &error) {
        fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}

extern "C" int gpu_free(void *block) {
    allocator::raw_delete(block);
    return GPU_SUCCESS;
}

extern "C" int gpu_sync(void) { return cudaStreamSynchronize(nullptr); }

extern "C" int gpu_spin(gpu_stream stream, uint64_t ns) {
    return spin_kernel(stream, ns);
}
