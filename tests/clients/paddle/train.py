"""Trains a small network with Paddle, moves tensors there and back, and prints
what Paddle makes of its memory."""

import numpy as np
import paddle

STEPS = 8


def figures(when):
    cuda = paddle.device.cuda
    asked = (cuda.memory_allocated, cuda.max_memory_allocated, cuda.memory_reserved)
    numbers = [function() for function in (*asked, cuda.max_memory_reserved)]
    print(f"{when}: allocated, at most, reserved, at most: {numbers}")


class Witness:
    """A tensor that only copies write to: it must keep what it was given."""

    def __init__(self, generator, length):
        self.here = generator.integers(1 << 30, size=length)
        self.there = paddle.to_tensor(self.here)

    def check(self):
        if not (self.there.numpy() == self.here).all():
            raise RuntimeError(f"{len(self.here)} numbers came back changed")


def there_and_back(generator):
    for length in (1, 100, 4097, 300_000, 5_000_000, 30_000_000):
        Witness(generator, length).check()
    host = generator.random(100_000)
    pinned = paddle.to_tensor(host, place=paddle.CUDAPinnedPlace())
    if not (pinned.cuda(blocking=False).numpy() == host).all():
        raise RuntimeError("page-locked memory came back changed")


def train(generator):
    network = paddle.nn.Sequential(
        paddle.nn.Linear(256, 512), paddle.nn.ReLU(), paddle.nn.Linear(512, 64)
    )
    optimiser = paddle.optimizer.Adam(parameters=network.parameters())
    witnesses = []
    for step in range(STEPS):
        data = paddle.to_tensor(generator.random((16 + 8 * step, 256)).astype("float32"))
        output = network(data)
        output.mean().backward()
        optimiser.step()
        optimiser.clear_grad()
        witnesses.append(Witness(generator, 40_000 * (1 + step % 3)))
        if step % 3 == 2:
            witnesses.pop(0).check()
            paddle.device.cuda.empty_cache()
        print(f"step {step}: {output.shape}")
        figures(f"step {step}")
    for each in witnesses:
        each.check()


def main():
    paddle.seed(1)
    generator = np.random.default_rng(2)
    for device in ("gpu:0", "gpu:1"):
        paddle.device.set_device(device)
        there_and_back(generator)
        figures(device)
        train(generator)
    paddle.device.cuda.synchronize()
    figures("end")


main()
