"""Fills tensors from the host, has the library pause the device's memory and resume
it, and copies them back; preloaded alone."""

import ctypes
import hashlib

import torch

TENSORS = 200
SEED = 2026


class Paused(ctypes.Structure):
    """The header's vramalloc_paused."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("bytes", ctypes.c_uint64),
        ("copied", ctypes.c_uint64),
        ("stays_plain", ctypes.c_uint64),
        ("stays_exported", ctypes.c_uint64),
        ("stays_refused", ctypes.c_uint64),
        ("is_paused", ctypes.c_int),
    ]


def moved(function, *flags):
    """Calls one of the two functions for all memory of the current device."""
    paused = Paused(struct_size=ctypes.sizeof(Paused))
    result = function(-1, None, *flags, ctypes.byref(paused))
    if result:
        raise RuntimeError(f"the library answers {result}")
    return paused


def checksum(tensor):
    return hashlib.sha256(tensor.numpy().tobytes()).hexdigest()


def used():
    available, total = torch.cuda.mem_get_info()
    return total - available


def main():
    library = ctypes.CDLL(None)
    generator = torch.Generator().manual_seed(SEED)
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    torch.cuda.empty_cache()
    before = used()
    sizes = torch.randint(1, 400_000, (TENSORS,), generator=generator).tolist()
    sums, tensors = [], []
    for size in sizes:
        here = torch.randint(1 << 30, (size,), generator=generator, dtype=torch.int32)
        sums.append(checksum(here))
        tensors.append(here.cuda())
    torch.cuda.synchronize()
    filled = used() - before
    for cycle in range(3):
        gone = moved(library.vramalloc_pause)
        left = max(used() - before, 0)
        is_free = left <= filled * 0.05 and gone.is_paused == 1
        print(f"cycle {cycle}: 95 % of it is free: {is_free}")
        print(f"number paused left={left} filled={filled} copied={gone.copied}")
        back = moved(library.vramalloc_resume, 0)
        print(f"all of it is back: {back.copied == gone.copied and not back.is_paused}")
        same = sum(checksum(there.cpu()) == one for there, one in zip(tensors, sums, strict=True))
        print(f"checksums that are equal: {same} of {TENSORS}")
        # Memory that is taken afterwards is good, too.
        copy = tensors[cycle].clone()
        print(f"a copy is equal: {checksum(copy.cpu()) == sums[cycle]}")


main()
