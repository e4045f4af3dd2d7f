"""A script for DDP, started with: torchrun --nproc-per-node 2 ddp.py"""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
points = torch.randn(2000, 8)
dataset = TensorDataset(points, (points.sum(1) > 0).long())
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
start = 0
if Path("ddp.pt").exists():
    saved = torch.load("ddp.pt")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    start = saved["epoch"] + 1

wrapped = DistributedDataParallel(model)
sampler = DistributedSampler(dataset, seed=0)
loader = DataLoader(dataset, batch_size=100 // size, sampler=sampler)
for epoch in range(start, 4):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = F.cross_entropy(wrapped(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if rank == 0:
        print(f"epoch {epoch}: loss {mean.item() / size:.3f}", flush=True)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, "ddp.pt")

dist.destroy_process_group()
