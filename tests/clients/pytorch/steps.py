"""Trains a few steps and nothing else, so that most is live in the middle of one."""

import torch
from model import Model, batch, step_on

STEPS = 4


def main():
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(2)
    model = Model().cuda()
    optimiser = torch.optim.AdamW(model.parameters())
    for step in range(STEPS):
        tokens, targets = (each.cuda(non_blocking=True) for each in batch(generator, step))
        print(f"step {step}: {step_on(model, optimiser, tokens, targets)}")
    torch.cuda.synchronize()


main()
