"""Holds GPU memory as a training does, for who wants to see the report of it.

Needs nothing but the CUDA runtime, which may be the simulated one.
"""

import ctypes

cuda = ctypes.CDLL("libcudart.so.12")


def tensor(mib):
    block = ctypes.c_void_p()
    if cuda.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(mib << 20)) != 0:
        raise MemoryError(f"{mib} MiB")
    return block


def weights():
    return [tensor(256), tensor(256)]


def forward(layers):
    kept = []
    for _ in range(layers):
        kept.append(tensor(100))
    return kept


def main():
    held = weights()
    for layers in (4, 12):
        for block in forward(layers):
            cuda.cudaFree(block)
    return held


if __name__ == "__main__":
    main()
