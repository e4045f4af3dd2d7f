"""The model, the turns and the records that all systems of `bench/checkpoint.py` share.

A turn is a fixed number of steps. A checkpoint starts at the first one. All other systems sleep meanwhile, so that none
disturbs the one that is measured, and all of them are measured within the same minute.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import nn

FEATURES = 64
SHAPES = {"M": (1824, 3), "L": (5760, 3)}  # width and depth: 10 M parameters, and 100 M
BATCHES = {"M": 256, "L": 64}  # samples a member and step
STEPS = {"M": 12, "L": 10}  # of a turn
LOOK_S = 0.01
AWAKE_S = 0.5


@dataclass(slots=True)
class Noted:
    """One turn of one process."""

    rank: int
    began: float = 0.0  # by the wall clock, before the first step
    steps_s: list[float] = field(default_factory=list)
    calls_s: float = 0.0  # time in the call that saves
    waits_s: float = 0.0  # time waiting for the copy, before the state changes
    copied: int = 0  # bytes of that copy, if known
    done: float = 0.0  # wall clock time of the completed write; 0 if the driver finds out
    state: str = ""  # hash of the state after the last step, if it is compared


class Turns:
    """The turns of one process. Call `begin`, then `stepped` after every step."""

    def __init__(self, folder: Path, rank: int, steps: int) -> None:
        self._folder = folder
        self._rank = rank
        self._steps = steps
        self._number = -1
        self.noted = Noted(rank)

    @property
    def saves(self) -> bool:
        """Return whether the next step has a checkpoint: the first step of every turn but the first."""
        return not self.noted.steps_s and self._number > 0

    def begin(self) -> bool:
        """Wait for the next turn. Return False after the last one."""
        self._number += 1
        (self._folder / f"{os.getpid()}.ready").touch()
        while not (self._folder / f"{self._number}.go").exists():
            if (self._folder / "over").exists():
                return False
            time.sleep(LOOK_S)
        _wake_up()
        self.noted = Noted(self._rank, time.time())
        self._last = time.perf_counter()
        return True

    def stepped(self) -> bool:
        """Return whether the turn is over, and report it."""
        now = time.perf_counter()
        self.noted.steps_s.append(now - self._last)
        self._last = now
        return len(self.noted.steps_s) == self._steps

    def done(self) -> None:
        file = self._folder / f"{self._number}.{self._rank}.json"
        hidden = file.with_suffix(f".{os.getpid()}")
        hidden.write_text(json.dumps(asdict(self.noted)))
        hidden.rename(file)


def _wake_up() -> None:
    """Warm up the processor: it is slow after sleeping, and the first step of a turn is measured."""
    some, end = torch.ones(256, 256), time.monotonic() + AWAKE_S
    while time.monotonic() < end:
        some @ some


def network(name: str) -> nn.Module:
    width, depth = SHAPES[name]
    layers: list[nn.Module] = [nn.Linear(FEATURES, width), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """Return Adam, with two moments for each weight: a state of twelve bytes a parameter."""
    return torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
