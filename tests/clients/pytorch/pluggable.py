"""Trains with a side stream, a graph and a request too large; with PLUGGABLE
set, on memory that this library hands to PyTorch's pluggable allocator."""

import ctypes
import os

import torch
from model import Model, Witness, batch, say, step_on
from torch.cuda.memory import CUDAPluggableAllocator, change_current_allocator

STEPS = 12
# Functions of the library and the methods that they are given to.
HOOKS = {
    "record_stream": "set_record_stream_fn",
    "empty_cache": "set_reset_fn",
    "begin_pool": "set_begin_allocate_to_pool",
    "end_pool": "set_end_allocate_to_pool_fn",
    "release_pool": "set_release_pool",
}


def plug_in(path, hooks):
    """Takes memory from the library of this path; hands on what it has for
    these events."""
    plugged = CUDAPluggableAllocator(path, "vramalloc_torch_malloc", "vramalloc_torch_free")
    library = ctypes.CDLL(path)
    library.vramalloc_torch_hook.restype = ctypes.c_void_p
    for name in hooks:
        getattr(plugged.allocator(), HOOKS[name])(library.vramalloc_torch_hook(name.encode()))
    change_current_allocator(plugged)


def beside(generator, copying, computing):
    """Uses a block of one stream on another, lets go of it while that goes on,
    and takes as much again."""
    data, other = (
        torch.randint(1 << 30, (500_000,), generator=generator).pin_memory() for _ in range(2)
    )
    back = torch.empty_like(data).pin_memory()
    delay = torch.empty(4_000_000, dtype=torch.int64, device="cuda")
    with torch.cuda.stream(copying):
        there = data.cuda(non_blocking=True)
    computing.wait_stream(copying)
    if not os.environ.get("PLUGGABLE_FORGETS"):
        there.record_stream(computing)
    for _ in range(5):
        delay = delay.clone()
    back.copy_(there, non_blocking=True)
    del there
    with torch.cuda.stream(copying):
        again = other.cuda(non_blocking=True)
    torch.cuda.synchronize()
    if not torch.equal(back, data) or not torch.equal(again.cpu(), other):
        raise RuntimeError("memory was handed out that another stream still read")


def replay(generator):
    """A graph whose memory must stay its own."""
    here = torch.randint(1 << 30, (70_000,), generator=generator)
    source = here.cuda()
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.graph(graph, stream=side):
        between = source.clone()
        for _ in range(4):
            between = between.clone()
    witnesses = [Witness(generator, 70_000) for _ in range(8)]
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        for witness in witnesses:
            witness.check()
        if not torch.equal(between.cpu(), here):
            raise RuntimeError("a graph's memory was somebody else's")
    del graph, between
    torch.cuda.synchronize()
    print("a graph was replayed")


def too_large():
    try:
        torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
    except (RuntimeError, MemoryError):
        print("a request too large raises")


def main():
    path = os.environ.get("PLUGGABLE")
    if path:
        plug_in(path, os.environ.get("PLUGGABLE_HOOKS", " ".join(HOOKS)).split())
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(2)
    model = Model().cuda()
    optimiser = torch.optim.AdamW(model.parameters())
    copying, computing = torch.cuda.Stream(), torch.cuda.current_stream()
    witnesses = [Witness(generator, 1000 + 7000 * i) for i in range(8)]
    for step in range(STEPS):
        with torch.cuda.stream(copying):
            ahead = [each.cuda(non_blocking=True) for each in batch(generator, step)]
        computing.wait_stream(copying)
        for each in ahead:
            each.record_stream(computing)
        print(f"step {step}: {step_on(model, optimiser, *ahead)}")
        del ahead
        beside(generator, copying, computing)
        witnesses[step % len(witnesses)].check()
        witnesses[step % len(witnesses)] = Witness(generator, 500 + 3000 * step)
    too_large()
    replay(generator)
    torch.cuda.empty_cache()
    for witness in witnesses:
        witness.check()
    state = {name: value.cpu() for name, value in model.state_dict().items()}
    print(f"{len(state)} parameters, {len(optimiser.state)} with a state")
    torch.cuda.synchronize()
    say("done", steps=STEPS)


main()
