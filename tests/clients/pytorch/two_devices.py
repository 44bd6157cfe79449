"""A model whose halves live on two devices; backward runs in a thread for each."""

import torch
from model import Witness, say_counts
from torch import nn

STEPS = 10


def main():
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(2)
    first = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).to("cuda:0")
    second = nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 1024), nn.GELU()).to("cuda:1")
    optimiser = torch.optim.SGD([*first.parameters(), *second.parameters()], 0.1, momentum=0.9)
    for step in range(STEPS):
        data = torch.rand(16 + step, 256, generator=generator)
        optimiser.zero_grad()
        output = second(first(data.to("cuda:0")).to("cuda:1"))
        output.square().mean().backward()
        optimiser.step()
        print(f"step {step}: {list(output.shape)}")
        witness = Witness(generator, 40_000, "cuda:0")
        if not torch.equal(witness.there.to("cuda:1").cpu(), witness.here):
            raise RuntimeError("a tensor changed on its way from device to device")
        # Freed while the other device is current.
        with torch.cuda.device(1):
            del witness
    say_counts()


main()
