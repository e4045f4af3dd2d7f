"""The same script, elastic, started with: pliant run --job ddp --workers 1:4 --target 2 ddp_elastic.py"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import pliant.torch as pliant

torch.manual_seed(0)
points = torch.randn(2000, 8)
dataset = TensorDataset(points, (points.sum(1) > 0).long())
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

with pliant.join() as job:
    run = job.train(model, optimizer, dataset, batch_size=100, epochs=4, seed=0)
    for epoch in run.epochs():
        for x, y in epoch:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            run.log(loss=loss)
            run.step()
        if run.rank == 0:
            print(f"epoch {epoch.number}: loss {run.metrics['loss']:.3f}", flush=True)
            torch.save(model.state_dict(), "ddp.pt")
