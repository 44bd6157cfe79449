"""Trains on after having run out of memory, which Python is told of."""

import torch
from model import Model, Witness, batch, say, say_counts, step_on

STEPS = 4
MIB = 1 << 20


def take_too_much():
    """Fills the device until it can give no more; what it held is let go."""
    held = []
    try:
        for _ in range(10_000):
            held.append(torch.empty(16 * MIB, dtype=torch.uint8, device="cuda"))
    except RuntimeError as error:
        # With its cache off PyTorch has no class of its own for this error.
        print(f"{type(error).__name__}, out of memory: {'out of memory' in str(error)}")
        say("held", tensors=len(held))
        return
    raise RuntimeError("the device never ran out of memory")


def main():
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(2)
    model = Model().cuda()
    optimiser = torch.optim.AdamW(model.parameters())
    witness = Witness(generator, 100_000)
    for turn in range(3):
        for step in range(STEPS):
            tokens, targets = (each.cuda(non_blocking=True) for each in batch(generator, step))
            print(f"turn {turn}, step {step}: {step_on(model, optimiser, tokens, targets)}")
        take_too_much()
        witness.check()
    say_counts()


main()
