"""The training script of the chaos runs: small, and with everything in it that can go out of step.

Dropout, BatchNorm, AdamW, a scheduler and an average of the weights; a data set that writes down, beside Pliant, each
time it is asked for a sample. `CHAOS_FOLDER` is where workers leave what the harness looks at; the rest of the
environment's `CHAOS_` names choose what is trained, and which bug is planted (see `bugs.py`).
"""

import faulthandler
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # as everybody calls it
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))

import pliant.torch as pliant  # after the path
from chaos import bugs, probe
from chaos.probe import Place, Probe
from chaos.training_log import RECORD

FOLDER = Path(os.environ["CHAOS_FOLDER"])
SAMPLES = int(os.environ["CHAOS_SAMPLES"])
BATCH = int(os.environ["CHAOS_BATCH"])
EPOCHS = int(os.environ["CHAOS_EPOCHS"])
SEED = int(os.environ["CHAOS_SEED"])
FEATURES, HIDDEN, CLASSES = 16, 32, 4


class Readings(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Points in a few noisy clouds. Each read is written to a file of the process that reads, at once."""

    def __init__(self) -> None:
        chance = torch.Generator().manual_seed(0)
        centres = torch.randn(CLASSES, FEATURES, generator=chance)
        self.labels = torch.randint(CLASSES, (SAMPLES,), generator=chance)
        self.points = 0.7 * centres[self.labels] + torch.randn(SAMPLES, FEATURES, generator=chance)
        self._file = (0, -1)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, sample: int) -> tuple[Tensor, int]:
        os.write(self._own_file(), RECORD.pack(sample, time.time()))
        return self.points[sample], int(self.labels[sample])

    def _own_file(self) -> int:
        pid, handle = self._file
        if pid != os.getpid():  # a data worker was forked
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            handle = os.open(FOLDER / f"{os.getpid()}.reads", flags, 0o600)
            self._file = (os.getpid(), handle)
        return handle


class Average:
    """An exponential moving average of the weights, as users write one."""

    def __init__(self, model: nn.Module) -> None:
        self.weights = {name: param.detach().clone() for name, param in model.named_parameters()}
        self.updates = 0

    def update(self, model: nn.Module) -> None:
        self.updates += 1
        for name, param in model.named_parameters():
            self.weights[name].lerp_(param.detach(), 0.01)

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]
        for name, value in state["weights"].items():
            self.weights[name].copy_(value)


def record(**said: object) -> None:
    """A line for the harness, whatever happens to this process next."""
    with (FOLDER / f"{os.getpid()}.said").open("a") as file:
        file.write(json.dumps({"at": time.time(), "member": os.environ.get("PLIANT_MEMBER", ""), **said}) + "\n")


def digest(value: object) -> str:
    """SHA-256 over everything in a state, by name and in order."""
    total = hashlib.sha256()

    def add(part: object) -> None:
        if isinstance(part, dict):
            for key in part:
                total.update(repr(key).encode())
                add(part[key])
        elif isinstance(part, list | tuple):
            for each in part:
                add(each)
        elif isinstance(part, Tensor):
            total.update(part.detach().contiguous().numpy().tobytes())
        else:
            total.update(repr(part).encode())

    add(value)
    return total.hexdigest()


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)
    torch.set_num_threads(1)
    where = Probe(FOLDER)
    probe.install(where)
    bugs.plant(os.environ.get("CHAOS_BUG", ""), FOLDER)
    torch.manual_seed(1)
    data = Readings()
    first, second = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, CLASSES)
    model = nn.Sequential(first, nn.BatchNorm1d(HIDDEN), nn.ReLU(), nn.Dropout(0.1), second)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    optimizer.register_step_post_hook(lambda *_: where.point(Place.APPLY))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * -(-SAMPLES // BATCH), eta_min=1e-4)
    average = Average(model)
    workers = {"some": os.getpid() % 2}.get(os.environ.get("CHAOS_DATA_WORKERS", "some"), 1)
    record(started=os.getpid())
    try:
        with pliant.join() as job:
            run = job.train(
                model,
                optimizer,
                data,
                batch_size=BATCH,
                slots=BATCH // 2,  # two samples at least in every part: BatchNorm needs them
                epochs=EPOCHS,
                seed=SEED,
                state={"scheduler": scheduler, "average": average},
                num_workers=workers,
            )
            for x, y in run:
                where.begin_step(run.step_number)
                where.at(Place.FORWARD)
                hidden = first(x)
                where.point(Place.FORWARD)
                loss = F.cross_entropy(model[1:](hidden), y)
                where.at(Place.BACKWARD)
                hidden.register_hook(lambda _: where.point(Place.BACKWARD))
                loss.backward()  # type: ignore[no-untyped-call]  # torch's own
                run.log(loss=loss)
                where.at(Place.BETWEEN)
                if run.step():
                    scheduler.step()
                    average.update(model)
    except pliant.Left as left:
        record(left=left.code, why=left.why)
        raise
    model.eval()
    with torch.no_grad():
        loss = F.cross_entropy(model(data.points), data.labels)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "average": average}
    hashes = {name: digest(part.state_dict()) for name, part in parts.items()}
    record(final=hashes, loss=float(loss), step=run.step_number, updates=average.updates, size=run.size)


if __name__ == "__main__":
    main()
