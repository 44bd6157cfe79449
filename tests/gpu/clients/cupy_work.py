"""Works with CuPy arrays, the same in every run, and prints every bit.

cupy_work.py pool|plain [ROUNDS]

`plain`: without CuPy's own pools, each array is an allocation of CUDA's.
"""

import statistics
import sys
import time

import cupy
import numpy as np

ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 30


def bits(value):
    return float(value).hex()


def churn(rng, number):
    count = 1000 << (number % 11)
    data = rng.integers(0, 1 << 30, count, dtype=np.int64)
    here = cupy.asarray(data)
    if not np.array_equal(cupy.asnumpy(here), data):
        raise RuntimeError(f"{count} numbers came back changed")
    mixed = (here * 31 + cupy.roll(here, 7)) % 1_000_003
    order = cupy.argsort(mixed)
    return int(mixed.sum()), int(order[count // 2]), int(cupy.unique(mixed % 997).size)


def numbers(rng):
    left = cupy.asarray(rng.standard_normal((700, 500), dtype=np.float32))
    right = cupy.asarray(rng.standard_normal((500, 300), dtype=np.float32))
    product = left @ right
    wave = cupy.fft.rfft(left.ravel()[:65536])
    return bits(product.sum()), bits(abs(wave).max())


def streams(rng):
    """Arrays that one stream makes and lets go of while another works."""
    total = 0
    made = [cupy.cuda.Stream(non_blocking=True) for _ in range(4)]
    for number in range(40):
        with made[number % 4]:
            data = cupy.asarray(rng.integers(0, 1000, 100_000, dtype=np.int64))
            total += int((data * data).sum())
            del data
    return total


def main():
    if sys.argv[1] == "plain":
        cupy.cuda.set_allocator(None)
        cupy.cuda.set_pinned_memory_allocator(None)
    rng = np.random.default_rng(1)
    times = []
    for number in range(ROUNDS):
        begin = time.perf_counter()
        found = churn(rng, number)
        times.append(time.perf_counter() - begin)
        print(f"round {number}:", *found)
    print("numbers:", *numbers(rng))
    print("streams:", streams(rng))
    print(f"number step ms={1000 * statistics.median(times[ROUNDS // 3 :]):.3f}")


main()
