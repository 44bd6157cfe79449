"""Prints all that PyTorch counts of its memory, while tensors come and go on
two streams of two devices, and an allocation fails."""

import torch

SIZES = (1, 4000, 300_000, 1_100_000, 5_000_000, 30_000_000)


def figures(when):
    for device in range(torch.cuda.device_count()):
        counts = torch.cuda.memory_stats(device)
        print(when, device, sorted((key, value) for key, value in counts.items() if value))


def fill(generator):
    held = []
    for size in SIZES:
        here = torch.randint(1 << 30, (size // 4 + 1,), generator=generator, dtype=torch.int32)
        held.append((here, here.pin_memory().to("cuda", non_blocking=True)))
    return held


def main():
    generator = torch.Generator().manual_seed(1)
    for device in range(torch.cuda.device_count()):
        with torch.cuda.device(device):
            held = fill(generator)
            figures("filled")
            with torch.cuda.stream(torch.cuda.Stream()):
                beside = fill(generator)
                del held[::2]
                figures("with a stream")
            torch.cuda.synchronize()
            for here, there in (*held, *beside):
                if not torch.equal(there.cpu(), here):
                    raise RuntimeError(f"{here.numel()} numbers came back changed")
            del held, beside
            figures("given back")
            torch.cuda.empty_cache()
            figures("emptied")
            try:
                torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
                raise RuntimeError("memory without end")
            except RuntimeError as error:
                if "out of memory" not in str(error):
                    raise
            figures("refused")


main()
