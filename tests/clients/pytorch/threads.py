"""Trains in several threads at once, each with a model and a stream, and ends
those threads while what they made lives on."""

import threading

import torch
from model import Model, Witness, batch, say_counts, step_on

THREADS = 3
STEPS = 8


def train(number, results):
    generator = torch.Generator().manual_seed(number)
    with torch.cuda.stream(torch.cuda.Stream()):
        model = Model().cuda()
        optimiser = torch.optim.AdamW(model.parameters())
        shapes, witnesses = [], []
        for step in range(STEPS):
            tokens, targets = (each.cuda(non_blocking=True) for each in batch(generator, step))
            shapes.append(step_on(model, optimiser, tokens, targets))
            witnesses.append(Witness(generator, 30_000 * (1 + step % 3)))
            if step % 2:
                witnesses.pop(0).check()
        torch.cuda.current_stream().synchronize()
    results[number] = (shapes, witnesses, model)


def main():
    torch.manual_seed(1)
    # CUDA is made ready by one thread.
    torch.zeros(1, device="cuda")
    for turn in range(2):
        results = {}
        threads = [threading.Thread(target=train, args=(n, results)) for n in range(THREADS)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        if len(results) != THREADS:
            raise RuntimeError(f"{THREADS - len(results)} threads failed")
        for number, (shapes, witnesses, _model) in sorted(results.items()):
            for witness in witnesses:
                witness.check()
            print(f"turn {turn}, thread {number}: {shapes}")
        del results, witnesses, _model
    say_counts()


main()
