"""The same script, elastic: any number of processes, also one, and another number while it runs."""

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
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 160)

with pliant.join() as job:
    run = job.train(
        model, optimizer, dataset, batch_size=50, epochs=4, seed=0, clip_norm=1.0, state={"scheduler": scheduler}
    )
    for x, y in run:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        run.log(loss=loss)
        if run.step():
            scheduler.step()
            if run.step_number % 40 == 0 and run.rank == 0:
                print(f"step {run.step_number}: loss {run.metrics['loss']:.3f}", flush=True)

if run.rank == 0:
    torch.save(model.state_dict(), "plain.pt")
    print("saved", flush=True)
