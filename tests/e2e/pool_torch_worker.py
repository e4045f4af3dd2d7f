"""The script of `pool_worker.py` with torch: `pool_torch_worker.py STEPS PACE_S QUICK`."""

import sys
import threading
from hashlib import blake2b
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import pliant.torch as pliant

steps, pace_s, quick = int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
torch.manual_seed(0)
x = torch.randn(64, 8)
data = torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
never = threading.Event()
with pliant.join() as job:
    run = job.train(model, optimizer, data, batch_size=8, epochs=steps // 8, seed=7, slots=8, deterministic=True)
    for a, b in run:
        cross_entropy(model(a), b).backward()  # type: ignore[no-untyped-call]  # of torch
        if not quick.exists():
            never.wait(pace_s / 4)  # more workers are faster: a job that gained nothing from them would not grow back
        run.step()
digest = blake2b(b"".join(each.detach().numpy().tobytes() for each in model.parameters()), digest_size=8)
print("digest", digest.hexdigest())
