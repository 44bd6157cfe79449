"""Captures a training step into a graph and replays it."""

import torch
from model import Model, Witness, batch, loss_of, say_counts

STEPS = 6


def capture(model, optimiser, tokens, targets):
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            optimiser.zero_grad(set_to_none=True)
            loss_of(model(tokens), targets).backward()
            optimiser.step()
    torch.cuda.current_stream().wait_stream(side)
    optimiser.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        logits = model(tokens)
        loss_of(logits, targets).backward()
        optimiser.step()
    return graph, logits


def main():
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(2)
    model = Model().cuda()
    optimiser = torch.optim.AdamW(model.parameters(), capturable=True)
    tokens, targets = (each.cuda() for each in batch(generator, 3))
    graph, logits = capture(model, optimiser, tokens, targets)
    for step in range(STEPS):
        for place, data in zip((tokens, targets), batch(generator, 3), strict=True):
            place.copy_(data, non_blocking=True)
        witness = Witness(generator, 20_000 + 5000 * step)
        graph.replay()
        witness.check()
        print(f"step {step}: {list(logits.shape)}")
    del graph
    torch.cuda.synchronize()
    say_counts()


main()
