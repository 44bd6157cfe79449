"""Runs kernels of Numba over arrays, the same in every run, and prints sums.

numba_work.py [ROUNDS]
"""

import statistics
import sys
import time

import numpy as np

# Releases of numba-cuda name it which do not refuse a NumPy that has it no more.
if not hasattr(np, "row_stack"):
    np.row_stack = np.vstack

from numba import cuda

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 60


@cuda.jit
def mix(left, right, result):
    i = cuda.grid(1)
    if i < result.size:
        result[i] = (left[i] * 31 + right[i]) % 1_000_003


def one_round(rng, number):
    count = 1000 + 4099 * (number % 40)
    left, right = (rng.integers(0, 1 << 20, count, dtype=np.int64) for _ in range(2))
    there = cuda.to_device(left), cuda.to_device(right)
    result = cuda.device_array(count, np.int64)
    for _ in range(5):
        # What the kernel reads is let go of while it may run.
        other = cuda.device_array(count, np.int64)
        mix[(count + 255) // 256, 256](there[0], there[1], other)
        mix[(count + 255) // 256, 256](other, there[1], result)
        del other
    expected = ((left * 31 + right) % 1_000_003 * 31 + right) % 1_000_003
    if not np.array_equal(result.copy_to_host(), expected):
        raise RuntimeError(f"{count} numbers are wrong")
    return int(expected.sum())


def streams(rng):
    total = 0
    made = [cuda.stream() for _ in range(4)]
    for number in range(40):
        stream = made[number % 4]
        data = cuda.pinned_array(50_000, dtype=np.int64)
        data[:] = rng.integers(0, 1000, 50_000)
        there = cuda.to_device(data, stream=stream)
        result = cuda.device_array(50_000, np.int64, stream=stream)
        mix[200, 256, stream](there, there, result)
        del there
        total += int(result.copy_to_host(stream=stream).sum())
    return total


def main():
    rng = np.random.default_rng(1)
    times = []
    for number in range(ROUNDS):
        begin = time.perf_counter()
        total = one_round(rng, number)
        times.append(time.perf_counter() - begin)
        print(f"round {number}: {total}")
    print("streams:", streams(rng))
    print(f"number step ms={1000 * statistics.median(times[ROUNDS // 3 :]):.3f}")


main()
