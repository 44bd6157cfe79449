"""Trains a small network while a stream of its own brings the batches, in
several threads at once where the word "threads" is given. Attention is left out:
over the simulated CUDA cuBLAS 10.2 refuses products of some of its shapes."""

import sys
import threading

import torch
from torch import nn

VOCABULARY = 997
STEPS = 10
THREADS = 3


def network():
    return nn.Sequential(
        nn.Embedding(VOCABULARY, 128), nn.LayerNorm(128), nn.Linear(128, 512), nn.GELU(),
        nn.Linear(512, 128), nn.Tanh(), nn.Linear(128, VOCABULARY),
    ).cuda()


def numbers(generator, *shape):
    return torch.randint(VOCABULARY, shape, generator=generator).pin_memory()


def free_while_written(generator, copying):
    """Lets go of memory that a copy still writes to, and takes as much again
    on another stream at once."""
    first, second = (numbers(generator, 1_000_000) for _ in range(2))
    with torch.cuda.stream(copying):
        gone = first.cuda(non_blocking=True)
        del gone
    kept = second.cuda(non_blocking=True)
    torch.cuda.synchronize()
    if not torch.equal(kept.cpu(), second):
        raise RuntimeError("a copy wrote to memory that was somebody else's by then")


def train(number, said):
    generator = torch.Generator().manual_seed(number)
    copying, computing = torch.cuda.Stream(), torch.cuda.current_stream()
    model = network()
    optimiser = torch.optim.AdamW(model.parameters())
    witnesses = []
    for step in range(STEPS):
        here = numbers(generator, 2 + step % 5, 17 + 8 * (step % 9))
        with torch.cuda.stream(copying):
            there = here.cuda(non_blocking=True)
            witnesses.append((here, here.cuda(non_blocking=True)))
        computing.wait_stream(copying)
        there.record_stream(computing)
        optimiser.zero_grad(set_to_none=True)
        logits = model(there[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), there[:, 1:].flatten())
        loss.backward()
        optimiser.step()
        said.append(f"thread {number}, step {step}: {list(logits.shape)}")
        free_while_written(generator, copying)
        if step % 4 == 3:
            torch.cuda.empty_cache()
    for before, after in witnesses:
        if not torch.equal(after.cpu(), before):
            raise RuntimeError(f"{before.numel()} numbers came back changed")
    said.append(f"thread {number} is done")


def main():
    torch.manual_seed(1)
    # CUDA is made ready by one thread.
    torch.zeros(1, device="cuda")
    count = THREADS if sys.argv[1:] == ["threads"] else 1
    said = [[] for _ in range(count)]
    threads = [threading.Thread(target=train, args=each) for each in enumerate(said)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    print("\n".join(line for lines in said for line in lines))
    if not all(lines and lines[-1].endswith("is done") for lines in said):
        raise RuntimeError("not every thread came to its end")
    if count == 1:
        print(sorted(torch.cuda.memory_stats().items()))


main()
