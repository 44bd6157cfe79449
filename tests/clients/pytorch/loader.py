"""Trains on what worker processes load: forks of a process that uses CUDA."""

import torch
from model import LONGEST, VOCABULARY, Model, say_counts, step_on
from torch.utils.data import DataLoader, Dataset

ITEMS = 48


class Texts(Dataset):
    def __len__(self):
        return ITEMS

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randint(VOCABULARY, (LONGEST + 1,), generator=generator)


def main():
    torch.manual_seed(1)
    model = Model().cuda()
    optimiser = torch.optim.AdamW(model.parameters())
    loader = DataLoader(
        Texts(), batch_size=8, num_workers=2, pin_memory=True, multiprocessing_context="fork"
    )
    for epoch in range(2):
        for step, texts in enumerate(loader):
            here = texts.cuda(non_blocking=True)
            shape = step_on(model, optimiser, here[:, :-1].contiguous(), here[:, 1:].contiguous())
            if not torch.equal(here.cpu(), texts):
                raise RuntimeError("what was loaded came back changed")
            print(f"epoch {epoch}, step {step}: {shape}")
    say_counts()


main()
