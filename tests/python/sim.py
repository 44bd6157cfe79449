"""CUDA's runtime in a program of Python, by ctypes alone."""

import ctypes

_runtime = ctypes.CDLL("libcudart.so.12")
MIB = 1 << 20


def malloc(size):
    """Memory, or the code of the error."""
    address = ctypes.c_void_p()
    code = _runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(size))
    return address if code == 0 else code


def get(size):
    """Memory; an exception if there is none, as a framework has it."""
    found = malloc(size)
    if isinstance(found, int):
        raise MemoryError(f"CUDA out of memory: {size} bytes ({found})")
    return found


def malloc_async(size):
    """Memory past the pool."""
    address = ctypes.c_void_p()
    code = _runtime.cudaMallocAsync(ctypes.byref(address), ctypes.c_size_t(size), None)
    return address if code == 0 else code


def malloc_managed(size):
    """Managed memory, which is past the pool too."""
    address = ctypes.c_void_p()
    code = _runtime.cudaMallocManaged(ctypes.byref(address), ctypes.c_size_t(size), 1)
    return address if code == 0 else code


def free(address):
    """Frees it."""
    code = _runtime.cudaFree(address)
    assert code == 0, code


def set_device(device):
    """Makes a device the current one."""
    code = _runtime.cudaSetDevice(device)
    assert code == 0, code


def reset():
    """Ends the context."""
    code = _runtime.cudaDeviceReset()
    assert code == 0, code
