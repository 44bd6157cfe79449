"""CUDA's runtime, for the programs beside."""

import ctypes

_runtime = ctypes.CDLL("libcudart.so.12")
MIB = 1 << 20


def malloc(size):
    """Memory; an exception if there is none."""
    block = ctypes.c_void_p()
    code = _runtime.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(size))
    if code:
        raise MemoryError(f"CUDA: {code}")
    return block


def free(block):
    """Frees it."""
    assert _runtime.cudaFree(block) == 0
