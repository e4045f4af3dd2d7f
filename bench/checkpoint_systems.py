"""The systems of `bench/checkpoint.py`: processes that are started once and train in turns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from checkpoint_turns import STEPS, Noted

from pliant.train.checkpoint import DamagedCheckpoint, open_storage, read_manifest

PLIANT = str(Path(sys.executable).with_name("pliant"))
HERE = Path(__file__).parent
PATIENCE_S = 600.0  # the machine may be busy
SAMPLE_S = 0.02
ANONYMOUS = ("RssAnon:", "RssShmem:")  # memory of a process that is not backed by files


class Broken(Exception):
    """A system did not complete its turn."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The records of all processes of a system in one turn, and the peak memory of each."""

    noted: tuple[Noted, ...]
    done: float
    peaks: dict[int, int]

    def of(self, rank: int) -> Noted:
        return next(each for each in self.noted if each.rank == rank)

    @property
    def state(self) -> str:
        return self.of(0).state


class System:
    """Processes that wait for their turn in `folder`."""

    def __init__(self, base: Path, model: str, world: int) -> None:
        self.folder = base / "turns"
        self.folder.mkdir(parents=True)
        self._world = world
        self._processes: list[subprocess.Popen[bytes]] = []
        self._output = (base / "output").open("wb")
        self._env = {
            **os.environ,
            "PLIANT_HOME": str(base / "home"),
            "BENCH_FOLDER": str(self.folder),
            "BENCH_MODEL": model,
            "BENCH_WORLD": str(world),
            "OMP_NUM_THREADS": "1",
        }

    def start(self, *command: str) -> None:
        made = subprocess.Popen(
            command, env=self._env, stdout=self._output, stderr=self._output, start_new_session=True
        )
        self._processes.append(made)

    def until_ready(self) -> None:
        self.until("its start", lambda: len(self._pids()) == self._world)

    def turn(self, number: int) -> Turn:
        """Run a turn, and sample the memory meanwhile."""
        peaks: dict[int, int] = {}

        def look() -> None:
            for pid in self._pids():
                peaks[pid] = max(peaks.get(pid, 0), _anonymous(pid))

        files = [self.folder / f"{number}.{rank}.json" for rank in range(self._world)]
        (self.folder / f"{number}.go").touch()
        self.until(f"turn {number}", lambda: all(file.exists() for file in files), look)
        noted = tuple(Noted(**json.loads(file.read_text())) for file in files)
        done = max(each.done for each in noted)
        return Turn(noted, self.settle(number, look) or done if number else 0.0, peaks)

    def settle(self, number: int, look: Callable[[], None]) -> float:
        """Wait until all data of a turn is on the disk. Return the time when it arrived, if known."""
        raise NotImplementedError

    def until(self, what: str, true: Callable[[], bool], look: Callable[[], None] = lambda: None) -> None:
        end = time.monotonic() + PATIENCE_S
        while not true():
            if time.monotonic() > end or any(each.poll() is not None for each in self._processes):
                said = Path(self._output.name).read_text(errors="replace")[-2000:]
                raise Broken(f"{type(self).__name__}: timed out waiting for {what}; output: {said}")
            look()
            time.sleep(SAMPLE_S)

    def close(self) -> None:
        (self.folder / "over").touch()
        for process in self._processes:
            with suppress(ProcessLookupError):
                process.terminate()
                process.send_signal(signal.SIGTERM)  # a second one stops `pliant run` at once
            with suppress(subprocess.TimeoutExpired):
                process.wait(15)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._output.close()

    def _pids(self) -> list[int]:
        return [int(file.stem) for file in self.folder.glob("*.ready")]


class Pliant(System):
    """A live job with a checkpoint every turn."""

    def __init__(self, base: Path, model: str, world: int) -> None:
        super().__init__(base, model, world)
        self.saved = base / "saved" / "bench"
        self._steps = STEPS[model]
        how = ("--workers", f"{world}:{world}", "--mode", "live", "--job", "bench")
        where = ("--checkpoint-dir", str(self.saved.parent), "--checkpoint-keep", "1")
        every = ("--checkpoint-every", str(self._steps))
        self.start(PLIANT, "run", *how, *where, *every, str(HERE / "checkpoint_worker.py"))

    def name_of(self, number: int) -> str:
        """Return the name of a turn's checkpoint, or an empty string if there is none yet."""
        place = open_storage(self.saved)
        for name in place.checkpoint_names():
            with suppress(DamagedCheckpoint):  # an old one that is being removed
                if read_manifest(place, name).checkpoint.lineage.step == number * self._steps:
                    return name
        return ""

    def settle(self, number: int, look: Callable[[], None]) -> float:
        self.until(f"checkpoint {number}", lambda: bool(self.name_of(number)), look)
        pieces = (self.saved / self.name_of(number)).glob("*.safetensors")
        return max(piece.stat().st_ctime for piece in pieces)  # the time of its renaming


class Raw(System):
    """Plain PyTorch."""

    def __init__(self, base: Path, model: str, world: int, way: str) -> None:
        super().__init__(base, model, world)
        for rank in range(world):
            self.start(sys.executable, str(HERE / "checkpoint_raw.py"), way, str(rank))

    def settle(self, number: int, look: Callable[[], None]) -> float:  # noqa: ARG002  # needs no polling
        for file in (self.folder / "saved").rglob("*"):
            if file.is_file():  # pending writes would slow down the next turn
                handle = os.open(file, os.O_RDONLY)
                os.fsync(handle)
                os.close(handle)
        return 0.0


def _anonymous(pid: int) -> int:
    """Bytes."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(ANONYMOUS))
    return 0
