"""The training script of the chaos runs: small, and with everything in it that can go out of step.

A model with its optimizer and scheduler (see `models.py`) and an average of the weights; a data set that writes down,
beside Pliant, each time it is asked for a sample. `CHAOS_FOLDER` is where workers leave what the harness looks at; the
rest of the environment's `CHAOS_` names choose what is trained and how (see `worker.py`), and which bug is planted (see
`bugs.py`).
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))

import pliant.torch as pliant  # after the path
from chaos import bugs, probe, worker
from chaos.models import LESSONS, Lesson
from chaos.no_dynamo import leave_out_compiler
from chaos.probe import Place, Probe
from chaos.worker import BATCH, DETERMINISTIC, EPOCHS, FOLDER, SAMPLES, SEED, SLOTS, ReadLog, digest, record
from pliant.torch.reduce.deterministic import DeterministicReducer
from pliant.torch.reduce.floating import FloatingReducer


class Readings(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """The lesson's samples. Each read is written to a file of the process that reads, at once."""

    def __init__(self, lesson: Lesson) -> None:
        self._lesson = lesson
        self._log = ReadLog()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, sample: int) -> tuple[Tensor, Tensor]:
        self._log.note(sample)
        x, y = self._lesson.items
        return self._lesson.read(x[sample], y[sample])


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


def watch(first: nn.Module, where: Probe) -> None:
    """Be there to be struck in the middle of a forward and of a backward pass."""

    def passed(_module: nn.Module, _given: Any, hidden: Tensor) -> None:
        if hidden.requires_grad:
            where.point(Place.FORWARD)
            hidden.register_hook(lambda _: where.point(Place.BACKWARD))  # type: ignore[no-untyped-call]  # torch's own

    first.register_forward_hook(passed)


def main() -> None:
    worker.dump_stacks_on_request()
    torch.set_num_threads(1)
    leave_out_compiler()
    where = Probe(FOLDER)
    probe.install(where, FloatingReducer, DeterministicReducer)
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
