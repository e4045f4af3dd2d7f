"""A small live training in deterministic mode, for pods. Its steps take a while, until the file `hurry` exists.

The file `eat` makes a worker take more memory than its pod may have. Pods get the script from a ConfigMap. At the end
each worker prints one JSON object with the hash of its weights.
"""

import hashlib
import json
import os
import sys
import threading
from pathlib import Path

import torch
from torch import nn

import pliant.torch as pliant

STEPS = int(sys.argv[1])
STEP_S = float(sys.argv[2])
HURRY = Path("/tmp/hurry")
EAT = Path("/tmp/eat")
STEPS_PER_EPOCH = 16


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    x = torch.randn(STEPS_PER_EPOCH * 32, 8)
    y = (x.sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(x, y)
    pause = threading.Event()
    with pliant.join() as job:
        run = job.train(
            model,
            optimizer,
            data,
            batch_size=32,
            slots=8,
            epochs=STEPS // STEPS_PER_EPOCH,
            seed=7,
            deterministic=True,
        )
        for a, b in run:
            if not HURRY.exists():
                pause.wait(STEP_S)
            if EAT.exists():
                EAT.unlink()
                bytearray(b"1") * (4 << 30)
            run.backward(nn.functional.cross_entropy(model(a), b))
            run.step()
    weights = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest()
    print(json.dumps({"member": os.environ.get("PLIANT_MEMBER", ""), "weights": weights}), flush=True)


if __name__ == "__main__":
    main()
