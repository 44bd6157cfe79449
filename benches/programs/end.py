"""Trains with PyTorch and prints when that was done, and how much processor time it
took: what comes then is the end.

usage: end.py STEPS, with tests/clients/pytorch in PYTHONPATH
What was trained stands in the module, as in most scripts, so the end frees it.
"""

import json
import sys
import time

import torch
from model import Model, batch, step_on

torch.manual_seed(1)
generator = torch.Generator().manual_seed(2)
model = Model().cuda()
optimiser = torch.optim.AdamW(model.parameters())
for step in range(int(sys.argv[1])):
    tokens, targets = (each.cuda(non_blocking=True) for each in batch(generator, step))
    step_on(model, optimiser, tokens, targets)
torch.cuda.synchronize()
# All processes count from the same.
print(json.dumps({"ns": time.monotonic_ns(), "processor_ns": time.process_time_ns()}), flush=True)
