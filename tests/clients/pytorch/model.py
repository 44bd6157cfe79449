"""A small language model and how it is trained: what the programs here share.

Over the simulated CUDA kernels do nothing, so that no number means anything:
nothing here looks at a loss. Copies are real, and what is copied is compared.
"""

import torch
from torch import nn

VOCABULARY = 997
WIDTH = 128
LAYERS = 2
HEADS = 4
LONGEST = 96


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(LONGEST, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.layers(self.tokens(tokens) + self.places(places)))


def loss_of(logits, targets):
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch(generator, step):
    """Tokens and targets in pinned memory; each step has a shape of its own."""
    rows, length = 2 + step % 5, 16 + 8 * (step % 9)
    both = torch.randint(VOCABULARY, (rows, length + 1), generator=generator)
    return both[:, :-1].contiguous().pin_memory(), both[:, 1:].contiguous().pin_memory()


def step_on(model, optimiser, tokens, targets):
    optimiser.zero_grad(set_to_none=True)
    logits = model(tokens)
    loss = loss_of(logits, targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    loss.item()
    return list(logits.shape)


class Witness:
    """A tensor that only copies write to: it must keep what it was given."""

    def __init__(self, generator, length, device="cuda"):
        self.here = torch.randint(1 << 30, (length,), generator=generator)
        self.there = self.here.to(device)

    def check(self):
        if not torch.equal(self.there.cpu(), self.here):
            raise RuntimeError(f"{self.here.numel()} numbers came back changed")


def say(what, **numbers):
    """One line of numbers that need not be the same from run to run."""
    words = [f"{name}={value}" for name, value in numbers.items()]
    print(f"number {what}", *words, flush=True)


def say_counts():
    """What PyTorch's own cache asked of CUDA, over all devices; zeros where it
    is off."""
    keys = ("num_device_alloc", "num_device_free", "num_alloc_retries", "num_ooms")
    stats = [torch.cuda.memory_stats(each) for each in range(torch.cuda.device_count())]
    say("counts", **{key: sum(each.get(key, 0) for each in stats) for key in keys})
