"""Hands tensors to another process, which reads them and writes one back."""

import torch
import torch.multiprocessing as processes
from model import say_counts

ROUNDS = 6


def other(inbox, outbox):
    while True:
        received = inbox.get()
        if received is None:
            return
        tensor, copy = received
        good = torch.equal(tensor.cpu(), copy)
        tensor.copy_(copy.flip(0))
        torch.cuda.synchronize()
        del tensor
        outbox.put(good)


def main():
    generator = torch.Generator().manual_seed(2)
    context = processes.get_context("spawn")
    outbox, inbox = context.Queue(), context.Queue()
    process = context.Process(target=other, args=(outbox, inbox))
    process.start()
    for turn in range(ROUNDS):
        copy = torch.randint(1 << 30, (5000 << turn,), generator=generator)
        around = [torch.full((1000,), 7, dtype=torch.int32).cuda() for _ in range(3)]
        tensor = copy.cuda()
        outbox.put((tensor, copy))
        arrived = inbox.get()
        returned = torch.equal(tensor.cpu(), copy.flip(0))
        same = all(bool((each.cpu() == 7).all()) for each in around)
        print(f"turn {turn}: arrived {arrived}, returned {returned}, others whole {same}")
        del tensor
    outbox.put(None)
    process.join()
    # What was lent has come back: without this PyTorch would find out among the
    # exit handlers, where CUDA is gone.
    torch.cuda.ipc_collect()
    print(f"the other process ended with {process.exitcode}")
    say_counts()


if __name__ == "__main__":
    main()
