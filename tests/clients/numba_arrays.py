"""A Numba program: device arrays, copies, a compiled kernel, streams, events.

It knows nothing of an allocator. The kernel reads arrays and writes to one
whose contents are not looked at, so that the program also passes where
kernels do nothing.
"""

import random

import numpy as np
from numba import cuda

ROUNDS = 200


@cuda.jit
def add(left, right, result):
    i = cuda.grid(1)
    if i < result.size:
        result[i] = left[i] + right[i]


def expect(device_array, data):
    if not np.array_equal(device_array.copy_to_host(), data):
        raise RuntimeError(f"{data.nbytes} bytes came back changed")


def churn():
    """Arrays of many sizes that live for a while, each with its data."""
    rng = random.Random(1)
    held = []
    compared = 0
    for _ in range(ROUNDS):
        count = rng.choice([1, 100, 1000, 65_536, 300_000])
        data = np.arange(count, dtype=np.float64) + rng.random()
        held.append((cuda.to_device(data), data))
        if len(held) > 20:
            array, data = held.pop(rng.randrange(len(held)))
            expect(array, data)
            compared += data.nbytes
    for array, data in held:
        expect(array, data)
        compared += data.nbytes
    return compared


def kernels():
    """Launches with temporary arrays that go while their kernel may run."""
    data = np.arange(10_000, dtype=np.float32)
    left, right = cuda.to_device(data), cuda.to_device(2 * data)
    for _ in range(20):
        result = cuda.device_array(10_000, np.float32)
        add[512, 256](left, right, result)
        del result
    cuda.synchronize()
    expect(left, data)
    expect(right, 2 * data)


def streams():
    stream = cuda.stream()
    begin, end = cuda.event(), cuda.event()
    pinned = cuda.pinned_array(4096, dtype=np.int32)
    pinned[:] = np.arange(4096)
    begin.record(stream)
    array = cuda.to_device(pinned, stream=stream)
    back = np.zeros_like(pinned)
    array.copy_to_host(back, stream=stream)
    end.record(stream)
    end.synchronize()
    if not np.array_equal(back, pinned):
        raise RuntimeError("an asynchronous copy came back changed")
    if cuda.event_elapsed_time(begin, end) < 0:
        raise RuntimeError("time runs backwards")
    mapped = cuda.mapped_array(100, dtype=np.int32)
    mapped[:] = 7
    copy = cuda.device_array_like(array)
    copy.copy_to_device(array)
    expect(copy, np.asarray(pinned))


def main():
    memory = cuda.current_context().get_memory_info()
    print(f"total {memory.total}, free within it: {0 < memory.free <= memory.total}")
    print(f"bytes compared {churn()}")
    kernels()
    streams()
    cuda.synchronize()
    manager = cuda.current_context().memory_manager
    manager.deallocations.clear()
    print(f"arrays left {len(manager.allocations)}")


main()
