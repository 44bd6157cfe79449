"""A program on NVIDIA's own Python bindings of the driver API.

It knows nothing of an allocator: it allocates, copies, launches and frees as
any program does, compares what comes back, and prints what it did.
"""

import pathlib
import random
import sys
import threading

import numpy as np
from cuda.bindings import driver

ROUNDS = 200
THREADS = 4
KERNELS = pathlib.Path(__file__).parent.parent / "programs" / "kernels.ptx"

allocations = 0
copied = 0
counting = threading.Lock()


def ok(answer):
    """What a driver call gave beside its status, which must be success."""
    status, *values = answer
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"the driver answered {status}")
    return values[0] if len(values) == 1 else tuple(values)


def allocate(size):
    global allocations
    with counting:
        allocations += 1
    return ok(driver.cuMemAlloc(size))


def expect(address, data):
    """The device holds `data` at `address`."""
    global copied
    back = np.empty_like(data)
    ok(driver.cuMemcpyDtoH(back, address, data.nbytes))
    if not np.array_equal(back, data):
        raise RuntimeError(f"{data.nbytes} bytes at {int(address):#x} came back changed")
    with counting:
        copied += data.nbytes


def pattern(rng, size):
    return np.frombuffer(rng.randbytes(size), dtype=np.uint8)


def churn(seed, rounds):
    """Allocations of many sizes that live for a while, each with its data."""
    rng = random.Random(seed)
    held = []
    for _ in range(rounds):
        data = pattern(rng, rng.choice([1, 511, 512, 4096, 70_000, 1 << 20, 3 << 20]))
        address = allocate(data.nbytes)
        ok(driver.cuMemcpyHtoD(address, data, data.nbytes))
        held.append((address, data))
        if len(held) > 20:
            address, data = held.pop(rng.randrange(len(held)))
            expect(address, data)
            ok(driver.cuMemFree(address))
    for address, data in held:
        expect(address, data)
        ok(driver.cuMemFree(address))


def launch_fill(function, stream, address, value, count, ns):
    """Has the device write `count` words `value` to `address`, `ns` later."""
    values = [
        np.array([int(address)], dtype=np.uint64),
        np.array([value], dtype=np.uint32),
        np.array([count], dtype=np.uint64),
        np.array([ns], dtype=np.uint64),
    ]
    pointers = np.array([each.ctypes.data for each in values], dtype=np.uint64)
    ok(driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, pointers.ctypes.data, 0))


def fill_and_free(function):
    """A kernel still writes to a buffer that is freed; the next one of the
    same size must not be hurt by it."""
    count = 1 << 18
    stream = ok(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
    data = np.arange(count, dtype=np.uint32)
    for value in range(1, 11):
        first = allocate(4 * count)
        launch_fill(function, stream, first, value, count, 2_000_000)
        ok(driver.cuMemFree(first))
        second = allocate(4 * count)
        ok(driver.cuMemcpyHtoD(second, data, data.nbytes))
        ok(driver.cuStreamSynchronize(stream))
        expect(second, data)
        ok(driver.cuMemFree(second))
    filled = allocate(4 * count)
    launch_fill(function, stream, filled, 0xABCD, count, 1000)
    ok(driver.cuStreamSynchronize(stream))
    expect(filled, np.full(count, 0xABCD, dtype=np.uint32))
    ok(driver.cuMemFree(filled))
    ok(driver.cuStreamDestroy(stream))


def streams_and_events():
    stream = ok(driver.cuStreamCreate(0))
    first = ok(driver.cuEventCreate(0))
    second = ok(driver.cuEventCreate(0))
    data = pattern(random.Random(7), 1 << 16)
    back = np.empty_like(data)
    address = allocate(data.nbytes)
    ok(driver.cuEventRecord(first, stream))
    ok(driver.cuMemcpyHtoDAsync(address, data, data.nbytes, stream))
    ok(driver.cuMemcpyDtoHAsync(back, address, data.nbytes, stream))
    ok(driver.cuEventRecord(second, stream))
    ok(driver.cuEventSynchronize(second))
    if not np.array_equal(back, data):
        raise RuntimeError("an asynchronous copy came back changed")
    if ok(driver.cuEventElapsedTime(first, second)) < 0:
        raise RuntimeError("time runs backwards")
    ok(driver.cuMemFree(address))
    for event in (first, second):
        ok(driver.cuEventDestroy(event))
    ok(driver.cuStreamDestroy(stream))


def churn_in_thread(context, seed, errors):
    try:
        ok(driver.cuCtxSetCurrent(context))
        churn(seed, ROUNDS)
    except Exception as error:
        errors.append(error)


def churn_in_threads(context):
    errors = []
    threads = [
        threading.Thread(target=churn_in_thread, args=(context, seed, errors))
        for seed in range(2, 2 + THREADS)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    if errors:
        raise errors[0]


def main():
    ok(driver.cuInit(0))
    device = ok(driver.cuDeviceGet(0))
    context = ok(driver.cuDevicePrimaryCtxRetain(device))
    ok(driver.cuCtxSetCurrent(context))
    free, total = ok(driver.cuMemGetInfo())
    print(f"total {total}, free within it: {0 < free <= total}")

    churn(1, ROUNDS)
    module = ok(driver.cuModuleLoadData(KERNELS.read_bytes() + b"\0"))
    fill_and_free(ok(driver.cuModuleGetFunction(module, b"fill")))
    streams_and_events()
    churn_in_threads(context)

    print(f"nothing asked: {driver.cuMemAlloc(0)[0].name}")
    print(f"too much asked: {driver.cuMemAlloc(1 << 60)[0].name}")
    ok(driver.cuCtxSynchronize())
    ok(driver.cuModuleUnload(module))
    print(f"allocations {allocations}, bytes compared {copied}")
    sys.stdout.flush()
    ok(driver.cuDevicePrimaryCtxRelease(device))


main()
