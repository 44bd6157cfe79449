"""Collectives of NCCL in one thread, while another takes and frees memory that
kernels still use; of one rank, so that one device is enough."""

import hashlib
import os
import tempfile
import threading

import torch
import torch.distributed as collectives

ROUNDS, WORDS = 300, 1 << 18


def churn(over, counts):
    """Each tensor is freed while the kernel that fills it runs or waits."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        while not over.is_set():
            for size in (1000, 1 << 16, 1 << 20, 3 << 20):
                torch.full((size,), 7, dtype=torch.int32, device="cuda")
                counts[0] += 1


def main():
    torch.cuda.set_device(0)
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{os.path.join(folder, 'store')}"
        collectives.init_process_group("nccl", init_method=store, rank=0, world_size=1)
        over, counts = threading.Event(), [0]
        other = threading.Thread(target=churn, args=(over, counts))
        other.start()
        whole = hashlib.sha256()
        for turn in range(ROUNDS):
            given = torch.arange(WORDS, dtype=torch.int32, device="cuda") * (turn + 1)
            gathered = torch.empty_like(given)
            collectives.all_gather_into_tensor(gathered, given)
            collectives.all_reduce(given)
            collectives.broadcast(gathered, 0)
            same = bool((given == gathered).all())
            whole.update(gathered[:: WORDS // 64].cpu().numpy().tobytes())
            if not same:
                print(f"round {turn}: they differ")
        over.set()
        other.join()
        collectives.destroy_process_group()
    print(f"rounds {ROUNDS}, sum {whole.hexdigest()}, beside others: {counts[0] > 0}")


main()
