"""Moves arrays there and back with CuPy, on streams of its own and from
page-locked memory, compiles kernels, and prints what its pools count. With the
word "unpooled" CuPy asks CUDA for every array."""

import sys

import cupy
import numpy

ROUNDS = 12


def figures(when):
    device, host = cupy.get_default_memory_pool(), cupy.get_default_pinned_memory_pool()
    counts = (device.used_bytes(), device.free_bytes(), device.total_bytes(), device.n_free_blocks())
    print(f"{when}: used, free, total, free blocks: {counts}; of the host: {host.n_free_blocks()}")


def pinned(generator, length):
    """So many numbers in page-locked memory."""
    memory = cupy.cuda.alloc_pinned_memory(8 * length)
    numbers = numpy.frombuffer(memory, numpy.int64, length)
    numbers[:] = generator.integers(1 << 30, size=length)
    return numbers


def same(there, here):
    if not (cupy.asnumpy(there) == here).all():
        raise RuntimeError(f"{len(here)} numbers came back changed")


def on(stream, generator, round_):
    """Copies that the next round on another stream must not get in the way of."""
    lengths = [1 + 50_000 * ((round_ + i) % 5) for i in range(4)]
    heres = [pinned(generator, length) for length in lengths]
    with stream:
        theres = []
        for here in heres:
            there = cupy.empty(len(here), numpy.int64)
            there.set(here, stream)
            theres.append(there)
            # Freed while a copy may still write to it.
            gone = cupy.empty(len(here), numpy.int64)
            gone.set(here, stream)
            del gone
        stream.synchronize()
        for there, here in zip(theres, heres):
            same(there, here)


def main():
    if sys.argv[1:] == ["unpooled"]:
        cupy.cuda.set_allocator(None)
        cupy.cuda.set_pinned_memory_allocator(None)
    generator = numpy.random.default_rng(1)
    double = cupy.ElementwiseKernel("float32 x", "float32 y", "y = 2 * x", "twice")
    for device in range(cupy.cuda.runtime.getDeviceCount()):
        with cupy.cuda.Device(device):
            streams = [cupy.cuda.Stream(non_blocking=each) for each in (True, True, False)]
            for length in (1, 1000, 300_000, 20_000_000):
                here = generator.random(length)
                same(cupy.asarray(here), here)
            figures(f"device {device}, copied")
            for round_ in range(ROUNDS):
                on(streams[round_ % len(streams)], generator, round_)
                double(cupy.ones(1000 * (1 + round_), numpy.float32))
                figures(f"device {device}, round {round_}")
            cupy.cuda.Device().synchronize()
            cupy.get_default_memory_pool().free_all_blocks()
            figures(f"device {device}, emptied")


main()
