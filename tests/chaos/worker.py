"""The common part of every training script of the chaos runs, whatever its framework."""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import signal
import time
from pathlib import Path

import numpy as np

from chaos.training_log import RECORD

FOLDER = Path(os.environ["CHAOS_FOLDER"])
SAMPLES = int(os.environ["CHAOS_SAMPLES"])
BATCH = int(os.environ["CHAOS_BATCH"])
EPOCHS = int(os.environ["CHAOS_EPOCHS"])
SEED = int(os.environ["CHAOS_SEED"])
SLOTS = int(os.environ["CHAOS_SLOTS"])
DETERMINISTIC = os.environ["CHAOS_DETERMINISTIC"] == "yes"


def dump_stacks_on_request() -> None:
    """Write the stacks of all threads at each SIGUSR1."""
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)


class ReadLog:
    """Each read of a sample goes to a file of the process that reads, at once."""

    def __init__(self) -> None:
        self._file = (0, -1)

    def note(self, sample: int) -> None:
        os.write(self._own_file(), RECORD.pack(sample, time.time()))

    def _own_file(self) -> int:
        pid, handle = self._file
        if pid != os.getpid():  # a data worker was forked
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            handle = os.open(FOLDER / f"{os.getpid()}.reads", flags, 0o600)
            self._file = (os.getpid(), handle)
        return handle


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
        elif hasattr(part, "detach"):  # a tensor of torch
            total.update(part.detach().cpu().contiguous().numpy().tobytes())
        elif hasattr(part, "__array__"):
            total.update(np.ascontiguousarray(np.asarray(part)).tobytes())
        else:
            total.update(repr(part).encode())

    add(value)
    return total.hexdigest()
