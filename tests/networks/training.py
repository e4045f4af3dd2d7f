"""A small live training in deterministic mode. Its steps take a while, until it is told to hurry.

`python training.py FOLDER [EPOCHS [SLOW_S]]`: each process leaves a file there with its step, and at the end one with
the hash of its weights and of its optimizer's state.
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

FOLDER = Path(sys.argv[1])
STEPS_PER_EPOCH = 16
EPOCHS = int(sys.argv[2]) if len(sys.argv) > 2 else 16
STEP_S = 0.05
SLOW_S = float(sys.argv[3]) if len(sys.argv) > 3 else 1.0  # for a step in the second half, so that nothing ends early
WIDTH = 128  # parameters enough for a few frames in every step


def digest(tensors: list[torch.Tensor]) -> str:
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().contiguous().numpy().tobytes())
    return total.hexdigest()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    x = torch.randn(STEPS_PER_EPOCH * 32, 8)
    y = (x.sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(8, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    hurry, pause = FOLDER / "hurry", threading.Event()
    here = FOLDER / f"{os.getpid()}.step"
    half = EPOCHS * STEPS_PER_EPOCH // 2
    with pliant.join() as job:
        run = job.train(
            model,
            optimizer,
            torch.utils.data.TensorDataset(x, y),
            batch_size=32,
            slots=16,
            epochs=EPOCHS,
            seed=7,
            deterministic=True,
        )
        for a, b in run:
            here.write_text(str(run.step_number))
            if not hurry.exists():
                pause.wait(STEP_S if run.step_number < half else SLOW_S)
            run.backward(nn.functional.cross_entropy(model(a), b))
            run.step()
    moments = [
        value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)
    ]
    said = {
        "member": os.environ.get("PLIANT_MEMBER", ""),
        "step": run.step_number,
        "weights": digest(list(model.parameters())),
        "optimizer": digest(moments),
    }
    (FOLDER / f"{os.getpid()}.said").write_text(json.dumps(said))


if __name__ == "__main__":
    main()
