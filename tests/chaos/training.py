"""The training script of the chaos runs: small, and with everything in it that can go out of step.

A model with its optimizer and scheduler (see `models.py`) and an average of the weights; a data set that writes down,
beside Pliant, each time it is asked for a sample. `CHAOS_FOLDER` is where workers leave what the harness looks at; the
rest of the environment's `CHAOS_` names choose what is trained and how, and which bug is planted (see `bugs.py`).
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
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))

import pliant.torch as pliant  # after the path
from chaos import bugs, probe
from chaos.models import LESSONS, Lesson
from chaos.no_dynamo import leave_out_compiler
from chaos.probe import Place, Probe
from chaos.training_log import RECORD

FOLDER = Path(os.environ["CHAOS_FOLDER"])
SAMPLES = int(os.environ["CHAOS_SAMPLES"])
BATCH = int(os.environ["CHAOS_BATCH"])
EPOCHS = int(os.environ["CHAOS_EPOCHS"])
SEED = int(os.environ["CHAOS_SEED"])
SLOTS = int(os.environ["CHAOS_SLOTS"])
DETERMINISTIC = os.environ["CHAOS_DETERMINISTIC"] == "yes"


class Readings(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """The lesson's samples. Each read is written to a file of the process that reads, at once."""

    def __init__(self, lesson: Lesson) -> None:
        self._lesson = lesson
        self._file = (0, -1)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, sample: int) -> tuple[Tensor, Tensor]:
        os.write(self._own_file(), RECORD.pack(sample, time.time()))
        x, y = self._lesson.items
        return self._lesson.read(x[sample], y[sample])

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
            total.update(part.detach().cpu().contiguous().numpy().tobytes())
        else:
            total.update(repr(part).encode())

    add(value)
    return total.hexdigest()


def watch(first: nn.Module, where: Probe) -> None:
    """Be there to be struck in the middle of a forward and of a backward pass."""

    def passed(_module: nn.Module, _given: Any, hidden: Tensor) -> None:
        if hidden.requires_grad:
            where.point(Place.FORWARD)
            hidden.register_hook(lambda _: where.point(Place.BACKWARD))  # type: ignore[no-untyped-call]  # torch's own

    first.register_forward_hook(passed)


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)
    torch.set_num_threads(1)
    leave_out_compiler()
    where = Probe(FOLDER)
    probe.install(where)
    bugs.plant(os.environ.get("CHAOS_BUG", ""), FOLDER)
    torch.manual_seed(1)
    lesson = LESSONS[os.environ["CHAOS_LESSON"]](SAMPLES, EPOCHS * -(-SAMPLES // BATCH))
    model, optimizer, scheduler = lesson.model.to(pliant.device()), lesson.optimizer, lesson.scheduler
    watch(lesson.first, where)
    optimizer.register_step_post_hook(lambda *_: where.point(Place.APPLY))
    average = Average(model)
    workers = {"some": os.getpid() % 2}.get(os.environ.get("CHAOS_DATA_WORKERS", "some"), 1)
    record(started=os.getpid())
    try:
        with pliant.join() as job:
            run = job.train(
                model,
                optimizer,
                Readings(lesson),
                batch_size=BATCH,
                slots=SLOTS,
                epochs=EPOCHS,
                seed=SEED,
                state={"scheduler": scheduler, "average": average},
                clip_norm=lesson.clip_norm,
                num_workers=workers,
                deterministic=DETERMINISTIC,
            )
            for x, y in run:
                where.begin_step(run.step_number)
                where.at(Place.FORWARD)
                loss, count = lesson.loss(x, y)
                where.at(Place.BACKWARD)
                run.backward(loss, weight=count)
                run.log(loss=loss, drawn=torch.rand(()))
                where.at(Place.BETWEEN)
                if run.step():
                    scheduler.step()
                    average.update(model)
    except pliant.Left as left:
        record(left=left.code, why=left.why)
        raise
    parts: dict[str, Any] = {
        "weights": dict(model.named_parameters()),
        "buffers": dict(model.named_buffers()),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "average": average.state_dict(),
        "metrics": {name: value.hex() for name, value in sorted(run.metrics.items())},
    }
    hashes = {name: digest(part) for name, part in parts.items()}
    record(final=hashes, loss=final_loss(lesson), step=run.step_number, updates=average.updates, size=run.size)


def final_loss(lesson: Lesson) -> float:
    """Over all samples as they are read, the same draws for every member."""
    torch.manual_seed(2)
    lesson.model.eval()
    x, y = (read.to(pliant.device()) for read in lesson.read(*lesson.items))
    with torch.no_grad():
        return float(lesson.loss(x, y)[0])


if __name__ == "__main__":
    main()
