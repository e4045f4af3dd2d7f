"""Measure elastic training: a step against raw DDP in the same processes, and the pause of each change.

For 0.1 M and 10 M parameters at worlds of 2 and 4, with real workers under `pliant run`. A step: blocks of Pliant's
steps and of DDP's, in turn, as ratios. A pause: the longest time between two applied steps on any member that stays,
around a join, a leave, a kill and a freeze (SIGSTOP, which only the lease ends). Prints a table and, as its last line,
one JSON object. Timings are reported, not judged.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

from training_worker import STAMP

from pliant.client import Client
from pliant.core import messages as m
from pliant.core.model.job import Target
from pliant.credentials import read_token
from pliant.wire.api import MemberLine

PLIANT = str(Path(sys.executable).with_name("pliant"))
WORKER = Path(__file__).with_name("training_worker.py")
JOB = "bench"
LEASE_TTL_S = 3.0
PATIENCE_S = 180.0
EVENTS_MAX = 1000  # in one request
AFTER_S = 1.0  # observation time after a change
BLOCKS = {"S": (12, 60), "M": (10, 12)}  # rounds, and steps in each
CHANGES = ("join", "leave", "kill", "stop")


class Scene:
    """A running job and its coordinator, with a short lease, so that a freeze ends soon."""

    def __init__(self, base: Path, model: str, world: int, worker: Path, blocks: tuple[int, int]) -> None:
        self.folder = base / "steps"
        self.folder.mkdir(parents=True)
        rounds, steps = blocks
        self._world = world
        self._read = 0  # the revision of the last event that was read
        self._formed: dict[int, tuple[int, float, int]] = {}  # by generation: revision, time and size
        self._entered: dict[int, float] = {}
        env = {
            **os.environ,
            "PLIANT_HOME": str(base / "home"),
            "BENCH_FOLDER": str(self.folder),
            "BENCH_MODEL": model,
            "BENCH_WORLD": str(world),
            "BENCH_ROUNDS": str(rounds),
            "BENCH_STEPS": str(steps),
            "OMP_NUM_THREADS": "1",
        }
        self._output = (base / "output").open("w")
        lease = ("--lease-ttl-s", str(LEASE_TTL_S), "--listen", "127.0.0.1:0")
        self._coordinator = self._start(["coordinator", *lease, "--json"], env, subprocess.PIPE)
        assert self._coordinator.stdout is not None
        url = _url(self._coordinator.stdout.readline())
        token = base / "home" / "token"
        place = ("--coordinator", url, "--token-file", str(token))
        sizes = ("--workers", f"1:{world + 1}", "--target", str(world), "--max-restarts", "1000", "--grace-s", "20")
        self._run = self._start(["run", "--mode", "live", "--job", JOB, *sizes, *place, str(worker)], env, self._output)
        self.client = Client([url], read_token(token), patience_s=30.0)

    def _start(self, arguments: list[str], env: dict[str, str], to: object) -> subprocess.Popen[str]:
        return subprocess.Popen(  # type: ignore[call-overload,no-any-return]  # a file or a pipe
            [PLIANT, *arguments], env=env, stdout=to, stderr=self._output, text=True, start_new_session=True
        )

    def close(self) -> None:
        for process in (self._run, self._coordinator):
            process.terminate()
            process.send_signal(signal.SIGTERM)  # the second stops at once
            with suppress(subprocess.TimeoutExpired):
                process.wait(15)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        self.client.close()
        self._output.close()

    # --------------------------------------------------------------------------------------------- observation

    def until(self, what: str, true: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        """Wait for a condition, and check it every tenth of a second: checking costs CPU time."""
        end = time.monotonic() + patience_s
        while not true():
            if time.monotonic() > end or self._run.poll() is not None:
                raise RuntimeError(f"timed out waiting for {what}; see {self._output.name}")
            time.sleep(0.1)

    def whole(self, size: int) -> bool:
        """Return whether `count` members train with the state, and no other member joins or leaves."""
        with suppress(Exception):  # why: the job may not be there yet
            status = self.client.job(JOB)
            active = [each for each in status.members if each.state.value == "active" and each.rank is not None]
            return status.job.size == len(active) == size and len(status.members) == size
        return False

    def ranked(self) -> list[MemberLine]:
        return [each for each in self.client.job(JOB).members if each.rank is not None]

    def revision(self) -> int:
        return self.client.job(JOB).job.revision

    def entered_since(self, revision: int, size: int) -> tuple[float, float] | None:
        """Return the times at which a world of that size was formed and entered, after that revision."""
        self._read_events()
        for number, entered_at in self._entered.items():
            formed_in, formed_at, members = self._formed[number]
            if formed_in > revision and members == size:
                return formed_at, entered_at
        return None

    def _read_events(self) -> None:
        """Read what is new. Fast steps make thousands of events while a worker starts."""
        new = True
        while new:
            new = False
            for revision, event in self.client.events(JOB, self._read, EVENTS_MAX):
                self._read, new = revision, True
                if isinstance(event, m.WorldFormed):
                    self._formed[event.world.number] = self._read, event.at, len(event.world.members)
                elif isinstance(event, m.WorldEntered):
                    self._entered[event.generation] = event.at

    def longest_gap(self, begin: float, end: float, leaving: str) -> float:
        """Return the longest time between two applied steps, of members present before and after."""
        longest = 0.0
        for file in self.folder.glob("*.steps"):
            if file.stem == leaving:
                continue
            times = [at for at, _ in STAMP.iter_unpack(file.read_bytes())]
            around = [at for at in times if begin - 2.0 <= at]
            if not times or times[0] > begin or not around or around[-1] < end:
                continue
            gaps = [b - a for a, b in pairwise(around) if b >= begin and a <= end]
            longest = max(longest, *gaps, 0.0)
        return longest

    # ------------------------------------------------------------------------------------------------- changes

    def change(self, kind: str, chance: random.Random) -> float:
        """Make one change, wait until all members are back, and return the pause in seconds."""
        before, began = self.revision(), time.time()
        victim = chance.choice(self.ranked())
        assert victim.pid is not None  # a member of a world runs
        leaving, size = "", self._world + 1 if kind == "join" else self._world
        match kind:
            case "join" | "leave":
                self.client.send(JOB, m.Resize(Target(size)))
            case "kill":
                leaving, size = victim.id, self._world - 1
                began = time.time()
                os.kill(victim.pid, signal.SIGKILL)
            case _:
                leaving, size = victim.id, self._world - 1
                began = time.time()
                os.kill(victim.pid, signal.SIGSTOP)
        self.until(f"a world of {size}", lambda: self.entered_since(before, size) is not None)
        formed, entered = self.entered_since(before, size) or (0.0, 0.0)
        if kind == "stop":
            os.kill(victim.pid, signal.SIGCONT)
        self.until("all members", lambda: self.whole(self._world + 1 if kind == "join" else self._world))
        self.until("some more steps", lambda: time.time() > entered + AFTER_S)
        begin = began if leaving else formed - 0.05
        return self.longest_gap(begin, entered + AFTER_S / 2, leaving)


def _url(line: str) -> str:
    found: str = json.loads(line)["url"]
    return found


@contextmanager
def scene(base: Path, model: str, world: int, worker: Path, blocks: tuple[int, int]) -> Iterator[Scene]:
    made = Scene(base, model, world, worker, blocks)
    try:
        yield made
    finally:
        made.close()


def measure(base: Path, model: str, world: int, repeat: int, chance: random.Random) -> dict[str, object]:
    with scene(base, model, world, WORKER, BLOCKS[model]) as it:
        it.until("the comparison with DDP", (it.folder / "compared.json").exists)
        pairs = json.loads((it.folder / "compared.json").read_text())
        ratios = [ours / ddp for ours, ddp in pairs]
        row: dict[str, object] = {
            "model": model,
            "world": world,
            "ddp_ms": round(1e3 * statistics.median(ddp for _, ddp in pairs), 2),
            "pliant_ms": round(1e3 * statistics.median(ours for ours, _ in pairs), 2),
            "ratio": round(statistics.median(ratios), 3),
            "ratio_quartiles": [round(each, 2) for each in statistics.quantiles(ratios)],
        }
        print(f"{model} world {world}: {row}", flush=True)
        pauses: dict[str, list[float]] = {kind: [] for kind in CHANGES}
        for _ in range(repeat):
            for kind in CHANGES:
                pauses[kind].append(it.change(kind, chance))
                print(f"{model} world {world}: {kind} {1e3 * pauses[kind][-1]:.0f} ms", flush=True)
        for kind, found in pauses.items():
            row[f"{kind}_ms"] = round(1e3 * statistics.median(found), 1)
            row[f"{kind}_ms_all"] = [round(1e3 * each, 1) for each in found]
        return row


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # runs every `finally`, so that no process remains
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=3, help="repetitions of each change")
    parser.add_argument("--models", default="S,M")
    parser.add_argument("--worlds", default="2,4")
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    rows = []
    with tempfile.TemporaryDirectory(prefix="pliant-bench-") as folder:
        for model in asked.models.split(","):
            for world in map(int, asked.worlds.split(",")):
                base = Path(folder) / f"{model}{world}"
                base.mkdir()
                rows.append(measure(base, model, world, asked.repeat, chance))
    print()
    print(f"pauses in ms, medians of {asked.repeat}; a freeze ends when its lease of {LEASE_TTL_S:g} s expires")
    print(f"{'':8}{'DDP':>9}{'Pliant':>9}{'ratio':>8}{'join':>8}{'leave':>8}{'kill':>8}{'stop':>8}")
    for row in rows:
        name = f"{row['model']} x {row['world']}"
        figures = [f"{row[key]:>8}" for key in ("ratio", "join_ms", "leave_ms", "kill_ms", "stop_ms")]
        print(f"{name:8}{row['ddp_ms']:>9}{row['pliant_ms']:>9}{''.join(figures)}")
    print(json.dumps({"ok": True, "seed": asked.seed, "lease_ttl_s": LEASE_TTL_S, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
