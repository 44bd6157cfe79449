"""Trains a small model with batches of changing shape, and asks after memory."""

import torch
from model import Model, Witness, batch, say_counts, step_on

STEPS = 20


def ask_memory():
    free, total = torch.cuda.mem_get_info()
    if not 0 < free <= total:
        raise RuntimeError(f"{free} bytes free of {total}")
    held = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    less, same = torch.cuda.mem_get_info()
    if free - less < held.nbytes or same != total:
        raise RuntimeError(f"{free - less} bytes fewer for a tensor of {held.nbytes}")
    print(f"memory asked after, total {total}")


def copy_there_and_back():
    generator = torch.Generator().manual_seed(3)
    for length in (1, 100, 4097, 1_000_003):
        for kind in (torch.uint8, torch.float32, torch.float64):
            data = torch.rand(length, generator=generator).mul(255).to(kind)
            if not torch.equal(data.cuda().clone().cpu(), data):
                raise RuntimeError(f"{length} of {kind} came back changed")
    print("copies came back as they went")


def main():
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(2)
    ask_memory()
    copy_there_and_back()
    model = Model().cuda()
    optimiser = torch.optim.AdamW(model.parameters())
    witnesses = [Witness(generator, 1000 + 7000 * i) for i in range(8)]
    for step in range(STEPS):
        tokens, targets = (each.cuda(non_blocking=True) for each in batch(generator, step))
        shape = step_on(model, optimiser, tokens, targets)
        print(f"step {step}: {shape}")
        if step % 6 == 5:
            torch.cuda.empty_cache()
        witnesses[step % len(witnesses)].check()
        witnesses[step % len(witnesses)] = Witness(generator, 500 + 3000 * step)
    state = {name: value.cpu() for name, value in model.state_dict().items()}
    print(f"{len(state)} parameters, {len(optimiser.state)} with a state")
    for witness in witnesses:
        witness.check()
    torch.cuda.synchronize()
    say_counts()


main()
