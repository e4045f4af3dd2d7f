"""A plain PyTorch script: one process, one machine, from the first epoch to the last."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
points = torch.randn(2000, 8)
dataset = TensorDataset(points, (points.sum(1) > 0).long())
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 160)

loader = DataLoader(dataset, batch_size=50, shuffle=True)
step = 0
for _ in range(4):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        step += 1
        if step % 40 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)

torch.save(model.state_dict(), "plain.pt")
print("saved", flush=True)
