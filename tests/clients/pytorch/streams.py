"""Copies on a stream of its own while another one trains."""

import torch
from model import Model, Witness, batch, say_counts, step_on

STEPS = 12


def free_while_written(generator, copying):
    """Lets go of memory that a copy still writes to, and takes as much again
    on another stream at once."""
    first, second = (
        torch.randint(1 << 30, (1_000_000,), generator=generator).pin_memory() for _ in range(2)
    )
    with torch.cuda.stream(copying):
        gone = first.cuda(non_blocking=True)
        del gone
    kept = second.cuda(non_blocking=True)
    torch.cuda.synchronize()
    if not torch.equal(kept.cpu(), second):
        raise RuntimeError("a copy wrote to memory that was somebody else's by then")


def main():
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(2)
    model = Model().cuda()
    optimiser = torch.optim.AdamW(model.parameters())
    copying, computing = torch.cuda.Stream(), torch.cuda.current_stream()
    for step in range(STEPS):
        with torch.cuda.stream(copying):
            ahead = [each.cuda(non_blocking=True) for each in batch(generator, step)]
            witness = Witness(generator, 50_000)
            scratch = torch.zeros(300_000, device="cuda")
        computing.wait_stream(copying)
        for each in ahead:
            each.record_stream(computing)
        scratch.add_(1)
        scratch.record_stream(computing)
        del scratch
        print(f"step {step}: {step_on(model, optimiser, *ahead)}")
        witness.check()
        free_while_written(generator, copying)
    torch.cuda.synchronize()
    say_counts()


main()
