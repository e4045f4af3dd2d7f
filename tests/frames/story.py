"""The common part of every script of these tests, whatever its framework."""

import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from live.reports import say
from pliant.train.data.batch_size import BatchSize

_NEVER = threading.Event()
FEATURES = 6


@dataclass
class FramePlan:
    """The instructions of a member. `kill` is by place: `{"forward": 3}` strikes in the forward pass of step 3."""

    folder: str
    samples: int = 90
    batch: int = 8
    epochs: int = 4
    seed: int = 7
    slots: int | None = None
    part: int | None = None
    own_seed: int = 0
    pace_s: float = 0.1
    kill: dict[str, int] = field(default_factory=dict)
    deterministic: bool = False
    verify: int = 0
    evaluate: bool = False
    warm: bool = True
    double: bool = False
    averages: float = 0.0  # train a model of its own, drawn to the mean of all by this share
    batches: list[list[int]] = field(default_factory=list)  # [step, batch]: after that step, set that batch

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `job.train` that every framework has."""
        names = ("epochs", "seed", "slots", "part", "deterministic", "verify")
        return {"batch_size": self.batch, **{name: getattr(self, name) for name in names}}


def points(plan: FramePlan) -> tuple[Any, Any]:
    """Return points of three classes, the same in every process."""
    chance = np.random.Generator(np.random.PCG64(1))
    x: Any = chance.normal(size=(plan.samples, FEATURES)).astype(np.float64 if plan.double else np.float32)
    return x, ((x[:, 0] > 0).astype(np.int32) + (x[:, 1] > 0.3).astype(np.int32))


class Story:
    """Faults, progress and the end of one member."""

    def __init__(self, plan: FramePlan) -> None:
        self.plan = plan
        self.compiled_before = 0
        self.batch = BatchSize()

    @property
    def state(self) -> dict[str, Any]:
        """The state of a run whose batch changes."""
        return {"batch": self.batch} if self.plan.batches else {}

    def at(self, where: str, run: Any) -> None:
        if where in self.plan.kill and run.step_number >= self.plan.kill[where]:
            say(killed=where, at=run.step_number)
            os.kill(os.getpid(), signal.SIGKILL)

    def stepped(self, run: Any, **more: object) -> None:
        say(
            step=run.step_number,
            epoch=run.epoch,
            size=run.size,
            rank=run.rank,
            generation=run.generation,
            loss=run.metrics["loss"],
            **more,
        )
        for wanted in [to for step, to in self.plan.batches if step == run.step_number]:
            self.batch.set(wanted)
        self.at("after", run)
        if not (Path(self.plan.folder) / "fast").exists():
            _NEVER.wait(self.plan.pace_s)

    def done(self, arrays: list[Any], rate: float = 0.0, also: Sequence[float] = (), **more: object) -> None:
        """Tell the end: a digest of the whole state with what is in it `also`, and the weights."""
        found = blake2b(digest_size=16)
        for array in [*arrays, np.array(also)]:
            found.update(np.ascontiguousarray(array).tobytes())
        weights = [float(value) for array in arrays for value in np.asarray(array, np.float64).reshape(-1)]
        say(done=True, digest=found.hexdigest(), weights=weights, scheduler=0, steps=0, rate=rate, **more)
