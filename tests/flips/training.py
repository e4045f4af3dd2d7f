"""A small deterministic training that flips the bits which the environment names.

`FLIPS` names what is flipped (`weights` or `gradient`), `FLIPS_STEPS` in which steps; in each of them one bit of the
member with rank 1, once, whichever attempt at the step it is. The job's folder of flips (`FLIPS_FOLDER`) has a file for
each flip, so that a step that is computed again is not spoilt again.
"""

import hashlib
import json
import os
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F  # as every member calls it
from torch import Tensor, nn

import pliant.torch as pliant

FOLDER = Path(os.environ["FLIPS_FOLDER"])
WHAT = os.environ.get("FLIPS", "")
STEPS = set(json.loads(os.environ.get("FLIPS_STEPS", "[]")))
WIDTH = int(os.environ.get("FLIPS_WIDTH", "32"))
SPOILT_RANK = 1
SAMPLES, BATCH, SLOTS = 480, 48, 12


def flip(tensor: Tensor, chance: random.Random) -> None:
    """One bit, as a cosmic ray would: nothing that watches writes through torch sees it."""
    numbers = tensor.detach().reshape(-1).view(torch.int32).numpy()
    numbers[chance.randrange(len(numbers))] ^= 1 << chance.randrange(31)


def is_mine(step: int, rank: int) -> bool:
    """Return whether this member is to flip a bit now; true once for each step, whichever member asks."""
    if step not in STEPS or rank != SPOILT_RANK:
        return False
    try:
        with (FOLDER / f"flip-{step}").open("x") as file:
            file.write(os.environ.get("PLIANT_MEMBER", ""))
    except FileExistsError:
        return False
    return True


def main() -> None:
    torch.manual_seed(1)
    x = torch.randn(SAMPLES, 16)
    data = torch.utils.data.TensorDataset(x, (x[:, 0] * 2).long() % 4)
    model = nn.Sequential(nn.Linear(16, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Dropout(0.1), nn.Linear(WIDTH, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    took_s: list[float] = []
    with pliant.join() as job:
        run = job.train(
            model,
            optimizer,
            data,
            batch_size=BATCH,
            slots=SLOTS,
            epochs=int(os.environ["FLIPS_EPOCHS"]),
            seed=3,
            state={"scheduler": scheduler},
            deterministic=True,
            verify=int(os.environ.get("FLIPS_VERIFY", "0")),
            verify_slots=float(os.environ.get("FLIPS_VERIFY_SLOTS", "0")),
        )
        began = time.perf_counter()
        for inputs, labels in run:
            chance = random.Random(run.step_number)
            own = not run._loop._is_spot  # a flip while another's slot is checked would be found in any case
            spoilt = bool(WHAT) and own and is_mine(run.step_number, run.rank)
            if spoilt and WHAT == "weights" and chance.random() < 0.5:
                flip(chance.choice(list(model.parameters())), chance)
                spoilt = False
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()  # type: ignore[no-untyped-call]  # torch's own
            if spoilt:
                params = list(model.parameters())
                chosen = chance.choice(params)
                flip(chosen if WHAT == "weights" else chosen.grad, chance)  # type: ignore[arg-type]
            if run.step():
                scheduler.step()
                took_s.append(time.perf_counter() - began)
                began = time.perf_counter()
    digest = hashlib.sha256()
    for tensor in (*model.state_dict().values(), *_moments(optimizer)):
        digest.update(tensor.numpy().tobytes())
    middle = sorted(took_s)[len(took_s) // 2] if took_s else 0.0
    print(json.dumps({"sha": digest.hexdigest(), "step_ms": round(1000 * middle, 3)}), flush=True)


def _moments(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [value for state in optimizer.state_dict()["state"].values() for value in state.values()]


if __name__ == "__main__":
    main()
