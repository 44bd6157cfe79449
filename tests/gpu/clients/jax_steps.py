"""Trains a small network with JAX, the same in every run, and prints every bit.

jax_steps.py [STEPS]
"""

import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 12
SIZES = [256, 1024, 1024, 64]


def parameters(rng):
    return [
        (
            jnp.asarray(rng.standard_normal((a, b), dtype=np.float32) / np.sqrt(a)),
            jnp.zeros(b, jnp.float32),
        )
        for a, b in zip(SIZES, SIZES[1:], strict=False)
    ]


def loss_of(weights, inputs, targets):
    for matrix, offset in weights[:-1]:
        inputs = jax.nn.relu(inputs @ matrix + offset)
    matrix, offset = weights[-1]
    return jnp.mean((inputs @ matrix + offset - targets) ** 2)


@jax.jit
def step(weights, inputs, targets):
    loss, slopes = jax.value_and_grad(loss_of)(weights, inputs, targets)
    return loss, jax.tree.map(lambda value, slope: value - 0.01 * slope, weights, slopes)


def main():
    if jax.default_backend() != "gpu":
        raise SystemExit("JAX has no GPU here")
    rng = np.random.default_rng(1)
    weights = parameters(rng)
    times = []
    for number in range(STEPS):
        # Batches of changing sizes, so that memory comes and goes.
        rows = 64 * (1 + number % 4)
        inputs = jnp.asarray(rng.standard_normal((rows, SIZES[0]), dtype=np.float32))
        targets = jnp.asarray(rng.standard_normal((rows, SIZES[-1]), dtype=np.float32))
        begin = time.perf_counter()
        loss, weights = step(weights, inputs, targets)
        loss.block_until_ready()
        times.append(time.perf_counter() - begin)
        # Without a compiled whole: each operation takes memory of its own.
        loose = jnp.sort(inputs, axis=0)[rows // 2] + jnp.cumsum(inputs, axis=0)[-1]
        print(f"step {number}: {float(loss).hex()}, {float(loose.sum()).hex()}")
    total = sum(
        int(np.asarray(each).view(np.uint32).astype(np.uint64).sum())
        for pair in weights
        for each in pair
    )
    print(f"parameters {total}")
    print(f"number step ms={1000 * statistics.median(times[STEPS // 3 :]):.3f}")


main()
