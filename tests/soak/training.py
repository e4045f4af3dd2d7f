"""The training of a soak: a small model on made-up data, for as long as it takes."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

import pliant.torch as pliant

SAMPLES = 32_768
EPOCHS, BATCH = map(int, sys.argv[1:])

torch.set_num_threads(1)
torch.manual_seed(0)
x = torch.randn(SAMPLES, 64)
data = torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
with pliant.join() as job:
    run = job.train(model, optimizer, data, batch_size=BATCH, slots=16, epochs=EPOCHS, seed=7)
    for a, b in run:
        F.cross_entropy(model(a), b).backward()  # type: ignore[no-untyped-call]  # torch's own
        run.step()
