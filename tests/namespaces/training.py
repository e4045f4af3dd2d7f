"""A small live training. Its steps take a while, until the file is there that it is named: then none at all.

`python training.py FOLDER`: what it says about itself is left in that folder, one file for each process.
"""

import json
import os
import sys
import threading
from pathlib import Path

import torch
from torch import nn

import pliant.torch as pliant

FOLDER = Path(sys.argv[1])
STEPS_PER_EPOCH = 16
EPOCHS = 100
STEP_S = 0.05
SLOW_S = 1.0  # so slow is the second half, so that nothing ends before it is time


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    x = torch.randn(STEPS_PER_EPOCH * 32, 8)
    y = (x.sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hurry, pause = FOLDER / "hurry", threading.Event()
    half = EPOCHS * STEPS_PER_EPOCH // 2
    with pliant.join() as job:
        run = job.train(
            model, optimizer, torch.utils.data.TensorDataset(x, y), batch_size=32, slots=16, epochs=EPOCHS, seed=7
        )
        for a, b in run:
            if not hurry.exists():
                pause.wait(STEP_S if run.step_number < half else SLOW_S)
            run.backward(nn.functional.cross_entropy(model(a), b))
            run.step()
    weights = [float(param.detach().double().sum()) for param in model.parameters()]
    said = {"member": os.environ.get("PLIANT_MEMBER"), "step": run.step_number, "weights": weights}
    (FOLDER / f"{os.getpid()}.said").write_text(json.dumps(said))


if __name__ == "__main__":
    main()
