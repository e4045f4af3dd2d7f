"""A PyTorch script for `makespan.py`: `makespan_worker.py STEPS SLOT_S SEED`.

A worker waits `SLOT_S` for each slot of a step, as if a device computed it. So six workers need no six cores. The last
line is a digest of the trained weights.
"""

import sys
import threading
from hashlib import blake2b

import torch
from torch.nn.functional import cross_entropy

import pliant.torch as pliant

steps, slot_s, seed = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
BATCH, SLOTS, SAMPLES = 24, 12, 240
torch.manual_seed(seed)
x = torch.randn(SAMPLES, 32)
data = torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
device = threading.Event()
with pliant.join() as job:
    epochs = steps * BATCH // SAMPLES
    run = job.train(model, optimizer, data, batch_size=BATCH, epochs=epochs, seed=seed, slots=SLOTS, deterministic=True)
    for a, b in run:
        cross_entropy(model(a), b).backward()  # type: ignore[no-untyped-call]  # of torch
        device.wait(slot_s)
        run.step()
digest = blake2b(b"".join(each.detach().numpy().tobytes() for each in model.parameters()), digest_size=8)
print("digest", digest.hexdigest())
