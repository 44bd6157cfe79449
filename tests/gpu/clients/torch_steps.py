"""Trains a model with PyTorch, the same in every run, and prints every bit.

    torch_steps.py transformer|cnn [--steps N] [--graph | --compile]

Losses and the sum of all parameters are printed as the numbers that they are,
not rounded; the last lines hold times, which differ, and what PyTorch's own cache
had reserved at most.
"""

import argparse
import hashlib
import os
import statistics
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH = 4000, 256, 4, 8, 128


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.layers(self.tokens(tokens))).flatten(0, 1)

    @staticmethod
    def batch(generator):
        tokens = torch.randint(VOCABULARY, (16, LENGTH), generator=generator)
        return tokens, tokens.roll(1, 1).flatten()


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        wide = [3, 32, 64, 128, 256]
        layers = []
        for before, after in zip(wide, wide[1:], strict=False):
            layers += [
                nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(),
                nn.Conv2d(after, after, 3, padding=1, bias=False),
                nn.ReLU(),
            ]
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 16, 100))

    def forward(self, images):
        return self.layers(images)

    @staticmethod
    def batch(generator):
        images = torch.rand((64, 3, 64, 64), generator=generator)
        return images, torch.randint(100, (64,), generator=generator)


def captured(step, inputs, targets):
    """The step as a graph; the first ones are run as they are."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(inputs, targets)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(inputs, targets)

    def replay(new_inputs, new_targets):
        inputs.copy_(new_inputs)
        targets.copy_(new_targets)
        graph.replay()
        return loss

    return replay


def digest(model):
    whole = hashlib.sha256()
    for name, value in model.state_dict().items():
        whole.update(name.encode())
        whole.update(value.detach().cpu().contiguous().numpy().tobytes())
    return whole.hexdigest()


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["transformer", "cnn"])
    parser.add_argument("--steps", type=int, default=12)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--graph", action="store_true")
    how.add_argument("--compile", action="store_true")
    return parser.parse_args()


def main():
    asked = arguments()
    torch.manual_seed(1)
    # What it does for that cannot all be captured.
    torch.use_deterministic_algorithms(not asked.graph, warn_only=True)
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cudnn.benchmark = False
    generator = torch.Generator().manual_seed(2)
    model = {"transformer": Transformer, "cnn": Cnn}[asked.model]().cuda()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=asked.graph)
    forward = torch.compile(model) if asked.compile else model

    def step(inputs, targets):
        # A graph's gradients stay where they are.
        optimiser.zero_grad(set_to_none=not asked.graph)
        loss = functional.cross_entropy(forward(inputs), targets)
        loss.backward()
        optimiser.step()
        return loss.detach()

    if asked.graph:
        inputs, targets = (each.cuda() for each in model.batch(generator))
        step = captured(step, inputs, targets)
    times = []
    for number in range(asked.steps):
        inputs, targets = (each.pin_memory() for each in model.batch(generator))
        torch.cuda.synchronize()
        begin = time.perf_counter()
        loss = step(inputs.cuda(non_blocking=True), targets.cuda(non_blocking=True))
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
        print(f"step {number}: {loss.item().hex()}")
    print(f"parameters {digest(model)}")
    # The first steps make things ready.
    settled = times[len(times) // 3 :]
    print(f"number step ms={1000 * statistics.median(settled):.3f}")
    print(f"number reserved bytes={torch.cuda.max_memory_reserved()}")


main()
